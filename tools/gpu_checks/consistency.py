"""A scope must take as long when other places are recorded too: its median with 2 sites and with 8.

What is stated is what a record costs its warp. Records of a trip of the scope's loop, though outside the scope, can
cost it that: their stores are under way when it begins, and the warps beside it make them too. So the two medians may
differ by the cost of the records that each trip has more.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from gpu_checks.matmul import TILE
from gpu_checks.support import MATMUL, Facts, check
from gwatch.common.format.run import run_of
from gwatch.cuda.program.roles import automatic
from gwatch.cuda.xtrace import SassTraceSite, do_trace

TURNS = 7
"""Traces of either kind, by turns: the same trace taken again differs by up to 40 cycles on an SM left alone."""
SM_SIZE = 176  # 11 x 11 CTAs: one on each SM, nobody beside it
STATED = {2: 20.0, 16: 127.0}
"""Cycles of a warp-level record by the README's table, by the warps that share a scheduler."""


def _scope(size: int, extra: list[int]) -> float:
    """Median cycles of the inner product in the traced product, with more sites."""
    kernel = MATMUL.cubin.get_kerneldef_by_name("matmul")
    labels = {str(site.label): site.insert_index for site in automatic(kernel).sites}
    places = [labels["after barrier 0"], labels["barrier 1"], *extra]
    random = np.random.default_rng(1)
    a, b = (cupy.asarray(random.standard_normal((size, size), np.float32)) for _ in range(2))
    c, launched = cupy.zeros((size, size), np.float32), MATMUL.kernel("matmul")

    def run() -> Any:
        launched((size // TILE, size // TILE), (TILE, TILE), (a, b, c, np.int32(size)))
        cupy.cuda.Device().synchronize()
        return c

    result = do_trace(
        fn=run,
        kernel_name_pattern="^matmul$",
        instrumentation_tier="sass",
        sass_trace_sites=[SassTraceSite(place, warp_level=True) for place in places],
        sass_per_thread_records=1024,
        clock_type="sm",
        passes=5,
    )
    assert result["outputs"] == "identical" and result["dropped"] == 0, (result["outputs"], result["dropped"])
    intervals = run_of(result, [(0, 1, "inner product")]).intervals
    return float(np.median(intervals.end - intervals.start))


def _compare(size: int, warps: int) -> Facts:
    kernel = MATMUL.cubin.get_kerneldef_by_name("matmul")
    labels = {str(site.label): site.insert_index for site in automatic(kernel).sites}
    head = labels["loop head 0"]
    each_trip = [head, head + 4, labels["barrier 0"], labels["loop end 0"]]
    outside = [labels["entry"], *each_trip, labels["exit"]]
    _scope(1024, [])  # brings the clock up
    turns = [(_scope(size, []), _scope(size, outside)) for _ in range(TURNS)]
    few, many = (float(np.median(of_turns)) for of_turns in zip(*turns, strict=True))
    cost = STATED[warps] * len(each_trip)
    told = f"with 2 sites {[turn[0] for turn in turns]}, with 8 {[turn[1] for turn in turns]}"
    assert abs(many - few) <= cost, f"{told} cycles, {len(each_trip)} records a trip are said to cost {cost:.0f}"
    return {"with_2": few, "with_8": many, "stated_cost": cost}


@check("consistency")
def a_scope_alone_on_its_sm() -> Facts:
    return _compare(SM_SIZE, 2)


@check("consistency")
def a_scope_on_a_full_gpu() -> Facts:
    return _compare(1024, 16)
