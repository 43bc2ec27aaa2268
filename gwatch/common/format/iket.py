"""Import of the JSON that NVIDIA's in-kernel event tracing (``run-iket``, CUTLASS Python DSL) writes.

Both known forms are read: names and warp locations in place (``rangeName``, ``warpLocs``, ``markerName``,
``location``, ``warpLocation``) or in tables (``stringTable`` with ``rangeNameIdx``/``markerNameIdx``,
``locationTable`` with ``warpLocIdxs``/``locIdx``), and ``graphLaunches`` beside ``launches``. Field names:
docs.nvidia.com/cutlass, "IKET Profiling", whose authors call the schema experimental.

A launch becomes a run of warp-level records in ns. Each range is a region: instances of one name that overlap in a
warp get sites of their own, so that every instance keeps its partner. Markers, and the start and end of each warp, are
records outside regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np

from gwatch.common.format.records import TIME_LIMIT
from gwatch.common.format.run import Run, run_of
from gwatch.errors import TraceError

WARP = 32
LEVEL = "iket"
TIMER = "timestamps are those of NVIDIA IKET: steps of 32 ns, origin of the trace's own"
_RECORD = np.dtype([("site", "<i4"), ("warp", "<i8"), ("lane", "u1"), ("sequence", "<i8"), ("time", "<i8"),
                    ("value", "<u8"), ("smid", "<i4")])
Place = tuple[int, int, int, int, int]
"""CTA x, y, z, warp in the CTA, SM (-1 unknown)."""


def is_iket(data: Any) -> bool:
    """Does parsed JSON have the outer form of an IKET trace?"""
    return isinstance(data, Mapping) and "sections" not in data and (
        isinstance(data.get("launches"), list) or isinstance(data.get("graphLaunches"), Mapping))


def read_iket(data: Mapping[str, Any], where: str) -> list[Run]:
    """One run per launch, graph launches last; ``where`` names the file in errors.

    Raises TraceError ``[bad-iket]`` naming the entry that lacks a field or contradicts another.
    """
    tables = _Tables(data, where)
    runs = [_launch(launch, tables, f"{where}: launches[{i}]", None)
            for i, launch in enumerate(_list(data, "launches", where))]
    graphs = data.get("graphLaunches") or {}
    if not isinstance(graphs, Mapping):
        raise TraceError("bad-iket", f"{where}: graphLaunches is no object")
    for key in graphs:
        runs += [_launch(launch, tables, f"{where}: graphLaunches[{key!r}][{i}]", str(key))
                 for i, launch in enumerate(_list(graphs, key, where))]
    return runs


def _list(block: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = block.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise TraceError("bad-iket", f"{where}: {key} is no list")
    return value


def _integer(block: Any, key: str, where: str, least: int | None = None) -> int:
    value = block.get(key) if isinstance(block, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= TIME_LIMIT or (
            least is not None and value < least):
        raise TraceError("bad-iket", f"{where}: {key} is {value!r}", "the file is no IKET trace, or of a newer form")
    return value


class _Tables:
    """Names and places of entries, in place or through the file's tables."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.strings = _list(data, "stringTable", where)
        self.places = [_place(entry, f"{where}: locationTable[{i}]")
                       for i, entry in enumerate(_list(data, "locationTable", where))]

    def name(self, entry: Mapping[str, Any], key: str, where: str) -> str:
        if key in entry:
            return str(entry[key])
        number = _integer(entry, f"{key}Idx", where, 0)
        if number >= len(self.strings):
            raise TraceError("bad-iket", f"{where}: {key}Idx {number} is outside the string table")
        return str(self.strings[number])

    def place(self, entry: Mapping[str, Any], key: str, where: str) -> Place:
        return _place(entry[key], f"{where}.{key}") if key in entry else self._at(entry.get("locIdx"), where)

    def all_places(self, entry: Mapping[str, Any], where: str) -> list[Place]:
        """The warps of a range, the one where it began first."""
        if "warpLocs" in entry:
            places = [_place(p, f"{where}.warpLocs[{i}]") for i, p in enumerate(_list(entry, "warpLocs", where))]
        else:
            places = [self._at(number, where) for number in _list(entry, "warpLocIdxs", where)]
        if not places:
            raise TraceError("bad-iket", f"{where} names no warp")
        return list(dict.fromkeys(places))

    def _at(self, number: Any, where: str) -> Place:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.places):
            raise TraceError("bad-iket", f"{where}: location {number!r} is outside the location table")
        return self.places[number]


