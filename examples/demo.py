#!/usr/bin/env python3
"""What gwatch does, on a real cubin, in a minute, without a GPU: list, rewrite, prove, and look at a recorded trace."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from gwatch.cli.main import run_command

CUBIN = "examples/cuda/trace/matmul_sm90.cubin"
RECORDED = "examples/cuda/trace/matmul_h200.gwatch"


def step(title: str, command: list[str]) -> None:
    """Show a command as a user would type it, then run it."""
    print(f"\n--- {title}\n$ gwatch {shlex.join(command)}\n", flush=True)
    code = run_command(command[0], command[1:])
    if code:
        raise SystemExit(f"gwatch {command[0]} ended with {code}")


def main() -> None:
    os.chdir(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        patched = f"{folder}/matmul.traced.cubin"
        sites = ["--site", "op:BAR.SYNC@first,warp", "--site", "line:matmul.cu:29@first"]
        step(
            "the barriers of a tiled matrix product, as sites",
            ["rewrite", CUBIN, "--kernel", "matmul", "--list", "--only", "BAR|UIADD3|EXIT"],
        )
        step(
            "a record at every pass of the tile loop and at the inner product (line 29), written into the cubin",
            ["rewrite", CUBIN, "--kernel", "matmul", *sites, "--clock", "sm", "-o", patched],
        )
    step("the trace that such a cubin recorded on an H200", ["show", RECORDED])


if __name__ == "__main__":
    sys.exit(main())
