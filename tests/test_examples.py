"""The examples that need no GPU run as the README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_demo_lists_rewrites_and_shows_a_recorded_trace() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "BAR.SYNC.DEFER_BLOCKING 0x0" in result.stdout
    assert "0 reports" in result.stdout, "the rewrite's hazard check is part of the demo"
    assert "trustworthy:" in result.stdout and "inner product" in result.stdout
    assert str(ROOT) not in result.stdout, "paths are shown relative to the checkout"


def test_the_visit_counter_writes_a_cubin_that_reads_back(tmp_path: Path) -> None:
    target = tmp_path / "counted.cubin"
    cubin = ROOT / "examples/cuda/trace/matmul_sm90.cubin"
    command = [sys.executable, str(ROOT / "examples/visit_counter.py"), str(cubin), "matmul", "40", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    listing = subprocess.run(
        [sys.executable, "-m", "gwatch", "rewrite", str(target), "--kernel", "matmul", "--list", "--only", "REDG"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert listing.returncode == 0 and "REDG.E.ADD.STRONG.GPU" in listing.stdout, listing.stderr
