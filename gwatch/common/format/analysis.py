"""Records and intervals to tables: pure, vectorised, and free of NaN.

The key names are those of the report format (see README.md in this folder); what is new has a key of its own.
Durations and times are in the trace's unit ("ns" or "cyc"). Percentiles are nearest-rank: always a value that
was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I32, I64, row_parts, starts_of
from gwatch.common.format.records import Trace
from gwatch.common.format.regions import Intervals, PairCounts, Region

CONCURRENCY_BINS = 60
LONGEST_BUBBLES = 5
BUBBLIEST = 3
# Up to here a pass over all records for each site is faster than sorting them.
_FEW_SITES = 24


@dataclass(frozen=True, slots=True)
class Coverage:
    """Stretches of a row covered by at least one interval, and the holes between them; ordered by (row,
    start).
    """

    row: I64
    start: I64
    end: I64
    first: I64
    """Index of the interval that opens the stretch."""
    last: I64
    """Index of the interval that ends last in it."""


def scope_labels(regions: Sequence[Region]) -> list[str]:
    """Scope names, sorted, each once."""
    return sorted({region.label for region in regions})


def scope_of(intervals: Intervals, regions: Sequence[Region], labels: Sequence[str]) -> I32:
    """Per interval, the index of its scope in ``labels``."""
    index = {label: i for i, label in enumerate(labels)}
    table = np.array([index[region.label] for region in regions], np.int32)
    return table[intervals.region] if len(table) else np.zeros(len(intervals), np.int32)


def percentile(ordered: NDArray[Any], share: float) -> int:
    """Nearest-rank percentile of a sorted, non-empty array."""
    return int(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])


def distribution(values: NDArray[Any]) -> dict[str, Any]:
    """min, p25, p50, mean, p75, p95, max, total of a non-empty array."""
    v = np.sort(values)
    total = int(v.sum())
    return {"min": int(v[0]), "p25": percentile(v, 0.25), "p50": percentile(v, 0.50), "mean": total / len(v),
            "p75": percentile(v, 0.75), "p95": percentile(v, 0.95), "max": int(v[-1]), "total": total}


def scope_stats(intervals: Intervals, scope: I32, labels: Sequence[str]) -> list[dict[str, Any]]:
    """One entry per scope that ran, by total time, largest first; ``lanes`` counts the rows that ran it."""
    durations: list[list[I64]] = [[] for _ in labels]
    lanes = [0] * len(labels)
    for part in row_parts(intervals.row):
        row, of, duration = intervals.row[part], scope[part], intervals.end[part] - intervals.start[part]
        for i in range(len(labels)):
            mine = np.flatnonzero(of == i)
            durations[i].append(duration[mine])
            lanes[i] += int(starts_of(row[mine]).sum())
    stats = [{"scope_label": label, "count": sum(map(len, durations[i])), "lanes": lanes[i],
              **distribution(np.concatenate(durations[i]))} for i, label in enumerate(labels) if lanes[i]]
    stats.sort(key=lambda s: (-s["total"], s["scope_label"]))
    return stats


def site_stats(trace: Trace) -> list[dict[str, Any]]:
    """One entry per site that recorded; ``repeat_*`` is the time between one row's consecutive firings.

    Firings with lost records between them give no repeat time; ``repeat_*`` is None when none is left.
    """
    stats: dict[int, _Firings] = {}
    for part in row_parts(trace.row):
        some = trace.part(part)
        segment = np.cumsum(some.gap) if some.gap.any() else None
        for site, mine in _by_site(some.site):
            row, time = some.row[mine], some.time[mine]
            follows = row[1:] == row[:-1]
            if segment is not None:
                stretch = segment[mine]
                follows &= stretch[1:] == stretch[:-1]
            repeat = (time[1:] - time[:-1])[follows]
            stats.setdefault(site, _Firings()).add(len(mine), int(starts_of(row).sum()), time, repeat)
    return [{"site_id": site, **stats[site].as_dict()} for site in sorted(stats)]


def site_steps(trace: Trace) -> list[dict[str, Any]]:
    """Per site with a next record: ``count``, ``mean`` and ``total`` of the times from its records to the next ones of
    their rows, whatever sites those are, and its ``share`` of all such time; by site.

    A step over lost records is nobody's: what ran there is not known. The rest adds up to what the rows recorded.
    """
    follows = np.flatnonzero((trace.row[1:] == trace.row[:-1]) & ~trace.gap[1:])
    sites, index = np.unique(trace.site[follows], return_inverse=True)
    index = index.reshape(-1)
    total = np.zeros(len(sites), np.int64)
    np.add.at(total, index, trace.time[follows + 1] - trace.time[follows])
    counts, whole = np.bincount(index, minlength=len(sites)), int(total.sum())
    return [{"site_id": site, "count": n, "mean": spent / n, "total": spent, "share": spent / whole if whole else 0.0}
            for site, n, spent in zip(sites.tolist(), counts.tolist(), total.tolist(), strict=True)]


@dataclass(slots=True)
class _Firings:
    """What is known of a site's firings so far."""

    count: int = 0
    rows: int = 0
    times: list[int] = field(default_factory=list)
    repeats: int = 0
    repeat_total: int = 0
    repeat: list[int] = field(default_factory=list)

    def add(self, count: int, rows: int, time: I64, repeat: I64) -> None:
        """Firings of rows that were not seen before."""
        self.count += count
        self.rows += rows
        self.times += (int(time.min()), int(time.max()))
        if len(repeat):
            self.repeats += len(repeat)
            self.repeat_total += int(repeat.sum())
            self.repeat += (int(repeat.min()), int(repeat.max()))

    def as_dict(self) -> dict[str, Any]:
        return {"count": self.count, "rows": self.rows, "records_per_row": self.count / self.rows,
                "t_first": min(self.times), "t_last": max(self.times),
                "repeat_min": min(self.repeat, default=None),
                "repeat_mean": self.repeat_total / self.repeats if self.repeats else None,
                "repeat_max": max(self.repeat, default=None)}


