"""Loops of a code section, from its branches.

A light control-flow graph over basic blocks, built from :class:`~gwatch.sass.code.Code` so that it works
for every architecture that nvdisasm reads. A loop is a strongly connected set of blocks; taking its header out
shows the loops inside it. Blocks that the compiler moved out of line and that branch back are no loops.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gwatch.sass.code import JUMPS, Code

_INDIRECT = ("BRX", "BRXU", "JMX", "JMXU")
ENDS = ("EXIT", "RET", "KILL", "RTT", "PRET")


@dataclass(frozen=True, slots=True)
class Loop:
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


@dataclass(frozen=True, slots=True)
class Blocks:
    """Basic blocks of a section: ``ranges`` (first instruction, one past the last), and for each block the
    numbers of those that may run ``after`` and ``before`` it."""

    ranges: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]


def find_blocks(code: Code, indirect: dict[int, tuple[int, ...]] | None = None) -> Blocks:
    """The basic blocks of one section; ``indirect`` as in :func:`find_loops`."""
    leaders, following = _blocks(code, code.where(*JUMPS), indirect or {}, code.arch.instruction_size)
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
    size = code.arch.instruction_size
    jumps = code.where(*JUMPS)
    backward = code.targets[jumps] <= code.addresses[jumps]
    backward &= code.targets[jumps] >= 0
    endless = (code.targets[jumps] == code.addresses[jumps]) & ~code.guarded[jumps]
    if not bool(np.any(backward & ~endless)) and not indirect:
        return ()
    leaders, following = _blocks(code, jumps, indirect or {}, size)
    return tuple(sorted(_loops(following, leaders, size), key=lambda loop: (loop.start, loop.depth)))


def _blocks(
    code: Code, jumps: npt.NDArray[np.int64], indirect: dict[int, tuple[int, ...]], size: int
) -> tuple[list[int], list[list[int]]]:
    """First instruction of each block (and the end), and the blocks that may follow each."""
    count = len(code)
    leaves: dict[int, tuple[list[int], bool]] = {}  # last instruction of a block -> (targets, goes on behind)
    goals = code.targets[jumps] // size  # -1 // size is -1: a jump to another section
    for index, goal, goes_on in zip(
        jumps.tolist(), goals.tolist(), code.conditional[jumps].tolist(), strict=True
    ):
        leaves[index] = ([goal] if 0 <= goal < count else [], goes_on)
    for index in code.where(*_INDIRECT).tolist():
        leaves[index] = ([t // size for t in indirect.get(index * size, ())], bool(code.guarded[index]))
    for index in code.where(*ENDS).tolist():
        leaves[index] = ([], bool(code.guarded[index]))
    starts = {0, count}
    for index, (targets, _) in leaves.items():
        starts.add(index + 1)
        starts.update(targets)
    leaders = sorted(start for start in starts if start <= count)
    number = {start: block for block, start in enumerate(leaders)}
    following = []
    for block in range(len(leaders) - 1):
        targets, goes_on = leaves.get(leaders[block + 1] - 1, ([], True))
        next_blocks = [number[t] for t in targets if t < count]
        if goes_on and block + 1 < len(leaders) - 1:
            next_blocks.append(block + 1)
        following.append(next_blocks)
    return leaders, following


def _loops(following: list[list[int]], leaders: list[int], size: int) -> list[Loop]:
    found: list[Loop] = []
    work = [(list(range(len(following))), 1)]
    while work:
        inside, level = work.pop()
        for part in _components(inside, following):
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
            latch = (leaders[latches[-1] + 1] - 1) * size
            if len(part) > 1 or ranges[0][0] != ranges[0][1]:  # an endless trap behind EXIT is no loop
                found.append(Loop(leaders[header] * size, latch, level, tuple(ranges)))
            if len(part) > 1:
                work.append((part[1:], level + 1))
    return found


def _components(blocks: list[int], following: list[list[int]]) -> list[list[int]]:
    """Strongly connected components with a cycle of the graph cut down to ``blocks`` (Tarjan, without recursion)."""
    count = len(following)
    inside = bytearray(count)
    for block in blocks:
        inside[block] = 1
    order = [0] * count  # 0: not met yet
    low = [0] * count
    waiting = bytearray(count)
    stack: list[int] = []
    out: list[list[int]] = []
    met = 0
    for root in blocks:
        if order[root]:
            continue
        met += 1
        order[root] = low[root] = met
        stack.append(root)
        waiting[root] = 1
        work = [(root, iter(following[root]))]
        while work:
            node, successors = work[-1]
            for successor in successors:
                if not order[successor]:
                    if inside[successor]:
                        met += 1
                        order[successor] = low[successor] = met
                        stack.append(successor)
                        waiting[successor] = 1
                        work.append((successor, iter(following[successor])))
                        break
                elif waiting[successor] and order[successor] < low[node]:
                    low[node] = order[successor]
            else:
                work.pop()
                reach = low[node]
                if work and reach < low[work[-1][0]]:
                    low[work[-1][0]] = reach
                if reach == order[node]:
                    at = len(stack) - 1
                    while stack[at] != node:
                        at -= 1
                    part = stack[at:]
                    del stack[at:]
                    for member in part:
                        waiting[member] = 0
                    if len(part) > 1 or node in following[node]:
                        out.append(part)
    return out
