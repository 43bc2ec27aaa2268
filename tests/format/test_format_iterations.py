"""Iterations and slack against a slow recount, and on pipelines whose pace is known."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from format_synth import REGIONS, ROLES, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.analysis import percentile
from gwatch.common.format.iterations import CROSSED, LEAST, iteration_table, slack_table
from gwatch.common.format.run import run_of


def by_row(run):
    rows = defaultdict(lambda: defaultdict(list))
    for k, r, a, b in zip(run.scope.tolist(), run.intervals.row.tolist(), run.intervals.start.tolist(),
                          run.intervals.end.tolist(), strict=True):
        rows[run.labels[k]][r].append((a, b))
    return rows


def slow_slack(run, producer, consumer):
    rows, block = by_row(run), run.trace.rows.block
    sides = [defaultdict(list), defaultdict(list)]
    for side, label in zip(sides, (producer, consumer), strict=True):
        for r, made in rows[label].items():
            side[int(block[r])].append(made)
    slack = defaultdict(list)
    for b in sides[0]:
        counts = {len(made) for side in sides for made in side.get(b, [])}
        if b in sides[1] and len(counts) == 1:
            for k in range(counts.pop()):
                ready = max(made[k][1] for made in sides[0][b])
                slack[k] += [made[k][0] - ready for made in sides[1][b]]
    prologue = 0
    while 4 * (prologue + 1) <= len(slack) and 2 * sum(s < 0 for s in slack[prologue]) > len(slack[prologue]):
        prologue += 1
    return sorted(s for k in slack if k >= prologue for s in slack[k])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)),
                       st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=24), max_size=5))
def test_tables_equal_a_slow_recount(made):
    rows = {}
    for place, steps in made.items():
        time, row = 100, []
        for site, step in steps:
            time += step
            row.append((site, time))
        rows[place] = row
    run = run_of(result_of(rows, (2, 1, 1), (96, 1, 1)), [(0, 1, "a", "fifo"), (2, 3, "b")], {"a": "P", "b": "C"})
    found = {e["scope_label"]: e for e in iteration_table(run)}
    for label, per_row in by_row(run).items():
        typical = percentile(sorted(map(len, per_row.values())), 0.5)
        assert (label in found) == (typical >= LEAST)
        if label not in found:
            continue
        e = found[label]
        periods = sorted(b[0] - a[0] for made in per_row.values() for a, b in pairwise(made))
        assert (e["rows"], e["iterations"]) == (len(per_row), typical)
        assert (e["period_p50"], e["period_p95"]) == (percentile(periods, 0.5), percentile(periods, 0.95))
        assert e["first_p50"] == percentile(sorted(m[0][1] - m[0][0] for m in per_row.values()), 0.5)
        assert e["last_p50"] == percentile(sorted(m[-1][1] - m[-1][0] for m in per_row.values()), 0.5)
        steady = sorted(b - a for m in per_row.values() for a, b in m[1:-1])
        assert e["steady_p50"] == percentile(steady, 0.5)
        open_ = max(sum(a <= t < b for a, b in m) for m in per_row.values() for t, _ in m)
        assert e["in_flight"] == max(1, open_)
    pairs = {(e["producer"], e["consumer"]): e for e in slack_table(run)}
    for pair in (("a", "b"), ("b", "a")):
        slack = slow_slack(run, *pair) if set(pair) <= set(found) else []
        crossed = sum(s < 0 for s in slack) / len(slack) if slack else 1.0
        assert (pair in pairs) == (crossed <= CROSSED)
        if pair in pairs:
            e = pairs[pair]
            assert (e["count"], e["slack_p5"], e["slack_p50"], e["slack_p95"]) == (
                len(slack), *(percentile(slack, q) for q in (0.05, 0.5, 0.95)))


def pipeline(produce, consume, ahead=2, iterations=40):
    """One producer and two consumers with a ring of ``ahead`` buffers; times of one block."""
    ends, free, rows = [], [0] * iterations, {(0, 0): [], (0, 1): [], (0, 2): []}
    t, u = 0, [0, 0]
    for k in range(iterations):
        t = max(t, free[k - ahead] if k >= ahead else 0)
        rows[0, 0] += [(0, t), (1, t + produce)]
        t += produce
        ends.append(t)
        for w in (0, 1):
            begin = max(u[w], ends[k]) + 2
            u[w] = begin + consume
            rows[0, w + 1] += [(2, begin), (3, u[w])]
        free[k] = max(u)
        t += 1
    return result_of(rows, (1, 1, 1), (96, 1, 1))


def test_the_pace_is_set_by_the_slower_side():
    for produce, consume, ahead, pace in ((100, 30, 2, "producer"), (30, 100, 4, "consumer")):
        run = run_of(pipeline(produce, consume, ahead), [(0, 1, "load"), (2, 3, "math")], {"load": "P", "math": "C"})
        (entry,) = slack_table(run)
        assert (entry["producer"], entry["consumer"], entry["pace"], entry["blocks"]) == ("load", "math", pace, 1)
        loops = {e["scope_label"]: e for e in iteration_table(run)}
        assert loops["math"]["iterations"] == 40 and loops["math"]["in_flight"] == 1
        assert abs(loops["math"]["period_p50"] - max(produce, consume)) <= 3


def test_the_pair_of_a_barrier_is_listed_though_its_prologue_crosses():
    run = File.load(Path(__file__).resolve().parents[2] / "examples/cuda/trace/hopper_product_h200.gwatch").runs[0]
    pairs = {(e["producer"], e["consumer"]): e for e in slack_table(run)}
    entry = pairs["TMA producer loop 3", "mbarrier wait 0"]
    made, block = by_row(run), run.trace.rows.block
    slack = [[] for _ in range(16)]
    for consumer, waits in made["mbarrier wait 0"].items():
        (produced,) = [ends for row, ends in made["TMA producer loop 3"].items() if block[row] == block[consumer]]
        for k in range(16):
            slack[k].append(waits[k][0] - produced[k][1])
    # The consumers wait for the first tile before it is on its way; from then on the producer is ahead.
    assert max(slack[0]) < 0 and sum(s < 0 for part in slack for s in part) == 64 == len(slack[0])
    steady = sorted(s for part in slack[1:] for s in part)
    assert (entry["prologue"], entry["crossed"], entry["count"]) == (1, 0, 960)
    assert (entry["slack_p5"], entry["slack_p50"]) == (percentile(steady, 0.05), percentile(steady, 0.5))


def test_show_prints_them_and_json_has_them(tmp_path, capsys):
    section, file = Section_IntraKernelTrace(), File()
    section.add_run(specialised(), REGIONS, ROLES)
    file.add_section(section)
    file.render(tmp_path / "t.json")
    assert main(["show", str(tmp_path / "t.json"), "--iterations"]) == 0
    out = capsys.readouterr().out
    assert "Iterations" in out and "load -> math" in out and "Timeline" not in out
    assert main(["show", str(tmp_path / "t.json"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    (run,) = section.runs
    assert data["iterations"] == iteration_table(run) and data["slack"] == slack_table(run)
    assert {e["scope_label"] for e in data["iterations"]} == {"load", "math"}
    section.add_run(specialised(iterations=1), REGIONS, ROLES)
    assert iteration_table(section.runs[1]) == [] and slack_table(section.runs[1]) == []
