"""The .pftrace export, read back packet by packet the way Perfetto's importer does: one stack of slices per track."""

from __future__ import annotations

import collections
import subprocess
import sys

import pytest
from format_synth import REGIONS, ROLES, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.perfetto import pftrace_chunks
from gwatch.common.format.run import run_of
from gwatch.common.format.waits import find_waits

Slice = collections.namedtuple("Slice", "track start end name category depth args starts_flows ends_flows")


def read(data):
    """(slices and instants, track descriptors by uuid) of a trace; asserts what the importer would drop or mend."""
    trace = protos.Trace()
    trace.ParseFromString(data)
    names, categories, keys, tracks, stacks, made = {}, {}, {}, {}, collections.defaultdict(list), []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        names.update((n.iid, n.name) for n in packet.interned_data.event_names)
        categories.update((n.iid, n.name) for n in packet.interned_data.event_categories)
        keys.update((n.iid, n.name) for n in packet.interned_data.debug_annotation_names)
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    # The importer sorts by time and keeps file order among equal times.
    events = sorted((p for p in trace.packet if p.HasField("track_event")), key=lambda p: p.timestamp)
    for packet in events:
        event, stack = packet.track_event, stacks[packet.track_event.track_uuid]
        assert event.track_uuid in tracks
        if event.type == event.TYPE_SLICE_END:
            start, opening, depth = stack.pop()
            made.append(Slice(event.track_uuid, start, packet.timestamp, names[opening.name_iid],
                              tuple(categories[i] for i in opening.category_iids), depth,
                              {keys[a.name_iid]: a.uint_value for a in opening.debug_annotations},
                              tuple(event.flow_ids), tuple(opening.terminating_flow_ids)))
        elif event.type == event.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, event, len(stack)))
        else:
            assert event.type == event.TYPE_INSTANT
            made.append(Slice(event.track_uuid, packet.timestamp, None, names[event.name_iid], (), len(stack),
                              {keys[a.name_iid]: a.uint_value for a in event.debug_annotations}, (), ()))
    assert not any(stacks.values())
    return made, tracks


def path(tracks, uuid):
    parts = []
    while uuid:
        parts.append(tracks[uuid].name or tracks[uuid].process.process_name)
        uuid = tracks[uuid].parent_uuid
    return parts[::-1]


def exported(tmp_path, *results, regions=REGIONS, roles=ROLES):
    file, section = File(), Section_IntraKernelTrace()
    for result in results:
        section.add_run(result, regions, roles)
    file.add_section(section)
    file.render(tmp_path / "t.pftrace")
    return *read((tmp_path / "t.pftrace").read_bytes()), section.runs


def test_counts_and_sums_are_those_of_the_tables(tmp_path):
    made, _, (run,) = exported(tmp_path, specialised(blocks=3))
    per = collections.defaultdict(list)
    for s in made:
        per[s.name].append(s.end - s.start)
    assert len(made) == len(run.intervals) > 200
    assert {k: (len(v), sum(v), min(v), max(v)) for k, v in per.items()} == {
        s["scope_label"]: (s["count"], s["total"], s["min"], s["max"]) for s in run.analysis["scope_stats"]}
    assert {(s.name, *s.category) for s in made} == {(k, v) for k, v in ROLES.items()}


def test_tracks_stand_in_sm_block_and_row(tmp_path):
    made, tracks, (run,) = exported(tmp_path, specialised(blocks=3))
    found = sorted({tuple(path(tracks, s.track)) for s in made})
    rows = run.trace.rows
    roles, role = run.row_roles
    assert found == sorted((run.kernel, f"SM {rows.smid[r]}", f"block {rows.block[r]}",
                            f"b{rows.block[r]} w{rows.warp[r]} {roles[role[r]]}") for r in range(len(rows)))


