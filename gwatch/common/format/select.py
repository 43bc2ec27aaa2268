"""Narrowing a run to rows, to a time window, or to a selection token copied from the HTML page."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.losses import I64, WARP, Bools
from gwatch.common.format.records import Rows, Trace
from gwatch.common.format.run import Run
from gwatch.common.format.text import since
from gwatch.errors import TraceError

LEVELS = ("thread", "warp", "warpgroup", "block")
WARPS_PER_GROUP = 4
_TOKEN = re.compile(r"gwtrace/1 +kernel=(?P<kernel>\S+) +t=(?P<t0>-?\d+):(?P<t1>-?\d+)(?P<unit>ns|cyc)"
                    r"(?: +lane=(?P<level>[a-z]+):(?P<ids>\S+))?(?: +order=(?P<order>role|thread))?"
                    r"(?: +scopes=(?P<scopes>\S*))?")
_TIME = re.compile(r"([+-]?)\s*(\d+(?:\.\d*)?)\s*((?:[a-zA-Zµμ]+ ?)*)")
_SCALES = {"ns": {"ns": 1, "us": 10 ** 3, "ms": 10 ** 6, "s": 10 ** 9},
           "cyc": {"cyc": 1, "kcyc": 10 ** 3, "Mcyc": 10 ** 6, "Gcyc": 10 ** 9}}
_RANGE = re.compile(r"(?:\[\s*(\d+)\s*,\s*(\d+)\s*\]|(\d+)\s*-\s*(\d+)|(\d+))\s*(?:,\s*|$)")


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed token: times relative to the run's first record, inclusive id ranges, scopes (None: all)."""

    kernel: str
    t0: int
    t1: int
    unit: str
    level: str | None
    ids: tuple[tuple[int, int], ...]
    order: str | None
    scopes: tuple[str, ...] | None


def parse_ranges(text: str, what: str) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges of ``0-3,5`` or ``[0,31],[64,95]``; TraceError ``[bad-range]`` for anything else."""
    ranges, at, body = [], 0, text.strip()
    while at < len(body):
        match = _RANGE.match(body, at)
        if match is None:
            break
        a, b, c, d, e = match.groups()
        low, high = (int(a), int(b)) if a else (int(c), int(d)) if c else (int(e), int(e))
        if low > high:
            break
        ranges.append((low, high))
        at = match.end()
    if not ranges or at < len(body) or body.endswith(","):
        raise TraceError("bad-range", f"{what} {text!r}", "write 0-3,5 or [0,31],[64,95]")
    return tuple(ranges)


def within(values: I64, ranges: tuple[tuple[int, int], ...]) -> Bools:
    """Which values lie in one of the inclusive ranges."""
    mask = np.zeros(len(values), np.bool_)
    for low, high in ranges:
        mask |= (values >= low) & (values <= high)
    return mask


def kernel_tag(name: str) -> str:
    """Short name of a kernel in tokens: its first identifier (24 characters) and a 16-bit hash in hex."""
    found = re.search(r"[A-Za-z_]\w*", name)
    lead = found.group(0)[:24] if found else "kernel"
    number = 0
    for unit in memoryview(name.encode("utf-16-le", "surrogatepass")).cast("H"):
        number = (number * 31 + unit) & 0xFFFFFFFF
    return f"{lead}#{number % 65536:04x}"


def level_ids(rows: Rows, level: str, warps_per_block: int) -> I64:
    """Launch-wide id of each row's thread, warp, warpgroup or block."""
    if level == "thread":
        return rows.tid
    if level == "block":
        return rows.block
    if level == "warp":
        return rows.block * warps_per_block + rows.warp
    groups = -(-warps_per_block // WARPS_PER_GROUP)
    return rows.block * groups + rows.warp // WARPS_PER_GROUP


def parse_token(text: str) -> Selection:
    """Read a token; TraceError ``[bad-token]``."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise TraceError("bad-token", f"{text!r} is no selection",
                         "copy it from the page: gwtrace/1 kernel=… t=…")
    level, ids, scopes = match["level"], match["ids"], match["scopes"]
    if level is not None and level not in LEVELS:
        raise TraceError("bad-token", f"the selection's level {level!r} is unknown",
                         "one of " + ", ".join(LEVELS))
    return Selection(match["kernel"], int(match["t0"]), int(match["t1"]), match["unit"], level,
                     parse_ranges(ids, "lane") if ids else (), match["order"],
                     tuple(unquote(s) for s in scopes.split(",") if s) if scopes is not None else None)


def format_token(run: Run, t0: int, t1: int, level: str | None = None,
                 ids: tuple[tuple[int, int], ...] = (), scopes: tuple[str, ...] = ()) -> str:
    """The token of a selection; ``t0`` and ``t1`` are relative to the run's first record."""
    parts = [f"gwtrace/1 kernel={kernel_tag(run.kernel)} t={t0}:{t1}{run.unit}"]
    if level:
        parts.append(f"lane={level}:" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ids))
    if scopes:
        parts.append("scopes=" + ",".join(quote(s, safe="") for s in scopes))
    return " ".join(parts)


