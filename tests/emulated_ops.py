"""The operators on the emulated CUDA kernels, to put in place of the compiled ones."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _array(x: Tensor | None) -> Any:
    return None if x is None else x.detach().contiguous().numpy()


class EmulatedOps:
    """What ``hetnet_ext.ops.kernels`` is asked for, with tensors in a CPU's memory for those in a GPU's."""

    def __init__(self, emulator: ModuleType) -> None:
        self.emulator = emulator
        self.limits: tuple[int, int, int, int] | None = None

    def _head(
        self, loc: Tensor, scale: Tensor, cov_factor: Tensor | None, factor_scale: Tensor | None, temperature: Tensor,
        seed: Tensor, num_samples: int, cholesky: bool = False,
    ) -> Any:  # fmt: skip
        kind = {torch.float32: self.emulator.float32, torch.float64: self.emulator.float64}[loc.dtype]
        arrays = [_array(x) for x in (loc, scale, cov_factor, factor_scale)]
        head = kind(*arrays, temperature.item(), _array(seed), num_samples, cholesky)
        if self.limits is not None:
            head.limit(*self.limits)
        return head

    @staticmethod
    def _gradients(gradients: dict[str, Any], head: tuple[Any, ...]) -> tuple[Tensor, ...]:
        names = ("loc", "scale", "cov_factor", "factor_scale", "temperature")
        return tuple(
            torch.empty(0) if x is None else torch.from_numpy(gradients[name]).reshape(x.shape)
            for name, x in zip(names, head, strict=False)
        )

    def sample_logits(self, *head: Any) -> Tensor:
        return torch.from_numpy(self._head(*head).sample_logits())

    def sample_logits_backward(self, grad_out: Tensor, *head: Any) -> tuple[Tensor, ...]:
        return self._gradients(self._head(*head).sample_logits_backward(_array(grad_out)), head)

    def mc_log_probs(self, *head: Any) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, self._head(*head).log_probs()))

    def mc_log_probs_backward(self, grad_out: Tensor, log_probs: Tensor, probs: Tensor, *head: Any) -> Any:
        arrays = map(_array, (grad_out, log_probs, probs))
        return self._gradients(self._head(*head).log_probs_backward(*arrays), head)

    def mc_statistics(self, *head: Any) -> tuple[Tensor, ...]:
        return tuple(map(torch.from_numpy, self._head(*head).statistics()))

    def mc_nll_loss(self, *args: Any) -> tuple[Tensor, ...]:
        head, (target, weight, row_grad, ignore_index, reduction, with_grad) = args[:7], args[7:]
        arrays = map(_array, (target, weight, row_grad))
        loss, gradients = self._head(*head).nll(*arrays, ignore_index, reduction, with_grad)
        loss = torch.from_numpy(loss)
        results = self._gradients(gradients, head) if with_grad else (torch.empty(0),) * 5
        return (loss if reduction == 0 else loss[0], *results)
