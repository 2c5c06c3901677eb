"""Fast, small and exact heteroscedastic classification heads (Het-Nets) for PyTorch."""

from importlib.metadata import version

from . import data, functional, models, plotting, reference
from ._library import cpu_capability, cuda_version
from .layers import HeadParameters, HeteroscedasticLayer
from .method import het_net
from .quantification import AleatoricDecomposition, quantify
from .representation import HetNetRepresentation, HetNetRepresenter, representer
from .training import nll_loss

__version__ = version("hetnet_ext")

__all__ = [
    "AleatoricDecomposition",
    "HeadParameters",
    "HetNetRepresentation",
    "HetNetRepresenter",
    "HeteroscedasticLayer",
    "cpu_capability",
    "cuda_version",
    "data",
    "functional",
    "het_net",
    "models",
    "nll_loss",
    "plotting",
    "quantify",
    "reference",
    "representer",
]
