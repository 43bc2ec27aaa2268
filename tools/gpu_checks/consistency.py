"""A scope must take as long when other places are recorded too: its median with 2 sites and with 8."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from gpu_checks.matmul import TILE
from gpu_checks.support import MATMUL, Facts, check
from gwatch.common.format.run import run_of
from gwatch.cuda.program.roles import automatic
from gwatch.cuda.xtrace import SassTraceSite, do_trace

SM_SIZE = 176  # 11 x 11 CTAs: one on each SM, nobody beside it
STATED = 20.0
"""Cycles of a warp-level record by the README, where a trace itself cannot tell its cost from noise."""


def _scope(size: int, extra: list[int]) -> tuple[float, float | None]:
    """(median cycles of the inner product, cycles per record) of the traced product, with more sites."""
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
    return float(np.median(intervals.end - intervals.start)), result["cost_per_record"]


def _compare(size: int) -> Facts:
    kernel = MATMUL.cubin.get_kerneldef_by_name("matmul")
    labels = {str(site.label): site.insert_index for site in automatic(kernel).sites}
    head = labels["loop head 0"]
    outside = [labels["entry"], head, head + 4, labels["barrier 0"], labels["loop end 0"], labels["exit"]]
    few, cost_few = _scope(size, [])
    many, cost_many = _scope(size, outside)
    cost = max(cost_few or 0.0, cost_many or 0.0) or STATED
    assert abs(many - few) <= cost, f"{few} cycles with 2 sites, {many} with 8, a record is said to cost {cost:.1f}"
    return {"with_2": few, "with_8": many, "cost_per_record": round(cost, 1)}


@check("consistency")
def a_scope_alone_on_its_sm() -> Facts:
    return _compare(SM_SIZE)


@check("consistency")
def a_scope_on_a_full_gpu() -> Facts:
    return _compare(1024)
