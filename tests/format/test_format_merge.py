"""Several reports as one, runs as data frames, and ``gwatch show`` over several files."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from format_synth import REGIONS, ROLES, result_of, specialised

from gwatch.cli.main import main
from gwatch.common.format import File, Section, Section_IntraKernelTrace
from gwatch.errors import GWatchError


def report(title, *results, extra=None):
    file, section = File(title, generated_at="2026-01-02 03:04:05"), Section_IntraKernelTrace()
    for result in results:
        section.add_run(result, REGIONS, ROLES)
    file.add_section(section)
    if extra:
        file.add_section(extra)
    return file


def records(run):
    t = run.trace
    return [c.tolist() for c in (t.row, t.site, t.time, t.value, t.sequence, t.lane, t.gap)]


@pytest.fixture
def ranks(tmp_path):
    parts = [report("rank", specialised(seed=k, blocks=2), *([specialised(seed=9, blocks=1)] if k else []))
             for k in range(2)]
    paths = []
    for k, (part, name) in enumerate(zip(parts, ("a.gwatch", "b.json"), strict=True)):
        paths.append(tmp_path / f"rank{k}" / name)
        part.render(paths[-1])
    return parts, paths


def test_merging_keeps_every_run_and_says_where_it_is_from(tmp_path, ranks):
    parts, _ = ranks
    other = report("other", extra=Section("notes", {"x": 1}, "Section_Other"))
    merged = File.merge([*parts, other], ["rank0", "rank1", "o"])
    assert [r.source for r in merged.runs] == ["rank0", "rank1", "rank1"] and merged.title == "rank + other"
    for run, original in zip(merged.runs, parts[0].runs + parts[1].runs, strict=True):
        assert records(run) == records(original) and run.analysis["scope_stats"] == original.analysis["scope_stats"]
        assert run.verdict.line == original.verdict.line
    assert [(s.type, s.title) for s in merged.sections] == [
        ("Section_IntraKernelTrace", "Intra-Kernel Trace"), ("Section_Other", "notes")]
    for name in ("m.json", "m.gwatch"):
        merged.render(tmp_path / name)
        back = File.load(tmp_path / name)
        assert [r.source for r in back.runs] == ["rank0", "rank1", "rank1"]
    # What is merged again keeps its first source.
    assert [r.source for r in File.merge([merged], ["x"]).runs] == ["rank0", "rank1", "rank1"]
    merged.render(tmp_path / "m.html")
    assert "Run 2 · rank1" in (tmp_path / "m.html").read_text()


def test_show_lists_the_runs_and_writes_the_merged_report(tmp_path, ranks, capsys):
    _, paths = ranks
    out = tmp_path / "all.json"
    assert main(["show", *map(str, paths), "--run", "1", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    lines = text.split("\n")
    assert "Run            1 of 3  (b.json)" in lines
    start = lines.index("Runs (each on a time axis of its own)")
    assert [line.split()[:2] for line in lines[start + 3:start + 6]] == [["0", "a.gwatch"], ["1", "b.json"],
                                                                        ["2", "b.json"]]
    assert f"gwatch show {paths[0]} {paths[1]} --run 1 --json" in text
    assert [r.source for r in File.load(out).runs] == ["a.gwatch", "b.json", "b.json"]
    assert main(["show", str(out), "--run", "1"]) == 0
    again = capsys.readouterr().out
    assert again.split("\n")[:40] == lines[:40]
    assert main(["show", *map(str, paths), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["source"] for r in found["runs"]] == ["a.gwatch", "b.json", "b.json"]


def test_equal_file_names_are_told_apart_by_their_folders(tmp_path, capsys):
    paths = []
    for k in range(2):
        paths.append(tmp_path / f"rank{k}" / "t.json")
        report("r", specialised(blocks=1)).render(paths[-1])
    assert main(["show", *map(str, paths), "-o", str(tmp_path / "m.json")]) == 0
    assert [r.source for r in File.load(tmp_path / "m.json").runs] == list(map(str, paths))
    assert f"Run            0 of 2  ({paths[0]})" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["t.html", "t.gwatch", "t.pftrace", "t.chrome.json"])
def test_show_converts(name, tmp_path, capsys):
    report("r", specialised(blocks=1)).render(tmp_path / "a.json")
    assert main(["show", str(tmp_path / "a.json"), "-o", str(tmp_path / name)]) == 0
    size = (tmp_path / name).stat().st_size
    assert size > 500
    capsys.readouterr()
    assert main(["show", str(tmp_path / "a.json"), "-o", str(tmp_path / name)]) == 2
    assert "[output-exists]" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "a.json"), "-o", str(tmp_path / name), "--force"]) == 0


def test_an_output_of_unknown_form_is_refused_before_anything_is_said(tmp_path, capsys):
    report("r", specialised(blocks=1)).render(tmp_path / "a.json")
    assert main(["show", str(tmp_path / "a.json"), "-o", str(tmp_path / "x.yaml")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "[unknown-format]" in err


def test_intervals_as_a_frame():
    merged = File.merge([report("a", specialised(blocks=2)), report("b", specialised(seed=4, blocks=1))])
    frame = merged.to_pandas()
    assert len(frame) == sum(len(r.intervals) for r in merged.runs)
    assert frame.groupby("scope", observed=True).role.first().to_dict() == ROLES
    for number, run in enumerate(merged.runs):
        mine = frame[frame.run == number]
        totals = mine.groupby("scope", observed=True).duration.agg(["count", "sum", "min", "max"]).to_dict("index")
        assert totals == {s["scope_label"]: {"count": s["count"], "sum": s["total"], "min": s["min"], "max": s["max"]}
                          for s in run.analysis["scope_stats"]}
        assert mine.start.tolist() == run.intervals.start.tolist()
    assert set(zip(frame.scope, frame.enter_site, frame.leave_site, strict=True)) == {(x, a, b) for a, b, x in REGIONS}


def test_records_as_a_frame():
    result = specialised(blocks=2, keep=9)
    result["records"]["value"] = (1 << 63) + result["records"]["sequence"].astype("u8")
    (run,) = report("a", result).runs
    frame = run.to_pandas("records")
    for column, values in (("site", run.trace.site), ("time", run.trace.time), ("value", run.trace.value),
                           ("sequence", run.trace.sequence), ("gap", run.trace.gap)):
        assert frame[column].to_numpy().tolist() == values.tolist()
    rows = run.trace.rows
    assert frame.warp.tolist() == rows.warp[run.trace.row].tolist() and frame.smid.tolist() == (
        rows.smid[run.trace.row].tolist())
    assert frame.value.dtype == np.uint64


def test_frames_of_nothing_and_of_unknown_kind():
    assert len(File().to_pandas()) == 0 and len(File().to_pandas("records")) == 0
    with pytest.raises(GWatchError, match=r"\[bad-kind\]"):
        File().to_pandas("x")


def test_without_pandas_it_says_what_to_install():
    script = ("import sys; sys.modules['pandas'] = None\nfrom gwatch.common.format import File\nFile().to_pandas()\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "[pandas-missing]" in done.stderr


def test_the_default_view_of_many_runs_stays_short(tmp_path, capsys):
    regions = [(k, k + 1, f"region with a rather long name {k}") for k in range(40)]
    rows = {(b, w): [(s, 1000 * b + 40 * (60 * i + s)) for i in range(5) for s in range(41)]
            for b in range(8) for w in range(8)}
    result = result_of(rows, (8, 1, 1), (256, 1, 1), warnings=["w" * 300] * 9, kernel_prototype="k" * 400)
    section = Section_IntraKernelTrace()
    for _ in range(3):
        section.add_run(result, regions, {label: label[-12:] for _, _, label in regions})
    file = File()
    file.add_section(section)
    file.render(tmp_path / "a.gwatch")
    assert main(["show", *[str(tmp_path / "a.gwatch")] * 8]) == 0
    out = capsys.readouterr().out
    assert len(out.split("\n")) <= 120 and len(out.encode()) <= 20_000
    assert "... 12 more (--run N)" in out


def test_a_program_may_name_a_folder_that_is_not_there_a_command_may_not(tmp_path, capsys):
    made = tmp_path / "a" / "b" / "t.json"
    report("r", specialised(blocks=1)).render(made)
    assert made.is_file()
    assert main(["show", str(made), "-o", str(tmp_path / "c" / "t.json")]) == 2
    assert "[output-folder]" in capsys.readouterr().err and not (tmp_path / "c").exists()
