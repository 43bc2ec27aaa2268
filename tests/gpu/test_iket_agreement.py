"""NVIDIA IKET and gwatch time the same ranges of the same kernel alike.

``GWATCH_IKET_PROGRAM`` (a command line) and ``GWATCH_IKET_KERNEL`` put another program instrumented for IKET in place
of ours, one whose kernel has one range, between its first and its last timer read. Its turns need not be alike: the
median over all of them is compared."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from test_trace_command import needs

from gwatch.common.format import File
from gwatch.common.format.run import Run
from gwatch.cuda.driver import Driver

ROOT = Path(__file__).resolve().parents[2]
STEP_NS = 32
COST_CYCLES = 20.0
"""Of a warp-level record by the README's table, one warp a scheduler."""


def spans(run: Run) -> np.ndarray:
    """Median duration in ns of each turn, over the warps: (turns,)."""
    intervals = run.intervals
    order = np.lexsort((intervals.start, intervals.row))
    rows = intervals.row[order]
    length = (intervals.end - intervals.start)[order]
    turns = int(np.bincount(rows).max())
    assert len(length) == turns * len(np.unique(rows)), "warps made different numbers of turns"
    return np.median(length.reshape(-1, turns), axis=0)


def test_spans_agree_within_a_step_and_the_cost(gpu: Driver, tmp_path: Path, record_property: Any) -> None:
    needs("torch", "cutlass", "iket")
    ours_runs = "GWATCH_IKET_PROGRAM" not in os.environ
    name = shlex.split(os.environ.get("GWATCH_IKET_PROGRAM", str(ROOT / "tests/gpu/programs/iket_ranges.py")))
    kernel = os.environ.get("GWATCH_IKET_KERNEL", "busy_kernel")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path}

    def ran(*command: str, **more: str) -> None:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])

    profile = ["--output-dir", "iket", "--clobber", "profile", "--postprocess", "json", "--"]
    ran("-m", "iket.cli.main", *profile, sys.executable, *name)
    (found,) = list((tmp_path / "iket").rglob("*.trace.json"))
    theirs = [spans(run) for run in File.load(found).runs if kernel in run.kernel]
    region = "work=op:CS2R.32@first..op:CS2R.32@last"
    trace = ["-m", "gwatch", "trace", "--kernel", kernel, "--region", region, "--clock", "anchor", "--depth", "256"]
    ran(*trace, "--", sys.executable, *name, CUTE_DSL_COMPILER_OPT="iket")
    (run,) = File.load(tmp_path / "trace.gwatch").runs
    ours, cost_ns = spans(run), COST_CYCLES / 1.98
    difference = np.abs(ours - theirs[-1]) if ours_runs else np.abs(np.median(ours) - np.median(theirs[-1]))
    record_property("ns by IKET, gwatch", [theirs[-1].tolist(), ours.tolist()])
    sys.stdout.write(f"ns a turn by IKET {theirs[-1].tolist()}, by gwatch {ours.tolist()}\n")
    assert (difference <= STEP_NS + cost_ns).all(), (theirs[-1], ours)
