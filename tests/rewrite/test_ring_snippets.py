"""The inserted code, executed by an interpreter of SASS, against the decoder: prologue, records, exit pairs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sassim import Machine, Warp

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.xtrace.decode import Decoded, decode_ring
from gwatch.rewrite import builtin, planning
from gwatch.rewrite import trace as trace_module
from gwatch.rewrite.homes import Housing
from gwatch.rewrite.planning import Effort
from gwatch.rewrite.ring import DESCRIPTOR_BYTES, RecordKind, RingLayout
from gwatch.rewrite.trace import SassTraceSite, TracePlan, plan_trace

MATMUL = Path(__file__).parents[2] / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"
GUARDED, FREE, LATER = 80, 42, 79
"""``@!P0 BRA``, a barrier, another barrier of the matmul kernel."""


@pytest.fixture(scope="module")
def cubin() -> Cubin:
    return Cubin.from_file(MATMUL)


@dataclass
class Visit:
    site: int
    lanes: list[int]
    elected: int | None
    value: dict[int, int]
    time: int
    ns: int | None


@dataclass
class Launch:
    """A patched kernel's inserted code run warp by warp."""

    plan: TracePlan
    layout: RingLayout
    armed: bool = True
    ctas: list[int] | None = None
    machine: Machine = field(init=False)
    visits: dict[tuple[int, int], list[Visit]] = field(default_factory=dict)
    left: set[tuple[int, int]] = field(default_factory=set)
    homes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        places = "/".join(self.plan.rewritten.state.values()).split("/")
        self.homes = {int(place[1:]) for place in places if place.startswith("R")}
        layout, site_map = self.layout, self.plan.site_map
        base = 0x7F3A_FFF0_1000
        size = layout.allocation_bytes
        place = layout.place(base, size)
        memory = bytearray(size)
        self.start = place.ring - base
        if layout.sampled:
            chosen = None if self.ctas is None else np.array(self.ctas)
            table = layout.table(chosen).tobytes()
            memory[place.table - base : place.table - base + len(table)] = table
        constant = bytearray(site_map.descriptor_offset + DESCRIPTOR_BYTES)
        constant[site_map.descriptor_offset :] = layout.descriptor(place if self.armed else None)
        bank0 = bytearray(0x400)
        for k, dim in enumerate((*layout.block, *layout.grid)):
            bank0[4 * k : 4 * k + 4] = dim.to_bytes(4, "little")
        bank0[0x208:0x210] = (0xDE5D << 32 | 0xDE5C).to_bytes(8, "little")
        self.machine = Machine({0: bytes(bank0), 3: bytes(constant)}, base, memory)

    def enter(self, cta: int, warp: int, threads: int | None = None) -> Warp | None:
        """The prologue; None when it leaves. ``threads``: those of the CTA, by default as the ring was made for."""
        gx, gy, _ = self.layout.grid
        bx, by, _ = self.layout.block
        t = np.arange(32 * warp, 32 * warp + 32)
        special: dict[str, object] = {
            "SR_TID.X": t % bx,
            "SR_TID.Y": t // bx % by,
            "SR_TID.Z": t // bx // by,
            "SR_CTAID.X": cta % gx,
            "SR_CTAID.Y": cta // gx % gy,
            "SR_CTAID.Z": cta // gx // gy,
            "SR_VIRTUALSMID": 17 + cta % 5,
        }
        state = Warp(self.machine, special, t < (threads or self.layout.threads_per_cta))
        if state.run(self.plan.rewritten.sites[0].texts, state.exists) == "original":
            self.left.add((cta, warp))
            return None
        self.visits[cta, warp] = []
        return state

    def visit(
        self, state: Warp, key: tuple[int, int], number: int, lanes: list[int], guard: list[int]
    ) -> None:
        """Active ``lanes`` arrive at a site; its instruction's guard is true on ``guard``."""
        site = self.plan.site_map.sites[number]
        texts = self.plan.placed(number).texts
        active = np.isin(np.arange(32), lanes)
        # The guard is !P0.
        state.p[0] = ~np.isin(np.arange(32), guard)
        for register in set(range(30)) - self.homes:
            rng = random.Random(len(self.machine.reads) * 64 + register)
            state.r[register] = np.array([rng.getrandbits(32) for _ in range(32)], np.uint64)
            state.ur[register] = rng.getrandbits(32)
        before = len(self.machine.reads)
        assert state.run(texts, active) is None
        wants = not site.unconditional and site.instruction.startswith("@")
        who = [lane for lane in lanes if lane in guard] if wants else lanes
        reads = self.machine.reads[before:]
        clock = "SR_GLOBALTIMERLO" if self.plan.site_map.clock == "gpu" else "SR_CLOCKLO"
        time = next(value for name, value in reads if name == clock)
        timers = [value for name, value in reads if name == "SR_GLOBALTIMERLO"]
        if not who:
            return
        elected = None
        if site.warp_level:
            elected = state.elected[-1] if not wants else min(who)
        values = {lane: self._expected(state, site.value, lane, who, timers, key[0]) for lane in who}
        self.visits[key].append(Visit(number, who, elected, values, time, timers[-1] if timers else None))

    @staticmethod
    def _expected(state: Warp, value: str, lane: int, who: list[int], timers: list[int], cta: int) -> int:
        name, _, bits = value.partition(":")
        if name == "none":
            return 0
        if name == "smid":
            return 17 + cta % 5
        if name == "activemask":
            return sum(1 << lane for lane in who)
        if name == "ns":
            return timers[-1] if bits else timers[-1] & 0xFFFFFFFF
        number = int(name.lstrip("UR"))
        file = state.ur if name.startswith("U") else {k: int(v[lane]) for k, v in state.r.items()}
        return file[number] | (file[number + 1] << 32 if bits == "64" else 0)

    def leave(self, state: Warp) -> None:
        for placed in self.plan.rewritten.sites[1 + len(self.plan.site_map.recorded) :]:
            assert state.run(placed.texts, state.exists) is None

    def decode(self) -> Decoded:
        data = bytes(self.machine.memory[self.start : self.start + self.layout.data_bytes])
        return decode_ring(data, self.layout, self.plan.site_map, 1e6)

    def check(self) -> Decoded:
        """Every record that should be there is, and nothing else."""
        got = self.decode()
        fmt = self.layout.format
        per_lane: dict[tuple[int, int, int], list[tuple[Visit, int]]] = {}
        for (cta, warp), visits in self.visits.items():
            for visit in visits:
                for lane in [visit.elected] if visit.elected is not None else visit.lanes:
                    per_lane.setdefault((cta, warp, lane), []).append((visit, lane))
        expected = {}
        for key, made in per_lane.items():
            first = max(0, len(made) - fmt.depth) if fmt.keep.value == "newest" else 0
            for number, (visit, lane) in list(enumerate(made))[first : first + fmt.depth]:
                expected[(*key, number)] = (visit, lane)
        assert len(got.records) == len(expected)
        gx, gy, _ = self.layout.grid
        for r in got.records:
            x, y, z = (int(v) for v in r["block"])
            key = (x + gx * (y + gy * z), int(r["warp"]), int(r["lane"]), int(r["sequence"]))
            visit, lane = expected.pop(key)
            assert r["site"] == visit.site and r["value"] == visit.value[lane]
            assert r["smid"] == 17 + key[0] % 5
            if self.plan.site_map.clock != "anchor":
                assert r["time"] == visit.time
        assert got.dropped_total == sum(max(0, len(made) - fmt.depth) for made in per_lane.values())
        return got