def keep_rows(run: Run, mask: Bools) -> Run:
    """The run with only the rows in ``mask``; its tables are computed anew."""
    trace = run.trace
    number = np.cumsum(mask) - 1
    chosen = mask[trace.row]
    table = trace.rows
    rows = Rows(table.tid[mask], table.block[mask], table.warp[mask], table.lane[mask], table.smid[mask],
                table.dropped[mask], table.tail_gap[mask], table.origin[mask], table.exact[mask])
    narrowed = Trace(rows, number[trace.row[chosen]], trace.site[chosen], trace.time[chosen],
                     trace.value[chosen], trace.sequence[chosen], trace.lane[chosen], trace.gap[chosen])
    kept = run.kept_roles and (run.kept_roles[0], run.kept_roles[1][mask])
    return replace(run, trace=narrowed, first=run.zero, kept_roles=kept)


def keep_time(run: Run, start: int | None, end: int | None) -> Run:
    """The run with only the intervals that overlap [start, end] (absolute times; None: open).

    Raises TraceError ``[bad-range]`` for an end before the start, ``[empty-window]`` for a window in which no record of
    the run can lie.
    """
    first, last = run.time_range
    low, high = first if start is None else start, last if end is None else end
    if run.window is not None:
        low, high = max(low, run.window[0]), min(high, run.window[1])
    if low > high and (run.window is not None or (start is not None and end is not None)):
        raise TraceError("bad-range", f"the time window {low} to {high} is empty")
    if len(run.trace) and (low > last or high < first):
        side = f"after {low}" if low > last else f"before {high}"
        ends = " to ".join(since(time - run.zero, run.unit) for time in (first, last))
        raise TraceError("empty-window", f"nothing was recorded {side}", f"these records lie from {ends} ({first} to "
                         f"{last}); times with a unit or + count from the run's first record")
    # A window around all there is limits nothing.
    return run if low <= first and high >= last else replace(run, window=(low, high))


def keep_scopes(run: Run, scopes: tuple[str, ...]) -> Run:
    """The run with only the regions of these scopes; TraceError ``[no-scope]`` for a name that is none."""
    known = {region.label for region in run.regions}
    unknown = [s for s in scopes if s not in known]
    if unknown:
        raise TraceError("no-scope", f"there is no scope {unknown[0]!r}",
                         "the scopes are " + (", ".join(sorted(known)) or "none: the trace has no regions"),
                         sorted(known))
    kept = tuple(r for r in run.regions if r.label in scopes)
    roles = {label: role for label, role in run.roles.items() if label in scopes}
    return replace(run, regions=kept, roles=roles, kept_roles=run.row_roles)


