"""What gwatch.sass.convergence takes for granted of the machine, and that joined groups leave the records they made."""

from __future__ import annotations

import cupy
import numpy as np

from gpu_checks.support import ROOT, Facts, Program, check, trace
from gwatch.cuda.xtrace import SassTraceSite
from gwatch.sass.control import CONTROL_MASK, Control
from gwatch.sass.isa import isa_for

GROUPS = Program(ROOT / "tests/gpu/kernels/groups.cu")
ROW, ALL = 4, 0xFFFFFFFF


def _masks(kernel: str, module: object, *arguments: np.uint32, threads: int = 32) -> list[set[int]]:
    """The masks that lanes found, per place of their rows (0: not there)."""
    out = cupy.zeros(32 * ROW, np.uint32)
    module.get_function(kernel)((1,), (threads,), (out, *arguments))  # type: ignore[attr-defined]
    return [set(column.tolist()) for column in cupy.asnumpy(out).reshape(32, ROW).T]


def _without_regions(kernel: str) -> object:
    """A module whose ``kernel`` has no BSSY and no BSYNC: groups that part stay apart."""
    cubin = GROUPS.cubin
    definition = cubin.get_kerneldef_by_name(kernel)
    code = definition.words.tobytes()
    changed = bytearray(code)
    nop = isa_for(cubin.arch.name).encode("NOP", Control(stall=5)) & ~CONTROL_MASK
    for index, _ in GROUPS.find(kernel, r"^(?:BSSY|BSYNC)\b"):
        place = slice(16 * index, 16 * index + 16)
        word = int.from_bytes(code[place], "little") & CONTROL_MASK | nop
        changed[place] = word.to_bytes(16, "little")
    assert cubin.data.count(code) == 1 and changed != code
    path = GROUPS.folder / "apart.cubin"
    path.write_bytes(cubin.data.replace(code, changed))
    return cupy.RawModule(path=str(path))


@check("groups")
def groups_join_in_a_wait_and_each_leaves_its_record() -> Facts:
    later, release = np.uint32(20_000), np.uint32(2_000_000)
    module = _without_regions("wait_kernel")
    parted, joined, *_ = _masks("wait_kernel", module, later, release, threads=64)
    assert parted == {0x55555555, 0xAAAAAAAA}, parted
    ask = GROUPS.find("wait_kernel", r"SYNCS\.PHASECHK")[0][0]
    behind = GROUPS.indices("wait_kernel", "joined")[0]
    sites = [SassTraceSite(ask, warp_level=True), SassTraceSite(behind, warp_level=True)]
    out = cupy.zeros(32 * ROW, np.uint32)

    def run() -> None:
        module.get_function("wait_kernel")((1,), (64,), (out, later, release))  # type: ignore[attr-defined]
        cupy.cuda.Device().synchronize()

    records = trace(run, "wait_kernel", sites, clock_type="sm")["records"]
    records = records[records["warp"] == 0]
    counts = [int((records["site"] == site).sum()) for site in range(2)]
    assert counts == [2, len(joined)], (counts, joined)
    return {"before": len(parted), "behind": len(joined), "records": counts}


@check("groups")
def a_bsync_waits_for_all_unless_somebody_yields() -> Facts:
    later = np.uint32(200_000)
    plain = _masks("region_kernel", GROUPS.module, later)[0]
    assert plain == {ALL} and not GROUPS.find("region_kernel", r"YIELD"), plain
    loading = _masks("loading_region_kernel", GROUPS.module, later, cupy.zeros(1, np.uint32))[0]
    return {"behind": len(plain), "behind where lanes yield": len(loading)}


@check("groups")
def a_whole_warp_stays_whole_in_a_wait() -> Facts:
    times = [np.uint32(1_000 * 3**power) for power in range(9)]
    for release in times:
        found = _masks("wait_kernel", GROUPS.module, np.uint32(500), release, threads=64)
        assert found[:2] == [{ALL}, {ALL}], (int(release), found)
    return {"waits": len(times), "longest in cycles": int(times[-1])}


@check("groups")
def one_mbarrier_answers_a_warp_alike() -> Facts:
    facts: Facts = {}
    for name in ("test", "try"):
        counts = cupy.zeros(3, np.uint64)
        for threads in (64, 256, 1024):
            grid = (132 * 2048 // threads,)
            GROUPS.kernel(f"{name}_kernel")(grid, (threads,), (counts, np.uint32(10_000)))
        asked, divided, phases = map(int, cupy.asnumpy(counts))
        assert asked > 1e8 and not divided, (name, asked, divided)
        facts[name] = {"asked": asked, "divided": divided, "phases": phases}
    return facts
