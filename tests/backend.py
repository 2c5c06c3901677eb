"""Which backend the suite runs on."""

from __future__ import annotations

import os

import pytest

REFERENCE = os.environ.get("HETNET_BACKEND") == "reference"
native_only = pytest.mark.skipif(REFERENCE, reason="about the compiled kernels")
