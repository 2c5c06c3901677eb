"""Draws many samples from a Het-Net and keeps their statistics."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from . import functional
from ._arguments import McStatistics, check_integer, check_num_samples, check_seed, draw_seed
from .layers import HeadCall, HeteroscedasticLayer, noise_free

Sampling = Literal["auto", "factored", "cholesky"]

__all__ = ["HetNetRepresentation", "HetNetRepresenter", "representer"]


class _Batch(Protocol):
    """Some rows, and how to draw their samples."""

    def statistics(self, num_samples: int) -> McStatistics: ...

    def samples(self, num_samples: int) -> Tensor: ...


@dataclass(frozen=True, eq=False, repr=False)
class HetNetRepresentation:
    """Statistics of the class probabilities over the samples of a Het-Net. Entropies in nats.

    Attributes:
        mean: (..., K) mean probabilities: the prediction.
        variance: (..., K) variance of the probabilities over the samples.
        expected_entropy: (...) mean entropy of the samples: the aleatoric uncertainty.
        num_samples: Number of samples, S.
    """

    mean: Tensor
    variance: Tensor
    expected_entropy: Tensor
    num_samples: int
    _batches: tuple[_Batch, ...] = field(default=())

    @property
    def predictive_entropy(self) -> Tensor:
        """(...) entropy of the mean probabilities."""
        return torch.special.entr(self.mean).sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """(...) predictive minus expected entropy: how much the samples disagree."""
        return torch.clamp_min(self.predictive_entropy - self.expected_entropy, 0)

    @property
    def standard_error(self) -> Tensor:
        """(..., K) Monte-Carlo standard error of ``mean``; infinite for one sample."""
        if self.num_samples == 1:
            return torch.full_like(self.variance, torch.inf)
        return (self.variance / (self.num_samples - 1)).sqrt()

    @torch.no_grad()
    def samples(self) -> Tensor:
        """(S, ..., K) class probabilities: the very draws behind the statistics.

        They are drawn again from what the head was given, so its weights may not have changed.
        """
        return torch.cat([batch.samples(self.num_samples) for batch in self._batches], 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.mean.shape)}, num_samples={self.num_samples})"


class HetNetRepresenter:
    """Represents inputs by the statistics of S noisy predictions. See :func:`representer`."""

    def __init__(
        self,
        model: nn.Module,
        num_samples: int,
        *,
        batch_size: int = 1024,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
        sampling: Sampling = "auto",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.heads = [module for module in model.modules() if isinstance(module, HeteroscedasticLayer)]
        if not self.heads:
            raise ValueError(
                f"model: expected a model with a HeteroscedasticLayer, got a {type(model).__name__} without one"
            )
        check_seed(seed, generator)
        self.num_samples = check_num_samples(num_samples)
        self.batch_size = check_integer("batch_size", batch_size, low=1)
        self.seed = seed
        self.generator = generator
        self.progress = progress
        if sampling not in get_args(Sampling):
            raise ValueError(f"sampling: expected one of {', '.join(get_args(Sampling))}, got {sampling!r}")
        self.sampling = sampling

    # Outside of inference mode, so that tensors tell whether they were changed in place.
    @torch.inference_mode(False)
    @torch.no_grad()
    def represent(self, x: Tensor | Iterable[Any], *, positions: Tensor | None = None) -> HetNetRepresentation:
        """Runs the model and reduces the samples.

        Args:
            x: Inputs of the model, (N, ...), which are split into batches; or a ``DataLoader``
                (or another iterable) of batches, each a tensor or a tuple that starts with one.
            positions: (N,) positions of the inputs in the data set, int64, on which their noise
                depends. Without them, those that a ``DistributedSampler`` of the ``DataLoader``
                gives, so that the result does not depend on the number of processes; else 0 to N - 1.

        Raises:
            TypeError: ``x`` holds no tensors, or the model does not return logits.
            ValueError: ``x`` is empty of batches, or the model returns probabilities, or there
                are not as many ``positions`` as inputs.
        """
        device = self._device()
        if self.seed is None:
            seed = draw_seed(self.generator, device)
        else:
            seed = torch.full((1,), self.seed, dtype=torch.int64, device=device)
        positions = _positions(x, positions)
        batches, parts, start, count = [], [], 0, 0
        for inputs in _split(x, self.batch_size):
            own = None
            if positions is not None:
                own = positions[count : count + len(inputs)].to(device)
                if len(own) != len(inputs):
                    raise ValueError(f"positions: expected one for each input, got {len(positions)}")
            count += len(inputs)
            batch = self._run(inputs.to(device), _Place(seed, start, own))
            batches.append(batch)
            parts.append(batch.statistics(self.num_samples))
            start += parts[-1].expected_entropy.numel()
            if self.progress:
                print(f"\r{start} rows", end="", file=sys.stderr, flush=True)
        if self.progress:
            print(file=sys.stderr)
        if not parts:
            raise ValueError("x: expected at least one batch, got an empty iterable")
        if positions is not None and count != len(positions):
            raise ValueError(f"positions: expected one for each of {count} inputs, got {len(positions)}")
        mean, variance, entropy = (torch.cat(column) for column in list(zip(*parts, strict=True))[:3])
        return HetNetRepresentation(mean, variance, entropy, self.num_samples, tuple(batches))

    predict = represent
    __call__ = represent

    def _device(self) -> torch.device:
        tensor = next(self.heads[0].parameters(), next(self.model.parameters(), None))
        return torch.device("cpu") if tensor is None else tensor.device

    def _run(self, inputs: Tensor, place: _Place) -> _Batch:
        """Runs the model without noise. Where its output is the head's, sampling the head is enough."""
        if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0 for m in self.model.modules()):
            reason = "its dropout is active"
        else:
            with noise_free() as calls, _eager(self.model):
                logits = logits_of(self.model(inputs))
            if len(calls) != 1:
                reason = f"it calls its heteroscedastic layers {len(calls)} times"
            elif not calls[0].is_output(logits):
                reason = "its output is not the output of its heteroscedastic layer"
            else:
                return _HeadBatch.of(calls[0], place, self.sampling)
        warnings.warn(f"the whole model runs {self.num_samples} times, because {reason}", RuntimeWarning, stacklevel=5)
        return _ModelBatch(self.model, inputs, place)


