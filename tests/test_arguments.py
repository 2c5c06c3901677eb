"""Every error message: the argument, what was expected, what came."""

from __future__ import annotations

import re

import pytest
import torch
from backend import native_only
from torch._subclasses.fake_tensor import FakeTensorMode

import hetnet_ext
from hetnet_ext import HeteroscedasticLayer, functional, reference

B, K, R = 4, 3, 2


def arguments(**changes):
    return {"loc": torch.zeros(B, K), "scale": torch.ones(B, K), "num_samples": 5, **changes}


FACTOR = {"cov_factor": torch.zeros(B, K, R)}
WRONG = [
    ({"loc": [1.0, 2.0]}, TypeError, "loc: expected a tensor, got list"),
    ({"loc": torch.zeros(B, K, dtype=torch.int64)}, TypeError, "loc: expected dtype float16, bfloat16, float32 or float64, got torch.int64"),
    ({"loc": torch.zeros(B, K, dtype=torch.complex64)}, TypeError, "loc: expected dtype float16, bfloat16, float32 or float64, got torch.complex64"),
    ({"loc": torch.zeros(())}, ValueError, "loc: expected shape (..., classes) with at least 2 classes, got ()"),
    ({"loc": torch.zeros(B, 0)}, ValueError, "loc: expected shape (..., classes) with at least 2 classes, got (4, 0)"),
    ({"loc": torch.zeros(B, 1)}, ValueError, "loc: expected shape (..., classes) with at least 2 classes, got (4, 1)"),
    ({"scale": 1.0}, TypeError, "scale: expected a tensor, got float"),
    ({"scale": torch.ones(B, K + 1)}, ValueError, "scale: expected shape (4, 3), the shape of loc, got (4, 4)"),
    ({"scale": torch.ones(K)}, ValueError, "scale: expected shape (4, 3), the shape of loc, got (3,)"),
    ({"scale": torch.ones(B, K, dtype=torch.float64)}, TypeError, "scale: expected dtype torch.float32, the dtype of loc, got torch.float64"),
    ({"scale": torch.ones(B, K, dtype=torch.int32)}, TypeError, "scale: expected dtype float16, bfloat16, float32 or float64, got torch.int32"),
    ({"scale": torch.ones(B, K, device="meta")}, ValueError, "scale: expected device cpu, the device of loc, got meta"),
    ({"cov_factor": 1}, TypeError, "cov_factor: expected a tensor, got int"),
    ({"cov_factor": torch.zeros(B + 1, K, R)}, ValueError, "cov_factor: expected shape (4, 3, factors), or (3, factors) shared by all rows, got (5, 3, 2)"),
    ({"cov_factor": torch.zeros(K + 1, R)}, ValueError, "cov_factor: expected shape (4, 3, factors), or (3, factors) shared by all rows, got (4, 2)"),
    ({"cov_factor": torch.zeros(B, K, R).half()}, TypeError, "cov_factor: expected dtype torch.float32, the dtype of loc, got torch.float16"),
    ({"factor_scale": torch.ones(B, R)}, ValueError, "factor_scale: expected None without a cov_factor, got a tensor"),
    ({**FACTOR, "factor_scale": torch.ones(B, R + 1)}, ValueError, "factor_scale: expected shape (4, 2), (..., factors) as in cov_factor, got (4, 3)"),
    ({**FACTOR, "factor_scale": torch.ones(B, R).double()}, TypeError, "factor_scale: expected dtype torch.float32, the dtype of loc, got torch.float64"),
    ({"num_samples": 0}, ValueError, "num_samples: expected 1 to 2147483647, got 0"),
    ({"num_samples": -3}, ValueError, "num_samples: expected 1 to 2147483647, got -3"),
    ({"num_samples": 2**31}, ValueError, "num_samples: expected 1 to 2147483647, got 2147483648"),
    ({"num_samples": 2.5}, TypeError, "num_samples: expected an int, got float"),
    ({"temperature": 0.0}, ValueError, "temperature: expected a finite value above 0, got 0.0"),
    ({"temperature": -1}, ValueError, "temperature: expected a finite value above 0, got -1.0"),
    ({"temperature": float("nan")}, ValueError, "temperature: expected a finite value above 0, got nan"),
    ({"temperature": float("inf")}, ValueError, "temperature: expected a finite value above 0, got inf"),
    ({"temperature": torch.tensor(-2.0)}, ValueError, "temperature: expected a finite value above 0, got -2.0"),
    ({"temperature": torch.ones(2)}, ValueError, "temperature: expected a float or a tensor of shape (), got (2,)"),
    ({"temperature": torch.tensor(1)}, TypeError, "temperature: expected a floating-point tensor, got torch.int64"),
    ({"temperature": 1e-50}, ValueError, "temperature: expected a finite value above 0, at least 1.2e-38 in torch.float32, got 1e-50"),
    ({"temperature": 10**400}, ValueError, "temperature: expected a finite value above 0, got inf"),
    ({"loc": torch.zeros(B, K).to_sparse()}, TypeError, "loc: expected a dense tensor, got torch.sparse_coo"),
    ({"scale": torch.ones(B, K).to_sparse()}, TypeError, "scale: expected a dense tensor, got torch.sparse_coo"),
    ({"temperature": "warm"}, TypeError, "temperature: expected a float, got str"),
    ({"temperature": None}, TypeError, "temperature: expected a float, got NoneType"),
    ({"seed": 1.5}, TypeError, "seed: expected an int, got float"),
    ({"seed": 2**63}, ValueError, "seed: expected -9223372036854775808 to 9223372036854775807, got 9223372036854775808"),
    ({"seed": torch.tensor([1.0, 0.0])}, TypeError, "seed: expected dtype torch.int64, got torch.float32"),
    ({"seed": torch.tensor([1, 0], dtype=torch.int32)}, TypeError, "seed: expected dtype torch.int64, got torch.int32"),
    ({"seed": torch.tensor(1)}, ValueError, "seed: expected shape (2,), holding the seed and the row offset, or (5,), holding the seed and each row's position, got ()"),
    ({"seed": 1, "row_offset": torch.zeros(3)}, TypeError, "row_offset: expected an int or a tensor of dtype torch.int64, got torch.float32"),
    ({"seed": 1, "row_offset": torch.zeros(2, dtype=torch.int64)}, ValueError, "row_offset: expected shape (4,), a position for each row, got (2,)"),
    ({"seed": 1, "row_offset": torch.zeros(4, dtype=torch.int64, device="meta")}, ValueError, "row_offset: expected device cpu, the device of loc, got meta"),
    ({"seed": torch.tensor([1, 0]), "row_offset": torch.arange(3)}, ValueError, "row_offset: expected 0 where seed is a tensor, which holds the offset itself, got a tensor"),
    ({"seed": torch.tensor([1, 0], device="meta")}, ValueError, "seed: expected device cpu, the device of loc, got meta"),
    ({"seed": torch.tensor([1, 0]), "row_offset": 3}, ValueError, "row_offset: expected 0 where seed is a tensor, which holds the offset itself, got 3"),
    ({"seed": 1, "row_offset": -1}, ValueError, "row_offset: expected at least 0, got -1"),
    ({"seed": 1, "row_offset": 0.5}, TypeError, "row_offset: expected an int, got float"),
    ({"seed": 1, "generator": torch.Generator()}, ValueError, "generator: expected None where a seed is given"),
    ({"generator": 7}, TypeError, "generator: expected a torch.Generator, got int"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), WRONG)
