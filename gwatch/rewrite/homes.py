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
    from gwatch.sass.cfg import Cfg
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
    """Where one value is: per place class (-1 where it isn't needed), and the moves that follow from it. ``behind``:
    where it is still needed behind an instruction; a class may have a home there on another way's account.
    """

    value: str
    registers: npt.NDArray[np.int16]
    moves: list[Move] = field(default_factory=list)
    behind: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """What doesn't depend on the registers asked for. ``classes``: the place class right before each instruction,
    ``behind``: and right behind it (-1: control ends there);
    ``reached``: whether it can run; ``weight``: how often, about; ``block_of``: number of its block.
    """

    classes: list[int]
    behind: list[int]
    reached: npt.NDArray[np.bool_]
    weight: list[float]
    block_of: list[int]


def places_of(around: Surroundings, frozen: frozenset[int]) -> Places:
    """:class:`Places` of a kernel, computed once."""
    found = around.places.get(frozen)
    if found is None:
        cfg = around.cfg
        count = len(cfg.flow.kind)
        block_of = np.repeat(np.arange(len(cfg.blocks)), [block.end - block.start for block in cfg.blocks]).tolist()
        reached = cfg.reachable(sorted({0, *cfg.entries}))
        classes = _classes(cfg, frozen)
        behind = [*classes[1:], -1]
        for block in cfg.blocks:
            following = cfg.successors(block.end - 1)
            behind[block.end - 1] = classes[following[0]] if following else -1
        found = Places(classes, behind, reached, _weights(cfg, count), block_of)
        around.places[frozen] = found
    return found


def _classes(cfg: Cfg, frozen: frozenset[int]) -> list[int]:
    parent = list(range(len(cfg.flow.kind)))

    def find(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(items: list[int]) -> None:
        for item in items[1:]:
            parent[find(item)] = find(items[0])

    kind = cfg.flow.kind
    unknown = [entry for entry in cfg.entries if entry and not cfg.predecessors(entry)]
    for index in sorted({block.end - 1 for block in cfg.blocks} | frozen):
        following = cfg.successors(index)
        join(following)
        if index in frozen and following:
            join([index, following[0]])
        if unknown and kind[index] == Flow.CALL_OUT:
            unknown += following
    join(unknown)
    return [find(item) for item in range(len(kind))]


def _weights(cfg: Cfg, count: int) -> list[float]:
    depth = np.zeros(count + 1, np.int32)
    for source in np.flatnonzero(cfg.flow.kind == Flow.BRANCH).tolist():
        target = int(cfg.flow.target[source])
        if 0 <= target < source:
            depth[target] += 1
            depth[source + 1] -= 1
    deep = np.minimum(np.cumsum(depth)[:-1], _DEEPEST)
    weights: list[float] = (_LOOP_WEIGHT**deep).tolist()
    return weights


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
        self.touches = around.touches
        self.never, self.matrix = around.unready
        if around.budgets.changes:
            self.budget = [around.budgets.mask(index) for index in range(self.count)]
        else:
            self.budget = [(1 << around.first_free) - 1 | spare] * self.count
        self._needed: dict[
            tuple[frozenset[int], frozenset[int]], tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]
        ] = {}
        self.places = places_of(around, frozenset(frozen))
        self.reached, self.weight, self._class = self.places.reached, self.places.weight, self.places.classes
        self.entry_class = self._class[0]

    # places -----------------------------------------------------------------------------------------------------------

    def before(self, index: int) -> int:
        """The place class right before ``index`` (and before anything inserted there)."""
        return self._class[index]

    def behind(self, index: int) -> int:
        """The place class right behind ``index``; -1 where control ends."""
        return self.places.behind[index]

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
        forbidden, budget, matrix = self.forbidden, self.budget, self.matrix
        usable = [mine & ~theirs for mine, theirs in zip(budget, matrix, strict=True)]
        taken = zip(budget, self.touches, self.live.outs(), self.never, strict=True)
        out = [mine & ~(touches | live | never | forbidden) for mine, touches, live, never in taken]
        for block in self.cfg.blocks:
            for index in range(block.start, block.end - 1):
                out[index] &= usable[index + 1]
            for item in self.cfg.successors(block.end - 1):
                out[block.end - 1] &= usable[item]
        return out

    def needed(
        self, sites: Iterable[int], sets: frozenset[int]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """(before, behind): where a value used at ``sites`` must still be there; those of ``sets`` write it anew."""
        wanted = frozenset(sites) - sets
        if (wanted, sets) not in self._needed:
            self._needed[wanted, sets] = self._find_needed(wanted, sets)
        return self._needed[wanted, sets]

    def _find_needed(
        self, sites: Iterable[int], sets: frozenset[int]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        before = np.zeros(self.count, bool)
        blocks, start_of = self.cfg.blocks, self.places.block_of
        stack = [(start_of[site], site) for site in sites if self.reached[site]]
        whole = np.zeros(len(blocks), bool)
        while stack:
            number, last = stack.pop()
            block = blocks[number]
            written = max((place for place in sets if block.start <= place < last), default=-1)
            before[max(block.start, written + 1) : last + 1] = True
            if last == block.end - 1:
                if whole[number]:
                    continue
                whole[number] = True
            if written >= 0:
                continue
            stack.extend(
                (start_of[item], item)
                for item in self.cfg.predecessors(block.start)
                if self.reached[item] and not whole[start_of[item]]
            )
        behind = np.zeros(self.count, bool)
        behind[:-1] = before[1:]
        for block in blocks:
            last = block.end - 1
            behind[last] = any(before[item] for item in self.cfg.successors(last))
        return before, behind & self.reached


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
        needed = home.behind is None or home.behind[index]
        if needed and behind >= 0 and home.registers[behind] >= 0:
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

    def place(
        self,
        value: str,
        sites: Iterable[int],
        spare: int,
        prefer: Mapping[int, float],
        sets: frozenset[int] = frozenset(),
    ) -> bool:
        """Find ``value`` a home from the entry, or from those of ``sites`` that write it anew (``sets``), to the last
        of ``sites``; False when there is none.

        ``spare``: registers above the kernel's own that may be used. A single register for all of it comes first
        (``prefer``: register -> penalty), then one that is spare, then several with moves between them.
        """
        points = self.points
        before, behind = points.needed(sites, sets)
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
            self.homes[value] = Home(value, registers, behind=behind)
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
        classes, behinds, room = points.places.classes, points.places.behind, points.room
        for index in np.flatnonzero(before).tolist():
            allowed.setdefault(classes[index], everything)
        for index in np.flatnonzero(behind).tolist():
            place = behinds[index]
            allowed[place] = allowed.get(place, everything) & room[index]
        lost = points.spare & ~spare
        if lost:
            allowed = {place: mask & ~lost for place, mask in allowed.items()}
        for taken in (self._held_around(), self.blocked):
            for place, mask in taken.items():
                if place in allowed:
                    allowed[place] &= ~mask
        return allowed

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
            for before, behind in zip(points.places.classes, points.places.behind, strict=True):
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
        self.homes[value] = Home(value, registers, moves, behind)
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
