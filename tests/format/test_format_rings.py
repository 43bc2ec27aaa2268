"""From ring bytes to regions: what a simulated kernel did, decoded, told, and never told wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "xtrace"))

from ringsim import Clocks, Writer, site, site_map
from test_decode import run_random

from gwatch.common.format import File
from gwatch.common.format.run import run_of
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.cuda.xtrace.format import Section_IntraKernelTrace, decoded_result
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.rewrite.ring import Keep, RecordKind, RingFormat, RingLayout

REGIONS = [(0, 1, "thread"), (1, 0, "back"), (2, 3, "warp"), (3, 2, "warp back")]


def simulate(seed, keep, depth, block, grid, visits=40):
    """(writer, decoded ring, layout) of random visits of two thread-level and two warp-level sites."""
    fmt = RingFormat(RecordKind.NARROW, depth, keep)
    layout = RingLayout.for_launch(fmt, grid, block)
    sites = [site(0), site(1), site(2, warp=True), site(3, warp=True)]
    writer = Writer(layout, site_map("sm", fmt, sites), Clocks(seed=seed % 1000), seed)
    run_random(writer, seed, visits=visits, length=50_000.0)
    return writer, decode_ring(bytes(writer.data), layout, writer.map, 80_000.0), layout


def true_intervals(writer, run):
    """Every interval of every region in the complete stream, dropped records included."""
    base = {}
    rows = run.trace.rows
    for r in range(len(rows)):
        base[int(rows.block[r]) * writer.layout.warps_per_cta + int(rows.warp[r])] = int(rows.origin[r])
    streams: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for warp, lane, number, _, t, _ in writer.truth:
        streams.setdefault((warp, -1 if number > 1 else lane), []).append((t, number))
    truth: dict[tuple[int, int, int], set[tuple[int, int]]] = {}
    for (warp, lane), events in streams.items():
        for index, (enter, leave, _) in enumerate(REGIONS):
            stack: list[float] = []
            for t, number in sorted(events):
                if number == enter:
                    stack.append(t)
                elif number == leave and stack:
                    span = tuple(writer.clocks.cycles(writer.sm[warp], x) - base.get(warp, 0)
                                 for x in (stack.pop(), t))
                    truth.setdefault((warp, lane, index), set()).add(span)
    return truth


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2 ** 32), keep=st.sampled_from(list(Keep)), depth=st.sampled_from([1, 4, 8, 64]),
       block=st.sampled_from([(32, 1, 1), (8, 5, 1), (3, 7, 5)]), grid=st.sampled_from([(1, 1, 1), (3, 1, 1)]))
def test_no_interval_is_told_that_did_not_happen(seed, keep, depth, block, grid):
    writer, decoded, layout = simulate(seed, keep, depth, block, grid)
    result = decoded_result(decoded, writer.map, layout)
    if len(decoded.records) == 0:
        return
    run = run_of(result, REGIONS)
    truth = true_intervals(writer, run)
    iv, rows = run.intervals, run.trace.rows
    told: dict[tuple[int, int, int], set[tuple[int, int]]] = {}
    for row, region, start, end in zip(iv.row, iv.region, iv.start, iv.end, strict=True):
        key = (int(rows.block[row]) * layout.warps_per_cta + int(rows.warp[row]), int(rows.lane[row]), int(region))
        told.setdefault(key, set()).add((int(start), int(end)))
    for key, spans in told.items():
        assert spans <= truth[key]
    if decoded.dropped_total == 0:
        assert told == {key: spans for key, spans in truth.items() if spans}
    assert int(rows.dropped.sum()) == decoded.dropped_total == run.analysis["dropped"]
    if decoded.dropped_total:
        assert run.verdict.trustworthy == "no" and "dropped" in run.verdict.reasons[0]


def test_a_region_from_a_thread_site_to_a_warp_site_says_why_it_is_empty():
    writer, decoded, layout = simulate(3, Keep.NEWEST, 64, (64, 1, 1), (1, 1, 1))
    run = run_of(decoded_result(decoded, writer.map, layout), [(0, 2, "mixed"), (2, 3, "warp")])
    assert run.analysis["region_stats"][0]["intervals"] == 0
    assert any(r.startswith("region mixed: one of sites 0 and 2 records threads, the other warps")
               for r in run.verdict.reasons)
    assert not any("region warp: one of" in r for r in run.verdict.reasons)


def test_a_trace_result_is_told_without_its_row_form():
    writer, decoded, layout = simulate(3, Keep.NEWEST, 64, (64, 1, 1), (2, 1, 1))
    result = TraceResult(decoded_result(decoded, writer.map, layout))
    run = run_of(result, REGIONS)
    assert len(run.trace) == len(decoded.records) > 100
    assert not dict.__contains__(result, "trace_results")
    # Made when asked for, it says the same: the same rows, sites and times, SM origins taken off.
    rows = result["trace_results"]
    told = {(int(run.trace.rows.tid[r]), int(s), int(t + run.trace.rows.origin[r])) for r, s, t in zip(
        run.trace.row, run.trace.site, run.trace.time, strict=True)}
    assert {(r["global_tid"], r["site_id"], r["timestamp"]) for r in rows} == told


def test_the_sections_old_and_new_import_path_are_one_class():
    code = ("import sys; from gwatch.cuda.xtrace.format import Section_IntraKernelTrace as a;"
            "from gwatch.cuda.trace.format import Section_IntraKernelTrace as b;"
            "from gwatch.common.format import Section_IntraKernelTrace as c; assert a is b is c;"
            "assert not any(m.split('.')[0] in ('cuda', 'torch', 'cupy') for m in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[2], check=False,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_decoded_ring_becomes_a_report(tmp_path):
    writer, decoded, layout = simulate(7, Keep.FIRST, 16, (64, 1, 1), (2, 1, 1))
    section = Section_IntraKernelTrace()
    section.add_run(decoded_result(decoded, writer.map, layout), REGIONS)
    file = File()
    file.add_section(section)
    file.render(tmp_path / "t.json")
    run = File.load(tmp_path / "t.json").traces[0].runs[0]
    assert len(run.trace) == len(decoded.records)
    assert run.analysis["record_granularity"] == "thread"
    assert sorted(np.unique(run.trace.rows.lane))[0] == -1
    assert any("not checked" in r for r in run.analysis["verdict"]["reasons"])
