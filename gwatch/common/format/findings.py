"""What stands out in a trace, by stated rules: each finding names its threshold's evidence and where to look.

A finding is a place to look at, not a diagnosis. Rules are tuned to say nothing about an even, busy kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format import analysis as tables
from gwatch.common.format.iterations import LEAST
from gwatch.common.format.run import Run
from gwatch.common.format.text import duration, locator, since
from gwatch.common.format.waits import (
    WAIT_SHARE,
    WAITING,
    Dependence,
    dependences,
    find_waits,
    idle_rows,
    lives,
    ran_by,
    scope_places,
    wait_scopes,
    waiting_shares,
)

SERIAL_SHARE = 0.25
"""A scope that runs once in its rows, beside a loop, and takes this part of their lifetime."""
SLOW_BLOCK = 1.5
"""A block that takes this many times the median block's time, and stands out of their spread."""
UNEVEN = 1.5
"""A row with this many times the median active time of its role."""
TAIL_SHARE = 0.25
"""Part of the span at the end during which less than half of the peak rows are active."""
SPREAD = 3.0
"""A scope whose 95th percentile is this many times its median."""
SPREAD_WEIGHT = 0.10
"""… and that makes up this part of all time in regions."""
MIN_GROUP = 8
"""Blocks or rows needed to call one of them unusual."""
SPREAD_DEVIATIONS = 6.0
"""… by this many median absolute deviations."""
TIMER_STEP_NS = 32
"""Step of the ns timer where the trace does not tell (32 ns on the H200)."""
STEPS = 3
"""A scope whose median is below this many timer steps is measured too coarsely."""
DIVERGED_SHARE = 0.01
"""Part of a region's warp intervals that begin and end in different lanes."""
PROBE_SHARE = 0.25
"""Part of a scope's median that the record at its end may cost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``weight`` orders findings: roughly the share of time concerned."""

    code: str
    text: str
    weight: float
    evidence: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.text, "weight": self.weight, "evidence": self.evidence}


def findings(run: Run) -> list[Finding]:
    """All findings of a run, weightiest first; empty when nothing stands out."""
    if len(run.intervals) == 0:
        return []
    tail = list(_tail(run))
    slow = [_with_tail(run, finding, tail) for finding in _slow_blocks(run)]
    uneven = _uneven_rows(run, [f.evidence["block"] for f in slow])
    rules = (_role_waits, _long_waits, _serial, _spread, _resolution, _probe_cost, _diverged)
    found = [*slow, *tail, *uneven, *(finding for rule in rules for finding in rule(run))]
    return sorted(found, key=lambda f: (-f.weight, f.code, f.text))


def _role_waits(run: Run) -> Iterator[Finding]:
    found = {pair: _wait_finding(run, *pair, dependence) for pair, dependence in dependences(run).items()}
    for (name, source), finding in found.items():
        back = found.get((source, name))
        if back is None:
            yield finding
        elif name < source:
            yield _turns(finding, back)


def _turns(one: Finding, other: Finding) -> Finding:
    """Two roles that each wait for the other do not overlap."""
    a, b = one.evidence["role"], other.evidence["role"]
    return Finding(
        "take-turns", f"{a} and {b} take turns: {a} waits {one.weight:.0%} of its life for {b} "
        f"({one.evidence['scope']}), {b} {other.weight:.0%} for {a} ({other.evidence['scope']}); one more buffer "
        "would let them overlap", max(one.weight, other.weight),
        {"roles": [a, b], "waits": [one.evidence, other.evidence]})


def _long_waits(run: Run) -> Iterator[Finding]:
    """Scopes that are waits, and who waits least beside them. Idle rows wait for the end, which is no news."""
    shares = waiting_shares(run)
    for w in wait_scopes(run):
        share, name = w["share"], w["role"]
        if share < WAIT_SHARE or w["idle"]:
            continue
        others = {other: part for other, part in shares.items() if other != name}
        pace = min(others, key=lambda other: others[other], default="")
        tail = ""
        if pace and others[pace] < share / 2:
            tail = f"; {pace}, which waits {others[pace]:.0%}, sets the pace"
        yield Finding(
            "long-wait", f"{_waiting_rows(run, w)} spends {share:.0%} of its life at {w['scope']}"
            f"{' (' + w['line'] + ')' if w['line'] else ''}{tail}; longest {duration(w['longest'], run.unit)} at "
            f"{locator(run.trace.rows, w['longest_row'])}", w["role_share"],
            {"scope": w["scope"], "role": name, "share": share, "rows": w["rows"], "role_rows": w["role_rows"],
             "line": w["line"], "pace": pace if tail else None})


