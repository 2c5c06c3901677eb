"""The noise, against the oracle that was written from docs/noise.md alone, and as random numbers."""

from __future__ import annotations

import math
import subprocess
import sys

import native_core
import noise_oracle
import numpy as np
import pytest
import torch
from backend import REFERENCE, native_only
from scipy import stats

from hetnet_ext import functional, reference

# Random123's published answers for philox4x32 with 10 rounds: counter, key, words.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]

# Bound of a normal's error in its own ulp, from the bounds of test_elementary.py: a root halves the
# relative error of its argument, and a relative error is at most twice as many ulp of a product.
#   2 (log 1.3 / 2 + root 1/2 + sinpi 2.9 / 2) + product 1/2
ULP = 6


def words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


def eps(seed, rows: int, samples: int, classes: int, dtype=torch.float32) -> torch.Tensor:
    """The diagonal noise, (S, B, K), as the operator uses it."""
    loc = torch.zeros(rows, classes, dtype=dtype)
    return functional.sample_logits(loc, torch.ones_like(loc), num_samples=samples, seed=seed)


def ulp_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(got.dtype)).astype(np.float64)))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_known_answers(core, counter, key, answer):
    np.testing.assert_array_equal(noise_oracle.philox4x32_10(words(counter), words(key)), words(answer))
    np.testing.assert_array_equal(core.philox(words(counter), words(key)), words(answer))
    as_tensors = [torch.tensor([int(w) for w in words(text)]) for text in (counter, key)]
    got = reference.philox(tuple(as_tensors[0]), tuple(as_tensors[1]))
    assert [int(w) for w in got] == [int(w) for w in words(answer)]


def test_example_of_the_page():
    """The correctly rounded values in docs/noise.md, made with 40 digits."""
    want = [-2.6185406326733562, -1.1553571294227665, -0.2732320430614309, 1.1801425101248495,
            0.042806211576064227, -1.0057822607757935]  # fmt: skip
    got = eps(torch.tensor([-5, 2**40 + 1]), rows=1, samples=8, classes=6, dtype=torch.float64)[7, 0]
    assert ulp_error(got.numpy(), np.array(want)) <= ULP


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 3, 16, 67])
@pytest.mark.parametrize(("seed", "row_offset"), [(0, 0), (-1, 2**32 - 3), (2**63 - 1, 2**62), (-(2**63), 5)])
def test_matches_the_oracle(seed, row_offset, samples, dtype):
    """eps in the first K dimensions, eta in the next R, for rows and samples on either kind of lanes."""
    rows, classes = 19, 7
    want = noise_oracle.normals(seed, np.arange(rows, dtype=np.uint64) + np.uint64(row_offset), range(samples), 14)
    identity = torch.eye(classes, dtype=dtype)
    zeros, ones = torch.zeros(rows, classes, dtype=dtype), torch.ones(rows, classes, dtype=dtype)
    options = {"num_samples": samples, "seed": seed, "row_offset": row_offset}
    got_eps = functional.sample_logits(zeros, ones, identity * 0, **options)
    got_eta = functional.sample_logits(zeros, zeros, identity, **options)
    assert ulp_error(got_eps.numpy(), want[..., :classes]) <= ULP
    assert ulp_error(got_eta.numpy(), want[..., classes:]) <= ULP


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reference_matches_the_oracle(dtype):
    seed = torch.tensor([-7, 2**40 + 1])
    want = noise_oracle.normals(-7, np.arange(9, dtype=np.uint64) + np.uint64(2**40 + 1), range(50), 11)
    got = reference.standard_normals(seed, 50, 9, 11, dtype)
    assert ulp_error(got.numpy(), want) <= ULP


