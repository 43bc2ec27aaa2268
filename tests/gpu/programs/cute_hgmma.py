"""A warp-specialised Hopper product in CuTeDSL (TMA, wgmma, setmaxnreg) with scope markers on both tiers; prints what
it finds as JSON.

C = A * B^T, float16 with float accumulators: persistent CTAs of a producer warpgroup and two consumer warpgroups.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("CUTE_DSL_KEEP_PTX", "1")
os.environ.setdefault("CUTE_DSL_DUMP_DIR", tempfile.mkdtemp(prefix="gw-cute-ptx-"))

import gwatch.cuda.trace.cute as gw_trace
import gwatch.libpygwatch as pygwatch

if __name__ == "__main__":
    pygwatch.init_cupti_hooks()

import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import cpasync, warpgroup

TILE = (128, 256, 64)
STAGES, WARPGROUP, CONSUMER_WARPS = 4, 128, 8
THREADS = 3 * WARPGROUP
NAMES = {1: "wait for slot", 2: "issue loads", 3: "wait for data", 4: "multiply"}
ROLES = {
    "producer": ((0,), range(4)),
    "consumer": (range(4, 12), range(4, 8)),
}  # warps; sites, two a scope of NAMES
LAUNCHES, WARM = 14, 4
GROUP = 16  # row tiles that run together, so that they meet B's tiles in the L2 cache


@cute.struct
class Shared:
    """Barriers, then the tiles of all stages."""

    barriers: cute.struct.MemRange[cutlass.Int64, 2 * STAGES]
    a: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, TILE[0] * TILE[2] * STAGES], 1024]
    b: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, TILE[1] * TILE[2] * STAGES], 1024]


@cute.kernel
def hgmma_kernel(
    atom_a: cute.CopyAtom,
    tma_a: cute.Tensor,
    atom_b: cute.CopyAtom,
    tma_b: cute.Tensor,
    c: cute.Tensor,
    tiled_mma: cute.TiledMma,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    marked: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    first, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    storage = utils.SmemAllocator().allocate(Shared)
    shared_a = storage.a.get_tensor(layout_a.outer, swizzle=layout_a.inner)
    shared_b = storage.b.get_tensor(layout_b.outer, swizzle=layout_b.inner)
    bytes_a = cute.size_in_bytes(cutlass.Float16, cute.slice_(layout_a, (None, None, 0)))
    bytes_b = cute.size_in_bytes(cutlass.Float16, cute.slice_(layout_b, (None, None, 0)))
    slots = pipeline.PipelineTmaAsync.create(
        barrier_storage=storage.barriers.data_ptr(),
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMER_WARPS),
        tx_count=bytes_a + bytes_b,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    tiles_a = cute.local_tile(tma_a, (TILE[0], TILE[2]), (None, None))
    tiles_b = cute.local_tile(tma_b, (TILE[1], TILE[2]), (None, None))
    tiles_c = cute.local_tile(c, (TILE[0], TILE[1]), (None, None))
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        atom_a, 0, one, cute.group_modes(shared_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        atom_b, 0, one, cute.group_modes(shared_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    rows, columns = cute.size(tiles_c, mode=[2]), cute.size(tiles_c, mode=[3])
    steps = cute.size(tiles_a, mode=[3])

    if warp < WARPGROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
            for number in cutlass.range(first, rows * columns, ctas, unroll=1):
                row = number // (GROUP * columns) * GROUP + number % GROUP
                column = number % (GROUP * columns) // GROUP
                for step in cutlass.range(steps, unroll=1):
                    if cutlass.const_expr(marked):
                        gw_trace.scope_start(1)
                    slots.producer_acquire(state)
                    if cutlass.const_expr(marked):
                        gw_trace.scope_end(1)
                        gw_trace.scope_start(2)
                    ready = slots.producer_get_barrier(state)
                    cute.copy(atom_a, from_a[(None, row, step)], to_a[(None, state.index)], tma_bar_ptr=ready)
                    cute.copy(
                        atom_b, from_b[(None, column, step)], to_b[(None, state.index)], tma_bar_ptr=ready
                    )
                    slots.producer_commit(state)
                    if cutlass.const_expr(marked):
                        gw_trace.scope_end(2)
                    state.advance()
    else:
        cute.arch.setmaxregister_increase(232)
        mine = tiled_mma.get_slice(thread - WARPGROUP)
        part_a = tiled_mma.make_fragment_A(mine.partition_A(shared_a))
        part_b = tiled_mma.make_fragment_B(mine.partition_B(shared_b))
        total = cute.make_rmem_tensor(mine.partition_shape_C((TILE[0], TILE[1])), cutlass.Float32)
        rounded = cute.make_rmem_tensor(total.layout, cutlass.Float16)
        target = mine.partition_C(tiles_c)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for number in cutlass.range(first, rows * columns, ctas, unroll=1):
            row = number // (GROUP * columns) * GROUP + number % GROUP
            column = number % (GROUP * columns) // GROUP
            tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
            for step in cutlass.range(steps, unroll=1):
                if cutlass.const_expr(marked):
                    gw_trace.scope_start(3)
                slots.consumer_wait(state)
                if cutlass.const_expr(marked):
                    gw_trace.scope_end(3)
                    gw_trace.scope_start(4)
                warpgroup.fence()
                for part in cutlass.range_constexpr(TILE[2] // 16):
                    at = (None, None, part, state.index)
                    cute.gemm(tiled_mma, total, part_a[at], part_b[at], total)
                    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                if step > 0:
                    slots.consumer_release(before)
                    before.advance()
                if cutlass.const_expr(marked):
                    gw_trace.scope_end(4)
                state.advance()
            warpgroup.wait_group(0)
            slots.consumer_release(before)
            before.advance()
            rounded.store(total.load().to(cutlass.Float16))
            cute.autovec_copy(rounded, target[(None, None, None, row, column)])


@cute.jit
def hgmma(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, ctas: cutlass.Constexpr, marked: cutlass.Constexpr):
    row_major = utils.LayoutEnum.ROW_MAJOR
    k_major = warpgroup.OperandMajorMode.K
    tiled_mma = hopper.make_trivial_tiled_mma(
        cutlass.Float16, cutlass.Float16, k_major, k_major, cutlass.Float32, (2, 1, 1), (64, TILE[1])
    )
    layout_a = hopper.make_smem_layout_a(row_major, TILE, cutlass.Float16, STAGES)
    layout_b = hopper.make_smem_layout_b(row_major, TILE, cutlass.Float16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    atom_a, tma_a = cpasync.make_tiled_tma_atom(
        load, a, cute.slice_(layout_a, (None, None, 0)), (TILE[0], TILE[2])
    )
    atom_b, tma_b = cpasync.make_tiled_tma_atom(
        load, b, cute.slice_(layout_b, (None, None, 0)), (TILE[1], TILE[2])
    )
    hgmma_kernel(atom_a, tma_a, atom_b, tma_b, c, tiled_mma, layout_a, layout_b, marked).launch(
        grid=(ctas, 1, 1), block=(THREADS, 1, 1)
    )


def main() -> dict[str, Any]:
    """Counts and cost at one size; a multiple of 16 row tiles."""
    import numpy as np
    import torch
    from cutlass.cute.runtime import from_dlpack

    from gwatch.cuda.trace import do_trace

    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
    from gpu_checks.pairs import against, interleave

    m, n, k = 8192, 8192, 4096
    torch.manual_seed(1)
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) / 8 for rows in (m, n))
    c = torch.zeros(m, n, device="cuda", dtype=torch.float16)
    tiles, ctas = m // TILE[0] * (n // TILE[1]), torch.cuda.get_device_properties(0).multi_processor_count
    tensors = [from_dlpack(tensor, assumed_align=16) for tensor in (a, b, c)]
    compiled = {marked: cute.compile(hgmma, *tensors, ctas, marked) for marked in (False, True)}

    def run(marked: bool) -> None:
        compiled[marked](*tensors)

    def timed(marked: bool) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(marked)
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)

    run(False)
    plain = c.clone()
    assert torch.allclose(plain, a @ b.T, rtol=2e-2, atol=0.1), "the unmarked product is wrong"
    facts: dict[str, Any] = {}
    for tier in ("sass", "ptx"):
        c.zero_()
        result = do_trace(
            fn=lambda: [run(True) for _ in range(LAUNCHES)] and None,
            kernel_name_pattern=r"hgmma_kernel",
            dsl="cute",
            scope_name_map=NAMES,
            instrumentation_tier=tier,
            warp_level=True,
            clock_type="sm",
            sass_per_thread_records=64,
            passes=25,
            output_bytes=1 << 27,
        )
        torch.cuda.synchronize()
        assert torch.equal(c, plain), f"{tier}: outputs differ from the unmarked kernel's"
        per_warp = np.asarray(result["visits"]).sum(axis=2)
        # Sites that share a record count once where it is lost.
        sharing = [site["site_id"] for site in result["sites"] if "shared_with" in site]
        shared = result["records"][np.isin(result["records"]["site"], sharing)]
        np.subtract.at(per_warp, (shared["block"][:, 0], shared["warp"]), 1)
        wanted = np.zeros_like(per_warp)
        for warps, sites in ROLES.values():
            for cta in range(ctas):
                steps = k // TILE[2] * -(-(tiles - cta) // ctas)
                wanted[cta, list(warps)] = steps * len(set(sites) - set(sharing))
        assert (per_warp == wanted).all(), f"{tier}: {per_warp[0].tolist()} records, not {wanted[0].tolist()}"
        # The first launches of a pass meet a GPU that has cooled down meanwhile.
        slower = [launch["slowdown"]["median"] for launch in result["launches"][WARM:]]
        facts[tier] = {
            "slower": statistics.fmean(slower),
            "of_launches": [min(slower), max(slower)],
            "pairs": 25 * len(slower),
            "registers": result["registers"],
            "records_a_step": {role: len(set(sites) - set(sharing)) for role, (_, sites) in ROLES.items()},
        }
    times = interleave(
        {
            "unmarked": lambda: timed(False),
            "unmarked again": lambda: timed(False),
            "marked": lambda: timed(True),
        },
        60,
    )
    facts["TFLOPs"] = round(2 * m * n * k / sorted(times["unmarked"])[30] / 1e9, 1)
    facts["a_a"] = str(against(times, "unmarked", "unmarked again"))
    facts["marked_untraced"] = str(against(times, "unmarked", "marked"))
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(), default=str) + "\n")
