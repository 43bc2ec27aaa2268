"""Whether two accesses of a kernel run under the same conditions, and what between them keeps them apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gwatch.inspect.loops import ENDS, Blocks
from gwatch.sass.code import Code

if TYPE_CHECKING:
    from gwatch.inspect.causes import Place

_FENCES = (
    "BAR", "MEMBAR", "FENCE", "WARPSYNC", "UCGABAR_ARV", "UCGABAR_WAIT", "SYNCS", "CALL", "BARSYNC", "ACQBULK",
    "CGABAR",
)  # fmt: skip
_ATOMICS = ("ATOM", "ATOMG", "RED", "REDG")
_WRITES = ("STG", "ST", *_ATOMICS, "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED")
_READS = ("LDG", "LD", "LDGSTS", "UTMALDG")

_STOPS = (
    "NOP", "NANOSLEEP", "YIELD", "PMTRIG", "BPT", "DEPBAR", "LDGDEPBAR", "PREEXIT", "ENDCOLLECTIVE",
    "SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX", "ELECT", "WARPGROUP", "USETMAXREG",
)  # fmt: skip
"""What threads do together or what has its place in time: compilers mostly keep accesses on the side they were written
on. Between other instructions a NOP is what is left of a WARPSYNC of all threads."""
_READS_SPECIAL = ("CS2R", "S2R", "S2UR")
_SETTLED = re.compile(r"\b(?:SRZ|SR_TID|SR_CTAID|SR_NTID|SR_NCTAID|SR_LANEID|SR_CgaCtaId)\b")
"""Special registers that read the same at any time; clocks and the like do not."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """An instruction that accesses may not be moved across: a ``fence``, or an access of maybe the same memory."""

    index: int
    text: str
    fence: bool


class Order:
    """Order and control flow of one kernel's accesses."""

    def __init__(self, code: Code, blocks: Blocks, places: Iterable[Place]) -> None:
        self.code, self.blocks = code, blocks
        self.places = {place.index: place for place in places}

    @cached_property
    def _fences(self) -> list[int]:
        return list(self.code.where(*_FENCES).tolist())

    @cached_property
    def _writes(self) -> list[int]:
        return list(self.code.where(*_WRITES).tolist())

    @cached_property
    def _all(self) -> list[int]:
        return list(self.code.where(*_WRITES, *_READS).tolist())

    def obstacle(self, members: Sequence[Place]) -> Obstacle | None:
        """What lies between accesses that would be one, all of them loads or all of them stores."""
        first, last = members[0].index, members[-1].index
        if all("CONSTANT" in place.access.modifiers for place in members):
            return None  # nothing writes what they read while the kernel runs
        for index in self._fences:
            if first < index < last:
                return Obstacle(index, self.code.texts[index], True)
        loads = members[0].access.action == "load"
        own = {place.index for place in members}
        for index in self._writes if loads else self._all:
            if first < index < last and index not in own and self._may_touch(index, members):
                return Obstacle(index, self.code.texts[index], False)
        return None

    def stop(self, members: Sequence[Place]) -> tuple[Obstacle, bool] | None:
        """What may have kept accesses apart though memory doesn't ask for it, and whether it stands between them. Else
        it stands in their block, where it may have been between them before the code was scheduled."""
        first, last = members[0].index, members[-1].index
        begin, end = self.blocks.ranges[members[0].block]
        near = [index for index in self._stops if begin <= index < end]
        between = [index for index in near if first < index < last]
        for index in between or near:
            return Obstacle(index, self.code.texts[index], False), bool(between)
        return None

    @cached_property
    def _stops(self) -> list[int]:
        special = (n for n in self.code.where(*_READS_SPECIAL).tolist() if not _SETTLED.search(self.code.texts[n]))
        return sorted([*self.code.where(*_STOPS).tolist(), *special])

    def is_ordered(self, block: int) -> bool:
        """Whether a block has barriers, atomic or volatile accesses. Loads of memory that nothing writes may have stood
        on either side of them before the code was scheduled."""
        first, last = self.blocks.ranges[block]
        if any(first <= index < last for index in self._fences + self._atomics):
            return True
        return any(place.is_strong for index, place in self.places.items() if first <= index < last)

    @cached_property
    def _atomics(self) -> list[int]:
        return list(self.code.where(*_ATOMICS).tolist())

    def _may_touch(self, index: int, members: Sequence[Place]) -> bool:
        """Whether the access at ``index`` may be of memory that ``members`` access."""
        other = self.places.get(index)
        if other is None:
            return True
        if "CONSTANT" in other.access.modifiers:
            return False
        if (other.form.terms, other.form.indexed) != (members[0].form.terms, members[0].form.indexed):
            return True
        start = members[0].form.total if len(members) == 1 else min(place.form.total for place in members)
        end = max(place.form.total + place.bytes for place in members)
        return other.form.total < end and start < other.form.total + other.bytes

    def together(self, one: Place, other: Place) -> bool:
        """Whether two accesses in different blocks run under the same conditions, as far as branches say."""
        if one.block == other.block:
            return True
        first, second = sorted((one.block, other.block))
        return self._dominators.over(first, second) and self._postdominators.over(second, first)

    def is_always_run(self, place: Place) -> bool:
        """Whether every thread that ends comes by an access."""
        return self._postdominators.over(place.block, 0)

    def on_one_way(self, one: Place, other: Place) -> bool:
        """Whether a thread comes to the later of two accesses by way of the earlier one's block only."""
        first, second = sorted((one.block, other.block))
        return self._dominators.over(first, second)

    @cached_property
    def _dominators(self) -> _Tree:
        return _Tree(self.blocks.before, self.blocks.after, [0])

    @cached_property
    def _postdominators(self) -> _Tree:
        leaving = set(self.code.where(*ENDS).tolist())  # with a guard, some threads end there and others go on
        ends = [
            block for block, after in enumerate(self.blocks.after)
            if not after or self.blocks.ranges[block][1] - 1 in leaving
        ]  # fmt: skip
        return _Tree(self.blocks.after, self.blocks.before, ends)


