"""Columns from records: rows, order, losses, and launches that do not fill warps."""

from __future__ import annotations

import numpy as np
import pytest
from format_synth import RECORD

from gwatch.common.format.records import Geometry, from_records, from_rows, rebase_per_sm, triple
from gwatch.errors import TraceError

GEOMETRY = Geometry((2, 3, 1), (40, 1, 1))


def records(*entries):
    """(site, (bx, by), thread, sequence, time) records."""
    out = [(site, (bx, by, 0), thread, (bx + 2 * by) * 2 + thread // 32, thread % 32, sequence, time, 5, 9)
           for site, (bx, by), thread, sequence, time in entries]
    return np.array(out, RECORD)


def test_rows_are_threads_in_launch_order():
    made = records((0, (1, 2), 39, 0, 70), (0, (0, 0), 1, 0, 50), (0, (1, 2), 3, 0, 60))
    trace = from_records(made, GEOMETRY)
    assert trace.rows.block.tolist() == [0, 5, 5]
    assert trace.rows.warp.tolist() == [0, 0, 1]
    assert trace.rows.lane.tolist() == [1, 3, 7]
    # Block 5 of 40-thread blocks: a row's id counts threads, not padded warps.
    assert trace.rows.tid.tolist() == [1, 203, 239]
    assert trace.time.tolist() == [50, 60, 70]


def test_warp_rows_are_named_by_warp_times_32():
    trace = from_records(records((0, (1, 2), 32, 0, 70)), GEOMETRY, warp_sites=[0])
    assert (trace.rows.tid.tolist(), trace.rows.lane.tolist()) == ([(5 * 2 + 1) * 32], [-1])


def test_sequence_orders_a_row_and_its_holes_are_losses():
    made = records((1, (0, 0), 0, 7, 90), (0, (0, 0), 0, 2, 80), (2, (0, 0), 0, 3, 80))
    trace = from_records(made, GEOMETRY)
    assert trace.site.tolist() == [0, 2, 1]
    assert trace.gap.tolist() == [True, False, True]
    assert trace.rows.dropped.tolist() == [2 + 3]


def test_losses_after_the_last_kept_record_are_told_apart():
    trace = from_records(records((0, (0, 0), 0, 0, 10), (0, (0, 0), 33, 0, 12)), GEOMETRY,
                         lost_after={(0, 0): 4, (1, 1): 0})
    assert trace.rows.tail_gap.tolist() == [True, False]
    assert trace.rows.dropped.tolist() == [4, 0]
    assert not trace.gap.any()


def test_a_loss_in_one_lane_cuts_the_warp_row_where_it_may_lie():
    # Warp-level site 9; lanes 0 and 1 take turns. Lane 1 lost two records between its times 20 and 50.
    trace = from_records(records((9, (0, 0), 0, 0, 10), (9, (0, 0), 1, 0, 20), (9, (0, 0), 0, 1, 30),
                                 (9, (0, 0), 1, 3, 50), (9, (0, 0), 0, 2, 60)), GEOMETRY, warp_sites=[9])
    assert len(trace.rows) == 1
    assert trace.time.tolist() == [10, 20, 30, 50, 60]
    assert trace.gap.tolist() == [False, False, True, True, False]
    assert not trace.rows.exact[0]


def test_a_thread_site_loss_concerns_its_own_row_and_its_warp():
    # Lane 0: thread records of site 1 and warp records of site 9 share one count; two are missing before 40.
    trace = from_records(records((1, (0, 0), 0, 0, 10), (9, (0, 0), 0, 1, 20), (9, (0, 0), 0, 4, 40),
                                 (1, (0, 0), 0, 5, 50), (1, (0, 0), 2, 0, 15)), GEOMETRY, warp_sites=[9])
    assert trace.rows.lane.tolist() == [-1, 0, 2]
    by_row = [trace.gap[trace.row == r].tolist() for r in range(3)]
    assert by_row[0] == [False, True]
    # Either of the two may have been the thread's own, between its records at 10 and at 50.
    assert by_row[1] == [False, True]
    assert by_row[2] == [False]
    assert trace.rows.dropped.tolist() == [2, 0, 0]


def test_a_loss_behind_the_last_record_of_a_row_is_its_tail():
    # Lane 0's thread site recorded once; the losses before the warp-level record at 40 may be the thread's own.
    trace = from_records(records((1, (0, 0), 0, 0, 10), (9, (0, 0), 0, 3, 40)), GEOMETRY, warp_sites=[9])
    assert trace.rows.lane.tolist() == [-1, 0]
    assert trace.rows.tail_gap.tolist() == [False, True]
    assert trace.gap.tolist() == [True, False]


def test_the_field_warp_level_decides_by_record():
    mixed = np.zeros(2, [*RECORD.descr, ("warp_level", "?")])
    mixed["warp_level"] = [True, False]
    mixed["sequence"] = [0, 1]
    mixed["time"] = [1, 2]
    assert from_records(mixed, GEOMETRY).rows.lane.tolist() == [-1, 0]


def test_block_may_be_a_struct_or_three_fields_and_warp_may_count_in_its_block():
    base = [("site", "u2"), ("time", "i8"), ("lane", "u1"), ("warp", "i4")]
    struct = np.zeros(1, [*base, ("block", [("x", "i4"), ("y", "i4"), ("z", "i4")])])
    fields = np.zeros(1, [*base, ("block_x", "i4"), ("block_y", "i4"), ("block_z", "i4")])
    struct["block"]["y"], fields["block_y"] = 2, 2
    struct["warp"] = fields["warp"] = 1
    for array in (struct, fields):
        trace = from_records(array, GEOMETRY)
        assert (trace.rows.block.tolist(), trace.rows.warp.tolist()) == ([4], [1])
    whole = np.zeros(1, [*base, ("block", "i4", (3,))])
    whole["block"][0, 1], whole["warp"] = 2, 9
    assert from_records(whole, GEOMETRY).rows.warp.tolist() == [1]


@pytest.mark.parametrize(("change", "message"), [
    ({"block": (2, 0, 0)}, "outside the grid"), ({"warp": 77}, "outside its block")])
def test_records_that_contradict_the_launch_are_refused(change, message):
    bad = records((0, (0, 0), 0, 0, 10))
    for key, value in change.items():
        bad[key] = value
    with pytest.raises(TraceError, match=message):
        from_records(bad, GEOMETRY)


def test_a_number_twice_in_one_lane_is_refused():
    with pytest.raises(TraceError, match=r"lane 7 of warp 1 has one sequence number twice"):
        from_records(records((0, (0, 0), 39, 0, 10), (1, (0, 0), 39, 0, 20)), GEOMETRY)


def test_row_form_gives_the_same_columns():
    rows = [{"global_tid": 203, "site_id": 1, "value": 2 ** 63 + 1, "timestamp": 60, "smid": 4},
            {"global_tid": 1, "site_id": 0, "value": None, "timestamp": 50}]
    trace = from_rows(rows, GEOMETRY, warp_granularity=False)
    assert trace.rows.block.tolist() == [0, 5]
    assert trace.rows.tid.tolist() == [1, 203]
    assert trace.value.tolist() == [0, 2 ** 63 + 1]
    assert trace.rows.smid.tolist() == [-1, 4]
    assert trace.sequence.tolist() == [-1, -1]
    warps = from_rows([{"global_tid": 96, "site_id": 1, "value": 0, "timestamp": 60}], GEOMETRY, True)
    assert (warps.rows.block.tolist(), warps.rows.warp.tolist(), warps.rows.lane.tolist()) == ([1], [1], [-1])


@pytest.mark.parametrize("bad", [{"global_tid": 1, "site_id": 0, "value": 0},
                                 {"global_tid": 1, "site_id": 0, "value": 0, "timestamp": "soon"},
                                 {"global_tid": 1, "site_id": 0, "value": 0, "timestamp": 1 << 70},
                                 {"global_tid": 1, "site_id": 0, "value": 0, "timestamp": 1.5},
                                 {"global_tid": 1, "site_id": 0, "value": -1, "timestamp": 1},
                                 {"global_tid": 1, "site_id": 0, "value": 1 << 64, "timestamp": 1}, 7])
def test_malformed_rows_are_refused_by_name(bad):
    good = {"global_tid": 1, "site_id": 0, "value": 0, "timestamp": 1}
    with pytest.raises(TraceError, match=r"\[bad-records\] trace_results"):
        from_rows([good, bad], GEOMETRY, False)


def test_per_sm_clocks_start_at_zero_on_each_sm_and_keep_differences():
    entries = records((0, (0, 0), 0, 0, 1000), (0, (0, 0), 0, 1, 1010), (0, (1, 0), 0, 0, 77),
                      (0, (0, 1), 0, 0, 80))
    entries["smid"] = [3, 3, 5, 5]
    trace = rebase_per_sm(from_records(entries, GEOMETRY))
    assert trace.time.tolist() == [0, 10, 0, 3]
    assert trace.rows.origin.tolist() == [1000, 77, 77]


@pytest.mark.parametrize("bad", [0, [], [1, 2, 3, 4], [1, -1], "axb", [None]])
def test_bad_dimensions_are_refused(bad):
    with pytest.raises(TraceError, match=r"\[bad-dimension\] grid_dim"):
        triple(bad, "grid_dim")


def test_dimensions_are_padded_with_one():
    assert (triple(7, "d"), triple((2, 3), "d"), triple(np.array([4, 5, 6]), "d"), triple(None, "d")) == (
        (7, 1, 1), (2, 3, 1), (4, 5, 6), (1, 1, 1))
