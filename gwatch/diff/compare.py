"""What changed between two versions of a kernel: each instruction's fate, registers, resources, attributes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gwatch.diff.align import Pairs, align, moved_runs
from gwatch.diff.items import Item
from gwatch.sass.arch import INSTRUCTION_SIZE

_EXACT_SHARE = 0.6
"""Part of the shorter kernel that must agree letter by letter before letters are trusted more than shapes."""
_NUMBER = re.compile(r"(?<![\w.])-?0x[0-9a-f]+")


class Fate(str, Enum):
    """What became of an instruction."""

    SAME = "same"
    CONTROL = "control"
    """Only stalls, scoreboards, waits or reuse marks differ."""
    TARGET = "target"
    """Only the address of its target moved along with the code."""
    REGISTERS = "registers"
    """Only register numbers differ."""
    CHANGED = "changed"
    MOVED = "moved"
    DELETED = "deleted"
    INSERTED = "inserted"


QUIET = frozenset({Fate.SAME, Fate.CONTROL, Fate.TARGET, Fate.REGISTERS, Fate.MOVED})
"""Fates that leave the same instructions to run."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the comparison: indices in the first and second version (None: not there)."""

    fate: Fate
    first: int | None
    second: int | None


@dataclass(frozen=True, slots=True)
class CodeDiff:
    """The comparison of two instruction lists. ``steps`` in the second version's order, deletions where they stood.

    ``renaming``: register -> register, when one mapping, the same both ways, explains all differences.
    """

    steps: tuple[Step, ...]
    renaming: tuple[tuple[str, str], ...]

    @property
    def counts(self) -> dict[Fate, int]:
        """Number of rows of each fate, those that occur."""
        found = Counter(step.fate for step in self.steps)
        return {fate: found[fate] for fate in Fate if found[fate]}

    @property
    def verdict(self) -> str:
        """ "identical code", "same instructions" (with what differs), or "changed"."""
        found = set(self.counts) - {Fate.SAME}
        if not found:
            return "identical code"
        if found <= QUIET:
            names = {
                Fate.CONTROL: "control words", Fate.TARGET: "targets", Fate.REGISTERS: "registers", Fate.MOVED: "order"
            }  # fmt: skip
            return f"same instructions, other {', '.join(names[fate] for fate in names if fate in found)}"
        return "changed"


def compare_code(first: Sequence[Item], second: Sequence[Item]) -> CodeDiff:
    """Compare two versions of a kernel's code."""
    pairs = _aligned(first, second)
    where = dict(pairs)
    taken = {y for _, y in pairs}
    deleted = [x for x in range(len(first)) if x not in where]
    inserted = [y for y in range(len(second)) if y not in taken]
    moved: dict[int, int] = {}
    lines = [(item.body, item.word) for item in first], [(item.body, item.word) for item in second]
    for x, y, length in moved_runs(*lines, deleted, inserted):
        moved.update({y + k: x + k for k in range(length)})
    gone = set(moved.values())
    changed = _replaced(
        first, second, pairs, [x for x in deleted if x not in gone], [y for y in inserted if y not in moved]
    )
    places = _Places({**where, **{x: y for y, x in moved.items()}, **changed})
    steps = _steps(first, second, where, changed, moved, places)
    return CodeDiff(tuple(steps), _renaming(first, second, places.there))


class _Places:
    """Where instructions of the first version stand in the second."""

    def __init__(self, there: dict[int, int]) -> None:
        self.there = there
        self.kept = sorted(there.values())

    def lands(self, target: int, other: int) -> bool:
        """Whether two targets are one place: the same instruction, or the first inserted in front of it."""
        place = self.there.get(target, -1)
        if target < 0 or other < 0 or place < 0:
            return False
        return place == other or (
            other < place and bisect_left(self.kept, other) == bisect_left(self.kept, place)
        )


def _aligned(first: Sequence[Item], second: Sequence[Item]) -> Pairs:
    """Pairs that agree letter by letter; between them, pairs of one shape. Where few letters agree (everything was
    renamed), pairs of one shape throughout."""
    exact = align([item.body for item in first], [item.body for item in second])
    shapes = [item.shape for item in first], [item.shape for item in second]
    if len(exact) < _EXACT_SHARE * min(len(first), len(second)):
        loose = align(*shapes)
        return loose if len(loose) > len(exact) else exact
    out: Pairs = []
    x0 = y0 = 0
    for x, y in [*exact, (len(first), len(second))]:
        if x0 < x and y0 < y:
            out += [(i + x0, j + y0) for i, j in align(shapes[0][x0:x], shapes[1][y0:y])]
        if x < len(first):
            out.append((x, y))
        x0, y0 = x + 1, y + 1
    return out


