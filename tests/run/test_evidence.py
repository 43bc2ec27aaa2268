"""Slowdown statistics, output comparison, cost per record: numbers checked against numbers made by hand."""

from __future__ import annotations

import dataclasses
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import FakeDriver

from gwatch.cuda.xtrace.outputs import Snapshot, arrays_in, compare, pointers_in, take
from gwatch.cuda.xtrace.result import cost_per_record
from gwatch.cuda.xtrace.timing import LaunchTimer, slowdown
from gwatch.rewrite.ring import HEADER_DTYPE, RecordKind, RingFormat, RingLayout


def test_slowdown_of_five_pairs() -> None:
    found = slowdown([100, 110, 100, 90, 100], [150, 154, 130, 135, 160])
    assert found is not None
    assert found.median == pytest.approx(1.5) and (found.low, found.high) == (1.3, 1.6)
    assert found.confidence == pytest.approx(1 - 2 / 32)
    assert found.noise == pytest.approx(100 / 90 - 1) and found.passes == 5
    assert (found.plain_ns, found.traced_ns) == (100, 150)


def test_one_pass_out_of_step_is_no_noise_among_fifteen() -> None:
    """Of 14 ratios of neighbours the third smallest and the third largest count, of 15 pairs the fourth."""
    plain = [100.0] * 15
    plain[7] = 200.0
    found = slowdown(plain, [101.0] * 14 + [300.0])
    assert found is not None and found.noise == 0.0
    assert (found.median, found.low, found.high) == (1.01, 1.01, 1.01)
    assert found.confidence == pytest.approx(1 - 2 * (1 + 15 + 105 + 455) / 2**15)
    few = slowdown(plain[6:9], [100.0] * 3)
    assert few is not None and few.noise == 1.0


def test_with_more_passes_the_extremes_are_left_out() -> None:
    plain = [100.0] * 12
    traced = [100.0 + i for i in range(12)]
    found = slowdown(plain, traced)
    assert found is not None and (found.low, found.high) == (1.02, 1.09)
    assert found.confidence == pytest.approx(1 - 2 * (1 + 12 + 66) / 4096)
    assert found.noise == 0.0


def test_there_is_no_slowdown_without_times() -> None:
    assert slowdown([], []) is None
    assert slowdown([1.0], []) is None
    assert slowdown([0.0], [1.0]) is None


def shot(**data: bytes) -> Snapshot:
    return Snapshot({name: np.frombuffer(raw, np.uint8) for name, raw in data.items()}, ())


def test_equal_memory_is_identical() -> None:
    verdict = compare([shot(a=b"abc"), shot(a=b"abc")], shot(a=b"abc"))
    assert verdict.status == "identical" and verdict.details == ("3 bytes compared",)


def test_a_byte_that_only_tracing_changes_makes_the_difference() -> None:
    verdict = compare([shot(a=b"abc"), shot(a=b"axc")], shot(a=b"zyc"))
    assert verdict.status == "differ"
    assert verdict.details[0] == "a: 1 of 3 bytes differ from both plain passes"


def test_bytes_that_vary_anyway_are_nondeterministic() -> None:
    verdict = compare([shot(a=b"abc"), shot(a=b"axc")], shot(a=b"ayc"))
    assert verdict.status == "nondeterministic"
    assert "a: 1 of 3 bytes differ between plain passes" in verdict.details


def test_what_cannot_be_checked_says_why() -> None:
    assert compare([shot(a=b"x")], shot(a=b"x")).status.startswith("not checked: it takes two plain")
    assert compare([shot(), shot()], shot()).status == (
        "not checked: the launch reaches no device memory and fn returned no array"
    )
    moved = compare([shot(a=b"x"), shot(a=b"xy")], shot(a=b"x"))
    assert moved.status == "not checked: a: not there, or of another size, in some pass"


