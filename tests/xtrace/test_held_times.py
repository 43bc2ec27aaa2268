"""Records that say earlier sites' times: told once each, whatever was lost, wrapped, sampled or not there."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from ringsim import Clocks, Writer, site, site_map

from gwatch.cuda.xtrace.columns import ring_columns
from gwatch.cuda.xtrace.decode import SHARED_DROPPED, decode_ring
from gwatch.rewrite.ring import Keep, RecordKind, RingFormat, RingLayout
from gwatch.rewrite.sitemap import SiteMap

CHAIN, PLAIN = (0, 1, 2), 3
Told = list[tuple[int, int]]
"""(site, device time) of each site that one record speaks of."""


@dataclass
class Kernel:
    """Sites 0 and 1, whose times the record of site 2 says, and site 3."""

    layout: RingLayout
    writer: Writer
    by_warp: bool
    rng: random.Random
    now: float = 0.0
    made: dict[tuple[int, int], list[Told]] = field(default_factory=lambda: defaultdict(list))

    def read(self, warp: int) -> int:
        self.now += 5 + self.rng.randrange(300)
        gpu = self.writer.map.clock == "gpu"
        return (
            self.writer.clocks.ns(self.now)
            if gpu
            else self.writer.clocks.cycles(self.writer.sm[warp], self.now)
        )

    def plain(self, warp: int, lanes: list[int]) -> None:
        self._record(warp, lanes, PLAIN, [(PLAIN, self.read(warp))], 0)

    def chain(self, warp: int, groups: list[list[int]]) -> None:
        """Groups of lanes pass the three sites, in any order, and part where times tell their visits apart."""
        work: list[tuple[list[int], Told]] = [(group, []) for group in groups]
        while work:
            lanes, held = work.pop(self.rng.randrange(len(work)))
            if (
                len(lanes) > 1
                and self.rng.random() < 0.3
                and not (self.by_warp and self.writer.map.clock == "gpu")
            ):
                cut = self.rng.randrange(1, len(lanes))
                work += [(lanes[:cut], list(held)), (lanes[cut:], list(held))]
                continue
            told = [*held, (len(held), self.read(warp))]
            if len(told) < len(CHAIN):
                work.append((lanes, told))
            else:
                low, high = (time & 0xFFFFFFFF for _, time in held)
                self._record(warp, lanes, CHAIN[-1], told, low | high << 32)

    def _record(self, warp: int, lanes: list[int], number: int, told: Told, words: int) -> None:
        before = len(self.writer.truth)
        self.writer.visit(warp, lanes, number, self.now, lambda lane: words)
        for _, lane, *_ in self.writer.truth[before:]:
            self.made[warp, lane].append(told)

    def kept(self) -> list[tuple[int, int, int]]:
        """(warp, site, time) of all visits whose record was kept."""
        fmt = self.layout.format
        part = slice(-fmt.depth, None) if fmt.keep is Keep.NEWEST else slice(fmt.depth)
        told = [
            (warp, *item) for (warp, _), made in self.made.items() for record in made[part] for item in record
        ]
        if not self.by_warp or self.writer.map.clock == "gpu":
            return sorted(told)
        held = {item for item in told if item[1] in CHAIN[:-1]}  # of one visit, though its lanes parted since
        return sorted([*held, *(item for item in told if item not in held)])

    def lost(self) -> int:
        return sum(max(0, len(made) - self.layout.format.depth) for made in self.made.values())


def run(seed: int, clock: str, keep: Keep, by_warp: bool) -> Kernel:
    rng = random.Random(seed)
    fmt = RingFormat(RecordKind.WIDE, rng.choice((1, 2, 8, 64)), keep)
    fmt = replace(fmt, by_lane=by_warp and fmt.may_be_by_lane)
    first, second = (
        replace(site(i, warp=by_warp, shared=CHAIN[-1]), time_in=word) for i, word in ((0, "x"), (1, "y"))
    )
    sites = [first, second, *(site(i, warp=by_warp) for i in (CHAIN[-1], PLAIN))]
    smap = SiteMap.from_bytes(site_map(clock, fmt, sites).to_bytes())
    grid, block = (5, 1, 1), (rng.choice((32, 45, 64)), 1, 1)
    layout = RingLayout.for_launch(fmt, grid, block)
    if rng.random() < 0.5:
        layout = RingLayout.for_launch(fmt, grid, block, layout.total_bytes // 2)
    # Clocks whose lower halves wrap while the kernel runs.
    clocks = Clocks(
        ns_base=(411 << 32) - rng.randrange(5000) // 32 * 32, offsets={9: (7 << 32) - rng.randrange(9000)}
    )
    kernel = Kernel(layout, Writer(layout, smap, clocks, seed), by_warp, rng)
    for slot, cta in enumerate(sorted(rng.sample(range(5), layout.cta_slots))):
        kernel.writer.enter(slot, cta, 9, 0.0)
        for inside in range(layout.warps_per_cta):
            warp, kernel.now = slot * layout.warps_per_cta + inside, 50.0
            lanes = list(range(min(32, block[0] - 32 * inside)))
            for _ in range(rng.choice((0, 1, 12))):
                cut = rng.randrange(len(lanes))
                groups = [group for group in (lanes[:cut], lanes[cut:]) if group]
                if rng.random() < 0.3:
                    for group in groups:
                        kernel.plain(warp, group)
                else:
                    kernel.chain(warp, groups)
    return kernel


@pytest.mark.parametrize("by_warp", [True, False])
@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("clock", ["sm", "gpu"])
def test_every_visit_whose_record_was_kept_is_told_once(clock: str, keep: Keep, by_warp: bool) -> None:
    for seed in range(12):
        kernel = run(seed, clock, keep, by_warp)
        layout, smap, data = kernel.layout, kernel.writer.map, bytes(kernel.writer.data)
        wanted, lost = kernel.kept(), kernel.lost()
        columns = ring_columns(data, layout, smap, 1e6)
        told = zip(columns.warp().tolist(), columns.site.tolist(), columns.time.tolist(), strict=True)
        assert sorted(told) == wanted and columns.value is None
        decoded = decode_ring(data, layout, smap, 1e6)
        got = decoded.records
        slots = {int(cta): slot for slot, cta in enumerate(decoded.headers["cta"][:, 0])}
        warps = [slots[int(r["block"][0])] * layout.warps_per_cta + int(r["warp"]) for r in got]
        assert sorted(zip(warps, got["site"].tolist(), got["time"].tolist(), strict=True)) == wanted
        assert not got["value"].any()
        assert decoded.dropped_total == lost and int(decoded.visits.sum()) == len(wanted) + lost
        assert (SHARED_DROPPED in decoded.warnings) == bool(lost)
        lanes = np.array(warps, np.int64) * 32 + got["lane"]
        for lane in np.unique(lanes):
            mine = np.sort(got["sequence"][lanes == lane].astype(np.int64))
            assert (np.diff(mine) == 1).all()


def test_the_ring_has_the_words_where_the_map_says(seed: int = 3) -> None:
    """The model writes what the format describes: time, tag, x, y."""
    kernel = run(seed, "sm", Keep.NEWEST, False)
    (warp, lane), made = next((key, made) for key, made in kernel.made.items() if len(made[-1]) == len(CHAIN))
    slots = kernel.layout.slots(
        np.frombuffer(bytes(kernel.writer.data), np.uint8)[: kernel.layout.ring_bytes]
    )
    record = slots[warp, (len(made) - 1) % kernel.layout.format.depth, lane]
    words = [time & 0xFFFFFFFF for _, time in made[-1]]
    assert struct.unpack("<IIII", record.tobytes())[2:] == (words[0], words[1]) and record["time"] == words[2]
