#!/usr/bin/env python3
"""Prove gwatch on a GPU: traces kernels whose every record is known beforehand, prints a table, fails on a difference.

    python tools/gpu_check.py [--only REGEX] [--modules NAME,...] [--soak SECONDS] [--json]

Needs an H200 (sm_90), nvcc, torch, triton and cupy. Exit codes: 0 all passed, 1 a check failed, 2 no GPU.
Checks of control flow run in processes of their own with a time limit: a kernel that never ends is named, with its
stage, and the rest goes on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from gwatch.cuda.driver import driver  # noqa: E402
from gwatch.errors import ToolError  # noqa: E402

MODULES = (
    "bottlenecks,clocks,consistency,control,frameworks,groups,matmul,process,records,registers,scopes,state,values"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove gwatch on a GPU.")
    parser.add_argument(
        "--only", default="", help="run only the checks whose group/name matches this regular expression"
    )
    parser.add_argument(
        "--soak", type=float, default=0.0, help="seconds of the many-threads soak (0: leave it out)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--trace-back", action="store_true", help="print the Python trace of failures")
    parser.add_argument("--modules", default=MODULES, help="import (and run) these modules of checks only")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        gpu = driver().device_name(0)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2

    # Importing a module registers its checks; they need the GPU libraries, hence not at the top.
    for name in args.modules.split(","):
        importlib.import_module(f"gpu_checks.{name}")
    from gpu_checks.support import CHECKS, run_in_child, run_staged

    if args.child:
        (wanted,) = [entry for entry in CHECKS if entry.title == args.child]
        return run_staged(wanted)
    if args.soak:
        from gpu_checks import process

        process.SOAK_SECONDS = args.soak
    rows = []
    for entry in sorted(CHECKS, key=lambda entry: entry.name.startswith("soak")):
        title = entry.title
        if not re.search(args.only, title) or (entry.name == "soak_many_threads" and not args.soak):
            continue
        begin = time.perf_counter()
        try:
            if entry.limit is None:
                facts = entry.run()
            else:
                module = entry.run.__module__.rpartition(".")[2]
                command = [sys.executable, __file__, "--modules", module, "--child", title]
                facts = run_in_child(command, title, entry.limit)
            verdict = "FAIL" if "error" in facts else "ok"
        except Exception as error:  # a check may fail in any way; each failure becomes a row
            facts, verdict = {"error": f"{type(error).__name__}: {error}"}, "FAIL"
            if args.trace_back:
                traceback.print_exc()
        seconds = time.perf_counter() - begin
        rows.append({"check": title, "verdict": verdict, "seconds": round(seconds, 2), **facts})
        if not args.json:
            text = "  ".join(f"{key}={value}" for key, value in facts.items())
            print(f"{verdict:4} {title:44} {seconds:6.1f} s  {text}", flush=True)
    failed = sum(row["verdict"] != "ok" for row in rows)
    if args.json:
        print(json.dumps({"gpu": gpu, "failed": failed, "checks": rows}, default=str))
    else:
        print(f"{len(rows) - failed} of {len(rows)} checks passed on {gpu}")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
