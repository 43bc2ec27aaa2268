"""Who waits for whom: holes in a row's work, and which other role's work ended before each hole did.

A wait is a hole between two covered stretches of a row. It is *released* by the interval of another role in
the same block that ended last within the hole. That is a coincidence in time, not a proof: the share of
waits that have a releaser, and how tightly (the slack between that end and the wait's end), say how far to
believe it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gwatch.common.format import analysis as tables
from gwatch.common.format.losses import I64, Bools
from gwatch.common.format.run import Run
from gwatch.common.format.text import place_of

WAIT_SHARE = 0.20
"""A role that spends this part of its lifetime in waits released by another role waits for it."""
WAIT_TIGHT = 0.5
"""Such a wait counts when what released it ended in the last half of the wait: it was still needed then."""
WAITING = re.compile(r"\b(?:wait|barrier)", re.IGNORECASE)
"""Scopes that are waits themselves, by their name: ``--auto`` names them so, and so do people."""


@dataclass(frozen=True, slots=True)
class Waits:
    """W holes between covered stretches, ordered by (row, start)."""

    row: I64
    start: I64
    end: I64
    before: I64
    """Scope that ended last before the hole."""
    after: I64
    """Scope that begins after it."""
    released_by: I64
    """Index of the releasing interval; -1 for none."""


def find_waits(run: Run) -> Waits:
    """All holes of all rows, with their releasers where the run has roles (found once per run)."""
    known = run.memory.get("waits")
    if not isinstance(known, Waits):
        known = run.memory["waits"] = _find_waits(run)
    return known


def _find_waits(run: Run) -> Waits:
    cover, scope = run.cover, run.scope.astype(np.int64)
    none = np.zeros(0, np.int64)
    if len(cover.row) < 2:
        return Waits(none, none, none, none, none, none)
    hole = np.flatnonzero((cover.row[1:] == cover.row[:-1]) & (cover.start[1:] > cover.end[:-1]))
    row, start, end = cover.row[hole], cover.end[hole], cover.start[hole + 1]
    return Waits(row, start, end, scope[cover.last[hole]], scope[cover.first[hole + 1]],
                 _releasers(run, row, start, end))


def _releasers(run: Run, row: I64, start: I64, end: I64) -> I64:
    result = np.full(len(row), -1, np.int64)
    names, role = run.row_roles
    if len(names) < 2 or len(row) == 0:
        return result
    iv, block = run.intervals, run.trace.rows.block
    best = np.full(len(row), np.iinfo(np.int64).min)
    for other in range(len(names)):
        mine = np.flatnonzero(role[iv.row] == other)
        if len(mine) == 0:
            continue
        order = mine[np.lexsort((iv.end[mine], block[iv.row[mine]]))]
        # (block, end) as one key: blocks are ranked, times are relative to the first one.
        blocks = np.unique(block)
        base = min(int(iv.end[mine].min()), int(end.min()))
        span = max(int(iv.end[mine].max()), int(end.max())) - base + 1
        keys = np.searchsorted(blocks, block[iv.row[order]]) * span + (iv.end[order] - base)
        mine_block = np.searchsorted(blocks, block[row]) * span
        place = np.searchsorted(keys, mine_block + (end - base), side="right") - 1
        found = place >= 0
        candidate = order[np.maximum(place, 0)]
        when = iv.end[candidate]
        found &= (block[iv.row[candidate]] == block[row]) & (when > start) & (role[row] != other) & (when > best)
        result[found], best[found] = candidate[found], when[found]
    return result


@dataclass(frozen=True, slots=True)
class Dependence:
    """A role's waits that another role's work released: their indices in :func:`find_waits`, the part of the role's
    lifetime, and per wait the time it went on after the release."""

    waits: I64
    share: float
    slack: I64


def dependences(run: Run) -> dict[tuple[str, str], Dependence]:
    """(waiting role, role waited for) -> its waits, where they take ``WAIT_SHARE`` of the waiting role's life."""
    known = run.memory.get("dependences")
    if isinstance(known, dict):
        return known
    found: dict[tuple[str, str], Dependence] = {}
    names, role = run.row_roles
    waits, iv, per_row = find_waits(run), run.intervals, run.per_row
    length, slack = waits.end - waits.start, waits.end - iv.end[waits.released_by] if len(iv) else waits.end
    tight = (waits.released_by >= 0) & (slack <= WAIT_TIGHT * length)
    for who, name in enumerate(names if len(names) > 1 and len(waits.row) else []):
        life = int(per_row[role[per_row[:, 0]] == who, 3].sum())
        for other, source in enumerate(names):
            mine = np.flatnonzero(tight & (role[waits.row] == who) & (role[iv.row[waits.released_by]] == other))
            total = int(length[mine].sum())
            if life and len(mine) and total / life >= WAIT_SHARE:
                found[name, source] = Dependence(mine, total / life, slack[mine])
    run.memory["dependences"] = found
    return found


