"""Runs of several processes of one machine on one time axis."""

from __future__ import annotations

import pytest
from format_synth import REGIONS, ROLES, specialised
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.align import begins
from gwatch.common.format.run import run_of


def clock(offset, error=4000, host="boot-1"):
    return {"host_clock": {"offset_ns": offset, "error_ns": error, "host": host}}


def runs(*launches, **changes):
    return [run_of(specialised(seed=i, launch=launch, **changes), REGIONS, ROLES) for i, launch in enumerate(launches)]


def test_runs_begin_by_the_hosts_clock():
    made = runs(clock(1_000_000), clock(950_000, 6000), clock(1_000_100, 5000))
    start = [run.time_range[0] for run in made]
    places, error = begins(made)
    assert error == 6000 + 5000, "the two least certain clocks"
    expected = [start[0] - 1_000_000, start[1] - 950_000, start[2] - 1_000_100]
    assert places == [place - min(expected) for place in expected] and min(places) == 0 and max(places) > 49_000


@pytest.mark.parametrize("launches", [
    [clock(1)], [clock(1), {}], [clock(1), clock(2, host="boot-2")], [clock(1), {"host_clock": {"offset_ns": "x"}}],
    [clock(1, host=""), clock(2, host="")]])
def test_runs_that_do_not_know_keep_their_own_axis(launches):
    assert begins(runs(*launches)) is None
    assert begins(runs(clock(1), clock(2), clock_type="sm")) is None


def test_show_and_perfetto_use_the_common_axis(tmp_path, capsys):
    for i, launch in enumerate((clock(1_000_000), clock(950_000))):
        file, section = File(), Section_IntraKernelTrace()
        section.add_run(specialised(seed=1, launch=launch), REGIONS, ROLES)
        file.add_section(section)
        file.render(tmp_path / f"rank{i}.gwatch")
    names = [str(tmp_path / name) for name in ("rank0.gwatch", "rank1.gwatch", "t.pftrace")]
    assert main(["show", *names[:2], "-o", names[2]]) == 0
    out = capsys.readouterr().out
    assert "Runs (begins by the host's clock, within 8.00 us)" in out and "+50.00 us" in out and "+0 ns" in out
    trace = protos.Trace()
    trace.ParseFromString((tmp_path / "t.pftrace").read_bytes())
    times = [packet.timestamp for packet in trace.packet if packet.HasField("track_event")]
    half = len(times) // 2
    assert (min(times[:half]), min(times[half:])) == (0, 50_000)
