"""Every table against numbers computed one by one, and the verdict's rules."""

from __future__ import annotations

import numpy as np
import pytest
from format_reference import nearest_rank, union_length
from format_synth import REGIONS, ROLES, many, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.common.format import analysis, losses
from gwatch.common.format import regions as regions_module
from gwatch.common.format.run import run_of
from gwatch.common.format.select import keep_time
from gwatch.errors import GWatchError, TraceError

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=14)
LABELS = ["a", "b", "c"]
TRIPLE_REGIONS = [(0, 1, "a"), (2, 3, "b"), (4, 5, "c")]


def run_from_spans(rows):
    """A run whose warp rows hold the given (start, length, scope) intervals, none overlapping within a scope."""
    table, truth = {}, {}
    for number, spans in enumerate(rows):
        busy: dict[int, int] = {}
        events, kept = [], []
        for start, length, scope in sorted(spans):
            if start >= busy.get(scope, -1) + 1:
                busy[scope] = start + length
                kept.append((1000 + start, 1000 + start + length, scope))
                events += [(1000 + start, 0, 2 * scope), (1000 + start + length, 1, 2 * scope + 1)]
        events.sort()
        # A leave must not come before its own entry when both have one time.
        events.sort(key=lambda e: (e[0], e[1]))
        table[(number, 0)] = [(site, time) for time, _, site in events]
        truth[number] = kept
    return run_of(result_of(table, (len(rows), 1, 1), (32, 1, 1)), TRIPLE_REGIONS), truth


@settings(max_examples=120, deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=5))
def test_tables_equal_the_slow_way(rows):
    run, truth = run_from_spans(rows)
    a = run.analysis
    every = [(row, *span) for row, spans in truth.items() for span in spans]
    assert a["n_threads"] == len(truth)
    assert len(run.intervals) == len(every)
    for scope, label in enumerate(LABELS):
        lengths = [e - s for _, s, e, k in every if k == scope]
        found = [s for s in a["scope_stats"] if s["scope_label"] == label]
        if not lengths:
            assert found == []
            continue
        (got,) = found
        assert (got["count"], got["min"], got["max"], got["total"]) == (
            len(lengths), min(lengths), max(lengths), sum(lengths))
        assert [got[k] for k in ("p25", "p50", "p75", "p95")] == [
            nearest_rank(lengths, p) for p in (0.25, 0.5, 0.75, 0.95)]
        assert got["mean"] == pytest.approx(sum(lengths) / len(lengths))
        assert got["lanes"] == len({row for row, _, _, k in every if k == scope})
    totals = [s["total"] for s in a["scope_stats"]]
    assert totals == sorted(totals, reverse=True)

    p = a["pipeline_summary"]
    active = {row: union_length([(s, e) for s, e, _ in spans]) for row, spans in truth.items()}
    life = {row: max(e for _, e, _ in spans) - min(s for s, _, _ in spans) for row, spans in truth.items()}
    assert (p["active_min"], p["active_max"]) == (min(active.values()), max(active.values()))
    assert (p["lifetime_min"], p["lifetime_max"]) == (min(life.values()), max(life.values()))
    bubble = {row: life[row] - active[row] for row in truth}
    assert p["bubble_mean"] == pytest.approx(sum(bubble.values()) / len(bubble))
    assert p["bubble_ratio"] == pytest.approx(sum(bubble.values()) / max(1, sum(life.values())))
    gaps = []
    for row, spans in truth.items():
        reach = None
        for s, e, _ in sorted(spans):
            if reach is not None and s > reach:
                gaps.append((s - reach, row * 32))
            reach = e if reach is None else max(reach, e)
    assert [b["gap"] for b in a["longest_bubbles"]] == sorted((g for g, _ in gaps), reverse=True)[:5]

    low, high = a["t_min"], a["t_max"]
    assert (low, high) == (min(s for _, s, _, _ in every), max(e for _, _, e, _ in every))
    bins, width = a["concurrency"]["bins"], (high - low) / 60
    for i, n in enumerate(bins):
        if not width:
            continue
        # Rows whose intervals reach well into the slice count; rows that only touch its border may.
        left, right = low + i * width, low + (i + 1) * width
        inner = {r for r, s, e, _ in every if s < right - 1e-6 and e > left + 1e-6}
        outer = {r for r, s, e, _ in every if s <= right + 1e-6 and e >= left - 1e-6}
        assert len(inner) <= n <= len(outer)
    assert a["concurrency"]["peak"] == max(bins) <= len(truth)


