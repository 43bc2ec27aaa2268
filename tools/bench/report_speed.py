#!/usr/bin/env python3
"""How fast a trace is told: records to columns, analysis, JSON, page, text. Needs no GPU.

python tools/bench/report_speed.py [--records 1000000] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gwatch.cli.main import main as gwatch
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.cuda.xtrace.columns import ring_columns
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.cuda.xtrace.records import RECORD_DTYPE
from gwatch.rewrite.ring import CANARY, HEADER_DTYPE, RecordKind, RingFormat, RingLayout
from gwatch.rewrite.sitemap import MappedSite, SiteMap

PER_ROW = 62
REGIONS = [(0, 1, "load"), (1, 2, "math"), (2, 0, "store")]


def made_up(records: int) -> dict[str, Any]:
    """Thread-level records of three chained phases in a loop, in ring order."""
    rng = np.random.default_rng(1)
    rows = max(128, records // PER_ROW // 128 * 128)
    thread = np.repeat(np.arange(rows), PER_ROW)
    r = np.zeros(rows * PER_ROW, RECORD_DTYPE)
    r["thread"], r["block"][:, 0], r["warp"], r["lane"] = (
        thread % 128,
        thread // 128,
        thread % 128 // 32,
        thread % 32,
    )
    r["sequence"] = np.tile(np.arange(PER_ROW), rows)
    r["site"], r["smid"] = r["sequence"] % 3, thread // 128 % 132
    steps = rng.integers(40, 400, (rows, PER_ROW)).cumsum(axis=1) + rng.integers(0, 3000, rows)[:, None]
    r["time"] = 1_700_000_000_000_000_000 + steps.reshape(-1)
    return {
        "kernel_prototype": "bench",
        "grid_dim": (rows // 128, 1, 1),
        "block_dim": (128, 1, 1),
        "compile_results": {},
        "records": r,
        "dropped": 0,
        "outputs": "identical",
        "slowdown": {"median": 1.0, "noise": 0.0},
    }


def ring(records: int, ragged: bool = False) -> tuple[Any, RingLayout, SiteMap]:
    """A full ring of thread-level records, its layout and its site map; ``ragged``: every fourth lane of every third
    warp made five records fewer than the ring holds."""
    fmt = RingFormat(RecordKind.NARROW, 32)
    sites = tuple(
        MappedSite(i, 10 * i, 160 * i, 320 * i, "NOP", None, None, "none", False, False, False)
        for i in range(2)
    )
    site_map = SiteMap("bench", "90a", "gpu", fmt, "gwatch_ring_bench", 0, sites, 16, 24, False)
    ctas = max(1, records // (1024 * fmt.depth))
    layout = RingLayout(fmt, (ctas, 1, 1), (1024, 1, 1), ctas)
    data = np.zeros(layout.data_bytes, np.uint8)
    slots = data[: layout.ring_bytes].view(fmt.dtype).reshape(layout.warps, fmt.depth, 32)
    number = np.arange(fmt.depth, dtype=np.uint32)
    slots["tag"] = ((number << fmt.sequence_shift) | (number % 2 + 1))[None, :, None]
    slots["time"] = (1000 + number * 50)[None, :, None]
    if ragged:
        slots[::3, -5:, ::4] = 0
    headers = data[layout.ring_bytes :].view(HEADER_DTYPE)
    headers["canary"], headers["lanes"], headers["ns_in"] = CANARY, 0xFFFFFFFF, 900
    headers["cta"] = np.arange(layout.warps) // layout.warps_per_cta
    return data, layout, site_map


def ring_rates(records: int, rounds: int = 8) -> dict[str, float]:
    """Millions of records per CPU second: ring bytes to columns, and to the structured records."""
    even, ragged = ring(records), ring(records, ragged=True)
    rates = {}
    for name, read, (data, layout, site_map) in (
        ("columns", ring_columns, even),
        ("columns_ragged", ring_columns, ragged),
        ("records", decode_ring, even),
    ):
        best = 0.0
        for _ in range(rounds):
            begin = time.process_time()
            found = read(data, layout, site_map, 1e6)
            count = len(getattr(found, "records", found))
            best = max(best, count / (time.process_time() - begin) / 1e6)
        rates[f"ring_{name}_M_per_s"] = best
    return rates


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    value = call()
    return time.perf_counter() - begin, value


def measure(records: int) -> dict[str, float]:
    """Seconds per step, and bytes per record of both files."""
    result = made_up(records)
    n = len(result["records"])
    section, file = Section_IntraKernelTrace(), File("bench")
    out: dict[str, float] = {"records": n}
    out["columns_s"], run = timed(lambda: section.add_run(result, REGIONS))
    out["analysis_s"], _ = timed(lambda: run.analysis)
    out["regions"] = len(run.intervals)
    file.add_section(section)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("json", "html"):
            path = Path(folder) / f"trace.{name}"
            out[f"{name}_s"], _ = timed(lambda path=path: file.render(path))  # type: ignore[misc]
            out[f"{name}_bytes_per_record"] = path.stat().st_size / n
        path = Path(folder) / "trace.json"
        out["load_s"], _ = timed(lambda: File.load(path))
        with contextlib.redirect_stdout(io.StringIO()):
            out["show_s"], _ = timed(lambda: gwatch(["show", str(path)]))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.records) | ring_rates(args.records)
    if args.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:14,.3f}")


if __name__ == "__main__":
    main()
