"""Make ``coefficients.h``: near-minimax polynomials for the elementary functions.

Each function is written as an exactly treated leading part plus a smooth remainder,
and the remainder is interpolated at Chebyshev nodes with 60 digits (the result is
within a small factor of the minimax error, which the tests measure in ulp).

Usage: ``python fit_polynomials.py > coefficients.h`` (needs ``mpmath``).
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60


def interpolate(f: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, degree: int) -> list[mp.mpf]:
    n = degree + 1
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    vandermonde = mp.matrix(n, n)
    for i, x in enumerate(nodes):
        for j in range(n):
            vandermonde[i, j] = x**j
    return list(mp.lu_solve(vandermonde, mp.matrix([f(x) for x in nodes])))


def sinpi(t2: mp.mpf) -> mp.mpf:
    """sin(pi t) / t as a function of t^2."""
    t = mp.sqrt(t2)
    return mp.sin(mp.pi * t) / t


def cospi(t2: mp.mpf) -> mp.mpf:
    """cos(pi t) / (1 - 4 t^2): without the zero at t = 1/2."""
    return mp.cos(mp.pi * mp.sqrt(t2)) / (1 - 4 * t2)


def exp(r: mp.mpf) -> mp.mpf:
    """(e^r - 1 - r) / r^2."""
    return (mp.exp(r) - 1 - r) / r**2


def log1p(f: mp.mpf) -> mp.mpf:
    """(log(1 + f) - f + f^2 / 2) / f^3."""
    return (mp.log(1 + f) - f + f**2 / 2) / f**3


def log_atanh(s2: mp.mpf) -> mp.mpf:
    """(log((1 + s) / (1 - s)) - 2 s) / s^3 as a function of s^2."""
    s = mp.sqrt(s2)
    return (mp.log((1 + s) / (1 - s)) - 2 * s) / s**3


HALF_LN2 = mp.log(2) / 2
ROOT = mp.sqrt(mp.mpf("0.5"))
# An even number of nodes keeps the removable singularity at the centre off the nodes;
# the slightly uneven interval does the same for an odd one.
EXP = (-HALF_LN2 * mp.mpf("1.001"), HALF_LN2 * mp.mpf("1.002"))
LOG = (ROOT - 1, 1 / ROOT - 1)
ATANH = (mp.mpf(0), ((1 / ROOT - 1) / (1 / ROOT + 1)) ** 2 * mp.mpf("1.001"))
QUARTER = (mp.mpf(0), mp.mpf("0.25"))

TABLE = {
    "float": [("sinpi", sinpi, QUARTER, 4), ("cospi", cospi, QUARTER, 4), ("exp", exp, EXP, 4), ("log", log1p, LOG, 7)],
    "double": [
        ("sinpi", sinpi, QUARTER, 8),
        ("cospi", cospi, QUARTER, 8),
        ("exp", exp, EXP, 10),
        ("log", log_atanh, ATANH, 7),
    ],
}


def main() -> None:
    print("// Made by fit_polynomials.py: do not edit. Lowest order first.")
    print('#pragma once\n\n#include "lane.h"\n\nnamespace hetnet {\n')
    print("template <class Scalar>\nstruct Coefficients;\n")
    for scalar, functions in TABLE.items():
        digits, suffix = (10, "f") if scalar == "float" else (18, "")
        print(f"template <>\nstruct Coefficients<{scalar}> {{")
        for name, f, (low, high), degree in functions:
            values = [mp.nstr(c, digits, min_fixed=1, max_fixed=0) + suffix for c in interpolate(f, low, high, degree)]
            print(f"  static HETNET_INLINE constexpr Constants<{scalar}, {len(values)}> {name}() {{ return {{{{")
            print("".join(f"      {v},\n" for v in values) + "  }}; }")
        print("};\n")
    print("}  // namespace hetnet")


if __name__ == "__main__":
    main()
