"""Divergence, partial warps, guards, odd grids, several launches: a record for every visit and for nothing else."""

from __future__ import annotations

import cupy
import numpy as np

from gpu_checks.support import PROGRAM, Facts, check, global_threads, same, trace
from gwatch.cuda.xtrace import SassTraceSite

ROUNDS = 12


def _divergent(blocks: int, threads: int, warp_level: bool) -> Facts:
    out = cupy.zeros(blocks * threads, np.uint32)
    kernel = PROGRAM.kernel("divergent_kernel")

    def run() -> cupy.ndarray:
        kernel((blocks,), (threads,), (out, np.int32(ROUNDS)))
        cupy.cuda.Device().synchronize()
        return out

    plain = run().get()
    # The instruction that each path's asm became: add, xor, subtract (predicated where the compiler merged paths).
    wanted = {"path0": r"IADD3 R\d+, R\d+, UR", "path1": r"LOP3.LUT .*0x3c", "path2": r"IADD3 R\d+, -R"}
    sites = [
        SassTraceSite(
            PROGRAM.find("divergent_kernel", pattern, mark)[0][0], special="activemask", warp_level=warp_level
        )
        for mark, pattern in wanted.items()
    ]
    result = trace(run, "divergent_kernel", sites, sass_per_thread_records=64)
    same("divergent output", plain, out.get())
    records = result["records"]
    assert result["dropped"] == 0
    warps = -(-threads // 32)
    size = np.array([min(32, threads - 32 * w) for w in range(warps)])
    # Over a warp's whole run every lane takes ROUNDS trips; each trip takes exactly one path. What a lane visits on a
    # path is known; the masks recorded there must account for exactly these visits.
    t = np.arange(blocks * threads)
    visits = np.stack([sum((t * 7 + i) % 3 == path for i in range(ROUNDS)) for path in range(3)])
    masks = records["value"].astype(np.uint64)
    warp = records["block"][:, 0].astype(np.int64) * warps + records["warp"]
    for path in range(3):
        chosen = records["site"] == path
        seen = np.zeros((blocks * warps, 32), np.int64)
        for lane in range(32):
            has = ((masks[chosen] >> np.uint64(lane)) & np.uint64(1)).astype(np.int64)
            if not warp_level:
                # Per thread: each lane's own records tell its visits; its own bit is set in each of its masks.
                own = records["lane"][chosen] == lane
                assert (has[own] == 1).all(), f"path {path}: a lane is missing from its own mask"
                np.add.at(seen[:, lane], warp[chosen][own], 1)
            else:
                np.add.at(seen[:, lane], warp[chosen], has)
        expected = np.zeros((blocks * warps, 32), np.int64)
        for b in range(blocks):
            for w in range(warps):
                lanes = b * threads + w * 32 + np.arange(size[w])
                expected[b * warps + w, : size[w]] = visits[path, lanes]
        same(f"visits of path {path}", seen, expected)
    if warp_level:
        leaders = records["lane"].astype(np.uint64)
        assert (((masks >> leaders) & np.uint64(1)) == 1).all(), "a record by a lane that was not active"
    return {"records": len(records)}


@check("records")
def divergent_paths_per_thread() -> Facts:
    return _divergent(9, 80, warp_level=False)


@check("records")
def divergent_paths_per_warp() -> Facts:
    return _divergent(9, 80, warp_level=True)


@check("records")
def reconvergence_point() -> Facts:
    out = cupy.zeros(5 * 64, np.uint32)
    kernel = PROGRAM.kernel("divergent_kernel")

    def run() -> cupy.ndarray:
        kernel((5,), (64,), (out, np.int32(ROUNDS)))
        cupy.cuda.Device().synchronize()
        return out

    site = PROGRAM.indices("divergent_kernel", "joined")[0]
    records = trace(
        run, "divergent_kernel", [SassTraceSite(site, unconditional=True)], sass_per_thread_records=64
    )["records"]
    counts = np.bincount(global_threads(records, 64), minlength=5 * 64)
    assert counts.min() == counts.max() and counts.min() in (ROUNDS, 1), counts
    return {"per_thread": int(counts[0])}


@check("records")
def early_exits_partial_warps_and_guards() -> Facts:
    blocks, threads, limit = 3, 100, 250
    out = cupy.zeros(blocks * threads, np.uint32)
    kernel = PROGRAM.kernel("ragged_kernel")

    def run() -> cupy.ndarray:
        kernel((blocks,), (threads,), (out, np.int32(limit)))
        cupy.cuda.Device().synchronize()
        return out

    site = PROGRAM.find("ragged_kernel", r"STG", "guarded")[0][0]
    t = np.arange(blocks * threads)
    expected = np.where((t < limit) & (t % 3 == 0), t.astype(np.uint32) * np.uint32(2654435761), np.uint32(0))
    records = trace(run, "ragged_kernel", [SassTraceSite(site), SassTraceSite(0)])["records"]
    same("ragged output", expected, out.get())
    at_store = global_threads(records[records["site"] == 0], threads)
    same("threads at the guarded store", np.sort(at_store), t[(t < limit) & (t % 3 == 0)])
    same(
        "threads at the first instruction", np.sort(global_threads(records[records["site"] == 1], threads)), t
    )
    leaders = trace(run, "ragged_kernel", [SassTraceSite(0, warp_level=True)])["records"]
    assert len(leaders) == blocks * 4
    return {"stores": len(at_store)}


@check("records")
def solid_grids_and_dynamic_shared_memory() -> Facts:
    grid, block = (3, 4, 5), (5, 3, 4)
    size = int(np.prod(block))
    out = cupy.zeros(int(np.prod(grid)) * size, np.uint32)
    kernel = PROGRAM.kernel("solid_kernel")

    def run() -> cupy.ndarray:
        kernel(grid, block, (out,), shared_mem=4 * size)
        cupy.cuda.Device().synchronize()
        return out

    site, match = PROGRAM.find("solid_kernel", r"STG.*\[R(\d+)\.64\]", "solid")[0]
    result = trace(run, "solid_kernel", [SassTraceSite(site, value_reg=int(match[1]), value_width_bits=64)])
    records = result["records"]
    linear = records["block"][:, 0] + grid[0] * (
        records["block"][:, 1] + grid[1] * records["block"][:, 2].astype(np.int64)
    )
    same(
        "block and thread",
        (records["value"].astype(np.int64) - out.data.ptr) // 4,
        linear * size + records["thread"],
    )
    assert len(records) == out.size and result["grid_dim"] == grid and result["block_dim"] == block
    local = (np.arange(out.size) % size + 1) % size
    same("solid output", out.get(), (local * 3 + np.arange(out.size) // size).astype(np.uint32))
    return {"records": len(records)}


@check("records")
def two_launches_and_two_streams() -> Facts:
    out = [cupy.zeros(6 * 64, np.uint32) for _ in range(4)]
    kernel = PROGRAM.kernel("divergent_kernel")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def run() -> list[cupy.ndarray]:
        kernel((6,), (64,), (out[0], np.int32(3)))
        kernel((6,), (64,), (out[1], np.int32(5)))
        for number, stream in enumerate(streams):
            with stream:
                kernel((6,), (64,), (out[2 + number], np.int32(7 + number)))
        cupy.cuda.Device().synchronize()
        return out

    site = PROGRAM.find("divergent_kernel", r"STG")[-1][0]
    body = PROGRAM.indices("divergent_kernel", "joined")[0]
    result = trace(run, "divergent_kernel", [SassTraceSite(site), SassTraceSite(body, unconditional=True)])
    launches = result["launches"]
    assert len(launches) == 4, f"{len(launches)} launches kept apart instead of 4"
    for launch in launches:
        stores = launch["records"][launch["records"]["site"] == 0]
        same("threads of a launch", np.sort(global_threads(stores, 64)), np.arange(6 * 64))
    trips = [int((launch["records"]["site"] == 1).sum()) // (6 * 64) for launch in launches]
    assert trips[0] < trips[1] < trips[2] < trips[3] or len(set(trips)) == 1, trips
    return {"launches": len(launches), "trips": trips}
