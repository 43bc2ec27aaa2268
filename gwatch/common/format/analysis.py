"""Records and intervals to tables: pure, vectorised, and free of NaN.

The key names are those of the report format (see README.md in this folder); what is new has a key of its own.
Durations and times are in the trace's unit ("ns" or "cyc"). Percentiles are nearest-rank: always a value that
was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I32, I64, starts_of
from gwatch.common.format.records import Trace
from gwatch.common.format.regions import Intervals, PairCounts, Region

CONCURRENCY_BINS = 60
LONGEST_BUBBLES = 5
BUBBLIEST = 3


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
    order = np.argsort(scope.astype(np.uint16), kind="stable")
    bounds = np.searchsorted(scope[order], np.arange(len(labels) + 1))
    duration = intervals.end - intervals.start
    stats = []
    for i, label in enumerate(labels):
        mine = order[bounds[i]:bounds[i + 1]]
        if len(mine):
            stats.append({"scope_label": label, "count": len(mine),
                          "lanes": int(starts_of(intervals.row[mine]).sum()), **distribution(duration[mine])})
    stats.sort(key=lambda s: (-s["total"], s["scope_label"]))
    return stats


def site_stats(trace: Trace) -> list[dict[str, Any]]:
    """One entry per site that recorded; ``repeat_*`` is the time between one row's consecutive firings.

    Firings with lost records between them give no repeat time; ``repeat_*`` is None when none is left.
    """
    stats = []
    segment = np.cumsum(trace.gap, dtype=np.int64)
    # Sorting 16-bit numbers takes linear time, and site ids nearly always are.
    small = len(trace) and trace.site.min() >= 0 and trace.site.max() < 1 << 16
    order = np.argsort(trace.site.astype(np.uint16) if small else trace.site, kind="stable")
    sorted_sites = trace.site[order]
    starts = np.flatnonzero(starts_of(sorted_sites))
    ends = np.append(starts, len(order))[1:]
    for site, lo, hi in zip(sorted_sites[starts], starts, ends, strict=True):
        mine = order[lo:hi]
        row, time, seg = trace.row[mine], trace.time[mine], segment[mine]
        n_rows = int(starts_of(row).sum())
        repeat = (time[1:] - time[:-1])[(row[1:] == row[:-1]) & (seg[1:] == seg[:-1])]
        known = len(repeat) > 0
        stats.append({"site_id": int(site), "count": len(mine), "rows": n_rows,
                      "records_per_row": len(mine) / n_rows,
                      "t_first": int(time.min()), "t_last": int(time.max()),
                      "repeat_min": int(repeat.min()) if known else None,
                      "repeat_mean": float(repeat.mean()) if known else None,
                      "repeat_max": int(repeat.max()) if known else None})
    return stats


def region_stats(regions: Sequence[Region], counts: Sequence[PairCounts]) -> list[dict[str, Any]]:
    """One entry per region; ``dropped`` counts the boundary records left without a partner."""
    return [{"label": r.label, "enter_site": r.enter, "leave_site": r.leave, "pairing": r.pairing,
             "intervals": c.intervals, "rows": c.rows, "dropped": c.lost_leaves + c.orphan_leaves,
             "lost_leaves": c.lost_leaves, "orphan_leaves": c.orphan_leaves, "broken_by_drops": c.broken,
             "at_edges": c.edges, "backwards": c.backwards, "pair_rate": c.pair_rate}
            for r, c in zip(regions, counts, strict=True)]


def coverage(intervals: Intervals) -> Coverage:
    """Merge each row's intervals into the stretches where at least one of them runs."""
    n = len(intervals)
    none = np.zeros(0, np.int64)
    if n == 0:
        return Coverage(none, none, none, none, none)
    row, start = intervals.row, intervals.start
    low = int(start.min())
    span = int(intervals.end.max()) - low + 1
    if int(row.max() + 1) * span < 1 << 62:
        scale, end = span, intervals.end - low
        begin = start - low
    else:
        times, rank = np.unique(np.concatenate([start, intervals.end]), return_inverse=True)
        rank = rank.reshape(-1).astype(np.int64)
        scale, begin, end = len(times), rank[:n], rank[n:]
    # Rows are stacked on one axis, so that one running maximum never reaches into the next row.
    reach = np.maximum.accumulate(row * scale + end)
    opens = np.r_[True, (row[1:] != row[:-1]) | ((row * scale + begin)[1:] > reach[:-1])]
    first = np.flatnonzero(opens)
    stop = np.r_[first[1:], n]
    stretch = np.cumsum(opens) - 1
    reaches = np.flatnonzero(row * scale + end == reach[stop - 1][stretch])
    last = np.empty(len(first), np.int64)
    last[stretch[reaches]] = reaches
    return Coverage(row[first], start[first], intervals.end[last], first, last)


def pipeline(cover: Coverage, trace: Trace) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """(pipeline_summary, per-row table of active, bubble, lifetime for rows with intervals: columns row
    first).
    """
    if len(cover.row) == 0:
        return {}, np.zeros((0, 4), np.int64)
    lo = np.flatnonzero(starts_of(cover.row))
    rows = cover.row[lo]
    hi = np.r_[lo[1:], len(cover.row)] - 1
    active = np.add.reduceat(cover.end - cover.start, lo)
    lifetime = cover.end[hi] - cover.start[lo]
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