def representer(
    model: nn.Module,
    num_samples: int,
    *,
    batch_size: int = 1024,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    sampling: Sampling = "auto",
) -> HetNetRepresenter:
    """Makes a representer: ``representer(model, 800).represent(x)``.

    The model runs once on each input, without noise; then the S samples of the head are drawn
    and reduced in one kernel. Only where the model's output is not the output of its
    heteroscedastic layer, or its dropout is active, does the model run S times, with a warning
    that says why.

    Args:
        model: A model with a :class:`HeteroscedasticLayer`. It runs in the mode (training or
            evaluation) that it is in.
        num_samples: Number of samples, S.
        batch_size: Rows of a tensor input that go through the model at a time. The noise of a
            row does not depend on it, except where the model runs S times.
        seed: Seed of the noise. Without it, one is drawn at every call of ``represent``.
        generator: Where a missing seed is drawn from; the global generator of the device
            without it.
        progress: Report the rows done on standard error.
        sampling: As for :func:`hetnet_ext.functional.mc_statistics`; ``"auto"`` takes whichever
            is less work for the head's numbers of classes and factors. ``"factored"`` draws the
            samples of ``functional.sample_logits``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``model`` has no heteroscedastic layer, or an argument is out of range.
    """
    return HetNetRepresenter(
        model, num_samples, batch_size=batch_size, seed=seed, generator=generator, progress=progress,
        sampling=sampling,
    )  # fmt: skip


class _Place(NamedTuple):
    """Where a batch stands in the noise stream."""

    seed: Tensor  # (1,)
    start: int  # rows before the batch
    positions: Tensor | None  # of the inputs in the data set, where they do not follow one another

    def seed_of(self, rows: int) -> Tensor:
        """The seed tensor for a head with so many rows, as many for each input."""
        if self.positions is None:
            return torch.constant_pad_nd(self.seed, (0, 1), self.start)
        each = rows // max(len(self.positions), 1)
        offsets = torch.arange(each, device=self.seed.device)
        return torch.cat((self.seed, (self.positions[:, None] * each + offsets).reshape(-1)))


@dataclass(frozen=True, eq=False)
class _HeadBatch:
    """Rows whose samples are those of the head."""

    call: HeadCall
    options: dict[str, Any]

    @classmethod
    def of(cls, call: HeadCall, place: _Place, sampling: Sampling) -> _HeadBatch:
        layer = call.layer
        temperature = layer.temperature.clone() if isinstance(layer.temperature, Tensor) else layer.temperature
        if sampling == "auto":
            less_work = _cholesky_is_less_work(layer.num_classes, layer.num_factors)
            sampling = "cholesky" if less_work else "factored"
        seed = place.seed_of(call.output.shape[:-1].numel())
        return cls(call, {"temperature": temperature, "seed": seed, "sampling": sampling})

    def statistics(self, num_samples: int) -> McStatistics:
        statistics = functional.mc_statistics(*self.call.parameters, num_samples=num_samples, **self.options)
        self.call.compact()
        return statistics

    def samples(self, num_samples: int) -> Tensor:
        logits = functional.draw_logits(*self.call.parameters, num_samples=num_samples, **self.options)
        return logits.softmax(-1)


