"""Kernels without registers to spare: all 255 in use, budgets by warp role, occupancy at a step. Outputs stay the same
bit for bit, every record is there, and registers and occupancy are what the plan said.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from gpu_checks.support import MATMUL, ROOT, Facts, Program, check, same, trace
from gwatch.cuda.xtrace import SassTraceSite
from gwatch.rewrite import Rewriter
from gwatch.rewrite import trace as trace_module
from gwatch.rewrite.planning import Effort
from gwatch.rewrite.surroundings import Surroundings
from gwatch.rewrite.trace import plan_trace

BLOCKS, TRIPS = 64, 48
TILES, TILE_BYTES = 32, 16384


class _Pressure(Program):
    """Compiled for sm_90a: setmaxnreg, wgmma and bulk copies need it."""

    @property
    def path(self) -> Path:  # type: ignore[override]
        """The cubin."""
        return _compiled(self.source)


@cache
def _compiled(source: Path) -> Path:
    path = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip()) / "pressure.cubin"
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90a", "-lineinfo", "-o", str(path), str(source)], check=True)
    return path


PRESSURE = _Pressure(ROOT / "tests/gpu/kernels/pressure.cu")


def _plan(program: Program, kernel: str, sites: list[SassTraceSite]) -> Any:
    return plan_trace(program.cubin, kernel, sites, clock="gpu", depth=64).rewritten


def _full(kernel: str, sites: list[SassTraceSite], ways: set[str]) -> Facts:
    source = cupy.asarray(np.random.default_rng(3).random(1024).astype(np.float32))
    out = cupy.zeros(BLOCKS * 128, np.float32)
    function = PRESSURE.kernel(kernel)

    def run() -> cupy.ndarray:
        function((BLOCKS,), (128,), (source, out, np.int32(TRIPS)))
        cupy.cuda.Device().synchronize()
        return out

    plain = run().get()
    out.fill(0)
    planned = _plan(PRESSURE, kernel, sites)
    found = {way for placed in planned.sites[1:] for way in placed.ways.values()}
    assert ways <= found, f"registers were had otherwise: {found}"
    assert planned.registers_after <= 255
    result = trace(run, kernel, sites, sass_per_thread_records=64 * len(sites))
    same(f"{kernel} output", plain, out.get())
    records = result["records"]
    assert result["dropped"] == 0
    for number in range(len(sites)):
        made = int((records["site"] == number).sum())
        assert made == BLOCKS * 128 * TRIPS, f"site {number}: {made} records, not {BLOCKS * 128 * TRIPS}"
    return {
        "registers": f"{planned.registers_before}->{planned.registers_after}",
        "records": len(records),
        "moves": len(planned.moves),
    }


def _loop_products() -> list[int]:
    """Multiply-adds inside the longest loop."""
    around = Rewriter(PRESSURE.cubin, "full_kernel").surroundings
    target = around.cfg.flow.target
    back = [i for i in range(around.padding - 1) if 0 <= target[i] < i]
    end = max(back, key=lambda i: i - int(target[i]))
    texts = PRESSURE.cubin.get_kerneldef_by_name("full_kernel").texts
    return [i for i in range(int(target[end]), end) if "FFMA" in texts[i]]


@check("registers")
def all_255_registers_in_use() -> Facts:
    products = _loop_products()
    return _full("full_kernel", [SassTraceSite(products[k]) for k in (5, 90, 195)], {"dead", "home"})


@check("registers")
def roles_with_budgets_of_24_and_240_registers() -> Facts:
    tiles = np.random.default_rng(4).integers(0, 1 << 16, TILES * TILE_BYTES // 2, dtype=np.uint16)
    # Halves between 1 and 2: no infinities among the products.
    data = cupy.asarray((tiles & 0x03FF | 0x3C00).astype(np.uint16))
    out, produced = cupy.zeros(BLOCKS * 256, np.float32), cupy.zeros(BLOCKS, np.uint32)
    function = PRESSURE.kernel("roles_kernel")

    def run() -> cupy.ndarray:
        function((BLOCKS,), (384,), (data, out, produced, np.int32(TILES)))
        cupy.cuda.Device().synchronize()
        return out

    plain = run().get()
    assert np.isfinite(plain).all() and plain.any()
    out.fill(0)
    produced.fill(0)
    wanted = {"HGMMA": 8, r"SYNCS.ARRIVE\S* RZ": 8, "UBLKCP": 1, "TRYWAIT": None, "WARPGROUP.DEPBAR": 8}
    texts = PRESSURE.cubin.get_kerneldef_by_name("roles_kernel").texts
    chosen = [(i, name) for i, text in enumerate(texts) for name in wanted if re.search(name, text)]
    sites = [SassTraceSite(i, warp_level=True) for i, _ in chosen]
    planned = _plan(PRESSURE, "roles_kernel", sites)
    assert (planned.registers_before, planned.registers_after) == (168, 168)
    result = trace(run, "roles_kernel", sites, sass_per_thread_records=1024)
    same("roles output", plain, out.get())
    same("produced", np.full(BLOCKS, TILES * (TILES - 1) // 2, np.uint32), produced.get())
    assert result["dropped"] == 0
    records = result["records"]
    facts: Facts = {"records": len(records), "sites": len(sites)}
    for number, (index, name) in enumerate(chosen):
        made = int((records["site"] == number).sum())
        facts[f"{name.split('.')[0]}@{index}"] = made
        warps = wanted[name]
        if name == "SYNCS.ARRIVE\\S* RZ" and "A1T0" not in texts[index]:
            warps = 1  # the producer's
        if warps is not None:
            assert made == BLOCKS * TILES * warps, f"{texts[index]}: {made} records"
    return facts


@check("registers")
def an_occupancy_bound_matmul_keeps_its_registers() -> Facts:
    size = 128
    rng = np.random.default_rng(5)
    a, b = (cupy.asarray(rng.random((size, size), np.float32)) for _ in range(2))
    c = cupy.zeros((size, size), np.float32)
    function = MATMUL.kernel("matmul")

    def run() -> cupy.ndarray:
        function((size // 16, size // 16), (16, 16), (a, b, c, np.int32(size)))
        cupy.cuda.Device().synchronize()
        return c

    plain = run().get()
    c.fill(0)
    barriers = [i for i, text in enumerate(MATMUL.cubin.get_kerneldef_by_name("matmul").texts) if "BAR.SYNC" in text]
    sites = [SassTraceSite(i) for i in barriers]
    planned = _plan(MATMUL, "matmul", sites)
    assert planned.registers_after == planned.registers_before, planned.state
    assert planned.occupancy_after == planned.occupancy_before
    result = trace(run, "matmul", sites, sass_per_thread_records=64)
    same("matmul output", plain, c.get())
    per_site = np.bincount(result["records"]["site"], minlength=len(sites))
    assert result["dropped"] == 0 and len(set(per_site.tolist())) == 1, per_site
    return {"registers": planned.registers_after, "occupancy": planned.occupancy_after, "records": int(per_site.sum())}


@check("registers")
def saved_registers_and_predicates_come_back() -> Facts:
    size = 128
    rng = np.random.default_rng(6)
    a, b = (cupy.asarray(rng.random((size, size), np.float32)) for _ in range(2))
    c = cupy.zeros((size, size), np.float32)
    function = MATMUL.kernel("matmul")

    def run() -> cupy.ndarray:
        function((size // 16, size // 16), (16, 16), (a, b, c, np.int32(size)))
        cupy.cuda.Device().synchronize()
        return c

    def counted(sites: list[SassTraceSite]) -> list[int]:
        c.fill(0)
        result = trace(run, "matmul", sites, sass_per_thread_records=1024)
        same("matmul output", plain, c.get())
        assert result["dropped"] == 0
        found: list[int] = np.bincount(result["records"]["site"], minlength=len(sites)).tolist()
        return found

    plain = run().get()
    texts = MATMUL.cubin.get_kerneldef_by_name("matmul").texts
    products = [i for i, text in enumerate(texts) if "FFMA" in text]
    sites = [SassTraceSite(products[k], warp_level=bool(k % 2)) for k in (3, 8, 12)]
    expected = counted(sites)
    with _scarce():
        planned = _plan(MATMUL, "matmul", sites)
        saved = [register for placed in planned.sites for register in placed.saved]
        packed = [text for placed in planned.sites for text in placed.texts if text.startswith("P2R")]
        assert saved and packed and planned.registers_after == planned.registers_before, planned.sites
        found = counted(sites)
    assert found == expected, (found, expected)
    return {"records": sum(found), "saved": len(saved), "packed": len(packed), "local_bytes": planned.local_bytes}


@contextmanager
def _scarce() -> Iterator[None]:
    """Plans may not raise the count, and no predicate is idle: registers and predicates are saved."""

    def only(attempt: Callable[[Any, Effort], Any], recorders: Sequence[Any]) -> Any:
        return recorders[-1], attempt(recorders[-1], Effort.SAVE)

    def named(self: Surroundings, file: str) -> frozenset[int]:
        return frozenset(range(7)) if file == "P" else kept[2](self, file)

    kept = (trace_module._first_that_fits, Surroundings.idle_predicates, Surroundings.named)
    trace_module._first_that_fits = only
    Surroundings.idle_predicates = lambda self, index: []  # type: ignore[method-assign]
    Surroundings.named = named  # type: ignore[method-assign]
    try:
        yield
    finally:
        trace_module._first_that_fits = kept[0]
        Surroundings.idle_predicates = kept[1]  # type: ignore[method-assign]
        Surroundings.named = kept[2]  # type: ignore[method-assign]
