from __future__ import annotations

from pathlib import Path
from types import ModuleType

import native_core
import pytest
import torch
from backend import EMULATED_CUDA
from emulated_ops import EmulatedOps


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


@pytest.fixture(scope="session")
def cuda_emulator(native_folder: Path) -> ModuleType:
    return native_core.build_cuda_emulator(native_folder)


@pytest.fixture
def emulated_ops(cuda_emulator: ModuleType, monkeypatch: pytest.MonkeyPatch) -> EmulatedOps:
    """Puts the emulated CUDA kernels in the place of the compiled operators."""
    import hetnet_ext.ops

    emulated = EmulatedOps(cuda_emulator)
    monkeypatch.setattr(hetnet_ext.ops, "kernels", emulated)
    return emulated


# The tests of the operators can run on the emulated CUDA kernels.
if EMULATED_CUDA:

    @pytest.fixture(autouse=True)
    def _emulated(emulated_ops: EmulatedOps) -> None:
        pass
