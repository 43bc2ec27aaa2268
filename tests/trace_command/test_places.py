"""Where records go: lifetimes, the user's regions, what --auto finds, and what a hanging ring says."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "xtrace"))

from ringsim import Clocks, Writer, site, site_map

from gwatch.common.format.listing import fits
from gwatch.common.format.text import source_line
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.program.hang import hang_lines, last_seen
from gwatch.cuda.program.loops import loops_of, spins_of, wait_end
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.places import LIFETIME, merge_exits, places_of
from gwatch.cuda.program.roles import Role, automatic, kind_of, roles_of
from gwatch.cuda.program.start import ImportWatch, Process
from gwatch.cuda.program.stopwatch import Stopwatch
from gwatch.cuda.xtrace import listing
from gwatch.cuda.xtrace.listing import listing_of, with_callers
from gwatch.cuda.xtrace.records import RECORD_DTYPE
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.errors import SiteError
from gwatch.rewrite.ring import Keep, RecordKind, RingFormat, RingLayout
from gwatch.rewrite.trace import plan_trace

PROGRAM = Path(__file__).resolve().parents[1] / "gpu/programs/deadlock.py"
MATMUL = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_sm90.cubin"
PIPELINE = Path(__file__).resolve().parent / "pipeline.cubin"
DEADLOCK = PIPELINE.with_name("deadlock.cubin")  # of tests/gpu/programs/deadlock.py, nvcc 13.0 -arch=sm_90a -lineinfo


def kernel_of(path: Path, name: str) -> KernelDef:
    return Cubin.from_file(path).get_kerneldef_by_name(name)


@pytest.fixture(scope="module")
def pipeline() -> KernelDef:
    return kernel_of(PIPELINE, "pipeline")


def test_lifetimes_are_entry_and_every_exit_at_warp_level(pipeline: KernelDef) -> None:
    places = places_of(pipeline, ProgramOptions(""))
    assert [site.insert_index for site in places.sites] == [0, 24, 27, 35]
    assert all(pipeline.texts[index].find("EXIT") >= 0 for index in (24, 27, 35))
    assert all(site.warp_level for site in places.sites) and places.lifetime
    assert places.regions == ((0, 1, LIFETIME),)
    planned = plan_trace(Cubin.from_file(PIPELINE), "pipeline", places.sites, clock="anchor", depth=4)
    assert len(planned.site_map.sites) == 4


def test_sites_behind_instructions_and_notes_on_guards(pipeline: KernelDef) -> None:
    places = places_of(pipeline, ProgramOptions("", sites=("34",), regions=("barrier=12..12,after",)))
    assert [(site.insert_index, site.unconditional, site.label) for site in places.sites] == [
        (34, False, None),
        (12, False, None),
        (13, True, "after 12 BAR.SYNC.DEFER_BLOCKING"),
    ]
    assert all(site.warp_level for site in places.sites) and places.regions == ((1, 2, "barrier"),)
    assert places.notes == (
        "[site-guard] site 0 records only lanes for which @!P0 holds; `always` records all",
        "[site-guard] site 2 is made before 13, the next instruction after 12",
    )


def result_of(rows: list[tuple[int, int, int, int]]) -> TraceResult:
    """Rows (block x, warp, site, time)."""
    records = np.zeros(len(rows), RECORD_DTYPE)
    for record, (block, warp, number, time) in zip(records, rows, strict=True):
        record["block"][0], record["warp"], record["site"], record["time"] = block, warp, number, time
    sites: list[dict[str, Any]] = [{"site_id": n, "label": "entry" if n == 0 else "exit"} for n in range(3)]
    return TraceResult(records=records, sites=sites, grid_dim=(2, 1, 1), block_dim=(64, 1, 1))


def test_a_warp_that_leaves_in_parts_lives_until_its_last_exit() -> None:
    result = result_of(
        [(0, 0, 0, 10), (0, 0, 1, 30), (0, 0, 2, 50), (0, 1, 0, 11), (0, 1, 2, 20), (1, 0, 0, 12)]
    )
    merge_exits(result)
    kept = [(int(r["block"][0]), int(r["warp"]), int(r["site"]), int(r["time"])) for r in result["records"]]
    assert kept == [(0, 0, 0, 10), (0, 0, 1, 50), (0, 1, 0, 11), (0, 1, 1, 20), (1, 0, 0, 12)]
    assert [site["label"] for site in result["sites"]] == ["entry", "exit (any of 2)"]


def test_exits_that_were_passed_leave_no_hole_in_their_lanes_sequence() -> None:
    result = result_of([(0, 0, 0, 10), (0, 0, 1, 20), (0, 0, 2, 30), (0, 0, 1, 40), (0, 1, 0, 11), (0, 1, 2, 21)])
    records = result["records"]
    records["sequence"] = [4, 5, 0, 6, 0, 1]  # lane 0 had made four more before the ring kept any
    records["lane"] = [0, 0, 3, 0, 0, 0]
    merge_exits(result)
    kept = [(int(r["warp"]), int(r["lane"]), int(r["site"]), int(r["sequence"])) for r in result["records"]]
    assert kept == [(0, 0, 0, 4), (0, 0, 1, 5), (1, 0, 0, 0), (1, 0, 1, 1)]


def test_regions_and_sites_are_warp_level_unless_told(pipeline: KernelDef) -> None:
    options = ProgramOptions("", sites=("30", "12,thread"), regions=("wait=12..13", "all = 0 .. op:EXIT@all"))
    places = places_of(pipeline, options)
    assert [(s.insert_index, s.warp_level) for s in places.sites[:4]] == [
        (30, True),
        (12, False),
        (12, True),
        (13, True),
    ]
    assert places.regions == ((2, 3, "wait"), (4, 5, "all"), (4, 6, "all"), (4, 7, "all"))
    assert not places.lifetime


@pytest.mark.parametrize("text", ["wait", "wait=12", "=1..2", "w=..2", "w=3..3"])
def test_regions_that_are_none_are_refused(pipeline: KernelDef, text: str) -> None:
    with pytest.raises(SiteError, match=r"\[region-syntax\]"):
        places_of(pipeline, ProgramOptions("", regions=(text,)))


def test_auto_finds_nothing_in_a_kernel_without_barriers_and_loops() -> None:
    cubin = Cubin.from_file(Path(__file__).parents[1] / "inspect/fixtures/vector_copy.cubin")
    (kernel,) = cubin.get_map_kernel_def().values()
    with pytest.raises(SiteError, match=r"\[auto-nothing\] copy_kernel has no barrier, TMA, MMA or loop"):
        automatic(kernel)


def test_auto_names_barriers_loops_and_the_warps_that_run_them(pipeline: KernelDef) -> None:
    assert [(role.name, min(role.body)) for role in roles_of(pipeline)] == [
        ("waiting warps", 4),
        ("arriving warps", 25),
    ]
    places = automatic(pipeline)
    labels = {site.label: site.insert_index for site in places.sites}
    assert labels["barrier 0"] == 12 and labels["barrier arrive 0"] == 32 and labels["after barrier 0"] == 13
    assert (labels["loop head 0"], labels["loop end 0"], labels["loop head 1"]) == (11, 18, 30)
    assert {label for _, _, label in places.regions} == {
        "waiting warps loop 0",
        "arriving warps loop 1",
        "barrier 0",
    }
    assert dict(places.roles)["barrier 0"] == "waiting warps"


def test_matmul_has_loops_and_one_role() -> None:
    kernel = kernel_of(MATMUL, "matmul")
    assert roles_of(kernel) == []
    assert kernel.cfg is not None
    head, back = loops_of(kernel.cfg.graph)[0]
    assert head < back and "BRA" in kernel.texts[back]
    assert {"barrier 0", "barrier 1"} <= {site.label for site in automatic(kernel).sites}


@pytest.mark.parametrize("name", ["hgmma_matmul", "triton_attention", "tilelang_matmul", "cute_matmul"])
def test_both_ends_of_a_region_are_recorded_by_every_warp_that_comes_by(name: str) -> None:
    """A loop's last trip does not take the branch that ends it, and what follows a wait may be guarded."""
    (kernel,) = Cubin.from_file(Path(__file__).parents[1] / f"scopes/data/{name}.cubin").get_map_kernel_def().values()
    places = automatic(kernel)
    guarded = 0
    for start, end, label in places.regions:
        for number in (start, end):
            site = places.sites[number]
            guarded += kernel.texts[site.insert_index].startswith("@")
            assert site.unconditional or not kernel.texts[site.insert_index].startswith("@"), (label, site)
    assert guarded or name == "cute_matmul"
    arrivals = [site for site in places.sites if str(site.label).startswith("mbarrier arrive")]
    assert not any(site.unconditional for site in arrivals) and bool(arrivals) is (name == "hgmma_matmul")
    if name == "hgmma_matmul":
        end = next(end for _, end, label in places.regions if label == "MMA wait 0")
        assert places.sites[end].insert_index in {site.insert_index for site in arrivals}


