from __future__ import annotations

from pathlib import Path
from types import ModuleType

import native_core
import pytest
import torch


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture(params=native_core.capabilities())
def core(request: pytest.FixtureRequest, native_folder: Path) -> ModuleType:
    """The numerics core, for each instruction set of this machine."""
    return native_core.build(request.param, native_folder)