def _replaced(
    first: Sequence[Item], second: Sequence[Item], pairs: Pairs, deleted: list[int], inserted: list[int]
) -> dict[int, int]:
    """Deleted instructions paired with inserted ones that took their place and have the same opcode."""
    gone, fresh = set(deleted), set(inserted)
    out: dict[int, int] = {}
    x0 = y0 = 0
    for x, y in [*pairs, (len(first), len(second))]:
        left = [i for i in range(x0, x) if i in gone]
        right = [j for j in range(y0, y) if j in fresh]
        if left and right:
            for i, j in align([_opcode(first[i]) for i in left], [_opcode(second[j]) for j in right]):
                out[left[i]] = right[j]
        x0, y0 = x + 1, y + 1
    return out


def _opcode(item: Item) -> str:
    body = item.body.split(None, 1)[-1] if item.body.startswith("@") else item.body
    return body.split(None, 1)[0].split(".")[0]


def _steps(
    first: Sequence[Item],
    second: Sequence[Item],
    where: dict[int, int],
    changed: dict[int, int],
    moved: dict[int, int],
    places: _Places,
) -> list[Step]:
    back = {y: x for x, y in {**where, **changed}.items()}
    deleted = [x for x in range(len(first)) if x not in places.there]
    steps: list[Step] = []
    waiting = iter([*deleted, None])
    upcoming = next(waiting)
    for y, item in enumerate(second):
        x = back.get(y)
        if x is not None:
            while upcoming is not None and upcoming < x:
                steps.append(Step(Fate.DELETED, upcoming, None))
                upcoming = next(waiting)
            steps.append(Step(_fate(first[x], item, x in changed, places), x, y))
        elif y in moved:
            steps.append(Step(Fate.MOVED, moved[y], y))
        else:
            steps.append(Step(Fate.INSERTED, None, y))
    while upcoming is not None:
        steps.append(Step(Fate.DELETED, upcoming, None))
        upcoming = next(waiting)
    return steps


def _fate(one: Item, other: Item, replaced: bool, places: _Places) -> Fate:
    follows = (one.target < 0 and other.target < 0) or places.lands(one.target, other.target)
    if replaced:
        return Fate.TARGET if follows and _same_address(one, other, places) else Fate.CHANGED
    if not follows:
        return Fate.CHANGED
    if one.registers != other.registers:
        return Fate.REGISTERS
    if one.word != other.word and one.body == other.body:
        return Fate.CHANGED  # in an operand that listings hide
    if one.control != other.control:
        return Fate.CONTROL
    return Fate.SAME if one.target == other.target else Fate.TARGET


def _same_address(one: Item, other: Item, places: _Places) -> bool:
    """Whether two lines differ only in a number that is the address of one and the same place (a return address)."""
    size = INSTRUCTION_SIZE
    if _NUMBER.sub("#", one.body) != _NUMBER.sub("#", other.body):
        return False
    differing = [
        (int(a, 16), int(b, 16)) for a, b in zip(_NUMBER.findall(one.body), _NUMBER.findall(other.body), strict=True)
        if a != b
    ]  # fmt: skip
    return len(differing) == 1 and all(
        a % size == 0 and b % size == 0 and places.lands(a // size, b // size) for a, b in differing
    )


def _renaming(
    first: Sequence[Item], second: Sequence[Item], everywhere: dict[int, int]
) -> tuple[tuple[str, str], ...]:
    """The one-to-one register mapping behind all pairs of one shape; () when there is none or nothing is renamed."""
    there: dict[str, str] = {}
    back: dict[str, str] = {}
    for x, y in everywhere.items():
        if first[x].shape != second[y].shape:
            continue
        for one, other in zip(first[x].registers, second[y].registers, strict=True):
            if there.setdefault(one, other) != other or back.setdefault(other, one) != one:
                return ()
    return tuple(sorted((one, other) for one, other in there.items() if one != other))
