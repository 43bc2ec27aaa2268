"""Finding and running ptxas: the newest that this machine has."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gwatch.errors import ToolError, UnsupportedError

_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_TOO_NEW = re.compile(r"Unsupported \.version (\d+\.\d+); current version is '(\d+\.\d+)'")
_TIMEOUT = 600
_INSTALL = "pip install -U nvidia-cuda-nvcc"


@dataclass(frozen=True, slots=True)
class Ptxas:
    """One ptxas: where, and its version (13, 0, 88)."""

    path: Path
    version: tuple[int, ...]

    @property
    def release(self) -> str:
        """The CUDA release it belongs to: "13.0"."""
        return ".".join(map(str, self.version[:2]))


def candidates() -> Iterator[Path]:
    """Where a ptxas may be: ``GW_PTXAS_PATH`` alone if it is set, else the wheel ``nvidia-cuda-nvcc``,
    ``GW_CUDA_HOME``, ``CUDA_HOME``, ``CUDA_PATH``, ``PATH``, the default place of toolkits, Triton's own.
    """
    named = os.environ.get("GW_PTXAS_PATH")
    if named:
        yield Path(named)
        return
    for folder in _package_folders("nvidia"):
        yield from sorted(folder.glob("*/bin/ptxas"))
    for variable in ("GW_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            yield Path(home) / "bin/ptxas"
    found = shutil.which("ptxas")
    if found:
        yield Path(found)
    yield Path("/usr/local/cuda/bin/ptxas")
    for folder in _package_folders("triton"):
        yield from sorted(folder.glob("backends/nvidia/bin/ptxas*"))


def _package_folders(name: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


@lru_cache(maxsize=32)
def _version(path: Path) -> tuple[int, ...] | None:
    try:
        told = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _RELEASE.search(told)
    return tuple(int(part) for part in match[3].split(".")) if match else None


def find_ptxas() -> Ptxas:
    """The newest ptxas. Raises ToolError ``[ptxas-missing]``."""
    known = [
        Ptxas(path, version)
        for path in dict.fromkeys(candidates())
        if path.is_file() and (version := _version(path)) is not None
    ]
    if not known:
        raise ToolError(
            "ptxas-missing",
            "the PTX tier compiles PTX and finds no ptxas (wheel nvidia-cuda-nvcc, CUDA_HOME, PATH)",
            _INSTALL,
        )
    return max(known, key=lambda item: item.version)


def compile_ptx(text: str, arch: str, name: str) -> tuple[bytes, Ptxas]:
    """(cubin, who made it) of PTX for ``arch`` ("sm_90a"); ``name`` is the module's in errors.

    Raises ToolError ``[ptxas-missing]``, ``[ptxas-failed]``, UnsupportedError ``[ptx-too-new]``.
    """
    tool = find_ptxas()
    with tempfile.TemporaryDirectory(prefix="gwatch-ptx-") as folder:
        source, target = Path(folder, "traced.ptx"), Path(folder, "traced.cubin")
        source.write_text(text)
        try:
            done = subprocess.run(
                [tool.path, f"-arch={arch}", "-o", target, source],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolError("ptxas-failed", f"{tool.path} did not run on {name}: {error}") from None
        told = done.stderr + done.stdout
        too_new = _TOO_NEW.search(told)
        if too_new:
            raise UnsupportedError(
                "ptx-too-new",
                f"{name} is PTX {too_new[1]}; the newest ptxas here, {tool.path} of CUDA {tool.release}, knows PTX "
                f"up to {too_new[2]}",
                f"{_INSTALL} (a newer ptxas beside the toolkit), or trace on the SASS tier: "
                "instrumentation_tier='sass' compiles nothing",
            )
        if done.returncode or not target.exists():
            first = next((line for line in told.splitlines() if line.strip()), f"exit code {done.returncode}")
            raise ToolError(
                "ptxas-failed", f"{tool.path} refuses {name}: {first.replace(str(source), 'line')}"
            )
        return target.read_bytes(), tool
