"""Kernels with module state: a traced launch must see, and change, the program's own variables."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from gpu_checks.support import PROGRAM, Facts, check, same, trace
from gwatch.cuda.xtrace import SassTraceSite


def _global(module: Any, name: str, count: int) -> cupy.ndarray:
    return cupy.ndarray(count, np.uint32, module.get_global(name))


@check("state")
def a_constant_the_host_sets_before_each_launch() -> Facts:
    module = PROGRAM.module
    kernel, constant = module.get_function("constant_kernel"), _global(module, "host_constant", 4)
    out = cupy.zeros(4 * 64, np.uint32)
    seen: list[np.ndarray] = []
    turn = [0]

    def run() -> cupy.ndarray:
        turn[0] += 1
        constant[...] = cupy.asarray(np.arange(4, dtype=np.uint32) * 1000 + turn[0])
        kernel((4,), (64,), (out,))
        cupy.cuda.Device().synchronize()
        seen.append(out.get())
        return out

    site = PROGRAM.find("constant_kernel", r"STG", "constant")[0][0]
    result = trace(run, "constant_kernel", [SassTraceSite(site)], passes=2)
    t = np.arange(4 * 64, dtype=np.uint32)
    for number, values in enumerate(seen, 1):
        same(f"pass {number}", values, (t & 3) * 1000 + number + t)
    assert len(result["records"]) == 4 * 64
    return {"passes": len(seen)}


@check("state")
def a_counter_two_kernels_share() -> Facts:
    module = PROGRAM.module
    up, read = module.get_function("count_up_kernel"), module.get_function("count_read_kernel")
    counter = _global(module, "shared_counter", 1)
    out, total = cupy.zeros(3 * 64, np.uint32), cupy.zeros(1, np.uint32)
    seen: list[int] = []

    def run() -> None:
        up((3,), (64,), (out,))
        read((1,), (32,), (total,))
        cupy.cuda.Device().synchronize()
        seen.append(int(total.get()[0]))

    counter[...] = 0
    site = PROGRAM.find("count_up_kernel", r"ATOM|RED", "countup")[0][0]
    result = trace(run, "count_up_kernel", [SassTraceSite(site, unconditional=True)], passes=2)
    assert seen == [192 * (i + 1) for i in range(len(seen))], seen
    assert len(result["records"]) > 0
    return {"seen": seen}


@check("state")
def a_grid_barrier_on_a_flag() -> Facts:
    kernel = PROGRAM.module.get_function("barrier_kernel")
    flag = _global(PROGRAM.module, "grid_flag", 1)
    rounds, out = 20, cupy.zeros(132 * 64, np.uint32)
    flag[...] = 0

    def run() -> cupy.ndarray:
        kernel((132,), (64,), (out, np.int32(rounds)))
        cupy.cuda.Device().synchronize()
        return out

    site = PROGRAM.find("barrier_kernel", r"IMAD\.IADD|IADD3", "released")[0][0]
    result = trace(run, "barrier_kernel", [SassTraceSite(site, unconditional=True)], passes=2)
    same("barrier output", out.get(), np.full(132 * 64, sum(range(rounds)), np.uint32))
    assert len(result["records"]) == 132 * 64 * rounds
    assert int(flag.get()[0]) == 0
    return {"records": len(result["records"])}


@check("state")
def a_kernel_that_works_in_place_says_so() -> Facts:
    data = cupy.zeros(256, np.uint32)
    kernel = PROGRAM.kernel("in_place_kernel")

    def run() -> cupy.ndarray:
        kernel((4,), (64,), (data,))
        cupy.cuda.Device().synchronize()
        return data

    site = PROGRAM.find("in_place_kernel", r"STG", "inplace")[0][0]
    result = trace(run, "in_place_kernel", [SassTraceSite(site)], passes=2)
    assert result["outputs"] == "nondeterministic" or str(result["outputs"]).startswith("nondeterministic"), (
        result["outputs"]
    )
    value, launches = 0, int(np.log(float(data.get()[0]) * 2 + 1) / np.log(3) + 0.5)
    for _ in range(launches):
        value = value * 3 + 1
    assert int(data.get()[0]) == value, "a launch was lost or done twice"
    return {"launches": launches}
