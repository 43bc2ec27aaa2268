"""The decoder against a model of the traced kernel that was written apart from it."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringsim import Clocks, Writer, site, site_map

from gwatch.cuda.xtrace.columns import ring_columns
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.errors import TraceError
from gwatch.rewrite.ring import Keep, RecordKind, RingFormat, RingLayout

NARROW = RingFormat(RecordKind.NARROW, 8)


def run_random(writer: Writer, seed: int, visits: int, length: float) -> None:
    """Every CTA slot runs; warps pass random sites with random active lanes, lanes exit early."""
    rng = random.Random(seed)
    layout = writer.layout
    per_cta = layout.warps_per_cta
    for slot in range(layout.cta_slots):
        start = rng.uniform(0, length / 4)
        writer.enter(slot, slot, sm=slot % 3, t=start)
        for w in range(per_cta):
            alive = list(range(min(32, layout.threads_per_cta - 32 * w)))
            t = start + 200.0
            for _ in range(rng.randrange(visits + 1)):
                t += rng.uniform(6.0, length / (visits + 1))
                if len(alive) > 1 and rng.random() < 0.1:
                    alive = alive[:-1]
                lanes = sorted(rng.sample(alive, rng.randint(1, len(alive))))
                number = rng.choice([spec.site_id for spec in writer.map.recorded])
                base = rng.getrandbits(64)
                bits = writer.map.sites[number].value_bits
                mask = (1 << bits) - 1
                writer.visit(
                    slot * per_cta + w, lanes, number, t, lambda lane, b=base, m=mask: (b ^ lane) & m
                )
            if writer.map.pairs_at_exit:
                writer.leave(slot * per_cta + w, t + 50.0)


def check_against_truth(writer: Writer, duration_ns: float) -> Any:
    layout, fmt = writer.layout, writer.layout.format
    got = decode_ring(bytes(writer.data), layout, writer.map, duration_ns)
    kept = []
    for warp, lane, number, visit, t, value in writer.truth:
        total = writer.visits[warp, lane]
        low = total - fmt.depth if fmt.keep is Keep.NEWEST else 0
        if low <= visit < low + fmt.depth:
            kept.append((warp, lane, number, visit, t, value))
    assert len(got.records) == len(kept)
    index = {}
    for r in got.records:
        x, y, z = (int(v) for v in r["block"])
        slot = x + layout.grid[0] * (y + layout.grid[1] * z)
        index[slot * layout.warps_per_cta + int(r["warp"]), int(r["lane"]), int(r["sequence"])] = r
    for warp, lane, number, visit, t, value in kept:
        r = index[warp, lane, visit]
        spec = writer.map.sites[number]
        assert r["site"] == number
        assert r["smid"] == writer.sm[warp]
        assert r["value"] == (writer.sm[warp] if spec.value == "smid" else value)
        assert bool(r["warp_level"]) == spec.warp_level
        assert r["thread"] == (-1 if spec.warp_level else (warp % layout.warps_per_cta) * 32 + lane)
        if writer.map.clock == "gpu":
            assert r["time"] == writer.clocks.ns(t)
        elif writer.map.clock == "sm":
            assert r["time"] == writer.clocks.cycles(writer.sm[warp], t)
        else:
            assert abs(int(r["time"]) - writer.clocks.ns(t)) <= 64
    for (warp, lane), made in writer.visits.items():
        place = (warp // layout.warps_per_cta, warp % layout.warps_per_cta, lane)
        assert got.visits[place] == made
        assert got.dropped[place] == max(0, made - fmt.depth)
    assert got.visits.sum() == len(writer.truth)
    assert got.dropped_total == len(writer.truth) - len(kept)
    return got


SHARING = [
    site(0, shared=3),
    site(1, "smid"),
    site(2, warp=True, shared=5),
    site(3),
    site(4, warp=True),
    site(5, warp=True),
    site(6, shared=3),
]
"""Site 3 speaks for 0 and 6 too, and 5 for 2; by their instructions 6 comes last."""


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(list(RecordKind)),
    order=st.sampled_from([(Keep.NEWEST, False), (Keep.FIRST, False), (Keep.NEWEST, True)]),
    clock=st.sampled_from(["gpu", "sm", "anchor"]),
)
def test_a_shared_record_is_one_of_each_site(
    seed: int, kind: RecordKind, order: tuple[Keep, bool], clock: str
) -> None:
    """Each lane's records, the shared ones copied one by one, in the ring's order and counted anew."""
    fmt = RingFormat(kind, 32 if order[1] else 8, *order)
    layout = RingLayout.for_launch(fmt, (2, 2, 1), (40, 1, 1))
    writer = Writer(layout, site_map(clock, fmt, SHARING), Clocks(seed=seed % 1000), seed)
    run_random(writer, seed, visits=60, length=20_000.0)
    got = decode_ring(bytes(writer.data), layout, writer.map, 30_000.0)
    wanted: list[tuple[int, int, int, int]] = []
    counts: dict[tuple[int, int], int] = {}
    for warp, lane, number, visit, _, _ in writer.truth:
        total = writer.visits[warp, lane]
        low = max(0, total - fmt.depth) if fmt.keep is Keep.NEWEST else 0
        if not low <= visit < low + fmt.depth:
            continue
        for member in {3: (0, 3, 6), 5: (2, 5)}.get(number, (number,)):
            at = counts.setdefault((warp, lane), low)
            wanted.append((warp, lane, at, member))
            counts[warp, lane] = at + 1
    x, y, _ = got.records["block"].T.astype(np.int64)
    warps = (x + 2 * y) * layout.warps_per_cta + got.records["warp"]
    rows = zip(
        *(v.tolist() for v in (warps, *(got.records[n] for n in ("lane", "sequence", "site")))), strict=True
    )
    assert sorted(rows) == sorted(wanted)
    assert got.visits.sum() == len(wanted) + got.dropped_total
    for (warp, lane), made in writer.visits.items():
        place = (warp // layout.warps_per_cta, warp % layout.warps_per_cta, lane)
        assert got.dropped[place] == max(0, made - fmt.depth)
        behind = got.dropped[place] if fmt.keep is Keep.FIRST else 0
        assert got.visits[place] == counts[warp, lane] + behind
    assert any("[dropped-shared]" in line for line in got.warnings) == (got.dropped_total > 0)
    # Copies of one record have its time, and what is between two records of a lane is not in between its copies.
    for lane in range(32):
        for level in (False, True):
            mine = got.records[
                (warps == 0) & (got.records["lane"] == lane) & (got.records["warp_level"] == level)
            ]
            assert (np.diff(mine["sequence"].astype(np.int64)) > 0).all() and (
                np.diff(mine["time"]) >= 0
            ).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clock=st.sampled_from(["gpu", "sm"]),
    kind=st.sampled_from(list(RecordKind)),
    depth=st.sampled_from([1, 2, 4, 16]),
    order=st.sampled_from([(Keep.NEWEST, False), (Keep.FIRST, False), (Keep.NEWEST, True)]),
    block=st.sampled_from([(1, 1, 1), (32, 1, 1), (8, 5, 1), (3, 7, 5)]),
    grid=st.sampled_from([(1, 1, 1), (3, 1, 1), (2, 2, 2)]),
)
def test_every_record_comes_back(seed, clock, kind, depth, order, block, grid) -> None:  # type: ignore[no-untyped-def]
    fmt = RingFormat(kind, depth * 32 if order[1] else depth, *order)
    sites = [site(0), site(1, "smid"), site(2, warp=True)]
    if kind is not RecordKind.NARROW:
        sites += [site(3, "R8"), site(4, "UR6", warp=True)]
    if kind is RecordKind.WIDE:
        sites += [site(5, "R8:64")]
    layout = RingLayout.for_launch(fmt, grid, block)
    writer = Writer(layout, site_map(clock, fmt, sites), Clocks(seed=seed % 1000), seed)
    run_random(writer, seed, visits=40, length=20_000.0)
    got = check_against_truth(writer, 30_000.0)
    assert got.warnings == ()


def test_lanes_are_ordered_by_sequence_and_warp_records_by_time() -> None:
    fmt = RingFormat(RecordKind.NARROW, 16)
    layout = RingLayout.for_launch(fmt, (2, 1, 1), (64, 1, 1))
    writer = Writer(layout, site_map("gpu", fmt, [site(0), site(1, warp=True)]), Clocks(), 3)
    for cta in range(2):
        writer.enter(cta, cta, cta, 0.0)
    for k in range(30):
        for warp in range(4):
            group = range(16) if k % 3 else range(16, 32)
            writer.visit(warp, group, k % 2, 1000.0 + 64.0 * k)
    records = decode_ring(writer.data, layout, writer.map, 1e6).records
    place = records["block"][:, 0] * 2 + records["warp"]
    assert (np.diff(place) >= 0).all()
    for warp in range(4):
        mine = records[place == warp]
        level = mine["warp_level"]
        assert level.any() and not level.all() and (np.diff(level.astype(int)) >= 0).all()
        assert (np.diff(mine["time"][level]) > 0).all()
        threads = mine[~level]
        order = threads["lane"].astype(int) * 1000 + threads["sequence"]
        assert (np.diff(order) > 0).all()


def test_a_warp_level_visit_is_one_record_whoever_was_elected() -> None:
    fmt = RingFormat(RecordKind.NARROW, 64)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    writer = Writer(layout, site_map("sm", fmt, [site(0, warp=True)]), Clocks(), 9)
    writer.enter(0, 0, 7, 0.0)
    for k in range(50):
        writer.visit(0, range(32), 0, 500.0 + 40.0 * k)
    got = decode_ring(writer.data, layout, writer.map, 1e6)
    assert len(got.records) == 50 and got.unit == "cycles"
    expect = [writer.clocks.cycles(7, 500.0 + 40.0 * k) for k in range(50)]
    assert got.records["time"].tolist() == expect


@pytest.mark.parametrize("keep", list(Keep))
def test_a_clock_that_wraps_mid_kernel_is_extended(keep: Keep) -> None:
    fmt = RingFormat(RecordKind.NARROW, 64, keep)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    clocks = Clocks(offsets={0: (5 << 32) - 3000})
    clocks.ns_base = (1 << 40) - 2048
    for clock in ("sm", "gpu"):
        writer = Writer(layout, site_map(clock, fmt, [site(0)]), clocks, 1)
        writer.enter(0, 0, 0, 0.0)
        for k in range(64):
            writer.visit(0, range(32), 0, 300.0 + 100.0 * k)
        check_against_truth(writer, 10_000.0)


def test_long_records_outlive_the_32_bit_clocks() -> None:
    fmt = RingFormat(RecordKind.LONG, 8)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    for clock in ("sm", "gpu"):
        writer = Writer(layout, site_map(clock, fmt, [site(0, "R3")]), Clocks(), 1)
        writer.enter(0, 0, 0, 0.0)
        for k in range(12):
            writer.visit(0, range(32), 0, 1e9 * (k + 1), lambda lane: 3 * lane)
        check_against_truth(writer, 13e9)


def test_a_launch_too_long_for_its_records_is_refused() -> None:
    layout = RingLayout.for_launch(NARROW, (2, 1, 1), (32, 1, 1))
    for clock, duration in (("sm", 1.5e9), ("gpu", 4.3e9), ("anchor", 1.5e9)):
        writer = Writer(layout, site_map(clock, NARROW, [site(0)]), Clocks(), 1)
        writer.enter(0, 0, 0, 0.0)
        writer.enter(1, 1, 0, 0.0)
        with pytest.raises(TraceError, match=r"^\[trace-too-long\]"):
            decode_ring(writer.data, layout, writer.map, duration)
    late = Writer(layout, site_map("gpu", NARROW, [site(0)]), Clocks(), 1)
    late.enter(0, 0, 0, 0.0)
    late.enter(1, 1, 0, 5e9)
    with pytest.raises(TraceError, match=r"^\[trace-too-long\]"):
        decode_ring(late.data, layout, late.map)


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -1.0])
def test_a_duration_that_is_none_is_refused(duration: float) -> None:
    layout = RingLayout.for_launch(NARROW, (1, 1, 1), (32, 1, 1))
    with pytest.raises(TraceError, match=r"^\[trace-duration\]"):
        decode_ring(bytes(layout.data_bytes), layout, site_map("sm", NARROW, [site(0)]), duration)


def test_an_unknown_duration_is_said() -> None:
    layout = RingLayout.for_launch(NARROW, (1, 1, 1), (32, 1, 1))
    writer = Writer(layout, site_map("sm", NARROW, [site(0)]), Clocks(), 1)
    writer.enter(0, 0, 0, 0.0)
    writer.visit(0, range(32), 0, 100.0)
    assert [w.split()[0] for w in decode_ring(writer.data, layout, writer.map).warnings] == [
        "[duration-unknown]"
    ]
    assert decode_ring(writer.data, layout, writer.map, 1e6).warnings == ()


def test_sequences_that_wrap_are_told_apart_from_those_that_may_have() -> None:
    layout = RingLayout.for_launch(NARROW, (1, 1, 1), (32, 1, 1))
    smap = site_map("sm", NARROW, [site(0)])
    writer = Writer(layout, smap, Clocks(), 1)
    writer.enter(0, 0, 0, 0.0)
    for lane in range(32):
        writer.offset[0, lane] = (2**24 - 5) << 8
    for k in range(8):
        writer.visit(0, range(32), 0, 100.0 * (k + 1))
    got = decode_ring(writer.data, layout, smap, 1e8)
    assert (got.visits == 2**24 + 3).all() and (got.dropped == 2**24 + 3 - 8).all()
    assert [w.split()[0] for w in got.warnings] == ["[sequence-wrapped]"]
    assert got.records["time"][:8].tolist() == sorted(got.records["time"][:8].tolist())

    writer = Writer(layout, smap, Clocks(), 1)
    writer.enter(0, 0, 0, 0.0)
    for k in range(20):
        writer.visit(0, range(32), 0, 100.0 * (k + 1))
    assert decode_ring(writer.data, layout, smap, 1e6).warnings == ()
    longer = decode_ring(writer.data, layout, smap, 2e8)
    assert [w.split()[0] for w in longer.warnings] == ["[sequence-unproved]"]
    assert (longer.dropped == 12).all()


def test_an_untouched_ring_says_that_the_patched_code_did_not_run() -> None:
    layout = RingLayout.for_launch(NARROW, (2, 1, 1), (64, 1, 1))
    with pytest.raises(TraceError, match=r"^\[not-run\] .*did not run the patched code"):
        decode_ring(bytes(layout.data_bytes), layout, site_map("sm", NARROW, [site(0)]), 1e6)


def damaged(kind: str) -> tuple[Writer, RingLayout]:
    layout = RingLayout.for_launch(NARROW, (2, 1, 1), (48, 1, 1))
    writer = Writer(layout, site_map("sm", NARROW, [site(0)]), Clocks(), 1)
    for cta in range(2):
        if kind != "missing" or cta == 0:
            writer.enter(cta, cta ^ (kind == "order"), 0, 0.0)
    for warp in range(2):
        for k in range(11):
            writer.visit(warp, range(16), 0, 100.0 * (k + 1))
    if kind == "record":
        struct.pack_into("<I", writer.data, 8 * 5 + 4, 77 << 8 | 1)
    elif kind == "hole":
        struct.pack_into("<I", writer.data, 256 * 4 + 8 * 5 + 4, 0)
    elif kind == "lanes":
        struct.pack_into("<I", writer.data, layout.ring_bytes + 64 + 24, 0xFFFFFFFF)
    elif kind == "site":
        struct.pack_into("<I", writer.data, 256 * 4 + 8 * 5 + 4, 4 << 8 | 9)
    return writer, layout


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("record", "ring-corrupt"),
        ("hole", "ring-corrupt"),
        ("lanes", "ring-corrupt"),
        ("site", "ring-corrupt"),
        ("order", "ring-corrupt"),
        ("missing", "ring-incomplete"),
    ],
)
def test_damage_is_refused_by_name(kind: str, code: str) -> None:
    writer, layout = damaged(kind)
    with pytest.raises(TraceError, match=rf"^\[{code}\]"):
        decode_ring(writer.data, layout, writer.map, 1e6)


def test_a_dump_of_another_size_or_format_is_refused() -> None:
    layout = RingLayout.for_launch(NARROW, (2, 1, 1), (64, 1, 1))
    smap = site_map("sm", NARROW, [site(0)])
    with pytest.raises(TraceError, match=r"^\[ring-size\]"):
        decode_ring(bytes(layout.data_bytes - 1), layout, smap, 1e6)
    other = RingLayout.for_launch(RingFormat(RecordKind.NARROW, 16), (1, 1, 1), (64, 1, 1))
    with pytest.raises(TraceError, match=r"^\[ring-format\]"):
        decode_ring(bytes(other.data_bytes), other, smap, 1e6)


def test_sampled_ctas_keep_their_block_coordinates() -> None:
    layout = RingLayout(NARROW, (4, 3, 2), (32, 1, 1), 5)
    table = layout.table()
    chosen = np.flatnonzero(table >= 0)
    assert len(chosen) == 5 and table[chosen].tolist() == [0, 1, 2, 3, 4]
    writer = Writer(layout, site_map("gpu", NARROW, [site(0)]), Clocks(), 1)
    for cta in chosen.tolist():
        writer.enter(int(table[cta]), cta, cta % 2, 0.0)
        writer.visit(int(table[cta]), range(32), 0, 100.0)
    records = decode_ring(writer.data, layout, writer.map, 1e6).records
    seen = sorted({tuple(r["block"].tolist()) for r in records})
    assert seen == sorted((c % 4, c // 4 % 3, c // 12) for c in chosen.tolist())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), block=st.sampled_from([(128, 1, 1), (40, 1, 1)]))
def test_anchor_times_of_a_short_kernel(seed: int, block: tuple[int, int, int]) -> None:
    fmt = RingFormat(RecordKind.NARROW, 16)
    layout = RingLayout.for_launch(fmt, (6, 1, 1), block)
    writer = Writer(
        layout, site_map("anchor", fmt, [site(0), site(1, warp=True)]), Clocks(seed=seed % 997), seed
    )
    run_random(writer, seed, visits=20, length=5_000.0)
    got = check_against_truth(writer, 10_000.0)
    assert got.unit == "ns" and got.clock is not None
    assert got.clock.timer_step_ns == 32 and got.clock.sms == 3


def test_pairs_held_up_by_an_instruction_fetch_are_left_out() -> None:
    """The first CTA of an SM fetches its code while it reads the clocks."""
    fmt = RingFormat(RecordKind.NARROW, 16)
    layout = RingLayout.for_launch(fmt, (4, 1, 1), (64, 1, 1))
    writer = Writer(layout, site_map("anchor", fmt, [site(0)]), Clocks(), 1)
    for cta in range(4):
        writer.enter(cta, cta, cta, 0.0)
        for w in range(2):
            for k in range(16):
                writer.visit(cta * 2 + w, range(32), 0, 100.0 + 300.0 * k)
            writer.leave(cta * 2 + w, 5000.0, (700.0, 1.0) if w else (1.0, 700.0))
    check_against_truth(writer, 1e4)


def test_anchor_records_of_200_ms_follow_frequency_steps() -> None:
    fmt = RingFormat(RecordKind.WIDE, 256)
    sites = [site(0, pair=True), site(1, "R4", pair=True), site(2, "R4:64")]
    layout = RingLayout.for_launch(fmt, (4, 1, 1), (64, 1, 1))
    clocks = Clocks(steps=((0.0, 1.98e9), (31e6, 1.755e9), (90e6, 1.2e9), (90.8e6, 1.605e9), (150e6, 1.98e9)))
    writer = Writer(layout, site_map("anchor", fmt, sites), clocks, 4)
    rng = random.Random(11)
    for cta in range(4):
        writer.enter(cta, cta, cta, 1000.0 * cta)
        for w in range(2):
            for k in range(250):
                lag = 900.0 if rng.random() < 0.01 else 1.0
                t = 0.8e6 * (k + 1) + rng.uniform(0.0, 0.7e6)
                writer.visit(cta * 2 + w, [0], k % 3, t, lambda lane, v=k: v << 30, lag)
            writer.leave(cta * 2 + w, 201e6)
    writer.truth = [(*t[:5], t[5] & ((1 << (0, 32, 64)[t[2]]) - 1)) for t in writer.truth]
    got = decode_ring(writer.data, layout, writer.map, 202e6)
    truth = {(w, v): t for w, _, _, v, t, _ in writer.truth}
    error = np.array(
        [
            int(r["time"])
            - clocks.ns_base
            - truth[int(r["block"][0]) * 2 + int(r["warp"]), int(r["sequence"])]
            for r in got.records
        ]
    )
    # 500 pairs per SM in 200 ms: between two pairs around a frequency step nothing is known; elsewhere all
    # is.
    edges = np.array([31e6, 90e6, 90.8e6, 150e6])
    times = np.array(
        [truth[int(r["block"][0]) * 2 + int(r["warp"]), int(r["sequence"])] for r in got.records]
    )
    clear = (np.abs(times[:, None] - edges) > 2e6).all(axis=1)
    assert clear.mean() > 0.9
    assert np.abs(error[clear] + 16).max() <= 48
    assert got.clock is not None and got.clock.outliers > 0 and got.clock.segments > 4 * 4


@pytest.mark.parametrize("value", ["none", "ns"])
def test_anchor_pairs_beyond_the_cycle_wrap(value: str) -> None:
    fmt = RingFormat(RecordKind.LONG, 128)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    writer = Writer(layout, site_map("anchor", fmt, [site(0, value, pair=True)]), Clocks(), 4)
    writer.enter(0, 0, 0, 0.0)
    for k in range(100):
        now = writer.clocks.ns(0.04e9 * (k + 1) + 1)
        writer.visit(0, [0], 0, 0.04e9 * (k + 1), lambda lane, v=now: v & 0xFFFFFFFF)  # type: ignore[misc]
    writer.leave(0, 4.05e9)
    got = decode_ring(writer.data, layout, writer.map, 4.1e9)
    truth = np.array([t for *_, t, _ in writer.truth])
    error = got.records["time"] - writer.clocks.ns_base - truth
    assert np.abs(error + 16).max() <= 32
    with pytest.raises(TraceError, match=r"^\[trace-too-long\]"):
        decode_ring(writer.data, layout, writer.map, 4.3e9)


def test_a_full_ring_of_four_million_records() -> None:
    fmt = RingFormat(RecordKind.NARROW, 32)
    layout = RingLayout.for_launch(fmt, (1024, 1, 1), (128, 1, 1))
    data = np.zeros(layout.data_bytes, np.uint8)
    ring = data[: layout.ring_bytes].view(fmt.dtype).reshape(layout.warps, 32, 32)
    ring["tag"] = (np.arange(32, dtype=np.uint32) + 64 << 8 | 1)[None, :, None]
    ring["time"] = 1000
    header = data[layout.ring_bytes :].view("<u4").reshape(-1, 16)
    header[:, 4], header[:, 6] = 0x52545747, 0xFFFFFFFF
    header[:, 7] = np.arange(layout.warps) // 4
    got = decode_ring(data, layout, site_map("sm", fmt, [site(0)]), 1e6)
    assert len(got.records) == 4_194_304 and (got.dropped == 64).all()


@pytest.mark.parametrize("clock", ["sm", "gpu"])
@pytest.mark.parametrize("kind", list(RecordKind))
def test_another_launchs_records_are_told_by_their_times(clock: str, kind: RecordKind) -> None:
    """Tags alone can't tell them: a ring that was not zeroed holds right sequences of an earlier launch."""
    fmt = RingFormat(kind, 8)
    layout = RingLayout.for_launch(fmt, (1, 1, 1), (32, 1, 1))
    smap = site_map(clock, fmt, [site(0)])
    rings = []
    for begin, visits in ((100_000.0, 4), (400_000.0, 2)):
        writer = Writer(layout, smap, Clocks())
        writer.enter(0, 0, 0, begin)
        for visit in range(visits):
            writer.visit(0, range(32), 0, begin + 100.0 * (visit + 1))
        rings.append(np.frombuffer(bytes(writer.data), np.uint8).copy())
    old, new = rings
    stale = new.copy()
    words = stale[: layout.ring_bytes].view(fmt.dtype)
    unwritten = words["tag"] == 0
    words[unwritten] = old[: layout.ring_bytes].view(fmt.dtype)[unwritten]
    assert len(decode_ring(new, layout, smap, 50_000.0).records) == 64
    for read in (decode_ring, ring_columns):
        with pytest.raises(TraceError, match=r"^\[ring-corrupt\] .* before its warp entered|run backwards"):
            read(stale, layout, smap, 50_000.0)
    swapped = new.copy()
    records = swapped[: layout.ring_bytes].view(fmt.dtype).reshape(8, 32)
    records["time"][[0, 1]] = records["time"][[1, 0]]
    with pytest.raises(
        TraceError, match=r"^\[ring-corrupt\] the times of a lane run backwards; another launch's"
    ):
        decode_ring(swapped, layout, smap)
