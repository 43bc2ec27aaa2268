#!/usr/bin/env python3
"""What does one record cost on this GPU? Loops of cost.cu, plain and recorded, in one run.

    python tools/bench/record_cost.py [--json] [--quick]

For each shape (one warp to a full machine) it prints the extra cycles per loop trip, by the SMs' own cycle counters, of
hand-written CUDA recorders and of gwatch sites at the same place; then the bandwidth of a copy and the throughput of a
tensor-core product with and without records. Shapes: 1 warp, 132 CTAs x 128 threads, 132 x 1024, 264 x 1024. Each
figure is the median over several alternating launches of (recorded - plain) / trips.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import cupy  # noqa: E402

from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.cuda.launcher import Launcher  # noqa: E402
from gwatch.rewrite.trace import SassTraceSite, TracePlan, plan_trace  # noqa: E402
from gwatch.sass.arch import occupancy  # noqa: E402

SHAPES = {"1 warp": (1, 32), "132 x 128": (132, 128), "132 x 1024": (132, 1024), "264 x 1024": (264, 1024)}
TRIPS = 256
# 64 dependent FMAs, in a loop of eight trips and unrolled (then every issue slot is taken); eight chains side by side.
LOOPS = ("chain_rolled", "chain_plain", "issue_bound")
HAND_WRITTEN = ("thread_major", "slot_major", "warp_level")
# name -> (clock, warp level, value register wanted, depth)
SITES = {
    "sm thread": ("sm", False, False),
    "gpu thread": ("gpu", False, False),
    "anchor thread": ("anchor", False, False),
    "sm warp": ("sm", True, False),
    "gpu warp": ("gpu", True, False),
    "anchor warp": ("anchor", True, False),
    "sm thread + value": ("sm", False, True),
}


def loop_head(cubin: Cubin, kernel: str) -> int:
    """Index of the first instruction of the longest loop: the target of the widest backward branch."""
    definition = cubin.get_kerneldef_by_name(kernel)
    definition.parse_cfg()
    best = (0, -1)
    for block in definition.cfg.basic_blocks:
        for _, start, target in block.successors:
            if target <= start:
                best = max(best, (start - target, target))
    assert best[1] >= 0, f"{kernel} has no loop"
    return best[1] // definition.cfg.instruction_size


def accumulator(cubin: Cubin, kernel: str, head: int) -> int:
    """The register that the loop's first FMA adds up in: always written, never in flight at the head."""
    texts = [i.str(flatten=True) for i in cubin.get_kerneldef_by_name(kernel).list_instructions]
    found = next(match for text in texts[head:] if (match := re.match(r"FFMA R(\d+),", text)))
    return int(found[1])


