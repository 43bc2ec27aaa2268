"""Where records are missing: holes in the lanes' numbers, and what they mean for threads and for warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.errors import TraceError

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

WARP = 32
_PART = 1 << 15


def is_ordered(*keys: NDArray[Any]) -> bool:
    """Are the entries in the order of the keys, most significant first?"""
    settled: Bools | None = None
    for key in keys:
        ahead, behind = key[:-1], key[1:]
        falls = behind < ahead
        if settled is not None:
            np.greater(falls, settled, out=falls)
        if falls.any():
            return False
        rises = np.greater(behind, ahead, out=falls)
        settled = rises if settled is None else np.logical_or(settled, rises, out=settled)
        if settled.all():
            break
    return True


def ordering(*keys: NDArray[Any]) -> I64:
    """Indices that sort by the keys, most significant first; costs one pass where they are sorted already."""
    return np.arange(len(keys[0])) if is_ordered(*keys) else _sorting(keys)


def _sorting(keys: tuple[NDArray[Any], ...]) -> I64:
    """Stable sort by several integer keys, as one number where they fit: much faster on nearly sorted data."""
    room, combined = 1, np.zeros(len(keys[0]), np.int64)
    for key in reversed(keys):
        low, high = int(key.min()), int(key.max())
        if room * (high - low + 1) >= 1 << 62:
            return np.lexsort(keys[::-1])
        combined += (key.astype(np.int64) - low) * room
        room *= high - low + 1
    return np.argsort(combined, kind="stable")


def starts_of(values: NDArray[Any]) -> Bools:
    """Where a sorted or grouped column begins a new value."""
    first = np.ones(len(values), np.bool_)
    first[1:] = values[1:] != values[:-1]
    return first


def row_parts(row: I64, size: int = 1 << 16) -> Iterator[slice]:
    """Whole rows of a sorted column, about ``size`` entries at a time: what is worked out part by part stays in the
    cache and takes no fresh memory."""
    begin = 0
    while begin < len(row):
        end = min(begin + size, len(row))
        end += int(np.searchsorted(row[end:], row[end - 1], "right"))
        yield slice(begin, end)
        begin = end


@dataclass(frozen=True, slots=True)
class LaneLosses:
    """Per record, in the order given: how many records its lane lost around it."""

    before: I64
    """Lost right before it."""
    after: I64
    """Lost after it; only at the last record of a lane."""
    previous: I64
    """Index of the lane's record before it; -1 at its first."""


def nothing_lost(ring: I64, sequence: I64) -> bool:
    """Are the records in order and does every lane's numbering run from 0 without a hole?"""
    if not is_ordered(ring, sequence):
        return False
    for begin in range(0, len(ring), _PART):
        r, s = ring[max(0, begin - 1) : begin + _PART], sequence[max(0, begin - 1) : begin + _PART]
        if begin == 0 and len(s) and s[0] != 0:
            return False
        if (s[1:] != np.where(r[1:] == r[:-1], s[:-1] + 1, 0)).any():
            return False
    return True


def find_losses(ring: I64, sequence: I64, lost_after: Mapping[tuple[int, int], int] | None) -> LaneLosses:
    """Losses of every lane; ``ring`` is launch-wide warp × 32 + lane.

    A lane numbers its records from 0, whatever sites they come from, so every hole in the numbers is a loss.
    ``lost_after`` maps (warp, lane) to what was lost after its last kept record.
    Raises TraceError ``[bad-records]`` when a lane has a number twice.
    """
    n = len(ring)
    before, after, previous = np.zeros(n, np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int64)
    if n == 0:
        return LaneLosses(before, after, previous)
    order = ordering(ring, sequence)
    r, s = ring[order], sequence[order]
    first = starts_of(r)
    hole = s.copy()
    hole[1:] -= np.where(first[1:], 0, s[:-1] + 1)
    if hole.min() < 0:
        at = int(r[np.argmin(hole)])
        raise TraceError("bad-records", f"lane {at % WARP} of warp {at // WARP} has one sequence number twice",
                         "give each launch a run of its own, or leave the field sequence out")
    before[order] = hole
    previous[order[1:]] = np.where(first[1:], -1, order[:-1])
    if lost_after:
        keys = np.array([warp * WARP + lane for warp, lane in lost_after], np.int64)
        counts = np.array(list(lost_after.values()), np.int64)
        last = order[np.append(first[1:], True)]
        found = np.searchsorted(ring[last], keys)
        known = (found < len(last)) & (ring[last][np.minimum(found, len(last) - 1)] == keys)
        after[last[found[known]]] = counts[known]
    return LaneLosses(before, after, previous)