def play(launch: Launch, seed: int, visits: int = 24) -> None:
    """Random divergence over all CTAs and warps."""
    rng = random.Random(seed)
    for cta in range(launch.layout.ctas):
        for warp in range(launch.layout.warps_per_cta):
            state = launch.enter(cta, warp)
            if state is None:
                continue
            alive = np.flatnonzero(state.exists).tolist()
            for _ in range(visits):
                launch.machine.cycles += rng.randrange(2000)
                launch.machine.ns += rng.randrange(1000)
                if len(alive) > 1 and rng.random() < 0.05:
                    alive.pop(rng.randrange(len(alive)))
                lanes = sorted(rng.sample(alive, rng.randint(1, len(alive))))
                guard = sorted(rng.sample(lanes, rng.randint(0, len(lanes))))
                number = rng.randrange(len(launch.plan.site_map.sites))
                launch.visit(state, (cta, warp), number, lanes, guard)
            launch.leave(state)


ALL_VALUES = [
    SassTraceSite(FREE),
    SassTraceSite(GUARDED, 5),
    SassTraceSite(LATER, value_is_smid=True),
    SassTraceSite(FREE, 4, 64),
    SassTraceSite(GUARDED, special="activemask"),
    SassTraceSite(GUARDED, special="activemask", unconditional=True),
    SassTraceSite(GUARDED, 8, 64, True, warp_level=True),
    SassTraceSite(FREE, special="ns:64"),
    SassTraceSite(LATER, 5, value_is_uniform=True, warp_level=True),
    SassTraceSite(LATER, special="ns"),
]
PLAIN = [SassTraceSite(FREE), SassTraceSite(GUARDED, warp_level=True), SassTraceSite(LATER, warp_level=True)]
BY_WARP = [SassTraceSite(FREE, 4, 64, warp_level=True), *(site for site in ALL_VALUES if site.warp_level)]


