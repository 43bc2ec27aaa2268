"""Scoreboards of a section: who takes them, who waits, and what a register still waits for at a point.

Six counters per warp. An instruction of variable latency takes one (write scoreboard: result written; read
scoreboard: sources read); a wait mask or ``DEPBAR.LE SBn, 0x0`` waits until a counter is zero. A counted
``DEPBAR.LE SBn, k`` relies on how many are in flight: nothing else may take such a counter.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gwatch.errors import SiteError, UnsupportedError
from gwatch.sass.cfg import Cfg, opcode_keys
from gwatch.sass.control import NO_SCOREBOARD, SCOREBOARDS
from gwatch.sass.latency import UNKNOWN, LatencyTable, latency_class
from gwatch.sass.uses import ALWAYS, CodeView, Key, Use

FAR = UNKNOWN
# One unit does these and completes them in order: a later one's scoreboard covers an earlier one.
_CONVERSIONS = frozenset({"MUFU", "POPC", "BREV", "FLO", "I2F", "F2I", "F2F", "FRND", "FCHK"})
# So does the unit of shared memory and shuffles (compilers wait for a SHFL to have the LDS before it).
_SHARED = frozenset({"LDS", "LDSM", "SHFL"})
_SPECIAL = frozenset({"S2R", "S2UR"})
# Variable where there are few such units (sm_75, sm_80 to sm_89, sm_120), of fixed latency elsewhere.
_DOUBLE = frozenset({"DADD", "DMUL", "DFMA", "DSETP"})
_DEPBAR = re.compile(r"(SB\d|gsb\d)\s*,\s*(0x[0-9a-f]+|\d+|UR\w+)")
_SET = re.compile(r"\{([\d,\s]+)\}")


@dataclass(frozen=True, slots=True)
class ScoreboardUse:
    """Per scoreboard 0-5: how many instructions take it and wait for it; which are counted on."""

    taken: tuple[int, ...]
    waited: tuple[int, ...]
    counted: frozenset[int]

    def choose(self, avoid: frozenset[int] = frozenset()) -> int:
        """The best scoreboard for inserted code: unused, else least used; never one that is counted on.

        Raises UnsupportedError ``[scoreboards]`` when a counted DEPBAR uses every one of them.
        """
        free = [board for board in range(SCOREBOARDS) if board not in self.counted]
        if not free:
            raise UnsupportedError(
                "scoreboards",
                "every scoreboard of this kernel is waited for by a counted DEPBAR",
                "inserted code has none to use",
            )
        return min(free, key=lambda board: (board in avoid, self.taken[board] + self.waited[board], board))


def depbar(view: CodeView, index: int) -> tuple[int, frozenset[int], bool]:
    """What the DEPBAR at ``index`` does: (mask waited to zero, boards counted on, whether gsb is waited to
    zero).
    """
    text = view.facts(index).text
    zero, counted, group = 0, set(), False
    for match in _DEPBAR.finditer(text):
        full = match[2].startswith("0x") and int(match[2], 16) == 0
        if match[1].startswith("gsb"):
            group = group or full
        elif full:
            zero |= 1 << int(match[1][2:])
        else:
            counted.add(int(match[1][2:]))
    for match in _SET.finditer(text):
        zero |= sum(1 << int(item) for item in match[1].split(","))
    return zero, frozenset(counted), group


class Waits:
    """Which scoreboards each instruction of a section waits to zero (``mask``), and the section's use of
    them.
    """

    def __init__(self, view: CodeView) -> None:
        self.view = view
        control = view.control
        self.mask = control["wait_mask"].astype(np.int64)
        self.group = np.zeros(len(view), bool)
        counted: set[int] = set()
        keys = opcode_keys(view.words)
        for key in np.unique(keys):
            places = np.flatnonzero(keys == key)
            first = view.facts(int(places[0]))
            if (
                "DEPBAR" not in first.mnemonic
                and "DEPBAR" not in first.opcode
                and first.mnemonic != "WARPGROUP"
            ):
                continue
            for index in places.tolist():
                zero, numbers, group = depbar(view, index)
                self.mask[index] |= zero
                self.group[index] = group
                counted |= numbers
        taken = [
            int(((control["write_scoreboard"] == board) | (control["read_scoreboard"] == board)).sum())
            for board in range(SCOREBOARDS)
        ]
        waited = [int((self.mask >> board & 1).sum()) for board in range(SCOREBOARDS)]
        self.use = ScoreboardUse(tuple(taken), tuple(waited), frozenset(counted))
        self._spans: Spans | None = None

    def spans(self, cfg: Cfg) -> Spans:
        """Sums over stretches of the section, whose control flow is ``cfg``."""
        if self._spans is None:
            self._spans = Spans(cfg, self.view, self)
        return self._spans


@dataclass(frozen=True, slots=True)
class Producer:
    """A write that may reach a point: its ``index``, the smallest issue ``distance`` to that point (capped at
    :data:`FAR`), the scoreboards waited to zero on the way (``waited``, on every such path) and whether the
    asynchronous group was.
    """

    index: int
    distance: int
    waited: int
    group_waited: bool


def producers(cfg: Cfg, view: CodeView, waits: Waits, index: int, file: str, register: int) -> list[Producer]:
    """The writes of ``register`` that may reach the point right before instruction ``index``.

    A guarded write lets earlier ones through. A call that leaves the section hands over finished results, so
    the search ends there. Raises UnsupportedError ``[word-unknown]`` when a word on the way can't be read.

    The search goes backwards block by block; what is known behind a block (the smallest distance, the scoreboards
    waited for on every way) is joined before it is entered again, so that it is entered a few times at most.
    """
    spans = waits.spans(cfg)
    stops = spans.stops(file, register)
    known: dict[int, _Way] = {}
    found: dict[int, Producer] = {}
    stack: list[tuple[int, _Way]] = [(before, (0, 0, False)) for before in cfg.predecessors(index)]
    while stack:
        last, way = stack.pop()
        old = known.get(last)
        way = way if old is None else _join(old, way)
        if way == old:
            continue
        known[last] = way
        start, at = spans.start_of(last), last
        while at >= start:
            place = bisect_right(stops, at) - 1
            stop = stops[place] if place >= 0 else -1
            way = spans.across(max(start, stop + 1), at + 1, way)
            at = stop
            if stop < start:
                break
            facts = view.facts(stop)
            if not facts.complete and facts.may_write(file, register):
                raise UnsupportedError(
                    "word-unknown",
                    f"instruction {stop} can't be read, so what {file}{register} holds at "
                    f"instruction {index} can't be told",
                )
            writes = any(use.file == file and use.covers(register) for use in facts.writes())
            if writes:
                _note(found, stop, min(way[0] + view.stall(stop), FAR), way)
            if (writes and facts.guard == ALWAYS) or cfg.leaves[stop]:
                break
            way = spans.across(stop, stop + 1, way)
            at -= 1
        if at < start:
            stack.extend((before, way) for before in cfg.predecessors(start))
    return [found[key] for key in sorted(found)]


_Way = tuple[int, int, bool]
"""From a place to the point asked about: issue cycles, scoreboards waited for, whether the group is."""


def _join(one: _Way, other: _Way) -> _Way:
    return min(one[0], other[0]), one[1] & other[1], one[2] and other[2]


def _note(found: dict[int, Producer], at: int, distance: int, way: _Way) -> None:
    old = found.get(at)
    _, waited, group = way
    if old is not None:
        distance, waited, group = _join((distance, waited, group), (old.distance, old.waited, old.group_waited))
    found[at] = Producer(at, distance, waited, group)


class Spans:
    """Sums over stretches of straight code: issue cycles, scoreboards waited for, and whether the group is."""

    def __init__(self, cfg: Cfg, view: CodeView, waits: Waits) -> None:
        self._view = view
        leaving = np.flatnonzero(cfg.leaves).tolist()
        self._always = {*view.incomplete(), *leaving}
        self._stops: dict[Key, list[int]] = {}
        stalls = np.maximum(view.control["stall"].astype(np.int64), 1)
        self._cycles = np.concatenate(([0], np.cumsum(stalls)))
        self._starts = np.array([block.start for block in cfg.blocks], np.int64)
        # Where each scoreboard (and the group) was last waited for, at or before an instruction.
        count = np.arange(len(view))
        marks = [(waits.mask >> board & 1).astype(bool) for board in range(SCOREBOARDS)] + [waits.group]
        self._last = [np.maximum.accumulate(np.where(mark, count, -1)) if len(view) else count for mark in marks]

    def start_of(self, index: int) -> int:
        """The first instruction of the block of ``index``."""
        return int(self._starts[np.searchsorted(self._starts, index, side="right") - 1])

    def stops(self, file: str, register: int) -> list[int]:
        """Instructions at which a search for writes of ``register`` has to look, ascending."""
        found = self._stops.get((file, register))
        if found is None:
            writers = self._view.writers(file, register).tolist()
            found = self._stops[file, register] = sorted({*writers, *self._always})
        return found

    def across(self, start: int, end: int, way: _Way) -> _Way:
        """``way`` from before instruction ``end``, as it is from before ``start``."""
        distance, waited, group = way
        if start >= end:
            return way
        distance = min(FAR, distance + int(self._cycles[end] - self._cycles[start]))
        for board in range(SCOREBOARDS):
            if self._last[board][end - 1] >= start:
                waited |= 1 << board
        return distance, waited, bool(group or self._last[SCOREBOARDS][end - 1] >= start)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a reader at a point must do: wait for ``wait_mask`` and issue no earlier than ``delay`` cycles
    after the point is reached.
    """

    wait_mask: int
    delay: int