def test_a_hopper_gemm_has_a_tma_producer_and_an_mma_consumer(corpus_sm90: list[Path]) -> None:
    (path,) = [path for path in corpus_sm90 if "xformers-07f3da197567" in path.name]
    kernels = Cubin.from_file(path).get_map_kernel_def()
    name = next(
        name for name in kernels if "4gemm6kernel13GemmUniversal" in name and "TmaGmmaWarpSpecialized" in name
    )
    roles = {role.name: role.body for role in roles_of(kernels[name])}
    assert set(roles) == {"MMA consumer 0", "TMA producer"}
    texts = kernels[name].texts
    assert any("UTMALDG" in texts[index] for index in roles["TMA producer"])
    assert all("GMMA" not in texts[index] for index in roles["TMA producer"])
    assert any("GMMA" in texts[index] for index in roles["MMA consumer 0"])


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("BAR.SYNC.DEFER_BLOCKING", "barrier"),
        ("BAR.ARV", "barrier arrive"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", "mbarrier wait"),
        ("SYNCS.ARRIVE.TRANS64.A1T0", "mbarrier arrive"),
        ("SYNCS.EXCH.64", None),
        ("UTMALDG.2D", "TMA issue"),
        ("UTMASTG.3D", "TMA store"),
        ("HGMMA.64x64x16.F32", "MMA"),
        ("WARPGROUP.DEPBAR.LE", "MMA wait"),
        ("WARPGROUP.ARRIVE", None),
        ("BARRIER", None),
        ("LDG.E", None),
    ],
)
def test_what_an_instruction_is_to_a_reader(opcode: str, kind: str | None) -> None:
    assert kind_of(opcode) == kind


