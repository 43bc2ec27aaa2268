"""The JSON report: compact UTF-8, tables before records, records in columns.

A run's ``records`` hold one list per column (``site``, ``time`` relative to ``time_base``, and where they say
anything ``value``, ``sequence``, ``lane``), ordered by row, and one list per row property under ``rows``,
of which ``count`` is the number of consecutive records of that row. ``trace_results`` is the same in the
older one-object- per-record form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.records import Trace
from gwatch.common.format.run import Run, plain

ROW_FORM_LIMIT = 50_000
"""Traces with more records than this leave the row form out unless it is asked for."""


def dump(value: Any, ascii_only: bool = False) -> str:
    """Compact JSON text without NaN; numpy scalars and arrays are understood."""
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False)


def _ints(values: NDArray[Any]) -> str:
    return json.dumps(values.tolist(), separators=(",", ":"))


def run_chunks(run: Run, row_form: bool) -> Iterator[str]:
    """The JSON text of a run in pieces, so that a large trace is never held twice."""
    yield '{"kernel_prototype":' + dump(run.kernel)
    yield ',"compile_results":' + dump(run.compile_results)
    yield ',"oe_results":' + dump(run.oe_results)
    yield ',"analysis":' + dump(run.analysis)
    if run.listing:
        yield ',"listing":' + dump(run.listing)
    if run.splice_results is not None:
        yield ',"splice_results":' + dump(run.splice_results)
    yield ',"records":'
    yield from _block_chunks(record_columns(run.trace))
    if row_form:
        yield ',"trace_results":['
        yield from _row_chunks(run)
        yield "]"
    else:
        yield f',"trace_results_omitted":{len(run.trace)}'
    yield "}"


def record_columns(trace: Trace) -> dict[str, Any]:
    """The ``records`` block: numbers, arrays, and the block ``rows`` of arrays; columns that say nothing
    left out.
    """
    rows, n = trace.rows, len(trace)
    base = int(trace.time.min()) if n else 0
    counts = np.bincount(trace.row, minlength=len(rows))
    starts = np.r_[0, np.cumsum(counts)[:-1]].astype(np.int64)
    table: dict[str, Any] = {"count": counts, "global_tid": rows.tid, "block": rows.block, "warp": rows.warp,
                             "lane": rows.lane}
    if (rows.smid >= 0).any():
        table["smid"] = rows.smid
    table |= {name: getattr(rows, name) for name in ("dropped", "origin") if getattr(rows, name).any()}
    table |= {name: np.flatnonzero(getattr(rows, name)) for name in ("tail_gap", "exact")
              if getattr(rows, name).any()}
    first = trace.sequence[starts] if n else trace.sequence
    counted = bool(n) and bool((trace.sequence == first[trace.row] + np.arange(n) - starts[trace.row]).all())
    if counted:
        table["first_sequence"] = first
    block = {"count": n, "time_base": base, "rows": table, "site": trace.site, "time": trace.time - base}
    if not counted and (trace.sequence >= 0).any():
        block["sequence"] = trace.sequence
    if trace.value.any():
        block["value"] = trace.value
    if (trace.lane != np.maximum(rows.lane, 0)[trace.row]).any():
        block["lane"] = trace.lane
    if trace.gap.any():
        block["gap"] = np.flatnonzero(trace.gap)
    return block


def _block_chunks(block: dict[str, Any]) -> Iterator[str]:
    comma = "{"
    for name, value in block.items():
        yield f'{comma}"{name}":'
        comma = ","
        if isinstance(value, dict):
            yield from _block_chunks(value)
        else:
            yield _ints(value) if isinstance(value, np.ndarray) else str(value)
    yield "}"


def row_form(run: Run) -> Iterator[dict[str, int]]:
    """Records one by one as ``{global_tid, site_id, value, timestamp[, smid]}``, in row order."""
    trace = run.trace
    tid, smid = trace.rows.tid[trace.row].tolist(), trace.rows.smid[trace.row].tolist()
    for t, s, v, when, sm in zip(tid, trace.site.tolist(), trace.value.tolist(), trace.time.tolist(), smid,
                                 strict=True):
        record = {"global_tid": t, "site_id": s, "value": v, "timestamp": when}
        if sm >= 0:
            record["smid"] = sm
        yield record


def _row_chunks(run: Run, batch: int = 4096) -> Iterator[str]:
    pending: list[dict[str, int]] = []
    comma = ""
    for record in row_form(run):
        pending.append(record)
        if len(pending) == batch:
            yield comma + json.dumps(pending, separators=(",", ":"))[1:-1]
            pending, comma = [], ","
    if pending:
        yield comma + json.dumps(pending, separators=(",", ":"))[1:-1]
