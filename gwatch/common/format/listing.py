"""The listing a run carries: its kernel's instructions, with source lines and the time that begins at each site."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gwatch.common.format.analysis import site_steps
from gwatch.common.format.run import Run


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction. ``source`` is where a reader looks for it: the call that inlined it, if there is one."""

    index: int
    text: str
    file: str
    line: int
    source: str
    """Text of that line, "" where the file was not there to be read."""
    site: int | None
    """Site that records before it; of several the first."""
    follows: bool
    """Whether the instruction before it in the kernel is listed, too."""

    @property
    def place(self) -> str:
        """``file.cu:29``, "" when unknown."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}" if self.file else ""


def fits(value: Any) -> bool:
    """Whether a report's ``listing`` has the form that :func:`lines_of` relies on."""
    if not isinstance(value, Mapping):
        return False
    parts = [value.get(key) for key in ("index", "text", "place", "places")]
    index, text, place, places = (part if isinstance(part, list) else [] for part in parts)
    if not all(isinstance(part, list) for part in parts):
        return False
    source = value.get("source", {})
    return (
        len(index) == len(text) == len(place)
        and all(type(i) is int and i >= 0 for i in index)
        and all(a < b for a, b in itertools.pairwise(index))
        and all(isinstance(t, str) for t in text)
        and all(type(p) is int and 0 <= p < len(places) for p in place)
        and all(isinstance(p, list) and len(p) == 4 and isinstance(p[0], str) and type(p[1]) is int
                and isinstance(p[2], str) and type(p[3]) is int for p in places)
        and isinstance(source, Mapping)
        and all(isinstance(lines, Mapping) and all(isinstance(t, str) for t in lines.values())
                for lines in source.values()))


def lines_of(run: Run) -> list[Line]:
    """The listed instructions in order; [] for a run without a listing."""
    listing = run.listing
    if not listing:
        return []
    site_at: dict[int, int] = {}
    for number, site in enumerate(run.sites):
        if site.get("index") is not None:
            site_at.setdefault(int(site["index"]), int(site.get("site_id", number)))
    source, before, found = listing.get("source", {}), None, []
    for index, text, number in zip(listing["index"], listing["text"], listing["place"], strict=True):
        file, line, outer_file, outer_line = listing["places"][number]
        if outer_file:
            file, line = outer_file, outer_line
        found.append(Line(index, text, file, line, source.get(file, {}).get(str(line), "").strip(),
                          site_at.get(index), before is None or index == before + 1))
        before = index
    return found


def taken_at(run: Run) -> dict[int, int]:
    """Time of all intervals that begin at each site."""
    length = run.intervals.end - run.intervals.start
    taken: dict[int, int] = {}
    for i, region in enumerate(run.regions):
        taken[region.enter] = taken.get(region.enter, 0) + int(length[run.intervals.region == i].sum())
    return taken


def steps_of(run: Run) -> dict[int, dict[str, Any]]:
    """Per site what :func:`site_steps` tells; {} for a window of time, whose sites are not told apart, and for records
    of scopes."""
    if run.record_shape != "site" or run.window is not None:
        return {}
    return {step["site_id"]: step for step in site_steps(run.trace)}
