"""Loops as pipelines: how regular a scope's iterations are, and how much slack lies between producer and consumer.

An *iteration* is the k-th interval of a scope in its row. Where a scope of one role and a scope of another run equally
often in a block, their k-th intervals are taken to belong together: ``slack`` is the time from the producer's k-th
end to the consumer's k-th start. It is a match by count, not by barrier: negative slack on many iterations says that
the two do not depend on each other that way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gwatch.common.format import analysis as tables
from gwatch.common.format.losses import I64, Bools, starts_of
from gwatch.common.format.run import Run
from gwatch.common.format.waits import dependences

LEAST = 3
"""Iterations in the median row that make a loop."""
TIGHT = 0.10
"""Median slack below this part of the consumer's period: it starts as soon as it can, the producer sets the pace."""
LOOSE = 0.50
"""Median slack above this part: what was produced lies waiting, the consumer sets the pace."""
CROSSED = 0.05
"""Pairs whose consumer starts before the producer ends in more than this part of the iterations are left out."""
PROLOGUE = 0.25
"""Up to this part of the iterations, the first ones do not count where most consumers start before the producer ends:
the pipeline fills, and a consumer that waits for the first data starts to wait before there can be any."""


def _ranks(row: I64) -> I64:
    """Place of each interval among its row's; rows are in order."""
    first = np.flatnonzero(starts_of(row))
    return np.arange(len(row)) - np.repeat(first, np.diff(np.append(first, len(row))))


def iteration_table(run: Run) -> list[dict[str, Any]]:
    """Per scope that loops, by total time: rows, iterations (median per row), period (start to start), in flight.

    ``first_p50``, ``steady_p50`` and ``last_p50`` are median durations of the rows' first, inner and last iterations;
    ``in_flight`` is the most iterations of the scope that one row had open at once.
    """
    result = []
    iv = run.intervals
    for s in run.analysis["scope_stats"]:
        mine = np.flatnonzero(run.scope == run.labels.index(s["scope_label"]))
        row, start, end = iv.row[mine], iv.start[mine], iv.end[mine]
        counts = np.bincount(row)
        counts = counts[counts > 0]
        typical = tables.percentile(np.sort(counts), 0.5)
        if typical < LEAST:
            continue
        rank = _ranks(row)
        same = row[1:] == row[:-1]
        period = np.sort((start[1:] - start[:-1])[same])
        length = end - start
        last = np.r_[~same, True]
        inner = (rank > 0) & ~last
        parts = {"first": rank == 0, "steady": inner if inner.any() else rank >= 0, "last": last}
        result.append({
            "scope_label": s["scope_label"], "role": run.roles.get(s["scope_label"], ""), "rows": len(counts),
            "iterations": typical, "period_p50": tables.percentile(period, 0.5),
            "period_p95": tables.percentile(period, 0.95),
            **{f"{name}_p50": tables.percentile(np.sort(length[mask]), 0.5) for name, mask in parts.items()},
            "in_flight": _in_flight(row, start, end)})
    return result


def _in_flight(row: I64, start: I64, end: I64) -> int:
    """The most intervals open at once in one row; one that ends where another begins is not."""
    n = len(row)
    time = np.concatenate([end, start])
    step = np.concatenate([np.full(n, -1), np.ones(n, np.int64)])
    # Ends come before starts at equal times; intervals of no length end where they began, and count for themselves.
    order = np.lexsort((step, time, np.concatenate([row, row])))
    steps = step[order]
    depth = np.cumsum(steps)
    return max(1, int(depth.max())) if n else 0


def slack_table(run: Run) -> list[dict[str, Any]]:
    """Per (producer scope, consumer scope) of two roles that run equally often: slack, and who sets the pace.

    ``pace`` is "producer" where the median slack is at most ``TIGHT`` of the consumer's period, "consumer" from
    ``LOOSE`` on, "each other" where the roles wait for one another (the finding ``take-turns``), else "". Blocks whose
    counts differ are left out; ``blocks`` says how many were used, ``prologue`` how many first iterations
    (``PROLOGUE``) were not. Smallest median slack first.
    """
    loops = {entry["scope_label"]: entry for entry in iteration_table(run)}
    result = []
    for producer in loops.values():
        for consumer in loops.values():
            if producer["role"] and consumer["role"] and producer["role"] != consumer["role"]:
                entry = _slack(run, producer, consumer)
                if entry is not None:
                    result.append(entry)
    result.sort(key=lambda e: (e["slack_p50"], e["producer"], e["consumer"]))
    return result


def _prologue(rank: I64, crossed: Bools) -> int:
    """How many of the first iterations to leave out, by the ranks of all pairs and whether each is crossed."""
    share = np.bincount(rank, crossed) / np.bincount(rank)
    most = int(PROLOGUE * len(share))
    return int(np.argmin(np.append(share[:most] > 0.5, False)))


def _slack(run: Run, producer: dict[str, Any], consumer: dict[str, Any]) -> dict[str, Any] | None:
    iv, block_of = run.intervals, run.trace.rows.block
    sides = []
    for entry in (producer, consumer):
        mine = np.flatnonzero(run.scope == run.labels.index(entry["scope_label"]))
        row = iv.row[mine]
        sides.append((mine, row, _ranks(row), np.bincount(row, minlength=len(block_of))[row]))
    (p, p_row, p_rank, p_count), (c, c_row, c_rank, c_count) = sides
    blocks, place = np.unique(block_of[np.concatenate([p_row, c_row])], return_inverse=True)
    place = place.reshape(-1)
    p_block, c_block = place[:len(p)], place[len(p):]
    # A block counts where all rows of both sides made the same number of iterations.
    low, high = np.full(len(blocks), np.iinfo(np.int64).max), np.zeros(len(blocks), np.int64)
    for where, count in ((p_block, p_count), (c_block, c_count)):
        np.minimum.at(low, where, count)
        np.maximum.at(high, where, count)
    both = np.isin(np.arange(len(blocks)), p_block) & np.isin(np.arange(len(blocks)), c_block)
    good = both & (low == high)
    if not good.any():
        return None
    width = int(high[good].max())
    ready = np.full(len(blocks) * width, np.iinfo(np.int64).min)
    keep = good[p_block]
    np.maximum.at(ready, p_block[keep] * width + p_rank[keep], iv.end[p[keep]])
    keep = good[c_block]
    rank, slack = c_rank[keep], iv.start[c[keep]] - ready[c_block[keep] * width + c_rank[keep]]
    prologue = _prologue(rank, slack < 0)
    slack = np.sort(slack[rank >= prologue])
    crossed = float((slack < 0).mean())
    if crossed > CROSSED:
        return None
    median, period = tables.percentile(slack, 0.5), consumer["period_p50"]
    pace = "producer" if median <= TIGHT * period else "consumer" if median >= LOOSE * period else ""
    pair = (producer["role"], consumer["role"])
    if pace and all(way in dependences(run) for way in (pair, pair[::-1])):
        pace = "each other"
    return {"producer": producer["scope_label"], "producer_role": producer["role"],
            "consumer": consumer["scope_label"], "consumer_role": consumer["role"], "blocks": int(good.sum()),
            "count": len(slack), "slack_p5": tables.percentile(slack, 0.05), "slack_p50": median,
            "slack_p95": tables.percentile(slack, 0.95), "period_p50": period, "prologue": prologue,
            "crossed": crossed, "pace": pace}