def test_an_allocation_whose_parts_move_is_not_compared() -> None:
    """A caching allocator may put a result elsewhere in the same block in the next pass."""

    class OnDevice:
        """Two bytes somewhere in the block."""

        def __init__(self, address: int) -> None:
            self.__cuda_array_interface__ = {"shape": (2,), "typestr": "|u1", "data": (address, False)}

    driver = FakeDriver()
    block = driver.allocate(8)
    shots = []
    for place, pattern in ((0, b"ab......"), (0, b"ab......"), (4, b"....ab..")):
        driver.write(block, pattern)
        shots.append(take(driver, [("result", OnDevice(block + place))], [("p0", block + place)], 100))
    verdict = compare(shots[:2], shots[2])
    assert verdict.status == "identical"
    assert verdict.details[0] == "memory of p0: what is used there lay elsewhere in some pass, not compared"
    assert verdict.details[-1] == "2 bytes compared"
    assert compare([shots[0], shots[2]], shots[1]).status == "identical"
    driver.write(block, b"....ax..")
    wrong = take(driver, [("result", OnDevice(block + 4))], [("p0", block + 4)], 100)
    assert compare(shots[:2], wrong).status == "differ"
    without = [dataclasses.replace(item, data={"memory of p0": item.data["memory of p0"]}) for item in shots]
    assert compare(without[:2], without[2]).status.startswith(
        "not checked: memory of p0: what is used there lay"
    )


def test_arrays_are_found_in_nested_results() -> None:
    value = {"x": [np.ones(1), (np.zeros(2), "text", None)], "n": 3}
    assert [name for name, _ in arrays_in(value, "result")] == ["result['x'][0]", "result['x'][1][0]"]


def test_pointers_are_the_8_byte_words_that_could_be_addresses() -> None:
    raw = struct.pack("<QIIQQ", 0x7F0000000000, 5, 6, 0x12, 0x7F1000000000)
    layout = [(0, 8), (8, 4), (12, 4), (16, 16)]
    assert list(pointers_in(raw, layout)) == [
        ("parameter 0", 0x7F0000000000),
        ("parameter 3+8", 0x7F1000000000),
    ]
    assert list(pointers_in(None, layout)) == []


def test_snapshots_read_whole_allocations_once_and_respect_the_limit() -> None:
    driver = FakeDriver()
    first, second = driver.allocate(100), driver.allocate(1000)
    driver.write(first, bytes(range(100)))
    got = take(
        driver,
        [("r", np.arange(3, dtype=np.int16))],  # type: ignore[arg-type]
        [("p0", first), ("p1", first + 8), ("p2", second), ("p3", 0x10)],
        limit=500,
    )
    assert set(got.data) == {"r", "memory of p0"}
    assert got.data["memory of p0"].tobytes() == bytes(range(100))
    assert got.skipped == ("p2: its allocation of 1000 bytes is over the limit",)


def decoded(visits: np.ndarray, smid: list[int]) -> Any:
    headers = np.zeros(visits.shape[:2], HEADER_DTYPE)
    headers["smid"] = np.array(smid)[:, None]
    records = np.zeros(0, [("warp_level", "?")])
    return SimpleNamespace(visits=2 * visits, written=visits, headers=headers, records=records)


def test_cost_is_extra_cycles_over_the_records_made_in_a_row() -> None:
    """Records as the kernel writes them, each of them shared by two sites here."""
    fmt = RingFormat(RecordKind.NARROW, 32)
    layout = RingLayout(fmt, (4, 1, 1), (64, 1, 1), 4)
    visits = np.full((4, 2, 32), 100, np.int64)
    # Four CTAs on one SM, two at once: each of the 4 resident warps makes 200 records one after another.
    assert cost_per_record(decoded(visits, [0, 0, 0, 0]), layout, 2, 2000.0, 10.0, 2.0) == pytest.approx(20.0)
    # On four SMs they all run side by side: 100 in a row.
    assert cost_per_record(decoded(visits, [0, 1, 2, 3]), layout, 2, 2000.0, 10.0, 2.0) == pytest.approx(40.0)
    assert cost_per_record(decoded(visits, [0, 1, 2, 3]), layout, 2, 5.0, 10.0, 2.0) is None
    sampled = RingLayout(fmt, (8, 1, 1), (64, 1, 1), 4)
    assert cost_per_record(decoded(visits, [0, 1, 2, 3]), sampled, 2, 2000.0, 10.0, 2.0) is None


def test_event_pairs_are_reused_and_bounded() -> None:
    driver = FakeDriver()
    timer = LaunchTimer(driver)  # type: ignore[arg-type]
    assert timer.before(7, 0) is None
    timer.prepare(7, 1)
    pair = timer.before(7, 5)
    assert pair is not None and timer.before(7, 5) is None
    assert timer.spins and driver.launched[0]["grid"] == (1, 1, 1) and driver.launched[0]["stream"] == 5
    timer.after(pair, 5)
    assert driver.events == [(pair[0], 5), (pair[1], 5)]
    assert timer.take(7, pair) == pytest.approx(10_000.0)
    assert timer.before(7, 5) == pair
