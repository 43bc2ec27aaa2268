"""Where values live while the kernel runs: registers that it doesn't need there, changed when one doesn't last.

Everything here is about general registers. A *value* is one register of state (a running offset, a base address) that
must survive from the kernel's entry to the last site that uses it. It may sit in any register that is dead there: no
original instruction still reads what it held, none touches it, nothing in flight does, no callee does, and the warp
owns it (setmaxnreg). Where one register doesn't last, the value moves: a ``MOV`` before some instruction.

Between two instructions a value is in one place, whichever way control came: all successors of an instruction, and so
all predecessors of those, share one *place class*. Each class gets a home; where the classes before and behind an
instruction have different ones, the move stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.sass.cfg import Flow

if TYPE_CHECKING:
    from gwatch.rewrite.surroundings import Surroundings
    from gwatch.sass.liveness import Liveness

WIDTH = 256
_DEEPEST = 5
_LOOP_WEIGHT = 8.0
_ROUNDS = 12
_SWEEPS = 6
_SEARCHED = 3000


def bits(mask: int) -> list[int]:
    """The numbers of the bits set in ``mask``, ascending."""
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def covered(
    around: Surroundings, index: int, registers: int, stops: Mapping[int, frozenset[int]]
) -> int:
    """Mask of the scoreboards that the kernel waits for on every way from ``index`` before it writes ``registers``: a
    store that was given such a board needs no wait of its own. ``stops``: per register, the instructions before which
    inserted code waits in any case.
    """
    waits, writes = around.wait_masks, around.overwritten
    failed = 0
    seen: dict[int, int] = {}
    stack = [(index, 0x3F, registers)]
    steps = 0
    while stack:
        at, open_boards, wanted = stack.pop()
        open_boards &= ~waits[at] & ~failed
        if stops and at != index:
            wanted = sum(1 << r for r in bits(wanted) if at not in stops.get(r, ()))
        before = seen.get(at, 0)
        if not open_boards & ~before or not wanted:
            continue
        seen[at] = before | open_boards
        steps += 1
        if steps > _SEARCHED:
            return 0
        if writes[at] & wanted:
            failed |= open_boards
            continue
        stack.extend((item, open_boards, wanted) for item in around.cfg.successors(at))
    return 0x3F & ~failed


@dataclass(frozen=True, slots=True)
class Move:
    """``value`` goes from register ``old`` to ``new`` right before instruction ``index``."""

    index: int
    value: str
    old: int
    new: int


@dataclass(slots=True)
class Home:
    """Where one value is: per place class (-1 where it isn't needed), and the moves that follow from it."""

    value: str
    registers: npt.NDArray[np.int16]
    moves: list[Move] = field(default_factory=list)


class Points:
    """What is free where in one kernel, given what inserted code asks of its registers (``asked``: index -> mask).

    ``frozen``: instructions before which nothing may be inserted. ``forbidden``: registers nobody may use.
    ``spare``: registers above the kernel's own that may be used.
    """

    def __init__(
        self,
        around: Surroundings,
        asked: Mapping[int, int],
        frozen: Iterable[int],
        forbidden: int,
        spare: int,
    ) -> None:
        self.around = around
        cfg, view = around.cfg, around.view
        self.cfg, self.spare = cfg, spare
        self.count = len(view)
        self.live: Liveness = around.liveness(dict(asked))
        self.forbidden = forbidden
        masks = view.masks("R")
        self.touches = [a | b for a, b in zip(masks.reads, masks.writes, strict=True)]
        for index, callee in around.callees.items():
            self.touches[index] |= callee.reads | callee.touches
        self.never, self.matrix = around.flights.masks()
        if around.budgets.changes:
            self.budget = [around.budgets.mask(index) for index in range(self.count)]
        else:
            self.budget = [(1 << around.first_free) - 1 | spare] * self.count
        self._needed: dict[frozenset[int], tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]] = {}
        self.reached = cfg.reachable(sorted({0, *cfg.entries}))
        self.weight = self._weights()
        self._class = self._classes(set(frozen))
        self.entry_class = self._class[0]

    # places --------------------------------------------------------------------------------------------------------

    def _classes(self, frozen: set[int]) -> list[int]:
        parent = list(range(self.count))

        def find(item: int) -> int:
            while parent[item] != item:
                parent[item] = parent[parent[item]]
                item = parent[item]
            return item

        def join(items: list[int]) -> None:
            for item in items[1:]:
                parent[find(item)] = find(items[0])

        kind = self.cfg.flow.kind
        unknown = [entry for entry in self.cfg.entries if entry and not self.cfg.predecessors(entry)]
        for index in range(self.count):
            following = self.cfg.successors(index)
            join(following)
            if index in frozen and following:
                join([index, following[0]])
            if unknown and kind[index] == Flow.CALL_OUT:
                unknown += following
        join(unknown)
        return [find(item) for item in range(self.count)]

    def before(self, index: int) -> int:
        """The place class right before ``index`` (and before anything inserted there)."""
        return self._class[index]

    def behind(self, index: int) -> int:
        """The place class right behind ``index``; -1 where control ends."""
        following = self.cfg.successors(index)
        return self._class[following[0]] if following else -1

    def _weights(self) -> list[float]:
        depth = np.zeros(self.count + 1, np.int32)
        for source in np.flatnonzero(self.cfg.flow.kind == Flow.BRANCH).tolist():
            target = int(self.cfg.flow.target[source])
            if 0 <= target < source:
                depth[target] += 1
                depth[source + 1] -= 1
        deep = np.minimum(np.cumsum(depth)[:-1], _DEEPEST)
        weights: list[float] = (_LOOP_WEIGHT**deep).tolist()
        return weights

    # registers -----------------------------------------------------------------------------------------------------

    def scratch(self, index: int) -> int:
        """Registers that code before ``index`` may use for itself (what is in flight must be waited for)."""
        return self.budget[index] & ~self.live.live_in(index) & ~self.never[index] & ~self.forbidden

    def covered(self, index: int, registers: int) -> int:
        """See :func:`covered`."""
        return covered(self.around, index, registers, {})

    # homes ---------------------------------------------------------------------------------------------------------

    @cached_property
    def room(self) -> list[int]:
        """Per instruction: registers that may hold a value while it runs and on every way on from it."""
        out = []
        for index, live in enumerate(self.live.outs()):
            free = self.budget[index] & ~(self.touches[index] | live | self.never[index] | self.forbidden)
            for item in self.cfg.successors(index):
                free &= self.budget[item] & ~self.matrix[item]
            out.append(free)
        return out

    def needed(self, sites: Iterable[int]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """(before, behind): where a value used at ``sites`` must still be there."""
        wanted = frozenset(sites)
        if wanted not in self._needed:
            self._needed[wanted] = self._find_needed(wanted)
        return self._needed[wanted]

    def _find_needed(self, sites: Iterable[int]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        before = np.zeros(self.count, bool)
        stack = [site for site in sites if self.reached[site]]
        while stack:
            at = stack.pop()
            if not before[at]:
                before[at] = True
                stack.extend(item for item in self.cfg.predecessors(at) if self.reached[item])
        behind = np.zeros(self.count, bool)
        for at in np.flatnonzero(self.reached).tolist():
            behind[at] = any(before[item] for item in self.cfg.successors(at))
        return before, behind


class Housing:
    """Gives values their homes, one after the other; ``blocked`` are registers per class that sites use themselves."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.homes: dict[str, Home] = {}
        self.blocked: dict[int, int] = {}
        self._site: dict[tuple[str, int], int] = {}

    def block(self, index: int, registers: int) -> None:
        """``registers`` are used by code before ``index``: no value may be there."""
        for place in (self.points.before(index), self.points.behind(index)):
            self.blocked[place] = self.blocked.get(place, 0) | registers

    def held(self, index: int) -> int:
        """Registers that hold values right before or right behind ``index``."""
        mask = 0
        for home in self.homes.values():
            for place in (self.points.before(index), self.points.behind(index)):
                register = int(home.registers[place]) if place >= 0 else -1
                if register >= 0:
                    mask |= 1 << register
        return mask

    def at(self, value: str, index: int) -> int:
        """The register of ``value`` while code before ``index`` runs (moves made)."""
        home = self.homes[value]
        behind = self.points.behind(index)
        if behind >= 0 and home.registers[behind] >= 0:
            return int(home.registers[behind])
        return int(home.registers[self.points.before(index)])

    def entry(self, value: str) -> int:
        """The register in which the kernel's entry leaves ``value``."""
        home = self.homes[value]
        first = int(home.registers[self.points.entry_class])
        return first if first >= 0 else int(home.registers.max())

    def fixed(self, value: str, register: int) -> None:
        """``value`` stays in ``register``, which the kernel doesn't touch at all."""
        registers = np.full(self.points.count, register, np.int16)
        self.homes[value] = Home(value, registers)

    def place(self, value: str, sites: Iterable[int], spare: int, prefer: Mapping[int, float]) -> bool:
        """Find ``value`` a home from the entry to the last of ``sites``; False when there is none.

        ``spare``: registers above the kernel's own that may be used. A single register for all of it comes first
        (``prefer``: register -> penalty), then one that is spare, then several with moves between them.
        """
        points = self.points
        before, behind = points.needed(sites)
        allowed = self._allowed(before, behind, spare)
        if not allowed:
            self.fixed(value, -1)
            return True
        common = (1 << WIDTH) - 1
        for mask in allowed.values():
            common &= mask
        if common:
            choice = min(bits(common), key=lambda r: (spare >> r & 1, prefer.get(r, 0.0), r))
            registers = np.full(points.count, -1, np.int16)
            registers[list(allowed)] = choice
            self.homes[value] = Home(value, registers)
            return True
        if not all(allowed.values()):
            return False
        return self._split(value, before, behind, allowed)

    def _allowed(
        self, before: npt.NDArray[np.bool_], behind: npt.NDArray[np.bool_], spare: int
    ) -> dict[int, int]:
        """Registers that a value may be in, per class in which it is needed."""
        points = self.points
        everything = (1 << WIDTH) - 1
        allowed: dict[int, int] = {}
        if before[0]:
            allowed[points.entry_class] = points.budget[0] & ~points.forbidden
        for index in np.flatnonzero(before).tolist():
            allowed.setdefault(points.before(index), everything)
        room = points.room
        for index in np.flatnonzero(behind).tolist():
            place = points.behind(index)
            allowed[place] = allowed.get(place, everything) & room[index]
        neighbours = self._held_around()
        lost = points.spare & ~spare
        return {
            place: mask & ~neighbours.get(place, 0) & ~self.blocked.get(place, 0) & ~lost
            for place, mask in allowed.items()
        }

    def _held_around(self) -> dict[int, int]:
        """Registers of the values placed so far, per class, those of neighbouring classes included: moves before one
        instruction are made in any order.
        """
        points = self.points
        held: dict[int, int] = {}
        for home in self.homes.values():
            for place in np.flatnonzero(home.registers >= 0).tolist():
                held[place] = held.get(place, 0) | 1 << int(home.registers[place])
        out = dict(held)
        if held:
            for index in range(points.count):
                before, behind = points.before(index), points.behind(index)
                if behind >= 0 and before != behind:
                    out[behind] = out.get(behind, 0) | held.get(before, 0)
                    out[before] = out.get(before, 0) | held.get(behind, 0)
        return out

    def _split(
        self,
        value: str,
        before: npt.NDArray[np.bool_],
        behind: npt.NDArray[np.bool_],
        allowed: dict[int, int],
    ) -> bool:
        """Several homes: the register that covers most first, then smoothing where two meet."""
        points = self.points
        places = sorted(allowed)
        number = {place: row for row, place in enumerate(places)}
        raw = b"".join(allowed[place].to_bytes(WIDTH // 8, "little") for place in places)
        table = np.unpackbits(
            np.frombuffer(raw, np.uint8).reshape(len(places), WIDTH // 8), axis=1, bitorder="little"
        ).astype(bool)
        weights = np.zeros(len(places))
        links: list[list[tuple[int, float]]] = [[] for _ in places]
        steps = []
        for index in np.flatnonzero(before & behind).tolist():
            a, b = number[points.before(index)], number[points.behind(index)]
            weights[a] += points.weight[index]
            if a != b:
                links[a].append((b, points.weight[index]))
                links[b].append((a, points.weight[index]))
                steps.append((index, a, b))
        weights += 1e-3
        label = np.full(len(places), -1, np.int64)
        left = np.ones(len(places), bool)
        ranked: list[int] = []
        while left.any() and len(ranked) < _ROUNDS:
            best = int(np.argmax((weights * left) @ table))
            taken = left & table[:, best]
            if not taken.any():
                break
            label[taken] = best
            left &= ~taken
            ranked.append(best)
        for row in np.flatnonzero(left).tolist():
            label[row] = int(np.flatnonzero(table[row])[0])
        self._smooth(label, table, links)
        registers = np.full(points.count, -1, np.int16)
        registers[places] = label
        moves = [
            Move(index, value, int(label[a]), int(label[b])) for index, a, b in steps if label[a] != label[b]
        ]
        self.homes[value] = Home(value, registers, moves)
        return True

    @staticmethod
    def _smooth(
        label: npt.NDArray[np.int64], table: npt.NDArray[np.bool_], links: list[list[tuple[int, float]]]
    ) -> None:
        """Let each place take the register of its neighbours where that saves moves."""
        rows = [row for row, found in enumerate(links) if found]
        for sweep in range(_SWEEPS):
            changed = False
            for row in rows if sweep % 2 == 0 else reversed(rows):
                around: dict[int, float] = {}
                for other, weight in links[row]:
                    found = int(label[other])
                    around[found] = around.get(found, 0.0) + weight
                mine = int(label[row])
                if len(around) == 1 and mine in around:
                    continue
                best, gain = mine, around.get(mine, 0.0)
                for candidate, weight in around.items():
                    # A tie lets the boundary wander, so that both sides of a short stay can meet.
                    better = weight > gain or (weight == gain and sweep % 2 == 0 and candidate != mine)
                    if better and table[row, candidate]:
                        best, gain = candidate, weight
                if best != mine:
                    label[row] = best
                    changed = True
            if not changed:
                break
