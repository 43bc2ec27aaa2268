#!/usr/bin/env python3
"""Torture the rewriter: random sites and snippets in every kernel of a folder, each rewrite proved.

    python tools/torture.py --kernels DIR_OR_CUBIN ... [--jobs N] [--sites N] [--seconds S] [--seed S] [--json]
    python tools/torture.py --gpu | --frameworks | --sanitize [--seconds S] [--seed S] [--json]

Without a GPU every rewrite is proved by three roads that don't use the rewriter's maps: nvdisasm lists both images and
the inserted lines taken out leave equal listings; ``gwatch check`` finds no hazard and no stale code offset in the new
image; compared with the original, nothing but insertions differs and they disturb nothing. Every tenth rewrite also
gets faults planted in it on purpose, which the checker must report. Architectures take turns. Every process has a limit
of memory and every case one of time (over it: wrong); a case follows from the seed and its number alone.

With ``--gpu`` the kernels of ``tools/torturing`` and freshly generated ones run plain and patched on random inputs:
outputs must be equal bit by bit, armed and unarmed, and every visit of a site must be recorded exactly once, as counted
by an independent counter snippet. A launch that takes longer than 20 s counts as a hang.

A failure prints the command that repeats it. Exit codes: 0 nothing wrong, 1 something was, 2 nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
# Every process computes on one core, and the threads of others would count as its memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from torturing.offline import offline  # noqa: E402

SANITIZERS = ("memcheck", "racecheck", "synccheck")
SAMPLE = "kernels/(switch|shared|atomics|calls|ragged|solid|divide|local|constants)"
"""Kernels of the sanitizers' sample: free of asynchronous copies and clusters, which they only partly understand."""


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernels", nargs="+", type=Path, default=[ROOT / ".corpus"], help="cubins or folders"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="only kernels whose name matches")
    parser.add_argument("--sites", type=int, default=20_000, help="stop after this many (kernel, site) pairs")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long (0: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--case", type=int, help="only this case number of each kernel (with --only: repeats it)"
    )
    parser.add_argument(
        "--longest", type=int, default=100_000, help="leave out longer kernels (instructions)"
    )
    parser.add_argument("--rounds", type=int, default=100, help="times through all kernels, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes (without a GPU)")
    parser.add_argument("--memory", type=int, default=4096, metavar="MIB", help="limit of each process")
    parser.add_argument(
        "--case-seconds",
        type=float,
        default=300,
        help="limit of one case; at the end of --seconds 15 s are left",
    )
    parser.add_argument(
        "--survey",
        action="store_true",
        help="only build: two records a kernel, lifetimes, --auto; which kernels are refused, and why",
    )
    parser.add_argument("--gpu", action="store_true", help="run on the GPU")
    parser.add_argument(
        "--frameworks", action="store_true", help="on the GPU: kernels that torch, Triton and CuPy launch"
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="on the GPU: a sample under compute-sanitizer's tools"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.sanitize:
        return sanitize(args)
    if args.gpu or args.frameworks:
        from torturing.gpu import torture_gpu

        return torture_gpu(args)
    return offline(args)


def sanitize(args: argparse.Namespace) -> int:
    """Some seconds of ``--gpu`` under each tool of compute-sanitizer; all must be silent."""
    seconds = (args.seconds or 120) / len(SANITIZERS)
    worst = 0
    results = {}
    for tool in SANITIZERS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
        command += [
            sys.executable,
            __file__,
            "--gpu",
            "--json",
            "--seed",
            str(args.seed),
            "--seconds",
            str(seconds),
        ]
        command += ["--only", args.only or SAMPLE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=4 * seconds + 120
            )
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            print(f"{tool}: {error}", file=sys.stderr)
            return 2
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "=========" in line]
        results[tool] = {"exit": done.returncode, "said": lines[-1:], "pairs": _pairs(done.stdout)}
        if done.returncode:
            print("\n".join([f"{tool} complains:", *lines[:20], done.stderr[-1000:]]), file=sys.stderr)
            worst = 1
    print(json.dumps(results, indent=None if args.json else 1))
    return worst


def _pairs(text: str) -> int:
    """The (kernel, site) pairs of a run's JSON line."""
    found = re.findall(r'"pairs": (\d+)', text)
    return int(found[-1]) if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
