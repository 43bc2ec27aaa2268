#!/usr/bin/env python3
"""Trace the phases of a TileLang matrix product by scope markers.

    python3 trace_tilelang_matmul.py [--tier sass|ptx] [--warp] [--report trace.html]

The SASS tier needs gwatch's hooks on before the kernel is first run; the PTX tier takes the PTX that
`kernel.export_ptx` writes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import tilelang
import tilelang.language as T

import gwatch.cuda.trace.tilelang as gw_trace
import gwatch.libpygwatch as pygwatch
from gwatch.common.format import File
from gwatch.cuda.trace import do_trace
from gwatch.cuda.trace.format import Section_IntraKernelTrace
from gwatch.errors import GWatchError

NAMES = {1: "load tiles", 2: "multiply"}


def matmul(size: int, marked: bool = True, tile: int = 64, depth: int = 32) -> Any:
    """The product of float16 (size, size) matrices as a TileLang function."""

    @T.prim_func
    def matmul_tiles(
        a: T.Tensor((size, size), "float16"),
        b: T.Tensor((size, size), "float16"),
        c: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(size // tile, size // tile, threads=128) as (column, row):
            tile_a = T.alloc_shared((tile, depth), "float16")
            tile_b = T.alloc_shared((depth, tile), "float16")
            total = T.alloc_fragment((tile, tile), "float32")
            T.clear(total)
            for step in T.serial(size // depth):
                if marked:
                    gw_trace.scope_start(1)
                T.copy(a[row * tile, step * depth], tile_a)
                T.copy(b[step * depth, column * tile], tile_b)
                if marked:
                    gw_trace.scope_end(1)
                    gw_trace.scope_start(2)
                T.gemm(tile_a, tile_b, total)
                if marked:
                    gw_trace.scope_end(2)
            T.copy(total, c[row * tile, column * tile])

    return matmul_tiles


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=("sass", "ptx"), default="sass")
    parser.add_argument("--size", type=int, default=512, help="matrix size, a multiple of 64 (default 512)")
    parser.add_argument("--warp", action="store_true", help="one record a warp, not one a thread")
    parser.add_argument(
        "--report", default="trace.html", help="an .html or .json report (default trace.html)"
    )
    args = parser.parse_args()
    pygwatch.init_cupti_hooks()
    kernel = tilelang.compile(matmul(args.size), target="cuda")
    a, b = (torch.randn(args.size, args.size, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder, "matmul.ptx")
        if args.tier == "ptx":
            kernel.export_ptx(str(exported))
        result = do_trace(
            fn=lambda: kernel(a, b, c),
            kernel_name_pattern=r"matmul_tiles",
            dsl="tilelang",
            scope_name_map=NAMES,
            instrumentation_tier=args.tier,
            ptx=exported if args.tier == "ptx" else None,
            warp_level=args.warp,
            outputs=[c],
        )
    if not torch.allclose(c, a @ b, atol=0.5, rtol=1e-2):
        raise SystemExit("the product is wrong")
    section = Section_IntraKernelTrace()
    section.add_run(result)
    report = File(title="TileLang matrix product")
    report.add_section(section)
    report.render(args.report)
    print(f"wrote {args.report}: {result!r}")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except GWatchError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
