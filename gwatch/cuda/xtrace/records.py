"""The records of a ring: slots to a structured array.

The ring is read in blocks of warps small enough for the cache; inside a block everything is a handful of
numpy passes. Every slot's sequence must be the one its place demands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.clocks import (
    CYCLE_WRAP_NS,
    MAX_CLOCK_HZ,
    AnchorFit,
    extend32,
    fit_anchor,
)
from gwatch.errors import TraceError
from gwatch.rewrite.held import WORDS
from gwatch.rewrite.ring import CANARY, LANES, Keep, RecordKind, RingLayout, not_its_own
from gwatch.rewrite.sitemap import TELLS_VISITS, SiteMap

RECORD_DTYPE = np.dtype(
    [
        ("time", "<i8"),
        ("value", "<u8"),
        ("sequence", "<u4"),
        ("block", "<i4", (3,)),
        ("thread", "<i4"),
        ("warp", "<i4"),
        ("smid", "<i4"),
        ("site", "<i2"),
        ("lane", "u1"),
        ("warp_level", "?"),
    ]
)
"""One record. ``block`` is (x, y, z); ``time`` in ns (``gpu``, ``anchor``) or SM cycles (``sm``); ``thread``
linear in its CTA, -1 for a warp-level record (``lane`` then is the lane that was elected); ``warp`` is
``linear thread >> 5``; ``sequence`` counts all records of the lane; ``value`` is 0 at sites without one."""

MIN_VISIT_CYCLES = 8
"""No lane makes records faster: the record's own instructions take longer to issue."""

_LOW = (1 << 32) - 1
_BLOCK_SLOTS = 1 << 15
_MAX_PAIRS = 1 << 19
_TYPICAL_NS_PER_CYCLE = 0.6
# One timer step, and a bit.
_HELD_UP_NS = 40.0
_EDGE_NS = 10_000.0
# numpy copies structured elements field by field, opaque ones in one go (ten times faster).
_OPAQUE = np.dtype(("V", RECORD_DTYPE.itemsize))


BEFORE_ENTRY = "a record was made before its warp entered, or after the launch's duration"


def stale(what: str) -> TraceError:
    """The error of records that this launch can't have made."""
    return TraceError(
        "ring-corrupt",
        what,
        "another launch's records are in the ring (it was not zeroed), the launch took longer than told, or its "
        "warps were moved to another SM",
    )


@dataclass(frozen=True, slots=True)
class Copies:
    """(n,) what shared records become: the place of the record that each copy comes from, in their order, its site, its
    time, its value (0 for those of several sites) and its sequence."""

    source: npt.NDArray[np.int64]
    site: npt.NDArray[np.int64]
    time: npt.NDArray[np.int64]
    value: npt.NDArray[np.uint64] | None
    sequence: npt.NDArray[np.uint32]