FORMAT = RingFormat(RecordKind.NARROW, 4)
MAP = site_map("gpu", FORMAT, [site(0, warp=True), site(1, warp=True)])


def test_a_hanging_ring_says_where_each_warp_was_last() -> None:
    layout = RingLayout(FORMAT, (3, 1, 1), (64, 1, 1), 3)
    writer = Writer(layout, MAP, Clocks())
    for cta in range(2):  # the third CTA has not started
        writer.enter(cta, cta, sm=cta, t=100.0)
    writer.visit(0, [0], 0, 300.0)
    writer.visit(0, [3], 1, 364.0)
    for turn in range(3):
        writer.visit(1, [0], 0, 300.0 + 64 * turn)
    writer.visit(2, [5], 1, 300.0)
    seen = last_seen(np.frombuffer(bytes(writer.data), np.uint8), layout)
    assert [(item.cta, item.warp, item.site, item.visits) for item in seen] == [
        (0, 0, 1, 1),
        (0, 1, 0, 3),
        (1, 0, 1, 1),
        (1, 1, -1, 0),
    ]
    lines = hang_lines(seen, layout, MAP, [Role("TMA producer", frozenset({10}))])
    text = "\n".join(lines)
    assert "TMA producer: 2 warps last seen at site 1 (instruction 10: NOP)" in text
    assert "1 warps last seen at site 0" in text and "visit 3 of it" in text
    assert "1 warps last seen at the entry" in text and "2 of 6 warps have not started" in text


SECOND = 1e9


@pytest.mark.parametrize(
    "fmt",
    [
        FORMAT,
        RingFormat(RecordKind.WIDE, 4),
        RingFormat(RecordKind.LONG, 4),
        RingFormat(RecordKind.NARROW, 32, Keep.NEWEST, True),
        RingFormat(RecordKind.NARROW, 4, Keep.FIRST),
    ],
)
def test_a_warp_was_last_where_its_newest_record_is_however_long_ago_the_others_are(fmt: RingFormat) -> None:
    """The low word of a clock says nothing about the order of records that are seconds apart."""
    layout = RingLayout(fmt, (4, 1, 1), (32, 1, 1), 4)
    smap = site_map("gpu", fmt, [site(0, warp=True), site(1, warp=True)])
    writer = Writer(layout, smap, Clocks())
    times = ([0.1, 3.0], [0.1, 4.5], [0.1, 2.0, 4.0, 6.0, 8.5], [4.2, 4.4])
    for cta, visits in enumerate(times):
        writer.enter(cta, cta, sm=cta, t=100.0)
        for seconds in visits[:-1]:
            writer.visit(cta, [0], 0, seconds * SECOND)
        writer.visit(cta, [0], 1, visits[-1] * SECOND)
    seen = last_seen(np.frombuffer(bytes(writer.data), np.uint8), layout)
    assert [item.site for item in seen] == [1, 1, 1, 1]


