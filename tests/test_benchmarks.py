"""The benchmarks' peers do the same job as ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hetnet_ext import functional

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import jobs

    return jobs


@pytest.mark.parametrize("form", ["FA", "PE", "diagonal"])
def test_peers_estimate_the_same(form, jobs):
    """Mean probabilities and expected entropy, within five standard errors of their difference."""
    import peers

    job = jobs.Job("statistics", form, rows=7, classes=5, factors=0 if form == "diagonal" else 3, samples=4000)
    head = jobs.head(job)
    ours = functional.mc_statistics(*head, num_samples=job.samples, seed=1)
    parts = jobs.in_chunks(job._replace(samples=4000), head, peers.statistics)
    mean, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    error = (2 * ours.variance / job.samples).sqrt()
    assert ((ours.mean - mean).abs() <= 5 * error + 1e-6).all()
    # an entropy of five classes spreads over at most log 5
    assert (ours.expected_entropy - entropy).abs().max() <= 5 * 1.61 / 2 * (2 / job.samples) ** 0.5
    log_probs = peers.log_probs(*head, job.samples)
    assert ((log_probs.exp() - mean).abs() <= 5 * error + 1e-6).all()


def test_normals_of_a_job(jobs):
    job = jobs.Job("loss", "FA", rows=2, classes=3, factors=4, samples=5)
    assert jobs.normals(job, jobs.ONE_PASS) == 2 * 5 * 7
    assert jobs.normals(job, jobs.DROP_IN) == 2 * 2 * 5 * 7
    assert jobs.normals(job, jobs.CHOLESKY) == 2 * 5 * 3
    assert jobs.normals(job, jobs.EAGER) is None


def test_unknown_case(tmp_path):
    command = [sys.executable, str(BENCHMARKS), "nothing"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert "got nothing" in result.stderr