class _Tree:
    """Which blocks every way from the ``roots`` to a block leads over (Cooper, Harvey and Kennedy's algorithm)."""

    def __init__(
        self, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], roots: Sequence[int]
    ) -> None:
        self.root = len(before)  # a root of all roots
        order = self._postorder(after, roots)
        self.rank = {block: place for place, block in enumerate(order)}
        self.parent = {self.root: self.root}
        starts = set(roots)
        changed = True
        while changed:
            changed = False
            for block in reversed(order[:-1]):
                found = self.root if block in starts else None
                for other in before[block]:
                    if other in self.parent:
                        found = other if found is None else self._meet(found, other)
                if found is not None and self.parent.get(block) != found:
                    self.parent[block] = found
                    changed = True
        self.span = self._spans()

    def _postorder(self, after: Sequence[Sequence[int]], roots: Sequence[int]) -> list[int]:
        order: list[int] = []
        met = {self.root}
        work = [(self.root, iter(roots))]
        while work:
            block, successors = work[-1]
            for successor in successors:
                if successor not in met:
                    met.add(successor)
                    work.append((successor, iter(after[successor])))
                    break
            else:
                order.append(block)
                work.pop()
        return order

    def _meet(self, one: int, other: int) -> int:
        while one != other:
            while self.rank[one] < self.rank[other]:
                one = self.parent[one]
            while self.rank[other] < self.rank[one]:
                other = self.parent[other]
        return one

    def over(self, block: int, other: int) -> bool:
        """Whether every way to ``other`` leads over ``block``, or ends there."""
        if block == other:
            return True
        if block not in self.span or other not in self.span:
            return False
        return self.span[block][0] <= self.span[other][0] < self.span[block][1]

    def _spans(self) -> dict[int, tuple[int, int]]:
        """First number, and one past the last, of each block and what is below it in the tree."""
        below: dict[int, list[int]] = {}
        for block, parent in self.parent.items():
            if block != parent:
                below.setdefault(parent, []).append(block)
        first: dict[int, int] = {}
        spans = {}
        work = [self.root]
        while work:
            block = work.pop()
            if block < 0:  # all below it has its number
                spans[~block] = first[~block], len(first)
                continue
            first[block] = len(first)
            work += [~block, *below.get(block, ())]
        return spans