def readiness(
    cfg: Cfg, view: CodeView, waits: Waits, latency: LatencyTable, index: int, use: Use, consumer: str
) -> Readiness:
    """How an instruction of latency class ``consumer``, inserted before ``index``, can read ``use`` safely.

    Raises SiteError ``[value-not-ready]`` for a result of asynchronous matrix instructions that nothing has
    waited for and for a variable-latency result that no scoreboard covers.
    """
    mask, delay = 0, 0
    for register in range(use.first, use.first + use.count):
        for producer in producers(cfg, view, waits, index, use.file, register):
            facts = view.facts(producer.index)
            if timed(view, producer.index):
                needed = latency.distance(latency_class(facts.opcode), use.file, consumer, use.role)
                delay = max(delay, needed - producer.distance)
            elif facts.kind == "async":
                if not producer.group_waited:
                    raise SiteError(
                        "value-not-ready",
                        f"{use.file}{register} at instruction {index} is written asynchronously by "
                        f"{facts.opcode} (instruction {producer.index}) and nothing has waited for it there",
                        "choose a site behind the WARPGROUP.DEPBAR that waits for it",
                    )
            else:
                mask |= _pending(cfg, view, waits, producer, index, use.file, f"{use.file}{register}")
    return Readiness(mask, delay)


