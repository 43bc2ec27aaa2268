"""Regions: which record opens and which closes an interval, paired without a guess across lost records.

A region names two sites. Each region is paired on its own, so a site may close one region and open the
next, or open several. Within a row, ``nested`` pairing closes the innermost open entry (recursion works, a
lost leave costs one entry); ``fifo`` closes the oldest (software pipelines that keep several iterations in
flight). Where records were lost, everything open is given up and counted. Nothing that did not pair
vanishes: ``enters + leaves == 2 × intervals + lost_leaves + orphan_leaves`` for every region.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gwatch.common.format.losses import I32, I64, Bools, ordering, row_parts, starts_of
from gwatch.common.format.records import Trace
from gwatch.errors import SiteError

PAIRINGS = ("nested", "fifo")
SITES = 1 << 31
"""Site numbers are below."""


@dataclass(frozen=True, slots=True)
class Region:
    """From a record of site ``enter`` to one of site ``leave``, under the scope name ``label``."""

    enter: int
    leave: int
    label: str
    pairing: str = "nested"


@dataclass(frozen=True, slots=True)
class PairCounts:
    """What became of one region's boundary records."""

    enters: int
    leaves: int
    intervals: int
    lost_leaves: int
    """Entries without a leave."""
    orphan_leaves: int
    """Leaves without an entry."""
    broken: int
    """How many of those two lie next to lost records, which explains them."""
    edges: int
    """How many of the rest are a row's first boundary, a leave, or its last, an entry: begun before, or still
    open after, what was recorded."""
    backwards: int
    """Intervals whose leave carries an earlier time than their entry (clock fit); their duration is 0."""
    rows: int

    @property
    def pair_rate(self) -> float:
        """Share of the boundary records that found their partner; 1.0 when there is none."""
        total = self.enters + self.leaves
        return 2 * self.intervals / total if total else 1.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """M intervals ordered by row and start; those that begin at one record, longest first."""

    row: I64
    region: I32
    start: I64
    end: I64
    depth: I32
    """How many intervals of the row, of any region, were open at the start."""
    opened: I64
    """Index of the entry record in the trace."""
    closed: I64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, mask: Bools) -> Intervals:
        """The intervals in ``mask``, with the depths they had."""
        return Intervals(self.row[mask], self.region[mask], self.start[mask], self.end[mask],
                         self.depth[mask], self.opened[mask], self.closed[mask])


def parse_regions(site_regions: Iterable[Any] | None) -> tuple[Region, ...]:
    """Regions from ``(enter, leave[, label[, pairing]])`` entries; the default label is ``site A-B``.

    Raises SiteError ``[bad-region]`` (a ValueError) for the same site twice, a malformed entry, an unknown
    pairing.
    """
    regions = []
    for entry in site_regions or ():
        if isinstance(entry, Region):
            regions.append(entry)
            continue
        try:
            items = tuple(entry)
            enter, leave = int(items[0]), int(items[1])
        except (TypeError, ValueError, IndexError, OverflowError):
            items, enter, leave = (), 0, 0
        if not (0 <= enter < SITES and 0 <= leave < SITES):
            raise SiteError("bad-region", f"region {entry!r} names no site", f"they are numbered from 0 to {SITES - 1}")
        if not 2 <= len(items) <= 4 or isinstance(entry, str):
            raise SiteError("bad-region", f"{entry!r} is no region", "write (enter site, leave site, label)")
        if enter == leave:
            raise SiteError("bad-region", f"region {entry!r} enters and leaves at the same site {enter}",
                            "use two sites; site_stats already give the time between firings of one site")
        pairing = str(items[3]) if len(items) == 4 else "nested"
        if pairing not in PAIRINGS:
            raise SiteError("bad-region", f"region {entry!r}: pairing {pairing!r}",
                            "use one of " + ", ".join(PAIRINGS))
        label = str(items[2]) if len(items) > 2 and items[2] not in (None, "") else f"site {enter}-{leave}"
        regions.append(Region(enter, leave, label, pairing))
    return tuple(regions)


def pair(trace: Trace, regions: tuple[Region, ...]) -> tuple[Intervals, tuple[PairCounts, ...]]:
    """All intervals of ``regions`` in ``trace`` and, per region, what paired and what did not."""
    parts = [_pair_rows(trace, regions, part) for part in row_parts(trace.row)]
    parts = parts or [_pair_rows(trace, regions, slice(0, 0))]
    columns = [np.concatenate([getattr(found, name.name) for found, _ in parts]) for name in fields(Intervals)]
    counts = zip(*(part for _, part in parts), strict=True)
    return Intervals(*columns), tuple(
        PairCounts(*(sum(getattr(c, name.name) for c in each) for name in fields(PairCounts))) for each in counts)