def test_the_newest_record_is_found_where_the_sequence_wrapped() -> None:
    layout = RingLayout(FORMAT, (1, 1, 1), (32, 1, 1), 1)
    writer = Writer(layout, MAP, Clocks())
    writer.enter(0, 0, sm=0, t=100.0)
    writer.offset[0, 7] = ((1 << FORMAT.sequence_bits) - 2) << FORMAT.sequence_shift
    for number in (0, 0, 0, 1):
        writer.visit(0, [7], number, 300.0)
    (seen,) = last_seen(np.frombuffer(bytes(writer.data), np.uint8), layout)
    assert (seen.site, seen.visits) == (1, 1)


@pytest.fixture(scope="module")
def deadlock() -> KernelDef:
    return kernel_of(DEADLOCK, "pipeline")


def at(kernel: KernelDef, pattern: str) -> list[int]:
    return [index for index, text in enumerate(kernel.texts) if pattern in text]


def test_a_wait_on_an_mbarrier_ends_where_its_answer_is_known(deadlock: KernelDef) -> None:
    assert deadlock.cfg is not None or deadlock.parse_cfg() is None
    graph = deadlock.cfg.graph
    consumer, producer, *spun = at(deadlock, ".TRYWAIT")
    # The branch on the answer comes four instructions later, what is behind it is behind the wait.
    assert wait_end(deadlock.texts, graph, consumer) == (consumer + 5, spun[0] - 1)
    assert wait_end(deadlock.texts, graph, producer) == (producer + 2, spun[1] - 1)
    assert spins_of(deadlock.texts, graph) == {
        spun[0]: (spun[0] - 1, spun[0] + 2),
        spun[1]: (spun[1] - 1, spun[1] + 2),
    }
    places = automatic(deadlock)
    labels = {site.label: site.insert_index for site in places.sites}
    assert labels["mbarrier wait 0"] == consumer and labels["after mbarrier wait 0"] == consumer + 5
    assert labels["mbarrier wait 1"] == producer and "mbarrier wait 2" not in labels
    assert {(role, label) for label, role in places.roles} >= {
        ("consumer", "mbarrier wait 0"),
        ("TMA producer", "mbarrier wait 1"),
        ("consumer", "consumer loop 0"),
        ("TMA producer", "TMA producer loop 1"),
    }
    assert sum("loop head" in str(label) for label in labels) == 2, "the spins and the compiler's own loop are none"


