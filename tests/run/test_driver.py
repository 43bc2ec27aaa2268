"""What is said when the driver, a GPU or cuda-python are not there, and when a call fails."""

from __future__ import annotations

import enum
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gwatch.cuda import driver as module
from gwatch.cuda.driver import Driver
from gwatch.errors import LaunchError, ToolError


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


def bindings(**functions: Any) -> Any:
    handles = dict.fromkeys(("CUdeviceptr", "CUstream", "CUkernel", "CUfunction", "CUlibrary"), int)
    return SimpleNamespace(**{**handles, **functions})


@pytest.fixture(autouse=True)
def fresh() -> Any:
    module.driver.cache_clear()
    yield
    module.driver.cache_clear()


def test_without_cuda_python_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(ToolError, match=r"\[cuda-python-missing\].*gwatch-sass\[gpu\]"):
        module.driver()


def test_without_a_driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(flags: int) -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(module, "_load_bindings", lambda: bindings(cuInit=absent))
    with pytest.raises(ToolError, match=r"\[no-driver\].*libcuda.so.1"):
        module.driver()


@pytest.mark.parametrize(
    ("init", "count", "code"),
    [
        (Status.CUDA_ERROR_NO_DEVICE, 1, "no-gpu"),
        (Status.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 1, "no-driver"),
        (Status.CUDA_SUCCESS, 0, "no-gpu"),
    ],
)
def test_a_driver_without_gpus(monkeypatch: pytest.MonkeyPatch, init: Status, count: int, code: str) -> None:
    fake = bindings(cuInit=lambda _: (init,), cuDeviceGetCount=lambda: (Status.CUDA_SUCCESS, count))
    monkeypatch.setattr(module, "_load_bindings", lambda: fake)
    with pytest.raises(ToolError, match=rf"\[{code}\]"):
        module.driver()


def test_a_failed_call_names_itself_and_the_error() -> None:
    found = Driver(bindings(cuMemAlloc=lambda size: (Status.CUDA_ERROR_OUT_OF_MEMORY, 0)))
    with pytest.raises(LaunchError, match=r"\[cuda-error\] cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY"):
        found.allocate(1 << 40)


def test_results_come_back_bare_and_refusals_as_none() -> None:
    found = Driver(
        bindings(
            cuMemAlloc=lambda size: (Status.CUDA_SUCCESS, 0x1000 + size),
            cuCtxSynchronize=lambda: (Status.CUDA_SUCCESS,),
            cuLibraryGetGlobal=lambda library, name: (
                (Status.CUDA_SUCCESS, 0x2000, 8)
                if name == b"there"
                else (Status.CUDA_ERROR_INVALID_HANDLE, 0, 0)
            ),
        )
    )
    assert found.allocate(0) == 0x1001
    assert found.call("cuCtxSynchronize") is None
    assert found.library_global(1, "there") == (0x2000, 8)
    assert found.library_global(1, "not there") is None