def _pair_rows(trace: Trace, regions: tuple[Region, ...], part: slice) -> tuple[Intervals, list[PairCounts]]:
    """What :func:`pair` finds in the whole rows of ``part``."""
    offset = part.start
    trace = trace.part(part)
    losses = _Losses.of(trace)
    paired = [_pair_one(trace, region, losses) for region in regions]
    if len({region.enter for region in regions}) == len(regions):
        # Records are ordered by row and time: noting each interval at its entry merges the regions' lists.
        leave, mine = np.full(len(trace), -1, np.int64), np.zeros(len(trace), np.int32)
        for number, (enters, leaves, _) in enumerate(paired):
            leave[enters], mine[enters] = leaves, number
        opened = np.flatnonzero(leave >= 0)
        closed, which = leave[opened], mine[opened]
    else:
        opened = _joined([p[0] for p in paired])
        closed = _joined([p[1] for p in paired])
        which = np.repeat(np.arange(len(paired), dtype=np.int32), [len(p[0]) for p in paired])
        order = np.argsort(opened, kind="stable")
        opened, closed, which = opened[order], closed[order], which[order]
    row, start = trace.row[opened], trace.time[opened]
    end = np.maximum(start, trace.time[closed])
    if bool((opened[1:] == opened[:-1]).any()) or falls(row, start):
        order = np.lexsort((which, -end, start, row))
        row, start, end = row[order], start[order], end[order]
        opened, closed, which = opened[order], closed[order], which[order]
    depth = _depths(row, start, end)
    return Intervals(row, which, start, end, depth, opened + offset, closed + offset), [p[2] for p in paired]


def falls(row: I64, time: I64) -> bool:
    """Does a time within a row lie before the one ahead of it?"""
    return bool(((row[1:] == row[:-1]) & (time[1:] < time[:-1])).any())


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Losses:
    """Stretches of a row between losses, and on which side of a record its row has lost some."""

    segment: I64
    """Per record; two records share a number exactly when they are of one row and nothing is lost between them."""
    before: Bools
    after: Bools

    @staticmethod
    def of(trace: Trace) -> _Losses:
        first = starts_of(trace.row)
        segment: I64 = np.cumsum(first | trace.gap, dtype=np.int64)
        tail = trace.rows.tail_gap
        if not trace.gap.any():
            none = np.zeros(len(trace), np.bool_)
            return _Losses(segment, none, tail[trace.row] if tail.any() else none)
        lost: I64 = np.cumsum(trace.gap, dtype=np.int64)
        base, last, row = lost[first] - trace.gap[first], lost[np.append(first[1:], True)], np.cumsum(first) - 1
        return _Losses(segment, lost > base[row], (lost < last[row]) | tail[trace.row])


def _pair_one(trace: Trace, region: Region, losses: _Losses) -> tuple[I64, I64, PairCounts]:
    """(entry record, leave record) of each interval of one region, and the counts."""
    enters = trace.site == region.enter
    chosen = np.flatnonzero(enters | (trace.site == region.leave))
    if len(chosen) == 0:
        return chosen, chosen, PairCounts(0, 0, 0, 0, 0, 0, 0, 0, 0)
    group = losses.segment[chosen]
    if not trace.rows.exact.all():
        loose = ~trace.rows.exact[trace.row[chosen]]
        if loose.any():
            chosen = chosen[_alternate(group, trace.time[chosen], enters[chosen], loose)]
    is_open = enters[chosen]
    a, b = _partners(group, is_open, region.pairing)
    opened, closed = chosen[a], chosen[b]
    n_open, n = int(is_open.sum()), len(opened)
    broken = edges = 0
    if 2 * n < len(chosen):
        alone = np.ones(len(chosen), np.bool_)
        alone[a] = alone[b] = False
        explained = np.where(is_open, losses.after[chosen], losses.before[chosen])
        first = starts_of(trace.row[chosen])
        edge = np.where(is_open, np.append(first[1:], True), first) & alone & ~explained
        broken, edges = int((alone & explained).sum()), int(edge.sum())
    counts = PairCounts(n_open, len(chosen) - n_open, n, n_open - n, len(chosen) - n_open - n, broken, edges,
                        int((trace.time[closed] < trace.time[opened]).sum()),
                        int(starts_of(np.sort(trace.row[opened], kind="stable")).sum()))
    return opened, closed, counts


