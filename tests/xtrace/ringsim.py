"""A model of the traced kernel, written apart from the decoder: it stores bytes the way the snippets do.

Time is a float of nanoseconds; an SM's cycle counter integrates a frequency that changes in steps.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gwatch.rewrite.ring import Keep, RecordKind, RingFormat, RingLayout
from gwatch.rewrite.sitemap import MappedSite, SiteMap

M32 = 0xFFFFFFFF


def site(
    i: int, value: str = "none", warp: bool = False, pair: bool = False, shared: int | None = None
) -> MappedSite:
    return MappedSite(i, 10 * i, 160 * i, 320 * i, "NOP", None, None, value, warp, False, pair, None, shared)


def site_map(clock: str, fmt: RingFormat, sites: Sequence[MappedSite]) -> SiteMap:
    return SiteMap("k", "90a", clock, fmt, "gwatch_ring_k", 0, tuple(sites), 16, 24, clock == "anchor")


@dataclass
class Clocks:
    """``steps``: (from ns, hz) of the SM clock, first at 0. Reads may be ``step`` ns coarse."""

    steps: Sequence[tuple[float, float]] = ((0.0, 1.98e9),)
    ns_base: int = 1_764_450_000_000_000_000 // 32 * 32
    step: int = 32
    seed: int = 1
    offsets: dict[int, int] = field(default_factory=dict)

    def cycles(self, sm: int, t: float) -> int:
        rng = random.Random(self.seed * 1000 + sm)
        total = float(self.offsets.get(sm, rng.randrange(1 << 45)))
        edges = [*self.steps, (float("inf"), 0.0)]
        for (start, hz), (end, _) in pairwise(edges):
            if t > start:
                total += (min(t, end) - start) * hz / 1e9
        return int(total)

    def ns(self, t: float) -> int:
        return self.ns_base + int(t) // self.step * self.step


class Writer:
    """Ring memory as the patched kernel leaves it."""

    def __init__(self, layout: RingLayout, smap: SiteMap, clocks: Clocks, seed: int = 0) -> None:
        self.layout, self.map, self.clocks = layout, smap, clocks
        self.rng = random.Random(seed)
        self.data = bytearray(layout.data_bytes)
        self.offset: dict[tuple[int, int], int] = {}
        self.sm: dict[int, int] = {}
        self.truth: list[tuple[int, int, int, int, float, int]] = []
        """(global warp, lane, site, visit of the lane, time, value) of every record ever made."""
        self.visits: dict[tuple[int, int], int] = {}

    def _header(self, warp: int) -> int:
        return self.layout.warps * self._chunk() + 64 * warp

    def _record_bytes(self) -> int:
        return 8 if self.layout.format.kind is RecordKind.NARROW else 16

    def _chunk(self) -> int:
        fmt = self.layout.format
        return (fmt.depth + (1 if fmt.keep is Keep.FIRST else 0)) * 32 * self._record_bytes()

    def enter(self, slot: int, cta: int, sm: int, t: float) -> None:
        """The prologue of every warp of a CTA."""
        threads = self.layout.block[0] * self.layout.block[1] * self.layout.block[2]
        per_cta = -(-threads // 32)
        for w in range(per_cta):
            warp = slot * per_cta + w
            self.sm[warp] = sm
            alive = min(32, threads - 32 * w)
            struct.pack_into(
                "<QQIIII",
                self.data,
                self._header(warp),
                self.clocks.cycles(sm, t + w),
                self.clocks.ns(t + w),
                0x52545747,
                sm,
                (1 << alive) - 1,
                cta,
            )
            if self.map.clock == "anchor":
                pair = (self.clocks.cycles(sm, t + w + 3) & M32, self.clocks.ns(t + w + 4) & M32)
                struct.pack_into("<II", self.data, self._header(warp) + 48, *pair)

    def leave(self, warp: int, t: float, lags: tuple[float, float] = (1.0, 1.0)) -> None:
        """An EXIT of some lanes of a warp (``anchor`` only); ``lags``: ns lost inside the first, second pair."""
        sm, later = self.sm[warp], t + lags[0] + 3
        pairs = (
            self.clocks.cycles(sm, t),
            self.clocks.ns(t + lags[0]),
            self.clocks.cycles(sm, later),
            self.clocks.ns(later + lags[1]),
        )
        struct.pack_into("<IIII", self.data, self._header(warp) + 32, *(word & M32 for word in pairs))

    def visit(
        self,
        warp: int,
        lanes: Sequence[int],
        number: int,
        t: float,
        value: Callable[[int], int] = lambda lane: 0,
        lag: float = 0.0,
    ) -> None:
        """Active ``lanes`` of a warp pass site ``number``; ``lag`` ns pass between the two clock reads."""
        spec = self.map.sites[number]
        who = [self.rng.choice(list(lanes))] if spec.warp_level else list(lanes)
        for lane in who:
            off = self.offset.get((warp, lane), 0)
            self._store(warp, lane, off, number, t, value(lane), lag)
            size, by_lane = self._record_bytes(), self.layout.format.by_lane
            self.offset[warp, lane] = (off + ((self.layout.format.depth + 1) if by_lane else 32) * size) & M32
            made = self.visits.get((warp, lane), 0)
            self.truth.append((warp, lane, number, made, t, value(lane)))
            self.visits[warp, lane] = made + 1

    def _store(self, warp: int, lane: int, off: int, number: int, t: float, value: int, lag: float) -> None:
        fmt, spec = self.layout.format, self.map.sites[number]
        size = self._record_bytes()
        place = off & (fmt.depth * 32 * size - 1)
        if fmt.keep is Keep.FIRST:
            place = min(off, fmt.depth * 32 * size)
        address = warp * self._chunk() + place + lane * size
        if fmt.by_lane:
            address = warp * self._chunk() + lane * fmt.depth * size + (off & (fmt.depth - 1) * size)
        full = self.clocks.ns(t) if self.map.clock == "gpu" else self.clocks.cycles(self.sm[warp], t)
        tag = (off + number + 1) & M32
        if fmt.kind is RecordKind.NARROW:
            struct.pack_into("<II", self.data, address, full & M32, tag)
        elif fmt.kind is RecordKind.LONG:
            x = self.clocks.ns(t + lag) & M32 if spec.pair else value & M32
            struct.pack_into("<QII", self.data, address, full, tag, x)
        else:
            y = self.clocks.ns(t + lag) & M32 if spec.pair and spec.value_bits < 64 else value >> 32
            struct.pack_into("<IIII", self.data, address, full & M32, tag, value & M32, y)
