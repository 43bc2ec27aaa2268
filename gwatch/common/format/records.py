"""A trace as columns: who recorded (rows), what (site, value), when (time), and where records are missing.

Everything downstream (pairing, analysis, JSON, HTML, text) reads a :class:`Trace`; nothing walks records in
Python. A *row* is one thread, or one warp for records of warp-level sites. Records are ordered by row, then
by the order in which the row made them. ``gap[i]`` says that records were lost in the row right before
record i, so that nothing may be concluded across that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import (
    I32,
    I64,
    WARP,
    Bools,
    find_losses,
    is_ordered,
    nothing_lost,
    ordering,
    place_losses,
    starts_of,
)
from gwatch.errors import TraceError

U64 = NDArray[np.uint64]
TIME_LIMIT = 1 << 62
"""Times, sequence numbers and ids stay below this, so that differences of two of them fit 64 bits."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One entry per row (R rows), ordered by block, warp, then lane (warp rows first)."""

    tid: I64
    """Global id: linear block × block size + linear thread, or linear warp × 32 for a warp row."""
    block: I64
    """Linear block index."""
    warp: I32
    """Warp index within the block."""
    lane: I32
    """Lane within the warp; -1 for a warp row."""
    smid: I32
    """SM that ran the row; -1 when unknown."""
    dropped: I64
    """Records known to be lost in this row."""
    tail_gap: Bools
    """True where records were lost after the row's last kept one."""
    origin: I64
    """What was taken off this row's raw times (per-SM clocks only, else 0)."""
    exact: Bools
    """True where the order of records with equal times is known (from one lane's sequence numbers)."""

    def __len__(self) -> int:
        return len(self.tid)


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns of N records, ordered by (row, order of execution); times in ``unit``."""

    rows: Rows
    row: I64
    site: I32
    time: I64
    value: U64
    sequence: I64
    """Number of the record among those its lane made; -1 when not recorded."""
    lane: I32
    """Lane that stored the record; -1 when unknown."""
    gap: Bools

    def __len__(self) -> int:
        return len(self.time)

    def part(self, part: slice) -> Trace:
        """Some of the records, as views, beside all rows."""
        return Trace(self.rows, self.row[part], self.site[part], self.time[part], self.value[part],
                     self.sequence[part], self.lane[part], self.gap[part])


@dataclass(frozen=True, slots=True)
class Geometry:
    """Launch shape: grid and block dimensions as (x, y, z).

    Raises TraceError ``[bad-dimension]`` for a launch beyond what threads can be numbered for.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def __post_init__(self) -> None:
        if self.blocks * (self.block_size + WARP) * (WARP + 1) >= TIME_LIMIT:
            raise TraceError("bad-dimension", f"a grid of {self.grid} blocks of {self.block} threads is no launch")

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def block_size(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps_per_block(self) -> int:
        return max(1, -(-self.block_size // WARP))


def triple(dim: Any, name: str) -> tuple[int, int, int]:
    """(x, y, z) of a launch dimension given as an int or 1 to 3 ints; missing ones are 1.

    Raises TraceError ``[bad-dimension]``.
    """
    if dim is None:
        return (1, 1, 1)
    try:
        items = [int(i) for i in ([dim] if isinstance(dim, (int, np.integer)) else dim)]
    except (TypeError, ValueError, OverflowError):
        items = []
    if not 1 <= len(items) <= 3 or min(items) < 1:
        raise TraceError("bad-dimension", f"{name} is {dim!r}", "give one to three positive integers")
    x, y, z = [*items, 1, 1][:3]
    return (x, y, z)


def from_records(records: NDArray[Any], geometry: Geometry, warp_sites: Iterable[int] = (),
                 lost_after: Mapping[tuple[int, int], int] | None = None) -> Trace:
    """Columns of a structured record array.

    ``records`` needs the fields ``site`` and ``time``, the block (``block`` as sub-array or struct, or
    ``block_x``, ``block_y``, ``block_z``) with ``thread`` or ``warp``, or a launch-wide ``warp``. ``lane``,
    ``sequence`` (from 0 per lane), ``value`` and ``smid`` are used when present. Records belong to the warp
    where the field ``warp_level`` says so or their site is one of ``warp_sites``. Losses are read off the
    sequence numbers; ``lost_after`` maps (launch-wide warp, lane) to the number of records lost after its
    last kept one.

    Raises TraceError ``[bad-records]`` when fields are missing or contradict the launch geometry.
    """
    names = records.dtype.names or ()
    for name in ("site", "time"):
        if name not in names:
            raise TraceError("bad-records", f"records have no field {name!r} (fields: {', '.join(names)})")
    columns = _copied(records, names, geometry)
    n = len(records)

    def column(name: str, dtype: Any, default: int) -> NDArray[Any]:
        if name in columns:
            return columns[name]
        return np.full(n, default, dtype) if default else np.zeros(n, dtype)

    site, is_warp = columns["site"], column("warp_level", np.bool_, 0)
    of_warps = np.fromiter(warp_sites, np.int64, -1)
    if len(of_warps):
        is_warp = is_warp | np.isin(site, of_warps)
    return build(site, columns["time"], column("value", np.uint64, 0), column("sequence", np.int64, -1),
                 column("smid", np.int32, -1), columns["warp"], columns["lane"], is_warp, geometry, lost_after)


_FIELDS: dict[str, Any] = {"site": np.int32, "time": np.int64, "value": np.uint64, "sequence": np.int64,
                           "smid": np.int32, "warp_level": np.bool_}
_PART = 1 << 14


def _copied(records: NDArray[Any], names: Sequence[str], geometry: Geometry) -> dict[str, NDArray[Any]]:
    """The fields of ``records`` that tell something, as columns; "warp" is launch-wide, and it and "lane" are always
    there.

    Copied in parts that fit the cache: a record is read from memory once, not once a field.
    """
    if "thread" not in names and "warp" not in names:
        raise TraceError("bad-records", "records name neither warp nor thread")
    in_block = "block" in names or "block_x" in names
    if not in_block and "warp" not in names:
        raise TraceError("bad-records", "records name neither block nor warp")
    # Counted within the block or over the launch: in block 0, the only doubt, both are the same.
    launch_wide = "warp" in names and len(records) > 0 and int(records["warp"].max()) >= geometry.warps_per_block
    wanted = {name: dtype for name, dtype in _FIELDS.items() if name in names}
    columns = {name: np.empty(len(records), dtype) for name, dtype in wanted.items()}
    columns["warp"], columns["lane"] = np.empty(len(records), np.int64), np.empty(len(records), np.int32)
    for begin in range(0, len(records), _PART):
        part = slice(begin, begin + _PART)
        some = records[part]
        for name in wanted:
            columns[name][part] = some[name]
        columns["lane"][part] = some["lane"] if "lane" in names else np.maximum(some["thread"] % WARP, 0)
        warp = some["warp"].astype(np.int64) if "warp" in names else some["thread"].astype(np.int64) // WARP
        if in_block:
            before = _blocks(some, names, geometry) * geometry.warps_per_block
            inside = warp - before if launch_wide else warp
            if inside.min() < 0 or inside.max() >= geometry.warps_per_block:
                raise TraceError("bad-records", f"a warp is outside its block of {geometry.block_size} threads")
            warp = before + inside
        columns["warp"][part] = warp
    return columns


def _blocks(records: NDArray[Any], names: Sequence[str], geometry: Geometry) -> I64:
    """Linear block index of each record."""
    if "block_x" in names:
        parts = [records[name].astype(np.int64) for name in ("block_x", "block_y", "block_z")]
    elif records["block"].dtype.names:
        parts = [records["block"][name].astype(np.int64) for name in ("x", "y", "z")]
    elif records["block"].ndim == 2:
        parts = [records["block"][:, i].astype(np.int64) for i in range(3)]
    else:
        return np.asarray(records["block"], np.int64)
    for part, size in zip(parts, geometry.grid, strict=True):
        if len(part) and (part.min() < 0 or part.max() >= size):
            raise TraceError("bad-records", f"a record's block is outside the grid {geometry.grid}")
    gx, gy, _ = geometry.grid
    return np.asarray(parts[0] + gx * (parts[1] + gy * parts[2]), np.int64)


def from_rows(results: Sequence[Mapping[str, Any]], geometry: Geometry, warp_granularity: bool) -> Trace:
    """Columns of the row form ``{global_tid, site_id, value, timestamp[, smid][, sequence]}``.

    Raises TraceError ``[bad-records]`` naming the first record that lacks a key or holds no number.
    """
    n = len(results)
    tid = _column(results, "global_tid", np.int64)
    site = _column(results, "site_id", np.int32)
    time = _column(results, "timestamp", np.int64)
    value = _column(results, "value", np.uint64, 0)
    smid = _column(results, "smid", np.int32, -1)
    sequence = _column(results, "sequence", np.int64, -1)
    if warp_granularity:
        warp, lane = tid // WARP, np.zeros(n, np.int32)
    else:
        block, thread = np.divmod(tid, max(1, geometry.block_size))
        warp = block * geometry.warps_per_block + thread // WARP
        lane = (thread % WARP).astype(np.int32)
    is_warp = np.full(n, warp_granularity)
    return build(site, time, value, sequence, smid, warp, lane, is_warp, geometry, None)


def _column(results: Sequence[Mapping[str, Any]], key: str, dtype: Any,
            default: int | None = None) -> NDArray[Any]:
    try:
        if default is None:
            return np.fromiter((index(r[key]) for r in results), dtype, len(results))
        return np.fromiter((default if r.get(key) is None else index(r[key]) for r in results), dtype,
                           len(results))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        for i, r in enumerate(results):
            found = r.get(key, default) if isinstance(r, Mapping) else r
            if isinstance(found, bool) or not isinstance(found, (int, np.integer)):
                raise TraceError("bad-records", f"trace_results[{i}]: {key} is {found!r}") from None
        raise TraceError("bad-records", f"trace_results: a {key} does not fit {np.dtype(dtype)}") from None


def build(site: I32, time: I64, value: U64, sequence: I64, smid: I32, warp: I64, lane: I32, is_warp: Bools,
          geometry: Geometry, lost_after: Mapping[tuple[int, int], int] | None) -> Trace:
    """Sort into rows and mark the losses; all columns have one entry per record in any order.

    Raises TraceError ``[bad-records]`` for times, sequence numbers or ids beyond :data:`TIME_LIMIT`.
    """
    n = len(time)
    for name, values, times in (("time", time, 1), ("sequence number", sequence, 1), ("thread id", warp, WARP)):
        if n and not (int(values.min()) * times > -TIME_LIMIT and int(values.max()) * times < TIME_LIMIT):
            raise TraceError("bad-records", f"a {name} of the records is out of range")
    if n and (warp.min() < 0 or lane.min() < 0 or lane.max() >= WARP):
        raise TraceError("bad-records", "a warp or lane of the records is out of range")
    ordered = bool(n == 0 or sequence.min() >= 0)
    # Warp rows of a warp sort before its threads' rows.
    row_key = warp * (WARP + 1)
    row_key += lane
    row_key += 1
    some_warp = bool(is_warp.any())
    if some_warp:
        row_key[is_warp] = warp[is_warp] * (WARP + 1)
    # A lane's own numbers order its records; lanes that take turns for their warp share only the clock.
    turns = is_warp & _several_lanes(row_key, lane) if some_warp and ordered else np.zeros(n, np.bool_)
    by_time = turns | (not ordered)
    keys = (row_key, np.where(by_time, time, sequence), sequence) if by_time.any() else (row_key, sequence)
    order = None if is_ordered(*keys) else ordering(*keys)

    def arranged(column: NDArray[Any]) -> NDArray[Any]:
        return column if order is None else column[order]

    row_key = arranged(row_key)
    first = starts_of(row_key)
    rows = _rows(row_key[first], geometry)
    row: I64 = np.cumsum(first, dtype=np.int64)
    row -= 1
    gap, tail, lost = np.zeros(n, np.bool_), np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int64)
    if ordered:
        ring = warp * WARP
        ring += lane
        if lost_after or not nothing_lost(ring, sequence):
            gap, tail, lost = place_losses(find_losses(ring, sequence, lost_after), order, row, len(rows), ring, time,
                                           is_warp)
    exact = np.full(len(rows), ordered)
    if turns.any():
        exact[row[arranged(turns)]] = False
    rows = replace(rows, smid=arranged(smid)[first], dropped=lost, tail_gap=tail, exact=exact)
    return Trace(rows, row, arranged(site), arranged(time), arranged(value), arranged(sequence), arranged(lane), gap)


def _several_lanes(row_key: I64, lane: I32) -> Bools:
    """Per record: does its row hold records of more than one lane?"""
    order = ordering(row_key)
    keys, lanes = row_key[order], lane[order]
    first = starts_of(keys)
    starts = np.flatnonzero(first)
    mixed = np.minimum.reduceat(lanes, starts) != np.maximum.reduceat(lanes, starts)
    result = np.empty(len(keys), np.bool_)
    result[order] = mixed[np.cumsum(first) - 1]
    return result


def row_ids(block: I64, warp: NDArray[Any], lane: NDArray[Any], geometry: Geometry) -> I64:
    """Global ids of rows: of the thread, or of the warp × 32 where ``lane`` is -1; ``warp`` is in its
    block.
    """
    thread = block * geometry.block_size + warp * WARP + lane
    ids: I64 = np.where(lane < 0, (block * geometry.warps_per_block + warp) * WARP, thread).astype(np.int64)
    return ids


def _rows(keys: I64, geometry: Geometry) -> Rows:
    warp, who = np.divmod(keys, WARP + 1)
    block, in_block = np.divmod(warp, geometry.warps_per_block)
    lane = who - 1
    zeros = np.zeros(len(keys), np.int64)
    no = np.zeros(len(keys), np.bool_)
    return Rows(row_ids(block, in_block, lane, geometry), block, in_block.astype(np.int32),
                lane.astype(np.int32), zeros.astype(np.int32), zeros, no, zeros, no)


def rebase_per_sm(trace: Trace) -> Trace:
    """Times of per-SM cycle counters, each SM (or block, where the SM is unknown) made to start at 0.

    Counters of different SMs have unrelated origins; within one SM all differences stay exact.
    """
    if len(trace) == 0:
        return trace
    rows = trace.rows
    known = bool((rows.smid >= 0).all())
    group = rows.smid.astype(np.int64) if known else rows.block
    _, index = np.unique(group, return_inverse=True)
    index = index.reshape(-1)
    low = np.full(int(index.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(low, index[trace.row], trace.time)
    origin = low[index]
    return replace(trace, rows=replace(rows, origin=origin), time=trace.time - origin[trace.row])
