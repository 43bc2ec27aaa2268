"""The obvious, slow way to pair regions and to sum up intervals: one record at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

Record = tuple[int, int, int]
"""(site, time, records lost right before it)"""


@dataclass
class Paired:
    intervals: list[tuple[int, int, int]] = field(default_factory=list)
    """(row, start, end)"""
    lost_leaves: int = 0
    orphan_leaves: int = 0
    broken: int = 0
    edges: int = 0


def pair_rows(rows: list[list[Record]], tails: list[bool], enter: int, leave: int, pairing: str) -> Paired:
    """Pair one region: a stack (or queue) per row, emptied wherever records were lost."""
    result = Paired()
    for number, (row, tail) in enumerate(zip(rows, tails, strict=True)):
        open_entries: list[tuple[int, int]] = []
        alone: list[tuple[int, str, bool]] = []
        lost_before = False
        boundary = 0
        boundaries = sum(site in (enter, leave) for site, _, _ in row)
        for site, time, lost in row:
            if lost:
                alone += [(place, "enter", True) for place, _ in open_entries]
                open_entries.clear()
                lost_before = True
            if site == enter:
                open_entries.append((boundary, time))
            elif site == leave:
                if open_entries:
                    _, start = open_entries.pop(-1 if pairing == "nested" else 0)
                    result.intervals.append((number, start, max(start, time)))
                else:
                    alone.append((boundary, "leave", lost_before))
            boundary += site in (enter, leave)
        alone += [(place, "enter", tail) for place, _ in open_entries]
        for place, kind, explained in alone:
            if kind == "enter":
                result.lost_leaves += 1
            else:
                result.orphan_leaves += 1
            result.broken += explained
            at_edge = place == (0 if kind == "leave" else boundaries - 1)
            result.edges += at_edge and not explained
    result.intervals.sort()
    return result


def union_length(intervals: list[tuple[int, int]]) -> int:
    """Length covered by at least one interval."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total += end - start
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total


def nearest_rank(values: list[int], share: float) -> int:
    """Nearest-rank percentile, counted by hand."""
    ordered = sorted(values)
    for rank, value in enumerate(ordered, 1):
        if rank >= share * len(ordered):
            return value
    return ordered[-1]
