"""Site maps survive JSON, and damaged ones are refused by name."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from gwatch.errors import TraceError
from gwatch.rewrite.ring import RecordKind, RingFormat, RingLayout
from gwatch.rewrite.ringfile import ring_file_prefix, split_ring_file
from gwatch.rewrite.sitemap import MappedSite, SiteMap


def example() -> SiteMap:
    sites = (
        MappedSite(0, 12, 192, 1024, "LDG.E R4, desc[UR4][R2.64]", "k.cu", 29, "R8:64", False, False, False),
        MappedSite(1, 40, 640, 1600, "BAR.SYNC 0x0", None, None, "none", True, True, True, "sync"),
    )
    fmt = RingFormat(RecordKind.WIDE, 32)
    return SiteMap("matmul", "sm_90", "anchor", fmt, "gwatch_ring_0", 64, sites, 32, 40, True)


def test_site_maps_survive_json() -> None:
    assert SiteMap.from_bytes(example().to_bytes()) == example()
    assert [site.value_bits for site in example().sites] == [64, 0]


def test_maps_with_shared_records_say_so() -> None:
    """A reader that doesn't know them must not take the map; one without them stays as it was."""
    assert example().to_json()["version"] == 1 and "shared_with" not in example().to_json()["sites"][0]
    first, second = example().sites
    sharing = replace(example(), sites=(replace(first, value="none", warp_level=True, shared_with=1), second))
    assert sharing.to_json()["version"] == 2 and sharing.recorded == (second,)
    assert SiteMap.from_bytes(sharing.to_bytes()) == sharing
    assert [site.get("shared_with") for site in sharing.described()] == [1, None]
    changes: list[dict[str, Any]] = [{"shared_with": wrong} for wrong in (0, 2, -1, "1", True)]
    for change in (*changes, {"warp_level": False}, {"value": "smid"}):
        data = sharing.to_json()
        data["sites"][0].update(change)
        with pytest.raises(TraceError, match=r"^\[site-map\]"):
            SiteMap.from_json(data)
    data = sharing.to_json()
    del data["sites"][1]["shared_with"]
    for damaged in (data, {**sharing.to_json(), "version": 1}):
        with pytest.raises(TraceError, match=r"^\[site-map\] .* not of its version"):
            SiteMap.from_json(damaged)


def test_maps_with_held_times_say_which_word_has_whose() -> None:
    _, last = example().sites
    plain = replace(last, pair=False, value="none")
    first, second = (
        replace(plain, site_id=i, new_pc=512 * i, shared_with=2, time_in="xy"[i]) for i in (0, 1)
    )
    holding = replace(example(), sites=(first, second, replace(plain, site_id=2, new_pc=1600)))
    data = json.loads(json.dumps(holding.to_json()))
    assert data["version"] == 3 and SiteMap.from_json(data) == holding
    assert [site.get("time_in") for site in holding.described()] == ["x", "y", None]
    together = replace(holding, sites=(first, replace(second, time_in="x", new_pc=0), holding.sites[2]))
    assert SiteMap.from_bytes(together.to_bytes()) == together  # markers alone between them
    words: list[Any] = ["z", None, 1, ["x"], "y"]
    holders: list[Any] = [0, 1, 3, -1, None, True, {}]
    changes: list[tuple[int, dict[str, Any]]] = [
        *((0, {"time_in": word}) for word in words),
        *((0, {"shared_with": holder}) for holder in holders),
        *((number, {"value": "R4"}) for number in (0, 2)),
        *((number, {"warp_level": False}) for number in (0, 2)),
        (2, {"time_in": "x"}),
        (2, {"pair": True}),
    ]
    for number, change in changes:
        damaged = copy.deepcopy(data)
        damaged["sites"][number].update(change)
        with pytest.raises(TraceError, match=r"^\[site-map\]"):
            SiteMap.from_json(damaged)
    narrow = replace(holding, format=RingFormat(RecordKind.NARROW, 32))
    with pytest.raises(TraceError, match=r"^\[site-map\]"):
        SiteMap.from_bytes(narrow.to_bytes())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"version": True},
        {"clock": "cpu"},
        {"format": None},
        {"format": {"version": 1}},
        {"sites": None},
        {"sites": [{}]},
        {"sites": [None]},
        {"kernel": 5},
        {"registers_before": True},
        {"descriptor_offset": "64"},
    ],
)
def test_damaged_entries_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"^\[(site-map|ring-format)\]"):
        SiteMap.from_json({**example().to_json(), **change})


def test_unordered_or_nonsense_sites_are_refused() -> None:
    for change in (
        {"site_id": 1},
        {"value": "X4"},
        {"value": None},
        {"line": "29"},
        {"pair": 0},
        {"extra": 1},
    ):
        data = json.loads(json.dumps(example().to_json()))
        data["sites"][0].update(change)
        with pytest.raises(TraceError, match=r"^\[site-map\]"):
            SiteMap.from_json(data)


def test_random_damage_never_escapes() -> None:
    """Whatever is put in place of any entry: a site map comes back or a TraceError, nothing else."""
    rng = random.Random(4)
    values: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "R1", [], {}, [[]], {"a": 1}]
    for _ in range(600):
        data: Any = json.loads(json.dumps(example().to_json()))
        node = data
        while True:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.7:
                node = node[key]
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(values))
            break
        try:
            SiteMap.from_json(data)
        except TraceError:
            continue
    blob = example().to_bytes()
    for _ in range(300):
        broken = bytearray(blob)
        broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            SiteMap.from_bytes(bytes(broken))
        except TraceError:
            continue


@pytest.mark.parametrize(
    "change",
    [{"format": None}, {"format": {"version": 1, "record": [], "depth": 4, "keep": "newest"}}, {"grid": [1, 2]},
     {"grid": "abc"}, {"block": [1e400, 1, 1]}, {"cta_slots": None}, {"cta_slots": 9}],
)  # fmt: skip
def test_damaged_layouts_are_refused(change: dict[str, Any]) -> None:
    layout = RingLayout.for_launch(RingFormat(RecordKind.NARROW, 4), (2, 1, 1), (64, 1, 1))
    assert RingLayout.from_json(layout.to_json()) == layout
    with pytest.raises(TraceError, match=r"^\[ring-(format|geometry)\]"):
        RingLayout.from_json({**layout.to_json(), **change})


def test_a_ring_file_names_the_map_of_the_cubin_that_ran() -> None:
    layout = RingLayout.for_launch(RingFormat(RecordKind.WIDE, 32), (2, 1, 1), (64, 1, 1))
    blob = ring_file_prefix(layout, 1e6, example()) + bytes(16)
    assert split_ring_file(blob, example())[:2] == split_ring_file(blob)[:2] == (layout, 1e6)
    assert bytes(split_ring_file(blob, example())[2]) == bytes(16)
    other = replace(example(), kernel="softmax")
    with pytest.raises(
        TraceError, match=r"^\[ring-file\] another cubin filled this ring than .* sites of softmax"
    ):
        split_ring_file(blob, other)
    assert split_ring_file(ring_file_prefix(layout) + bytes(16), other)[0] == layout


def test_random_damage_of_ring_files_never_escapes() -> None:
    rng = random.Random(9)
    layout = RingLayout.for_launch(RingFormat(RecordKind.NARROW, 4), (2, 1, 1), (64, 1, 1))
    blob = ring_file_prefix(layout, 1e6) + bytes(16)
    for _ in range(600):
        broken = bytearray(blob[: rng.randrange(8, len(blob))] if rng.random() < 0.3 else blob)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            split_ring_file(bytes(broken))
        except TraceError:
            continue
