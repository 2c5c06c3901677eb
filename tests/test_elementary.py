"""Errors of exp, log, sin(pi t) and cos(pi t) in ulp, on every instruction set and lane type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

LANES = ["float32", "float64", "scalar_float32", "scalar_float64"]

# The largest error in units in the last place (ulp) that a function may have: the sum of what
# its last steps can contribute.
#   exp     the last step 1/2, the step before 1/3, the reduced argument 1/4
#   log     the last fused step 1/2, the sum before it 1/2, the tail 1/4
#   sinpi   t p(t^2) with p between 2 and pi, where an ulp is twice as large as that of the result:
#           the product 1/2, the last step of p 1, its first coefficient 1/2, the step before 1/2,
#           t^2 1/3
#   cospi   the product 1/2, the last step of p 1, the factor 1 - 4 t^2 1/2, t^2 1/3
# A polynomial's own error is below a tenth. Without fused multiply-add, each step rounds twice.
BOUNDS = {"exp": 1.3, "log": 1.3, "sinpi": 2.9, "cospi": 2.4}
WITHOUT_FMA = 1.4


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """The function in extended precision (x86: 64 bits of mantissa)."""
    x = x.astype(np.longdouble)
    pi = np.longdouble("3.14159265358979323846264338327950288")
    if name == "sinpi":
        return np.sin(pi * x)
    if name == "cospi":
        # near 1/2 through the sine, where the cosine's argument would lose its digits
        return np.where(np.abs(x) > 0.25, np.sin(pi * (np.longdouble(0.5) - np.abs(x))), np.cos(pi * x))
    return {"exp": np.exp, "log": np.log}[name](x)


def arguments(name: str, dtype: type, count: int = 400_000) -> np.ndarray:
    rng = np.random.default_rng(1)
    if name == "exp":
        low, high = (-87.3, 88.0) if dtype == np.float32 else (-708.0, 709.0)
        return np.concatenate(
            [rng.uniform(low, high, count), rng.uniform(-1, 1, count), -np.logspace(-12, 0, 1000)]
        ).astype(dtype)
    if name == "log":
        tiny, huge = (-126, 127) if dtype == np.float32 else (-1022, 1023)
        powers = 2.0 ** rng.uniform(tiny, huge, count)
        near_one = 1 + rng.uniform(-0.3, 0.42, count) ** 3
        return np.concatenate([powers, near_one, [1.0]]).astype(dtype)
    return np.concatenate(
        [rng.uniform(-0.5, 0.5, count), rng.uniform(0.4999, 0.5, count), np.logspace(-9, -1, 1000), [0.0, 0.5, -0.5]]
    ).astype(dtype)


def ulp_error(got: np.ndarray, want: np.ndarray) -> float:
    spacing = np.spacing(np.abs(want).astype(got.dtype)).astype(np.longdouble)
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / spacing))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", BOUNDS)
def test_error_in_ulp(core, lanes, name):
    x = arguments(name, np.dtype(lanes.removeprefix("scalar_")).type)
    bound = BOUNDS[name] * (WITHOUT_FMA if core.__name__ == "core_baseline" else 1)
    error = ulp_error(getattr(getattr(core, lanes), name)(x), exact(name, x))
    print(f"{core.__name__} {lanes} {name}: {error:.2f} ulp")
    assert error <= bound


@pytest.mark.parametrize("lanes", LANES)
def test_special_values(core, lanes):
    lane = getattr(core, lanes)
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(lane.exp(np.array([-inf, -1e4, 0.0, nan])), [0, 0, 1, nan])
    np.testing.assert_array_equal(lane.log_or_limit(np.array([0.0, 1.0, nan])), [-inf, 0, nan])
    np.testing.assert_array_equal(lane.sinpi(np.array([0.0, 0.5, -0.5])), [0, 1, -1])
    np.testing.assert_array_equal(lane.cospi(np.array([0.0, 0.5, -0.5])), [1, 0, 0])


def test_oracle_in_extended_precision():
    """The oracle itself, against torch's float64 functions."""
    for name in BOUNDS:
        x = arguments(name, np.float64, 1000)
        t = torch.from_numpy(x)
        want = {"exp": t.exp, "log": t.log, "sinpi": (torch.pi * t).sin, "cospi": (torch.pi * t).cos}[name]().numpy()
        np.testing.assert_allclose(exact(name, x).astype(np.float64), want, rtol=1e-13, atol=1e-15)
