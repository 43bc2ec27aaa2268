"""Before and after: two runs compared scope by scope, with a test that says whether a difference stands out.

The unit of comparison is the block: intervals of one block share its fate, so each block counts once per
scope, with the mean of its durations. Two-sided Mann-Whitney rank test with tie correction (normal
approximation). What one launch of each kernel cannot tell is how much launches differ among themselves.
"""

from __future__ import annotations

from math import erfc, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.analysis import percentile
from gwatch.common.format.findings import Finding, findings
from gwatch.common.format.run import Run
from gwatch.common.format.waits import role_table, wait_scopes, wait_table
from gwatch.errors import TraceError

SIGNIFICANCE = 0.01
MIN_CHANGE = 0.01
"""Medians closer than this (1 %) are called the same whatever the test says."""


def rank_test(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Two-sided p-value of the Mann-Whitney test that ``a`` and ``b`` come from one distribution."""
    n, m = len(a), len(b)
    values, inverse, counts = np.unique(np.concatenate([a, b]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]
    if len(values) < 2:
        return 1.0
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    ties = float((counts.astype(float) ** 3 - counts).sum())
    return _p_value(abs(u - n * m / 2), n, m, ties)


def _p_value(distance: float, n: int, m: int, ties: float = 0.0) -> float:
    """p of a rank sum that lies ``distance`` from its mean, with continuity correction."""
    total = n + m
    variance = n * m / 12 * ((total + 1) - ties / (total * (total - 1)))
    return erfc(max(0.0, distance - 0.5) / sqrt(2 * variance))


def enough(n: int, m: int) -> bool:
    """Could the test succeed at all with so many blocks on each side?"""
    return n > 0 and m > 0 and _p_value(n * m / 2, n, m) < SIGNIFICANCE


def _per_block(run: Run, label: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """(durations of a scope, its mean per block)."""
    mine = np.flatnonzero(run.scope == run.labels.index(label))
    length = (run.intervals.end - run.intervals.start)[mine]
    _, block = np.unique(run.trace.rows.block[run.intervals.row[mine]], return_inverse=True)
    block = block.reshape(-1)
    return np.sort(length), np.bincount(block, length) / np.maximum(1, np.bincount(block))


def compare_runs(before: Run, after: Run) -> dict[str, Any]:
    """{kernels, unit, span_before, span_after, scopes: [...], only_before, only_after, roles: [...], waits: [...],
    findings}; scopes by change of total time.

    ``kernels.same`` is whether both have one name: else the numbers compare different code. ``change`` is the ratio of
    medians minus 1; ``verdict`` is "faster", "slower", "same" or "too few"
    (blocks). ``roles`` and ``waits`` say which part of their lives rows wait, by role, and by what they wait for.
    ``findings`` are "gone", "new" and "still" there. Raises TraceError ``[other-unit]`` when one run counts cycles and
    the other nanoseconds.
    """
    if before.unit != after.unit:
        raise TraceError("other-unit", f"one run counts {before.unit}, the other {after.unit}",
                         "trace both with the same clock_type")
    scopes = []
    ran = [{run.labels[k] for k in np.unique(run.scope)} for run in (before, after)]
    for label in sorted(ran[0] & ran[1]):
        (a, a_blocks), (b, b_blocks) = _per_block(before, label), _per_block(after, label)
        old, new = percentile(a, 0.5), percentile(b, 0.5)
        p = rank_test(a_blocks, b_blocks)
        change = new / old - 1 if old else 0.0
        word = "same"
        if not enough(len(a_blocks), len(b_blocks)):
            word = "too few"
        elif p < SIGNIFICANCE and abs(change) >= MIN_CHANGE:
            word = "slower" if change > 0 else "faster"
        scopes.append({"scope_label": label, "count_before": len(a), "count_after": len(b), "p50_before": old,
                       "p50_after": new, "change": change, "total_before": int(a.sum()),
                       "total_after": int(b.sum()), "blocks_before": len(a_blocks), "blocks_after": len(b_blocks),
                       "p_value": p, "verdict": word})
    scopes.sort(key=lambda s: (-abs(s["total_after"] - s["total_before"]), s["scope_label"]))
    spans = [run.extent[1] - run.extent[0] for run in (before, after)]
    return {"kernels": {"before": before.kernel, "after": after.kernel, "same": before.kernel == after.kernel},
            "unit": before.unit, "span_before": spans[0], "span_after": spans[1], "scopes": scopes,
            "only_before": sorted(ran[0] - ran[1]), "only_after": sorted(ran[1] - ran[0]),
            "roles": _both(_waiting(before), _waiting(after)), "waits": _both(_waits(before), _waits(after)),
            "findings": _findings(before, after)}


def _waiting(run: Run) -> dict[tuple[str, ...], tuple[float, int]]:
    """Role -> (part of its life outside scopes, that time in its mean row)."""
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    table = role_table(run)
    for role in dict.fromkeys(r["role"] for r in table):
        bubble, life, rows = (sum(r[key] for r in table if r["role"] == role) for key in ("bubble", "lifetime", "rows"))
        found[role,] = bubble / life if life else 0.0, bubble // rows
    return found


def _waits(run: Run) -> dict[tuple[str, ...], tuple[float, int]]:
    """(role, what it waits for) -> (part of the role's life, median wait): holes by what ended them, recorded waits by
    their names."""
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for w in wait_table(run):
        other = f"{w['released_by_role'] or ''} {w['released_by']}".strip() if w["released_by"] else ""
        key = (w["role"], other)
        share, median = found.get(key, (0.0, w["p50"]))
        found[key] = share + w["share"], median
    return found | {(w["role"], w["scope"]): (w["share"], w["p50"]) for w in wait_scopes(run) if not w["idle"]}


def _both(before: dict[tuple[str, ...], tuple[float, int]],
          after: dict[tuple[str, ...], tuple[float, int]]) -> list[dict[str, Any]]:
    """One entry per key of either, largest change of share first; what one side lacks is None."""
    table: list[dict[str, Any]] = []
    for key in before.keys() | after.keys():
        (share, time), (new_share, new_time) = before.get(key, (None, None)), after.get(key, (None, None))
        table.append({**dict(zip(("role", "waits_for"), key, strict=False)), "share_before": share,
                      "share_after": new_share, "time_before": time, "time_after": new_time})
    table.sort(key=lambda e: (-abs((e["share_after"] or 0) - (e["share_before"] or 0)), e["role"],
                              e.get("waits_for", "")))
    return table


def _findings(before: Run, after: Run) -> dict[str, list[dict[str, Any]]]:
    old, new = ({_what(f): f for f in findings(run)} for run in (before, after))
    return {"gone": [f.as_dict() for k, f in old.items() if k not in new],
            "new": [f.as_dict() for k, f in new.items() if k not in old],
            "still": [f.as_dict() for k, f in new.items() if k in old]}


def _what(finding: Finding) -> tuple[Any, ...]:
    """What a finding is about: two of one kind about the same roles and scopes are the same finding."""
    e = finding.evidence
    return finding.code, e.get("role"), e.get("waits_for"), e.get("scope"), tuple(e.get("roles") or ())