def _by_site(site: I32) -> Iterator[tuple[int, I64]]:
    """Each site that recorded, and its records in order."""
    if site.min() >= 0 and site.max() < _FEW_SITES:
        for number in np.flatnonzero(np.bincount(site)):
            yield int(number), np.flatnonzero(site == number)
        return
    order = np.argsort(site, kind="stable")
    starts = np.flatnonzero(starts_of(site[order]))
    for begin, end in zip(starts, np.append(starts, len(order))[1:], strict=True):
        yield int(site[order[begin]]), order[begin:end]


def region_stats(regions: Sequence[Region], counts: Sequence[PairCounts]) -> list[dict[str, Any]]:
    """One entry per region; ``dropped`` counts the boundary records left without a partner."""
    return [{"label": r.label, "enter_site": r.enter, "leave_site": r.leave, "pairing": r.pairing,
             "intervals": c.intervals, "rows": c.rows, "dropped": c.lost_leaves + c.orphan_leaves,
             "lost_leaves": c.lost_leaves, "orphan_leaves": c.orphan_leaves, "broken_by_drops": c.broken,
             "at_edges": c.edges, "backwards": c.backwards, "pair_rate": c.pair_rate}
            for r, c in zip(regions, counts, strict=True)]


def coverage(intervals: Intervals) -> Coverage:
    """Merge each row's intervals into the stretches where at least one of them runs."""
    parts = [_coverage(intervals.row[part], intervals.start[part], intervals.end[part], part.start)
             for part in row_parts(intervals.row)]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [np.zeros(0, np.int64)] * 5
    return Coverage(*columns)


def _coverage(row: I64, start: I64, stop: I64, offset: int) -> tuple[I64, I64, I64, I64, I64]:
    """The columns of :class:`Coverage` for some rows, whose first interval is number ``offset``."""
    n = len(row)
    low = int(start.min())
    span = int(stop.max()) - low + 1
    if int(row.max() + 1) * span < 1 << 62:
        scale, end = span, stop - low
        begin = start - low
    else:
        times, rank = np.unique(np.concatenate([start, stop]), return_inverse=True)
        rank = rank.reshape(-1).astype(np.int64)
        scale, begin, end = len(times), rank[:n], rank[n:]
    # Rows are stacked on one axis, so that one running maximum never reaches into the next row.
    level = row * scale
    end += level
    reach = np.maximum.accumulate(end)
    opens = np.ones(n, np.bool_)
    opens[1:] = (row[1:] != row[:-1]) | ((begin + level)[1:] > reach[:-1])
    first = np.flatnonzero(opens)
    after = np.append(first[1:], n)
    reaches = np.flatnonzero(end == np.repeat(reach[after - 1], after - first))
    stretch = np.searchsorted(first, reaches, "right") - 1
    last = np.empty(len(first), np.int64)
    last[stretch] = reaches
    return row[first], start[first], stop[last], first + offset, last + offset


