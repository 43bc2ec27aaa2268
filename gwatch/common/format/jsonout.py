"""The JSON report: compact UTF-8, tables before records, records in columns; and reading it back.

A run's ``records`` hold one list per column (``site``, ``time`` relative to ``time_base``, and where they say
anything ``value``, ``sequence``, ``lane``), ordered by row, and one list per row property under ``rows``,
of which ``count`` is the number of consecutive records of that row. ``trace_results`` is the same in the
older one-object- per-record form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.records import Geometry, Rows, Trace, triple
from gwatch.common.format.regions import parse_regions
from gwatch.common.format.run import EVIDENCE, Run, plain, run_of
from gwatch.errors import TraceError

ROW_FORM_LIMIT = 50_000
"""Traces with more records than this leave the row form out unless it is asked for."""


def dump(value: Any) -> str:
    """Compact JSON text without NaN; numpy scalars and arrays are understood."""
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _ints(values: NDArray[Any]) -> str:
    return json.dumps(values.tolist(), separators=(",", ":"))


def run_chunks(run: Run, row_form: bool) -> Iterator[str]:
    """The JSON text of a run in pieces, so that a large trace is never held twice."""
    yield '{"kernel_prototype":' + dump(run.kernel)
    yield ',"compile_results":' + dump(run.compile_results)
    yield ',"oe_results":' + dump(run.oe_results)
    yield ',"analysis":' + dump(run.analysis)
    if run.splice_results is not None:
        yield ',"splice_results":' + dump(run.splice_results)
    yield ',"records":'
    yield from _record_chunks(run.trace)
    if row_form:
        yield ',"trace_results":['
        yield from _row_chunks(run)
        yield "]"
    else:
        yield f',"trace_results_omitted":{len(run.trace)}'
    yield "}"


def _record_chunks(trace: Trace) -> Iterator[str]:
    rows, n = trace.rows, len(trace)
    base = int(trace.time.min()) if n else 0
    counts = np.bincount(trace.row, minlength=len(rows))
    starts = np.r_[0, np.cumsum(counts)[:-1]].astype(np.int64)
    yield f'{{"count":{n},"time_base":{base},"rows":{{"count":{_ints(counts)}'
    yield f',"global_tid":{_ints(rows.tid)},"block":{_ints(rows.block)},"warp":{_ints(rows.warp)}'
    yield f',"lane":{_ints(rows.lane)}'
    if (rows.smid >= 0).any():
        yield f',"smid":{_ints(rows.smid)}'
    if rows.dropped.any():
        yield f',"dropped":{_ints(rows.dropped)}'
    if rows.origin.any():
        yield f',"origin":{_ints(rows.origin)}'
    for name, mask in (("tail_gap", rows.tail_gap), ("exact", rows.exact)):
        if mask.any():
            yield f',"{name}":{_ints(np.flatnonzero(mask))}'
    inside = np.arange(n) - starts[trace.row]
    first = trace.sequence[starts] if n else trace.sequence
    counted = bool(n) and bool((trace.sequence == first[trace.row] + inside).all())
    if counted:
        yield f',"first_sequence":{_ints(first)}'
    yield f'}},"site":{_ints(trace.site)},"time":{_ints(trace.time - base)}'
    if not counted and (trace.sequence >= 0).any():
        yield f',"sequence":{_ints(trace.sequence)}'
    if trace.value.any():
        yield f',"value":{_ints(trace.value)}'
    if (trace.lane != np.maximum(rows.lane, 0)[trace.row]).any():
        yield f',"lane":{_ints(trace.lane)}'
    if trace.gap.any():
        yield f',"gap":{_ints(np.flatnonzero(trace.gap))}'
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


def read_run(data: Mapping[str, Any], where: str) -> Run:
    """A run from its JSON form; ``where`` names it in errors.

    Tables of a trace that gwatch wrote are used as stored; those of other writers are computed anew.
    Raises TraceError ``[bad-report]``.
    """
    if not isinstance(data, Mapping):
        raise TraceError("bad-report", f"{where} is no object")
    block = data.get("analysis") or {}
    if not isinstance(block, Mapping):
        raise TraceError("bad-report", f"{where}.analysis is no object")
    if not isinstance(data.get("records"), Mapping):
        return run_of(data)
    trace = _read_records(data["records"], where)
    clock = str(block.get("clock_type", "gpu"))
    return Run(str(data.get("kernel_prototype", "?")),
               Geometry(triple(block.get("grid_dim"), "grid_dim"), triple(block.get("block_dim"),
               "block_dim")), trace, parse_regions(block.get("site_regions")), dict(block.get("scope_roles")
               or {}), clock, dict(data.get("compile_results") or {}), {key: block.get(key) for key in
               EVIDENCE}, tuple(block.get("sites") or ()), tuple(block.get("warnings") or ()),
               data.get("splice_results"), dict(data.get("oe_results") or {}), dict(block.get("launch") or
               {}), str(block.get("record_shape", "site")), block if "verdict" in block else None)


def _read_records(data: Mapping[str, Any], where: str) -> Trace:
    rows = data.get("rows")
    if not isinstance(rows, Mapping):
        raise TraceError("bad-report", f"{where}.records.rows is missing")
    counts = _numbers(rows, "count", np.int64, None, f"{where}.records.rows")
    site = _numbers(data, "site", np.int32, None, f"{where}.records")
    n_rows, n = len(counts), len(site)
    # Each count is bounded before they are added up, so that the sum cannot wrap.
    fits = n_rows == 0 or (counts.min() >= 0 and counts.max() <= n)
    if not fits or int(counts.sum()) != n or data.get("count") != n:
        raise TraceError("bad-report", f"{where}.records: count, rows.count and site disagree")

    def per_row(name: str, dtype: Any, default: int | None = None) -> NDArray[Any]:
        return _numbers(rows, name, dtype, n_rows, f"{where}.records.rows", default)

    def per_record(name: str, dtype: Any, default: int | None = None) -> NDArray[Any]:
        return _numbers(data, name, dtype, n, f"{where}.records", default)

    row = np.repeat(np.arange(n_rows), counts)
    time = per_record("time", np.int64) + int(data.get("time_base") or 0)
    table = Rows(per_row("global_tid", np.int64), per_row("block", np.int64), per_row("warp", np.int32),
                 per_row("lane", np.int32), per_row("smid", np.int32, -1), per_row("dropped", np.int64, 0),
                 _mask(rows, "tail_gap", n_rows, f"{where}.records.rows"), per_row("origin", np.int64, 0),
                 _mask(rows, "exact", n_rows, f"{where}.records.rows"))
    sequence = per_record("sequence", np.int64, -1)
    if "first_sequence" in rows:
        starts = np.r_[0, np.cumsum(counts)[:-1]].astype(np.int64)
        sequence = per_row("first_sequence", np.int64)[row] + np.arange(n) - starts[row]
    lane = np.maximum(table.lane, 0)[row] if "lane" not in data else per_record("lane", np.int32)
    return Trace(table, row, site, time, per_record("value", np.uint64, 0), sequence, lane,
                 _mask(data, "gap", n, f"{where}.records"))


def _numbers(data: Mapping[str, Any], name: str, dtype: Any, length: int | None, where: str,
             default: int | None = None) -> NDArray[Any]:
    values = data.get(name)
    if values is None and default is not None and length is not None:
        return np.full(length, default, dtype)
    try:
        if not isinstance(values, list) or not all(type(v) is int for v in values):
            raise TypeError
        wide = np.array(values, np.uint64 if dtype is np.uint64 else np.int64)
        result = wide.astype(dtype)
        if (result != wide).any():
            raise OverflowError
    except (TypeError, ValueError, OverflowError):
        raise TraceError("bad-report", f"{where}.{name} is no list of {np.dtype(dtype)} numbers") from None
    if length is not None and len(result) != length:
        raise TraceError("bad-report", f"{where}.{name} has {len(result)} entries, {length} are needed")
    return result


def _mask(data: Mapping[str, Any], name: str, length: int, where: str) -> NDArray[np.bool_]:
    mask = np.zeros(length, np.bool_)
    places = _numbers(data, name, np.int64, None, where) if data.get(name) is not None else np.zeros(0, int)
    if len(places) and (places.min() < 0 or places.max() >= length):
        raise TraceError("bad-report", f"{where}.{name} names places outside 0..{length - 1}")
    mask[places] = True
    return mask
