"""Export to the Trace Event format that chrome://tracing and ui.perfetto.dev open.

One process per block, one track per row (and, where regions of a row overlap without nesting, further
tracks of that row), complete events for intervals, instant events for records outside regions, and a flow
arrow from what ended to the wait of another role that ended with it. Times are microseconds since the run's
first record; for the per-SM cycle counter one "microsecond" is a thousand cycles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I64
from gwatch.common.format.payload import lonely_sites, marks
from gwatch.common.format.run import Run
from gwatch.common.format.text import locator
from gwatch.common.format.waits import find_waits

BATCH = 8192


def tracks(row: I64, start: I64, length: I64, depth: I64) -> I64:
    """Track number within its row of each interval, so that on a track intervals nest or do not touch.

    Intervals are ordered by (row, start, longest first); only rows where some begin inside others (``depth``)
    need a look.
    """
    track = np.zeros(len(row), np.int64)
    end = start + length
    for r in np.unique(row[depth > 0]).tolist():
        low, high = np.searchsorted(row, [r, r + 1])
        stacks: list[list[int]] = []
        for i in range(int(low), int(high)):
            number = next((k for k, stack in enumerate(stacks) if _fits(stack, int(start[i]), int(end[i]))),
                          len(stacks))
            if number == len(stacks):
                stacks.append([])
            stacks[number].append(int(end[i]))
            track[i] = number
    return track


def _fits(stack: list[int], start: int, end: int) -> bool:
    """Does an interval nest in what is open on a track? Forgets what has ended by ``start``."""
    while stack and stack[-1] <= start:
        stack.pop()
    return not stack or stack[-1] >= end


def _micro(values: NDArray[Any]) -> list[float]:
    result: list[float] = (values / 1000).tolist()
    return result


def events(run: Run, process: int = 0) -> Iterator[dict[str, Any]]:
    """All events of a run; ``process`` is added to its block numbers."""
    trace, rows = run.trace, run.trace.rows
    m = marks(run)
    order = np.lexsort((-m.length, m.start, m.row))
    row, start, length, scope = m.row[order], m.start[order] - run.time_range[0], m.length[order], m.scope[order]
    track = tracks(row, start, length, m.depth[order])
    per_row = np.zeros(len(rows), np.int64)
    np.maximum.at(per_row, row, track)
    first = np.cumsum(per_row + 1) - per_row
    pid, tid = (rows.block[row] + process).tolist(), (first[row] + track).tolist()
    yield from _names(run, per_row, first, process)
    labels = [*run.labels, *(f"site {site}" for site in lonely_sites(run))]
    value, sequence = trace.value[m.opened[order]].tolist(), trace.sequence[m.opened[order]].tolist()
    stamps, spans = _micro(start), _micro(length)
    for i, k in enumerate(scope.tolist()):
        label = labels[k]
        event: dict[str, Any] = {"name": label, "cat": run.roles.get(label, "region"), "pid": pid[i], "tid": tid[i],
                                 "ts": stamps[i], "args": {"value": value[i], "record": sequence[i]}}
        yield {**event, "ph": "X", "dur": spans[i]} if k < len(run.labels) else {**event, "ph": "i", "s": "t"}
    yield from _flows(run, first, process)


def _names(run: Run, per_row: I64, first: I64, process: int) -> Iterator[dict[str, Any]]:
    rows = run.trace.rows
    for block in np.unique(rows.block).tolist():
        sms = np.unique(rows.smid[rows.block == block])
        where = f" (SM {int(sms[0])})" if len(sms) == 1 and sms[0] >= 0 else ""
        yield {"name": "process_name", "ph": "M", "pid": block + process, "tid": 0,
               "args": {"name": f"block {block}{where}"}}
    for r in range(len(rows)):
        for extra in range(int(per_row[r]) + 1):
            suffix = f" ({extra + 1})" if extra else ""
            yield {"name": "thread_name", "ph": "M", "pid": int(rows.block[r]) + process, "tid": int(first[r]) + extra,
                   "args": {"name": locator(rows, r) + suffix}}


def _flows(run: Run, first: I64, process: int) -> Iterator[dict[str, Any]]:
    waits, iv, rows = find_waits(run), run.intervals, run.trace.rows
    base = run.time_range[0]
    for i in np.flatnonzero(waits.released_by >= 0).tolist():
        source, target = int(waits.released_by[i]), int(waits.row[i])
        giver = int(iv.row[source])
        common = {"name": "released", "cat": "wait", "id": process * 100_000_000 + i}
        yield {**common, "ph": "s", "pid": int(rows.block[giver]) + process, "tid": int(first[giver]),
               "ts": (int(iv.end[source]) - base) / 1000}
        yield {**common, "ph": "f", "bp": "e", "pid": int(rows.block[target]) + process, "tid": int(first[target]),
               "ts": (int(waits.end[i]) - base) / 1000}


def chrome_chunks(runs: list[Run]) -> Iterator[str]:
    """The JSON text in pieces; later runs get process numbers after the earlier ones'."""
    yield '{"displayTimeUnit":"ns","traceEvents":['
    process, comma = 0, ""
    for run in runs:
        batch: list[str] = []
        for event in events(run, process):
            batch.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False))
            if len(batch) == BATCH:
                yield comma + ",".join(batch)
                comma, batch = ",", []
        if batch:
            yield comma + ",".join(batch)
            comma = ","
        process += run.geometry.blocks
    yield "]}"