@pytest.mark.parametrize("operator", ["sample_logits", "mc_log_probs", "mc_statistics"])
def test_operators(operator, changes, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        getattr(functional, operator)(**arguments(**changes))


@pytest.mark.parametrize(("changes", "error", "message"), WRONG)
def test_reference(changes, error, message):
    for operator in (reference.sample_logits, reference.mc_log_probs, reference.mc_statistics):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            operator(**arguments(**changes))


def test_sampling():
    message = "sampling: expected 'factored' or 'cholesky', got 'auto'"
    for module in (functional, reference):
        with pytest.raises(ValueError, match=message):
            module.mc_statistics(**arguments(), sampling="auto")
    with pytest.raises(ValueError, match="sampling: expected one of auto, factored, cholesky, got 'x'"):
        hetnet_ext.representer(hetnet_ext.het_net(torch.nn.Linear(4, 3)), 10, sampling="x")


def fake(device):
    return torch.zeros(B, K, device=device), torch.zeros(2, dtype=torch.int64, device=device)


@native_only
@pytest.mark.skipif(hetnet_ext.cuda_version() is not None, reason="this build has CUDA kernels")
def test_gpu_without_cuda_kernels():
    """The error says how to get them."""
    with FakeTensorMode():
        loc, seed = fake("cuda")
        message = (
            "loc: expected device cpu, got cuda:0: this build of hetnet_ext has no CUDA kernels. `FORCE_CUDA=1 pip"
        )
        with pytest.raises(ValueError, match=message):
            functional.sample_logits(loc, loc, seed=seed)


@native_only
def test_device_without_kernels():
    with FakeTensorMode():
        loc, seed = fake("xpu")
        with pytest.raises(
            ValueError, match="loc: expected device cpu or cuda, got xpu:0: there are no kernels for it"
        ):
            functional.sample_logits(loc, loc, seed=seed)


def test_meta_device():
    """Shapes without data, as for a model that is laid out before it is loaded."""
    layer = HeteroscedasticLayer(8, 3, device="meta")
    x = torch.zeros(4, 8, device="meta")
    assert layer(x).shape == (4, 3)
    layer.training_samples = 5
    assert layer(x).shape == (4, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": 0}, "in_features: expected at least 1, got 0"),
        ({"num_classes": 1}, "num_classes: expected at least 2, got 1"),
        ({"num_factors": -1}, "num_factors: expected at least 0, got -1"),
        ({"temperature": 0.0}, "temperature: expected a finite value above 0, got 0.0"),
        ({"in_features": 8.0}, "in_features: expected an int, got float"),
        ({"num_factors": None}, "num_factors: expected an int, got NoneType"),
        ({"temperature": "1"}, "temperature: expected a float, got str"),
        ({"dtype": torch.int64}, "dtype: expected a floating-point dtype, got torch.int64"),
    ],
)
def test_layer(changes, message):
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}$"):
        HeteroscedasticLayer(**{"in_features": 8, "num_classes": 3, **changes})