class SharedRecords:
    """Makes one record of each site out of a record that several share (``MappedSite.shared_with``)."""

    def __init__(self, site_map: SiteMap) -> None:
        count = len(site_map.sites)
        groups: list[list[int]] = [[] for _ in range(count)]
        order = (*WORDS, "time")
        for site in sorted(
            site_map.sites, key=lambda site: (order.index(site.time_in), site.index, site.site_id)
        ):
            groups[site.site_id if site.shared_with is None else site.shared_with].append(site.site_id)
        self.copies = np.array([len(group) for group in groups], np.int64)
        """(sites,) records that one of each site stands for: 0 where there are none of that site."""
        self.holds = site_map.holds
        self._tells_visits = TELLS_VISITS[site_map.clock]
        self._first = np.cumsum(self.copies) - self.copies
        self._members = np.array([site for group in groups for site in group], np.int64)
        # By how far the word that says a site's time is shifted in the record's value; 64: not there.
        self._shift = np.array(
            [64 if site.time_in == "time" else 32 * WORDS.index(site.time_in) for site in site_map.sites],
            np.uint64,
        )
        self._by_warp = np.array([site.warp_level for site in site_map.sites], bool)

    def expand(
        self,
        sites: npt.NDArray[Any],
        times: npt.NDArray[np.int64],
        values: npt.NDArray[np.uint64] | None,
        sequence: npt.NDArray[Any],
        row: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
    ) -> Copies:
        """The copies of records; ``row``: CTA slot, warp and lane that each was made by, as one number; ``starts``:
        when each warp entered.

        A time that two lanes of a warp held since the same visit (their groups parted later) is told once; with a clock
        that doesn't tell visits apart, none parted. Raises
        TraceError ``ring-corrupt`` for a site whose record is another's, or a time before its warp's entry.
        """
        source, members = self._sites(sites)
        found = times[source]
        if self.holds:
            assert values is not None
            shift = self._shift[members]
            held = np.flatnonzero(shift < 64)
            low = values[source[held]] >> shift[held] & np.uint64(_LOW)
            # Held times are less than 2**32 older than their record's: longer launches have other records.
            found[held] -= found[held] - low.astype(np.int64) & _LOW
            if (found[held] < starts[row[source[held]] // LANES]).any():
                raise stale(BEFORE_ENTRY)
            if self._tells_visits:
                once = np.ones(len(source), bool)
                once[self._again(held[self._by_warp[members[held]]], members, found, row[source])] = False
                source, members, found = source[once], members[once], found[once]
        value = None if values is None else np.where(self.copies[sites][source] > 1, np.uint64(0), values[source])
        return Copies(source, members, found, value, self._sequences(source, sequence, row))

    @staticmethod
    def _again(
        places: npt.NDArray[np.int64],
        sites: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        row: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Those of ``places`` that say what another of the same warp does."""
        warp, lane = row[places] // LANES, row[places] % LANES
        some = np.zeros(int(warp.max(initial=-1)) + 1, np.int64)
        some[warp] = lane
        several = np.zeros(len(some), bool)
        several[warp[some[warp] != lane]] = True
        places, warp = places[several[warp]], warp[several[warp]]
        order = np.lexsort((times[places], sites[places], warp))
        keys = np.stack([warp[order], sites[places][order], times[places][order]])
        again = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
        return np.asarray(places[order[1:][again]])

    def _sites(self, sites: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(place of the record that each copy comes from, site of each copy), in the order of ``sites``."""
        copies = self.copies[sites]
        if not copies.all():
            number = int(sites[np.argmin(copies)])
            raise TraceError(
                "ring-corrupt",
                f"a record names site {number}, which leaves none of its own",
                "wrong site map?",
            )
        source = np.repeat(np.arange(len(sites)), copies)
        nth = np.arange(len(source)) - (np.cumsum(copies) - copies)[source]
        return source, self._members[self._first[sites[source]] + nth]

    @staticmethod
    def _sequences(
        source: npt.NDArray[np.int64], sequence: npt.NDArray[Any], row: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint32]:
        """Sequences of the copies, counted anew from the first record kept of each lane (``row``: whose each
        original record is)."""
        order = np.lexsort((sequence, row))
        total = np.bincount(source, minlength=len(sequence))
        copies = total[order]
        before = np.cumsum(copies) - copies
        new = np.append(True, np.diff(row[order]) != 0)[: len(order)]
        start = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
        base = np.empty(len(order), np.int64)
        base[order] = sequence[order][start] + before - before[start]
        nth = np.arange(len(source)) - (np.cumsum(total) - total)[source]
        return (base[source] + nth).astype(np.uint32)


class RingReader:
    """One ring being read: lookup tables by site, counts per lane, clock pairs found on the way."""

    def __init__(
        self,
        ring: npt.NDArray[np.uint8],
        headers: npt.NDArray[np.void],
        layout: RingLayout,
        site_map: SiteMap,
        duration_ns: float | None = None,
    ) -> None:
        fmt = layout.format
        # No record is made later than this after its warp's entry; a timer step and the launch's own edges on top.
        ticks = 1.0 if site_map.clock == "gpu" else MAX_CLOCK_HZ / 1e9
        self.longest = None if duration_ns is None else int((duration_ns + _EDGE_NS) * ticks)
        self.fmt = fmt
        self.layout = layout
        self.clock = site_map.clock
        self.headers = headers
        self.ring = layout.slots(ring)
        self.plain = np.dtype("<u8" if fmt.record_bytes == 8 else "<c16")
        self.visits = np.zeros((layout.warps, LANES), np.int64)
        self.full_lanes = 0
        self.certainly_wrapped = 0
        self.exit_pairs = site_map.pairs_at_exit
        count = len(site_map.sites) + 1
        self.site_count = len(site_map.sites)
        self.warp_level = np.zeros(count, bool)
        self.pair = np.zeros(count, bool)
        self.pair_in_x = np.zeros(count, bool)
        self.smid_value = np.zeros(count, bool)
        self.low_mask = np.zeros(count, np.uint64)
        self.high_mask = np.zeros(count, np.uint64)
        for site in site_map.sites:
            i = site.site_id + 1
            self.warp_level[i] = site.warp_level
            self.pair[i] = site.pair
            self.pair_in_x[i] = site.pair and site.value_bits == 64
            self.smid_value[i] = site.value == "smid"
            self.low_mask[i] |= np.uint64(_LOW if site.value_bits else 0)
            self.high_mask[i] |= np.uint64(_LOW if site.value_bits == 64 else 0)
            if site.shared_with is not None and site.time_in != "time":
                # Until the records are told apart, times of other sites are the value.
                (self.low_mask, self.high_mask)[WORDS.index(site.time_in)][site.shared_with + 1] = _LOW
        self.any_value = bool(self.low_mask.any()) or bool(self.smid_value.any())
        self.pair_cycles: list[npt.NDArray[np.int64]] = []
        self.pair_ns: list[npt.NDArray[np.int64]] = []
        self.pair_sm: list[npt.NDArray[np.int64]] = []
        slots_total = max(1, layout.warps * fmt.depth)
        # Odd, so that it does not pick the same visit of every lane.
        self.pair_stride = slots_total // _MAX_PAIRS | 1

    def run(self, warps: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """All records of ``warps``; fills ``visits`` and the clock pairs on the way."""
        size = max(1, _BLOCK_SLOTS // (self.fmt.slots * LANES))
        first = [self._count(warps[i : i + size]) for i in range(0, len(warps), size)]
        out = np.zeros(sum(first), RECORD_DTYPE)
        at = 0
        for number, i in enumerate(range(0, len(warps), size)):
            if first[number]:
                self._fill(warps[i : i + size], out[at : at + first[number]])
                at += first[number]
        return out

    def _count(self, warps: npt.NDArray[np.int64]) -> int:
        """Visits of each lane of ``warps``, every slot checked against them; returns the number of records
        kept."""
        fmt = self.fmt
        tag = self.ring["tag"][warps[0] : warps[-1] + 1]
        valid = (tag & 0xFF) != 0
        sequence = (tag >> fmt.sequence_shift).astype(np.int64)
        slot = np.arange(fmt.slots, dtype=np.int64)[None, :, None]
        period = 1 << fmt.sequence_bits
        if fmt.keep is Keep.NEWEST:
            # Slot 0 is the first that each lap writes: its lap is the newest, and the head ends that lap.
            lap = sequence >> (fmt.depth.bit_length() - 1)
            newest = lap[:, 0, :]
            head = (valid & (lap == newest[:, None, :])).sum(axis=1)
            visits = np.where(valid[:, 0, :], newest * fmt.depth + head, 0)
            last = fmt.depth - 1
            wrapped = (newest == 0) & valid[:, last, :] & (lap[:, last, :] != 0) & valid[:, 0, :]
            visits = visits + wrapped * period
            expected = visits[:, None, :] - 1 - ((visits[:, None, :] - 1 - slot) & (fmt.depth - 1))
            written = expected >= 0
            full = visits > fmt.depth
        else:
            trash = valid[:, fmt.depth, :]
            tail = sequence[:, fmt.depth, :]
            wrapped = trash & (tail < fmt.depth)
            visits = np.where(trash, tail + 1 + wrapped * period, valid[:, : fmt.depth, :].sum(axis=1))
            expected = np.broadcast_to(slot, sequence.shape).copy()
            expected[:, fmt.depth, :] = visits - 1
            written = (slot < visits[:, None, :]) & ((slot < fmt.depth) | trash[:, None, :])
            full = trash
        right = np.where(written, valid & (sequence == (expected & (period - 1))), ~valid)
        if not right.all():
            w, s, lane = (int(v[0]) for v in np.nonzero(~right))
            raise not_its_own(s, lane, int(warps[0]) + w)
        if valid.any() and int((tag & 0xFF).max()) > self.site_count:
            raise TraceError(
                "ring-corrupt", f"a record names site {int((tag & 0xFF).max()) - 1}", "wrong site map?"
            )
        self.visits[warps] = visits
        self.full_lanes += int(full.sum())
        self.certainly_wrapped += int(wrapped.sum())
        return int(np.minimum(visits, fmt.depth).sum())

    def _fill(self, warps: npt.NDArray[np.int64], out: npt.NDArray[np.void]) -> None:
        """Writes the records of ``warps`` to ``out`` (times still cycles for ``anchor``)."""
        fmt = self.fmt
        visits = self.visits[warps].reshape(-1)
        kept = np.minimum(visits, fmt.depth)
        first = visits - kept if fmt.keep is Keep.NEWEST else np.zeros_like(visits)
        block = self.ring[warps[0] : warps[-1] + 1]
        spread: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
        if kept.min() == kept.max() and len(np.unique(first & (fmt.depth - 1))) == 1:
            # Every lane's records lie in the same slots: rows x records, without index arrays.
            count = int(kept[0])
            order = (int(first[0]) + np.arange(count)) & (fmt.depth - 1)
            moved = block.view(self.plain)[:, order].transpose(0, 2, 1)
            got = np.ascontiguousarray(moved).view(fmt.dtype).reshape(len(kept), count)
            view = out.reshape(len(kept), count)
            nth = np.arange(count)[None, :]

            def spread(of_row: npt.NDArray[Any]) -> npt.NDArray[Any]:
                return of_row[:, None]
        else:
            row = np.repeat(np.arange(len(kept)), kept)
            nth = np.arange(len(row)) - (np.cumsum(kept) - kept)[row]
            slot = (nth + first[row]) & (fmt.depth - 1)
            place = ((row >> 5) * fmt.slots + slot) * LANES + (row & 31)
            got = block.view(self.plain).reshape(-1)[place].view(fmt.dtype)
            view = out

            def spread(of_row: npt.NDArray[Any]) -> npt.NDArray[Any]:
                return of_row[row]

        view.view(_OPAQUE)[...] = spread(self._lane_records(warps).view(_OPAQUE))
        view["sequence"] = nth + spread(first)
        site: npt.NDArray[Any] = got["tag"] & 0xFF
        view["site"] = site - 1
        if self.warp_level.any():
            level = self.warp_level[site]
            view["warp_level"] = level
            view["thread"][level] = -1
        starts = spread(np.repeat(self.starts(warps), LANES))
        view["time"] = times = self._times(got, warps, site, spread, starts)
        back = times[..., 1:] < times[..., :-1]
        if view.ndim == 1:
            back &= row[1:] == row[:-1]
        if back.any():
            raise stale("the times of a lane run backwards")
        if times.size:
            self.check_span(times - starts, 0, 0)
        if self.any_value:
            view["value"] = self._values(got, site, view["smid"])
        if self.warp_level.any():
            self.merge_warp_level(out)

    def starts(self, warps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(n,) times at which ``warps`` entered."""
        return np.asarray(
            self.headers["ns_in" if self.clock == "gpu" else "clock_in"][warps].astype(np.int64)
        )

    def check_span(self, times: npt.NDArray[np.int64], first: int, last: int) -> None:
        """``first``, ``last``: when the earliest and the latest of the warps entered that made records at ``times``
        (not empty). Raises TraceError ``ring-corrupt`` where one was made before, or is later than the duration
        of the launch allows.
        """
        late = self.longest is not None and int(times.max()) > int(last) + self.longest
        if late or int(times.min()) < int(first):
            raise stale(BEFORE_ENTRY)

    def _lane_records(self, warps: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """(32 x warps,) a record of each lane with what all its records share."""
        gx, gy, _ = self.layout.grid
        header = self.headers[warps]
        cta = header["cta"].astype(np.int32)
        lanes = np.zeros((len(warps), LANES), RECORD_DTYPE)
        lanes["block"] = np.stack([cta % gx, cta // gx % gy, cta // gx // gy], axis=1)[:, None, :]
        lanes["smid"] = header["smid"].astype(np.int32)[:, None]
        lanes["warp"] = (warps % self.layout.warps_per_cta)[:, None]
        lanes["lane"] = np.arange(LANES)
        lanes["thread"] = lanes["warp"] * LANES + lanes["lane"]
        return lanes.reshape(-1)

    def _times(
        self,
        got: npt.NDArray[np.void],
        warps: npt.NDArray[np.int64],
        site: npt.NDArray[Any],
        spread: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        starts: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """64-bit times, cycles for ``sm`` and ``anchor``; collects clock pairs. ``starts``: when each record's warp
        entered."""
        long = self.fmt.kind is RecordKind.LONG
        times: npt.NDArray[np.int64] = got["time"].astype(np.int64) if long else extend32(got["time"], starts)
        if self.pair.any():
            header = np.repeat(self.headers[warps], LANES)
            low = got["x" if long else "y"]
            if self.pair_in_x.any():
                low = np.where(self.pair_in_x[site], got["x"], low)
            ns = extend32(low, spread(header["ns_in"].astype(np.int64)))
            sm = np.broadcast_to(spread(header["smid"].astype(np.int64)), site.shape)
            chosen = np.flatnonzero(self.pair[site])[:: self.pair_stride]
            for pairs, values in ((self.pair_cycles, times), (self.pair_ns, ns), (self.pair_sm, sm)):
                pairs.append(values.reshape(-1)[chosen])
        return times

    def _values(
        self, got: npt.NDArray[np.void], site: npt.NDArray[Any], smid: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint64]:
        value = np.zeros(got.shape, np.uint64)
        if self.fmt.kind is not RecordKind.NARROW:
            value = got["x"] & self.low_mask[site]
        if self.fmt.kind is RecordKind.WIDE and self.high_mask.any():
            value |= (got["y"] & self.high_mask[site]) << np.uint64(32)
        if self.smid_value.any():
            value = np.where(self.smid_value[site], smid.astype(np.uint64), value)
        return value

    @staticmethod
    def merge_warp_level(out: npt.NDArray[np.void]) -> None:
        """Inside each warp thread-level records stay first; warp-level ones of all lanes go by time."""
        level = out["warp_level"]
        block = out["block"]
        new = np.zeros(len(out), bool)
        new[1:] = (out["warp"][1:] != out["warp"][:-1]) | (block[1:] != block[:-1]).any(axis=1)
        key = np.cumsum(new) * 2 + level
        steps = np.diff(key)
        if (steps >= 0).all() and ((steps > 0) | ~level[1:] | (np.diff(out["time"]) >= 0)).all():
            return
        time = np.where(level, out["time"], 0)
        out[:] = out[np.lexsort((time, key))]

    def sequence_warnings(self, duration_ns: float | None) -> list[str]:
        """What the sequences cannot prove."""
        period = 1 << self.fmt.sequence_bits
        if self.certainly_wrapped:
            return [
                f"[sequence-wrapped] {self.certainly_wrapped} threads made more than {period} records: their "
                "dropped counts are lower bounds"
            ]
        fastest_ns = period * MIN_VISIT_CYCLES / MAX_CLOCK_HZ * 1e9
        if self.full_lanes and (duration_ns is None or duration_ns >= fastest_ns):
            return [f"[sequence-unproved] dropped counts are exact unless a thread passed {period} records"]
        return []

    def fit(self) -> AnchorFit:
        """The anchor curves from header pairs and in-record pairs."""
        header = self.headers[self.headers["canary"] == CANARY]
        clock_in, ns_in = header["clock_in"].astype(np.int64), header["ns_in"].astype(np.int64)
        smid = header["smid"].astype(np.int64)
        cycles, ns, sm = self.pair_cycles, self.pair_ns, self.pair_sm
        for name in ("in", "out") if self.exit_pairs else ("in",):
            first = extend32(header[f"clock_{name}"].astype(np.uint32), clock_in)
            first_ns = extend32(header[f"ns_{name}"].astype(np.uint32), ns_in)
            second = extend32(header[f"clock_{name}2"], clock_in)
            second_ns = extend32(header[f"ns_{name}2"], ns_in)
            # A warp that lived for longer may have seen its 32-bit cycles wrap; zeros are no pair.
            there = (first_ns - ns_in < CYCLE_WRAP_NS) & (
                (header[f"ns_{name}"] | header[f"clock_{name}"]) != 0
            )
            twice = there & ((header[f"ns_{name}2"] | header[f"clock_{name}2"]) != 0)
            # How much longer the cycles between the two pairs took than the ns: time lost inside one pair.
            late = (second - first) * _TYPICAL_NS_PER_CYCLE - (second_ns - first_ns)
            good = there & ~(twice & (late > _HELD_UP_NS))
            good2 = twice & (late >= -_HELD_UP_NS)
            cycles += [first[good], second[good2]]
            ns += [first_ns[good], second_ns[good2]]
            sm += [smid[good], smid[good2]]
        return fit_anchor(np.concatenate(cycles), np.concatenate(ns), np.concatenate(sm))