def scope_places(run: Run, label: str, leave: bool = False) -> str:
    """Where a scope begins, or ends: its sites' source lines, or instruction numbers without any; "" when unknown."""
    wanted = dict.fromkeys(region.leave if leave else region.enter for region in run.regions if region.label == label)
    places = dict.fromkeys(place_of(run.site(number)) for number in wanted)
    return ", ".join(place for place in places if place)


def wait_table(run: Run) -> list[dict[str, Any]]:
    """Waits by (waiting role, scope before, scope after, releasing role and scope), longest total first.

    ``share`` is the part of the waiting role's total lifetime; ``slack_p50`` the median time from the
    release to the wait's end; ``longest`` locates the longest one; ``from_line`` and ``to_line`` are where the scope
    before ends and the one after it begins.
    """
    waits, iv = find_waits(run), run.intervals
    if len(waits.row) == 0:
        return []
    names, role = run.row_roles
    per_row = run.per_row
    lifetime = np.zeros(len(names) + 1)
    np.add.at(lifetime, role[per_row[:, 0]], per_row[:, 3])
    released = waits.released_by >= 0
    releaser = np.where(released, waits.released_by, 0)
    by_role = np.where(released, role[iv.row[releaser]], -1)
    by_scope = np.where(released, run.scope[releaser], -1)
    sizes = (len(names) + 1, len(run.labels), len(run.labels), len(names) + 1, len(run.labels) + 1)
    parts = (role[waits.row] + 1, waits.before, waits.after, by_role + 1, by_scope + 1)
    keys, index = np.unique(np.ravel_multi_index(parts, sizes), return_inverse=True)
    index = index.reshape(-1)
    kinds = np.stack(np.unravel_index(keys, sizes), axis=1) - (1, 0, 0, 1, 1)
    length = waits.end - waits.start
    table: list[dict[str, Any]] = []
    for k, (who, before, after, other, scope) in enumerate(kinds.tolist()):
        mine = np.flatnonzero(index == k)
        total = int(length[mine].sum())
        slack = np.sort((waits.end - iv.end[releaser])[mine]) if other >= 0 or scope >= 0 else None
        worst = int(mine[np.argmax(length[mine])])
        table.append({
            "role": names[who] if who >= 0 else "", "before": run.labels[before], "after": run.labels[after],
            "released_by_role": names[other] if other >= 0 else None,
            "released_by": run.labels[scope] if scope >= 0 else None,
            "from_line": scope_places(run, run.labels[before], True), "to_line": scope_places(run, run.labels[after]),
            "count": len(mine), "total": total, "p50": tables.percentile(np.sort(length[mine]), 0.5),
            "share": total / lifetime[who] if lifetime[who] else 0.0,
            "slack_p50": tables.percentile(slack, 0.5) if slack is not None else None,
            "longest": int(length[worst]), "longest_row": int(waits.row[worst]),
            "longest_tid": int(run.trace.rows.tid[waits.row[worst]]),
            "longest_start": int(waits.start[worst])})
    table.sort(key=lambda w: (-w["total"], w["role"], w["before"], w["after"]))
    return table


def wait_scopes(run: Run) -> list[dict[str, Any]]:
    """Scopes that are waits themselves, by their name, for each role whose rows ran them, longest total first.

    ``share`` is the part of the life of the ``rows`` (of ``role_rows``) that ran it, ``role_share`` of the life of all
    of the role's rows; ``role`` is "" for rows without one, apart by whether they are ``idle`` (:func:`idle_rows`).
    ``total`` and the shares count what lies in the run's window.
    """
    names, role = run.row_roles
    life_of, iv = lives(run), run.intervals
    length = iv.end - iv.start
    idle = idle_rows(run)
    kind = 2 * role.astype(np.int64) + idle
    alive = np.zeros(len(kind), np.bool_)
    alive[run.per_row[:, 0]] = True
    table: list[dict[str, Any]] = []
    for k in _waiting_scopes(run):
        scope = np.flatnonzero(run.scope == k)
        of = kind[iv.row[scope]]
        for who in np.unique(of).tolist():
            here = scope[of == who]
            rows = np.unique(iv.row[here])
            life, total = int(life_of[rows].sum()), int(run.inside[here].sum())
            peers = alive & (kind == who)
            every = int(life_of[peers].sum())
            worst = int(here[np.argmax(length[here])])
            spread = np.sort(length[here])
            table.append({
                "scope": run.labels[k], "role": names[who >> 1] if who >= 0 else "", "idle": bool(who & 1),
                "line": scope_places(run, run.labels[k]), "rows": len(rows), "role_rows": int(peers.sum()),
                "count": len(here), "total": total, "share": total / life if life else 0.0,
                "role_share": total / every if every else 0.0,
                "p50": tables.percentile(spread, 0.5), "p95": tables.percentile(spread, 0.95),
                "longest": int(length[worst]), "longest_row": int(iv.row[worst]),
                "longest_start": int(iv.start[worst])})
    table.sort(key=lambda w: (-w["total"], w["scope"], w["role"], w["idle"]))
    return table