def test_layer_input():
    layer = HeteroscedasticLayer(8, 3)
    with pytest.raises(ValueError, match=re.escape("x: expected shape (..., 8), got (4, 7)")):
        layer(torch.zeros(4, 7))
    with pytest.raises(TypeError, match="x: expected a tensor, got list"):
        layer([1.0])
    layer.training_samples = 0
    with pytest.raises(ValueError, match="training_samples: expected 1 to 2147483647, got 0"):
        layer(torch.zeros(4, 8))


def test_het_net():
    with pytest.raises(TypeError, match=re.escape("base: expected a torch.nn.Module, got function")):
        hetnet_ext.het_net(lambda x: x)
    with pytest.raises(
        ValueError, match=re.escape("base: expected a model with a torch.nn.Linear, got a ReLU without one")
    ):
        hetnet_ext.het_net(torch.nn.ReLU())
    with pytest.raises(ValueError, match="base: expected a plain classifier, got one that has a HeteroscedasticLayer"):
        hetnet_ext.het_net(hetnet_ext.het_net(torch.nn.Linear(4, 3)))
    with pytest.raises(
        ValueError, match="predictor_type: expected one of logit_classifier, probabilistic_classifier, got 'x'"
    ):
        hetnet_ext.het_net(torch.nn.Linear(4, 3), predictor_type="x")
    with pytest.raises(ValueError, match="base: expected initialised parameters, got a LazyLinear"):
        hetnet_ext.het_net(torch.nn.LazyLinear(4))
    with pytest.raises(ValueError, match="num_classes: expected at least 2, got 1"):
        hetnet_ext.het_net(torch.nn.Linear(4, 1))