def test_bits_do_not_depend_on_the_instruction_set(native_folder):
    """All words of one kind of corner, and random ones: every lane type with fused multiply-add, bit for bit."""
    rng = np.random.default_rng(0)
    corners = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 64, 2**32 - 2, 2**32 - 1], dtype=np.uint32)
    radius = np.concatenate([np.repeat(corners, len(corners)), rng.integers(0, 2**32, 300_000, dtype=np.uint32)])
    angle = np.concatenate([np.tile(corners, len(corners)), rng.integers(0, 2**32, 300_000, dtype=np.uint32)])
    fused = [native_core.build(name, native_folder) for name in native_core.capabilities() if name != "baseline"]
    for dtype, integer in (("float32", np.uint32), ("float64", np.uint64)):
        results = [
            getattr(core, prefix + dtype).normal_pairs(radius, angle) for core in fused for prefix in ("", "scalar_")
        ]
        exact = noise_oracle.box_muller(radius, angle)
        for result in results:
            np.testing.assert_array_equal(result.view(integer), results[0].view(integer))
            nonzero = exact != 0
            assert ulp_error(result[nonzero], exact[nonzero]) <= ULP
        baseline = getattr(native_core.build("baseline", native_folder), dtype).normal_pairs(radius, angle)
        assert ulp_error(baseline[nonzero], exact[nonzero]) <= 1.4 * ULP


@native_only
def test_operator_bits_do_not_depend_on_the_instruction_set(tmp_path):
    script = (
        "import hashlib, torch; from hetnet_ext import functional as f;"
        "z = torch.zeros(33, 5); o = torch.ones(33, 5);"
        "print([hashlib.sha256(f.sample_logits(z.to(t), o.to(t), num_samples=s, seed=9).numpy().tobytes()).hexdigest()"
        " for t in (torch.float32, torch.float64) for s in (1, 5, 50)])"
    )
    outputs = {
        name: subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path,
            env={"HETNET_CPU_CAPABILITY": name}, capture_output=True, text=True, check=True,
        ).stdout
        for name in native_core.capabilities()
        if name != "baseline"
    }  # fmt: skip
    assert len(set(outputs.values())) <= 1, outputs


def test_prefix():
    """The first samples of many are the samples of few, on either kind of lanes."""
    many = eps(4, rows=20, samples=600, classes=3)
    for samples in (1, 2, 15, 16, 17, 63, 64, 100):
        assert torch.equal(eps(4, rows=20, samples=samples, classes=3), many[:samples])


def test_row_offset_continues_the_rows():
    whole = eps(torch.tensor([4, 0]), rows=40, samples=5, classes=3)
    assert torch.equal(eps(torch.tensor([4, 23]), rows=17, samples=5, classes=3), whole[:, 23:])
    past_32_bits = eps(torch.tensor([4, 2**32 - 8]), rows=16, samples=5, classes=3)
    assert torch.equal(eps(torch.tensor([4, 2**32]), rows=8, samples=5, classes=3), past_32_bits[:, 8:])


@pytest.mark.parametrize("samples", [1, 3, 67])
@pytest.mark.parametrize("classes", [5, 200])  # on every kind of lanes
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_a_position_for_each_row(rows, classes, samples):
    positions = torch.randint(2**62, (rows,))
    want = noise_oracle.normals(-3, positions.numpy(), range(samples), classes)
    got = eps(torch.cat((torch.tensor([-3]), positions)), rows, samples, classes, dtype=torch.float64)
    assert ulp_error(got.numpy(), want) <= ULP
    zeros, ones = torch.zeros(rows, classes, dtype=torch.float64), torch.ones(rows, classes, dtype=torch.float64)
    options = {"num_samples": samples, "seed": -3}
    assert torch.equal(functional.sample_logits(zeros, ones, row_offset=positions, **options), got)


def test_a_position_for_each_row_of_several_dimensions():
    whole = eps(4, rows=24, samples=5, classes=3)
    loc = torch.zeros(2, 3, 4, 3)
    positions = torch.arange(24).reshape(2, 3, 4).flip(0, 1, 2)
    got = functional.sample_logits(loc, loc + 1, num_samples=5, seed=4, row_offset=positions)
    assert torch.equal(got.flatten(1, 3), whole.flip(1))


