"""Recorded registers equal what the host computes."""

from __future__ import annotations

import re

import cupy
import numpy as np

from gpu_checks.support import PROGRAM, Facts, check, global_threads, same, trace
from gwatch.cuda.xtrace import SassTraceSite

BLOCKS, THREADS = 40, 96


class Trips:
    """Thread t makes trips[t] loop trips over a table."""

    def __init__(self, blocks: int = BLOCKS, threads: int = THREADS, most: int = 50) -> None:
        self.grid, self.block, self.count = blocks, threads, blocks * threads
        self.trips = cupy.asarray(np.random.default_rng(2).integers(0, most, self.count).astype(np.int32))
        self.table = cupy.asarray(np.arange(1024, dtype=np.uint32) * np.uint32(2654435761))
        self.out = cupy.zeros(self.count, np.uint32)
        self.kernel = PROGRAM.kernel("trips_kernel")

    def __call__(self) -> cupy.ndarray:
        self.kernel((self.grid,), (self.block,), (self.trips, self.table, self.out))
        cupy.cuda.Device().synchronize()
        return self.out

    def expected(self) -> np.ndarray:
        table, trips = self.table.get(), self.trips.get()
        t = np.arange(self.count, dtype=np.uint32)
        total = t.copy()
        for i in range(int(trips.max(initial=0))):
            v = table[(i * 37 + t) & 1023]
            total = np.where(i < trips, total * np.uint32(1664525) + v, total)
        return total


@check("values")
def a_loads_64_bit_address_and_each_visit() -> Facts:
    work = Trips()
    site, match = PROGRAM.find("trips_kernel", r"LDG.*\[R(\d+)\.64(?:\+(0x[0-9a-f]+))?\]", "load")[0]
    result = trace(
        work,
        "trips_kernel",
        [SassTraceSite(site, value_reg=int(match[1]), value_width_bits=64)],
        sass_per_thread_records=64,
    )
    same("trips output", work.expected(), work.out.get())
    records = result["records"]
    t = global_threads(records, THREADS)
    visits = records["sequence"].astype(np.int64)
    expected = work.table.data.ptr + 4 * ((visits * 37 + t) & 1023) - int(match[2] or "0", 16)
    same("address", records["value"].astype(np.int64), expected)
    same("visits", np.bincount(t, minlength=work.count), work.trips.get().astype(np.int64))
    assert result["dropped"] == 0
    return {"records": len(records)}


@check("values")
def drops_are_counted_per_thread() -> Facts:
    work = Trips()
    site = PROGRAM.find("trips_kernel", r"LDG", "load")[0][0]
    facts: Facts = {}
    for keep in ("newest", "first"):
        result = trace(work, "trips_kernel", [SassTraceSite(site)], sass_per_thread_records=16, keep=keep)
        trips = work.trips.get().astype(np.int64)
        records = result["records"]
        t = global_threads(records, THREADS)
        same(f"records kept ({keep})", np.bincount(t, minlength=work.count), np.minimum(trips, 16))
        assert result["dropped"] == int(np.maximum(trips - 16, 0).sum()), (keep, result["dropped"])
        first = np.where(keep == "first", 0, np.maximum(trips - 16, 0))
        low = np.full(work.count, 1 << 30)
        np.minimum.at(low, t, records["sequence"].astype(np.int64))
        same(f"first kept ({keep})", low[trips > 0], first[trips > 0])
        facts[keep] = result["dropped"]
    return facts


def loop_counter() -> tuple[int, re.Match[str]]:
    """(index, match) of the instruction that steps the trip counter; a group of the match is its register."""
    step = r"IADD3 R(\d+), R\1, 0x1, RZ|IMAD\.IADD R(\d+), R\2, 0x1, RZ|VIADD R(\d+), R\3, 0x1"
    found = PROGRAM.find("trips_kernel", step)
    assert len(found) == 1, f"the loop counter was not recognised: {len(found)} candidates"
    return found[0]


