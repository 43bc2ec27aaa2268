"""NVIDIA IKET's JSON: every range, marker and lifetime comes through, in both forms; what is wrong is named."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.cli.main import main
from gwatch.common.format import File
from gwatch.common.format.iket import read_iket
from gwatch.errors import TraceError


def place(cta=(0, 0, 0), warp=0, sm=3):
    return {"smId": sm, "tpcId": 1, "gpcId": 0, "ctaId": list(cta), "warpId": warp}


def spelled():
    """A trace with names and places written out, as the vendor's guide shows it."""
    return {"launches": [{
        "gridId": 7, "kernelName": "my_kernel",
        "ranges": [
            {"rangeName": "mainloop", "rangeScope": 0, "startTs": 1000, "endTs": 2500, "warpLocs": [place()],
             "internalEvents": []},
            {"rangeName": "mainloop", "rangeScope": 0, "startTs": 1032, "endTs": 3000,
             "warpLocs": [place((1, 0, 0), 2)],
             "internalEvents": [{"eventId": 1, "timestamp": 1032, "payloadType": 5, "payloadVal": 77},
                                {"eventId": 31, "timestamp": 3000}]}],
        "markers": [{"markerName": "checkpoint", "timestamp": 1504, "location": place(), "payloadType": 0,
                     "payloadVal": -1}],
        "warpLifetimes": [{"startTs": 900, "endTs": 3800, "warpLocation": place()}]}]}


def tabled():
    """The same with tables, as run-iket writes it."""
    data = spelled()
    strings, places = ["checkpoint", "mainloop"], [place(), place((1, 0, 0), 2)]
    launch = data["launches"][0]
    for entry in launch["ranges"]:
        entry["rangeNameIdx"] = strings.index(entry.pop("rangeName"))
        entry["warpLocIdxs"] = [places.index(entry.pop("warpLocs")[0])] * 2
    for entry, key in ((launch["markers"][0], "location"), (launch["warpLifetimes"][0], "warpLocation")):
        entry["locIdx"] = places.index(entry.pop(key))
    launch["markers"][0]["markerNameIdx"] = strings.index(launch["markers"][0].pop("markerName"))
    return {"stringTable": strings, "locationTable": places, "launches": data["launches"], "graphLaunches": {}}


@pytest.mark.parametrize("data", [spelled(), tabled()], ids=["spelled", "tabled"])
def test_everything_comes_through(data):
    (run,) = read_iket(data, "x.json")
    iv, rows = run.intervals, run.trace.rows
    assert (run.kernel, run.geometry.grid, run.geometry.block, run.unit, run.granularity) == (
        "my_kernel", (2, 1, 1), (96, 1, 1), "ns", "warp")
    assert [(run.labels[k], int(a), int(b), int(rows.block[r]), int(rows.warp[r]), int(rows.smid[r]),
             int(run.trace.value[o])) for k, a, b, r, o in
            zip(run.scope, iv.start, iv.end, iv.row, iv.opened, strict=True)] == [
        ("mainloop", 1000, 2500, 0, 0, 3, 0), ("mainloop", 1032, 3000, 1, 2, 3, 77)]
    what = [run.sites[s]["instruction"] for s in run.trace.site]
    points = [(w, int(t), int(v)) for w, t, v in zip(what, run.trace.time, run.trace.value, strict=True)
              if "range" not in w]
    assert points == [("IKET warp start", 900, 0), ("IKET marker checkpoint", 1504, (1 << 64) - 1),
                      ("IKET warp end", 3800, 0)]
    assert run.analysis["dropped"] is None and run.verdict.trustworthy == "unknown"
    assert run.launch == {"grid_id": 7}
    assert any("smallest" in w for w in run.warnings)


def test_dimensions_of_the_file_are_used_and_graphs_are_runs():
    data = tabled()
    launch = data["launches"][0]
    dims = {f"{what}Dim{axis}": n for what, ns in (("grid", (4, 2, 1)), ("block", (128, 1, 1)))
            for axis, n in zip("XYZ", ns, strict=True)}
    launch.update(dims)
    data["graphLaunches"] = {"graph 5": [copy.deepcopy(launch)]}
    runs = read_iket(data, "x")
    assert [(r.geometry.grid, r.geometry.block, r.launch.get("graph")) for r in runs] == [
        ((4, 2, 1), (128, 1, 1), None), ((4, 2, 1), (128, 1, 1), "graph 5")]
    assert not any("smallest" in w for w in runs[0].warnings)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 12), st.integers(0, 1)),
                max_size=25))
