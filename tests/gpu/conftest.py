"""What the tests on a GPU share: the driver (or a skip that says what is missing) and compiled kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gwatch.common.format import File
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import Driver, driver
from gwatch.errors import ToolError

KERNELS = Path(__file__).resolve().parent / "kernels"
PROGRAMS = KERNELS.with_name("programs")
ROOT = KERNELS.parents[2]


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


@dataclass
class Ran:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def digests(self) -> list[str]:
        return sorted(line for line in self.out.splitlines() if line.startswith("digest"))

    def runs(self, name: str = "trace.gwatch") -> list[Any]:
        return File.load(self.folder / name).traces[0].runs


@pytest.fixture
def program(gpu: Driver, tmp_path: Path) -> Any:
    """Runs a program, traced when options are given (even an empty list)."""

    def run(
        name: str,
        *arguments: str,
        trace: list[str] | None = None,
        command: list[str] | None = None,
        limit: float = 300.0,
    ) -> Ran:
        target = [*(command or [sys.executable]), str(PROGRAMS / name), *arguments]
        if trace is not None:
            target = [sys.executable, "-m", "gwatch", "trace", *trace, "--", *target]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        caches = {name: str(tmp_path / name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        environment = {**os.environ, "PYTHONPATH": path, **caches}
        done = subprocess.run(
            target, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr, tmp_path)

    return run