def _waiting_rows(run: Run, wait: Mapping[str, Any]) -> str:
    """Whose life a wait's share is of; where it is not that of every row of a role, of how many."""
    rows, peers, name = wait["rows"], wait["role_rows"], wait["role"]
    if rows == peers and (name or peers == len(run.per_row)):
        return name or "every row"
    of = f" of {name}" if name else " without a role" if run.row_roles[0] else ""
    return f"each of {rows} of the {peers} rows{of}"


def _serial(run: Run) -> Iterator[Finding]:
    """What comes once, before or after a loop, and takes long: nothing hides it."""
    iv = run.intervals
    life_of = lives(run)
    counts = {k: np.bincount(iv.row[run.scope == k], minlength=len(life_of)) for k in range(len(run.labels))}
    counts = {k: count for k, count in counts.items() if count.any()}
    loops = [k for k, count in counts.items() if np.median(count[count > 0]) >= LEAST]
    for k, count in counts.items():
        rows = np.flatnonzero(count)
        beside = [loop for loop in loops if (counts[loop][rows] > 0).mean() > 0.5]
        if count.max() != 1 or not beside or WAITING.search(run.labels[k]):
            continue
        mine = np.flatnonzero(run.scope == k)
        length = (iv.end - iv.start)[mine]
        share = float(run.inside[mine].sum()) / max(int(life_of[rows].sum()), 1)
        if share < SERIAL_SHARE or _encloses(run, mine, np.isin(run.scope, beside)):
            continue
        median = tables.percentile(np.sort(length), 0.5)
        yield Finding(
            "serial-scope", f"{run.labels[k]} runs once and takes {share:.0%} of its rows' life "
            f"({duration(median, run.unit)} in the median), beside a loop that it does not overlap", share,
            {"scope": run.labels[k], "share": share, "p50": median})


def _encloses(run: Run, mine: NDArray[np.int64], loop: NDArray[np.bool_]) -> bool:
    """Whether the loop's runs lie inside these intervals: a scope around the whole loop is no part beside it."""
    iv = run.intervals
    start, end = (np.zeros(len(run.trace.rows), np.int64) for _ in range(2))
    start[iv.row[mine]], end[iv.row[mine]] = iv.start[mine], iv.end[mine]
    others = np.flatnonzero(loop & np.isin(iv.row, iv.row[mine]))
    row = iv.row[others]
    return bool(((iv.start[others] >= start[row]) & (iv.end[others] <= end[row])).mean() > 0.5)


def _wait_finding(run: Run, name: str, source: str, found: Dependence) -> Finding:
    waits, mine, share, slack = find_waits(run), found.waits, found.share, found.slack
    length = (waits.end - waits.start)[mine]
    scopes = run.scope[waits.released_by[mine]]
    label = run.labels[int(np.argmax(np.bincount(scopes, length)))]
    worst = mine[int(np.argmax(length))]
    median = tables.percentile(np.sort(slack), 0.5)
    where = locator(run.trace.rows, int(waits.row[worst]))
    longest = int(length.max())
    lines = {end: scope_places(run, label, end == "last") for end in ("first", "last")}
    at = f", {lines['first']} to {lines['last']}" if all(lines.values()) else ""
    return Finding(
        "role-waits", f"{name} waits {share:.0%} of its life for {source} ({label}{at}): {len(mine)} waits, going on "
        f"{duration(median, run.unit)} (median) after it ends; longest {duration(longest, run.unit)} at {where} "
        f"{since(int(waits.start[worst]) - run.zero, run.unit)}", share,
        {"role": name, "waits_for": source, "scope": label, "lines": list(lines.values()), "share": share,
         "count": len(mine),
         "slack_p50": median, "longest": longest, "longest_row": int(waits.row[worst])})