def who_waits(wait: Mapping[str, Any]) -> str:
    """The role of an entry of :func:`wait_scopes` or :func:`role_table`, in words."""
    return str(wait["role"]) or ("no role, idle" if wait["idle"] else "")


def lives(run: Run) -> I64:
    """Lifetime of every row; 0 for rows without intervals."""
    found = np.zeros(len(run.trace.rows), np.int64)
    found[run.per_row[:, 0]] = run.per_row[:, 3]
    return found


def idle_rows(run: Run) -> Bools:
    """Rows without a role that run nothing but waits, beside others that do more: the warps of a producer's group that
    are not elected, say. They wait for the kernel's end, and hold nobody up."""
    whole, scope = run.whole
    works = np.zeros(len(run.trace.rows), np.bool_)
    works[whole.row[~np.isin(scope, _waiting_scopes(run))]] = True
    idle: Bools = ~works & (run.row_roles[1] < 0)
    return idle & bool(works.any())


def _waiting_scopes(run: Run) -> list[int]:
    return [k for k, label in enumerate(run.labels) if WAITING.search(label)]


def ran_by(run: Run, label: str) -> list[str]:
    """The role that a scope was given; else the roles of the rows that ran it, "" for rows without one."""
    if label in run.roles:
        return [run.roles[label]]
    names, role = run.row_roles
    found = np.unique(role[run.intervals.row[run.scope == run.labels.index(label)]]).tolist()
    return [names[who] if who >= 0 else "" for who in found]


def waiting_shares(run: Run) -> dict[str, float]:
    """Per role the part of its lifetime inside scopes that are waits; roles without a name are left out."""
    names, role = run.row_roles
    life_of, iv = lives(run), run.intervals
    waiting = np.isin(run.scope, _waiting_scopes(run))
    shares = {}
    for who, name in enumerate(names):
        life = int(life_of[role == who].sum())
        if life:
            shares[name] = float(run.inside[waiting & (role[iv.row] == who)].sum()) / life
    return shares


def waiting_times(run: Run) -> I64:
    """Per row the time inside scopes that are waits, in the run's window; where waits overlap, once."""
    spent = np.zeros(len(run.trace.rows), np.int64)
    cover = tables.coverage(run.intervals.take(np.isin(run.scope, _waiting_scopes(run))))
    low, high = run.extent
    np.add.at(spent, cover.row, np.minimum(cover.end, high) - np.maximum(cover.start, low))
    return spent


def role_table(run: Run) -> list[dict[str, Any]]:
    """Per role (rows without one apart by whether they are ``idle``, see :func:`idle_rows`): rows, and how their life
    splits into ``active`` (inside scopes, none of which is a wait), ``waiting`` (inside scopes that are) and ``bubble``
    (outside scopes)."""
    names, role = run.row_roles
    per_row, spent, idle = run.per_row, waiting_times(run), idle_rows(run)
    row = per_row[:, 0]
    result = []
    for k, name, resting in [*((k, name, False) for k, name in enumerate(names)), (-1, "", False), (-1, "", True)]:
        mine = per_row[(role[row] == k) & (idle[row] == resting)]
        if len(mine) == 0:
            continue
        inside, bubble, life = (int(mine[:, c].sum()) for c in (1, 2, 3))
        waiting = int(spent[mine[:, 0]].sum())
        result.append({"role": name, "idle": resting, "rows": len(mine), "active": inside - waiting,
                       "waiting": waiting, "bubble": bubble, "lifetime": life,
                       "active_share": (inside - waiting) / life if life else 0.0,
                       "waiting_share": waiting / life if life else 0.0})
    return result
