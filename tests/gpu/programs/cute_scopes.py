# ruff: noqa: E402, F401, I001
"""Scope markers in CuTeDSL on both tiers; prints its findings as JSON. Needs nvidia-cutlass-dsl and a recent ptxas.

The first kernel and the order of the lines are those of the documentation, unchanged.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("CUTE_DSL_KEEP_PTX", "1")
os.environ.setdefault("CUTE_DSL_DUMP_DIR", tempfile.mkdtemp(prefix="gw-cute-ptx-"))

import gwatch.libpygwatch as pygwatch
import gwatch.cuda.trace.cute as gw_trace  # creates the capsule
from gwatch.cuda.trace import do_trace
from gwatch.common.format import File
from gwatch.cuda.trace.format import Section_IntraKernelTrace

pygwatch.init_cupti_hooks()  # install CUPTI hooks

import cutlass  # import cutlass only now
import cutlass.cute as cute
import numpy as np
import torch
from cutlass import Int32
from cutlass.cute.runtime import from_dlpack

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples/cuda/trace"))
BLOCK_SIZE = 128


@cute.kernel
def my_kernel(x: cute.Tensor, out: cute.Tensor, n: Int32):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    i = bidx * BLOCK_SIZE + tidx
    if i < n:
        gw_trace.scope_start(1)
        v = x[i]
        gw_trace.scope_end(1)
        out[i] = v * 2.0


@cute.jit
def my_launch(x: cute.Tensor, out: cute.Tensor, n: Int32):
    grid = (n + BLOCK_SIZE - 1) // BLOCK_SIZE
    my_kernel(x, out, n).launch(grid=(grid, 1, 1), block=(BLOCK_SIZE, 1, 1))


def seed(n: int = 1000) -> dict[str, object]:
    """The documentation's program on the PTX tier."""
    x, out = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    result = do_trace(
        fn=lambda: my_launch(from_dlpack(x), from_dlpack(out), n),
        kernel_name_pattern=r".*my_kernel.*",
        dsl="cute",
        scope_name_map={1: "load"},
        instrumentation_tier="ptx",
    )
    section = Section_IntraKernelTrace()
    section.add_run(result)
    report = File(title="Intra-kernel trace")
    report.add_section(section)
    folder = tempfile.mkdtemp()
    report.render(f"{folder}/trace.html")
    report.render(f"{folder}/trace.json")
    assert torch.equal(out, x * 2), "the kernel computed something else"
    assert len(result["records"]) == 2 * n, len(result["records"])
    assert result["outputs"] == "identical", result["outputs"]
    labels = json.loads(Path(folder, "trace.json").read_text())["sections"][1]["data"]["runs"][0]["analysis"]
    assert labels["scope_labels"] == ["load"]
    return {"seed_records": len(result["records"]), "compiler": result["compile_results"]["compiler"][:12]}


def product(size: int = 256) -> dict[str, object]:
    """The example's product: both tiers and both levels, against the kernel without markers."""
    import trace_cute_matmul as example

    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    plain, c = torch.zeros_like(a), torch.zeros_like(a)
    example.run(a, b, plain, marked=False)
    torch.cuda.synchronize()
    steps, threads = size // example.TILE, size * size
    facts: dict[str, object] = {}
    for tier in ("sass", "ptx"):
        for warp in (False, True):
            c.zero_()
            result = do_trace(
                fn=lambda: example.run(a, b, c),
                kernel_name_pattern=r"matmul_kernel.*_True",
                dsl="cute",
                scope_name_map=example.NAMES,
                instrumentation_tier=tier,
                warp_level=warp,
                clock_type="sm",
                sass_per_thread_records=4 * steps,
                passes=3,
            )
            name = f"{tier} {'warp' if warp else 'thread'}"
            assert torch.equal(c, plain), f"{name}: not the product of the kernel without markers"
            assert result["outputs"] == "identical", f"{name}: {result['outputs']}"
            rows = threads // 32 if warp else threads
            counts = np.bincount(result["records"]["site"], minlength=4)
            assert counts.tolist() == [rows * steps] * 4, (
                f"{name}: {counts.tolist()} for {rows} rows of {steps} steps"
            )
            assert result["dropped"] == 0
            section = Section_IntraKernelTrace()
            section.add_run(result)
            stats = {entry["scope_label"]: entry["p50"] for entry in section.runs[0].analysis["scope_stats"]}
            facts[name] = {
                **stats,
                "registers": list(result["registers"].values()),
                "slowdown": result["slowdown"]["median"] if result["slowdown"] else None,
            }
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps({**seed(), **product()}) + "\n")