def select_rows(run: Run, tid: str | None = None, block: str | None = None, warp: str | None = None,
                cluster: str | None = None) -> Run:
    """The run narrowed by global thread id, block, warp within its block, and cluster (range texts).

    For a run of warps ``tid`` matches when the warp holds one of the threads. Raises TraceError ``[bad-
    range]``, ``[no-rows]`` and ``[no-clusters]``.
    """
    rows = run.trace.rows
    mask = np.ones(len(rows), np.bool_)
    if tid is not None:
        ranges = parse_ranges(tid, "--tid")
        span = np.where(rows.lane < 0, WARP - 1, 0)
        hit = np.zeros(len(rows), np.bool_)
        for low, high in ranges:
            hit |= (rows.tid + span >= low) & (rows.tid <= high)
        mask &= hit
    if block is not None:
        mask &= within(rows.block, parse_ranges(block, "--block"))
    if warp is not None:
        mask &= within(rows.warp.astype(np.int64), parse_ranges(warp, "--warp"))
    if cluster is not None:
        ranges = parse_ranges(cluster, "--cluster")
        if run.row_clusters is None:
            raise TraceError("no-clusters", run.no_clusters, "choose with --block")
        mask &= within(run.row_clusters, ranges)
    return _checked(run, mask)


def parse_time(text: str, what: str, run: Run, up: bool = False) -> int:
    """An absolute time of the run: ``+17.6us``, ``17600ns`` and ``+17600`` count from :attr:`Run.zero`, a plain integer
    is absolute. ``up``: fractions of a unit are rounded up. TraceError ``[bad-number]``.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        example = "+17.6us" if run.unit == "ns" else "+17.6kcyc"
        raise TraceError("bad-number", f"{what} {text!r}", f"write {example}, from the run's first record, or a plain "
                         "absolute number")
    sign, digits, unit = match.groups()
    unit = unit.replace(" ", "").replace("µ", "u").replace("μ", "u")
    if not unit and sign != "+" and "." not in digits:
        return int(text)
    scale = _SCALES[run.unit].get(unit or run.unit)
    if scale is None or sign == "-" or not (unit or sign):
        raise TraceError("bad-number", f"{what} {text!r}", f"times in {', '.join(_SCALES[run.unit])} count from the "
                         "run's first record and are not negative; absolute ones are integers")
    value = Fraction(digits) * scale
    return run.zero + (ceil(value) if up else floor(value))


def apply_selection(run: Run, selection: Selection) -> Run:
    """The run narrowed to a selection; TraceError ``[other-kernel]``, ``[no-rows]``, ``[no-scope]``."""
    mine = kernel_tag(run.kernel)
    if selection.kernel != mine:
        raise TraceError("other-kernel", f"the selection is of {selection.kernel}, this run is of {mine}",
                         "choose the run with --run")
    if selection.unit != run.unit:
        raise TraceError("bad-token", f"the selection counts {selection.unit}, this run counts {run.unit}")
    base = run.zero
    if selection.level:
        ids = level_ids(run.trace.rows, selection.level, run.geometry.warps_per_block)
        run = _checked(run, within(ids, selection.ids))
    if selection.scopes:
        run = keep_scopes(run, selection.scopes)
    return keep_time(run, base + selection.t0, base + selection.t1)


def _recorded(run: Run) -> dict[str, NDArray[Any]]:
    """Of each row its block, its warp in the block, and its cluster; nothing without rows."""
    rows = run.trace.rows
    if len(rows) == 0:
        return {}
    found: dict[str, NDArray[Any]] = {"block": rows.block, "warp": rows.warp}
    return found if run.row_clusters is None else {**found, "cluster": run.row_clusters}


def ranges_text(values: NDArray[Any], most: int | None = None) -> str:
    """``0-3,5`` of the numbers, at least one; more than ``most`` ranges are cut."""
    numbers = np.unique(values)
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    low, high = numbers[np.r_[0, breaks + 1]].tolist(), numbers[np.r_[breaks, len(numbers) - 1]].tolist()
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in zip(low, high, strict=True)]
    return ",".join(parts[:most]) + (", …" if most is not None and len(parts) > most else "")


def _checked(run: Run, mask: Bools) -> Run:
    if not mask.any():
        there = _recorded(run)
        hint = "recorded are " + ", ".join(f"{name}s {ranges_text(ids, 8)}" for name, ids in there.items())
        raise TraceError("no-rows", f"no row of the {len(mask)} recorded ones fits the filter", hint,
                         [f"--{name} {ranges_text(ids)}" for name, ids in there.items()])
    return run if mask.all() else keep_rows(run, mask)