def test_representer():
    model = hetnet_ext.het_net(torch.nn.Linear(4, 3))
    with pytest.raises(TypeError, match=re.escape("model: expected a torch.nn.Module, got int")):
        hetnet_ext.representer(3, 10)
    with pytest.raises(
        ValueError, match="model: expected a model with a HeteroscedasticLayer, got a Linear without one"
    ):
        hetnet_ext.representer(torch.nn.Linear(4, 3), 10)
    with pytest.raises(ValueError, match="num_samples: expected 1 to 2147483647, got 0"):
        hetnet_ext.representer(model, 0)
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
        hetnet_ext.representer(model, 10, batch_size=0)
    with pytest.raises(TypeError, match="batch_size: expected an int, got float"):
        hetnet_ext.representer(model, 10, batch_size=2.5)
    with pytest.raises(TypeError, match="seed: expected an int, got str"):
        hetnet_ext.representer(model, 10, seed="a")
    with pytest.raises(TypeError, match=re.escape("generator: expected a torch.Generator, got int")):
        hetnet_ext.representer(model, 10, generator=3)
    with pytest.raises(TypeError, match="x: expected a tensor or an iterable of batches, got int"):
        hetnet_ext.representer(model, 10).represent(5)
    with pytest.raises(ValueError, match=re.escape("x: expected shape (N, ...), got ()")):
        hetnet_ext.representer(model, 10).represent(torch.tensor(1.0))
    with pytest.raises(TypeError, match="x: expected batches of tensors, got tuple"):
        hetnet_ext.representer(model, 10).represent([()])
    with pytest.raises(ValueError, match="x: expected at least one batch, got an empty iterable"):
        hetnet_ext.representer(model, 10).represent([])
    with pytest.raises(TypeError, match="x: expected batches of tensors, got str"):
        hetnet_ext.representer(model, 10).represent(["a"])
    with pytest.raises(TypeError, match="representation: expected a HetNetRepresentation, got Tensor"):
        hetnet_ext.quantify(torch.zeros(3))


@pytest.mark.parametrize("output", [{}, (), None, 3, {"logits": None}])
def test_model_without_logits(output):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = HeteroscedasticLayer(4, 3)

        def forward(self, x):
            self.head(x)
            return output

    with pytest.raises(TypeError, match=r"model: expected an output with floating-point logits \(..., K\), got"):
        hetnet_ext.representer(Model(), 10).represent(torch.zeros(2, 4))


def test_plot():
    plot = hetnet_ext.plotting.plot_mnist_uncertainty
    images, labels, bits, probs = torch.zeros(6, 28, 28), torch.zeros(6), torch.zeros(6), torch.zeros(6, 10)
    with pytest.raises(
        ValueError, match=re.escape("images: expected shape (N, H, W) with at least one image, got (0, 28, 28)")
    ):
        plot(images[:0], labels, bits, probs)
    with pytest.raises(ValueError, match=re.escape("labels: expected 1 dimensions, 6 long as images, got (5,)")):
        plot(images, labels[:5], bits, probs)
    with pytest.raises(ValueError, match=re.escape("mean_probs: expected 2 dimensions, 6 long as images, got (6,)")):
        plot(images, labels, bits, bits)
    with pytest.raises(ValueError, match="num_images: expected at least 1, got -1"):
        plot(images, labels, bits, probs, num_images=-1)


@native_only
def test_raw_operators_check_what_memory_needs():
    """Whoever calls torch.ops directly gets an error, not a read out of bounds."""
    loc, temperature, seed = torch.zeros(4, 3), torch.tensor(1.0), torch.tensor([1, 0])
    op = torch.ops.hetnet_ext.mc_log_probs
    for wrong in (
        (loc, loc[:3], None, None, temperature, seed, 5),
        (loc, loc, torch.zeros(4, 2, 2), None, temperature, seed, 5),
        (loc, loc, torch.zeros(4, 3, 2), torch.zeros(4, 3), temperature, seed, 5),
        (loc, loc, None, torch.zeros(4, 2), temperature, seed, 5),
        (loc, loc, None, None, torch.ones(1), seed, 5),
        (loc, loc, None, None, temperature, seed[:1], 5),
        (loc, loc, None, None, temperature, torch.arange(4), 5),  # not (2,), and not (1 + 4,)
        (loc, loc, None, None, temperature, torch.arange(6), 5),
        (loc, loc, None, None, temperature, seed.int(), 5),
        (loc, loc, None, None, temperature, seed, 0),
        (loc, loc.double(), None, None, temperature, seed, 5),
        (loc.int(), loc.int(), None, None, temperature, seed, 5),
        (loc[0], loc[0], None, None, temperature, seed, 5),
        (loc, loc.to("meta"), None, None, temperature, seed, 5),
        (loc, loc, None, None, temperature, seed.to("meta"), 5),
    ):
        with pytest.raises(RuntimeError):
            op(*wrong)
