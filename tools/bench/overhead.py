#!/usr/bin/env python3
"""What tracing costs: slowdown and cost of a record for every workload of the torture, on the GPU at hand.

    python tools/bench/overhead.py [--pairs 50] [--only REGEX] [--json] [--frameworks]

Each kernel of tools/torturing/kernels.cu runs plain, traced and plain again by turns, timed with events; the second
plain run against the first is the control. One site stands where the kernel loops most (first instruction of the
innermost loop), once per thread and once per warp; ``unrolled``, a loop of some 6,000 instructions, also with 8 and 64
sites. ``--frameworks``: PyTorch's, Triton's and CuPy's kernels through ``do_trace``, which times by turns itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from torturing.cases import place_weights  # noqa: E402
from torturing.gpu import RING_BYTES, Device, Shape, Workload, compile_source  # noqa: E402

from gwatch.cuda.arming import PatchedKernel, Ring  # noqa: E402
from gwatch.cuda.driver import MAX_DYNAMIC_SHARED  # noqa: E402
from gwatch.cuda.launcher import ring_layout  # noqa: E402
from gwatch.cuda.xtrace.decode import decode_ring  # noqa: E402
from gwatch.errors import GWatchError, ToolError  # noqa: E402
from gwatch.rewrite import Rewriter  # noqa: E402
from gwatch.rewrite.trace import SassTraceSite, plan_trace  # noqa: E402

TRIPS = 400
GHZ = 1.98
"""Clock of the H200 under load."""


class Timer:
    """Launches timed with events."""

    def __init__(self, device: Device) -> None:
        self.device, self.gpu = device, device.driver
        self.events = (self.gpu.create_event(), self.gpu.create_event())

    def run(self, handle: int, shape: Shape) -> float:
        """Microseconds of one launch."""
        gpu = self.gpu
        values = (
            ctypes.c_uint64(self.device.source),
            ctypes.c_uint64(self.device.target),
            ctypes.c_int(TRIPS),
        )
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        gpu.record_event(self.events[0], 0)
        gpu.launch(
            handle,
            shape.grid,
            shape.block,
            ctypes.addressof(pointers),
            shared=shape.shared,
            cluster=shape.cluster,
            cooperative=shape.cooperative,
        )
        gpu.record_event(self.events[1], 0)
        gpu.synchronize()
        elapsed = gpu.elapsed_ms(*self.events)
        assert elapsed is not None
        return elapsed * 1e3


def hottest(workload: Workload, kernel: str, count: int) -> list[int]:
    """``count`` instructions, evenly spread over the most deeply nested ones."""
    around = Rewriter(workload.cubin, workload.cubin.get_kerneldef_by_name(kernel)).surroundings
    weights = place_weights(around.cfg, around.padding)
    inside = [index for index, weight in enumerate(weights) if weight == max(weights)]
    allowed = [index for index in inside if index not in around.collective] or inside
    return allowed[:: max(1, len(allowed) // count)][:count]


def measure(
    device: Device, workload: Workload, kernel: str, sites: list[SassTraceSite], pairs: int
) -> dict[str, Any]:
    """One kernel with the given sites."""
    shape = workload.shapes[kernel]
    gpu = device.driver
    plan = plan_trace(workload.cubin, kernel, sites, clock="sm")
    library = gpu.load_library(workload.cubin.data)
    patched = PatchedKernel(gpu, plan.data, plan.site_map)
    timer = Timer(device)
    try:
        plain = gpu.library_kernel(library, kernel)
        for handle in (plain, patched.kernel):
            if shape.shared > 48 << 10:
                gpu.set_kernel_attribute(handle, MAX_DYNAMIC_SHARED, shape.shared, 0)
        layout, chosen = ring_layout(plan.site_map, shape.grid, shape.block, RING_BYTES, None)
        ring = Ring(gpu, layout, chosen)
        try:
            ring.clear()
            patched.arm(ring)
            for handle in (plain, patched.kernel) * 3:
                timer.run(handle, shape)
            times = [
                (timer.run(plain, shape), timer.run(patched.kernel, shape), timer.run(plain, shape))
                for _ in range(pairs)
            ]
            ring.clear()
            timer.run(patched.kernel, shape)
            decoded = decode_ring(ring.read(), layout, plan.site_map)
        finally:
            patched.disarm()
            ring.free()
    finally:
        gpu.unload_library(patched.library)
        gpu.unload_library(library)
    base = statistics.median(row[0] for row in times)
    extra = statistics.median(row[1] - row[0] for row in times)
    control = statistics.median(row[2] - row[0] for row in times)
    lanes = decoded.visits[decoded.visits > 0]
    most = (
        int(decoded.visits.sum(axis=-1).max())
        if any(s.warp_level for s in sites)
        else int(lanes.max(initial=0))
    )
    return {
        "kernel": kernel,
        "sites": len(sites),
        "level": "warp" if sites[0].warp_level else "thread",
        "plain_us": round(base, 2),
        "slower_percent": round(100 * extra / base, 2),
        "control_percent": round(100 * control / base, 2),
        "records": int(decoded.visits.sum()),
        "records_of_busiest": most,
        "cycles_per_record": round(extra * 1e3 * GHZ / most, 1) if most else None,
        "registers": f"{plan.rewritten.registers_before} -> {plan.rewritten.registers_after}",
        "occupancy": f"{plan.rewritten.occupancy_before} -> {plan.rewritten.occupancy_after}",
    }


def kernels(device: Device, pairs: int, only: str) -> list[dict[str, Any]]:
    """All kernels of kernels.cu."""
    rows: list[dict[str, Any]] = []
    device.driver.write(
        device.source, np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, np.uint32).tobytes()
    )
    with tempfile.TemporaryDirectory() as name:
        source = (ROOT / "tools" / "torturing" / "kernels.cu").read_text()
        workload = compile_source("kernels", source, Path(name))
        for kernel in workload.shapes:
            if not re.search(only, kernel):
                continue
            for count in (1, 8, 64) if kernel == "unrolled" else (1,):
                for warp in (False, True):
                    try:
                        places = hottest(workload, kernel, count)
                        sites = [SassTraceSite(place, warp_level=warp) for place in places]
                        rows.append(measure(device, workload, kernel, sites, pairs))
                    except GWatchError as error:
                        rows.append({"kernel": kernel, "sites": count, "refused": str(error)})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def frameworks(pairs: int, only: str) -> list[dict[str, Any]]:
    """Kernels that frameworks launch, traced at their entry and where they loop most."""
    from torturing.frameworks import works

    from gwatch.cuda.xtrace import capture_cubin, do_trace

    rows: list[dict[str, Any]] = []
    for work in works():
        if not re.search(only, work.name):
            continue
        try:
            work.fn()
            cubin, kernel = capture_cubin(work.fn, work.pattern)
            place = hottest(Workload(work.name, cubin, {}), kernel.name, 1)
            result = do_trace(
                fn=work.fn,
                kernel_name_pattern=f"^{re.escape(kernel.name)}$",
                instrumentation_tier="sass",
                sass_trace_sites=[SassTraceSite(index, warp_level=True) for index in place],
                passes=max(3, pairs // 5),
            )
            rows.append(
                {"kernel": work.name, "records": len(result["records"]), "slowdown": result["slowdown"]}
            )
        except GWatchError as error:
            rows.append({"kernel": work.name, "refused": str(error)})
        print(json.dumps(rows[-1], default=str), file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| kernel | sites | plain µs | slower | control | cycles a record | registers | CTAs per SM |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if "refused" in row:
            lines.append(
                f"| {row['kernel']} | {row.get('sites', '')} | refused: {row['refused'][:80]} | | | | | |"
            )
        elif "slowdown" in row:
            lines.append(f"| {row['kernel']} | 1 per warp | | {row['slowdown']} | | | | |")
        else:
            lines.append(
                f"| {row['kernel']} | {row['sites']} per {row['level']} | {row['plain_us']} | "
                f"{row['slower_percent']} % | {row['control_percent']} % | {row['cycles_per_record']} | "
                f"{row['registers']} | {row['occupancy']} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=50, help="interleaved runs")
    parser.add_argument("--only", default="", metavar="REGEX", help="only kernels whose name matches")
    parser.add_argument("--frameworks", action="store_true", help="torch, Triton, CuPy instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    try:
        device = Device()
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2
    rows = frameworks(args.pairs, args.only) if args.frameworks else kernels(device, args.pairs, args.only)
    print(
        json.dumps({"gpu": device.driver.device_name(0), "rows": rows}, default=str)
        if args.json
        else table(rows)
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