class TestStatistics:
    """Each test has a chance below 1e-5 to reject good noise; the seeds are fixed, so it does not flicker."""

    BATCHES = 1 if REFERENCE else 8
    ROWS, SAMPLES, CLASSES = (64, 1024, 16) if REFERENCE else (64, 16384, 16)
    CRITICAL = stats.norm.isf(1e-6)

    def batches(self):
        for seed in range(self.BATCHES):
            yield eps(seed, self.ROWS, self.SAMPLES, self.CLASSES)

    def test_moments(self):
        sums, count = np.zeros(8), 0
        for x in self.batches():
            x = x.double()
            sums += [float((x**power).sum()) for power in range(1, 9)]
            count += x.numel()
        moments = sums / count
        want = np.array([0, 1, 0, 3, 0, 15, 0, 105])
        variance = np.array([1, 2, 15, 96, 945, 10170, 135135, 2027025 - 105**2])  # E x^2n - (E x^n)^2
        assert np.all(np.abs(moments - want) < self.CRITICAL * np.sqrt(variance / count))

    def test_distribution(self):
        """Chi-square over 1,000 cells of equal probability."""
        edges = torch.from_numpy(stats.norm.ppf(np.arange(1, 1000) / 1000)).float()
        counts = torch.zeros(1000)
        for x in self.batches():
            counts += torch.bincount(torch.bucketize(x.flatten(), edges), minlength=1000)
        assert stats.chisquare(counts.double().numpy()).pvalue > 1e-6

    @pytest.mark.parametrize("bound", [3.0, 4.0, 4.5, 5.0])
    def test_tails(self, bound):
        """The number of normals beyond a bound, on either side, is binomial."""
        above = below = count = 0
        for x in self.batches():
            above += int((x > bound).sum())
            below += int((x < -bound).sum())
            count += x.numel()
        for number in (above, below):
            assert stats.binomtest(number, count, stats.norm.sf(bound)).pvalue > 1e-6

    @pytest.mark.parametrize("axis", ["rows", "samples", "dimensions", "seeds"])
    @pytest.mark.parametrize("power", [1, 2])
    def test_independence(self, axis, power):
        """Neighbours, near and far, along each axis are uncorrelated, and so are their squares."""
        x = torch.stack([eps(seed, 16, 256, 16) for seed in range(16)]).double() ** power
        x = (x - {1: 0, 2: 1}[power]) / {1: 1, 2: math.sqrt(2)}[power]
        x = x.movedim({"seeds": 0, "samples": 1, "rows": 2, "dimensions": 3}[axis], 0)
        for lag in (1, 2, 3, 4, 8):
            product = x[lag:] * x[:-lag]
            assert abs(float(product.mean())) < self.CRITICAL / math.sqrt(product.numel())

    def test_pairs_of_one_draw_are_independent(self):
        """All K + R dimensions of one sample, by their covariance matrix and that of their squares."""
        loc = torch.zeros(1, 8)
        stacked = torch.cat(
            [
                functional.sample_logits(loc, torch.ones(1, 8), torch.zeros(8, 8), num_samples=40_000, seed=1),
                functional.sample_logits(loc, torch.zeros(1, 8), torch.eye(8), num_samples=40_000, seed=1),
            ],
            -1,
        )[:, 0].double()
        for x in (stacked, (stacked**2 - 1) / math.sqrt(2)):
            covariance = x.T @ x / len(x)
            off_diagonal = covariance - torch.diag(covariance.diagonal())
            assert float(off_diagonal.abs().max()) < self.CRITICAL / math.sqrt(len(x))

    def test_seeds_drawn_from_the_generator(self):
        """Without a seed each call has its own noise; manual_seed and a generator repeat it."""
        loc, scale = torch.zeros(2, 3), torch.ones(2, 3)
        torch.manual_seed(5)
        first, second = (functional.sample_logits(loc, scale) for _ in range(2))
        torch.manual_seed(5)
        assert torch.equal(functional.sample_logits(loc, scale), first)
        assert not torch.equal(first, second)
        draws = [functional.sample_logits(loc, scale, generator=torch.Generator().manual_seed(8)) for _ in range(2)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], first)