def _outlier(values: NDArray[np.int64], factor: float) -> tuple[int, float] | None:
    """(place, ratio to the median) of the largest value, if it stands out by ``factor`` and by the spread."""
    if len(values) < MIN_GROUP:
        return None
    middle = float(np.median(values))
    spread = float(np.median(np.abs(values - middle)))
    place = int(np.argmax(values))
    top = float(values[place])
    if middle <= 0 or top < factor * middle or top - middle < SPREAD_DEVIATIONS * spread:
        return None
    return place, top / middle


def _slow_blocks(run: Run) -> Iterator[Finding]:
    iv, rows = run.intervals, run.trace.rows
    blocks, index = np.unique(rows.block[iv.row], return_inverse=True)
    index = index.reshape(-1)
    low, high = np.full(len(blocks), np.iinfo(np.int64).max), np.full(len(blocks), np.iinfo(np.int64).min)
    first, last = run.window or (int(iv.start.min()), int(iv.end.max()))
    np.minimum.at(low, index, np.maximum(iv.start, first))
    np.maximum.at(high, index, np.minimum(iv.end, last))
    found = _outlier(high - low, SLOW_BLOCK)
    if found is None:
        return
    place, ratio = found
    block, took = int(blocks[place]), int(high[place] - low[place])
    sm = int(rows.smid[rows.block == block][0])
    where = f" on SM {sm}" if sm >= 0 else ""
    middle = int(np.median(high - low))
    yield Finding("slow-block", f"block {block}{where} takes {duration(took, run.unit)}, {ratio:.1f} times the median "
                  f"block ({duration(middle, run.unit)})", 1 - 1 / ratio,
                  {"block": block, "smid": sm, "took": took, "median": middle, "ratio": ratio})


def _uneven_rows(run: Run, slow_blocks: list[int]) -> Iterator[Finding]:
    """Rows of unusual active time, unless their whole block is so."""
    block = run.trace.rows.block
    names, role = run.row_roles
    per_row = run.per_row[~idle_rows(run)[run.per_row[:, 0]]]
    for who, name in [*enumerate(names), (-1, "")]:
        mine = per_row[role[per_row[:, 0]] == who]
        found = _outlier(mine[:, 1], UNEVEN)
        if found is None:
            continue
        place, ratio = found
        row, active = int(mine[place, 0]), int(mine[place, 1])
        peers = mine[(block[mine[:, 0]] == block[row]) & (mine[:, 0] != row), 1]
        if active < UNEVEN * np.median(peers) if len(peers) else int(block[row]) in slow_blocks:
            continue
        yield Finding("uneven-rows", f"{locator(run.trace.rows, row)} is active {duration(active, run.unit)}, "
                      f"{ratio:.1f} times the median {name or 'row'}", (1 - 1 / ratio) / 2,
                      {"role": name, "row": row, "active": active, "ratio": ratio})


def _tail(run: Run) -> Iterator[Finding]:
    if run.window is not None:  # its edges cut intervals, which is no tail
        return
    share, peak = _tail_share(run.analysis["concurrency"])
    if share >= TAIL_SHARE:
        yield Finding("tail", f"the last {share:.0%} of the span runs with less than half of the peak {peak} rows",
                      share / 2, {"share": share, "peak": peak})


def _tail_share(concurrency: Mapping[str, Any]) -> tuple[float, int]:
    """(part of the span at its end with less than half of the peak, the peak); (0, peak) for few rows."""
    bins, peak = np.array(concurrency["bins"]), int(concurrency["peak"])
    if peak < MIN_GROUP:
        return 0.0, peak
    busy = np.flatnonzero(bins * 2 >= peak)
    return 1 - (int(busy[-1]) + 1) / len(bins), peak