def test_a_row_lives_from_its_first_to_its_last_record():
    # Row 0 has records before and after its scopes (sites 4, 5), row 1 has none, row 2 runs no scope.
    rows = {(0, 0): [(4, 100), (0, 130), (1, 150), (0, 160), (1, 170), (5, 200)], (0, 1): [(0, 110), (1, 180)],
            (0, 2): [(4, 100), (5, 900)]}
    run = run_of(result_of(rows, (1, 1, 1), (96, 1, 1)), [(0, 1, "r")])
    assert run.per_row.tolist() == [[0, 30, 70, 100], [1, 70, 0, 70]]
    p = run.analysis["pipeline_summary"]
    assert (p["lifetime_min"], p["lifetime_max"], p["bubble_max"]) == (70, 100, 70)
    assert p["bubble_ratio"] == pytest.approx(70 / 170)
    # 140 to 190: row 0 lives through it all, row 1 until 180.
    part = keep_time(run, 140, 190)
    assert part.per_row.tolist() == [[0, 20, 30, 50], [1, 40, 0, 40]]
    assert part.analysis["pipeline_summary"]["lifetime_max"] == 50


def test_site_repeats_skip_lost_records():
    events = [(0, 100), (0, 130), (0, 190), (0, 250)]
    result = result_of({(0, 0): events}, (1, 1, 1), (32, 1, 1))
    (site,) = run_of(result).analysis["site_stats"]
    assert (site["repeat_min"], site["repeat_mean"], site["repeat_max"]) == (30, 50.0, 60)
    assert (site["count"], site["rows"], site["records_per_row"], site["t_first"], site["t_last"]) == (
        4, 1, 4.0, 100, 250)
    result["records"] = np.sort(result["records"], order="sequence")
    result["records"]["sequence"] = [0, 1, 7, 8]
    (site,) = run_of(result).analysis["site_stats"]
    assert (site["repeat_min"], site["repeat_max"]) == (30, 60)
    result["records"]["sequence"] = [0, 2, 4, 6]
    (site,) = run_of(result).analysis["site_stats"]
    assert (site["repeat_min"], site["repeat_mean"]) == (None, None)


def test_a_specialised_kernel_reads_as_it_was_made():
    run = run_of(specialised(blocks=2, warps=4, iterations=5), REGIONS, ROLES)
    a = run.analysis
    assert (a["n_records"], a["n_rows"], a["n_threads"]) == (2 * (10 + 3 * 12), 8, 8)
    assert {s["scope_label"]: s["count"] for s in a["scope_stats"]} == {"math": 30, "load": 10, "store": 6}
    assert [r["pair_rate"] for r in a["region_stats"]] == [1.0, 1.0, 1.0]
    assert a["scope_labels"] == ["load", "math", "store"]
    assert (a["unmatched_starts"], a["unmatched_ends"]) == (0, 0)
    from gwatch.common.format.analysis import row_roles
    names, role = row_roles(run.intervals, run.scope, run.labels, run.roles, 8)
    assert names == ["Copy Warp", "Math Warp"]
    assert role.tolist() == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_million_records_pair_completely():
    run = run_of(many(n_rows=2048, per_row=500), [(0, 1, "a"), (1, 2, "b"), (2, 0, "c")])
    a = run.analysis
    assert a["n_records"] == 2048 * 500
    assert {r["label"]: (r["intervals"], r["dropped"], r["at_edges"]) for r in a["region_stats"]} == {
        "a": (2048 * 167, 0, 0), "b": (2048 * 166, 2048, 2048), "c": (2048 * 166, 2048, 2048)}
    # Chained phases leave no hole.
    assert a["pipeline_summary"]["bubble_ratio"] == 0.0
    assert a["longest_bubbles"] == []


