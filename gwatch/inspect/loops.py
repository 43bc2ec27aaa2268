"""Loops of a code section, from its branches.

A light control-flow graph over basic blocks, built from :class:`~gwatch.sass.code.Code` so that it works
for every architecture that nvdisasm reads. A loop is a strongly connected set of blocks; taking its header out
shows the loops inside it. Blocks that the compiler moved out of line and that branch back are no loops.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gwatch.sass.code import JUMPS, Code

_INDIRECT = ("BRX", "BRXU", "JMX", "JMXU")
ENDS = ("EXIT", "RET", "KILL", "RTT", "PRET")


class Loop(NamedTuple):
    """``start`` (byte address of the header), ``latch`` (address of the last branch back to it), nesting
    ``depth`` from 1, and ``ranges``: (first, last) instruction indices of its body, both inclusive."""

    start: int
    latch: int
    depth: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def instructions(self) -> int:
        """Instructions of the body."""
        return sum(last - first + 1 for first, last in self.ranges)

    def indices(self) -> list[int]:
        """Instruction indices of the body, ascending."""
        return [index for first, last in self.ranges for index in range(first, last + 1)]


class Blocks(NamedTuple):
    """Basic blocks of a section: ``ranges`` (first instruction, one past the last), and for each block the
    numbers of those that may run ``after`` and ``before`` it."""

    ranges: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]


def find_blocks(code: Code, indirect: dict[int, tuple[int, ...]] | None = None) -> Blocks:
    """The basic blocks of one section; ``indirect`` as in :func:`find_loops`."""
    leaders, following = _blocks(code, [0], _by_index(code, indirect, 0))
    before: list[list[int]] = [[] for _ in following]
    for block, targets in enumerate(following):
        for target in dict.fromkeys(targets):
            before[target].append(block)
    ranges = tuple(itertools.pairwise(leaders))
    return Blocks(ranges, tuple(tuple(dict.fromkeys(f)) for f in following), tuple(map(tuple, before)))


def find_loops(code: Code, indirect: dict[int, tuple[int, ...]] | None = None) -> tuple[Loop, ...]:
    """The loops of one section by start address, outer ones first.

    ``indirect``: byte address of an indirect branch -> byte addresses of its targets (from the attribute
    INDIRECT_BRANCH_TARGETS); an indirect branch without an entry has no successor.
    """
    return find_all_loops(code, [0], [indirect])[0]


def find_all_loops(
    code: Code, starts: Sequence[int], indirect: Sequence[dict[int, tuple[int, ...]] | None]
) -> list[tuple[Loop, ...]]:
    """:func:`find_loops` of several sections that lie one behind the other in ``code``, each from one of ``starts`` on:
    most kernels are small, and much is paid once only."""
    tables: dict[int, list[int]] = {}
    for start, targets in zip(starts, indirect, strict=True):
        tables |= _by_index(code, targets, start)
    jumps = code.where(*JUMPS)
    goals, places = code.targets[jumps], code.addresses[jumps]
    backward = (goals <= places) & (goals >= 0) & ((goals != places) | code.guarded[jumps])
    if not tables and not bool(backward.any()):
        return [()] * len(starts)
    leaders, following = _blocks(code, starts, tables)
    out: list[list[Loop]] = [[] for _ in starts]
    for first, latch, level, ranges in _loops(following, leaders):
        section = bisect_right(starts, first) - 1
        start, size = starts[section], code.arch.instruction_size
        mine = tuple((one - start, other - start) for one, other in ranges)
        out[section].append(Loop((first - start) * size, (latch - start) * size, level, mine))
    return [tuple(sorted(found, key=lambda loop: (loop.start, loop.depth))) for found in out]


def _by_index(
    code: Code, indirect: dict[int, tuple[int, ...]] | None, start: int
) -> dict[int, list[int]]:
    """Indirect branches and their targets as indices into ``code``."""
    size = code.arch.instruction_size
    return {
        start + branch // size: [start + target // size for target in targets]
        for branch, targets in (indirect or {}).items()
    }


def _blocks(code: Code, starts: Sequence[int], tables: dict[int, list[int]]) -> tuple[list[int], list[list[int]]]:
    """First instructions of the blocks (and one past the last), and the numbers of the blocks behind each."""
    count = len(code)
    jumps, ends, branches = code.where(*JUMPS), code.where(*ENDS), code.where(*_INDIRECT)
    edges = np.array([*starts, count], np.int64)
    section = np.searchsorted(edges, jumps, "right") - 1
    goals = code.targets[jumps] // code.arch.instruction_size  # -1 // size is -1: a jump to another section
    inside = (goals >= 0) & (goals < (edges[1:] - edges[:-1])[section])
    goals = (goals + edges[section])[inside]
    cases = [[case for case in tables.get(index, ()) if 0 <= case < count] for index in branches.tolist()]
    extra = np.array([case for found in cases for case in found], np.int64)
    first = np.sort(np.concatenate((edges, jumps + 1, goals, ends + 1, branches + 1, extra)))
    leaders = first[np.concatenate((np.ones(1, np.bool_), first[1:] != first[:-1]))]
    goes_on = np.ones(len(leaders), np.bool_)
    goes_on[np.searchsorted(leaders, edges) - 1] = False  # a section's last block, and what would be behind them all
    for last, stays in ((jumps, code.conditional), (ends, code.guarded), (branches, code.guarded)):
        goes_on[np.searchsorted(leaders, last, "right") - 1] &= stays[last]
    following: list[list[int]] = [[] for _ in range(len(leaders) - 1)]
    sources = (np.searchsorted(leaders, jumps[inside], "right") - 1).tolist()
    for block, goal in zip(sources, np.searchsorted(leaders, goals).tolist(), strict=True):
        following[block].append(goal)
    for index, found in zip(branches.tolist(), cases, strict=True):
        block = int(np.searchsorted(leaders, index, "right")) - 1
        following[block] += np.searchsorted(leaders, found).tolist()
    for block in np.flatnonzero(goes_on).tolist():
        following[block].append(block + 1)
    return leaders.tolist(), following


def _loops(
    following: list[list[int]], leaders: list[int]
) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    """Header, latch, depth and body of every loop, in instruction indices."""
    heads = bytearray(len(following))  # blocks that something behind them jumps back to: every cycle has one
    reach = bytearray(len(following))  # blocks between such a jump and its goal: every cycle stays among them
    for block, targets in enumerate(following):
        for target in targets:
            if target <= block:
                heads[target] = 1
                reach[target : block + 1] = b"\1" * (block + 1 - target)
    work = [([block for block, inside in enumerate(reach) if inside], 1)]
    while work:
        inside, level = work.pop()
        for part in components(inside, following):
            part.sort()
            header = part[0]
            latches = [block for block in part if header in following[block]]
            ranges: list[tuple[int, int]] = []
            for block in part:
                first, last = leaders[block], leaders[block + 1] - 1
                if ranges and ranges[-1][1] + 1 == first:
                    ranges[-1] = (ranges[-1][0], last)
                else:
                    ranges.append((first, last))
            if len(part) > 1 or ranges[0][0] != ranges[0][1]:  # an endless trap behind EXIT is no loop
                yield leaders[header], leaders[latches[-1] + 1] - 1, level, ranges
            if any(heads[block] for block in part[1:]):
                work.append((part[1:], level + 1))


def components(blocks: list[int], following: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components with a cycle of the graph cut down to ``blocks``, which ascend (Tarjan, without
    recursion)."""
    if not blocks:
        return []
    base = blocks[0]
    count = blocks[-1] + 1 - base
    order = [-1] * count  # -1: not among them; 0: not met yet
    for block in blocks:
        order[block - base] = 0
    low = [0] * count
    waiting = bytearray(count)
    stack: list[int] = []
    out: list[list[int]] = []
    met = 0
    for root in blocks:
        if order[root - base]:
            continue
        met += 1
        order[root - base] = low[root - base] = met
        stack.append(root)
        waiting[root - base] = 1
        work = [(root, iter(following[root]))]
        while work:
            node, successors = work[-1]
            at = node - base
            for successor in successors:
                place = successor - base
                if not 0 <= place < count:
                    continue
                known = order[place]
                if not known:
                    met += 1
                    order[place] = low[place] = met
                    stack.append(successor)
                    waiting[place] = 1
                    work.append((successor, iter(following[successor])))
                    break
                if waiting[place] and known < low[at]:
                    low[at] = known
            else:
                work.pop()
                reach = low[at]
                if work and reach < low[work[-1][0] - base]:
                    low[work[-1][0] - base] = reach
                if reach == order[at]:
                    end = len(stack) - 1
                    while stack[end] != node:
                        end -= 1
                    part = stack[end:]
                    del stack[end:]
                    for member in part:
                        waiting[member - base] = 0
                    if len(part) > 1 or node in following[node]:
                        out.append(part)
    return out
