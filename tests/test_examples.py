"""The examples that need no GPU run as the README says."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/aoti"))

import package_loaders  # noqa: E402


def test_the_demo_lists_rewrites_and_shows_a_recorded_trace() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "BAR.SYNC.DEFER_BLOCKING 0x0" in result.stdout
    assert "0 reports" in result.stdout, "the rewrite's hazard check is part of the demo"
    assert "trustworthy:" in result.stdout and "inner product" in result.stdout
    assert str(ROOT) not in result.stdout, "paths are shown relative to the checkout"


def test_the_visit_counter_writes_a_cubin_that_reads_back(tmp_path: Path) -> None:
    target = tmp_path / "counted.cubin"
    cubin = ROOT / "examples/cuda/trace/matmul_sm90.cubin"
    command = [
        sys.executable,
        str(ROOT / "examples/visit_counter.py"),
        str(cubin),
        "matmul",
        "40",
        str(target),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    listing = subprocess.run(
        [
            sys.executable,
            "-m",
            "gwatch",
            "rewrite",
            str(target),
            "--kernel",
            "matmul",
            "--list",
            "--only",
            "REDG",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert listing.returncode == 0 and "REDG.E.ADD.STRONG.GPU" in listing.stdout, listing.stderr


def test_a_loader_that_crashes_is_named_and_the_next_one_is_tried(tmp_path: Path) -> None:
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    assert package_loaders.attempt("a", crash) == package_loaders.Attempt("a", "crashed (SIGSEGV)")
    fails = [sys.executable, "-c", "raise SystemExit('no such class')"]
    assert package_loaders.attempt("b", fails).problem == "no such class"
    assert package_loaders.attempt("c", [sys.executable, "-c", "pass"]).problem == ""
    assert len(package_loaders.LOADERS) == 4


def test_the_last_loader_knows_the_launch_from_the_wrapper(tmp_path: Path) -> None:
    fixtures = ROOT / "tests/inspect/fixtures"
    image = (fixtures / "vector_copy.cubin").read_bytes()
    wrapper = (fixtures / "vector_copy.wrapper.cpp").read_text()
    cubin = "cpmm3ngs2mgkcf2ixdlj6rk7w6r6gcul7ytvyu4xnsonzr6ro2ii.cubin"  # as the wrapper calls it
    for name in ("copy.pt2", "other.pt2"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"copy/data/aotinductor/model/{cubin}", image)
            archive.writestr(
                "copy/data/aotinductor/model/k.wrapper.cpp", wrapper if name == "copy.pt2" else ""
            )
    found, kernel = package_loaders.launch_data(tmp_path / "copy.pt2")
    assert found == image and (kernel.name, kernel.num_warps) == ("copy_kernel", 4)
    assert [argument.is_pointer for argument in kernel.arguments] == [True, True, False]
    assert next(int(value) for _, value in kernel.constants if value.isdecimal()) == 1024
    with pytest.raises(LookupError):
        package_loaders.launch_data(tmp_path / "other.pt2")
