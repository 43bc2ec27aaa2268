"""Loops of a kernel, and where its waits on mbarriers end.

A wait on an mbarrier is a TRYWAIT that answers through a predicate, a branch on it, and a second TRYWAIT that is
spun on, mostly far from the first:

    first:  TRYWAIT P1, [barrier], R8          spin:  TRYWAIT P1, [barrier], R8
            @!P1 BRA spin                             @!P1 BRA spin
    after:  ...                                       BRA after

The wait begins at ``first`` and ends at ``after``: the instruction behind the TRYWAIT itself may issue long before
the answer is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gwatch.sass.cfg import Flow

if TYPE_CHECKING:
    from gwatch.sass.cfg import Cfg

_ANSWER = re.compile(r"\.TRYWAIT\S* (U?P\d)\b")
_GUARD = re.compile(r"@(!?)(U?P\d)\s")
_FAR = 64
"""Instructions between a TRYWAIT and the branch on its answer, at most."""
_SPIN = 12
"""Instructions of a loop that only spins on a TRYWAIT, at most."""


def loops_of(graph: Cfg) -> list[tuple[int, int]]:
    """(head, index of the branch back) of the natural loops: no way leads to the branch but through the head."""
    kinds, targets = graph.flow.kind.tolist(), graph.flow.target.tolist()
    backward = [i for i, kind in enumerate(kinds) if kind == int(Flow.BRANCH) and 0 <= targets[i] < i]
    if not backward:
        return []
    dominators = _Dominators(graph)
    found: dict[int, int] = {}
    for index in backward:
        head = targets[index]
        if dominators.dominates(head, index):
            found[head] = max(found.get(head, 0), index)
    return sorted(found.items())


class _Dominators:
    """Immediate dominators of the basic blocks that code reaches, by intersecting paths in reverse postorder."""

    def __init__(self, graph: Cfg) -> None:
        blocks = graph.blocks
        self._block_at = {block.start: number for number, block in enumerate(blocks)}
        self._starts = [block.start for block in blocks]
        self._of = [0] * (blocks[-1].end if blocks else 0)
        for number, block in enumerate(blocks):
            self._of[block.start : block.end] = [number] * (block.end - block.start)
        following = [[self._of[s] for s in graph.successors(block.end - 1)] for block in blocks]
        entries = sorted({self._of[entry] for entry in graph.entries})
        order = self._postorder(entries, following)
        rank = {number: place for place, number in enumerate(order)}
        before: dict[int, list[int]] = {number: [] for number in order}
        for number in order:
            for target in following[number]:
                before[target].append(number)
        root = -1  # stands above all entries
        above: dict[int, int] = dict.fromkeys(entries, root)
        changed = True
        while changed:
            changed = False
            for number in reversed(order):
                if number in entries:
                    continue
                known = [other for other in before[number] if other in above]
                new = known[0]
                for other in known[1:]:
                    new = self._meet(new, other, above, rank, root)
                if above.get(number) != new:
                    above[number], changed = new, True
        self._above, self._root = above, root

    @staticmethod
    def _postorder(entries: Sequence[int], following: list[list[int]]) -> list[int]:
        seen, order = set(entries), []
        for entry in entries:
            stack = [(entry, iter(following[entry]))]
            while stack:
                number, rest = stack[-1]
                target = next((item for item in rest if item not in seen), None)
                if target is None:
                    order.append(number)
                    stack.pop()
                else:
                    seen.add(target)
                    stack.append((target, iter(following[target])))
        return order

    @staticmethod
    def _meet(a: int, b: int, above: dict[int, int], rank: dict[int, int], root: int) -> int:
        while a != b:
            if a == root or b == root:
                return root
            if rank[a] < rank[b]:
                a = above[a]
            else:
                b = above[b]
        return a

    def dominates(self, head: int, index: int) -> bool:
        """Whether every way to instruction ``index`` leads over ``head``; False for code that nothing reaches."""
        wanted, number = self._of[head], self._of[index]
        if self._starts[wanted] != head and wanted != number:
            return False
        while number in self._above:
            if number == wanted:
                return True
            number = self._above[number]
        return False


def wait_end(texts: Sequence[str], graph: Cfg, index: int) -> tuple[int, int] | None:
    """(first instruction after the wait that the TRYWAIT at ``index`` begins, where failing leads).

    None where no branch on its answer follows in a straight line: the answer is used later, or in another way.
    """
    answer = _ANSWER.search(texts[index])
    if answer is None:
        return None
    for at in range(index + 1, min(index + _FAR, len(texts))):
        kind = int(graph.flow.kind[at])
        if kind != int(Flow.BRANCH):
            if kind not in (int(Flow.NEXT), int(Flow.REFERENCE)) and not graph.flow.conditional[at]:
                return None
            continue
        guard = _GUARD.match(texts[at])
        if guard is None:
            return None
        if guard[2] != answer[1]:
            continue
        target = int(graph.flow.target[at])
        return (at + 1, target) if guard[1] else (target, at + 1)
    return None


def spins_of(texts: Sequence[str], graph: Cfg) -> dict[int, tuple[int, int]]:
    """TRYWAITs that are only spun on, behind another one that asked first: index -> (start, end) of their code."""
    found: dict[int, tuple[int, int]] = {}
    for index, text in enumerate(texts):
        if index in found or ".TRYWAIT" not in text:
            continue
        end = wait_end(texts, graph, index)
        if end is None or end[1] <= index <= end[1] + _SPIN:
            continue  # fails back to itself: the first and the spun one are the same
        start = end[1]
        inside = [at for at in range(start, min(start + _SPIN, len(texts))) if ".TRYWAIT" in texts[at]]
        if inside:
            again = wait_end(texts, graph, inside[0])
            if again is not None and start <= again[1] <= inside[0]:
                found[inside[0]] = (start, again[0])
    return found