def test_each_slice_is_an_interval_with_its_record(tmp_path):
    result = specialised(blocks=2)
    result["records"]["value"] = (1 << 63) + result["records"]["sequence"].astype("u8")
    made, tracks, (run,) = exported(tmp_path, result)
    iv, base = run.intervals, run.time_range[0]
    assert sorted((s.name, s.start, s.end, path(tracks, s.track)[-1].rsplit(" ", 2)[0], s.args["record"],
                   s.args["value"]) for s in made) == sorted(
        (run.labels[k], int(a) - base, int(b) - base, f"b{run.trace.rows.block[r]} w{run.trace.rows.warp[r]}",
         int(run.trace.sequence[o]), int(run.trace.value[o]))
        for k, a, b, r, o in zip(run.scope, iv.start, iv.end, iv.row, iv.opened, strict=True))


def test_flows_lead_from_what_ended_to_what_followed_the_wait(tmp_path):
    made, tracks, (run,) = exported(tmp_path, specialised(blocks=2))
    leaves = {flow: s for s in made for flow in s.starts_flows}
    reaches = {flow: s for s in made for flow in s.ends_flows}
    waits = find_waits(run)
    given = [i for i in range(len(waits.row)) if waits.released_by[i] >= 0]
    assert len(given) > 50 and set(leaves) == set(reaches) and len(leaves) == len(given)
    base = run.time_range[0]
    assert sorted((leaves[f].end, reaches[f].start) for f in leaves) == sorted(
        (int(run.intervals.end[waits.released_by[i]]) - base, int(waits.end[i]) - base) for i in given)
    assert all(path(tracks, leaves[f].track)[2] == path(tracks, reaches[f].track)[2] for f in leaves)


def test_lonely_records_are_instants_and_runs_stay_apart(tmp_path):
    made, tracks, runs = exported(tmp_path, specialised(blocks=2), specialised(blocks=2, seed=5, clock_type="sm"),
                                  regions=REGIONS[:1], roles=None)
    assert sum(s.end is None for s in made) == sum(int((run.trace.site > 1).sum()) for run in runs)
    assert {path(tracks, s.track)[0] for s in made} == {
        "run 0: _Z4gemmPKfS0_Pf", "run 1: _Z4gemmPKfS0_Pf (unit: cycles, each SM from 0)"}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=30),
       st.sampled_from(["nested", "fifo"]))
def test_overlapping_nested_and_empty_intervals_keep_their_times(steps, pairing):
    time, row = 100, []
    for site, step in steps:
        time += step
        row.append((site, time))
    regions = [(0, 1, "a", pairing), (2, 3, "b", pairing), (0, 3, "c", pairing)]
    run = run_of(result_of({(0, 0): row}, (1, 1, 1), (32, 1, 1)), regions)
    made, _ = read(b"".join(pftrace_chunks([run])))
    iv, base = run.intervals, run.time_range[0]
    assert sorted((s.name, s.start, s.end) for s in made if s.end is not None) == sorted(
        (run.labels[k], int(a) - base, int(b) - base) for k, a, b in zip(run.scope, iv.start, iv.end, strict=True))
    lonely = sum(site == 4 for site, _ in steps)
    assert sum(s.end is None for s in made) == lonely


def test_nothing_recorded_and_odd_text(tmp_path):
    made, tracks, _ = exported(tmp_path, result_of({}, (1, 1, 1), (32, 1, 1), kernel_prototype="k\udc80µ"), roles=None)
    assert made == [] and [path(tracks, t) for t in tracks] == [["k\\udc80µ"]]


def test_without_the_package_it_says_what_to_install(tmp_path):
    script = ("import sys; sys.modules['perfetto.protos.perfetto.trace'] = None\n"
              "from gwatch.common.format import File\n"
              f"File().render({str(tmp_path / 'x.pftrace')!r})\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "[perfetto-missing]" in done.stderr and "gwatch-sass[perfetto]" in done.stderr
    assert not (tmp_path / "x.pftrace").exists() and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fmt", ["pftrace", "perfetto"])
def test_the_form_can_be_named(fmt, tmp_path):
    File().render(tmp_path / "x.bin", fmt)
    assert read((tmp_path / "x.bin").read_bytes()) == ([], {})