class Loop:
    """A kernel (out, spans, ring, trips, x) of cost.cu, plain or patched, on one shape."""

    def __init__(self, image: Any, kernel: str, shape: tuple[int, int], ring: Any) -> None:
        self.grid, self.block = shape
        threads = self.grid * self.block
        self.launcher = Launcher(image, kernel)
        self.patched = self.launcher.site_map is not None
        self.spans = cupy.zeros((threads // 32, 4), cupy.int64)
        self.out = cupy.zeros(threads, cupy.float32)
        self.arguments = (self.out, self.spans, ring, np.int32(TRIPS), np.float32(0.999))

    def run(self, armed: bool = True) -> float:
        """Cycles per trip of one round of CTAs: the mean over SMs of (last stop - first start), by the SM's clock.

        A mean over warps would mislead: the scheduler favours the older CTA, so the younger one's clock starts late.
        """
        self.launcher.launch(self.grid, self.block, self.arguments, trace=self.patched and armed)
        cupy.cuda.Device().synchronize()
        start, stop, sm, _ = self.spans.get().T
        used = np.unique(sm)
        return float(np.mean([stop[sm == i].max() - start[sm == i].min() for i in used])) / TRIPS


def cost(plain: Loop, other: Loop, rounds: int, armed: bool = True) -> tuple[float, float]:
    """(median extra cycles per trip, half the interquartile range) over alternating launches."""
    plain.run(), other.run(armed)
    extra = [other.run(armed) - plain.run() for _ in range(rounds)]
    low, _, high = statistics.quantiles(extra, n=4)
    assert (plain.out.get() == other.out.get()).all(), "a recorded loop computed something else"
    return statistics.median(extra), (high - low) / 2


def facts(plan: TracePlan, threads: int) -> str:
    """Registers and CTAs per SM before and after."""
    rewritten = plan.rewritten
    before, after = rewritten.registers_before, rewritten.registers_after
    arch = Cubin.from_bytes(plan.data).arch
    fit = [occupancy(arch, count, threads, 0) for count in (before, after)]
    return f"registers {before}->{after}, CTAs/SM {fit[0]}->{fit[1]}"


def chain(path: Path, rounds: int) -> list[dict[str, Any]]:
    """The dependent-FMA loop and the issue-bound loop on every shape."""
    cubin = Cubin.from_file(path)
    rows: list[dict[str, Any]] = []
    ring = cupy.zeros(264 * 1024 * 32 * 2, cupy.uint32)
    for kernel in LOOPS:
        head = loop_head(cubin, kernel)
        running = accumulator(cubin, kernel, head)
        plans = {}
        for name, (clock, warp, value) in SITES.items():
            site = SassTraceSite(head, warp_level=warp, value_reg=running if value else None)
            plans[name] = plan_trace(cubin, kernel, [site], clock=clock, depth=32)
        for shape, size in SHAPES.items():
            plain = Loop(path, kernel, size, ring)
            base = plain.run()
            others = (
                []
                if kernel != "chain_plain"
                else [(f"by hand: {n}", path, f"chain_{n}") for n in HAND_WRITTEN]
            )
            others += [(f"gwatch: {name}", plan.data, kernel) for name, plan in plans.items()]
            for name, image, which in others:
                extra, spread = cost(plain, Loop(image, which, size, ring), rounds)
                rows.append(
                    {
                        "loop": kernel,
                        "shape": shape,
                        "base": base,
                        "recorder": name,
                        "cycles": extra,
                        "spread": spread,
                    }
                )
            extra, spread = cost(
                plain, Loop(plans["sm thread"].data, kernel, size, ring), rounds, armed=False
            )
            rows.append(
                {
                    "loop": kernel,
                    "shape": shape,
                    "base": base,
                    "recorder": "gwatch: unarmed",
                    "cycles": extra,
                    "spread": spread,
                }
            )
        rows.append({"loop": kernel, "facts": {name: facts(plan, 1024) for name, plan in plans.items()}})
    return rows


def copy_bandwidth(path: Path, rounds: int) -> dict[str, Any]:
    """GB/s (bytes read and written) of a 2 GiB copy, plain, recorded per thread and per warp at its loop head.

    The shape is the fastest plain one of those tried.
    """
    cubin = Cubin.from_file(path)
    elements = (1 << 31) // 16
    source, target = cupy.zeros(elements * 4, cupy.uint32), cupy.zeros(elements * 4, cupy.uint32)
    source[...] = cupy.arange(elements * 4, dtype=cupy.uint32)
    moved = 2 * elements * 16

    def rate(launcher: Launcher, grid: int, block: int) -> float:
        times = []
        for _ in range(rounds):
            target[...] = 0
            launcher.launch(grid, block, (source, target, np.int64(elements)))
            duration = launcher.duration_ms()
            assert duration is not None
            times.append(duration)
        assert bool((source == target).all()), "the copy is wrong"
        return moved / statistics.median(times) / 1e6

    best = (0.0, "", 0, 0, 1)
    for kernel, unroll in [(f"copy_{kind}{n}", n) for kind in ("", "streaming_") for n in (1, 2, 4, 8)]:
        with Launcher(path, kernel) as launcher:
            for block in (128, 256, 512, 1024):
                tiles = elements // (block * unroll)
                for grid in {132 * 2048 // block, 132 * 32768 // block, tiles // 4, tiles}:
                    if grid <= tiles:
                        trips = -(-tiles // grid)
                        best = max(best, (rate(launcher, grid, block), kernel, grid, block, trips))
    _, kernel, grid, block, trips = best
    head = loop_head(cubin, kernel)
    depth = min(16, 1 << (trips - 1).bit_length())
    found: dict[str, Any] = {"kernel": kernel, "grid": grid, "block": block, "trips": trips}
    with Launcher(path, kernel) as plain:
        found["plain"] = round(rate(plain, grid, block), 1)
    for name, warp in (("sm thread", False), ("sm warp", True)):
        site = SassTraceSite(head, warp_level=warp)
        plan = plan_trace(cubin, kernel, [site], clock="sm", depth=depth)
        with Launcher(plan.data, ring_bytes=1 << 31) as traced:
            found[name] = round(rate(traced, grid, block), 1)
    return found


def tensor_core_product(passes: int) -> dict[str, Any]:
    """TFLOP/s of a Triton fp16 product with and without a warp-level record in its main loop."""
    from gpu_checks.frameworks import triton_matmul

    from gwatch.cuda.xtrace import capture_kernel, do_trace

    size = 8192
    run = triton_matmul(size)
    run()
    definition = capture_kernel(run, "matmul_kernel")
    texts = [i.str(flatten=True) for i in definition.list_instructions]
    site = next(i for i, text in enumerate(texts) if "GMMA" in text or text.startswith("HMMA"))
    result = do_trace(
        fn=run,
        kernel_name_pattern="matmul_kernel",
        instrumentation_tier="sass",
        sass_trace_sites=[SassTraceSite(site, warp_level=True)],
        clock_type="sm",
        passes=passes,
    )
    launch = result["launches"][0]
    plain, slowdown = launch["slowdown"]["plain_ns"], launch["slowdown"]["median"]
    work = 2 * size**3
    return {
        "plain_TFLOPs": work / plain / 1e3,
        "traced_TFLOPs": work / (plain * slowdown) / 1e3,
        "slowdown": slowdown,
        "records": len(result["records"]),
        "dropped": result["dropped"],
        "registers": dict(result["registers"]),
        "occupancy": dict(result["occupancy"]),
        "site": texts[site][:60],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of one record on this GPU.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer launches for each figure")
    args = parser.parse_args()
    rounds = 5 if args.quick else 15
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cost.cubin"
        source = Path(__file__).with_name("cost.cu")
        subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-o", str(path), str(source)], check=True)
        found["loops"] = chain(path, rounds)
        if not args.json:
            print_loops(found["loops"])
        found["copy_GBps"] = copy_bandwidth(path, rounds)
        if not args.json:
            print("copy, GB/s:", found["copy_GBps"], flush=True)
    found["tensor_core"] = tensor_core_product(rounds)
    print(json.dumps(found) if args.json else f"tensor-core product: {found['tensor_core']}")
    return 0


def print_loops(rows: list[dict[str, Any]]) -> None:
    """The cycles per record, a line a recorder, a column a shape."""
    for kernel in LOOPS:
        mine = [row for row in rows if row["loop"] == kernel and "shape" in row]
        bases = {row["shape"]: row["base"] for row in mine}
        trips = ", ".join(f"{shape} {base:.0f}" for shape, base in bases.items())
        print(f"{kernel}: extra cycles per record (base trip: {trips})")
        for name in dict.fromkeys(row["recorder"] for row in mine):
            cells = [f"{row['cycles']:8.1f} ±{row['spread']:.1f}" for row in mine if row["recorder"] == name]
            print(f"  {name:28}" + "".join(f"{cell:>16}" for cell in cells))
        for name, text in next(
            row["facts"] for row in rows if row["loop"] == kernel and "facts" in row
        ).items():
            print(f"  {name}: {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
