"""A run's drawing data for the page: typed arrays in one compressed blob, small enough to embed.

Columns are stored byte-plane by byte-plane (all low bytes, then all next bytes, …), starts as differences
within a row, so that ordinary deflate shrinks a million intervals to a few bytes each.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I64, ordering
from gwatch.common.format.regions import falls
from gwatch.common.format.run import Run
from gwatch.common.format.select import kernel_tag

LEVEL = 4
"""Deflate level: the next ones cost twice the time for a few percent."""
VALUE_LIMIT = 300_000
"""Values travel with the picture up to this many marks."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What is drawn: intervals, and records outside any region as marks without duration, ordered by row."""

    row: I64
    scope: I64
    start: I64
    length: I64
    depth: I64
    opened: I64
    closed: I64


def marks(run: Run) -> Marks:
    """Intervals of all scopes, then records of sites in no region under scope ids after the last scope's."""
    iv, trace = run.intervals, run.trace
    sites = lonely_sites(run)
    lonely = np.flatnonzero(np.isin(trace.site, np.array(sites, np.int64))) if sites else np.zeros(0, np.int64)
    scope, length = run.scope.astype(np.int64), iv.end - iv.start
    if len(lonely) == 0:
        return Marks(iv.row, scope, iv.start, length, iv.depth.astype(np.int64), iv.opened, iv.closed)
    zero = np.zeros(len(lonely), np.int64)
    place = np.searchsorted(np.array(sites, np.int64), trace.site[lonely]) + len(run.labels)
    row = np.concatenate([iv.row, trace.row[lonely]])
    start = np.concatenate([iv.start, trace.time[lonely]])
    opened = np.concatenate([iv.opened, lonely])
    # Records are ordered by row and nearly always by time: their places merge the two sorted lists.
    order = np.argsort(opened, kind="stable")
    if falls(row[order], start[order]):
        order = ordering(row, start)
    return Marks(row[order], np.concatenate([scope, place])[order], start[order],
                 np.concatenate([length, zero])[order], np.concatenate([iv.depth.astype(np.int64), zero])[order],
                 opened[order], np.concatenate([iv.closed, lonely])[order])


def lonely_sites(run: Run) -> list[int]:
    """Recorded sites that no region names, in order."""
    inside = {site for region in run.regions for site in (region.enter, region.leave)}
    return [int(s) for s in np.unique(run.trace.site) if int(s) not in inside]


def _fit(values: NDArray[Any]) -> NDArray[Any]:
    """The smallest unsigned type that holds all values; doubles where 32 bits do not do."""
    top = int(values.max()) if len(values) else 0
    for kind, limit in (("<u1", 1 << 8), ("<u2", 1 << 16), ("<u4", 1 << 32)):
        if top < limit:
            return values.astype(kind)
    return values.astype("<f8")


def pack(columns: dict[str, NDArray[Any]]) -> tuple[list[dict[str, Any]], str]:
    """(directory of name, type, length, byte offset; base64 of the deflated columns)."""
    directory, parts, offset = [], [], 0
    for name, values in columns.items():
        raw = values.view(np.uint8).reshape(len(values), values.itemsize).T.tobytes()
        directory.append({"name": name, "type": values.dtype.str.lstrip("<|"), "length": len(values),
                          "offset": offset})
        parts.append(raw)
        offset += len(raw)
    return directory, base64.b64encode(zlib.compress(b"".join(parts), LEVEL)).decode("ascii")


def payload(run: Run) -> tuple[dict[str, Any], str]:
    """(description of the picture, its columns as text) for the page's script."""
    m = marks(run)
    trace, rows = run.trace, run.trace.rows
    t_min, t_max = run.time_range
    n = len(rows)
    first = np.r_[True, m.row[1:] != m.row[:-1]] if len(m.row) else np.zeros(0, np.bool_)
    relative = m.start - t_min
    step = np.where(first, relative, np.diff(relative, prepend=0)) if len(m.row) else relative
    names, role = run.row_roles
    columns = {
        "count": _fit(np.bincount(m.row, minlength=n)), "block": _fit(rows.block), "warp": _fit(rows.warp),
        "lane": _fit(rows.lane.astype(np.int64) + 1), "sm": _fit(rows.smid.astype(np.int64) + 1),
        "role": _fit(np.where(role < 0, len(names), role)), "dropped": _fit(rows.dropped),
        "scope": _fit(m.scope), "step": _fit(step), "length": _fit(m.length), "depth": _fit(m.depth),
    }
    valued = bool(trace.value.any()) and len(m.row) <= VALUE_LIMIT
    if valued:
        for name, place in (("in", m.opened), ("out", m.closed)):
            value = trace.value[place]
            columns[f"{name}_low"] = (value & np.uint64(0xFFFFFFFF)).astype("<u4")
            columns[f"{name}_high"] = (value >> np.uint64(32)).astype("<u4")
    directory, blob = pack(columns)
    scopes: list[dict[str, Any]] = [
        {"label": label, "role": run.roles.get(label, ""), "sites": _sites_of(run, label)}
        for label in run.labels]
    for site in lonely_sites(run):
        name = str(run.site(site).get("label") or "")
        scopes.append({"label": f"site {site}" + (f" {name}" if name else ""), "role": "", "sites": [site, site],
                       "mark": True})
    sites = {str(s.get("site_id", i)): [str(s.get("called_from") or s.get("line") or ""),
                                       str(s.get("instruction") or ""), s.get("value_kind") != "none"]
             for i, s in enumerate(run.sites)}
    meta = {
        "kernel": run.kernel, "tag": kernel_tag(run.kernel), "unit": run.unit,
        "span": t_max - t_min, "granularity": run.granularity, "block_size": run.geometry.block_size,
        "warps_per_block": run.geometry.warps_per_block, "grid": list(run.geometry.grid),
        "cluster": list(run.cluster_dim) if run.cluster_dim else None, "roles": names,
        "scopes": scopes, "sites": sites, "typical_block": typical_block(run),
        "concurrency": run.analysis["concurrency"], "values": valued, "columns": directory}
    return meta, blob


def _sites_of(run: Run, label: str) -> list[int]:
    return next([r.enter, r.leave] for r in run.regions if r.label == label)


def typical_block(run: Run) -> int:
    """The block to open first: of those that recorded most completely, the one with median recorded span."""
    trace, rows = run.trace, run.trace.rows
    if len(rows) == 0:
        return 0
    blocks, index = np.unique(rows.block, return_inverse=True)
    index = index.reshape(-1)
    lost = np.bincount(index, rows.dropped, minlength=len(blocks))
    low = np.full(len(blocks), np.iinfo(np.int64).max)
    high = np.full(len(blocks), np.iinfo(np.int64).min)
    np.minimum.at(low, index[trace.row], trace.time)
    np.maximum.at(high, index[trace.row], trace.time)
    best = np.flatnonzero(lost == lost.min())
    order = best[np.argsort((high - low)[best], kind="stable")]
    return int(blocks[order[len(order) // 2]])
