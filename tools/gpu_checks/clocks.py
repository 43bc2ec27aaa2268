"""Times: the anchored cycle counter against the ns timer in the same record, on short and long kernels, across SMs."""

from __future__ import annotations

import cupy
import numpy as np

from gpu_checks.support import PROGRAM, Facts, check, trace
from gwatch.cuda.xtrace import SassTraceSite


def _against_the_timer(duration_ns: int, step: int, blocks: int, depth: int) -> Facts:
    out = cupy.zeros(blocks * 64, np.uint64)
    kernel = PROGRAM.kernel("spin_kernel")

    def run() -> None:
        kernel((blocks,), (64,), (out, np.uint64(duration_ns), np.int32(step)))
        cupy.cuda.Device().synchronize()

    site = PROGRAM.indices("spin_kernel", "spin")[0]
    result = trace(
        run,
        "spin_kernel",
        [SassTraceSite(site, special="ns:64", unconditional=True)],
        clock_type="anchor",
        sass_per_thread_records=depth,
    )
    records = result["records"]
    error = np.abs(records["time"] - records["value"].astype(np.int64))
    within = float((error <= 64).mean())
    assert len(records) > 0 and within >= 0.999, f"{within:.5f} within 64 ns, worst {error.max()}"
    return {
        "records": len(records),
        "max_ns": int(error.max()),
        "p999_ns": int(np.quantile(error, 0.999)),
        "within_64ns": round(within, 6),
    }


@check("clocks")
def anchor_on_a_5_us_kernel() -> Facts:
    return _against_the_timer(5_000, 100, 132, 64)


@check("clocks")
def anchor_on_a_200_ms_kernel() -> Facts:
    return _against_the_timer(200_000_000, 400_000, 132, 1024)


@check("clocks")
def anchor_on_many_waves() -> Facts:
    return _against_the_timer(20_000, 1_000, 132 * 40, 64)


@check("clocks")
def no_sm_leaves_a_grid_barrier_before_the_last_arrives() -> Facts:
    kernel = PROGRAM.module.get_function("barrier_kernel")
    flag = cupy.ndarray(1, np.uint32, PROGRAM.module.get_global("grid_flag"))
    rounds, out = 30, cupy.zeros(132 * 32, np.uint32)
    flag[...] = 0

    def run() -> None:
        kernel((132,), (32,), (out, np.int32(rounds)))
        cupy.cuda.Device().synchronize()

    arrive = PROGRAM.find("barrier_kernel", r"RED|ATOMG")[0][0]
    leave = PROGRAM.find("barrier_kernel", r"IMAD\.IADD|IADD3", "released")[0][0]
    sites = [SassTraceSite(arrive), SassTraceSite(leave, unconditional=True)]
    facts: Facts = {}
    for clock in ("gpu", "anchor"):
        records = trace(run, "barrier_kernel", sites, clock_type=clock, sass_per_thread_records=128)[
            "records"
        ]
        first_lane = records["thread"] == 0
        arrivals = records[(records["site"] == 0) & first_lane]
        leaves = records[(records["site"] == 1) & first_lane]
        rank = np.zeros(len(leaves), np.int64)
        order = np.lexsort((leaves["time"], leaves["block"][:, 0]))
        rank[order] = np.tile(np.arange(rounds), 132)
        order_in = np.lexsort((arrivals["time"], arrivals["block"][:, 0]))
        rank_in = np.zeros(len(arrivals), np.int64)
        rank_in[order_in] = np.tile(np.arange(rounds), 132)
        early = max(
            int(arrivals["time"][rank_in == r].max() - leaves["time"][rank == r].min()) for r in range(rounds)
        )
        spread = max(int(np.ptp(leaves["time"][rank == r])) for r in range(rounds))
        assert early <= 64, f"{clock}: an SM left {early} ns before the last arrived"
        facts[f"{clock}_spread_ns"] = spread
    return facts