@pytest.mark.parametrize("keep", ["newest", "first"])
@pytest.mark.parametrize("clock", ["gpu", "sm"])
@pytest.mark.parametrize(
    ("sites", "kind"),
    [
        (PLAIN, RecordKind.NARROW),
        (PLAIN[1:], RecordKind.NARROW),
        (ALL_VALUES, RecordKind.WIDE),
        (BY_WARP, RecordKind.WIDE),
    ],
)
def test_every_visit_is_recorded(
    cubin: Cubin, sites: list[SassTraceSite], kind: RecordKind, clock: str, keep: str
) -> None:
    by_warp = all(site.warp_level for site in sites)
    plan = plan_trace(cubin, "matmul", sites, clock=clock, depth=32 if by_warp else 8, keep=keep)
    assert plan.site_map.format.kind is kind
    for grid, block in (((2, 2, 2), (16, 5, 1)), ((3, 1, 1), (7, 1, 3))):
        launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, grid, block))
        play(launch, seed=len(sites) + grid[0])
        launch.check()


@pytest.mark.parametrize("shape", list(builtin.Shape))
@pytest.mark.parametrize("sites", [ALL_VALUES, BY_WARP, PLAIN[1:]])
def test_every_visit_is_recorded_by_values_in_local_memory(
    cubin: Cubin, sites: list[SassTraceSite], shape: builtin.Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Housing, "place", lambda *_: False)
    monkeypatch.setattr(
        trace_module,
        "_first_that_fits",
        lambda attempt, recorders: next((r, attempt(r, Effort.PARK)) for r in recorders if r.shape is shape),
    )
    monkeypatch.setattr(planning._Attempt, "_shared_groups", lambda self: None)
    by_warp = all(site.warp_level for site in sites)
    plan = plan_trace(cubin, "matmul", sites, clock="anchor", depth=32 if by_warp else 8)
    assert plan.site_map.format.by_lane is (by_warp and shape is not builtin.Shape.LEAN)
    kept = ["off"] if shape is builtin.Shape.LEAN else ["off", "base"]
    kept += ["addr+1"] if shape in (builtin.Shape.PLAIN, builtin.Shape.GENERAL) else []
    kept += ["head"] if shape is builtin.Shape.GENERAL else []
    assert {name for name, place in plan.rewritten.state.items() if place == "local memory"} == set(kept)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (3, 1, 1), (16, 5, 1)))
    play(launch, seed=3)
    launch.check()


def test_long_records_hold_64_bit_times(cubin: Cubin) -> None:
    sites = [
        SassTraceSite(FREE),
        SassTraceSite(GUARDED, 5),
        SassTraceSite(LATER, warp_level=True),
        SassTraceSite(GUARDED, 4, warp_level=True),
        SassTraceSite(GUARDED, warp_level=True),
    ]
    for clock in ("gpu", "sm"):
        plan = plan_trace(cubin, "matmul", sites, clock=clock, depth=16, duration_ns=30e9)
        assert plan.site_map.format.kind is RecordKind.LONG
        launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (2, 1, 1), (64, 1, 1)))
        launch.machine.cycles = launch.machine.ns = (1 << 40) - 20_000
        play(launch, seed=3)
        launch.check()


@pytest.mark.parametrize("duration", [None, 5e6, 1e9])
def test_anchor_leaves_pairs_at_entry_exit_and_in_long_runs_in_records(
    cubin: Cubin, duration: float | None
) -> None:
    plan = plan_trace(cubin, "matmul", PLAIN, clock="anchor", depth=64, duration_ns=duration)
    assert plan.site_map.pairs_at_exit
    assert all(site.pair == (duration is not None) for site in plan.site_map.sites)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (2, 1, 1), (64, 1, 1)))
    play(launch, seed=5)
    got = launch.check()
    assert got.clock is not None and got.clock.sms == 2
    assert (got.headers["ns_out"] != 0).all() and (got.headers["clock_out"] != 0).all()
    recorded = sum(len(visits) for visits in launch.visits.values())
    assert got.clock.pairs >= (recorded if duration else 4)


