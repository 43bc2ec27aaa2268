#!/usr/bin/env python3
"""SASS tier against PTX tier: what the same scopes cost, in one run.

    python tools/bench/tiers.py [--json] [--rounds N]

For each kernel, launches of the unmarked code, of the marked code, and of the marked code recorded on either tier, by
turns in random order; extra time against the marked code with its 95 % interval and the noise of the unmarked code
against itself, registers, CTAs per SM, and cycles per record. Kernels: a chain of 64 dependent FMAs per visit (one CTA
of 128 or of 1024 threads per SM), batched loads, both per thread and per warp; and the warp-specialised Hopper product
of the examples (per warp).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "examples/cuda/trace")]

import torch  # noqa: E402
from gpu_checks.pairs import against, interleave  # noqa: E402
from gpu_checks.scopes import GEMM, Gemm, built  # noqa: E402

from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.cuda.binary.ptx import PtxModule  # noqa: E402
from gwatch.cuda.driver import driver  # noqa: E402
from gwatch.cuda.launcher import Launcher  # noqa: E402
from gwatch.cuda.trace.ptxplan import plan_ptx, ptx_scopes  # noqa: E402
from gwatch.cuda.xtrace.scopes import scope_sites  # noqa: E402
from gwatch.rewrite.trace import plan_trace  # noqa: E402
from gwatch.sass.arch import occupancy  # noqa: E402

VARIANTS = ("unmarked", "unmarked again", "marked", "sass", "ptx")
TRIPS = 256


def tier_images(kernel_name: str, warp_level: bool, depth: int) -> dict[str, Any]:
    """The images of every variant of a kernel of scopes.cu."""
    cubin = Cubin.from_file(built(True))
    kernel = cubin.get_kerneldef_by_name(kernel_name)
    sites, _ = scope_sites(kernel, {}, warp_level)
    module = PtxModule(built(True, "ptx").read_text(), "scopes.ptx")
    return {
        "unmarked": built(False),
        "unmarked again": built(False),
        "marked": built(True),
        "sass": plan_trace(cubin, kernel, sites, clock="sm", depth=depth).data,
        "ptx": plan_ptx(
            ptx_scopes(module, kernel_name, {}, warp_level), cubin, kernel, clock="sm", depth=depth
        ).data,
    }


def small(
    kernel: str, shape: tuple[int, int], given: tuple[Any, ...], warp: bool, rounds: int, records: int
) -> dict[str, Any]:
    """One kernel of scopes.cu on one shape; ``given`` are its arguments, the output first, ``records`` how many each
    row makes one after another."""
    launchers = {name: Launcher(image, kernel) for name, image in tier_images(kernel, warp, 32).items()}
    outputs: dict[str, torch.Tensor] = {}

    def run(name: str) -> float:
        launchers[name].launch(*shape, given)
        milliseconds = launchers[name].duration_ms() or 0.0
        outputs[name] = given[0].clone()
        return milliseconds

    times = interleave({name: (lambda name=name: run(name)) for name in VARIANTS}, rounds)
    for name in VARIANTS:
        assert torch.equal(outputs[name], outputs["unmarked"]), f"{kernel}: {name} computed something else"
    registers = {name: launchers[name].kernel_def.register_count for name in ("marked", "sass", "ptx")}
    for launcher in launchers.values():
        launcher.close()
    found = row(times, registers, shape[1])
    khz = driver().device_clock_khz(0)
    for tier in ("sass", "ptx"):
        extra = np.median(np.array(times[tier]) - np.array(times["marked"]))
        found[f"{tier} cycles/record"] = round(float(extra) * khz / records, 1)
    return {
        "kernel": kernel,
        "level": "warp" if warp else "thread",
        "shape": f"{shape[0]} x {shape[1]}",
        **found,
    }


def row(
    times: dict[str, list[float]], registers: dict[str, int], threads: int, shared: int = 0
) -> dict[str, Any]:
    """The comparisons of a kernel."""
    arch = Cubin.from_file(built(True)).arch
    return {
        "ms": round(float(np.median(times["unmarked"])), 4),
        "A/A": str(against(times, "unmarked", "unmarked again")),
        "markers": str(against(times, "unmarked", "marked")),
        "sass": str(against(times, "marked", "sass")),
        "ptx": str(against(times, "marked", "ptx")),
        "registers": registers,
        "CTAs/SM": {name: occupancy(arch, count, threads, shared) for name, count in registers.items()},
    }


def product(rounds: int) -> dict[str, Any]:
    """The warp-specialised product, per warp."""
    import trace_cuda_hgmma_matmul as example

    gemm = Gemm(GEMM, depth=64)
    times = interleave({name: (lambda name=name: gemm.run(name)) for name in VARIANTS}, rounds)
    registers = {
        "marked": gemm.registers["unmarked"],
        "sass": gemm.registers["sass"],
        "ptx": gemm.registers["ptx"],
    }
    found = row(times, registers, example.THREADS, example.SHARED_BYTES)
    found["TFLOP/s"] = round(gemm.product.flops / float(np.median(times["unmarked"])) / 1e9, 1)
    gemm.close()
    return {"kernel": example.KERNEL, "level": "warp", "shape": "x".join(map(str, GEMM)), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of scopes on the SASS tier and on the PTX tier.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    rows = []
    x = torch.randn(264 * 512 * 64, device="cuda")
    for warp in (False, True):
        for shape in ((132, 128), (132, 1024)):
            out = torch.zeros(shape[0] * shape[1], device="cuda")
            arguments = out, np.float32(0.999), np.int32(TRIPS)
            rows.append(small("timed", shape, arguments, warp, args.rounds, 2 * TRIPS))
            show(rows[-1], args.json)
        out = torch.zeros(264 * 512, device="cuda")
        rows.append(small("batched", (264, 512), (out, x, np.int32(8)), warp, args.rounds, 2 * 64))
        show(rows[-1], args.json)
    rows.append(product(args.rounds))
    show(rows[-1], args.json)
    if args.json:
        print(json.dumps(rows, default=str))
    return 0


def show(found: dict[str, Any], as_json: bool) -> None:
    """One kernel's figures as lines."""
    if as_json:
        return
    print(f"{found['kernel']}, {found['shape']}, per {found['level']}")
    for name, value in found.items():
        if name not in ("kernel", "shape", "level"):
            print(f"  {name:20} {value}")
    sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        raise SystemExit(main())
