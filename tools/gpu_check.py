#!/usr/bin/env python3
"""Prove gwatch on a GPU: traces kernels whose every record is known beforehand, prints a table, fails on a difference.

    python tools/gpu_check.py [--only REGEX] [--soak SECONDS] [--json]

Needs an H200 (sm_90), nvcc, torch, triton and cupy. Exit codes: 0 all passed, 1 a check failed, 2 no GPU.
"""

from __future__ import annotations

import argparse
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
    args = parser.parse_args()
    try:
        gpu = driver().device_name(0)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2

    # Importing a module registers its checks; they need the GPU libraries, hence not at the top.
    from gpu_checks import (  # noqa: F401
        bottlenecks,
        clocks,
        consistency,
        control,
        frameworks,
        matmul,
        process,
        records,
        registers,
        scopes,
        state,
        values,
    )
    from gpu_checks.support import CHECKS

    process.SOAK_SECONDS = args.soak
    rows = []
    for entry in sorted(CHECKS, key=lambda entry: entry.name.startswith("soak")):
        title = f"{entry.group}/{entry.name}"
        if not re.search(args.only, title) or (entry.name == "soak_many_threads" and not args.soak):
            continue
        begin = time.perf_counter()
        try:
            facts, verdict = entry.run(), "ok"
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
