"""Made-up results of a trace: chained and nested phases, roles, drops; what should come out is known."""

from __future__ import annotations

from typing import Any

import numpy as np

RECORD = np.dtype([
    ("site", "<u2"), ("block", "<u4", (3,)), ("thread", "<u4"), ("warp", "<u4"), ("lane", "u1"),
    ("sequence", "<u4"), ("time", "<i8"), ("value", "<u8"), ("smid", "<u2")])


def _site(number: int, index: int, instruction: str, line: int) -> dict[str, Any]:
    return {"site_id": number, "index": index, "pc": index * 16, "instruction": instruction,
            "line": f"gemm.cu:{line}", "warp_level": True, "label": ""}


SITES = [
    _site(0, 12, "LDG.E.128 R4, desc[UR4][R2.64]", 21),
    _site(1, 40, "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR8], RZ", 24),
    _site(2, 77, "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24", 31),
    _site(3, 90, "WARPGROUP.DEPBAR.LE gsb0, 0x0", 33),
    _site(4, 120, "STG.E.128 desc[UR4][R8.64], R24", 40),
    _site(5, 131, "EXIT", 41),
]
REGIONS = [(0, 1, "load"), (2, 3, "math"), (4, 5, "store")]
ROLES = {"load": "Copy Warp", "math": "Math Warp", "store": "Math Warp"}


def specialised(blocks: int = 4, warps: int = 8, iterations: int = 12, keep: int | None = None,
                seed: int = 1, **overrides: Any) -> dict[str, Any]:
    """A warp-specialised kernel, warp-level records: warp 0 of a block loads, the others do math and store.

    ``keep``: newest records kept per warp (older ones are dropped, as a ring of that depth would).
    """
    rng = np.random.default_rng(seed)
    events: list[tuple[int, int, int, int]] = []
    for block in range(blocks):
        start = 1_000_000 + 64 * block
        ready = []
        t = start
        for _ in range(iterations):
            begin = t + int(rng.integers(10, 30))
            t = begin + int(rng.integers(180, 320))
            ready.append(t)
            events += [(block, 0, 0, begin), (block, 0, 1, t)]
        for warp in range(1, warps):
            t = start + 40
            for arrive in ready:
                begin = max(t, arrive) + int(rng.integers(4, 24))
                t = begin + int(rng.integers(120, 260))
                events += [(block, warp, 2, begin), (block, warp, 3, t)]
            begin = t + int(rng.integers(5, 40))
            t = begin + int(rng.integers(300, 500))
            events += [(block, warp, 4, begin), (block, warp, 5, t)]
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for block, warp, site, time in events:
        rows.setdefault((block, warp), []).append((site, time))
    return result_of(rows, (blocks, 1, 1), (warps * 32, 1, 1), keep, **overrides)


def result_of(rows: dict[tuple[int, int], list[tuple[int, int]]], grid: tuple[int, int, int],
              block: tuple[int, int, int], keep: int | None = None, **overrides: Any) -> dict[str, Any]:
    """A result whose warp rows (block, warp) recorded the given (site, time) pairs in that order, lane 0."""
    warps = -(-block[0] * block[1] * block[2] // 32)
    out = []
    dropped = 0
    for (b, w), events in rows.items():
        first = max(0, len(events) - keep) if keep else 0
        dropped += first
        for sequence, (site, time) in enumerate(events):
            if sequence >= first:
                out.append((site, (b % grid[0], b // grid[0] % grid[1], b // grid[0] // grid[1]), w * 32,
                            b * warps + w, 0, sequence, time, 0, b % 132))
    records = np.array(out, RECORD)
    np.random.default_rng(5).shuffle(records)
    result: dict[str, Any] = {
        "kernel_prototype": "_Z4gemmPKfS0_Pf",
        "compile_results": {
            "instrumentation_level": "sass", "clock_type": overrides.get("clock_type", "gpu"), "record_shape": "site",
            "record_granularity": "warp", "origin_reg_used [avg]": 168, "trace_reg_used [avg]": 168},
        "grid_dim": grid, "block_dim": block, "trace_results": [], "oe_results": {}, "records": records,
        "clock_type": "gpu", "sites": SITES, "outputs": "identical", "dropped": dropped, "warnings": [],
        "slowdown": {"median": 1.004, "low": 1.001, "high": 1.007, "noise": 0.003}, "cost_per_record": 12.2,
        "registers": {"before": 168, "after": 168}, "occupancy": {"before": 2, "after": 2},
        "launch": {"dynamic_shared": 65536, "stream": 0},
    }
    result.update(overrides)
    return result


def many(n_rows: int = 16384, per_row: int = 62, seed: int = 3) -> dict[str, Any]:
    """About a million thread-level records of three chained phases in a loop."""
    rng = np.random.default_rng(seed)
    n = n_rows * per_row
    thread = np.repeat(np.arange(n_rows), per_row)
    records = np.zeros(n, RECORD)
    records["thread"], records["block"][:, 0] = thread % 128, thread // 128
    records["warp"], records["lane"] = thread // 32, thread % 32
    records["sequence"] = np.tile(np.arange(per_row), n_rows)
    records["site"] = records["sequence"] % 3
    step = rng.integers(40, 400, (n_rows, per_row)).cumsum(axis=1) + rng.integers(0, 3000, n_rows)[:, None]
    records["time"] = 5_000_000_000 + step.reshape(-1)
    records["value"] = records["sequence"] // 3
    records["smid"] = (thread // 128) % 132
    result = result_of({}, (n_rows // 128, 1, 1), (128, 1, 1))
    result["compile_results"] = {**result["compile_results"], "record_granularity": "thread"}
    result |= {"records": records, "sites": [{**site, "warp_level": False} for site in SITES[:3]]}
    return result
