"""Draws many samples from a Het-Net and keeps their statistics."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from . import functional
from ._arguments import check_num_samples, make_seed
from .functional import McStatistics
from .layers import HeadCall, HeteroscedasticLayer, noise_free

__all__ = ["HetNetRepresentation", "HetNetRepresenter", "representer"]


@dataclass(frozen=True, repr=False)
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
    _draw: Callable[[], Tensor] = field(compare=False)

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

    def samples(self) -> Tensor:
        """(S, ..., K) class probabilities: the very draws behind the statistics.

        It runs the model on the inputs again, so neither may have changed since.
        """
        return self._draw()

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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        self.model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        self.heads = [module for module in self.model.modules() if isinstance(module, HeteroscedasticLayer)]
        if not self.heads:
            raise ValueError(
                f"model: expected a model with a HeteroscedasticLayer, got a {type(model).__name__} without one"
            )
        self.num_samples = check_num_samples(num_samples)
        self.batch_size = batch_size
        self.seed = seed
        self.generator = generator
        self.progress = progress

    @torch.no_grad()
    def represent(self, x: Tensor | Iterable[Any]) -> HetNetRepresentation:
        """Runs the model and reduces the samples.

        Args:
            x: Inputs of the model, (N, ...), which are split into batches; or a ``DataLoader``
                (or another iterable) of batches, each a tensor or a tuple that starts with one.
        """
        device = next(self.heads[0].parameters()).device
        seed = make_seed(self.seed, generator=self.generator, device=device)
        batches = self._with_progress(_split(x, self.batch_size))
        parts = [self._statistics(batch.to(device), seed, start) for batch, start in batches]
        if not parts:
            raise ValueError("x: expected at least one batch, got an empty iterable")
        columns = [torch.cat(column) for column in zip(*(part[:3] for part in parts), strict=True)]

        @torch.no_grad()
        def draw() -> Tensor:
            _check_repeatable(x)
            batches = _split(x, self.batch_size)
            return torch.cat([self._samples(batch.to(device), seed, start) for batch, start in batches], 1)

        return HetNetRepresentation(columns[0], columns[1], columns[2], self.num_samples, draw)

    predict = represent
    __call__ = represent

    def _statistics(self, batch: Tensor, seed: Tensor, start: int) -> McStatistics:
        head = self._fusible_head(batch)
        if head is None:
            return _running_statistics(self._passes(batch, seed, start), self.num_samples)
        return functional.mc_statistics(
            *head.parameters, num_samples=self.num_samples, temperature=head.layer.temperature,
            seed=_at_row(seed, start),
        )  # fmt: skip

    def _samples(self, batch: Tensor, seed: Tensor, start: int) -> Tensor:
        head = self._fusible_head(batch)
        if head is None:
            return torch.stack(list(self._passes(batch, seed, start)))
        logits = functional.sample_logits(
            *head.parameters, num_samples=self.num_samples, temperature=head.layer.temperature,
            seed=_at_row(seed, start),
        )  # fmt: skip
        return logits.softmax(-1)

    def _fusible_head(self, batch: Tensor) -> HeadCall | None:
        """Runs the model without noise. Where its output is the head's, sampling the head is enough."""
        with noise_free() as calls:
            logits = _logits(self.model(batch))
        if len(calls) != 1:
            reason = f"it calls its heteroscedastic layers {len(calls)} times"
        elif not _is_same(logits, calls[0].parameters.loc):
            reason = "its output is not the output of its heteroscedastic layer"
        else:
            return calls[0]
        warnings.warn(f"the whole model runs {self.num_samples} times, because {reason}", RuntimeWarning, stacklevel=4)
        return None

    def _passes(self, batch: Tensor, seed: Tensor, start: int) -> Iterator[Tensor]:
        """The class probabilities of S passes of the whole model."""
        devices = [batch.device] if batch.device.type == "cuda" else []
        training_samples = [head.training_samples for head in self.heads]
        try:
            for head in self.heads:
                head.training_samples = 1
            with torch.random.fork_rng(devices):
                torch.manual_seed((int(seed[0]) + start) % 2**63)
                for _ in range(self.num_samples):
                    yield _logits(self.model(batch)).softmax(-1)
        finally:
            for head, count in zip(self.heads, training_samples, strict=True):
                head.training_samples = count

    def _with_progress(self, batches: Iterable[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, int]]:
        for batch, start in batches:
            yield batch, start
            if self.progress:
                print(f"\r{start + len(batch)} rows", end="", file=sys.stderr, flush=True)
        if self.progress:
            print(file=sys.stderr)


def representer(
    model: nn.Module,
    num_samples: int,
    *,
    batch_size: int = 1024,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> HetNetRepresenter:
    """Makes a representer: ``representer(model, 800).represent(x)``.

    The model runs once on each input, without noise; then the S samples of the head are drawn
    and reduced in one kernel. Only where the model's output is not the output of its
    heteroscedastic layer does the model run S times, with a warning that says why.

    Args:
        model: A model with a :class:`HeteroscedasticLayer`. It runs in the mode (training or
            evaluation) that it is in.
        num_samples: Number of samples, S.
        batch_size: Rows of a tensor input that go through the model at a time. The noise of a
            row does not depend on it.
        seed: Seed of the noise. Without it, one is drawn at every call of ``represent``.
        generator: Where a missing seed is drawn from; the global generator of the device
            without it.
        progress: Report the rows done on standard error.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``model`` has no heteroscedastic layer, or an argument is out of range.
    """
    return HetNetRepresenter(
        model, num_samples, batch_size=batch_size, seed=seed, generator=generator, progress=progress
    )


def _split(x: Tensor | Iterable[Any], batch_size: int) -> Iterator[tuple[Tensor, int]]:
    """The batches, each with the position of its first row."""
    start = 0
    for batch in x.split(batch_size) if isinstance(x, Tensor) else x:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(inputs, Tensor):
            raise TypeError(f"x: expected batches of tensors, got {type(inputs).__name__}")
        yield inputs, start
        start += len(inputs)


def _check_repeatable(x: Tensor | Iterable[Any]) -> None:
    if isinstance(x, Iterator):
        raise ValueError("samples: expected inputs that can be read again, got an iterator")
    if isinstance(x, DataLoader) and not isinstance(x.sampler, SequentialSampler):
        raise ValueError("samples: expected a DataLoader in a fixed order, got one that shuffles")


def _at_row(seed: Tensor, start: int) -> Tensor:
    return torch.stack((seed[0], seed[1] + start))


def _logits(output: Any) -> Tensor:
    """The logits among what a model returned: a tensor, a tuple that starts with them, or ``.logits``."""
    if isinstance(output, tuple | list):
        output = output[0]
    elif isinstance(output, Mapping):
        output = output["logits"]
    elif hasattr(output, "logits"):
        output = output.logits
    if not isinstance(output, Tensor):
        raise TypeError(f"model: expected an output with logits, got {type(output).__name__}")
    return output


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())


def _running_statistics(samples: Iterable[Tensor], num_samples: int) -> McStatistics:
    """Welford's recurrence: one pass, nothing of the size of the samples."""
    mean = squares = entropy = torch.zeros(())
    for n, probs in enumerate(samples, start=1):
        distance = probs - mean
        mean = mean + distance / n
        squares = squares + distance * (probs - mean)
        entropy = entropy + (torch.special.entr(probs).sum(-1) - entropy) / n
    return McStatistics(mean, squares / num_samples, entropy, num_samples)