def test_unarmed_kernels_and_ctas_without_a_slot_go_on_untouched(cubin: Cubin) -> None:
    plan = plan_trace(cubin, "matmul", PLAIN, clock="sm", depth=4)
    fmt = plan.site_map.format
    launch = Launch(plan, RingLayout.for_launch(fmt, (4, 1, 1), (96, 1, 1)), armed=False)
    play(launch, seed=1)
    assert len(launch.left) == 12 and not any(launch.machine.memory)
    sampled = Launch(plan, RingLayout(fmt, (4, 3, 1), (96, 1, 1), 3), ctas=[11, 0, 7])
    play(sampled, seed=2)
    assert {cta for cta, _ in sampled.visits} == {0, 7, 11} and len(sampled.left) == 27
    got = sampled.check()
    assert got.headers["cta"][:, 0].tolist() == [11, 0, 7]


def test_a_launch_larger_than_the_ring_stays_inside_it(cubin: Cubin) -> None:
    plan = plan_trace(cubin, "matmul", PLAIN, clock="sm", depth=4)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (2, 1, 1), (64, 1, 1)))
    for cta in range(2):
        for warp in range(2):
            assert launch.enter(cta, warp) is not None
    assert launch.enter(2, 0) is None and launch.enter(0, 2, threads=96) is None
    assert len(launch.decode().records) == 0


def test_sites_at_one_index_run_in_list_order_and_index_0_comes_after_the_prologue(cubin: Cubin) -> None:
    sites = [
        SassTraceSite(0),
        SassTraceSite(42, label="b"),
        SassTraceSite(42, label="a", warp_level=True),
        SassTraceSite(0, special="activemask"),
    ]
    plan = plan_trace(cubin, "matmul", sites, clock="sm")
    placed = plan.rewritten.sites
    assert placed[0].first == 0
    assert placed[0].count <= placed[1].first < placed[4].first < placed[2].first < placed[3].first
    assert [s.new_pc for s in plan.site_map.sites] == [16 * p.first for p in placed[1:5]]
    assert [s.instruction.split()[0] for s in plan.site_map.sites] == [
        "LDC",
        "BAR.SYNC.DEFER_BLOCKING",
    ] * 1 + [
        "BAR.SYNC.DEFER_BLOCKING",
        "LDC",
    ]
    assert plan.site_map.sites[1].line == 23 and plan.site_map.sites[1].label == "b"


@pytest.mark.parametrize("warp", [False, True])
def test_sites_that_share_a_record_each_have_one_at_its_time(cubin: Cubin, warp: bool) -> None:
    """Three at one instruction, one elsewhere, one of the other level."""
    sites = [
        SassTraceSite(FREE, warp_level=warp, label="inner end"),
        SassTraceSite(LATER, warp_level=warp),
        SassTraceSite(FREE, warp_level=warp, label="outer end"),
        SassTraceSite(FREE, warp_level=not warp),
        SassTraceSite(FREE, warp_level=warp, label="next start"),
    ]
    plan = plan_trace(cubin, "matmul", sites, clock="sm", depth=8)
    # The one of the other level stands between the second and the last.
    assert [site.shared_with for site in plan.site_map.sites] == [2, None, None, None, None]
    sites[3], sites[4] = sites[4], sites[3]
    plan = plan_trace(cubin, "matmul", sites, clock="sm", depth=8)
    assert [site.shared_with for site in plan.site_map.sites] == [3, None, 3, None, None]
    assert [site.site_id for site in plan.site_map.recorded] == [1, 3, 4]
    assert (
        plan.placed(0) is plan.placed(2) is plan.placed(3)
        and plan.placed(3).first * 16 == plan.site_map.sites[0].new_pc
    )
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (1, 1, 1), (32, 1, 1)))
    state = launch.enter(0, 0)
    assert state is not None
    for number in (1, 3, 1, 3, 3):
        launch.visit(state, (0, 0), number, [3, 4, 9], [])
    times = [visit.time for visit in launch.visits[0, 0]]
    lanes = [visit.elected for visit in launch.visits[0, 0]] if warp else [3, 4, 9]
    wanted = []
    for lane in sorted({lane for lane in lanes if lane is not None}):
        made = 0
        for turn, (number, time) in enumerate(zip((1, 3, 1, 3, 3), times, strict=True)):
            if warp and lanes[turn] != lane:
                continue
            for site in (0, 2, 3) if number == 3 else (1,):
                wanted.append((lane, made, site, time))
                made += 1
    records = launch.decode().records
    got = [tuple(int(record[name]) for name in ("lane", "sequence", "site", "time")) for record in records]
    assert sorted(got) == wanted and not launch.decode().warnings