def _place(entry: Any, where: str) -> Place:
    cta = entry.get("ctaId") if isinstance(entry, Mapping) else None
    if not isinstance(cta, Sequence) or len(cta) != 3 or not all(type(c) is int and 0 <= c < 1 << 31 for c in cta):
        raise TraceError("bad-iket", f"{where}: ctaId is {cta!r}")
    smid = entry.get("smId")
    return (cta[0], cta[1], cta[2], _integer(entry, "warpId", where, 0),
            smid if type(smid) is int and 0 <= smid < 1 << 20 else -1)


@dataclass(slots=True)
class _Collected:
    """Events of a launch per place: (time, order among equal times, site, value)."""

    events: dict[Place, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    sites: list[tuple[str, str]] = field(default_factory=list)
    """(label, what it is) by site number."""
    regions: list[tuple[int, int, str]] = field(default_factory=list)
    spread: int = 0
    """Ranges that name several warps."""
    odd_values: int = 0
    """Payloads that are no integers."""

    def site(self, label: str, what: str) -> int:
        self.sites.append((label, what))
        return len(self.sites) - 1

    def payload(self, entry: Any) -> int:
        value = entry.get("payloadVal") if isinstance(entry, Mapping) else None
        if value is None:
            return 0
        try:
            return index(value) & (1 << 64) - 1
        except TypeError:
            self.odd_values += 1
            return 0


def _launch(launch: Any, tables: _Tables, where: str, graph: str | None) -> Run:
    if not isinstance(launch, Mapping):
        raise TraceError("bad-iket", f"{where} is no object")
    found = _Collected()
    _ranges(launch, tables, found, where)
    _points(launch, tables, found, where)
    grid, block, guessed = _dims(launch, found, where)
    warnings = [TIMER]
    if guessed:
        warnings.append("the file does not say the launch's dimensions: the smallest that hold its warps are used")
    if found.spread:
        warnings.append(f"{found.spread} ranges name several warps; each is shown in the first of them")
    if found.odd_values:
        warnings.append(f"{found.odd_values} payloads are no integers and are left out")
    identity = {"grid_id": launch.get("gridId"), "context_id": launch.get("contextId"), "graph": graph}
    run = run_of({
        "kernel_prototype": str(launch.get("kernelName") or "?"), "grid_dim": grid, "block_dim": block,
        "compile_results": {"instrumentation_level": LEVEL, "clock_type": "gpu", "record_shape": "site",
                            "record_granularity": "warp"},
        "records": _records(found, grid, -(-block[0] * block[1] * block[2] // WARP), where), "clock_type": "gpu",
        "sites": [{"site_id": i, "index": i, "label": label, "instruction": what, "warp_level": True}
                  for i, (label, what) in enumerate(found.sites)],
        "warnings": warnings, "launch": {k: v for k, v in identity.items() if isinstance(v, (int, str))},
    }, found.regions)
    # That its numbers have no hole says nothing: they were given here, not by the recorder.
    return replace(run, evidence={**run.evidence, "dropped": None})


def _ranges(launch: Mapping[str, Any], tables: _Tables, found: _Collected, where: str) -> None:
    instances: list[tuple[Place, int, int, str, int, int]] = []
    for i, entry in enumerate(_list(launch, "ranges", where)):
        at = f"{where}.ranges[{i}]"
        start, end = _integer(entry, "startTs", at), _integer(entry, "endTs", at)
        if end < start:
            raise TraceError("bad-iket", f"{at} ends before it starts")
        places = tables.all_places(entry, at)
        # The same warp on another SM is the same row; several warps are worth a word.
        found.spread += len({place[:4] for place in places}) > 1
        inner = _list(entry, "internalEvents", at)
        values = [found.payload(inner[k]) if inner else 0 for k in (0, -1)]
        instances.append((places[0], start, end, tables.name(entry, "rangeName", at), values[0], values[1]))
    instances.sort(key=lambda item: item[:4])
    numbers: dict[tuple[str, int], int] = {}
    busy: dict[tuple[Place, str], list[int]] = {}
    for order, (place, start, end, name, first, last) in enumerate(instances):
        ends = busy.setdefault((place, name), [])
        lane = next((k for k, until in enumerate(ends) if until <= start), len(ends))
        ends[lane:lane + 1] = [end]
        if (name, lane) not in numbers:
            numbers[name, lane] = found.site(name, f"IKET range {name} start")
            leave = found.site(name, f"IKET range {name} end")
            found.regions.append((numbers[name, lane], leave, name))
        site = numbers[name, lane]
        found.events.setdefault(place, []).extend(
            [(start, 2 * order, site, first), (end, 2 * order + 1, site + 1, last)])


def _points(launch: Mapping[str, Any], tables: _Tables, found: _Collected, where: str) -> None:
    numbers: dict[str, int] = {}
    order = 2 * len(_list(launch, "ranges", where))
    for i, entry in enumerate(_list(launch, "markers", where)):
        at = f"{where}.markers[{i}]"
        time = _integer(entry, "timestamp", at)
        name = tables.name(entry, "markerName", at)
        if name not in numbers:
            numbers[name] = found.site(name, f"IKET marker {name}")
        place = tables.place(entry, "location", at)
        found.events.setdefault(place, []).append((time, order + i, numbers[name], found.payload(entry)))
    lifetimes = _list(launch, "warpLifetimes", where)
    ends = [found.site(what, f"IKET {what}") for what in ("warp start", "warp end")] if lifetimes else []
    late = order + len(_list(launch, "markers", where))
    for i, entry in enumerate(lifetimes):
        at = f"{where}.warpLifetimes[{i}]"
        place = tables.place(entry, "warpLocation", at)
        for site, key, rank in zip(ends, ("startTs", "endTs"), (-1, late), strict=True):
            found.events.setdefault(place, []).append((_integer(entry, key, at), rank, site, 0))


def _dims(launch: Mapping[str, Any], found: _Collected,
          where: str) -> tuple[tuple[int, int, int], tuple[int, int, int], bool]:
    """(grid, block, were they derived from the warps seen)."""
    keys = [f"{what}Dim{axis}" for what in ("grid", "block") for axis in "XYZ"]
    if any(key in launch for key in keys):
        gx, gy, gz, bx, by, bz = (_integer(launch, key, where, 1) for key in keys)
        return (gx, gy, gz), (bx, by, bz), False
    top = [max((place[k] for place in found.events), default=0) + 1 for k in range(4)]
    return (top[0], top[1], top[2]), (top[3] * WARP, 1, 1), True


def _records(found: _Collected, grid: tuple[int, int, int], warps: int, where: str) -> Any:
    rows: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for (x, y, z, warp, smid), events in found.events.items():
        if x >= grid[0] or y >= grid[1] or z >= grid[2] or warp >= warps:
            raise TraceError("bad-iket", f"{where}: warp {warp} of CTA ({x}, {y}, {z}) is outside the launch")
        row = (x + grid[0] * (y + grid[1] * z)) * warps + warp
        rows.setdefault(row, []).extend((*event, smid) for event in events)
    out = np.zeros(sum(map(len, rows.values())), _RECORD)
    at = 0
    for row, made in rows.items():
        made.sort(key=lambda event: event[:2])
        part = out[at:at + len(made)]
        part["warp"], part["sequence"] = row, np.arange(len(made))
        part["time"], _, part["site"], values, part["smid"] = zip(*made, strict=True)
        part["value"] = np.array(values, np.uint64)
        at += len(made)
    return out