def test_the_listing_of_a_kernel_says_where_its_code_stems_from(
    deadlock: KernelDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listing_of(deadlock, [30])
    assert found["text"] == [text.strip() for text in deadlock.texts] and len(found["place"]) == len(found["index"])
    file, line, outer, outer_line = found["places"][found["place"][at(deadlock, ".TRYWAIT")[0]]]
    assert outer.endswith("pipeline.cu") and file.endswith(".hpp") and outer_line == 41 and line > 0
    assert fits(found) and found["source"].keys() <= {place[0] for place in found["places"]}
    monkeypatch.setattr(listing, "WHOLE", 10)
    near = listing_of(deadlock, [30, 2])["index"]
    assert near == list(range(30 + listing.AROUND + 1))


def test_sites_in_inlined_code_know_the_line_that_called_it(deadlock: KernelDef) -> None:
    wait = at(deadlock, ".TRYWAIT")[0]
    inlined, own = with_callers(deadlock, [{"index": wait, "line": "x.hpp:1"}, {"index": 29, "line": "pipeline.cu:25"}])
    assert source_line(inlined) == "pipeline.cu:41" and source_line(own) == "pipeline.cu:25"


def test_only_branches_back_over_their_head_make_loops(deadlock: KernelDef) -> None:
    assert deadlock.cfg is not None
    loops = loops_of(deadlock.cfg.graph)
    spun = at(deadlock, ".TRYWAIT")[2:]
    joins = [index for index, text in enumerate(deadlock.texts) if text.startswith("BRA ")][:2]
    assert {(index - 1, index + 1) for index in spun} <= set(loops)
    assert not [back for _, back in loops if back in joins], "a way back from far-off code closes no loop"


def test_a_planted_deadlock_names_role_barrier_iteration_and_the_line_that_waits(deadlock: KernelDef) -> None:
    source = re.search(r'SOURCE = r"""(.*?)"""', PROGRAM.read_text(), re.DOTALL)
    assert source is not None
    lines = list(enumerate(source[1].splitlines(), 1))
    waits = {word: next(n for n, text in lines if f"// {word}" in text) for word in ("PRODUCER", "CONSUMER")}
    places = automatic(deadlock)
    planned = plan_trace(Cubin.from_file(DEADLOCK), "pipeline", places.sites, clock="anchor", depth=64)
    labels = {str(item.label): item.site_id for item in planned.site_map.sites}
    layout = RingLayout(planned.site_map.format, (1, 1, 1), (128, 1, 1), 1)
    writer = Writer(layout, planned.site_map, Clocks())
    writer.enter(0, 0, sm=0, t=100.0)
    for turn in range(4):
        for warp in range(1, 4):
            writer.visit(warp, [0], labels["mbarrier wait 0"], 300.0 + 100 * turn)
            writer.visit(warp, [0], labels["after mbarrier wait 0"], 350.0 + 100 * turn)
        writer.visit(0, [0], labels["mbarrier wait 1"], 310.0 + 100 * turn)
    for warp in (1, 2):
        writer.visit(warp, [0], labels["mbarrier wait 0"], 900.0)
    writer.visit(3, [0], next(item.site_id for item in planned.site_map.sites if item.label == "exit"), 900.0)
    seen = last_seen(np.frombuffer(bytes(writer.data), np.uint8), layout)
    text = "\n".join(hang_lines(seen, layout, planned.site_map, roles_of(deadlock), deadlock))
    for role, count, number, word in (("TMA producer", 1, 1, "PRODUCER"), ("consumer", 2, 0, "CONSUMER")):
        place = rf"mbarrier wait {number} \(.*TRYWAIT.*pipeline\.cu:{waits[word]}, inlined"
        assert re.search(rf"{role}: {count} warps last seen at {place}", text), text
    assert "visit 5 of it" in text and "consumer: 1 warps last seen at exit" in text


def test_the_import_watch_tells_once_and_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched_one.py").write_text("value = 7")
    (tmp_path / "watched_two.py").write_text("import watched_one\nvalue = watched_one.value + 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    told: list[str] = []
    watch = ImportWatch(("watched_one", "watched_two"), told.append)
    monkeypatch.setattr(sys, "meta_path", [watch, *sys.meta_path])
    import watched_two  # type: ignore[import-not-found]

    assert watched_two.value == 8 and told == ["watched_one"] and watch not in sys.meta_path
    assert type(watched_two.__spec__.loader).__name__ == "SourceFileLoader" == type(watched_two.__loader__).__name__


def test_an_interpreter_without_gwatchs_needs_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gwatch.cuda.program.running", None)
    process = Process(ProgramOptions(str(tmp_path)).to_text())
    process.hello()
    process.cuda_seen("torch")
    process.finish()
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["state"] == "failed" and found["problems"][0].startswith("[dependency-missing]")
    process.finish()  # once only
    path.unlink()
    process.finish()
    assert not list(tmp_path.iterdir())


class Events:
    """A driver that has nothing but events, reached when a test says so."""

    def __init__(self) -> None:
        self.made, self.reached = 0, set[int]()

    def create_event(self) -> int:
        self.made += 1
        return self.made

    def record_event(self, event: int, stream: int) -> None:
        self.reached.discard(event)

    def elapsed_ms(self, start: int, end: int) -> float | None:
        return 0.5 if {start, end} <= self.reached else None


def test_event_pairs_are_used_again_and_bursts_go_untimed() -> None:
    driver = Events()
    watch = Stopwatch(driver)  # type: ignore[arg-type]
    times: list[float] = []
    for _ in range(600):
        span = watch.start(1, 0, "k")
        if span is not None:
            watch.stop(span, 0, times.append)
    assert driver.made == 1024 and times == []
    driver.reached = set(range(1, 1025))
    assert watch.start(1, 0, "k") is not None
    assert times == [500_000.0] * 512 and driver.made == 1024


class SlowEvents(Events):
    """All of them reached; other threads get on while one asks."""

    def elapsed_ms(self, start: int, end: int) -> float | None:
        sleep(1e-4)
        return 0.5


def test_a_pair_has_one_owner_however_many_threads_launch() -> None:
    """Two threads that took the same times gave both events of a pair away twice: times of -125 ms were seen."""
    watch = Stopwatch(SlowEvents())  # type: ignore[arg-type]
    owned: set[tuple[int, int]] = set()
    twice: list[tuple[int, int]] = []
    taken: list[float] = []

    def launches() -> None:
        for number in range(100):
            span = watch.start(1, 0, "k")
            assert span is not None
            pair = span.events
            if pair in owned:
                twice.append(pair)
            owned.add(pair)

            def done(ns: float, pair: tuple[int, int] = pair) -> None:
                owned.discard(pair)
                taken.append(ns)

            watch.stop(span, 0, done)
            if number % 3 == 0:
                watch.collect(1)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=launches) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    watch.collect(1)
    assert not twice and not owned and taken == [500_000.0] * 600
