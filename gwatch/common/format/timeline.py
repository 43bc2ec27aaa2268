"""The timeline as text: one line per row, one glyph per slice of time."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I64
from gwatch.common.format.run import Run
from gwatch.common.format.text import Style, clip, duration, locator, since, wrap
from gwatch.errors import TraceError

COLUMNS = 91
LEGEND = 110
"""Columns of the legend's lines."""
SAMPLE = 32
HALF = 0.5
"""A cell shows a scope where the row spends this part of it in scopes: a waiting row does not look busy."""
SOME = -2
GLYPHS = "█▓▒░▚▞◆◇●○▲▽"
PLAIN_GLYPHS = "#=+:%@oxXO^v"
SORTS = ("tid", "active", "bubble", "lifetime")


def row_order(run: Run, sort_by: str | None) -> NDArray[np.int64]:
    """Rows in display order: by role and id unless ``sort_by`` names tid, cluster, active, bubble, lifetime or a scope
    (longest first).

    Raises TraceError ``[bad-sort]``, ``[no-clusters]``.
    """
    n = len(run.trace.rows)
    if sort_by == "cluster" and "cluster" not in run.labels:
        if run.row_clusters is None:
            raise TraceError("no-clusters", run.no_clusters, "sort by tid")
        return np.lexsort((np.arange(n), run.row_clusters))
    if sort_by == "tid":
        return np.arange(n)
    if sort_by is None:
        _, role = run.row_roles
        return np.lexsort((np.arange(n), np.where(role < 0, len(run.labels), role)))
    weight = row_weights(run, sort_by)
    if weight is None:
        keys = [*SORTS, *(["cluster"] if run.row_clusters is not None else []), *run.labels]
        raise TraceError("bad-sort", f"--sort-by {sort_by!r}", "one of " + ", ".join(keys), keys)
    return np.lexsort((np.arange(n), -weight))


def row_weights(run: Run, sort_by: str | None) -> I64 | None:
    """The time of each row that ``sort_by`` (active, bubble, lifetime, a scope) orders by; None for other orders."""
    weight = np.zeros(len(run.trace.rows), np.int64)
    if sort_by in run.labels:
        mine = run.scope == run.labels.index(sort_by)
        np.add.at(weight, run.intervals.row[mine], run.inside[mine])
    elif sort_by in SORTS[1:]:
        per_row = run.per_row
        weight[per_row[:, 0]] = per_row[:, SORTS.index(sort_by)]
    else:
        return None
    return weight


def timeline_view(run: Run, style: Style, sample: int = SAMPLE, sort_by: str | None = None) -> list[str]:
    """Legend, and ``sample`` rows (0: all) of the display order: the first of an order that was asked for, else evenly
    strided ones."""
    order = row_order(run, sort_by)
    if len(order) == 0:
        return []
    shown = order
    if 0 < sample < len(order):
        shown = order[:sample] if sort_by is not None else order[
            np.linspace(0, len(order) - 1, sample).round().astype(np.int64)]
    low, high = run.extent
    noun = "warps" if run.granularity == "warp" else "threads" if (run.trace.rows.lane >= 0).all() else "rows"
    first = "the first " if sort_by is not None and len(shown) < len(order) else ""
    by = f" by {sort_by}" if sort_by is not None else ""
    about = f" (showing {first}{len(shown)} of {len(order)} {noun}{by}, width={COLUMNS} cols"
    span = f"span={duration(high - low, run.unit)} from {since(low - run.zero, run.unit)}"
    lines = [style.bold("Timeline") + style.clean(f"{about}, {span})")]
    glyphs = GLYPHS if style.unicode else PLAIN_GLYPHS
    gap, some = ("·", "╌") if style.unicode else (".", "-")
    scopes = bool(run.labels)
    if scopes:
        marks = [(glyphs[i % len(glyphs)], i, style.clean(clip(label, 24))) for i, label in
                 enumerate(run.labels[:len(glyphs)])]
        notes = [f"{some} in scopes less than half of the cell", f"{gap} outside", "%: of the row's life in scopes"]
        lines += wrap([*(f"{style.scopes([(glyph, i)])} {label}" for glyph, i, label in marks), *notes], LEGEND,
                      [*(len(label) + 2 for _, _, label in marks), *map(len, notes)])
    else:
        lines.append(style.clean(f"no regions: digits are the last digits of site ids, {gap} no record"))
    names, role = run.row_roles
    heads = [locator(run.trace.rows, int(r)) for r in shown]
    if run.row_clusters is not None:
        heads = [f"c{int(run.row_clusters[r])} {head}" for r, head in zip(shown, heads, strict=True)]
    if names:
        tags = [style.clean(clip(names[role[r]], 14)) if role[r] >= 0 else "" for r in shown]
        width = max(map(len, tags))
        heads = [f"{tag:{width}} {head}" for tag, head in zip(tags, heads, strict=True)]
    width = max(map(len, heads))
    weight = row_weights(run, sort_by)
    if weight is not None:
        lines.append(style.clean(f"at the end of each line: {sort_by} of the row, longest first"))
    busy = {int(row): active / life for row, active, _, life in run.per_row.tolist() if life} if scopes else {}
    starts = np.searchsorted(run.intervals.row if scopes else run.trace.row, [shown, shown + 1])
    for row, head, a, b in zip(shown, heads, starts[0], starts[1], strict=True):
        cells = _site_cells(run, slice(a, b), low, high)
        if scopes:
            cells = _scope_cells(run, slice(a, b), low, high)
            cells[(cells >= 0) & (_duty(run, int(row), low, high) < HALF)] = SOME
        text = style.scopes(_stretch(code, len(list(same)), glyphs, gap, some, scopes)
                            for code, same in groupby(cells.tolist()))
        share = f" {busy[int(row)]:4.0%}" if int(row) in busy else ""
        share += style.clean(f"  {duration(int(weight[row]), run.unit)}") if weight is not None else ""
        lines.append(f"{head:{width}} {text}{share}")
    return lines