def test_scope_marker_records_are_told_as_scopes():
    def record(tid, kind, scope, time):
        return {"global_tid": tid, "type_id": 1, "type_str": kind, "scope_id": scope, "scope_str": str(scope),
                "scope_label": {1: "load", 2: "store"}[scope], "payload": 0, "value": time}

    rows = [record(0, "SCOPE_START", 2, 100), record(0, "SCOPE_END", 2, 130), record(33, "SCOPE_START", 1, 110),
            record(33, "SCOPE_END", 1, 150), record(33, "SCOPE_START", 1, 160)]
    result = {"kernel_prototype": "k", "grid_dim": (1, 1, 1), "block_dim": (64, 1, 1), "trace_results": rows,
              "compile_results": {"record_shape": "scope", "clock_type": "gpu"}, "oe_results": {}}
    run = run_of(result, scope_roles={"load": "Copy"})
    a = run.analysis
    assert (a["record_shape"], a["scope_labels"], a["unmatched_starts"]) == ("scope", ["load", "store"], 1)
    assert {s["scope_label"]: s["total"] for s in a["scope_stats"]} == {"load": 40, "store": 30}
    assert a["site_stats"] == []


def test_per_sm_clock_is_told_in_cycles_from_zero():
    result = specialised(blocks=2, clock_type="sm")
    records = result["records"]
    records["time"][records["block"][:, 0] == 1] += 1 << 40
    a = run_of(result, REGIONS).analysis
    assert (a["unit"], a["time_origin"], a["t_min"]) == ("cyc", "per SM", 0)
    assert a["span"] < 10_000


@pytest.mark.parametrize(("change", "word", "reason"), [
    ({}, "yes", None),
    ({"outputs": "differ (2 of 4 tensors)"}, "no", "computed something else"),
    ({"outputs": None}, "unknown", "outputs not compared"),
    ({"outputs": "not checked: no tensors returned"}, "unknown", "no tensors returned"),
    ({"outputs": "nondeterministic"}, "unknown", "plain runs differ already"),
    ({"slowdown": None}, "unknown", "slowdown not measured"),
    ({"slowdown": {"median": 1.3, "low": 1.2, "high": 1.4, "noise": 0.01}}, "no", "slowdown 1.300 is above 1.10"),
    ({"slowdown": {"median": 1.3, "low": 0.9, "high": 1.8, "noise": 0.2}}, "unknown", "slowdown 1.300 may be noise"),
    ({"slowdown": {"median": 1.08, "low": 0.9, "high": 1.8, "noise": 0.01}}, "unknown", "slowdown 0.900 to 1.800"),
    ({"slowdown": {"median": 1.0, "low": 0.99, "high": 1.01, "noise": 0.2, "passes": 5}}, "unknown",
     "speed not known: slowdown 0.990 to 1.010 (noise 0.200, 5 passes), a short launch takes more: --passes 25"),
    ({"slowdown": {"median": 0.818, "low": 0.682, "high": 1.376, "noise": 0.436}}, "unknown", "(noise 0.436)"),
    ({"slowdown": {"median": 1.0, "low": 0.9, "high": 1.2, "noise": 0.2, "passes": 30}}, "unknown", "--passes 120"),
    ({"slowdown": {"median": 1.09, "low": 1.08, "high": 1.1, "noise": 0.1}}, "yes", None),
    ({"slowdown": {"median": 1.08}}, "yes", None),
    ({"occupancy": {"before": 2, "after": 1}}, "no", "occupancy fell from 2 to 1"),
    ({"occupancy": {"before": 8, "after": 6, "needed": 7}}, "no", "occupancy fell from 8 to 6"),
    ({"occupancy": {"before": 8, "after": 6, "needed": 6}}, "yes", None),
    ({"dropped": 12}, "no", "12 records"),
    ({"dropped": 12, "warnings": ["[dropped-shared] one counts once"]}, "no", "at least 12 records (at least 1."),
    ({"outputs": "differ", "outputs_detail": ["c: 3 of 64 bytes differ from both plain passes"]}, "no",
     "c: 3 of 64 bytes"),
])
def test_the_verdict_names_what_it_holds_against_a_trace(change, word, reason):
    verdict = run_of(specialised(**change), REGIONS).verdict
    assert verdict.trustworthy == word
    assert verdict.line.startswith(f"trustworthy: {word} · outputs ")
    if reason is None:
        assert verdict.reasons == ()
    else:
        assert len(verdict.reasons) == 1
        assert reason in verdict.reasons[0]


