"""Planted bottlenecks are named, clean kernels are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from format_synth import REGIONS, ROLES, result_of, specialised

from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.findings import findings
from gwatch.common.format.iterations import slack_table
from gwatch.common.format.run import run_of
from gwatch.common.format.select import keep_scopes, keep_time, select_rows
from gwatch.common.format.waits import wait_scopes, waiting_shares


def pipeline(seed=0, blocks=24, warps=4, iterations=40, stages=4, load=100, math=100, jitter=6, slow_block=None,
             slow_warp=None, late=0, hiccup=0.0, clock="anchor"):
    """A producer warp and consumer warps that share ``stages`` buffers; times are what such a kernel would show."""
    rng = np.random.default_rng(seed)
    rows = {}
    for block in range(blocks):
        factor = 3.0 if block == slow_block else 1.0
        start = 10_000 + 20 * block + (late if block < 4 else 0)
        full = [0.0] * iterations
        freed = [[0.0] * iterations for _ in range(warps)]
        copy: list[tuple[int, int]] = []
        t = float(start)
        events: list[list[tuple[int, int]]] = [[] for _ in range(warps)]
        clock_of = [float(start)] * warps
        for i in range(iterations):
            if i >= stages:
                t = max(t, max(freed[w][i - stages] for w in range(1, warps))) + 2
            copy.append((0, int(t)))
            t += load * factor + rng.integers(0, jitter)
            copy.append((1, int(t)))
            full[i] = t
            for w in range(1, warps):
                own = 2.2 if (block, w) == slow_warp else 1.0
                begin = max(clock_of[w], full[i]) + 2
                extra = 9.0 if rng.random() < hiccup else 1.0
                end = begin + math * factor * own * extra + rng.integers(0, jitter)
                events[w] += [(2, int(begin)), (3, int(end))]
                clock_of[w] = freed[w][i] = end
        rows[(block, 0)] = copy
        for w in range(1, warps):
            rows[(block, w)] = events[w]
    return result_of(rows, (blocks, 1, 1), (warps * 32, 1, 1), clock_type=clock)


def codes(result, roles=ROLES):
    return [f.code for f in findings(run_of(result, REGIONS[:2], {k: v for k, v in roles.items() if k != "store"}))]


@pytest.mark.parametrize("seed", range(6))
def test_a_balanced_kernel_has_no_findings(seed):
    assert codes(pipeline(seed)) == []
    assert codes(pipeline(seed, load=80, math=88, stages=3)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_producer_is_waited_for(seed):
    found = findings(run_of(pipeline(seed, load=170), REGIONS[:2], {"load": "Copy", "math": "Math"}))
    assert [f.code for f in found] == ["role-waits"]
    e = found[0].evidence
    assert (e["role"], e["waits_for"], e["scope"]) == ("Math", "Copy", "load")
    assert 0.3 < e["share"] < 0.5
    assert "Math waits" in found[0].text and "Copy (load, gemm.cu:21 to gemm.cu:24)" in found[0].text


@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_consumer_is_waited_for(seed):
    found = findings(run_of(pipeline(seed, math=180), REGIONS[:2], {"load": "Copy", "math": "Math"}))
    assert [(f.code, f.evidence["role"], f.evidence["waits_for"]) for f in found] == [("role-waits", "Copy", "Math")]


def test_iterations_and_findings_agree_on_who_sets_the_pace():
    for arguments, pace in (({"stages": 1}, "each other"), ({"load": 170}, "producer"), ({"math": 180}, "consumer")):
        (entry,) = slack_table(run_of(pipeline(**arguments), REGIONS[:2], {"load": "Copy", "math": "Math"}))
        assert (entry["producer"], entry["consumer"], entry["pace"]) == ("load", "math", pace)


def test_a_tail_of_one_slow_block_is_told_with_it():
    run = run_of(pipeline(slow_block=7, load=260), REGIONS[:2], {"load": "Copy", "math": "Math"})
    assert [f.code for f in findings(run)] == ["slow-block", "role-waits"]
    slow = findings(run)[0]
    others = int(run.intervals.end[run.trace.rows.block[run.intervals.row] != 7].max())
    assert slow.evidence["others_end"] == others and slow.evidence["tail_share"] > 0.5
    assert f"all others end by +{(others - run.zero) / 1000:.2f}µs" in slow.text


def test_one_stage_makes_both_take_turns():
    (found,) = findings(run_of(pipeline(stages=1), REGIONS[:2], {"load": "Copy", "math": "Math"}))
    assert found.code == "take-turns" and found.evidence["roles"] == ["Copy", "Math"]
    assert {(w["role"], w["waits_for"]) for w in found.evidence["waits"]} == {("Copy", "Math"), ("Math", "Copy")}
    assert "Copy and Math take turns" in found.text and 0.4 < found.weight < 0.6


def looped(wait, math, epilogue=0, around=False, blocks=16, warps=4, iterations=20, seed=0):
    """Warps that wait for data and compute by turns (sites 0-1, 2-3), then an epilogue (4-5)."""
    rng = np.random.default_rng(seed)
    rows = {}
    for block in range(blocks):
        for warp in range(warps):
            t = 1000 + 10 * block
            events = [(4, t)] if around else []
            for _ in range(iterations):
                for site, length in ((0, wait), (2, math)):
                    events += [(site, t), (site + 1, t + length + int(rng.integers(0, 4)))]
                    t = events[-1][1] + 3
            events += [(5, t)] if around else []
            events += [(4, t), (5, t + epilogue)] if epilogue else []
            rows[(block, warp)] = events
    return result_of(rows, (blocks, 1, 1), (warps * 32, 1, 1), clock_type="anchor")


WAITED = [(0, 1, "copy wait"), (2, 3, "math"), (4, 5, "epilogue")]


def test_waits_that_are_scopes_themselves_are_weighed():
    (found,) = findings(run_of(looped(80, 100), WAITED))
    assert (found.code, found.evidence["scope"], found.evidence["line"]) == ("long-wait", "copy wait", "gemm.cu:21")
    assert 0.35 < found.weight < 0.5 and "every row spends" in found.text
    assert findings(run_of(looped(10, 100), WAITED)) == []
    # The same with another name is work, and nothing is said about it.
    assert findings(run_of(looped(80, 100), [(0, 1, "copy"), *WAITED[1:]])) == []


def test_the_role_that_waits_least_sets_the_pace():
    result = pipeline(load=170)
    # The consumers' waits as scopes of their own: from one math to the next.
    regions = [*REGIONS[:2], (3, 2, "mbarrier wait 0")]
    found = findings(run_of(result, regions, {"load": "Copy", "math": "Math", "mbarrier wait 0": "Math"}))
    (long,) = [f for f in found if f.code == "long-wait"]
    assert (long.evidence["role"], long.evidence["pace"]) == ("Math", "Copy") and "sets the pace" in long.text


HOPPER = Path(__file__).resolve().parents[2] / "examples/cuda/trace/hopper_product_h200.gwatch"


def lives_and_waits(run, enter, leave, low=-1 << 62, high=1 << 62):
    """Per row, from the records alone: (first to last record, time from ``enter`` to ``leave``), within a window."""
    trace, found = run.trace, {}
    for row in range(len(trace.rows)):
        of = trace.row == row
        mine = [(int(t), int(s)) for t, s in zip(trace.time[of], trace.site[of], strict=True)]
        begin = next(t for t, s in mine if s == enter)
        end = next(t for t, s in mine if s == leave)
        first, last = max(mine[0][0], low), min(mine[-1][0], high)
        found[row] = last - first, max(0, min(end, high) - max(begin, low))
    return found


def test_a_wait_of_several_roles_is_told_for_each():
    run = File.load(HOPPER).runs[0]
    (region,) = [r for r in run.regions if r.label == "cluster wait 1"]
    truth = lives_and_waits(run, region.enter, region.leave)
    warp = run.trace.rows.warp
    groups = {"MMA consumer 0": warp >= 4, "TMA producer": warp == 0, "": (warp > 0) & (warp < 4)}
    found = {w["role"]: w for w in wait_scopes(run) if w["scope"] == "cluster wait 1"}
    assert set(found) == set(groups)
    for name, rows in groups.items():
        life, waited = np.sum([truth[row] for row in np.flatnonzero(rows)], axis=0)
        entry = found[name]
        assert (entry["total"], entry["rows"], entry["role_rows"]) == (waited, rows.sum(), rows.sum())
        assert entry["share"] == entry["role_share"] == pytest.approx(waited / life)
        assert entry["idle"] == (name == "") and rows[entry["longest_row"]]
    assert [round(found[name]["share"], 4) for name in groups] == [0.0157, 0.4003, 0.939]
    waits = [f for f in findings(run) if f.code == "long-wait"]
    assert [(f.evidence["role"], f.evidence["scope"]) for f in waits] == [
        ("TMA producer", "cluster wait 1"), ("TMA producer", "mbarrier wait 1")]
    assert not [f for f in findings(run) if f.code == "spread"], "two roles in one scope are no spread"
    assert waits[0].text.startswith("TMA producer spends 40% of its life at cluster wait 1")
    assert "b24 w0" in waits[0].text


def test_idle_warps_are_no_finding_and_shares_are_of_the_window():
    run = File.load(HOPPER).runs[0]
    part = keep_time(select_rows(run, block="8"), run.zero + 3333, run.zero + 7111)
    (region,) = [r for r in run.regions if r.label == "cluster wait 1"]
    truth = lives_and_waits(select_rows(run, block="8"), region.enter, region.leave, *part.window)
    found = [w for w in wait_scopes(part) if w["scope"] == "cluster wait 1"]
    assert [(w["role"], w["idle"], w["rows"], w["role_rows"]) for w in found] == [("", True, 3, 3)]
    assert found[0]["total"] == sum(truth[row][1] for row in (1, 2, 3)) == 3 * (7111 - 3333)
    assert not [f for f in findings(part) if f.evidence.get("scope") == "cluster wait 1"]
    for w in wait_scopes(part):
        assert 0 <= w["share"] <= 1 and 0 <= w["role_share"] <= 1


def test_rows_keep_their_roles_whatever_scopes_are_chosen():
    run = File.load(HOPPER).runs[0]
    for part, rows in ((keep_scopes(run, ("cluster wait 1",)), slice(None)),
                       (select_rows(keep_scopes(run, ("cluster wait 1", "MMA wait 0")), block="8"), slice(24, 36))):
        names, role = part.row_roles
        assert names == run.row_roles[0] and role.tolist() == run.row_roles[1][rows].tolist()
        found = {w["role"]: w["total"] for w in wait_scopes(part) if w["scope"] == "cluster wait 1"}
        whole = keep_time(select_rows(run, block="8"), None, None) if rows.start else run
        assert found == {w["role"]: w["total"] for w in wait_scopes(whole) if w["scope"] == "cluster wait 1"}


def test_a_wait_of_some_rows_says_of_how_many():
    result = looped(80, 100)
    records = result["records"]
    # In warps 2 and 3 of each block the loop's first half is no wait: their records become another region's.
    some = (records["warp"] % 4 >= 2) & (records["site"] < 2)
    records["site"][some] += 4
    run = run_of(result, [*WAITED[:2], (4, 5, "copy")])
    (found,) = [f for f in findings(run) if f.code == "long-wait"]
    assert found.text.startswith("each of 32 of the 64 rows spends 4")
    assert found.weight == pytest.approx(found.evidence["share"] / 2, abs=0.01)


def test_recorded_waits_are_listed_with_role_line_and_worst_case(tmp_path, capsys):
    regions = [*REGIONS[:2], (3, 2, "mbarrier wait 0")]
    file, section = File(), Section_IntraKernelTrace()
    run = section.add_run(pipeline(load=170), regions, {"load": "Copy", "math": "Math", "mbarrier wait 0": "Math"})
    file.add_section(section)
    for name in ("t.json", "t.html"):
        file.render(tmp_path / name)
    (wait,) = wait_scopes(run)
    mine = run.scope == run.labels.index("mbarrier wait 0")
    length = (run.intervals.end - run.intervals.start)[mine]
    assert (wait["role"], wait["line"], wait["count"]) == ("Math", "gemm.cu:33", int(mine.sum()))
    assert (wait["total"], wait["longest"]) == (int(length.sum()), int(length.max()))
    shares = waiting_shares(run)
    assert shares["Copy"] == 0 and 0.3 < shares["Math"] < 0.5
    assert main(["show", str(tmp_path / "t.json"), "--roles"]) == 0
    out = capsys.readouterr().out
    assert "Waits that were recorded" in out and "gemm.cu:33" in out
    assert "Waits that were recorded" in (tmp_path / "t.html").read_text()
    assert main(["show", str(tmp_path / "t.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wait_scopes"][0]["scope"] == "mbarrier wait 0"


def test_an_epilogue_that_nothing_hides_is_named():
    (found,) = findings(run_of(looped(5, 100, epilogue=2000), WAITED))
    assert (found.code, found.evidence["scope"]) == ("serial-scope", "epilogue") and 0.4 < found.weight < 0.6
    assert findings(run_of(looped(5, 100, epilogue=200), WAITED)) == []
    assert findings(run_of(looped(5, 100, around=True), WAITED)) == [], "a scope around the loop is no epilogue"


def test_a_slow_block_is_named_with_its_sm():
    found = findings(run_of(pipeline(slow_block=17), REGIONS[:2], {"load": "Copy", "math": "Math"}))
    assert [f.code for f in found] == ["slow-block"]
    first = found[0]
    assert (first.evidence["block"], first.evidence["smid"]) == (17, 17)
    assert 2.5 < first.evidence["ratio"] < 3.2
    assert "block 17 on SM 17" in first.text


def test_an_uneven_warp_is_named():
    run = run_of(pipeline(slow_warp=(5, 2), stages=40), REGIONS[:2], {"load": "Copy", "math": "Math"})
    found = [f for f in findings(run) if f.code == "uneven-rows"]
    assert len(found) == 1 and "b5 w2" in found[0].text


def test_a_tail_and_hiccups_are_seen():
    assert "tail" in codes(pipeline(late=9000))
    # A part of the time, picked out, ends where it was cut.
    run = run_of(pipeline(late=9000), REGIONS[:2], {"load": "Copy", "math": "Math"})
    part = keep_time(run, run.zero, run.time_range[1] - 1)
    assert any(f.code == "tail" for f in findings(run)) and not any(f.code == "tail" for f in findings(part))
    assert "spread" in codes(pipeline(hiccup=0.08, stages=40))


def test_figures_near_the_clocks_step_or_the_records_cost_are_marked():
    assert codes(pipeline(load=60, math=62, clock="gpu")) == ["resolution", "resolution"]
    result = pipeline(load=60, math=62, clock="sm")
    result["cost_per_record"] = 40.0
    assert codes(result) == ["probe-cost", "probe-cost"]
    result["cost_per_record"] = 5.0
    assert codes(result) == []


def test_a_diverged_warp_is_marked():
    result = pipeline()
    records = result["records"]
    mine = (records["site"] == 3) & (records["warp"] % 4 == 2)
    # Another lane leaves than entered; both number their own records.
    order = np.lexsort((records["time"], records["warp"]))
    records["lane"][mine] = 5
    for lane in (0, 5):
        for warp in np.unique(records["warp"]):
            part = order[(records["warp"][order] == warp) & (records["lane"][order] == lane)]
            records["sequence"][part] = np.arange(len(part))
    found = findings(run_of(result, REGIONS[:2], {"load": "Copy", "math": "Math"}))
    assert [(f.code, f.evidence["scope"]) for f in found] == [("diverged", "math")]
    assert 0.3 < found[0].evidence["share"] < 0.4


def test_nothing_is_found_where_nothing_is_paired():
    assert findings(run_of(specialised())) == []


def test_show_and_the_page_tell_them(tmp_path, capsys):
    file, section = File(), Section_IntraKernelTrace()
    section.add_run(pipeline(load=170), REGIONS[:2], {"load": "Copy", "math": "Math"})
    file.add_section(section)
    for name in ("t.json", "t.html"):
        file.render(tmp_path / name)
    assert main(["show", str(tmp_path / "t.json")]) == 0
    out = capsys.readouterr().out
    assert "\nFindings\n- [role-waits] Math waits" in out
    assert main(["show", str(tmp_path / "t.json"), "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["findings"]
    assert only["evidence"]["waits_for"] == "Copy"
    assert "<code>role-waits</code> Math waits" in (tmp_path / "t.html").read_text()
