"""Reading a report's runs back, with every number checked before it is used.

Columns come as lists (from JSON) or as integer arrays (from an archive).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.records import TIME_LIMIT, Geometry, Rows, Trace, row_ids, triple
from gwatch.common.format.regions import parse_regions
from gwatch.common.format.run import EVIDENCE, Run, known_roles, run_of
from gwatch.common.format.statements import OWN, check_numbers, check_statements
from gwatch.errors import TraceError


def read_run(data: Mapping[str, Any], where: str) -> Run:
    """A run from its JSON form; ``where`` names it in errors.

    What it says about the recording is taken from ``analysis``; the tables there are for readers of the file
    and are computed anew from the records. Raises TraceError ``[bad-report]``, and what
    :func:`gwatch.common.format.run.run_of` raises.
    """
    if not isinstance(data, Mapping):
        raise TraceError("bad-report", f"{where} is no object")
    block = data.get("analysis") or {}
    check_statements(data, block, where)
    check_numbers(data, where, OWN)
    if not isinstance(data.get("records"), Mapping):
        return run_of(data)
    regions = parse_regions(block.get("site_regions"))
    geometry = Geometry(triple(block.get("grid_dim"), "grid_dim"), triple(block.get("block_dim"), "block_dim"))
    return Run(
        kernel=str(data.get("kernel_prototype", "?")), geometry=geometry,
        trace=_read_records(data["records"], geometry, where), regions=regions,
        roles=known_roles(block.get("scope_roles"), regions), clock=str(block.get("clock_type", "gpu")),
        compile_results=dict(data.get("compile_results") or {}),
        evidence={key: block.get(key) for key in EVIDENCE}, sites=tuple(block.get("sites") or ()),
        warnings=tuple(map(str, block.get("warnings") or ())), splice_results=data.get("splice_results"),
        oe_results=dict(data.get("oe_results") or {}), launch=dict(block.get("launch") or {}),
        listing=dict(data.get("listing") or {}),
        record_shape=str(block.get("record_shape", "site")))


def _read_records(data: Mapping[str, Any], geometry: Geometry, where: str) -> Trace:
    rows = data.get("rows")
    if not isinstance(rows, Mapping):
        raise TraceError("bad-report", f"{where}.records.rows is missing")
    counts = _numbers(rows, "count", np.int64, None, f"{where}.records.rows")
    site = _numbers(data, "site", np.int32, None, f"{where}.records")
    n_rows, n = len(counts), len(site)
    # Each count is bounded before they are added up, so that the sum cannot wrap.
    fits = n_rows == 0 or (counts.min() >= 1 and counts.max() <= n)
    if not fits or int(counts.sum()) != n or data.get("count") != n:
        raise TraceError("bad-report", f"{where}.records: count, rows.count and site disagree")

    def per_row(name: str, dtype: Any, default: int | None = None) -> NDArray[Any]:
        return _numbers(rows, name, dtype, n_rows, f"{where}.records.rows", default)

    def per_record(name: str, dtype: Any, default: int | None = None) -> NDArray[Any]:
        return _numbers(data, name, dtype, n, f"{where}.records", default)

    row = np.repeat(np.arange(n_rows), counts)
    (base,) = _numbers({"time_base": [data.get("time_base")]}, "time_base", np.int64, 1, f"{where}.records")
    time = _within(per_record("time", np.int64), base) + base
    table = Rows(per_row("global_tid", np.int64), per_row("block", np.int64), per_row("warp", np.int32),
                 per_row("lane", np.int32), per_row("smid", np.int32, -1), per_row("dropped", np.int64, 0),
                 _mask(rows, "tail_gap", n_rows, f"{where}.records.rows"), per_row("origin", np.int64, 0),
                 _mask(rows, "exact", n_rows, f"{where}.records.rows"))
    _check_rows(table, geometry, f"{where}.records.rows")
    sequence = per_record("sequence", np.int64, -1)
    if "first_sequence" in rows:
        starts = np.r_[0, np.cumsum(counts)[:-1]].astype(np.int64)
        sequence = _within(per_row("first_sequence", np.int64), n)[row] + np.arange(n) - starts[row]
    lane = np.maximum(table.lane, 0)[row] if "lane" not in data else per_record("lane", np.int32)
    return Trace(table, row, site, time, per_record("value", np.uint64, 0), sequence, lane,
                 _mask(data, "gap", n, f"{where}.records"))


def _numbers(data: Mapping[str, Any], name: str, dtype: Any, length: int | None, where: str,
             default: int | None = None) -> NDArray[Any]:
    values = data.get(name)
    if values is None and default is not None and length is not None:
        return np.full(length, default, dtype)
    try:
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            wide = values
        elif isinstance(values, list) and all(type(v) is int for v in values):
            wide = np.array(values, np.uint64 if dtype is np.uint64 else np.int64)
        else:
            raise TypeError
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


def _within(values: NDArray[np.int64], base: Any) -> NDArray[np.int64]:
    """``values``, unless adding ``base`` to one of them leaves the range of times."""
    if len(values) and not (int(values.min()) + int(base) > -TIME_LIMIT and
                            int(values.max()) + int(base) < TIME_LIMIT):
        raise TraceError("bad-report", "a time or sequence number of the records is out of range")
    return values


def _check_rows(rows: Rows, geometry: Geometry, where: str) -> None:
    """Rows must be those of the launch, each once, in order."""
    limits = {"block": (0, geometry.blocks), "warp": (0, geometry.warps_per_block), "lane": (-1, 32),
              "smid": (-1, 1 << 20), "dropped": (0, 1 << 40), "origin": (-TIME_LIMIT, TIME_LIMIT)}
    for name, (low, high) in limits.items():
        values = getattr(rows, name)
        if len(values) and not (low <= int(values.min()) and int(values.max()) < high):
            raise TraceError("bad-report", f"{where}.{name} holds a value outside {low}..{high - 1}")
    key = (rows.block * geometry.warps_per_block + rows.warp) * 33 + rows.lane
    if (np.diff(key) <= 0).any():
        raise TraceError("bad-report", f"{where} are not in order, or one is there twice")
    if (row_ids(rows.block, rows.warp, rows.lane, geometry) != rows.tid).any():
        raise TraceError("bad-report", f"{where}.global_tid contradicts block, warp and lane")
