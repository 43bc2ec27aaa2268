"""The JSON report: envelope, schema, columns and rows, reading back, and refusing what is no report."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from format_synth import REGIONS, ROLES, many, result_of, specialised

import gwatch.common.format as common_format
from gwatch.cli.main import main
from gwatch.common.format import File, Section, Section_IntraKernelTrace, Section_Overview
from gwatch.common.format.run import analyse
from gwatch.errors import TraceError

SCHEMA = json.loads((files(common_format) / "trace.schema.json").read_text())


def report(*results, regions=REGIONS, roles=ROLES, row_form="auto", title="SASS trace"):
    file, section = File(title, generated_at="2026-01-02 03:04:05"), Section_IntraKernelTrace(row_form=row_form)
    for result in results:
        section.add_run(result, site_regions=regions, scope_roles=roles)
    file.add_section(section)
    return file


def rendered(file, tmp_path):
    file.render(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("result", [
    specialised(), specialised(keep=8), specialised(clock_type="sm"), many(n_rows=256, per_row=12),
    specialised(outputs=None, slowdown=None, registers=None, occupancy=None, cost_per_record=None),
    specialised(slowdown={"median": np.float64(1.02), "low": float("nan"), "high": np.inf, "noise": np.float32(0)}),
], ids=["plain", "drops", "per-sm", "threads", "no-evidence", "nan"])
def test_reports_follow_the_packaged_schema(result, tmp_path):
    regions = REGIONS if len(result["sites"]) > 3 else [(0, 1, "a"), (1, 2, "b", "fifo")]
    file = report(result, regions=regions, roles=None)
    data = rendered(file, tmp_path)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(data, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "sections": [{**data["sections"][1], "data": {"runs": [{}]}}]}, SCHEMA)


def test_the_envelope_is_the_known_one_and_analysis_comes_before_records(tmp_path):
    data = rendered(report(specialised()), tmp_path)
    assert list(data) == ["title", "sections"]
    first, second = data["sections"]
    assert first == {"title": "Overview", "type": "Section_Overview", "data": {
        "report_title": "SASS trace", "generated_at": "2026-01-02 03:04:05", "sections": ["Intra-Kernel Trace"]}}
    assert (second["title"], second["type"]) == ("Intra-Kernel Trace", "Section_IntraKernelTrace")
    (run,) = second["data"]["runs"]
    assert list(run) == ["kernel_prototype", "compile_results", "oe_results", "analysis", "records",
                         "trace_results"]
    text = (tmp_path / "trace.json").read_text()
    assert text.index('"analysis"') < text.index('"records"') < text.index('"trace_results"')
    assert ": " not in text.split('"analysis"')[0] and "NaN" not in text


def test_row_form_holds_every_record(tmp_path):
    result = specialised(blocks=1, warps=2, iterations=2)
    (run,) = rendered(report(result), tmp_path)["sections"][1]["data"]["runs"]
    expected = sorted(({"global_tid": int(r["warp"]) * 32, "site_id": int(r["site"]), "value": int(r["value"]),
                        "timestamp": int(r["time"]), "smid": int(r["smid"])} for r in result["records"]),
                      key=lambda r: (r["global_tid"], r["timestamp"]))
    assert run["trace_results"] == expected


def test_row_form_is_left_out_of_large_traces_unless_asked_for(tmp_path):
    big = many(n_rows=2048, per_row=26)
    kwargs = {"regions": [(0, 1, "a")], "roles": None}
    (run,) = rendered(report(big, **kwargs), tmp_path)["sections"][1]["data"]["runs"]
    assert "trace_results" not in run
    assert run["trace_results_omitted"] == 2048 * 26
    (run,) = rendered(report(big, row_form=True, **kwargs), tmp_path)["sections"][1]["data"]["runs"]
    assert len(run["trace_results"]) == 2048 * 26
    (run,) = rendered(report(specialised(), row_form=False), tmp_path)["sections"][1]["data"]["runs"]
    assert run["trace_results_omitted"] == len(specialised()["records"])
    with pytest.raises(ValueError, match="row_form"):
        Section_IntraKernelTrace(row_form="maybe")


def turns():
    """Two lanes take turns for their warp; one lost records in between and one after its last."""
    result = result_of({(0, 0): [(0, 100), (1, 140), (0, 150), (1, 190)]}, (1, 1, 1), (32, 1, 1))
    records = result["records"] = np.sort(result["records"], order="time")
    records["lane"], records["sequence"] = [3, 4, 3, 4], [0, 0, 1, 9]
    result["lost_after"] = np.array([(0, 3, 6)], [("warp", "i4"), ("lane", "i4"), ("lost", "i8")])
    return result


@pytest.mark.parametrize("result", [specialised(), specialised(keep=8), many(n_rows=128, per_row=30), turns(),
                                    specialised(clock_type="sm")],
                         ids=["plain", "drops", "threads", "turns", "per-sm"])
def test_a_report_reads_back_to_the_same_columns_and_tables(result, tmp_path):
    regions = REGIONS if len(result["records"]) > 4 and len(result["sites"]) > 3 else [(0, 1, "a"), (1, 0, "b")]
    file = report(result, regions=regions, roles=None, row_form=False)
    data = rendered(file, tmp_path)
    loaded = File.load(tmp_path / "trace.json")
    before, after = file.traces[0].runs[0], loaded.traces[0].runs[0]
    for name in ("row", "site", "time", "value", "sequence", "lane", "gap"):
        assert np.array_equal(getattr(before.trace, name), getattr(after.trace, name)), name
    for name in ("tid", "block", "warp", "lane", "smid", "dropped", "tail_gap", "origin", "exact"):
        assert np.array_equal(getattr(before.trace.rows, name), getattr(after.trace.rows, name)), name
    assert after.regions == before.regions
    stored = data["sections"][1]["data"]["runs"][0]["analysis"]
    assert json.loads(json.dumps(analyse(after))) == stored


def test_reading_back_and_writing_again_changes_nothing(tmp_path):
    report(specialised(keep=8), specialised(seed=2)).render(tmp_path / "a.json")
    File.load(tmp_path / "a.json").render(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_report_of_another_writer_with_rows_only_is_analysed_anew(tmp_path):
    rows = [{"global_tid": 64, "site_id": s, "value": 0, "timestamp": t} for s, t in ((0, 32), (1, 96))]
    run = {"kernel_prototype": "k", "compile_results": {"record_granularity": "warp"}, "oe_results": {},
           "analysis": {"grid_dim": [4, 1, 1], "block_dim": [64, 1, 1], "site_regions": [[0, 1, "r"]],
                        "scope_roles": {"r": "Role"}}, "trace_results": rows}
    (tmp_path / "old.json").write_text(json.dumps({"title": "t", "sections": [
        {"title": "x", "type": "Section_IntraKernelTrace", "data": {"runs": [run]}},
        {"title": "y", "type": "Section_Other", "data": {"z": [1]}}]}))
    file = File.load(tmp_path / "old.json")
    a = file.traces[0].runs[0].analysis
    assert a["scope_stats"][0]["total"] == 64
    assert (a["scope_roles"], a["grid_dim"], a["verdict"]["trustworthy"]) == ({"r": "Role"}, [4, 1, 1], "unknown")
    file.render(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["sections"][2] == {
        "title": "y", "type": "Section_Other", "data": {"z": [1]}}


def test_splice_results_keep_their_keys_as_text(tmp_path):
    data = rendered(report(specialised(splice_results={"sites": {0: {"spliced": "plain"}}})), tmp_path)
    assert data["sections"][1]["data"]["runs"][0]["splice_results"] == {"sites": {"0": {"spliced": "plain"}}}


@pytest.mark.parametrize("name", ["trace.yaml", "trace.txt", "trace", "trace.pb"])
def test_other_formats_are_refused_by_name(name, tmp_path):
    with pytest.raises(ValueError, match=r"\[unknown-format\]"):
        report(specialised()).render(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_format_may_be_named(tmp_path):
    report(specialised()).render(tmp_path / "trace.data", fmt="json")
    assert json.loads((tmp_path / "trace.data").read_text())["title"] == "SASS trace"


def test_a_failed_rendering_leaves_the_old_file_alone(tmp_path):
    class Broken(Section):
        def json_chunks(self):
            yield "["
            raise RuntimeError("half way")

    target = tmp_path / "trace.json"
    target.write_text("old")
    file = File()
    file.add_section(Broken("b"))
    with pytest.raises(RuntimeError, match="half way"):
        file.render(target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_only_sections_are_sections():
    with pytest.raises(TypeError, match="not dict"):
        File().add_section({})
    assert File().title == "G-Watch Report"
    assert isinstance(File().overview(), Section_Overview)


def broken(tmp_path, change):
    data = rendered(report(specialised(blocks=1, warps=2, iterations=2)), tmp_path)
    change(data["sections"][1]["data"]["runs"][0]["records"])
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("change", [
    lambda r: r["site"].pop(),
    lambda r: r["rows"]["count"].__setitem__(0, 10 ** 12),
    lambda r: r["rows"]["count"].__setitem__(0, -1),
    lambda r: r["rows"].__setitem__("count", [1 << 62, 1 << 62, 1 << 62, 1 << 62, len(r["site"])]),
    lambda r: r["time"].__setitem__(0, 1.5),
    lambda r: r["time"].__setitem__(0, True),
    lambda r: r["time"].__setitem__(0, 1 << 70),
    lambda r: r["rows"].__setitem__("lane", [1 << 40, 0]),
    lambda r: r["rows"].__setitem__("exact", [7]),
    lambda r: r.__setitem__("rows", []),
    lambda r: r.__setitem__("value", "AAAA"),
    lambda r: r.__setitem__("count", 3),
])
def test_damaged_records_are_refused_with_their_place(change, tmp_path):
    with pytest.raises(TraceError, match=r"\[bad-report\] .*sections\[1\].runs\[0\].records"):
        File.load(broken(tmp_path, change))


@pytest.mark.parametrize(("name", "value"), [
    ("slowdown", {}), ("slowdown", {"median": "1"}), ("slowdown", {"median": 1.0, "high": "2"}),
    ("slowdown", {"median": 1.0, "passes": "5"}), ("registers", {"before": 3}), ("occupancy", [1, 2]),
    ("dropped", -1), ("dropped", "none"), ("sites", [{"site_id": "x"}]), ("sites", [3]), ("warnings", "w"),
    ("outputs", 5), ("clock", {"pairs": 1}), ("scope_roles", [1]), ("site_regions", {"a": 1}), ("launch", 1),
    ("site_regions", [[0]]), ("grid_dim", ["x"]), ("block_dim", [0]), ("cost_per_record", "12")])
def test_damaged_statements_about_the_recording_are_refused(name, value, tmp_path, capsys):
    data = rendered(report(specialised(blocks=1, warps=2, iterations=2)), tmp_path)
    data["sections"][1]["data"]["runs"][0]["analysis"][name] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    assert main(["show", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("gwatch: [bad-")


@pytest.mark.parametrize("value", [1 << 70, -(1 << 63) - 1, 1 << 64, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [
    "slowdown.median", "slowdown.high", "cost_per_record", "registers.before", "occupancy.needed", "dropped",
    "sampled.ctas", "site_regions.0.0", "launch.stream", "clock.residual_p999_ns", "sites.0.pc", "scope_stats.0.p50",
    "t_zero", "warnings.0"])
def test_numbers_that_no_form_could_hold_are_refused(place, value, tmp_path, capsys):
    clock = {"pairs": 3, "sms": 1, "residual_p999_ns": 1.0, "timer_step_ns": 32}
    result = specialised(blocks=1, warps=2, iterations=2, sampled={"ctas": 1}, clock=clock, warnings=["w"])
    data = rendered(report(result), tmp_path)
    analysis = data["sections"][1]["data"]["runs"][0]["analysis"]
    *way, last = [int(word) if word.isdecimal() else word for word in place.split(".")]
    for word in way:
        analysis = analysis[word]
    analysis[last] = value
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    for form in ("gwatch", "html", "json"):
        assert main(["show", str(path), "-o", str(tmp_path / f"out.{form}")]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and re.match(r"gwatch: \[bad-re(port|gion)\] ", err)
        assert not (tmp_path / f"out.{form}").exists()


def test_numbers_of_other_sections_and_of_programs_are_checked(tmp_path):
    file = File()
    file.add_section(Section("raw", {"a": [1, {"b": 1 << 64}]}, "Section_Other"))
    file.render(tmp_path / "t.json")
    with pytest.raises(TraceError, match=r"\[bad-report\] .*t.json: sections\[1\].a\[1\].b does not fit 64 bits"):
        File.load(tmp_path / "t.json")
    with pytest.raises(TraceError, match=r"\[bad-number\]"):
        file.render(tmp_path / "t.gwatch")
    assert not (tmp_path / "t.gwatch").exists()


def test_stored_tables_are_not_believed(tmp_path, capsys):
    data = rendered(report(specialised(keep=4)), tmp_path)
    forged = {"trustworthy": "yes", "line": "x", "reasons": []}
    data["sections"][1]["data"]["runs"][0]["analysis"]["verdict"] = forged
    path = tmp_path / "forged.json"
    path.write_text(json.dumps(data))
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out.startswith("trustworthy: no | ")


@pytest.mark.parametrize(("text", "code"), [
    ("", "bad-json"), ("{", "bad-json"), ("[" * 100_000, "bad-json"), ("[]", "bad-report"), ("{}", "bad-report"),
    ('{"sections":[3]}', "bad-report"), ('{"sections":[{"type":"Section_IntraKernelTrace"}]}', "bad-report"),
    ('{"sections":[{"type":"Section_IntraKernelTrace","data":{"runs":[3]}}]}', "bad-report")])
def test_what_is_no_report_is_refused(text, code, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        File.load(path)
    assert caught.value.code == code
    with pytest.raises(TraceError, match=r"\[no-file\]"):
        File.load(tmp_path / "missing.json")


def test_an_unknown_row_form_is_refused():
    with pytest.raises(ValueError, match=r"\[bad-row-form\] row_form is 'rows'"):
        Section_IntraKernelTrace(row_form="rows")