def test_the_verdict_line_has_all_figures():
    line = run_of(specialised(registers={"before": 14, "after": 20}), REGIONS).verdict.line
    assert line == ("trustworthy: yes · outputs identical · dropped 0 · slowdown 1.004 (noise 0.003) · "
                    "12 cycles/record · registers 14→20 · 2→2 CTAs/SM")


def test_drops_are_counted_from_the_records_when_nobody_else_did():
    result = specialised(keep=8)
    expected = result.pop("dropped")
    run = run_of(result, REGIONS)
    assert run.evidence["dropped"] == expected == 2 * 12 * 4 + (2 * 12 + 2) * 28 - 32 * 8
    assert run.verdict.trustworthy == "no"
    # The math warps made 26 records each.
    assert run.verdict.reasons[0].endswith("a depth of 32 (--depth, sass_per_thread_records) keeps all")


def test_the_row_form_is_not_asked_for_where_there_are_records():
    class Lazy(dict):
        def __missing__(self, key):
            raise AssertionError(f"{key} was made for nothing")

    result = Lazy(specialised())
    del result["trace_results"]
    assert run_of(result, REGIONS).analysis["n_records"] == 824


def test_a_plain_dict_without_evidence_is_not_trusted_blindly():
    result = {"kernel_prototype": "k", "grid_dim": 1, "block_dim": 32, "compile_results": {}, "oe_results": {},
              "trace_results": [{"global_tid": 0, "site_id": 0, "value": 0, "timestamp": 5}]}
    verdict = run_of(result).verdict
    assert verdict.trustworthy == "unknown"
    assert "drops not counted" in verdict.reasons


def test_results_and_roles_that_make_no_sense_are_refused():
    with pytest.raises(TraceError, match=r"\[empty-result\]"):
        run_of({})
    with pytest.raises(GWatchError, match=r"\[bad-role\] .*'maths'.*load, math, store"):
        run_of(specialised(), REGIONS, {"maths": "x"})


def test_a_run_without_records_has_empty_tables_and_a_reason():
    result = specialised()
    result["records"] = result["records"][:0]
    a = run_of(result, REGIONS).analysis
    assert (a["n_records"], a["span"], a["pipeline_summary"], a["site_stats"]) == (0, 0, {}, [])
    assert a["verdict"]["reasons"] == ["no records"]


def test_rows_worked_on_part_by_part_give_the_same_tables(monkeypatch):
    chain = [(0, 1, "a"), (1, 2, "b"), (2, 0, "c")]
    made = [(specialised(keep=9), REGIONS), (many(128, 9), chain)]
    expected = [run_of(result, regions).analysis for result, regions in made]
    for module in (analysis, regions_module):
        monkeypatch.setattr(module, "row_parts", lambda row: losses.row_parts(row, 5))
    assert len(list(losses.row_parts(np.repeat(np.arange(9), 3), 5))) == 5
    assert [run_of(result, regions).analysis for result, regions in made] == expected
