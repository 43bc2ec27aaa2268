"""Times held in registers for a later record: which sites may, and that every visit is told, once, at its time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_ring_snippets import Launch

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.xtrace.columns import ring_columns
from gwatch.cuda.xtrace.scopes import scope_sites
from gwatch.errors import HazardError, TraceError
from gwatch.rewrite import trace
from gwatch.rewrite.held import WORDS, _parts, held_times
from gwatch.rewrite.homes import Housing
from gwatch.rewrite.planning import Effort
from gwatch.rewrite.ring import LANES, RecordKind, RingLayout
from gwatch.rewrite.trace import SassTraceSite, TracePlan, plan_trace
from gwatch.sass.cfg import build_cfg
from gwatch.sass.convergence import Convergence
from gwatch.sass.isa import isa_for
from gwatch.sass.uses import CodeView

ROOT = Path(__file__).parents[2]
MATMUL = ROOT / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"
KERNEL = "hgmma_matmul"
WRITTEN_MEANWHILE = 6
"""A general register that its producer writes between its first scope's start and its second one's end."""
CUTE = ROOT / "tests" / "scopes" / "data" / "cute_hgmma.cubin"
HOPPER = ROOT / "tests" / "scopes" / "data" / "hgmma_matmul.cubin"


@pytest.fixture(scope="module")
def cubin() -> Cubin:
    """A kernel with registers to spare."""
    return Cubin.from_file(HOPPER)


def held(
    lines: Sequence[str],
    *sites: int,
    words: Sequence[str] = WORDS,
    others: Sequence[int] = (),
    by_warp: bool = True,
    may_part: bool = True,
) -> dict[int, tuple[int, str]]:
    """Instruction -> (instruction whose record says its time, word), for code with sites before instructions."""
    isa = isa_for("sm_90")
    words_of = [isa.encode(line, pc=16 * index) for index, line in enumerate(lines)]
    code = np.array([(word & (1 << 64) - 1, word >> 64) for word in words_of], np.uint64)
    cfg, view = build_cfg(isa, code), CodeView(isa, code)
    around: Any = SimpleNamespace(cfg=cfg, view=view, convergence=Convergence(cfg, view))
    found = held_times(around, {place: (place, by_warp) for place in sites}, others, words, may_part)
    return {place: (item.holder, item.word) for place, item in found.items()}


STRAIGHT = ["IADD3 R0, R0, 0x1, RZ"] * 8 + ["EXIT"]
WAIT = [
    "IADD3 R0, R0, 0x1, RZ",  # 0
    "IADD3 R0, R0, 0x2, RZ",  # 1: the loop's start
    "BSSY B0, 0x60",  # 2
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R6",  # 3: waits until it is true
    "@!P0 BRA 0x30",  # 4
    "BSYNC B0",  # 5
    "IADD3 R0, R0, 0x3, RZ",  # 6
    "BAR.SYNC 0x0",  # 7
    "IADD3 R0, R0, 0x4, RZ",  # 8
    "@P1 BRA 0x10",  # 9
    "EXIT",  # 10
]


def test_sites_that_follow_each_other_need_one_record_for_three() -> None:
    assert held(STRAIGHT, 1, 3) == {1: (3, "x")}
    assert held(STRAIGHT, 1, 3, 5) == {1: (5, "x"), 3: (5, "y")}
    assert held(STRAIGHT, 1, 3, 5, 7) == {1: (3, "x"), 5: (7, "x")}
    assert held(STRAIGHT, 1, 3, 5, 7, words=("x",)) == {1: (3, "x"), 5: (7, "x")}
    assert held(STRAIGHT, 1, 3, 5, words=("x",)) == {3: (5, "x")}
    assert held(STRAIGHT, 1, 3, words=()) == {}
    # Another record in between would be told before a time that is earlier.
    assert held(STRAIGHT, 1, 5, others=[3]) == {}


WHOLE = [
    "MOV R6, c[0x0][0x160]",  # 0
    "MOV R7, 0x4",  # 1
    "IADD3 R0, R0, 0x1, RZ",  # 2: the loop's start
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R6",  # 3: one answer for a whole warp
    "@!P0 NANOSLEEP.SYNCS 0x989680",  # 4
    "@!P0 BRA 0x30",  # 5
    "IADD3 R7, R7, -0x1, RZ",  # 6
    "BAR.SYNC 0x0",  # 7
    "IADD3 R0, R0, 0x4, RZ",  # 8
    "ISETP.NE.AND P1, PT, R7, RZ, PT",  # 9
    "@P1 BRA 0x20",  # 10
    "EXIT",  # 11
]


def test_a_wait_of_a_whole_warp_may_stand_between_them() -> None:
    assert held(WHOLE, 2, 6, 8) == {2: (8, "x"), 6: (8, "y")}
    assert held(WHOLE, 2, 6, 8, may_part=False) == {2: (8, "x"), 6: (8, "y")}
    assert (
        held(WHOLE, 3, 6) == {} == held(WHOLE, 3, 6, by_warp=False)
    )  # a trip of the wait comes by the first alone
    # From the last of a trip to the first of the next one there is also the way out.
    assert held(WHOLE, 2, 8) == {2: (8, "x")}
    assert held(WHOLE, 8) == {}
    for line, parts in (
        (0, "S2R R6, SR_TID.X"),  # lanes that ask for two phases get two answers
        (3, "LDS R9, [R6]"),  # or wait for what each loads
        (6, "IADD3 R7, R7, R0, RZ"),  # and lanes whose number of trips differs leave each other behind
        (8, "@P2 BRA 0xb0"),
    ):
        changed = [*WHOLE[:line], parts, *WHOLE[line + 1 :]]
        if line == 3:
            changed[4] = "ISETP.NE.AND P0, PT, R9, RZ, PT"
            assert held(changed, 2, 6) == {2: (6, "x")}
            changed[4] = "YIELD"
        assert held(changed, 2, 6) == {}, parts
        assert held(changed, 2, 6, by_warp=False) == {2: (6, "x")}, parts


def test_what_may_join_groups_of_a_warp_keeps_warp_level_sites_apart() -> None:
    """The first in two groups and the second in one: the first's second visit would have no record."""
    assert held(WAIT, 2, 6, 8) == {}
    assert held(WAIT, 2, 6, 8, by_warp=False) == {2: (8, "x"), 6: (8, "y")}
    assert held(WAIT, 5, 6) == {} and held(WAIT, 5, 6, by_warp=False) == {5: (6, "x")}
    parts = ["@P0 BRA 0x10"]
    for join in (
        "WARPSYNC.ALL",
        "NANOSLEEP 0x64",
        "YIELD",
        "@P0 BSYNC B0",
        "BSYNC P0, B0",
        "BAR.SYNC 0x0",
        "MEMBAR.SC.GPU",
        "ACQBULK",
        "UCGABAR_WAIT",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR5], R6",
        "SYNCS.PHASECHK.TRANS64 P0, [UR5], R6",
    ):
        joins = [*parts, *STRAIGHT[:2], join, *STRAIGHT[4:]]
        assert held(joins, 1, 5) == {}, join
        assert held(joins, 3, 5) == {}, join
        assert held(joins, 4, 5) == {4: (5, "x")}, join
        assert held(joins, 1, 3) == {1: (3, "x")}, join
        assert held(joins, 1, 5, by_warp=False) == {1: (5, "x")}, join
        assert held([*STRAIGHT[:1], *joins[1:]], 1, 5) == {1: (5, "x")}, f"{join} of a whole warp"
    for passed in ("SYNCS.ARRIVE.TRANS64 RZ, [UR5], R6", "BSSY B0, 0x50", "LDG.E R9, desc[UR4][R2.64]"):
        assert held([*parts, *STRAIGHT[:2], passed, *STRAIGHT[4:]], 1, 5) == {1: (5, "x")}, passed