def _cholesky_is_less_work(classes: int, factors: int) -> bool:
    """The R normals that are spared, each as much as some forty multiply-adds, against K (K - R) / 2 of those."""
    return classes <= 64 and 80 * factors > classes * (classes - factors)


@dataclass(frozen=True, eq=False)
class _ModelBatch:
    """Rows whose samples need a pass of the whole model each."""

    model: nn.Module
    inputs: Tensor
    place: _Place

    def statistics(self, num_samples: int) -> McStatistics:
        """By Welford's recurrence: one pass, nothing of the size of the samples."""
        mean = squares = entropy = torch.zeros(())
        for n, probs in enumerate(self._passes(num_samples), start=1):
            distance = probs - mean
            mean = mean + distance / n
            squares = squares + distance * (probs - mean)
            entropy = entropy + (torch.special.entr(probs).sum(-1) - entropy) / n
        return McStatistics(mean, squares / num_samples, entropy, num_samples)

    def samples(self, num_samples: int) -> Tensor:
        return torch.stack(list(self._passes(num_samples)))

    def _passes(self, num_samples: int) -> Iterator[Tensor]:
        """The class probabilities of passes of the model, one noisy draw of the logits each."""
        heads = [module for module in self.model.modules() if isinstance(module, HeteroscedasticLayer)]
        training_samples = [head.training_samples for head in heads]
        devices = [self.inputs.device] if self.inputs.device.type == "cuda" else []
        seed, row = int(self.place.seed), self.place.start
        if self.place.positions is not None and len(self.place.positions):
            row = int(self.place.positions[0])
        try:
            for head in heads:
                head.training_samples = 1
            with torch.random.fork_rng(devices):
                torch.manual_seed((seed + (row + 1) * 0x9E3779B97F4A7C15) % 2**63)  # far apart for neighbours
                for _ in range(num_samples):
                    logits = logits_of(self.model(self.inputs.clone()))  # a model may change its input in place
                    _check_arelogits_of(logits)
                    yield logits.softmax(-1)
        finally:
            for head, count in zip(heads, training_samples, strict=True):
                head.training_samples = count


def _positions(x: Any, positions: Tensor | None) -> Tensor | None:
    if positions is None:
        sampler = getattr(x, "sampler", None)
        return torch.tensor(list(sampler)) if isinstance(sampler, DistributedSampler) else None
    if not isinstance(positions, Tensor) or positions.dtype != torch.int64 or positions.dim() != 1:
        given = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise TypeError(f"positions: expected an int64 tensor of shape (N,), got {given}")
    return positions


def _eager(model: nn.Module) -> AbstractContextManager[object]:
    """Keeps compiled modules from compiled code, which does not record calls of the head."""
    compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules())
    # only where needed: it loads the whole compiler
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def _split(x: Tensor | Iterable[Any], batch_size: int) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        if x.dim() == 0:
            raise ValueError("x: expected shape (N, ...), got ()")
        yield from x.split(batch_size)
        return
    if not isinstance(x, Iterable):
        raise TypeError(f"x: expected a tensor or an iterable of batches, got {type(x).__name__}")
    for batch in x:
        inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(inputs, Tensor):
            raise TypeError(f"x: expected batches of tensors, got {type(inputs).__name__}")
        yield inputs


def logits_of(output: Any) -> Tensor:
    """The logits among what a model returned: a tensor, a tuple that starts with them, or ``.logits``."""
    found = output
    if isinstance(output, tuple | list):
        found = output[0] if output else None
    elif isinstance(output, Mapping):
        found = output.get("logits")
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() == 0:
        raise TypeError(f"model: expected an output with floating-point logits (..., K), got {type(output).__name__}")
    return found


def _check_arelogits_of(logits: Tensor) -> None:
    """A softmax after the head would otherwise be followed by another."""
    sums = logits.sum(-1)
    if logits.numel() and bool((logits >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        raise ValueError("model: expected an output of logits, got probabilities: remove the softmax after the head")
