"""Jump tables, recursion, calls through pointers, functions of the driver: outputs to the bit, a record per visit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from gpu_checks.support import ROOT, Facts, Program, check, global_threads, same, stage, trace
from gwatch.cuda.xtrace import SassTraceSite

CONTROL = Program(ROOT / "tests/gpu/kernels/control.cu")
BLOCKS, THREADS = 5, 96
T = np.arange(BLOCKS * THREADS)
OPS = (np.arange(64) * 37 + 11) % 12
DEPTH = 256
LIMIT = 15.0


def _marked(kernel: str, number: int) -> list[int]:
    """Indices of the instructions that hold the constant of a path."""
    return [index for index, _ in CONTROL.find(kernel, rf"LOP3\.LUT R\d+, .*0x{number:x}\b")]


def _block_start(kernel: str, index: int) -> int:
    definition = CONTROL.cubin.get_kerneldef_by_name(kernel)
    definition.parse_cfg()
    assert definition.cfg is not None
    block = definition.cfg.get_basic_block_by_pc(16 * index)
    assert block is not None
    return int(block.base_pc) // 16


def _check(
    kernel: str,
    arguments: Callable[[cupy.ndarray], tuple[Any, ...]],
    visits: dict[int, np.ndarray],
    **options: Any,
) -> Facts:
    """Trace ``kernel`` at the marked instruction of each path and at the first of its block, per thread and per warp.

    ``visits``: constant of a path -> how often each thread takes it.
    """
    stage(f"{kernel}: compiled and loaded")
    out = cupy.zeros(BLOCKS * THREADS, np.uint32)
    launch = CONTROL.kernel(kernel)

    def run() -> cupy.ndarray:
        launch((BLOCKS,), (THREADS,), arguments(out))
        cupy.cuda.Device().synchronize()
        return out

    stage(f"{kernel}: untraced")
    plain = run().get()
    places = {number: _marked(kernel, number) for number in visits}
    assert all(places.values()), (
        f"{kernel}: no instruction for {[hex(n) for n, found in places.items() if not found]}"
    )
    records = 0
    for start in (False, True):
        sites, owners = [], []
        for number, found in places.items():
            for index in found:
                place = _block_start(kernel, index) if start else index
                sites.append(SassTraceSite(place, unconditional=start))
                owners.append(number)
        stage(f"{kernel}: {len(sites)} sites, {'starts of blocks' if start else 'paths'}")
        result = trace(run, kernel, sites, sass_per_thread_records=DEPTH, **options)
        same(f"{kernel} output", plain, out.get())
        assert result["dropped"] == 0, f"{kernel}: {result['dropped']} records dropped"
        taken, threads = result["records"]["site"], global_threads(result["records"], THREADS)
        for number, wanted in visits.items():
            mine = np.isin(taken, [place for place, owner in enumerate(owners) if owner == number])
            counts = np.bincount(threads[mine], minlength=BLOCKS * THREADS)
            if not start:
                same(f"{kernel}, path {number:#x}", counts, wanted.astype(counts.dtype))
            else:
                # A block may be reached in more ways than its path is taken, never in fewer.
                assert (counts >= wanted).all(), (
                    f"{kernel}, path {number:#x}: a visit of its block is missing"
                )
        records += len(taken)
    stage(f"{kernel}: {len(places)} sites per warp")
    masks = trace(
        run,
        kernel,
        [SassTraceSite(found[0], warp_level=True, special="activemask") for found in places.values()],
        sass_per_thread_records=DEPTH,
    )
    same(f"{kernel} output (warp level)", plain, out.get())
    lanes = 0
    for site, (number, wanted) in enumerate(visits.items()):
        values = masks["records"]["value"][masks["records"]["site"] == site]
        lanes += (seen := sum(int(value).bit_count() for value in values))
        if len(places[number]) == 1:
            assert seen == wanted.sum(), f"{kernel}, path {number:#x}: {seen} lanes in warp-level records"
    return {"records": records, "lanes": lanes}


def _taken(pick: Callable[[np.ndarray], np.ndarray], rounds: int, value: int) -> np.ndarray:
    return sum(((pick(T + i) == value).astype(np.int64) for i in range(rounds)), np.zeros(len(T), np.int64))


@check("control", LIMIT)
def a_jump_table() -> Facts:
    rounds = 40
    ops = cupy.asarray(OPS.astype(np.uint32))
    kernel = CONTROL.cubin.get_kerneldef_by_name("switch_kernel")
    assert kernel.indirect_targets, "the compiler made no jump table"
    targets = {target for found in kernel.indirect_targets.values() for target in found}
    cases = {0x5A00 + op: _taken(lambda at: OPS[at & 63], rounds, op) for op in range(12)}
    starts = {
        _block_start("switch_kernel", index) for number in cases for index in _marked("switch_kernel", number)
    }
    assert len(starts & targets) >= 4, "the marked paths are not the table's"
    facts = _check("switch_kernel", lambda out: (ops, np.uint32(rounds), out), cases)
    return {**facts, "tables": len(kernel.indirect_targets), "targets": len(targets)}


@check("control", LIMIT)
def recursion() -> Facts:
    calls = [1, 1]
    while len(calls) < 10:
        calls.append(1 + calls[-1] + calls[-2])
    visits = np.array(calls)[T % 10]
    return _check("recursion_kernel", lambda out: (out,), {0x5B00: visits})


@check("control", LIMIT)
def calls_through_a_table_of_functions() -> Facts:
    rounds = 30
    ops = cupy.asarray(OPS.astype(np.uint32))
    visits = {0x5C00 + op: _taken(lambda at: OPS[at & 63] & 3, rounds, op) for op in range(4)}
    return _check("pointer_kernel", lambda out: (ops, np.uint32(rounds), out), visits)


@check("control", LIMIT)
def virtual_functions() -> Facts:
    rounds = 21
    visits = {
        0x5D00 + kind: sum(((i ^ T) & 1 == kind).astype(np.int64) for i in range(rounds)) for kind in range(2)
    }
    return _check("virtual_kernel", lambda out: (np.uint32(rounds), out), visits)


@check("control", LIMIT)
def calls_of_printf() -> Facts:
    nothing = cupy.zeros(1, np.uint8)
    each = np.full(len(T), 8)
    return _check("printf_kernel", lambda out: (out, np.uint32(7), nothing), {0x5E00: each, 0x5E01: each})


@check("control", LIMIT)
def calls_of_malloc_and_free() -> Facts:
    each = np.full(len(T), 3)
    return _check("malloc_kernel", lambda out: (out, np.uint32(9)), {0x5F00: each, 0x5F01: each})


@check("control", LIMIT)
def an_assertion_that_holds() -> Facts:
    return _check("assert_kernel", lambda out: (out, np.uint32(1 << 20)), {0x6000: np.full(len(T), 8)})