def test_a_clock_that_moves_in_steps_keeps_warp_level_sites_apart_where_groups_may_part() -> None:
    """Two groups could have held one time, each since a visit of its own, or both since one."""
    parts = [*STRAIGHT[:2], "@P0 BRA 0x40", *STRAIGHT[3:]]
    assert held(parts, 1, 5) == {1: (5, "x")}
    assert held(parts, 1, 5, may_part=False) == {}
    assert held(parts, 1, 5, 7, may_part=False) == {5: (7, "x")}
    assert held(parts, 1, 5, may_part=False, by_warp=False) == {1: (5, "x")}


def test_a_way_around_either_site_or_out_keeps_both_records() -> None:
    around = ["@P0 BRA 0x30", *STRAIGHT[:2], *STRAIGHT[:3], "EXIT"]
    assert held(around, 1, 4) == {}  # the second without the first
    assert held(around, 0, 1) == {}  # the first without the second
    assert held(around, 0, 4) == {0: (4, "x")}
    leaves = [*STRAIGHT[:3], "@P0 EXIT", *STRAIGHT[4:]]
    assert held(leaves, 1, 5) == {}
    calls = [*STRAIGHT[:3], "CALL.REL.NOINC 0x80", *STRAIGHT[4:8], "RET.REL.NODEC R20 0x0", "EXIT"]
    assert held(calls, 1, 5) == {}
    twice = [*STRAIGHT[:3], "@P0 BRA 0x10", *STRAIGHT[4:]]
    assert held(twice, 1, 5) == {} and held(twice, 0, 5) == {0: (5, "x")}
    again = [*STRAIGHT[:6], "@P0 BRA 0x40", "EXIT"]
    assert held(again, 1, 5) == {}


