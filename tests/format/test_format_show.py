"""``gwatch show``: default and single views, narrowing, JSON, errors; text compared with golden files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from format_synth import REGIONS, ROLES, many, result_of, specialised

from gwatch.cli.main import main
from gwatch.cli.schema import schema_text
from gwatch.common.format import File, Section, Section_IntraKernelTrace
from gwatch.common.format.run import run_of
from gwatch.common.format.select import (
    apply_selection,
    format_token,
    kernel_tag,
    parse_ranges,
    parse_time,
    parse_token,
    ranges_text,
)
from gwatch.common.format.text import duration
from gwatch.errors import TraceError

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).resolve().parents[2]
HOPPER = ROOT / "examples/cuda/trace/hopper_product_h200.gwatch"


def saved(tmp_path, *results, regions=REGIONS, roles=ROLES, name="trace.json"):
    file, section = File("t", generated_at="2026-01-02 03:04:05"), Section_IntraKernelTrace(row_form=False)
    for result in results:
        section.add_run(result, regions, roles)
    file.add_section(section)
    file.render(tmp_path / name)
    return str(tmp_path / name)


def show(capsys, *arguments):
    """(exit code, stdout, stderr) of ``gwatch show``."""
    code = main(["show", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("name", "result", "regions", "roles", "flags"), [
    ("default", specialised(blocks=2, warps=4, iterations=6), REGIONS, ROLES, []),
    ("drops", specialised(blocks=2, warps=4, iterations=6, keep=7), REGIONS, ROLES, ["--stats", "--bubbles"]),
    ("points", specialised(blocks=1, warps=4, iterations=6), None, None, []),
    ("views", specialised(blocks=2, warps=4, iterations=6), REGIONS, ROLES,
     ["--concurrency", "--outliers", "--longest-bubble", "--longest", "store"]),
    ("human", specialised(blocks=1, warps=3, iterations=3), REGIONS, ROLES, ["--human", "--timeline"]),
])
def test_text_views_are_the_golden_ones(name, result, regions, roles, flags, tmp_path, monkeypatch, capsys):
    saved(tmp_path, result, regions=regions, roles=roles)
    monkeypatch.chdir(tmp_path)
    code, out, err = show(capsys, "trace.json", *flags)
    assert (code, err) == (0, "")
    golden = GOLDEN / f"show_{name}.txt"
    if os.environ.get("GWATCH_UPDATE_GOLDEN"):
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8")


def test_the_default_view_is_short_plain_and_led_by_the_verdict(tmp_path, capsys):
    result = many(n_rows=4096, per_row=40)
    result["kernel_prototype"] = "_ZN" + "9cutlass_x" * 300 + "Ev"
    result["warnings"] = [f"[w{i}] something long " + "x" * 300 for i in range(9)]
    result["sites"] = [{"site_id": i, "index": i, "instruction": "I" * 200, "line": "f.cu:1"} for i in range(200)]
    result["records"]["site"] = np.arange(len(result["records"])) % 200
    regions = [(i, i + 1, f"phase number {i} \x1b[31m") for i in range(60)]
    path = saved(tmp_path, result, regions=regions, roles={r[2]: f"role of {r[0]}" for r in regions})
    code, out, _ = show(capsys, path)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("trustworthy: ")
    assert len(lines) <= 120 and len(out.encode()) <= 20_000
    assert out.isascii() and "\x1b" not in out
    assert lines[-1].startswith("  gwatch show ") and "Next" in lines


def test_the_last_lines_are_commands_that_run(tmp_path, capsys):
    folder = tmp_path / "a folder's"
    folder.mkdir()
    path = saved(folder, specialised())
    _, out, _ = show(capsys, path)
    commands = [line.strip() for line in out.split("\nNext\n")[1].splitlines()]
    assert len(commands) >= 3
    for command in commands:
        rest = command.removeprefix("gwatch ")
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m gwatch {rest}"], cwd=ROOT, capture_output=True,
                              text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command


def test_json_stands_alone_and_has_every_table(tmp_path, capsys):
    path = saved(tmp_path, specialised(keep=9))
    code, out, err = show(capsys, path, "--json", "--block", "1-2")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert list(data)[:4] == ["kernel_prototype", "verdict", "compile_results", "launch"]
    assert data["launch"] == {"grid_dim": [4, 1, 1], "block_dim": [256, 1, 1], "block_size": 256, "warp_size": 32}
    assert {"scope_labels", "n_threads", "n_records", "t_min", "t_max", "scope_stats", "site_stats", "region_stats",
            "pipeline_summary", "longest_bubbles", "concurrency", "scope_roles", "unmatched_starts",
            "unmatched_ends"} <= set(data)
    assert data["n_records"] == 2 * 8 * 9
    assert data["filtered"] is True
    assert data["verdict"]["trustworthy"] == "no"
    full = json.loads(show(capsys, path, "--json")[1])
    assert (full["filtered"], full["n_records"]) == (False, 4 * 8 * 9)


@pytest.fixture(scope="module")
def show_schema():
    return jsonschema.Draft202012Validator(json.loads(schema_text("show")))


@pytest.mark.parametrize("flags", [
    [], ["--stats"], ["--timeline"], ["--bubbles"], ["--concurrency"], ["--outliers"], ["--findings"], ["--iterations"],
    ["--roles"], ["--source"], ["--longest-bubble"], ["--longest", "math"], ["--diff", "other.json"],
    ["--block", "1", "--stime", "+200", "--etime", "+900"], ["more.json"]])
@pytest.mark.parametrize("result", [
    specialised(blocks=3, warps=4, iterations=5), specialised(blocks=3, warps=4, iterations=5, keep=7, clock_type="sm"),
    specialised(blocks=3, warps=4, iterations=5, cost_per_record=None, slowdown=None, occupancy=None)])
def test_json_fits_the_schema_of_show(flags, result, tmp_path, capsys, monkeypatch, show_schema):
    path = saved(tmp_path, result)
    saved(tmp_path, result, name="other.json")
    saved(tmp_path, result, name="more.json")
    monkeypatch.chdir(tmp_path)
    code, out, _ = show(capsys, path, *flags, "--json")
    assert code == 0
    show_schema.validate(json.loads(out))


def test_json_has_the_tables_that_were_asked_for(tmp_path, capsys, show_schema):
    path = saved(tmp_path, specialised())
    code, out, _ = show(capsys, path, "--json", "--longest", "store", "--outliers", "--longest-bubble")
    data = json.loads(out)
    show_schema.validate(data)
    assert code == 0 and len(data["longest"]) == len(data["longest_bubbles"]) == 10
    assert data["longest"][0]["duration"] == next(
        s["max"] for s in data["scope_stats"] if s["scope_label"] == "store")
    assert data["outliers"]["rows"] == 32 and data["outliers"]["count"] == len(data["outliers"]["outliers"])
    with pytest.raises(jsonschema.ValidationError):
        show_schema.validate({**data, "unheard": 1})
    assert show(capsys, path, "--json", "--longest", "nope")[0] == 2


def test_times_can_be_fed_back(tmp_path, capsys):
    path = saved(tmp_path, specialised())
    full = json.loads(show(capsys, path, "--json")[1])
    out = show(capsys, path, "--longest-bubble")[1]
    row, at = re.search(r"^(b\d w\d) +\d+ ns +(\+\S+)", out, re.MULTILINE).groups()
    block = row.split()[0][1:]
    assert show(capsys, path, "--block", block, "--longest-bubble")[1].count(at) >= 1
    code, out, _ = show(capsys, path, "--block", block, "--stime", at, "--etime", at, "--timeline")
    assert code == 0 and f"from {at})" in out
    zero = full["t_zero"]
    assert zero == full["t_min"]
    ways = [("+1us", zero + 1000), ("1000ns", zero + 1000), ("+1000", zero + 1000), (str(zero + 1000), zero + 1000),
            ("+ 0.0005 ms", zero + 500), ("+.5us", None), ("0.5", None), ("+1kcyc", None), ("-1us", None),
            ("+1e3", None)]
    counts = set()
    for text, wanted in ways:
        code, out, err = show(capsys, path, f"--stime={text}", "--json", "--block", "3")
        if wanted is None:
            assert code == 2 and json.loads(out)["code"] == "bad-number" and "run's first record" in err
            continue
        assert parse_time(text, "", run_of(specialised())) == wanted
        if wanted == zero + 1000:
            counts.add(json.dumps(json.loads(out)["scope_stats"]))
        assert json.loads(out)["t_zero"] == zero < json.loads(out)["t_min"]
    assert len(counts) == 1
    cycles = run_of(specialised(clock_type="sm"))
    assert parse_time("+1.25 k cyc", "", cycles) == cycles.zero + 1250
    assert parse_time("+1.2505kcyc", "", cycles, up=True) == cycles.zero + 1251


def test_a_waiting_row_does_not_look_busy(tmp_path, capsys):
    # Ten periods of 910: row 0 works through, row 1 works 300 of each, row 2 600 of each; a column is 100 wide.
    rows = {(0, w): [event for i in range(10) for event in ((0, 910 * i), (1, 910 * i + busy))]
            for w, busy in enumerate((910, 300, 600))}
    for events in rows.values():
        events += [(0, 9100), (1, 9100)]
    path = saved(tmp_path, result_of(rows, (1, 1, 1), (96, 1, 1)), regions=REGIONS[:1], roles=None)
    lines = show(capsys, path, "--timeline")[1].split("Timeline")[1].split("\n\n")[0].splitlines()
    assert "- in scopes less than half of the cell" in lines[1]
    cells = [line.split()[2] for line in lines[2:5]]
    assert [line.split()[3] for line in lines[2:5]] == ["100%", "33%", "66%"]
    assert [len(row) for row in cells] == [91] * 3
    assert cells[0].count("#") == 91 and abs(cells[1].count("#") - 30) <= 3 and abs(cells[2].count("#") - 60) <= 3
    wide = {(0, 0): [event for i in range(2000) for event in ((0, 100 * i), (1, 100 * i + 30))]}
    path = saved(tmp_path, result_of(wide, (1, 1, 1), (32, 1, 1)), regions=REGIONS[:1], roles=None)
    row = show(capsys, path, "--timeline")[1].split("Timeline")[1].splitlines()[2].split()
    assert set(row[2]) == {"-"} and row[3] == "30%"


@pytest.mark.parametrize("flags", [["--longest-bubble"], ["--roles"], ["--source"], ["--longest", "math"],
                                   ["--block", "0", "--timeline", "--bubbles"], ["--roles", "--source"]])
def test_next_never_suggests_itself(flags, tmp_path, capsys):
    path = saved(tmp_path, specialised())
    commands = show(capsys, path, *flags)[1].split("\nNext\n")[1].splitlines()
    own = [["--roles"], ["--source"]] if len(flags) == 2 and flags[0] == "--roles" else [flags]
    assert len(commands) >= 3
    assert not any(line.split()[3:] in own for line in commands)


def test_empty_filters_say_what_there_is(tmp_path, capsys):
    path = saved(tmp_path, specialised(blocks=24))
    code, out, err = show(capsys, path, "--block", "99", "--json")
    assert code == 2 and "recorded are blocks 0-23, warps 0-7" in err
    assert json.loads(out)["candidates"] == ["--block 0-23", "--warp 0-7"]
    assert ranges_text(np.array([5, 1, 2, 3, 9])) == "1-3,5,9"
    assert ranges_text(np.arange(0, 40, 2), 8) == "0,2,4,6,8,10,12,14, …"


def test_occupancy_and_cost_are_explained(tmp_path, capsys):
    given = {"occupancy": {"before": 8, "after": 6, "needed": 1}, "cost_per_record": None,
             "slowdown": {"median": 1.152, "low": 0.9, "high": 1.4, "noise": 0.396, "passes": 5}}
    _, out, _ = show(capsys, saved(tmp_path, specialised(**given)))
    assert "8->6 CTAs/SM (1 needed)" in out.splitlines()[0]
    assert "Occupancy      8->6 CTAs fit an SM, the grid has 1 for each: as many run at once as before" in out
    assert "Record cost    not known: the extra time (+15.2%) does not stand out of the noise (39.6%)" in out
    assert "slowdown 1.152 may be noise (0.396 in 5 passes): trace with --passes 25 (do_trace: passes=25)" in out
    given["occupancy"]["needed"] = 7
    _, out, _ = show(capsys, saved(tmp_path, specialised(**given)))
    assert out.startswith("trustworthy: no") and "Occupancy  " not in out
    assert "  - occupancy fell from 8 to 6 CTAs/SM: fewer run at once, and the grid has 7 for each SM" in out
    reasons = {"sampled": {"sampled": {"ctas": 1, "of": 4}, "slowdown": {"median": 2.0, "noise": 0.0}},
               "not measured": {"slowdown": None}, "worked out": {"slowdown": {"median": 2.0, "noise": 0.0}}}
    for word, more in reasons.items():
        unknown = json.loads(show(capsys, saved(tmp_path, specialised(cost_per_record=None, **more)), "--json")[1])
        assert {"sampled": "only some CTAs"}.get(word, word) in unknown["cost_unknown"]
    assert json.loads(show(capsys, saved(tmp_path, specialised()), "--json")[1])["cost_unknown"] is None


def test_a_token_narrows_show_and_json_alike(tmp_path, capsys):
    result = specialised()
    path, run = saved(tmp_path, result), run_of(result, REGIONS, ROLES)
    token = format_token(run, 500, 900, "warp", ((8, 9),), ("load", "math"))
    code, out, err = show(capsys, path, "--select", token, "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    t0, t1 = run.time_range[0] + 500, run.time_range[0] + 900
    wanted = [(s, e) for r, s, e, k in zip(run.intervals.row, run.intervals.start, run.intervals.end, run.scope,
                                           strict=True) if r in (8, 9) and k < 2 and s <= t1 and e >= t0]
    assert sum(s["count"] for s in data["scope_stats"]) == len(wanted) > 0
    assert data["scope_labels"] == ["load", "math"]
    code, out, _ = show(capsys, path, "--select", token)
    assert code == 0 and "b1 w0" in out and "b1 w1" in out and "b1 w2" not in out


@pytest.mark.parametrize(("flags", "rows"), [
    (["--block", "0,3"], 16), (["--block", "[1,2],[3,3]"], 24), (["--warp", "0"], 4),
    (["--tid", "0-31"], 1), (["--tid", "40"], 1), (["--warp", "1-2", "--block", "2"], 2)])
def test_filters_choose_rows(flags, rows, tmp_path, capsys):
    data = json.loads(show(capsys, saved(tmp_path, specialised()), "--json", *flags)[1])
    assert data["n_rows"] == rows


def test_a_time_window_keeps_overlapping_intervals_and_hides_site_tables(tmp_path, capsys):
    result = result_of({(0, 0): [(0, 100), (1, 200), (0, 300), (1, 400), (0, 500), (1, 600)]}, (1, 1, 1), (32, 1, 1))
    path = saved(tmp_path, result, regions=[(0, 1, "r")], roles=None)
    data = json.loads(show(capsys, path, "--json", "--stime", "150", "--etime", "300")[1])
    assert data["scope_stats"][0]["count"] == 2
    _, out, _ = show(capsys, path, "--stime", "150", "--etime", "300")
    assert "Per-site records" not in out and "Per-scope stats" in out


def test_sorting_and_sampling_the_timeline(tmp_path, capsys):
    path = saved(tmp_path, specialised(blocks=8))

    def rows(*flags):
        out = show(capsys, path, "--timeline", *flags)[1].split("Timeline")[1].split("\n\n")[0].splitlines()
        return [" ".join(line.split()[2:4]) for line in out if re.search(r" b\d+ w\d+ ", line)]

    assert len(rows()) == 32 and len(rows("--sample", "0")) == 64 and len(rows("--sample", "5")) == 5
    assert rows("--sample", "0", "--sort-by", "tid") == [f"b{b} w{w}" for b in range(8) for w in range(8)]
    run = run_of(specialised(blocks=8), REGIONS, ROLES)
    busiest = max(range(64), key=lambda r: sum(
        int(e - s) for q, s, e, k in zip(run.intervals.row, run.intervals.start, run.intervals.end, run.scope,
                                         strict=True) if q == r and run.labels[k] == "math"))
    assert rows("--sample", "0", "--sort-by", "math")[0] == f"b{busiest // 8} w{busiest % 8}"
    iv = run.intervals
    spent = {r: int((iv.end - iv.start)[iv.row == r].sum()) for r in range(64)}
    longest = [f"b{r // 8} w{r % 8}" for r in sorted(spent, key=lambda r: (-spent[r], r))]
    assert rows("--sort-by", "active") == longest[:32] and rows("--sort-by", "active", "--sample", "5") == longest[:5]
    assert rows("--sort-by", "tid", "--sample", "9") == [f"b{r // 8} w{r % 8}" for r in range(9)]
    for flags, said in ((["--sample", "5"], "showing 5 of 64 warps, "),
                        (["--sample", "5", "--sort-by", "active"], "showing the first 5 of 64 warps by active, "),
                        (["--sample", "0", "--sort-by", "math"], "showing 64 of 64 warps by math, ")):
        assert said in show(capsys, path, "--timeline", *flags)[1]


def test_an_order_that_there_is_not_is_refused_whatever_is_shown(tmp_path, capsys):
    path = saved(tmp_path, specialised())
    for flags in ([], ["--timeline"], ["--stats"], ["--json"], ["--json", "--roles"]):
        code, out, err = show(capsys, path, "--sort-by", "bogus", *flags)
        said = "[bad-sort] --sort-by 'bogus'; one of tid, active, bubble, lifetime, load, math, store"
        assert code == 2 and said in err and ("--json" in flags) == bool(out)
        if out:
            assert json.loads(out)["candidates"] == ["tid", "active", "bubble", "lifetime", "load", "math", "store"]
        assert show(capsys, path, "--sort-by", "cluster", *flags)[0] == 2
        assert show(capsys, path, "--sort-by", "load", *flags)[0] == 0


@pytest.mark.parametrize(("flags", "code"), [
    (["--run", "3"], "bad-run"), (["--run", "-1"], "bad-run"), (["--run", "x"], "bad-number"),
    (["--tid", "foo"], "bad-range"), (["--block", "3-1"], "bad-range"), (["--warp", "0-"], "bad-range"),
    (["--block", "1,"], "bad-range"), (["--block", "99"], "no-rows"), (["--select", "gwtrace/2 x"], "bad-token"),
    (["--select", "gwtrace/1 kernel=other#0000 t=0:9ns"], "other-kernel"),
    (["--select", "gwtrace/1 kernel=KERNEL t=0:9cyc"], "bad-token"),
    (["--select", "gwtrace/1 kernel=KERNEL t=0:9ns lane=core:3"], "bad-token"),
    (["--select", "gwtrace/1 kernel=KERNEL t=0:9ns scopes=nope"], "no-scope"),
    (["--stime", "soon"], "bad-number"), (["--stime", "9", "--etime", "3"], "bad-range"),
    (["--sort-by", "colour"], "bad-sort"), (["--longest", "nope"], "no-scope"), (["--sample", "-2"], "bad-number")])
def test_bad_arguments_are_one_line_and_exit_2(flags, code, tmp_path, capsys):
    path = saved(tmp_path, specialised())
    flags = [f.replace("KERNEL", kernel_tag("_Z4gemmPKfS0_Pf")) for f in flags]
    status, out, err = show(capsys, path, *flags)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and f"[{code}]" in err


def test_bad_files_are_one_line_and_exit_2(tmp_path, capsys):
    file = File()
    file.add_section(Section("raw", {}, "Section_Other"))
    file.render(tmp_path / "other.json")
    file.add_section(Section_IntraKernelTrace())
    file.render(tmp_path / "empty.json")
    (tmp_path / "bad.json").write_text("{")
    for name, code in (("none.json", "no-file"), ("bad.json", "bad-json"), ("other.json", "no-section"),
                       ("empty.json", "no-run"), (".", "no-file")):
        status, out, err = show(capsys, str(tmp_path / name))
        assert (status, out, err.count("\n")) == (2, "", 1) and f"[{code}]" in err


def test_a_trace_without_records_exits_3_and_says_so(tmp_path, capsys):
    result = specialised()
    result["records"] = result["records"][:0]
    status, out, _ = show(capsys, saved(tmp_path, result))
    assert status == 3
    assert out.splitlines()[0].startswith("trustworthy: no") and "  - no records" in out


def test_other_runs_are_shown_by_number(tmp_path, capsys):
    path = saved(tmp_path, specialised(), specialised(blocks=2, kernel_prototype="second"))
    assert "Kernel         second\nRun            1 of 2" in show(capsys, path, "--run", "1")[1]


def test_show_imports_no_gpu_code(tmp_path):
    path = saved(tmp_path, specialised())
    code = ("import sys; from gwatch.cli.main import main; main(['show', sys.argv[1]]);"
            "bad = [m for m in sys.modules if m.split('.')[0] in ('cuda', 'torch', 'lark', 'elftools', 'rich')"
            " or m.startswith(('gwatch.cuda', 'gwatch.sass', 'gwatch.rewrite'))]; assert not bad, bad")
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("value", "unit", "text"), [
    (0, "ns", "0 ns"), (999, "ns", "999 ns"), (999.996, "ns", "1.00 µs"), (999.99, "ns", "999.99 ns"),
    (4060, "ns", "4.06 µs"), (2_500_000, "ns", "2.50 ms"), (3e9, "ns", "3.00 s"), (12, "cyc", "12 cyc"),
    (1234.5, "cyc", "1.23 k cyc"), (2e6, "cyc", "2.00 M cyc"), (None, "ns", "-"), (np.int64(7), "ns", "7 ns")])
def test_durations_read_well(value, unit, text):
    assert duration(value, unit) == text


def test_ranges_and_tokens_read_back():
    assert parse_ranges("0-3,5", "x") == ((0, 3), (5, 5))
    assert parse_ranges(" [0,31],[64, 95] ", "x") == ((0, 31), (64, 95))
    assert parse_ranges("7,8-9,[1,2]", "x") == ((7, 7), (8, 9), (1, 2))
    for bad in ("", ",", "1,,2", "a", "1-", "[1,2", "3-2", "1 2"):
        with pytest.raises(TraceError, match=r"\[bad-range\]"):
            parse_ranges(bad, "x")
    run = run_of(specialised(), REGIONS)
    token = format_token(run, 5, 90, "block", ((0, 1), (3, 3)), ("load",))
    selection = parse_token(token)
    assert (selection.t0, selection.t1, selection.level, selection.ids, selection.scopes) == (
        5, 90, "block", ((0, 1), (3, 3)), ("load",))
    assert np.unique(apply_selection(run, selection).trace.rows.block).tolist() == [0, 1, 3]
    group = parse_token(format_token(run, 0, 9000, "warpgroup", ((3, 3),)))
    rows = apply_selection(run, group).trace.rows
    assert (rows.block.tolist(), rows.warp.tolist()) == ([1] * 4, [4, 5, 6, 7])


def test_the_kernel_tag_is_the_known_hash():
    # By hand: h = h * 31 + code, on 32 bits, "ab" -> 97 * 31 + 98 = 3105 = 0xc21.
    assert kernel_tag("ab") == "ab#0c21"
    assert kernel_tag("void f<int>(x)").startswith("void#")
    assert kernel_tag("9x" + "y" * 40).split("#")[0] == "x" + "y" * 23


@pytest.mark.parametrize("regions", [REGIONS, None])
def test_the_timeline_is_the_same_at_times_that_doubles_cannot_tell_apart(regions, tmp_path, capsys):
    views = []
    for name, shift in (("near.json", 0), ("far.json", 1_764_456_789_123_456_789)):
        result = specialised(blocks=1, warps=4, iterations=6)
        result["records"]["time"] += shift
        path = saved(tmp_path, result, regions=regions, roles=None, name=name)
        code, out, err = show(capsys, path, "--timeline")
        assert code == 0 and err == ""
        views.append(out.split("Timeline")[1].split("\n\n")[0])
    assert views[0] == views[1] and len(set(views[0])) > 8


def test_rows_by_cluster(tmp_path, capsys):
    rows = {(b, 0): [(0, 10 * b), (1, 10 * b + 5)] for b in range(24)}
    file, section = File(), Section_IntraKernelTrace()
    section.add_run(result_of(rows, (4, 6, 1), (32, 1, 1), launch={"cluster": [2, 3, 1]}), REGIONS[:1])
    section.add_run(result_of(rows, (4, 6, 1), (32, 1, 1)), REGIONS[:1])
    file.add_section(section)
    path = tmp_path / "t.json"
    file.render(path)
    # Cluster 1 has blocks x 2-3, y 0-2; clusters 0 to 3 have six blocks each.
    assert main(["show", str(path), "--cluster", "1", "--timeline", "--sort-by", "cluster"]) == 0
    out = capsys.readouterr().out
    assert "clusters of 2x3x1 blocks" in out
    shown = [line.split()[:2] for line in out.splitlines() if line.startswith("c1 ")]
    assert [block for _, block in shown] == ["b2", "b3", "b6", "b7", "b10", "b11"]
    assert main(["show", str(path), "--timeline", "--sort-by", "cluster", "--sample", "0"]) == 0
    order = [line.split()[0] for line in capsys.readouterr().out.splitlines() if re.match(r"c\d b", line)]
    assert order == [f"c{k}" for k in range(4) for _ in range(6)]
    for flags in (["--cluster", "1"], ["--sort-by", "cluster"]):
        assert main(["show", str(path), "--run", "1", *flags]) == 2
        assert "[no-clusters] whether the launch has clusters is not known" in capsys.readouterr().err
    for launch, said in (({"cluster": [1, 1, 1]}, "the launch has no clusters"), ({"cluster": None}, "is not known")):
        path = saved(tmp_path, result_of(rows, (4, 6, 1), (32, 1, 1), launch=launch), regions=REGIONS[:1], roles=None)
        assert main(["show", path, "--cluster", "0"]) == 2
        assert said in capsys.readouterr().err


def test_a_window_tells_of_what_lies_inside(tmp_path, capsys):
    rows = {(0, 0): [(0, 1000), (1, 1600), (0, 1700), (1, 2000)], (0, 1): [(0, 1900), (1, 2100)]}
    path = saved(tmp_path, result_of(rows, (1, 1, 1), (64, 1, 1)), regions=[(0, 1, "r")], roles=None)
    data = json.loads(show(capsys, path, "--json", "--stime", "+500", "--etime", "+900")[1])
    # 1500 to 1900: w0 is active to 1600 and from 1700 on; w1 begins where the window ends.
    assert (data["t_min"], data["t_max"], data["span"]) == (1500, 1900, 400)
    summary = data["pipeline_summary"]
    assert (summary["active_max"], summary["bubble_max"], summary["lifetime_max"]) == (300, 100, 400)
    assert data["concurrency"]["span"] == 400 and data["scope_stats"][0]["max"] == 600
    _, out, _ = show(capsys, path, "--stime", "+500", "--etime", "+900")
    assert "Time range     [1500, 1900]  = 400 ns" in out and "Window         3 intervals overlap it" in out
    # A hole is an answer, a window where nothing can be is none.
    code, out, _ = show(capsys, path, "--warp", "0", "--stime", "+620", "--etime", "+680")
    assert code == 0 and "Window         it holds no interval" in out and "Findings: none (nothing ran" in out
    for flags, side in ((["--stime", "0", "--etime", "1"], "before 1"), (["--stime", "+2us"], "after 3000")):
        code, out, err = show(capsys, path, *flags)
        assert (code, out) == (2, "") and f"[empty-window] nothing was recorded {side}" in err
        assert "from +0ns to +1.10µs (1000 to 2100)" in err


def test_a_row_whose_times_step_back_is_not_trusted(tmp_path, capsys):
    good = [(0, 5_000), (1, 5_100), (2, 5_100 - 64), (3, 5_200), (4, 5_300), (5, 5_400)]
    hour = 3_600_000_000_000
    bad = [*good[:4], (4, 5_300 - hour), (5, 5_400)]
    # Cycles of one SM never go back; times mapped to ns may, by a clock's step.
    for events, clock, steps in ((good, "anchor", 0), (good, "sm", 1), (bad, "anchor", 1), (bad, "sm", 2)):
        result = result_of({(0, 0): events}, (1, 1, 1), (32, 1, 1), clock_type=clock)
        out = show(capsys, saved(tmp_path, result, roles=None))[1]
        assert out.startswith(f"trustworthy: {'no' if steps else 'yes'} ")
        assert (f"  - {steps} records are earlier than the one ahead of them in their row" in out) == (steps > 0)
        assert ("by up to 3600.00 s:" in out) == (events is bad and clock == "anchor")
    # Two lanes that take turns for their warp share only the clock; each lane's own records have an order.
    events = [(0, 100), (1, 190), (0, 300), (1, 200_000)]
    result = result_of({(0, 0): events}, (1, 1, 1), (32, 1, 1), clock_type="anchor")
    result["records"]["lane"] = result["records"]["sequence"] % 2
    result["records"]["sequence"] //= 2
    run = run_of(result, REGIONS[:1])
    assert not run.trace.rows.exact.any() and run.verdict.trustworthy == "yes"
    late = result["records"]["time"] == 300
    result["records"]["time"][late] = 100 - 65
    assert any("1 records are earlier" in r and "65 ns" in r for r in run_of(result, REGIONS[:1]).verdict.reasons)


def test_next_commands_can_be_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("é x.json", "-x.json", "it's.json", "tab\t.json"):
        path = Path(saved(tmp_path, specialised(), specialised(seed=2), name="t.json"))
        path.rename(tmp_path / name)
        token = format_token(run_of(specialised(seed=2)), 100, 3000, "warp", ((8, 9),))
        flags = ["--run", "1", "--select", token, "--stime", "+600ns", "--block", "1"]
        code, out, _ = show(capsys, *flags, "--", name)
        commands = [line[2:] for line in out.split("\nNext\n")[1].splitlines()]
        assert code == 0 and len(commands) > 3 and all(line.isascii() for line in commands)
        for line in commands:
            words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True).stdout
            first, *arguments = words.decode().split("\0")[:-1]
            assert first == "gwatch" and token in arguments and "+600ns" in arguments
            assert main(arguments) == 0
            told = capsys.readouterr().out
            assert '"b0' not in told and "b0 w" not in told, "the narrowing is kept"


def test_an_output_that_fails_is_all_that_is_told(tmp_path, capsys):
    path = saved(tmp_path, specialised())
    code, out, err = show(capsys, path, "-o", "/proc/none.html")
    assert (code, out) == (2, "") and "[write-failed]" in err
    code, out, err = show(capsys, path, "--json", "-o", "/proc/none.html")
    assert code == 2 and json.loads(out)["code"] == "write-failed"


def test_the_default_view_fits_its_bounds(tmp_path, capsys):
    rng = np.random.default_rng(3)
    # Rows whose every cell is another scope: the longest lines that there can be.
    rows = {}
    for block in range(64):
        t, events = 1000, []
        for k in range(90):
            events += [(2 * (k % 9), t), (2 * (k % 9) + 1, t + 90)]
            t += 100 + int(rng.integers(0, 2))
        rows[block, 0] = events
    regions = [(2 * k, 2 * k + 1, f"a phase with a long name, number {k}") for k in range(9)]
    path = saved(tmp_path, result_of(rows, (64, 1, 1), (32, 1, 1)), regions=regions,
                 roles={label: f"Role of it {k}" for k, (_, _, label) in enumerate(regions)})
    for flags in ([], ["--human"]):
        out = show(capsys, path, *flags)[1]
        assert len(out.splitlines()) <= 120 and len(out.encode()) <= 20_000 and "Timeline" in out
    assert len(show(capsys, path, "--human", "--sample", "64")[1].encode()) > 20_000, "what was asked for is given"
    out = show(capsys, str(HOPPER), "--human")[1]
    assert len(out.encode()) <= 20_000 and "showing 32 of 96" in out
    assert len(show(capsys, str(HOPPER), "--source")[1].splitlines()) <= 180


def test_columns_line_up_and_long_lines_are_wrapped(capsys):
    for flags in ([], ["--human"]):
        out = re.sub(r"\x1b\[\d+m", "", show(capsys, str(HOPPER), *flags)[1])
        lines = out.split("Timeline")[1].split("\n\n")[0].splitlines()[1:]
        rows = [line for line in lines if re.search(r"b\d+ w\d+ ", line)]
        legend = lines[:len(lines) - len(rows)]
        assert len(rows) == 32 and {re.search(r"\s+\d+%$", line).start() for line in rows} == {26 + 1 + 91}
        assert len(legend) == 3 and max(map(len, legend)) <= 110
    for flag in ("--roles", "--iterations", "--stats", "--source"):
        for block in show(capsys, str(HOPPER), flag)[1].split("\n\n"):
            lines = block.splitlines()
            rule = next((i for i, line in enumerate(lines) if re.fullmatch(r"-+(  -+)+", line)), None)
            if rule is None:
                continue
            gaps = [m.start() for m in re.finditer("  -", lines[rule])]
            for line in lines[rule + 1:]:
                if not line.startswith(("...", "worst", "the page")):
                    assert all(line[gap:gap + 2].strip() == "" for gap in gaps), line


def test_sorting_by_a_time_prints_it(capsys):
    run = File.load(HOPPER).runs[0]
    life = {}
    for row in range(len(run.trace.rows)):
        times = run.trace.time[run.trace.row == row]
        life[row] = int(times.max() - times.min())
    row, longest = max(life.items(), key=lambda item: item[1])
    out = show(capsys, str(HOPPER), "--timeline", "--sort-by", "lifetime", "--sample", "3")[1]
    first = next(line for line in out.splitlines() if re.search(r"\bb\d+ w\d+ ", line))
    assert f"b{run.trace.rows.block[row]} w{run.trace.rows.warp[row]} " in first
    assert first.endswith(f"  {longest / 1000:.2f} us") and "lifetime of the row" in out


def test_windows_of_a_selection_and_of_the_command_line_both_hold(tmp_path, capsys):
    result = specialised()
    path, run = saved(tmp_path, result), run_of(result, REGIONS, ROLES)
    token = format_token(run, 500, 900)
    for flags, low, high in (([], 500, 900), (["--stime", "+600ns"], 600, 900), (["--etime", "+700ns"], 500, 700),
                             (["--stime", "+0ns", "--etime", "+100us"], 500, 900)):
        data = json.loads(show(capsys, path, "--json", "--select", token, *flags)[1])
        assert (data["t_min"] - run.zero, data["t_max"] - run.zero) == (low, high)
    code, _, err = show(capsys, path, "--select", token, "--stime", "+1us")
    assert code == 2 and "[bad-range]" in err
    whole = json.loads(show(capsys, path, "--json", "--select", format_token(run, 0, 1 << 40))[1])
    assert whole["region_stats"] == json.loads(show(capsys, path, "--json")[1])["region_stats"] != []