def test_what_keeps_sites_from_sharing_a_record(cubin: Cubin) -> None:
    """Values, guards, an instruction that does something; of NOPs and markers see test_scope_markers."""

    def shared(*sites: SassTraceSite) -> list[int | None]:
        plan = plan_trace(cubin, "matmul", sites, clock="sm")
        return [site.shared_with for site in plan.site_map.sites]

    assert shared(SassTraceSite(FREE), SassTraceSite(FREE)) == [1, None]
    assert shared(SassTraceSite(GUARDED), SassTraceSite(GUARDED)) == [1, None]
    assert shared(SassTraceSite(FREE, value_is_smid=True), SassTraceSite(FREE)) == [None, None]
    assert shared(SassTraceSite(FREE), SassTraceSite(FREE, 4)) == [None, None]
    assert shared(SassTraceSite(FREE), SassTraceSite(FREE + 1)) == [None, None]
    assert shared(SassTraceSite(GUARDED, unconditional=True), SassTraceSite(GUARDED)) == [None, None]
    assert shared(SassTraceSite(FREE, unconditional=True), SassTraceSite(FREE)) == [1, None]


def test_a_record_is_five_instructions_in_nine_cycles(corpus_sm90: list[Path]) -> None:
    """Where the kernel has five registers to spare below the count that would cost occupancy."""
    cubin = Cubin.from_file(
        next(path for path in corpus_sm90 if "jax_cuda13_plugin-bb4300356c24" in path.name)
    )
    (kernel,) = cubin.get_map_kernel_def().values()
    rewritten = plan_trace(cubin, kernel, [SassTraceSite(60)], clock="sm").rewritten
    placed = rewritten.sites[1]
    assert (rewritten.registers_before, rewritten.registers_after) == (26, 31)
    assert [text.split()[0] for text in placed.texts] == [
        "CS2R.32", "LOP3.LUT", "LOP3.LUT", "STG.E.EF.64", "IADD3",
    ]  # fmt: skip
    assert placed.cycles == 9 and placed.waits == 0 and set(placed.ways.values()) == {"above the count"}


def test_a_kernel_without_room_keeps_its_registers_for_one_instruction_more(cubin: Cubin) -> None:
    """The matmul kernel has 32 registers and 8 CTAs of 256 threads per SM: neither changes."""
    rewritten = plan_trace(
        cubin, "matmul", [SassTraceSite(FREE), SassTraceSite(GUARDED)], clock="sm"
    ).rewritten
    assert rewritten.registers_after == rewritten.registers_before == 32
    assert rewritten.occupancy_after == rewritten.occupancy_before == 8
    for placed in rewritten.sites[1:]:
        assert sum(text != "NOP" for text in placed.texts) == 6
        assert placed.ways == {"rec": "dead", "addr": "dead", "off": "home"}


def test_uniform_guards_are_inherited(corpus_sm90: list[Path]) -> None:
    """``@!UP0 UIADD3``: the record is made exactly when the warp executes the instruction."""
    cubin = Cubin.from_file(next(path for path in corpus_sm90 if "bitsandbytes-e946f17c538a" in path.name))
    kernel = cubin.get_kerneldef_by_regex("kOptimizer32bit2StateIfLi6E")
    index = next(index for index, text in enumerate(kernel.texts) if text.startswith("@!UP0 UIADD3"))
    sites = [
        SassTraceSite(index, special="activemask"),
        SassTraceSite(index, warp_level=True),
        SassTraceSite(index, unconditional=True),
    ]
    plan = plan_trace(cubin, kernel, sites, clock="sm", depth=16)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (1, 1, 1), (64, 1, 1)))
    for up0 in (False, True):
        state = launch.enter(0, int(up0))
        assert state is not None
        state.up[0] = up0
        for number in range(3):
            texts = plan.rewritten.sites[1 + number].texts
            assert state.run(texts, np.arange(32) < 20) is None
    records = launch.decode().records
    made = [(int(r["warp"]), int(r["site"]), int(r["lane"])) for r in records]
    assert sorted(made) == sorted(
        [(0, 0, lane) for lane in range(20)]
        + [(0, 1, 0)]
        + [(warp, 2, lane) for warp in range(2) for lane in range(20)]
    )
    assert (records["value"][records["site"] == 0] == (1 << 20) - 1).all()