def plain_block(cubin: Cubin) -> list[int]:
    """Unguarded instructions of the kernel's longest block, every fourth."""
    kernel = cubin.get_kerneldef_by_name(KERNEL)
    blocks = [(block.start, block.end) for block in build_cfg(isa_for(cubin.arch.name), kernel.words).blocks]
    start, end = max(blocks, key=lambda block: block[1] - block[0])
    return [index for index in range(start, end - 1) if not kernel.texts[index].startswith("@")][::4]


CLOCK_NAMES = {"sm": "SR_CLOCKLO", "gpu": "SR_GLOBALTIMERLO"}


def walk(launch: Launch, state: Any, chain: list[int], rng: random.Random) -> list[Any]:
    """The sites of ``chain`` in order, by groups of the warp: (site, lanes, time) of each visit. They part now and
    then, where they may."""
    clock = launch.plan.site_map.clock
    groups = [list(range(LANES))]
    if rng.random() < 0.5:
        cut = rng.randrange(1, LANES)
        groups = [list(range(cut)), list(range(cut, LANES))]
    # Each group with the place in the chain that it has come to.
    work = [(group, 0) for group in groups]
    made = []
    while work:
        group, place = work.pop(rng.randrange(len(work)))
        if len(group) > 1 and rng.random() < 0.15 and (clock == "sm" or not place):
            cut = rng.randrange(1, len(group))
            work += [(group[:cut], place), (group[cut:], place)]
            continue
        before = len(launch.machine.reads)
        launch.machine.cycles += rng.randrange(50)
        for register in set(range(30)) - launch.homes:
            state.r[register] = np.array([rng.getrandbits(32) for _ in range(LANES)], np.uint64)
        assert state.run(launch.plan.placed(chain[place]).texts, np.isin(np.arange(LANES), group)) is None
        times = [time for name, time in launch.machine.reads[before:] if name == CLOCK_NAMES[clock]]
        made.append((chain[place], group, times[0]))
        if place + 1 < len(chain):
            work.append((group, place + 1))
    return made