class _Search:
    """Finds times within rows: all rows laid on one axis, one after another."""

    def __init__(self, row: I64, time: I64, starts: I64) -> None:
        self.starts = starts
        self.low = int(time.min())
        self.span = int(time.max()) - self.low + 2
        n_rows = len(starts) - 1
        if n_rows * self.span < 1 << 62:
            self.ranks = None
            value = time - self.low + 1
        else:
            self.ranks = np.unique(time)
            self.span = len(self.ranks) + 2
            value = np.searchsorted(self.ranks, time) + 1
        # A clock that falls back a little within a row must not undo the order that searching needs.
        self.axis = np.maximum.accumulate(row * self.span + value)

    def at(self, row: I64, time: I64, side: Any) -> I64:
        """Place in row ``row`` before (side "left") or after ("right") its records with that time."""
        value = time - self.low + 1 if self.ranks is None else np.searchsorted(self.ranks, time) + 1
        place = np.searchsorted(self.axis, row * self.span + value, side)
        return np.clip(place, self.starts[row], self.starts[row + 1])


def place_losses(losses: LaneLosses, order: I64 | None, row: I64, n_rows: int, ring: I64, time: I64,
                 is_warp: Bools) -> tuple[Bools, Bools, I64]:
    """(gap per ordered record, tail gap per row, lost records per row) from the losses per lane; ``order`` None: the
    records are in order.

    A hole in a lane's numbers concerns the lane's own row and its warp's row, because the lost record may have
    come from a thread-level or a warp-level site. In the warp's row the loss may lie anywhere between the
    lane's two neighbouring records, so every record of the row in that span is cut off from the one before it.
    """
    n, before, after = len(row), losses.before, losses.after
    gap, tail, lost = np.zeros(n, np.bool_), np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.int64)
    lossy = np.flatnonzero((before > 0) | (after > 0))
    if len(lossy) == 0:
        return gap, tail, lost
    order = np.arange(n) if order is None else order
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    row_of = row[place]
    np.add.at(lost, row_of[lossy], (before + after)[lossy])
    if not is_warp.any():
        gap[place[before > 0]] = True
        tail[row_of[after > 0]] = True
        return gap, tail, lost
    starts = np.searchsorted(row, np.arange(n_rows + 1))
    source = ring[order[starts[:-1]]]
    of_warp = np.zeros(n_rows, np.bool_)
    of_warp[row_of[is_warp]] = True
    search = _Search(row, time[order], starts)
    edges = np.zeros(n + 1, np.int64)
    for kind, keys in ((of_warp, ring[lossy] // WARP), (~of_warp, ring[lossy])):
        rows = np.flatnonzero(kind)
        names = source[rows] // WARP if kind is of_warp else source[rows]
        found = np.minimum(np.searchsorted(names, keys), max(0, len(names) - 1))
        known = names[found] == keys if len(names) else np.zeros(len(keys), np.bool_)
        _cut(losses, lossy[known], rows[found[known]] if len(names) else lossy[:0], place, row_of, time, search, edges,
             tail)
    gap[:] = np.cumsum(edges)[:-1] > 0
    return gap, tail, lost


def _cut(losses: LaneLosses, record: I64, target: I64, place: I64, row_of: I64, time: I64, search: _Search,
         edges: I64, tail: Bools) -> None:
    """Mark in ``edges`` (+1 at the first, -1 behind the last) the records of row ``target`` that may follow the
    losses around ``record``; pairs of equal length."""
    mine, high = row_of[record] == target, search.starts[target + 1]
    hit = losses.before[record] > 0
    i, r, own, end = record[hit], target[hit], mine[hit], high[hit]
    p = losses.previous[i]
    begin = np.where(p < 0, search.starts[r], np.where(row_of[p] == r, place[p] + 1, search.at(r, time[p], "left")))
    # The next record of another row than the one that tells of the loss may follow it as well.
    last = np.where(own, place[i] + 1, search.at(r, time[i], "right") + 1)
    tail[r[last > end]] = True
    _mark(edges, begin, np.minimum(last, end))
    hit = losses.after[record] > 0
    i, r, own, end = record[hit], target[hit], mine[hit], high[hit]
    tail[r] = True
    _mark(edges, np.where(own, place[i] + 1, search.at(r, time[i], "left")), end)


def _mark(edges: I64, begin: I64, end: I64) -> None:
    some = begin < end
    np.add.at(edges, begin[some], 1)
    np.add.at(edges, end[some], -1)