def _partners(group: I64, is_open: Bools, pairing: str) -> tuple[I64, I64]:
    """Places of the entries and of their leaves among the boundaries of one region."""
    together = group[1:] == group[:-1]
    if not (together & (is_open[1:] == is_open[:-1])).any():
        # Entries and leaves alternate, as they do without recursion and losses: neighbours are partners.
        place = np.flatnonzero(together & is_open[:-1])
        return place, place + 1
    depth, orphan = _depth_after(group, np.where(is_open, 1, -1))
    # Entry and leave of one pair get the same key: their nesting level, or their rank among their kind.
    key = depth + ~is_open if pairing == "nested" else _ranks(group, is_open, ~orphan)
    valid = np.flatnonzero(~orphan)
    order = valid[ordering(group[valid], key[valid])]
    a, b = order[:-1], order[1:]
    match = is_open[a] & ~is_open[b] & (group[a] == group[b]) & (key[a] == key[b])
    return a[match], b[match]


def _depth_after(group: I64, step: I64) -> tuple[I64, Bools]:
    """(depth after each step, steps that would go below 0), each group starting at 0 and held at 0."""
    total = np.cumsum(step)
    first = np.r_[True, group[1:] != group[:-1]]
    number = np.cumsum(first) - 1
    base = (total - step)[first]
    within = total - base[number]
    # One running minimum serves all groups: each group is shifted below everything the earlier ones reached.
    shift = number * (int(np.abs(step).sum()) + 1)
    low = np.minimum.accumulate(np.minimum(within, 0) - shift) + shift
    previous = np.r_[0, low[:-1]]
    previous[first] = 0
    return within - low, low < previous


def _ranks(group: I64, is_open: Bools, valid: Bools) -> I64:
    """Rank of each valid step among the valid steps of its kind within its group."""
    rank = np.zeros(len(group), np.int64)
    first = np.r_[True, group[1:] != group[:-1]]
    number = np.cumsum(first) - 1
    for kind in (is_open & valid, ~is_open & valid):
        count = np.cumsum(kind)
        base: I64 = (count - kind)[first]
        rank[kind] = (count - base[number])[kind]
    return rank


def _alternate(group: I64, time: I64, is_open: Bools, loose: Bools) -> I64:
    """Order in which boundaries with equal times and unknown order alternate, starting with what fits the
    depth.
    """
    n = len(group)
    first = np.r_[True, (group[1:] != group[:-1]) | (time[1:] != time[:-1])]
    tie = np.cumsum(first) - 1
    net = np.bincount(tie, np.where(is_open, 1, -1)).astype(np.int64)
    tie_group = group[first]
    depth, _ = _depth_after(tie_group, net)
    before = np.r_[0, depth[:-1]]
    before[np.r_[True, tie_group[1:] != tie_group[:-1]]] = 0
    rank = _ranks(tie, is_open, np.ones(n, np.bool_))
    second = is_open == (before[tie] > 0)
    key = np.where(loose, 2 * rank + second, np.arange(n))
    return np.lexsort((key, tie))


def _depths(row: I64, start: I64, end: I64) -> I32:
    """How many intervals of the row that come earlier in the order are still open at each start."""
    n = len(row)
    if n == 0 or bool(((row[1:] != row[:-1]) | (start[1:] >= end[:-1])).all()):
        return np.zeros(n, np.int32)
    low, high = int(start.min()), int(end.max())
    if (int(row.max()) + 1) * (high - low + 1) < 1 << 62:
        scale, a, b = high - low + 1, start - low, end - low
    else:
        times, rank = np.unique(np.concatenate([start, end]), return_inverse=True)
        rank = rank.reshape(-1).astype(np.int64)
        scale, a, b = len(times), rank[:n], rank[n:]
    key = row * scale + a
    ended = np.searchsorted(np.sort(row * scale + b), key, side="right")
    # Intervals of no length that begin here, this one and later ones, have "ended" too but came no earlier.
    instant = np.r_[0, np.cumsum(a == b)]
    ended -= instant[np.searchsorted(key, key, side="right")] - instant[:-1]
    depth: I32 = (np.arange(n) - ended).astype(np.int32)
    return depth
