"""What the tests on a GPU share: the driver (or a skip that says what is missing) and compiled kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import Driver, driver
from gwatch.errors import ToolError

KERNELS = Path(__file__).resolve().parent / "kernels"


@pytest.fixture(scope="session")
def gpu() -> Driver:
    """The driver with device 0 current."""
    try:
        found = driver()
    except ToolError as error:
        pytest.skip(f"needs a GPU: {error}")
    found.use_device(0)
    return found


@pytest.fixture(scope="session")
def run_cubin(gpu: Driver, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """kernels/run.cu compiled for the GPU at hand."""
    target = tmp_path_factory.mktemp("kernels") / "run.cubin"
    arch = "sm_{}{}".format(*gpu.device_capability(0))
    subprocess.run(["nvcc", "-cubin", f"-arch={arch}", "-o", target, KERNELS / "run.cu"], check=True)
    return target.read_bytes()


@pytest.fixture(autouse=True)
def clean_process(gpu: Driver) -> Iterator[None]:
    """Every test starts and ends with the device current and the hooks off."""
    gpu.use_device(0)
    yield
    gpu.synchronize()
    assert not hooks.installed
