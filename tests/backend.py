"""Which backend the suite runs on."""

from __future__ import annotations

import os

import pytest

REFERENCE = os.environ.get("HETNET_BACKEND") == "reference"
native_only = pytest.mark.skipif(REFERENCE, reason="about the compiled kernels")

# On the emulated CUDA kernels, which a compiler of Python code cannot see through and which do not raise.
EMULATED_CUDA = os.environ.get("HETNET_TEST_KERNELS") == "emulated_cuda"
not_emulated = pytest.mark.skipif(EMULATED_CUDA, reason="not about emulated kernels")