def test_overlapping_ranges_of_one_name_keep_their_partners(made):
    ranges = [{"rangeName": n, "startTs": 1000 + s, "endTs": 1000 + s + d, "warpLocs": [place(warp=w)]}
              for n, s, d, w in made]
    (run,) = read_iket({"launches": [{"kernelName": "k", "ranges": ranges}]}, "x")
    iv = run.intervals
    assert sorted((run.labels[k], int(a), int(b), int(run.trace.rows.warp[r])) for k, a, b, r in
                  zip(run.scope, iv.start, iv.end, iv.row, strict=True)) == sorted(
        (n, 1000 + s, 1000 + s + d, w) for n, s, d, w in made)
    assert all(s["pair_rate"] == 1.0 for s in run.analysis["region_stats"])


def test_a_range_of_several_warps_and_odd_payloads_are_told():
    data = spelled()
    data["launches"][0]["ranges"][0]["warpLocs"].append(place(warp=1))
    data["launches"][0]["markers"][0]["payloadVal"] = 1.5
    (run,) = read_iket(data, "x")
    assert any("1 ranges name several warps" in w for w in run.warnings)
    assert any("1 payloads are no integers" in w for w in run.warnings)


@pytest.mark.parametrize(("change", "says"), [
    (lambda d: d["launches"][0]["ranges"][0].update(endTs=10), "ranges[0] ends before"),
    (lambda d: d["launches"][0]["ranges"][0].update(startTs="1"), "startTs is '1'"),
    (lambda d: d["launches"][0]["ranges"][0].update(startTs=1 << 63), "startTs is 9223372036854775808"),
    (lambda d: d["launches"][0]["ranges"][1].update(rangeNameIdx=2), "outside the string table"),
    (lambda d: d["launches"][0]["ranges"][1].update(warpLocIdxs=[2]), "location 2"),
    (lambda d: d["launches"][0]["ranges"][1].update(warpLocIdxs=[]), "names no warp"),
    (lambda d: d["launches"][0]["markers"][0].update(locIdx=-1), "location -1"),
    (lambda d: d["launches"][0]["markers"][0].pop("timestamp"), "timestamp is None"),
    (lambda d: d["locationTable"][0].update(ctaId=[0, 0]), "ctaId is [0, 0]"),
    (lambda d: d["locationTable"][0].update(warpId=True), "warpId is True"),
    (lambda d: d["launches"][0].update(ranges={}), "ranges is no list"),
    (lambda d: d["launches"].append(3), "launches[1] is no object"),
    (lambda d: d.update(graphLaunches=[1]), "graphLaunches is no object"),
    (lambda d: d["launches"][0].update(gridDimX=1), "gridDimY is None"),
    (lambda d: d["launches"][0].update(gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=32, blockDimY=1, blockDimZ=1),
     "outside the launch"),
])
def test_what_is_wrong_is_named(change, says):
    data = tabled()
    change(data)
    with pytest.raises(TraceError) as caught:
        read_iket(data, "x.json")
    assert caught.value.code == "bad-iket" and says in caught.value.message and "x.json" in caught.value.message


def test_show_reads_it_and_it_renders_and_comes_back(tmp_path, capsys):
    (tmp_path / "iket.json").write_text(json.dumps(tabled()))
    assert main(["show", str(tmp_path / "iket.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("trustworthy: unknown") and "mainloop" in out and "IKET marker checkpoint" in out
    report = File.load(tmp_path / "iket.json")
    for name in ("t.json", "t.gwatch", "t.html", "t.pftrace"):
        report.render(tmp_path / name)
    for name in ("t.json", "t.gwatch"):
        assert main(["show", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out.replace(name, "iket.json") == out


def test_an_empty_launch_is_a_run_without_records(tmp_path):
    (tmp_path / "e.json").write_text('{"launches": [{"kernelName": "k"}]}')
    assert main(["show", str(tmp_path / "e.json")]) == 3
