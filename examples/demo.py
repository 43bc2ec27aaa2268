#!/usr/bin/env python3
"""What gwatch does, on a real cubin, in a minute, without a GPU: list, rewrite, prove, and look at a recorded trace."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gwatch.cli.main import run_command

HERE = Path(__file__).resolve().parent
CUBIN = HERE / "cuda/trace/matmul_sm90.cubin"
RECORDED = HERE / "cuda/trace/matmul_h200.trace.json"


def step(title: str, command: list[str]) -> None:
    """Show a command as a user would type it, then run it."""
    shown = " ".join(
        str(Path(part).relative_to(HERE.parent))
        if Path(part).is_absolute() and HERE.parent in Path(part).parents
        else part
        for part in command
    )
    print(f"\n--- {title}\n$ gwatch {shown}\n", flush=True)
    code = run_command(command[0], command[1:])
    if code:
        raise SystemExit(f"gwatch {command[0]} ended with {code}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        patched = str(Path(folder) / "matmul.traced.cubin")
        step(
            "the barriers of a tiled matrix product, as sites",
            ["rewrite", str(CUBIN), "--kernel", "matmul", "--list", "--only", "BAR|UIADD3|EXIT"],
        )
        step(
            "a record at every pass of the tile loop and at the inner product (line 29), written into the cubin",
            [
                "rewrite",
                str(CUBIN),
                "--kernel",
                "matmul",
                "--site",
                "op:BAR.SYNC@first,warp",
                "--site",
                "line:matmul.cu:29@first",
                "--clock",
                "sm",
                "-o",
                patched,
            ],
        )
    step("the trace that such a cubin recorded on an H200", ["show", str(RECORDED)])


if __name__ == "__main__":
    sys.exit(main())
