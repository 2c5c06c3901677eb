"""The emulator of CUDA catches planted bugs, and passes right kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from backend import native_only

pytestmark = native_only

EMULATOR = Path(__file__).resolve().parent / "emulator"

BUILDS = {
    "plain": [],
    "ucontext": ["-DCUEMU_UCONTEXT"],  # how fibers switch on other processors than x86-64
    "address": ["-fsanitize=address,undefined"],
    "thread": ["-fsanitize=thread"],
}

ORDERS = ["ascending", "descending", "random:1"]

RIGHT = [
    "right_shuffles", "right_votes", "right_halves", "right_exits", "right_grid", "right_shared_memory", "right_syncs",
    "right_functions", "right_fuzz",
]  # fmt: skip

# What the emulator says in any build.
MESSAGES = {
    "divergent_barrier": r"divergent __syncthreads \[block 0,0,0, thread \S+ at \S+:\d+, thread \S+ at \S+:\d+\]",
    "gone_before_barrier": r"__syncthreads, but some threads of the block have exited .* at \S+planted_bugs.cpp:\d+",
    "lane_does_not_take_part": r"16 thread\(s\) wait in a warp primitive at \S+:\d+|names a lane that exited",
    "lane_does_not_exist": r"the mask of a warp primitive names a lane that exited or does not exist",
    "lane_not_in_own_mask": r"a lane is missing from the mask of its own warp primitive",
    "different_primitives": r"lanes of one mask wait in different warp primitives",
    "different_masks": r"lanes of one mask wait in different warp primitives or with different masks",
    "barrier_and_warp_primitive": (
        r"deadlock in block 0,0,0:\n"
        r"  31 thread\(s\) wait in __syncthreads at \S+:\d+\n"
        r"  1 thread\(s\) wait in a warp primitive at \S+:\d+"
    ),
}

OUT_OF_BOUNDS = {
    "dynamic_out_of_bounds": "heap-buffer-overflow",
    "static_out_of_bounds": "global-buffer-overflow",
    "local_out_of_bounds": "stack-buffer-overflow",
}

RACES = ["missing_syncwarp", "half_reads_other_half", "missing_barrier", "missing_last_barrier", "add_without_atomics"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def compiler_can(folder: Path, compiler: str, flags: list[str]) -> bool:
    """Whether a program compiled with the flags links and runs."""
    source, target = folder / "empty.cpp", folder / "empty"
    source.write_text("int main() {}\n")
    linked = subprocess.run([compiler, *flags, str(source), "-o", str(target)], capture_output=True)
    return linked.returncode == 0 and subprocess.run([str(target)], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs cases of a build, compiled when first asked for."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"

    @cache
    def build(name: str) -> Path | None:
        folder = tmp_path_factory.mktemp(f"emulator_{name}")
        if not compiler_can(folder, compiler, BUILDS[name]):
            return None
        source, target = EMULATOR / "planted_bugs.cpp", folder / "planted_bugs"
        command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *BUILDS[name], str(source)]
        subprocess.run([*command, "-o", str(target)], check=True)
        return target

    def run(name: str, *cases: str, order: str = "ascending", fuzz: int = 0) -> subprocess.CompletedProcess[str]:
        program = build(name)
        if program is None:
            pytest.skip(f"{compiler} {' '.join(BUILDS[name])} makes no program that runs here")
        settings = {
            "CUEMU_ORDER": order,
            "CUEMU_FUZZ": str(fuzz),
            "ASAN_OPTIONS": "detect_leaks=0",  # which fails under a debugger
            "TSAN_OPTIONS": "atexit_sleep_ms=0",
        }
        options = {"capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([str(program), *cases], env={**os.environ, **settings}, **options)

    return run


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("order", ORDERS)
def test_right_kernels_pass(run: Run, build: str, order: str) -> None:
    result = run(build, *RIGHT, order=order)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("build", BUILDS)
def test_launch_after_a_failed_one(run: Run, build: str) -> None:
    result = run(build, "right_after_failure")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", ["plain", "ucontext"])
@pytest.mark.parametrize("case", MESSAGES)
def test_threads_that_do_not_meet(run: Run, case: str, build: str, order: str) -> None:
    result = run(build, case, order=order)
    assert result.returncode == 1
    assert result.stdout.startswith(f"{case}: cuemu: ")
    assert re.search(MESSAGES[case], result.stdout)


def test_divergent_barrier_names_both_places(run: Run) -> None:
    places = re.findall(r"planted_bugs.cpp:(\d+)", run("plain", "divergent_barrier").stdout)
    source = (EMULATOR / "planted_bugs.cpp").read_text().splitlines()
    assert len(set(places)) == 2
    assert all(source[int(place) - 1].strip() == "__syncthreads();" for place in places)


@pytest.mark.parametrize("build", ["plain", "address"])
def test_uninitialised_shared_memory_is_nan(run: Run, build: str) -> None:
    assert run(build, "uninitialised_shared").returncode == 0


@pytest.mark.parametrize("case", OUT_OF_BOUNDS)
def test_out_of_bounds(run: Run, case: str) -> None:
    result = run("address", case)
    assert result.returncode != 0
    assert f"AddressSanitizer: {OUT_OF_BOUNDS[case]}" in result.stderr


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("case", RACES)
def test_races(run: Run, case: str, order: str) -> None:
    result = run("thread", case, order=order)
    assert result.returncode != 0
    assert "ThreadSanitizer: data race" in result.stderr


def test_results_that_depend_on_the_order_of_blocks(run: Run) -> None:
    floats, integers = (
        {run("plain", f"{kind}_sum_over_blocks", order=order).stdout for order in ORDERS}
        for kind in ("float", "integer")
    )
    assert len(floats) > 1
    assert len(integers) == 1


@pytest.mark.parametrize("case", ["orders_in_one_process", "refused_sizes"])
def test_interface(run: Run, case: str) -> None:
    result = run("plain", case)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_fuzz_from_the_environment(run: Run) -> None:
    # one unit in the last place is within the tolerance of right_functions, a thousand are not
    assert run("plain", "right_functions", fuzz=1).returncode == 0
    assert "wrong" in run("plain", "right_functions", fuzz=1000).stdout


def test_unknown_order(run: Run) -> None:
    result = run("plain", "right_shuffles", order="sideways")
    assert result.returncode == 1
    assert "no such order: sideways" in result.stdout