def _with_tail(run: Run, slow: Finding, tail: list[Finding]) -> Finding:
    """A slow block's finding; a tail that would not be there without the block is told with it, and no more alone."""
    cover, rows = run.cover, run.trace.rows
    others = rows.block[cover.row] != slow.evidence["block"]
    if not tail or not others.any():
        return slow
    rest = tables.Coverage(*(getattr(cover, field)[others] for field in ("row", "start", "end", "first", "last")))
    low, high = run.time_range[0], int(rest.end.max())
    if _tail_share(tables.concurrency(rest, low, high))[0] >= TAIL_SHARE:
        return slow
    share = tail.pop().evidence["share"]
    return Finding(slow.code, f"{slow.text}; all others end by {since(high - run.zero, run.unit)}, the rest of the "
                   "span is its own", slow.weight, {**slow.evidence, "tail_share": share, "others_end": high})


def _spread(run: Run) -> Iterator[Finding]:
    """Scopes that take much longer at times, within one role: what two roles do in a scope may well differ."""
    iv, (names, role), idle = run.intervals, run.row_roles, idle_rows(run)
    length, total = iv.end - iv.start, max(int(run.inside.sum()), 1)
    kind = run.scope.astype(np.int64) * (len(names) + 1) + role[iv.row] + 1
    kind[idle[iv.row]] = -1
    for k in np.unique(kind[kind >= 0]).tolist():
        mine = np.flatnonzero(kind == k)
        ordered, weight = np.sort(length[mine]), int(run.inside[mine].sum()) / total
        p50, p95 = tables.percentile(ordered, 0.5), tables.percentile(ordered, 0.95)
        if len(mine) < MIN_GROUP or p50 <= 0 or p95 < SPREAD * p50 or weight < SPREAD_WEIGHT:
            continue
        label, name = run.labels[k // (len(names) + 1)], names[k % (len(names) + 1) - 1] if k % (len(names) + 1) else ""
        given = name if name and len(ran_by(run, label)) > 1 else ""
        yield Finding("spread", f"{label}{' of ' + given if given else ''} varies: one run in twenty takes "
                      f"{duration(p95, run.unit)} or more, {p95 / p50:.1f} times the median", weight / 2,
                      {"scope": label, "role": name, "p50": p50, "p95": p95})


def _resolution(run: Run) -> Iterator[Finding]:
    if run.clock != "gpu":
        return
    for s in run.analysis["scope_stats"]:
        if s["p50"] < STEPS * TIMER_STEP_NS:
            yield Finding("resolution", f"{s['scope_label']} takes {duration(s['p50'], run.unit)} (median), near the "
                          f"ns timer's {TIMER_STEP_NS} ns step: trace it with clock_type anchor or sm", 0.0,
                          {"scope": s["scope_label"], "p50": s["p50"], "step": TIMER_STEP_NS})


def _probe_cost(run: Run) -> Iterator[Finding]:
    cost = run.evidence.get("cost_per_record")
    if cost is None or run.unit != "cyc":
        return
    for s in run.analysis["scope_stats"]:
        if s["p50"] * PROBE_SHARE < float(cost):
            yield Finding("probe-cost", f"a record costs {float(cost):.0f} cycles, {s['scope_label']} takes "
                          f"{duration(s['p50'], run.unit)} (median): its figures are mostly the recording", 0.0,
                          {"scope": s["scope_label"], "p50": s["p50"], "cost": float(cost)})


def _diverged(run: Run) -> Iterator[Finding]:
    """A converged warp elects the same lane again; other lanes mean that groups of lanes went separate ways."""
    iv, lane = run.intervals, run.trace.lane
    warps = run.trace.rows.lane[iv.row] < 0
    other = warps & (lane[iv.opened] != lane[iv.closed])
    for k in np.unique(run.scope[other]).tolist():
        mine = run.scope == k
        share = int((mine & other).sum()) / int((mine & warps).sum())
        if share >= DIVERGED_SHARE:
            yield Finding("diverged", f"{run.labels[k]}: {share:.0%} of its warp intervals begin and end in different "
                          "lanes; the warp may be diverged there: trace these sites per thread", 0.0,
                          {"scope": run.labels[k], "share": share})