def timed(view: CodeView, index: int) -> bool:
    """Whether the results of the instruction at ``index`` are there after a fixed time. Of some opcodes compilers leave
    the one to time and give the other a scoreboard (``Arch.fixed``), which then tells.
    """
    return view.facts(index).kind == "fixed" and int(view.control["write_scoreboard"][index]) == NO_SCOREBOARD


def result_board(view: CodeView, index: int, file: str) -> int:
    """The scoreboard that tells when a result in ``file`` of the instruction at ``index`` is there, or NO_SCOREBOARD.

    An atomic's predicate is there when its sources have been read: compilers wait for that (``ATOM P0, RZ, …``).
    """
    writer = int(view.control["write_scoreboard"][index])
    if writer == NO_SCOREBOARD and file == "P":
        return int(view.control["read_scoreboard"][index])
    return writer


def _pending(cfg: Cfg, view: CodeView, waits: Waits, producer: Producer, index: int, file: str, name: str) -> int:
    """The scoreboards that still cover the variable-latency ``producer`` at ``index``, as a wait mask."""
    board = result_board(view, producer.index, file)
    if board != NO_SCOREBOARD:
        return 0 if producer.waited >> board & 1 else 1 << board
    mask = _covering(cfg, view, waits, producer.index, index)
    if mask is None:
        facts = view.facts(producer.index)
        raise SiteError(
            "value-not-ready",
            f"{name} at instruction {index} is written by {facts.opcode} (instruction "
            f"{producer.index}) without a scoreboard, and no later one of its unit covers it",
            "choose a site further behind it",
        )
    return mask


def unit_of(opcode: str) -> str:
    """The unit that completes instructions of this opcode in order."""
    name = latency_class(opcode)
    for unit, names in (("XU", _CONVERSIONS), ("SHARED", _SHARED), ("SPECIAL", _SPECIAL), ("DOUBLE", _DOUBLE)):
        if name in names:
            return unit
    return name


IN_ORDER = frozenset({"XU", "SHARED", "SPECIAL", "DOUBLE"})
"""Units whose results compilers leave without a scoreboard where a later one of the same unit has one."""


def _covering(cfg: Cfg, view: CodeView, waits: Waits, start: int, goal: int) -> int | None:
    """Boards taken by the next unguarded instruction of the same unit on each path ``start`` -> ``goal`` and not yet
    waited for at ``goal``; None when some path to ``goal`` has no such instruction (in-order units share a
    scoreboard).
    """
    unit = unit_of(view.facts(start).opcode)
    if unit not in IN_ORDER:
        return None
    mask = 0
    seen: set[tuple[int, int]] = set()
    stack = [(item, 0) for item in cfg.successors(start)]
    while stack:
        at, board = stack.pop()
        if (at, board) in seen:
            continue
        seen.add((at, board))
        if at == goal:
            if not board:
                return None
            mask |= board
            continue
        if board and int(waits.mask[at]) & board:
            continue
        taken = int(view.control["write_scoreboard"][at])
        if not board and taken != NO_SCOREBOARD:
            facts = view.facts(at)
            # Where its guard is false it takes no scoreboard.
            if unit_of(facts.opcode) == unit and facts.guard == ALWAYS:
                board = 1 << taken
        stack.extend((item, board) for item in cfg.successors(at))
    return mask
