"""Records of scope markers (start and end of a named scope) brought into the same columns as site records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gwatch.common.format.records import Geometry, Trace, from_rows
from gwatch.common.format.regions import Region
from gwatch.errors import TraceError

KINDS = {"SCOPE_START": 0, "SCOPE_END": 1}


def is_scope_shape(rows: Sequence[Mapping[str, Any]], compile_results: Mapping[str, Any]) -> bool:
    """Are these records of scope markers rather than of sites?"""
    return compile_results.get("record_shape") == "scope" or (
        len(rows) > 0 and isinstance(rows[0], Mapping) and "type_str" in rows[0])


def from_scopes(rows: Sequence[Mapping[str, Any]], geometry: Geometry,
                warp_granularity: bool) -> tuple[Trace, tuple[Region, ...]]:
    """(columns, one region per scope) of ``{global_tid, type_str, scope_id, scope_label, payload, value}``
    records.

    ``value`` is the time and ``payload`` the value there. Scope k's start and end become sites 2k and 2k+1,
    in order of first appearance; other record types become sites of their own after those.

    Raises TraceError ``[bad-records]`` for a record without these keys.
    """
    scopes: dict[Any, int] = {}
    labels: list[str] = []
    points: dict[Any, int] = {}
    converted = []
    for i, r in enumerate(rows):
        try:
            kind, scope = r["type_str"], r["scope_id"]
            if kind in KINDS and scope not in scopes:
                scopes[scope] = len(scopes)
                labels.append(str(r.get("scope_label") or r.get("scope_str") or scope))
            number = points.setdefault((kind, scope), -1 - len(points)) if kind not in KINDS else (
                2 * scopes[scope] + KINDS[kind])
            converted.append({"global_tid": r["global_tid"], "site_id": number, "timestamp": r["value"],
                              "value": r.get("payload") or 0, "smid": r.get("smid")})
        except (KeyError, TypeError):
            raise TraceError("bad-records", f"trace_results[{i}] is no scope record: {r!r}") from None
    for row in converted:
        if row["site_id"] < 0:
            row["site_id"] = 2 * len(scopes) - 1 - row["site_id"]
    regions = tuple(Region(2 * k, 2 * k + 1, label) for k, label in enumerate(labels))
    return from_rows(converted, geometry, warp_granularity), regions
