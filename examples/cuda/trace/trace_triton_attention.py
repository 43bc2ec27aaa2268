#!/usr/bin/env python3
"""Trace the phases of a Triton attention kernel by scope markers.

python3 trace_triton_attention.py [--tier sass|ptx] [--warp] [--report trace.html]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import triton
import triton.language as tl

import gwatch.cuda.trace.triton as gw_trace
from gwatch.common.format import File
from gwatch.cuda.trace import do_trace
from gwatch.cuda.trace.format import Section_IntraKernelTrace
from gwatch.errors import GWatchError

ROWS, COLUMNS, DEPTH = 64, 64, 64
NAMES = {1: "scores", 2: "softmax", 3: "values"}


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    length,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    MARKED: tl.constexpr,
):  # type: ignore[no-untyped-def]
    head = tl.program_id(1) * length * DEPTH
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH)
    query = tl.load(q + head + rows[:, None] * DEPTH + depth[None, :])
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DEPTH], tl.float32)
    for start in range(0, length, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        if MARKED:
            gw_trace.scope_start(1)
        keys = tl.load(k + head + columns[None, :] * DEPTH + depth[:, None])
        scores = tl.dot(query, keys) * scale
        if MARKED:
            gw_trace.scope_end(1)
            gw_trace.scope_start(2)
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(weights, 1)
        largest = new
        if MARKED:
            gw_trace.scope_end(2)
            gw_trace.scope_start(3)
        values = tl.load(v + head + columns[:, None] * DEPTH + depth[None, :])
        result = result * shrink[:, None] + tl.dot(weights.to(tl.float16), values)
        if MARKED:
            gw_trace.scope_end(3)
    tl.store(out + head + rows[:, None] * DEPTH + depth[None, :], (result / total[:, None]).to(tl.float16))


def run(q: Any, k: Any, v: Any, out: Any, marked: bool = True) -> None:
    """One launch; (heads, length, DEPTH) float16 tensors."""
    heads, length, _ = q.shape
    scale = 1.4426950408889634 / DEPTH**0.5
    attention_kernel[(length // ROWS, heads)](
        q, k, v, out, length, scale, ROWS, COLUMNS, DEPTH, marked, num_warps=4, num_stages=2
    )


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=("sass", "ptx"), default="sass")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument(
        "--length", type=int, default=1024, help="sequence length, a multiple of 64 (default 1024)"
    )
    parser.add_argument("--warp", action="store_true", help="one record a warp, not one a thread")
    parser.add_argument(
        "--report", default="trace.html", help="an .html or .json report (default trace.html)"
    )
    args = parser.parse_args()
    shape = (args.heads, args.length, DEPTH)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(q)
    result = do_trace(
        fn=lambda: run(q, k, v, out),
        kernel_name_pattern=r"^attention_kernel$",
        dsl="triton",
        scope_name_map=NAMES,
        instrumentation_tier=args.tier,
        warp_level=args.warp,
        outputs=[out],
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    if not torch.allclose(out, wanted, atol=1e-2):
        raise SystemExit("the attention is wrong")
    section = Section_IntraKernelTrace()
    section.add_run(result)
    report = File(title="Triton attention")
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
