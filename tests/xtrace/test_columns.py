"""Columns read straight off a ring hold what the decoder's records hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringsim import Clocks, Writer, site, site_map
from test_decode import SHARING, run_random

from gwatch.cuda.xtrace.columns import Columns, ring_columns
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.errors import TraceError
from gwatch.rewrite.ring import HEADER_DTYPE, Keep, RecordKind, RingFormat, RingLayout


def same(columns: Columns, duration: float = 1e6) -> int:
    """Compare with the records, each found by warp, lane and sequence; returns how many there are."""
    records = columns.decoded(duration).records
    layout = columns.layout
    x, y, z = records["block"].T.astype(np.int64)
    slot = x + layout.grid[0] * (y + layout.grid[1] * z)
    theirs = np.lexsort((records["sequence"], records["lane"], slot * layout.warps_per_cta + records["warp"]))
    mine = np.lexsort((columns.sequence, columns.lane(), columns.warp()))
    assert len(columns) == len(records)
    for name in ("site", "sequence", "time"):
        assert (getattr(columns, name)[mine] == records[name][theirs]).all(), name
    assert (columns.lane()[mine] == records["lane"][theirs]).all()
    if columns.value is None:
        assert not records["value"].any()
    else:
        assert (columns.value[mine] == records["value"][theirs]).all()
    return len(records)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(Keep.NEWEST, False), (Keep.FIRST, False), (Keep.NEWEST, True)]),
    st.sampled_from(["gpu", "sm"]),
    st.integers(0, 2),
    st.booleans(),
)
def test_columns_are_the_records(
    seed: int, order: tuple[Keep, bool], clock: str, width: int, shared: bool
) -> None:
    kind = (RecordKind.NARROW, RecordKind.WIDE, RecordKind.WIDE)[width]
    fmt = RingFormat(kind, 32 if order[1] else 4, *order)
    sites = [site(0, "smid"), site(1, warp=True), *([site(2, ("R8", "R8:64")[width - 1])] if width else [])]
    smap = site_map(clock, fmt, SHARING if shared else sites)
    layout = RingLayout(fmt, (2, 1, 1), (72, 1, 1), 2)
    writer = Writer(layout, smap, Clocks(), seed)
    run_random(writer, seed, 12, 5e4)
    same(ring_columns(bytes(writer.data), layout, smap, 1e6))


def in_step(visits: int, depth: int = 8, warps: int = 6) -> tuple[Any, RingLayout, Any]:
    """A ring whose lanes all made the same number of records."""
    fmt = RingFormat(RecordKind.NARROW, depth)
    smap = site_map("gpu", fmt, [site(0), site(1)])
    layout = RingLayout(fmt, (warps // 2, 1, 1), (64, 1, 1), warps // 2)
    writer = Writer(layout, smap, Clocks())
    for cta in range(warps // 2):
        writer.enter(cta, cta, sm=cta, t=100.0)
        for warp in (2 * cta, 2 * cta + 1):
            for turn in range(visits):
                writer.visit(warp, list(range(32)), turn % 2, 300.0 + 64 * turn)
    return writer, layout, smap


@pytest.mark.parametrize("visits", [3, 9])
def test_a_clock_whose_lower_half_wraps_is_extended_in_whole_blocks(visits: int) -> None:
    writer, layout, smap = in_step(visits)
    headers = np.frombuffer(writer.data, np.uint8)[layout.ring_bytes :].view(HEADER_DTYPE)
    headers["ns_in"] = np.where(np.arange(len(headers)) % 2, (7 << 32) - 50, 7 << 32)
    columns = ring_columns(bytes(writer.data), layout, smap, 1e9)
    assert same(columns, 1e9) == 6 * 32 * min(visits, 8)
    assert columns.time.min() >= (7 << 32) - 50


@pytest.mark.parametrize("visits", [0, 3, 8, 9, 21])
def test_lanes_in_step_need_no_index_arrays(visits: int) -> None:
    writer, layout, smap = in_step(visits)
    columns = ring_columns(bytes(writer.data), layout, smap, 1e6)
    assert same(columns) == 6 * 32 * min(visits, 8)
    assert all((mask is None) == (visits >= 8) for _, mask in columns.masks)


def test_lanes_that_make_different_numbers_of_records_are_read_in_blocks_too() -> None:
    writer, layout, smap = in_step(21)
    for lane in (3, 31):
        writer.visit(2, [lane], 0, 1 << 13)
    before = writer.data[:]
    columns = ring_columns(bytes(writer.data), layout, smap, 1e6)
    assert same(columns) == 6 * 32 * 8 and columns.sequence.max() == 21
    # Slot 0 of one lane emptied: neither the newest nor the oldest records of a lane.
    np.frombuffer(writer.data, np.uint32)[:2] = 0
    with pytest.raises(TraceError, match=r"\[ring-corrupt\]"):
        ring_columns(bytes(writer.data), layout, smap, 1e6)
    writer.data[:] = before
    np.frombuffer(writer.data, np.uint32)[1 : 2 * layout.warps * 8 * 32 : 2] &= 0xFF
    with pytest.raises(TraceError, match=r"\[ring-corrupt\]"):
        ring_columns(bytes(writer.data), layout, smap, 1e6)


def test_a_record_out_of_place_is_refused() -> None:
    writer, layout, smap = in_step(9)
    tags = np.frombuffer(writer.data, np.uint32)[1 : 2 * 32 * 8 : 2]
    place = np.flatnonzero(tags)[40]
    np.frombuffer(writer.data, np.uint32)[1 + 2 * place] ^= 1 << 9
    with pytest.raises(TraceError, match=r"\[ring-corrupt\]"):
        ring_columns(bytes(writer.data), layout, smap, 1e6)
    writer, layout, smap = in_step(9)
    np.frombuffer(writer.data, np.uint32)[1] |= 0x80
    with pytest.raises(TraceError, match=r"\[ring-corrupt\] a record names site"):
        ring_columns(bytes(writer.data), layout, smap, 1e6)


def test_a_record_of_a_site_that_leaves_none_is_no_record() -> None:
    """Site 0 shares the record of site 1: whatever names it was not written by this map's kernel."""
    fmt = RingFormat(RecordKind.NARROW, 8)
    smap = site_map("gpu", fmt, [site(0, shared=1), site(1), site(2)])
    layout = RingLayout(fmt, (1, 1, 1), (32, 1, 1), 1)
    for visits in ((0, 1, 2), (0,) * 8, (0, 1) * 20):
        writer = Writer(layout, smap, Clocks())
        writer.enter(0, 0, 0, 0.0)
        for turn, number in enumerate(visits):
            writer.visit(0, range(32), number, 100.0 + 64 * turn)
        for read in (ring_columns, decode_ring):
            with pytest.raises(TraceError, match=r"^\[ring-corrupt\] .* site 0, which leaves none"):
                read(bytes(writer.data), layout, smap, 1e6)