def _stretch(code: int, length: int, glyphs: str, gap: str, some: str, scopes: bool) -> tuple[str, int]:
    """``length`` equal cells, and the scope whose colour they have."""
    if code < 0:
        return (some if code == SOME else gap) * length, -1
    return (glyphs[code % len(glyphs)] * length, code) if scopes else (str(code % 10) * length, -1)


def _edges(span: int) -> NDArray[Any]:
    """Where columns begin and end, from the view's start: as doubles, absolute ns would be 256 apart."""
    return np.linspace(0, max(span, 1), COLUMNS + 1)


def _duty(run: Run, row: int, low: int, high: int) -> NDArray[Any]:
    """Per column, the part of it that the row spends in any scope."""
    a, b = np.searchsorted(run.cover.row, [row, row + 1])
    start, end = run.cover.start[a:b] - low, run.cover.end[a:b] - low
    if len(start) == 0:
        return np.zeros(COLUMNS)
    done = np.cumsum(end - start)
    times = np.stack([start, end], axis=1).reshape(-1)
    spent = np.stack([done - (end - start), done], axis=1).reshape(-1)
    edges = _edges(high - low)
    duty: NDArray[Any] = np.diff(np.interp(edges, times, spent)) / np.diff(edges)
    return duty


def _scope_cells(run: Run, part: slice, low: int, high: int) -> NDArray[np.int64]:
    """Per column, the scope that fills most of it (innermost regions first); -1 for none."""
    edges = _edges(high - low)
    start, end = run.intervals.start[part] - low, run.intervals.end[part] - low
    scope, depth = run.scope[part], run.intervals.depth[part]
    cells = np.full(COLUMNS, -1, np.int64)
    best = np.zeros(COLUMNS)
    level = np.full(COLUMNS, -1, np.int64)
    width = edges[1] - edges[0]
    first = np.clip((start / width).astype(np.int64), 0, COLUMNS - 1)
    last = np.clip((end / width).astype(np.int64), 0, COLUMNS - 1)
    for s, e, k, d, a, b in zip(start, end, scope, depth, first, last, strict=True):
        if e < 0 or s > high - low:
            continue
        span = slice(a, b + 1)
        share = np.minimum(e, edges[1:][span]) - np.maximum(s, edges[:-1][span])
        share = np.maximum(share, width * 1e-3)
        # A nested region shows above the one around it as soon as it fills half of the slice.
        better = np.where(d > level[span], (share >= width / 2) | (share > best[span]), share > best[span])
        best[span] = np.where(better, share, best[span])
        level[span] = np.where(better, d, level[span])
        cells[span] = np.where(better, k, cells[span])
    return cells


def _site_cells(run: Run, part: slice, low: int, high: int) -> NDArray[np.int64]:
    """Per column, the last site recorded in it; -1 for none."""
    cells = np.full(COLUMNS, -1, np.int64)
    time = run.trace.time[part]
    inside = (time >= low) & (time <= high)
    width = max(high - low, 1) / COLUMNS
    place = np.minimum(((time[inside] - low) / width).astype(np.int64), COLUMNS - 1)
    cells[place] = run.trace.site[part][inside]
    return cells