@check("values")
def loop_counter_in_a_register() -> Facts:
    work = Trips()
    site, match = loop_counter()
    register = int(next(group for group in match.groups() if group))
    records = trace(
        work, "trips_kernel", [SassTraceSite(site, value_reg=register)], sass_per_thread_records=64
    )["records"]
    same("loop counter", records["value"], records["sequence"].astype(np.uint64))
    assert len(records) == int(work.trips.get().sum())
    return {"records": len(records)}


@check("values")
def thread_index_at_the_store() -> Facts:
    work = Trips()
    site, match = PROGRAM.find("trips_kernel", r"STG.*\[R(\d+)\.64\], R(\d+)", "store")[0]
    sites = [
        SassTraceSite(site, value_reg=int(match[1]), value_width_bits=64),
        SassTraceSite(site, value_reg=int(match[2])),
    ]
    records = trace(work, "trips_kernel", sites)["records"]
    address, value = records[records["site"] == 0], records[records["site"] == 1]
    same(
        "thread index",
        (address["value"].astype(np.int64) - work.out.data.ptr) // 4,
        global_threads(address, THREADS),
    )
    same("stored value", value["value"].astype(np.uint32), work.expected()[global_threads(value, THREADS)])
    return {"records": len(records)}


@check("values")
def a_load_result_right_after_the_load() -> Facts:
    # The site sits on the instruction after the load, before anything waits for it: the snippet must wait by itself.
    work = Trips()
    site, match = PROGRAM.find("trips_kernel", r"LDG\S* R(\d+),", "load")[0]
    result = trace(
        work, "trips_kernel", [SassTraceSite(site + 1, value_reg=int(match[1]))], sass_per_thread_records=64
    )
    records = result["records"]
    t = global_threads(records, THREADS)
    table = work.table.get()
    same(
        "loaded value",
        records["value"].astype(np.uint32),
        table[(records["sequence"].astype(np.int64) * 37 + t) & 1023],
    )
    same("trips output", work.expected(), work.out.get())
    return {"records": len(records)}


@check("values")
def sm_id() -> Facts:
    kernel = cupy.RawKernel(
        r"""
extern "C" __global__ void where_am_i(unsigned *out) {
    unsigned id; asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    out[blockIdx.x * blockDim.x + threadIdx.x] = id;
}""",
        "where_am_i",
    )
    out = cupy.zeros(300 * 64, np.uint32)

    def run() -> cupy.ndarray:
        kernel((300,), (64,), (out,))
        cupy.cuda.Device().synchronize()
        return out

    result = trace(run, "where_am_i", [SassTraceSite(3, value_is_smid=True)])
    records = result["records"]
    same("SM id", records["value"].astype(np.uint32), out.get()[global_threads(records, 64)])
    same("smid column", records["smid"].astype(np.uint32), records["value"].astype(np.uint32))
    assert len(records) == 300 * 64
    return {"sms": len(np.unique(records["smid"]))}


@check("values")
def every_instruction_of_a_kernel_can_be_a_site() -> Facts:
    # Each instruction in turn, ten sites a run: the output stays what it was and nothing is dropped.
    work = Trips(blocks=4)
    expected = work.expected()
    definition = PROGRAM.cubin.get_kerneldef_by_name("trips_kernel")
    texts = [i.str(flatten=True) for i in definition.list_instructions]
    last = max(i for i, text in enumerate(texts) if re.search(r"\bEXIT\b", text))
    total = 0
    for start in range(0, last + 1, 10):
        sites = [SassTraceSite(i, unconditional=True) for i in range(start, min(start + 10, last + 1))]
        result = trace(work, "trips_kernel", sites, sass_per_thread_records=1024)
        same(f"output with sites {start}…", expected, work.out.get())
        assert result["dropped"] == 0
        total += len(result["records"])
    return {"sites": last + 1, "records": total}