def pipeline(cover: Coverage, trace: Trace, extent: tuple[int, int]) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """(pipeline_summary, per-row table of active, bubble, lifetime for rows with intervals: columns row
    first).

    A row lives from its first to its last record, in scopes or not, as far as that lies in ``extent``.
    """
    if len(cover.row) == 0:
        return {}, np.zeros((0, 4), np.int64)
    lo = np.flatnonzero(starts_of(cover.row))
    rows = cover.row[lo]
    active = np.add.reduceat(cover.end - cover.start, lo)
    starts = np.searchsorted(trace.row, np.arange(len(trace.rows)))
    first, last = np.minimum.reduceat(trace.time, starts)[rows], np.maximum.reduceat(trace.time, starts)[rows]
    lifetime = np.minimum(last, extent[1]) - np.maximum(first, extent[0])
    bubble = lifetime - active
    table = np.stack([rows, active, bubble, lifetime], axis=1)
    share = np.divide(bubble, lifetime, out=np.zeros(len(rows)), where=lifetime > 0)
    top = np.lexsort((rows, -bubble, -share))[:BUBBLIEST]
    summary: dict[str, Any] = {"n_threads": len(rows)}
    for name, values in (("active", active), ("bubble", bubble), ("lifetime", lifetime)):
        summary |= {f"{name}_mean": float(values.mean()), f"{name}_min": int(values.min()),
                    f"{name}_max": int(values.max())}
    total = int(lifetime.sum())
    summary["bubble_ratio"] = int(bubble.sum()) / total if total else 0.0
    summary["top_bubbliest"] = [
        {"tid": int(trace.rows.tid[rows[i]]), "row": int(rows[i]), "bubble": int(bubble[i]),
         "active": int(active[i]), "lifetime": int(lifetime[i])} for i in top]
    return summary, table


def longest_bubbles(cover: Coverage, scope: I32, labels: Sequence[str], trace: Trace,
                    limit: int = LONGEST_BUBBLES) -> list[dict[str, Any]]:
    """The widest holes between two covered stretches of one row, with the scopes on both sides."""
    if len(cover.row) < 2:
        return []
    gap = np.where(cover.row[1:] == cover.row[:-1], cover.start[1:] - cover.end[:-1], 0)
    order = np.lexsort((np.arange(len(gap)), -gap))[:limit]
    return [{"tid": int(trace.rows.tid[cover.row[i]]), "row": int(cover.row[i]),
             "before": labels[scope[cover.last[i]]], "after": labels[scope[cover.first[i + 1]]],
             "gap": int(gap[i]), "start": int(cover.end[i])} for i in order if gap[i] > 0]


def concurrency(cover: Coverage, t_min: int, t_max: int, bins: int = CONCURRENCY_BINS) -> dict[str, Any]:
    """How many rows are active in each of ``bins`` equal slices of [t_min, t_max]; a row counts once per
    slice.
    """
    span = t_max - t_min
    if len(cover.row) == 0:
        return {"bins": [0] * bins, "peak": 0, "span": span}
    scale = bins / span if span else 0.0
    lo = np.minimum(((cover.start - t_min) * scale).astype(np.int64), bins - 1)
    hi = np.minimum(((cover.end - t_min) * scale).astype(np.int64), bins - 1)
    # A row's next stretch may begin in the slice where the last one ended.
    follows = np.r_[False, cover.row[1:] == cover.row[:-1]]
    lo = np.where(follows, np.maximum(lo, np.r_[0, hi[:-1]] + 1), lo)
    keep = lo <= hi
    steps = np.bincount(lo[keep], minlength=bins + 1) - np.bincount(hi[keep] + 1, minlength=bins + 1)
    counts = np.cumsum(steps)[:bins]
    return {"bins": counts.tolist(), "peak": int(counts.max()), "span": span}


def row_roles(intervals: Intervals, scope: I32, labels: Sequence[str], roles: Mapping[str, str],
              n_rows: int) -> tuple[list[str], I32]:
    """(role names in label order, per row the index of the role it spends most time in; -1 without any)."""
    names = list(dict.fromkeys(roles[label] for label in labels if label in roles))
    result = np.full(n_rows, -1, np.int32)
    if not names or len(intervals) == 0:
        return names, result
    table = np.array([names.index(roles[label]) if label in roles else -1 for label in labels], np.int64)
    role = table[scope]
    known = role >= 0
    place = intervals.row[known] * len(names) + role[known]
    weights = (intervals.end - intervals.start)[known] + 1.0
    spent = np.bincount(place, weights, minlength=n_rows * len(names)).reshape(n_rows, len(names))
    found = spent.max(axis=1) > 0
    result[found] = spent.argmax(axis=1)[found]
    return names, result
