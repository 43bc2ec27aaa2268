"""Pairing: chained, nested, shared, lost and orphaned boundaries, and what drops may not pair."""

from __future__ import annotations

import numpy as np
import pytest
from format_reference import Record, pair_rows
from format_synth import RECORD
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.common.format.records import Geometry, from_records, from_rows
from gwatch.common.format.regions import pair, parse_regions
from gwatch.errors import SiteError

GEOMETRY = Geometry((8, 1, 1), (64, 1, 1))


def trace_of(rows: list[list[Record]], tails: list[bool] | None = None):
    """Thread rows (one per lane) with the given (site, time, lost before) records."""
    out, after = [], {}
    for thread, row in enumerate(rows):
        sequence = -1
        for site, time, lost in row:
            sequence += 1 + lost
            out.append((site, (thread // 64, 0, 0), thread % 64, thread // 32, thread % 32, sequence, time, 0,
                        7))
        if tails and tails[thread]:
            after[(thread // 32, thread % 32)] = 3
    records = np.array(out, RECORD)
    np.random.default_rng(len(out)).shuffle(records)
    return from_records(records, GEOMETRY, lost_after=after)


def intervals_of(trace, *regions):
    intervals, counts = pair(trace, parse_regions(regions))
    table = list(zip(intervals.row.tolist(), intervals.region.tolist(), intervals.start.tolist(),
                     intervals.end.tolist(), strict=True))
    return table, counts


def test_a_site_ends_one_region_and_begins_the_next():
    trace = trace_of([[(0, 10, 0), (1, 20, 0), (2, 35, 0), (0, 40, 0), (1, 55, 0), (2, 60, 0)]])
    table, (first, second) = intervals_of(trace, (0, 1, "a"), (1, 2, "b"))
    assert table == [(0, 0, 10, 20), (0, 1, 20, 35), (0, 0, 40, 55), (0, 1, 55, 60)]
    assert (first.pair_rate, second.pair_rate) == (1.0, 1.0)


def test_one_site_opens_two_regions():
    trace = trace_of([[(0, 10, 0), (1, 20, 0), (2, 35, 0)]])
    table, _ = intervals_of(trace, (0, 1, "short"), (0, 2, "long"))
    assert sorted(table) == [(0, 0, 10, 20), (0, 1, 10, 35)]


def test_recursion_pairs_inside_out():
    trace = trace_of([[(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 4, 0), (1, 6, 0), (1, 9, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 1, 9), (0, 0, 2, 6), (0, 0, 3, 4)]
    assert counts.pair_rate == 1.0
    intervals, _ = pair(trace, parse_regions([(0, 1)]))
    assert intervals.depth.tolist() == [0, 1, 2]


def test_a_pipeline_in_flight_pairs_oldest_first_when_asked():
    rows = [[(0, 1, 0), (0, 2, 0), (1, 5, 0), (0, 6, 0), (1, 7, 0), (1, 9, 0)]]
    table, _ = intervals_of(trace_of(rows), (0, 1, "flight", "fifo"))
    assert table == [(0, 0, 1, 5), (0, 0, 2, 7), (0, 0, 6, 9)]


def test_a_lost_leave_costs_one_entry_and_is_counted():
    trace = trace_of([[(0, 10, 0), (0, 20, 0), (1, 30, 0), (0, 40, 0), (1, 45, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 20, 30), (0, 0, 40, 45)]
    assert (counts.lost_leaves, counts.orphan_leaves, counts.pair_rate) == (1, 0, 0.8)


def test_an_orphan_leave_is_counted_and_pairs_with_nothing():
    trace = trace_of([[(0, 10, 0), (1, 20, 0), (1, 25, 0), (0, 40, 0), (1, 45, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 10, 20), (0, 0, 40, 45)]
    assert (counts.lost_leaves, counts.orphan_leaves, counts.edges) == (0, 1, 0)


def test_nothing_pairs_across_lost_records():
    # Four records are missing between entry and leave: perhaps another leave and entry.
    trace = trace_of([[(0, 10, 0), (1, 90, 4), (0, 95, 0), (1, 99, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 95, 99)]
    assert (counts.lost_leaves, counts.orphan_leaves, counts.broken) == (1, 1, 2)


def test_records_lost_before_the_first_kept_one_explain_an_orphan():
    _, (counts,) = intervals_of(trace_of([[(1, 90, 5), (0, 95, 0), (1, 99, 0)]]), (0, 1))
    assert (counts.orphan_leaves, counts.broken, counts.edges) == (1, 1, 0)


def test_a_loop_leaves_edges_and_nothing_else_unpaired():
    row = [(s, 10 * i, 0) for i, s in enumerate([0, 1, 0, 1, 0])]
    _, (first, second) = intervals_of(trace_of([row, row]), (0, 1), (1, 0))
    assert (first.lost_leaves, first.edges) == (2, 2)
    assert (second.orphan_leaves, second.edges, second.intervals) == (2, 2, 4)


def test_a_leave_timed_before_its_entry_is_reported_not_negative():
    trace = trace_of([[(0, 50, 0), (1, 48, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 50, 50)]
    assert counts.backwards == 1


def test_equal_times_without_sequence_numbers_alternate():
    def row(*events):
        return [{"global_tid": 3, "site_id": s, "value": 0, "timestamp": t} for s, t in events]

    # Back-to-back regions on a coarse timer, in an order that says nothing.
    trace = from_rows(row((0, 32), (0, 64), (1, 64), (1, 96), (1, 128), (0, 128)), GEOMETRY, False)
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 32, 64), (0, 0, 64, 96), (0, 0, 128, 128)]
    assert counts.pair_rate == 1.0


def test_equal_times_with_sequence_numbers_keep_their_order():
    trace = trace_of([[(0, 32, 0), (0, 64, 0), (1, 64, 0), (1, 64, 0)]])
    table, (counts,) = intervals_of(trace, (0, 1))
    assert table == [(0, 0, 32, 64), (0, 0, 64, 64)]
    assert counts.pair_rate == 1.0


@pytest.mark.parametrize("bad", [[(1, 1)], [(1,)], [(1, 2, "a", "lifo")], [(1, 2, "a", "fifo", 3)], ["01"],
                                 [7], [("x", "y")]])
def test_bad_regions_are_refused(bad):
    with pytest.raises(SiteError, match=r"\[bad-region\]"):
        parse_regions(bad)
    with pytest.raises(ValueError):
        parse_regions(bad)


def test_the_default_label_names_the_sites():
    assert [r.label for r in parse_regions([(3, 1), (0, 2, "x")])] == ["site 3-1", "x"]


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.sampled_from([0, 0, 0, 0, 0, 0, 2])),
                   max_size=25)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(RECORDS, st.booleans()), min_size=1, max_size=6),
       st.sampled_from(["nested", "fifo"]))
def test_pairing_equals_the_obvious_way(rows_and_tails, pairing):
    rows, tails = [], []
    for steps, tail in rows_and_tails:
        time, row = 100, []
        for site, step, lost in steps:
            time += step
            row.append((site, time, lost))
        rows.append(row)
        tails.append(tail and bool(row))
    if not any(rows):
        return
    # Rows without records do not exist in a trace: number those that do.
    present = [i for i, row in enumerate(rows) if row]
    trace = trace_of(rows, tails)
    for enter, leave in ((0, 1), (1, 2), (2, 0), (0, 3)):
        expected = pair_rows([rows[i] for i in present], [tails[i] for i in present], enter, leave, pairing)
        table, (counts,) = intervals_of(trace, (enter, leave, "r", pairing))
        assert sorted((r, s, e) for r, _, s, e in table) == expected.intervals
        assert (counts.lost_leaves, counts.orphan_leaves) == (expected.lost_leaves, expected.orphan_leaves)
        assert (counts.broken, counts.edges) == (expected.broken, expected.edges)
        alone = counts.lost_leaves + counts.orphan_leaves
        assert counts.enters + counts.leaves == 2 * counts.intervals + alone


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=30))
def test_depth_counts_the_intervals_still_open(spans):
    from gwatch.common.format.regions import _depths
    ordered = sorted(((s, s + d) for s, d in spans), key=lambda p: (p[0], -p[1]))
    start, end = (np.array(x, np.int64) for x in zip(*ordered, strict=True))
    got = _depths(np.zeros(len(start), np.int64), start, end).tolist()
    for i, (s, _) in enumerate(ordered):
        open_before = sum(1 for j in range(i) if ordered[j][1] > s)
        assert got[i] == open_before
    wide = _depths(np.arange(len(start)) // 3, start * (1 << 57), end * (1 << 57)).tolist()
    assert wide == _depths(np.arange(len(start)) // 3, start, end).tolist()
