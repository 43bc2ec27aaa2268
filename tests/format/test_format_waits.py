"""Waits between roles and the comparison of two runs, against slow and known answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from format_synth import REGIONS, ROLES, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st
from test_format_findings import pipeline

from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.compare import compare_runs, enough, rank_test
from gwatch.common.format.run import run_of
from gwatch.common.format.select import keep_time
from gwatch.common.format.waits import find_waits, role_table, wait_table
from gwatch.errors import TraceError


def slow_waits(run):
    """(row, start, end, releasing (row, start, end) or None) by comparing every hole with every interval."""
    iv, rows = run.intervals, run.trace.rows
    spans = [(int(iv.row[i]), int(iv.start[i]), int(iv.end[i]), run.roles.get(run.labels[run.scope[i]]))
             for i in range(len(iv))]
    role_time: dict[int, dict[str, float]] = {}
    for row, start, end, role in spans:
        if role is not None:
            times = role_time.setdefault(row, {})
            times[role] = times.get(role, 0) + end - start + 1
    order = [run.roles[label] for label in run.labels if label in run.roles]
    role_of = {row: max(times, key=lambda r: (times[r], -order.index(r))) for row, times in role_time.items()}
    found = []
    for row in range(len(rows)):
        reach = None
        for _, start, end, _ in sorted(s for s in spans if s[0] == row):
            if reach is not None and start > reach:
                ends = [s[2] for s in spans if s[0] != row and rows.block[s[0]] == rows.block[row]
                        and role_of.get(s[0]) not in (None, role_of.get(row)) and reach < s[2] <= start]
                found.append((row, reach, start, max(ends) if ends else None))
            reach = end if reach is None else max(reach, end)
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(2, 4), st.integers(1, 5))
def test_waits_and_their_releasers_equal_the_slow_way(seed, blocks, warps, iterations):
    run = run_of(specialised(blocks=blocks, warps=warps, iterations=iterations, seed=seed), REGIONS,
                 {"load": "Copy", "math": "Math", "store": "Store"})
    waits = find_waits(run)
    released = [int(run.intervals.end[i]) if i >= 0 else None for i in waits.released_by]
    got = list(zip(waits.row.tolist(), waits.start.tolist(), waits.end.tolist(), released, strict=True))
    assert got == slow_waits(run)


def test_the_table_says_who_waited_for_whom():
    # One block: a copy warp loads [0,100], [100,220]; the math warp works [105,150] and [230,300].
    rows = {(0, 0): [(0, 0), (1, 100), (0, 101), (1, 220)], (0, 1): [(2, 105), (3, 150), (2, 230), (3, 300)]}
    run = run_of(result_of(rows, (1, 1, 1), (64, 1, 1)), REGIONS, ROLES)
    first, second = wait_table(run)
    assert (first["role"], first["before"], first["after"], first["count"], first["total"]) == (
        "Math Warp", "math", "math", 1, 80)
    assert (first["released_by_role"], first["released_by"], first["slack_p50"]) == ("Copy Warp", "load", 10)
    assert first["share"] == pytest.approx(80 / 195)
    assert (first["longest"], first["longest_tid"], first["longest_start"]) == (80, 32, 150)
    assert (second["role"], second["total"], second["released_by"]) == ("Copy Warp", 1, None)
    assert [(r["role"], r["active"], r["bubble"]) for r in role_table(run)] == [
        ("Copy Warp", 219, 1), ("Math Warp", 115, 80)]


def slow_roles(run):
    """{(role, whether idle): [rows, active, waiting, outside, life]}, one ns of a row at a time."""
    found = {}
    names, role = run.row_roles
    low, high = run.extent
    for row in range(len(run.trace.rows)):
        spans = [(max(int(s), low), min(int(e), high), run.labels[k]) for r, s, e, k in zip(
            run.intervals.row, run.intervals.start, run.intervals.end, run.scope, strict=True) if r == row]
        if not spans:
            continue
        waits = {t for s, e, label in spans if "wait" in label for t in range(s, e)}
        covered = {t for s, e, _ in spans for t in range(s, e)}
        times = run.trace.time[run.trace.row == row].tolist()
        life = min(max(times), high) - max(min(times), low)
        ever = [run.labels[k] for r, k in zip(run.whole[0].row, run.whole[1], strict=True) if r == row]
        key = names[role[row]] if role[row] >= 0 else "", bool(role[row] < 0) and all("wait" in s for s in ever)
        total = found.setdefault(key, [0] * 5)
        for i, n in enumerate((1, len(covered - waits), len(waits), life - len(covered), life)):
            total[i] += n
    return found


def test_recorded_waits_are_not_active_time(tmp_path, capsys):
    # Warp 0 loops (0-1) around waits (2-3); warp 1 does math (4-5) and waits; warp 2 has no role and works; 3 waits.
    rows = {(0, 0): [(0, 0), (2, 10), (3, 60), (1, 100), (0, 120), (2, 130), (3, 140), (1, 200)],
            (0, 1): [(2, 5), (3, 65), (4, 70), (5, 170)],
            (0, 2): [(6, 0), (7, 40), (2, 50), (3, 80)], (0, 3): [(2, 0), (3, 190), (2, 195), (3, 205)]}
    result = result_of(rows, (1, 1, 1), (128, 1, 1))
    regions = [(0, 1, "loop"), (2, 3, "full wait"), (4, 5, "math"), (6, 7, "setup")]
    run = run_of(result, regions, {"loop": "Copy", "math": "Math"})
    wanted = {("Copy", False): [1, 120, 60, 20, 200], ("Math", False): [1, 100, 60, 5, 165],
              ("", False): [1, 40, 30, 10, 80], ("", True): [1, 0, 200, 5, 205]}
    for part in (run, keep_time(run, run.zero + 50, run.zero + 135)):
        table = {(r["role"], r["idle"]): [r[k] for k in ("rows", "active", "waiting", "bubble", "lifetime")]
                 for r in role_table(part)}
        assert table == slow_roles(part) and (part is not run or table == wanted)
        assert all(sum(entry[1:4]) == entry[4] for entry in table.values())
    assert next((r["active_share"], r["waiting_share"]) for r in role_table(run)) == (0.6, 0.3)
    same = {e["role"]: (e["share_before"], e["time_after"]) for e in compare_runs(run, run)["roles"]}
    assert same == {"Copy": (0.1, 20), "Math": (5 / 165, 5), "": (15 / 285, 7)}
    file, section = File(), Section_IntraKernelTrace()
    section.add_run(result, regions, {"loop": "Copy", "math": "Math"})
    file.add_section(section)
    file.render(tmp_path / "t.json")
    assert main(["show", str(tmp_path / "t.json"), "--roles"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "Copy 1 200 ns 120 ns 60.0% 60 ns 30.0% 20 ns 10.0%" in lines
    assert "no role, idle 1 205 ns 0 ns 0.0% 200 ns 97.6% 5 ns 2.4%" in lines


def test_without_roles_waits_have_no_releaser():
    run = run_of(specialised(), REGIONS)
    assert {w["released_by"] for w in wait_table(run)} == {None}
    assert wait_table(run_of(specialised())) == []


def test_a_slower_scope_stands_out_and_noise_does_not():
    before, after = specialised(blocks=32), specialised(blocks=32, seed=9)
    after["records"]["time"][after["records"]["site"] == 3] += 60
    d = compare_runs(run_of(before, REGIONS), run_of(after, REGIONS))
    verdicts = {s["scope_label"]: s["verdict"] for s in d["scopes"]}
    assert verdicts == {"math": "slower", "load": "same", "store": "same"}
    math = d["scopes"][0]
    assert math["scope_label"] == "math" and 0.2 < math["change"] < 0.5
    assert {s["verdict"] for s in compare_runs(run_of(after, REGIONS), run_of(before, REGIONS))["scopes"]} == {
        "faster", "same"}


def test_equal_runs_are_never_told_apart():
    wrong = 0
    for seed in range(30):
        a, b = (run_of(specialised(blocks=16, warps=3, iterations=4, seed=s), REGIONS) for s in (seed, seed + 500))
        wrong += sum(s["verdict"] in ("slower", "faster") for s in compare_runs(a, b)["scopes"])
    # 90 comparisons at p < 0.01.
    assert wrong <= 4


def test_too_few_blocks_are_said_to_be_too_few():
    d = compare_runs(run_of(specialised(blocks=2), REGIONS), run_of(specialised(blocks=2, seed=3), REGIONS))
    assert {s["verdict"] for s in d["scopes"]} == {"too few"}
    assert not enough(5, 5) and enough(6, 6) and not enough(1, 10 ** 6) and not enough(0, 50)


def test_the_rank_test_equals_known_values():
    # Worked by hand: no ties, U = 0 of 6 x 6; mean 18, variance 39, continuity 0.5.
    a, b = np.arange(6.0), np.arange(10.0, 16.0)
    assert rank_test(a, b) == pytest.approx(0.005075, rel=1e-3)
    assert rank_test(a, a) == 1.0
    assert rank_test(np.ones(9), np.ones(4)) == 1.0


def test_scopes_of_one_side_are_named_and_units_must_agree():
    a, b = run_of(specialised(), REGIONS[:2]), run_of(specialised(), REGIONS[1:])
    d = compare_runs(a, b)
    assert (d["only_before"], d["only_after"]) == (["load"], ["store"])
    with pytest.raises(TraceError, match=r"\[other-unit\]"):
        compare_runs(a, run_of(specialised(clock_type="sm"), REGIONS))


def test_show_compares_and_lists(tmp_path, capsys):
    for name, seed in (("before", 1), ("after", 2)):
        result = specialised(blocks=16, seed=seed)
        if name == "after":
            result["records"]["time"][result["records"]["site"] == 3] += 80
        file, section = File(), Section_IntraKernelTrace()
        section.add_run(result, REGIONS, ROLES)
        file.add_section(section)
        file.render(tmp_path / f"{name}.json")
    paths = [str(tmp_path / "after.json"), "--diff", str(tmp_path / "before.json")]
    assert main(["show", *paths]) == 0
    out = capsys.readouterr().out
    assert "Before and after" in out and "slower" in out and "Timeline" not in out
    assert main(["show", *paths, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {s["scope_label"]: s["verdict"] for s in data["diff"]["scopes"]}["math"] == "slower"
    assert main(["show", paths[0], "--roles", "--source"]) == 0
    out = capsys.readouterr().out
    line = next(x for x in out.splitlines() if x.startswith("Math Warp  math -> math"))
    assert "Copy Warp load" in line and "gemm.cu:33 -> gemm.cu:31" in line
    assert "begins math" in out and "0x04d0" in out
    assert main(["show", paths[0], "--diff", str(tmp_path / "none.json")]) == 2


def test_a_comparison_has_both_verdicts_waits_and_findings(tmp_path, capsys):
    slow, fast = pipeline(load=260), {**pipeline(), "outputs": "differ: 3 of 9 bytes"}
    d = compare_runs(run_of(slow, REGIONS, ROLES), run_of(fast, REGIONS, ROLES))
    math = next(e for e in d["roles"] if e["role"] == "Math Warp")
    assert math["share_before"] > math["share_after"] > 0
    assert d["kernels"] == {"before": "_Z4gemmPKfS0_Pf", "after": "_Z4gemmPKfS0_Pf", "same": True}
    assert "role-waits" in [f["code"] for f in d["findings"]["gone"]] and d["waits"][0]["role"] == "Math Warp"
    back = compare_runs(run_of(fast, REGIONS, ROLES), run_of(slow, REGIONS, ROLES))
    assert back["findings"]["new"] == d["findings"]["gone"] and back["findings"]["gone"] == []
    for name, result in (("slow", slow), ("fast", fast), ("other", {**fast, "kernel_prototype": "another"})):
        file, section = File(), Section_IntraKernelTrace()
        section.add_run(result, REGIONS, ROLES)
        file.add_section(section)
        file.render(tmp_path / f"{name}.json")
    after, before, other = (str(tmp_path / f"{name}.json") for name in ("fast", "slow", "other"))
    assert main(["show", after, "--diff", before]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("after:  trustworthy: no") and lines[1].startswith("  - outputs differ")
    assert lines[2].startswith("before: trustworthy: yes")
    assert any(line.startswith("- gone [role-waits] Math Warp waits") for line in lines)
    assert main(["show", after, "--diff", other]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "kernels differ: after is _Z4gemmPKfS0_Pf, before is another" and "exit code 1" in lines[1]
    assert main(["show", after, "--diff", other, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["diff"]
    assert found["kernels"]["same"] is False and found["verdicts"]["before"]["trustworthy"] == "no"
