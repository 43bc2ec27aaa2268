"""Ring geometry: what the snippets' constants, the loader's sizes and the decoder's shapes are made of."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gwatch.errors import TraceError
from gwatch.rewrite.ring import (
    DESCRIPTOR_BYTES,
    DESCRIPTOR_DTYPE,
    HEADER_DTYPE,
    Keep,
    RecordKind,
    RingFormat,
    RingLayout,
    RingPlace,
    round_depth,
    unarmed_descriptor,
)
from gwatch.rewrite.ringfile import ring_file_prefix, split_ring_file

formats = st.builds(
    lambda kind, depth, order: RingFormat(kind, max(depth, 32) if order[1] else depth, *order),
    st.sampled_from(list(RecordKind)),
    st.integers(0, 12).map(lambda k: 1 << k),
    st.sampled_from([(Keep.NEWEST, False), (Keep.FIRST, False), (Keep.NEWEST, True)]),
)


@given(st.integers(1, 1 << 20))
def test_depths_round_up_to_powers_of_two(records: int) -> None:
    depth = round_depth(records)
    assert depth >= records and depth & (depth - 1) == 0 and (depth == 1 or depth // 2 < records)


@pytest.mark.parametrize("records", [0, -1, (1 << 20) + 1])
def test_impossible_depths_are_refused(records: int) -> None:
    with pytest.raises(TraceError, match=r"^\[trace-depth\]"):
        round_depth(records)


def test_the_two_record_sizes() -> None:
    narrow, wide = RingFormat(RecordKind.NARROW, 32), RingFormat(RecordKind.WIDE, 32)
    assert (narrow.record_bytes, narrow.step, narrow.sequence_shift, narrow.sequence_bits) == (8, 256, 8, 24)
    assert (wide.record_bytes, wide.step, wide.sequence_shift, wide.sequence_bits) == (16, 512, 9, 23)
    assert (narrow.chunk_bytes, narrow.mask, narrow.alignment) == (8192, 31 * 256, 8192)
    first = RingFormat(RecordKind.NARROW, 32, Keep.FIRST)
    assert (first.chunk_bytes, first.limit, first.alignment) == (33 * 256, 32 * 256, 256)
    lanes = RingFormat(RecordKind.NARROW, 32, by_lane=True)
    assert (lanes.step, lanes.mask, lanes.sequence_shift, lanes.lane_bytes) == (264, 31 * 8, 8, 256)
    assert (lanes.chunk_bytes, lanes.alignment) == (8192, 8192)
    for depth, keep in ((32, Keep.FIRST), (16, Keep.NEWEST)):
        with pytest.raises(TraceError, match=r"^\[ring-format\]"):
            RingFormat(RecordKind.NARROW, depth, keep, by_lane=True)
    assert HEADER_DTYPE.itemsize == DESCRIPTOR_DTYPE.itemsize == 64


@given(formats)
def test_formats_survive_json_and_differ_by_code(fmt: RingFormat) -> None:
    assert RingFormat.from_json(json.loads(json.dumps(fmt.to_json()))) == fmt
    others = [RingFormat(fmt.kind, fmt.depth * 2, fmt.keep)]
    if fmt.may_be_by_lane:
        others.append(RingFormat(fmt.kind, fmt.depth, fmt.keep, not fmt.by_lane))
    assert fmt.code not in [other.code for other in others]


def test_foreign_formats_are_refused() -> None:
    good = RingFormat(RecordKind.NARROW, 4).to_json()
    versions = ({"version": 3}, {"version": True}, {"version": 2, "keep": "first"})
    for change in (*versions, {"record": "tiny"}, {"depth": 3}, {"keep": "all"}, {"depth": None}):
        with pytest.raises(TraceError, match=r"^\[(ring-format|trace-depth)\]"):
            RingFormat.from_json({**good, **change})
    with pytest.raises(TraceError, match=r"^\[ring-format\]"):
        RingFormat.from_json({"version": 1})


@given(
    formats, st.tuples(*[st.integers(1, 6)] * 3), st.tuples(*[st.integers(1, 10)] * 3), st.integers(0, 2**48)
)
def test_a_placed_ring_is_aligned_inside_its_allocation_and_one_window(fmt, grid, block, address) -> None:  # type: ignore[no-untyped-def]
    layout = RingLayout.for_launch(fmt, grid, block)
    size = layout.allocation_bytes
    place = layout.place(address, size)
    assert place.ring % fmt.alignment == 0
    assert address <= place.ring and place.ring + layout.total_bytes <= address + size
    assert place.ring >> 32 == (place.ring + layout.total_bytes - 1) >> 32
    assert place.headers == place.ring + layout.warps * fmt.chunk_bytes
    assert place.table == 0


def test_an_allocation_that_straddles_a_window_is_used_behind_the_edge_or_refused() -> None:
    layout = RingLayout.for_launch(RingFormat(RecordKind.NARROW, 32), (10, 1, 1), (256, 1, 1))
    edge = 7 << 32
    assert layout.place(edge - 8192, 2 * layout.total_bytes).ring == edge
    with pytest.raises(TraceError, match=r"^\[ring-window\]"):
        layout.place(edge - 8192, layout.total_bytes + 8191)


def test_the_descriptor_says_what_the_prologue_reads() -> None:
    fmt = RingFormat(RecordKind.WIDE, 16)
    layout = RingLayout(fmt, (8, 1, 1), (96, 1, 1), 4)
    data = layout.descriptor(RingPlace(0x7F0000000000, 0x7F0000100000, 0x7F0000200000))
    assert len(data) == DESCRIPTOR_BYTES
    assert struct.unpack_from("<QQQIIII", data) == (
        0x7F0000000000, 0x7F0000100000, 0x7F0000200000, 4, 3, 1, fmt.code,
    )  # fmt: skip
    assert unarmed_descriptor(fmt)[:32] == bytes(32) == layout.descriptor(None)[:32]
    with pytest.raises(TraceError, match=r"^\[ring-geometry\]"):
        layout.descriptor(RingPlace(1 << 20, 1 << 21, 0))


def test_a_budget_samples_ctas_evenly() -> None:
    fmt = RingFormat(RecordKind.NARROW, 32)
    layout = RingLayout.for_launch(fmt, (1000, 1, 1), (128, 1, 1), budget=4 << 20)
    assert layout.sampled and layout.total_bytes <= 4 << 20
    slots = layout.table()
    chosen = np.flatnonzero(slots >= 0)
    assert len(chosen) == layout.cta_slots and (np.diff(np.diff(chosen)) <= 1).all()
    assert sorted(slots[chosen].tolist()) == list(range(layout.cta_slots))
    assert RingLayout.for_launch(fmt, (1000, 1, 1), (128, 1, 1), budget=1 << 30).sampled is False
    with pytest.raises(TraceError, match=r"^\[ring-too-large\]"):
        RingLayout.for_launch(fmt, (1000, 1, 1), (128, 1, 1), budget=8192)
    for ids in ([0, 1], [0] * layout.cta_slots, [*range(1, layout.cta_slots), 1000]):
        with pytest.raises(TraceError, match=r"^\[ring-geometry\]"):
            layout.table(np.array(ids))


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (32, 1, 1)),
        ((1, 1, 1), (1024, 2, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((2**30, 2, 1), (1, 1, 1)),
    ],
)
def test_impossible_launches_are_refused(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    with pytest.raises(TraceError, match=r"^\[ring-geometry\]"):
        RingLayout(RingFormat(RecordKind.NARROW, 1), grid, block, 1)


def test_rings_of_4_gib_are_refused() -> None:
    with pytest.raises(TraceError, match=r"^\[ring-too-large\]"):
        RingLayout.for_launch(RingFormat(RecordKind.WIDE, 1024), (1024, 1, 1), (1024, 1, 1))


def test_ring_files_describe_themselves() -> None:
    layout = RingLayout(RingFormat(RecordKind.LONG, 8, Keep.FIRST), (4, 2, 1), (33, 1, 1), 8)
    prefix = ring_file_prefix(layout, 1.5e6)
    got, duration, data = split_ring_file(prefix + b"abc")
    assert (got, duration, bytes(data)) == (layout, 1.5e6, b"abc")
    assert split_ring_file(b"anything else")[:2] == (None, None)
    endless = prefix[12:].replace(b"1500000.0", b"9" * 400)
    for damaged in (
        prefix[:10],
        prefix[:40],
        prefix.replace(b'"grid"', b'"grib"'),
        prefix[:12] + b"{" + prefix[13:],
        prefix[:8] + struct.pack("<I", 200_000) + b"[" * 200_000,
        prefix[:8] + struct.pack("<I", len(endless)) + endless,
    ):
        if damaged != prefix:
            with pytest.raises(TraceError, match=r"^\[(ring-file|ring-format)\]"):
                split_ring_file(damaged)


@given(
    st.sampled_from(list(RecordKind)),
    st.sampled_from([32, 64, 1024]),
    st.lists(st.integers(0, (1 << 28) - 1), min_size=1, max_size=40),
    st.integers(1, 255),
)
def test_tags_of_a_ring_by_lane_tell_sequence_and_site(
    kind: RecordKind, depth: int, made: list[int], site: int
) -> None:
    fmt = RingFormat(kind, depth, by_lane=True)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (64, 1, 1))
    ring = np.zeros(2 * 32 * depth, fmt.dtype)
    newest = {visit % depth: visit for visit in made}
    for slot, visit in newest.items():
        ring[(32 + 7) * depth + slot]["tag"] = (visit * fmt.step + site) % (1 << 32)
    slots = layout.slots(ring.view(np.uint8))
    assert slots.shape == (2, depth, 32) and np.count_nonzero(slots["tag"]) == np.count_nonzero(ring["tag"])
    for slot, visit in newest.items():
        tag = int(slots[1, slot, 7]["tag"])
        empty = (visit * fmt.step + site) % (1 << 32) == 0
        assert empty or (tag & 255, tag >> fmt.sequence_shift) == (site, visit % (1 << fmt.sequence_bits))


def test_a_tag_by_lane_in_another_slot_is_told() -> None:
    fmt = RingFormat(RecordKind.NARROW, 64, by_lane=True)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    for slot, tag in ((1, 3), (5, 4 * fmt.step + 1), (0, 300), (7, 7 * fmt.step)):
        ring = np.zeros(32 * 64, fmt.dtype)
        ring[slot]["tag"] = tag
        with pytest.raises(TraceError, match=rf"^\[ring-corrupt\] slot {slot} of lane 0, warp 0 "):
            layout.slots(ring.view(np.uint8))
