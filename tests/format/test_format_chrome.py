"""The trace event export: every interval once, on tracks where they nest, with flows between roles."""

from __future__ import annotations

import json

import pytest
from format_synth import REGIONS, ROLES, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.chrome import events
from gwatch.common.format.run import run_of
from gwatch.common.format.waits import find_waits


def exported(tmp_path, *results, regions=REGIONS, roles=ROLES):
    file, section = File(), Section_IntraKernelTrace()
    for result in results:
        section.add_run(result, regions, roles)
    file.add_section(section)
    file.render(tmp_path / "t.chrome.json")
    return json.loads((tmp_path / "t.chrome.json").read_text())["traceEvents"], section.runs


def test_every_interval_is_there_once_with_its_times(tmp_path):
    made, (run,) = exported(tmp_path, specialised(blocks=3))
    complete = [e for e in made if e["ph"] == "X"]
    iv, base = run.intervals, run.time_range[0]
    assert sorted((e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000), e["pid"]) for e in complete) == sorted(
        (run.labels[k], int(s) - base, int(e - s), int(run.trace.rows.block[r]))
        for k, s, e, r in zip(run.scope, iv.start, iv.end, iv.row, strict=True))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in made if e["name"] == "thread_name"}
    assert sorted(names.values()) == sorted(f"b{b} w{w}" for b in range(3) for w in range(8))
    assert {e["args"]["name"] for e in made if e["name"] == "process_name"} == {
        "block 0 (SM 0)", "block 1 (SM 1)", "block 2 (SM 2)"}
    assert {e["cat"] for e in complete} == {"Copy Warp", "Math Warp"}


def test_flows_join_what_ended_with_what_waited(tmp_path):
    made, (run,) = exported(tmp_path, specialised(blocks=1))
    starts = {e["id"]: e for e in made if e["ph"] == "s"}
    ends = {e["id"]: e for e in made if e["ph"] == "f"}
    assert set(starts) == set(ends) and len(starts) == int((find_waits(run).released_by >= 0).sum()) > 50
    assert all(starts[k]["ts"] <= ends[k]["ts"] and starts[k]["tid"] != ends[k]["tid"] for k in starts)


def test_records_outside_regions_are_instants_and_runs_do_not_mix(tmp_path):
    made, runs = exported(tmp_path, specialised(blocks=2), specialised(blocks=2, seed=5), regions=REGIONS[:1],
                          roles=None)
    instants = [e for e in made if e["ph"] == "i"]
    assert len(instants) == sum(int((run.trace.site > 1).sum()) for run in runs)
    assert {e["pid"] for e in made} == {0, 1, 2, 3}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=30),
       st.sampled_from(["nested", "fifo"]))
def test_on_a_track_intervals_nest_or_stay_apart(steps, pairing):
    time, row = 100, []
    for site, step in steps:
        time += step
        row.append((site, time))
    run = run_of(result_of({(0, 0): row}, (1, 1, 1), (32, 1, 1)), [(0, 1, "a", pairing), (2, 3, "b", pairing)])
    made = [e for e in events(run) if e["ph"] == "X"]
    assert len(made) == len(run.intervals)
    spans = [(e["tid"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in made]
    for i, (track, start, end) in enumerate(spans):
        for other, s, e in spans[:i]:
            assert other != track or end <= s or e <= start or (s <= start and end <= e) or (start <= s and e <= end)


@pytest.mark.parametrize("name", ["x.chrome.json", "x.json"])
def test_the_file_name_decides(name, tmp_path):
    file = File()
    file.render(tmp_path / name)
    assert ("traceEvents" in json.loads((tmp_path / name).read_text())) == (name == "x.chrome.json")