@pytest.mark.parametrize("keep", ["newest", "first"])
@pytest.mark.parametrize("by_warp", [True, False])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("clock", list(CLOCK_NAMES))
def test_every_visit_is_told_once_at_its_time(
    cubin: Cubin, clock: str, by_warp: bool, count: int, keep: str
) -> None:
    places = plain_block(cubin)[:count]
    sites = [SassTraceSite(place, warp_level=by_warp) for place in places]
    if not by_warp:  # records of all lanes hold times where they are large anyway
        sites.append(SassTraceSite(places[-1] + 1, special="ns"))
    plan = plan_trace(cubin, KERNEL, sites, clock=clock, depth=64, keep=keep)
    assert plan.site_map.holds and plan.site_map.format.kind is RecordKind.WIDE
    assert len(plan.site_map.recorded) == -(-count // 3) + (not by_warp)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (2, 1, 1), (64, 1, 1)))
    rng = random.Random(count)
    wanted: list[tuple[int, ...]] = []
    for cta in range(2):
        for warp in range(2):
            state = launch.enter(cta, warp)
            for _ in range(6):
                for site, lanes, time in walk(launch, state, list(range(count)), rng):
                    wanted += [(cta, warp, site, time)] * (1 if by_warp else len(lanes))
    decoded = launch.decode()
    got = decoded.records
    found = [(int(r["block"][0]), int(r["warp"]), int(r["site"]), int(r["time"])) for r in got]
    assert sorted(found) == sorted(wanted)
    assert not got["value"].any() and int(decoded.visits.sum()) == len(wanted) and not decoded.warnings
    for warp in np.unique(got[["block", "warp"]]):
        mine = got[(got["block"] == warp["block"]).all(axis=1) & (got["warp"] == warp["warp"])]
        rows = [mine] if by_warp else [mine[mine["lane"] == lane] for lane in range(LANES)]
        assert all((np.diff(row["time"]) >= 0).all() for row in rows)
    for lane in range(LANES):
        mine = got[(got["lane"] == lane) & (got["warp"] == 1) & (got["block"][:, 0] == 1)]
        assert sorted(mine["sequence"].tolist()) == list(range(len(mine)))
    data = bytes(launch.machine.memory[launch.start : launch.start + launch.layout.data_bytes])
    columns = ring_columns(data, launch.layout, plan.site_map)
    told = zip(columns.warp().tolist(), columns.site.tolist(), columns.time.tolist(), strict=True)
    assert sorted((warp // 2, warp % 2, site, time) for warp, site, time in told) == sorted(wanted)
    assert (
        (columns.value is None) == by_warp
        and not np.any(columns.value)
        and len(columns.lane()) == len(columns)
    )


def scopes(cubin: Cubin) -> list[SassTraceSite]:
    return list(scope_sites(cubin.get_kerneldef_by_regex("hgmma"), {}, True)[0])


def stores(plan: TracePlan) -> int:
    """Stores of all sites' code."""
    return sum(
        text.count("STG")
        for placed in plan.rewritten.sites[1:]
        for text in placed.texts
        if "CLOCK" not in text
    )


def test_two_scopes_a_step_of_a_pipeline_cost_a_store_a_role(cubin: Cubin) -> None:
    """Across waits, matrix products and loads, but for the wait of the producer, behind which a BSYNC stands; the
    kernel keeps its registers, and nothing is moved for the times."""
    sites = scopes(cubin)
    plan = plan_trace(cubin, KERNEL, sites, clock="sm")
    assert [(site.shared_with, site.time_in) for site in plan.site_map.sites] == [
        (3, "x"), (3, "y"), (3, "y"), (None, "time"), (None, "time"), (7, "x"), (7, "x"), (None, "time"),
    ]  # fmt: skip
    assert plan.rewritten.registers_after == plan.rewritten.registers_before == 168
    assert not any(move.startswith("%held") for move in plan.rewritten.moves)
    assert stores(plan) == 3 and stores(plan_trace(cubin, KERNEL, sites, clock="sm", hold=False)) == 6
    assert [plan.placed(number).texts[0].split()[0] for number in (0, 1, 2, 5)] == ["CS2R.32"] * 4
    assert plan.placed(1) is plan.placed(2) and plan.placed(0) is not plan.placed(1)


def test_waits_of_whole_warps_cost_no_record_of_their_own() -> None:
    """CuTeDSL's product: its producer is a warp, not one thread, and no wait parts it. A clock in steps does, too."""
    cubin = Cubin.from_file(CUTE)
    (kernel,) = cubin.get_map_kernel_def()
    sites = scopes(cubin)
    for clock in ("sm", "gpu"):
        plan = plan_trace(cubin, kernel, sites, clock=clock)
        assert [(site.shared_with, site.time_in) for site in plan.site_map.sites] == [
            (3, "x"), (3, "y"), (3, "y"), (None, "time"), (7, "x"), (7, "y"), (7, "y"), (None, "time"),
        ], clock  # fmt: skip
        assert stores(plan) == 2 and stores(plan_trace(cubin, kernel, sites, clock=clock, hold=False)) == 6
        assert plan.rewritten.registers_after == plan.rewritten.registers_before == 168


def test_a_register_that_the_kernel_writes_meanwhile_is_no_home_of_a_time(
    cubin: Cubin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted where the search for homes would never put it, it's found by the rewriter's own proof."""
    place, refused = Housing.place, []

    def planted(self: Housing, value: str, *rest: Any, **more: Any) -> bool:
        found = place(self, value, *rest, **more)
        if value == "held_x":
            home = self.homes[value]
            home.registers[home.registers >= 0] = WRITTEN_MEANWHILE
            home.moves.clear()
        return found

    def proved(attempt: Any, recorders: Any) -> Any:
        try:
            return recorders[0], attempt(recorders[0], Effort.FREE)
        except HazardError as error:
            refused.append(error.message)

    monkeypatch.setattr(Housing, "place", planted)
    monkeypatch.setattr(trace, "_without_moves", proved)
    assert not plan_trace(cubin, KERNEL, scopes(cubin), clock="sm").site_map.holds
    stale = f"reads R{WRITTEN_MEANWHILE} as %held_x, but it holds the kernel value"
    assert refused and stale in refused[0]


def test_records_with_clock_pairs_have_room_for_one_time_and_long_ones_for_none(cubin: Cubin) -> None:
    sites = scopes(cubin)
    pairs = plan_trace(cubin, KERNEL, sites, clock="anchor", duration_ns=2e6).site_map
    assert {site.time_in for site in pairs.sites} == {"time", "x"}
    assert all(site.pair == (site.shared_with is None) for site in pairs.sites)
    assert not plan_trace(cubin, KERNEL, sites, clock="sm", duration_ns=1e9).site_map.holds


def test_what_a_site_records_or_is_guarded_by_keeps_its_record(cubin: Cubin) -> None:
    first, second, third, *_ = plain_block(cubin)

    def holds(*sites: SassTraceSite) -> bool:
        return plan_trace(cubin, KERNEL, sites, clock="sm").site_map.holds

    one, two = SassTraceSite(first, warp_level=True), SassTraceSite(second, warp_level=True)
    assert holds(one, two)
    assert not holds(replace(one, value_is_smid=True), two)
    assert not holds(one, replace(two, special="ns"))
    assert not holds(one, two, replace(two, value_is_smid=True))  # two at one place
    # Records of all lanes would take as many bytes, unless another site's value takes them anyway.
    assert not holds(SassTraceSite(first), SassTraceSite(second))
    assert holds(SassTraceSite(first), SassTraceSite(second), SassTraceSite(third, special="ns"))
    assert not holds(one, SassTraceSite(second), SassTraceSite(third, special="ns"))
    texts = cubin.get_kerneldef_by_name(KERNEL).texts
    guarded = next(index for index, text in enumerate(texts) if text.startswith("@!P0 SYNCS.ARRIVE"))
    assert not holds(SassTraceSite(guarded - 1, warp_level=True), SassTraceSite(guarded, warp_level=True))
    always = SassTraceSite(guarded, warp_level=True, unconditional=True)
    assert holds(SassTraceSite(guarded - 1, warp_level=True), always)


def test_a_kernel_without_room_holds_fewer_or_none() -> None:
    """The matmul kernel's 32 registers are all in use where 40 would cost occupancy."""
    cubin = Cubin.from_file(MATMUL)
    sites = [SassTraceSite(place, warp_level=True) for place in (42, 44, 46)]
    before = plan_trace(cubin, "matmul", sites, clock="sm", hold=False).rewritten
    after = plan_trace(cubin, "matmul", sites, clock="sm")
    assert after.rewritten.occupancy_after == before.occupancy_after
    assert {site.time_in for site in after.site_map.sites} < {"time", "x", "y"}


def test_a_held_time_before_its_warp_entered_is_refused(cubin: Cubin) -> None:
    places = plain_block(cubin)[:2]
    sites = [SassTraceSite(place, warp_level=True) for place in places]
    plan = plan_trace(cubin, KERNEL, sites, clock="sm", depth=8)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (1, 1, 1), (32, 1, 1)))
    state = launch.enter(0, 0)
    walk(launch, state, [0, 1], random.Random(4))
    ring = np.frombuffer(launch.machine.memory, np.uint8)[launch.start :][: launch.layout.ring_bytes]
    records = ring.view(launch.layout.format.dtype)
    records["x"][np.flatnonzero(records["x"])[0]] = int(launch.machine.cycles - 10_000) & 0xFFFFFFFF
    with pytest.raises(TraceError, match=r"\[ring-corrupt\].*before its warp entered"):
        launch.decode()


def test_chains_are_cut_into_parts_of_about_one_length() -> None:
    for length in range(1, 30):
        for most in (2, 3):
            parts = _parts(list(range(length)), most)
            assert [item for part in parts for item in part] == list(range(length))
            assert len(parts) == -(-length // most) and all(1 <= len(part) <= most for part in parts)
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
