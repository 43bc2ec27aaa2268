#!/usr/bin/env python3
"""Trace the phases of a CuTeDSL matrix product by scope markers.

    python3 trace_cute_matmul.py [--tier ptx|sass] [--warp] [--report trace.html]

On the PTX tier the order of the first lines matters: CuTe writes its PTX only when the two variables are set before
`import cutlass`, and gwatch sees the kernel load only when its hooks are on by then. The SASS tier needs the hooks
alone.
CuTeDSL 4.8 writes PTX 9.4: a CUDA 13.0 toolkit can't compile that, `pip install nvidia-cuda-nvcc` can.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

os.environ.setdefault("CUTE_DSL_KEEP_PTX", "1")
os.environ.setdefault("CUTE_DSL_DUMP_DIR", tempfile.mkdtemp(prefix="gwatch-cute-"))
os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")

import gwatch.cuda.trace.cute as gw_trace
import gwatch.libpygwatch as pygwatch
from gwatch.common.format import File
from gwatch.cuda.trace import do_trace
from gwatch.cuda.trace.format import Section_IntraKernelTrace
from gwatch.errors import GWatchError

if __name__ == "__main__":
    try:
        pygwatch.init_cupti_hooks()
    except GWatchError as refusal:
        print(refusal, file=sys.stderr)
        raise SystemExit(2) from None

import cutlass
import cutlass.cute as cute

TILE = 16
NAMES = {1: "load tile", 2: "multiply"}


@cute.kernel  # type: ignore[misc]
def matmul_kernel(
    a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Constexpr, marked: cutlass.Constexpr
):
    column_in, row_in, _ = cute.arch.thread_idx()
    column_tile, row_tile, _ = cute.arch.block_idx()
    allocator = cutlass.utils.SmemAllocator()
    layout = cute.make_layout((TILE, TILE), stride=(TILE, 1))
    tile_a = allocator.allocate_tensor(cutlass.Float32, layout, 16)
    tile_b = allocator.allocate_tensor(cutlass.Float32, layout, 16)
    row, column = row_tile * TILE + row_in, column_tile * TILE + column_in
    total = cutlass.Float32(0.0)
    for step in cutlass.range(size // TILE, unroll=1):
        if cutlass.const_expr(marked):
            gw_trace.scope_start(1)
        tile_a[row_in, column_in] = a[row, step * TILE + column_in]
        tile_b[row_in, column_in] = b[step * TILE + row_in, column]
        cute.arch.sync_threads()
        if cutlass.const_expr(marked):
            gw_trace.scope_end(1)
            gw_trace.scope_start(2)
        for k in cutlass.range_constexpr(TILE):
            total += tile_a[row_in, k] * tile_b[k, column_in]
        cute.arch.sync_threads()
        if cutlass.const_expr(marked):
            gw_trace.scope_end(2)
    c[row, column] = total


@cute.jit  # type: ignore[misc]
def matmul(
    a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, size: cutlass.Constexpr, marked: cutlass.Constexpr
):
    matmul_kernel(a, b, c, size, marked).launch(grid=(size // TILE, size // TILE, 1), block=(TILE, TILE, 1))


def run(a: Any, b: Any, c: Any, marked: bool = True) -> None:
    """One launch on torch tensors."""
    from cutlass.cute.runtime import from_dlpack

    matmul(from_dlpack(a), from_dlpack(b), from_dlpack(c), a.shape[0], marked)


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=("ptx", "sass"), default="ptx")
    parser.add_argument("--size", type=int, default=256, help="matrix size, a multiple of 16 (default 256)")
    parser.add_argument("--warp", action="store_true", help="one record a warp, not one a thread")
    parser.add_argument(
        "--report", default="trace.html", help="an .html or .json report (default trace.html)"
    )
    args = parser.parse_args()
    a, b = (torch.randn(args.size, args.size, device="cuda") for _ in range(2))
    c = torch.zeros_like(a)
    result = do_trace(
        fn=lambda: run(a, b, c),
        kernel_name_pattern=r"matmul_kernel",
        dsl="cute",
        scope_name_map=NAMES,
        instrumentation_tier=args.tier,
        warp_level=args.warp,
        outputs=[c],
    )
    if not torch.allclose(c, a @ b, atol=1e-2):
        raise SystemExit("the product is wrong")
    section = Section_IntraKernelTrace()
    section.add_run(result)
    report = File(title="CuTeDSL matrix product")
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
