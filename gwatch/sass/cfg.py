"""Control flow of one text section: which instruction may follow which.

Everything here works on instruction *indices* (address / instruction size) of one section. The graph is a
safe over-approximation on what a section can show: a call enters its callee and every return of that callee
leads back behind each of its calls; a call that leaves the section continues behind itself. Indirect branches
and relative calls through a register lead where ``jumps`` and ``callees`` say (the compiler lists them beside the
code); those that nobody lists are in :attr:`Cfg.indirect`, which callers that need every successor refuse.

Semantics as seen in compiler output: ``BRA`` is conditional when it has a guard or a further operand
(``BRA P1, target``, ``BRA.DIV UR4, target``) or is ``BRA.CONV``, or ``BRA.DIV`` alone; ``WARPSYNC.COLLECTIVE`` goes
on or jumps;
``BSSY`` and ``LEPC`` name an address and go on; ``BSYNC`` goes on behind itself, and where a ``BSSY`` names
another place also there. ``BPT.TRAP`` ends the kernel: it counts as going on behind itself, but not into a
function that begins there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import DecodeError, UnsupportedError

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Words = npt.NDArray[np.uint64]
OUTSIDE = -2
NO_TARGET = -1


class Flow(IntEnum):
    """What an instruction does to the program counter."""

    NEXT = 0
    BRANCH = 1
    SPLIT = 2
    CALL = 3
    CALL_OUT = 4
    RETURN = 5
    EXIT = 6
    INDIRECT = 7
    REFERENCE = 8
    CALL_INDIRECT = 9


_KINDS = {
    "BRA": Flow.BRANCH,
    "JMP": Flow.INDIRECT,
    "BRX": Flow.INDIRECT,
    "BRXU": Flow.INDIRECT,
    "JMX": Flow.INDIRECT,
    "JMXU": Flow.INDIRECT,
    "CALL": Flow.CALL,
    "RET": Flow.RETURN,
    "EXIT": Flow.EXIT,
    "KILL": Flow.EXIT,
    "BSSY": Flow.REFERENCE,
    "LEPC": Flow.REFERENCE,
    "ULEPC": Flow.REFERENCE,
    "WARPSYNC": Flow.SPLIT,
    "RTT": Flow.EXIT,
    "PRET": Flow.RETURN,
    "JCAL": Flow.CALL_OUT,
}
FLOW_MNEMONICS = frozenset(_KINDS)
# Every other modifier of a branch is a condition, which not all architectures show as an operand: BRA.CONV (sm_75 to
# sm_89) jumps only where the warp has converged, BRA.DIV of sm_75 only where it hasn't.
_NO_CONDITION = frozenset({"U"})
_CALLS = (Flow.CALL, Flow.CALL_INDIRECT)
_FALLS_THROUGH = np.array([True, True, True, False, True, False, False, False, True, False])


def opcode_keys(words: Words) -> npt.NDArray[np.int32]:
    """The 13-bit opcode of each word ``(n, 2)``: bits 0-11 and bit 91."""
    low = (words[:, 0] & np.uint64(0xFFF)).astype(np.int32)
    high = ((words[:, 1] >> np.uint64(27)) & np.uint64(1)).astype(np.int32)
    return np.asarray(low | high << 12, np.int32)


def word_at(words: Words, index: int) -> int:
    """Word ``index`` of ``(n, 2)`` words as a 128-bit int."""
    return int(words[index, 0]) | int(words[index, 1]) << 64


@dataclass(frozen=True, slots=True)
class FlowTable:
    """Per instruction: ``kind`` (:class:`Flow`), ``conditional`` (may also do nothing), ``target`` (index in
    the section; -1 none, -2 outside it). ``barrier`` is the index of the B register of BSSY/BSYNC, or -1.
    ``mnemonics``: every mnemonic of the section with the first index it occurs at.
    """

    kind: npt.NDArray[np.uint8]
    conditional: npt.NDArray[np.bool_]
    target: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int8]
    mnemonics: dict[str, int]

    def relative(self) -> npt.NDArray[np.int64]:
        """Indices of the instructions that hold a pc-relative target."""
        return np.flatnonzero(self.target != NO_TARGET)


def flow_table(isa: Isa, words: Words) -> FlowTable:
    """The control flow of each of ``words`` ``(n, 2)``, a whole section starting at address 0.

    Raises UnsupportedError ``[word-unknown]`` for an opcode the tables don't hold (it could be a branch) and
    for a control-flow instruction that they can't read.
    """
    count = len(words)
    size = isa.arch.instruction_size
    kind = np.zeros(count, np.uint8)
    conditional = np.zeros(count, bool)
    target = np.full(count, NO_TARGET, np.int64)
    barrier = np.full(count, -1, np.int8)
    mnemonics: dict[str, int] = {}
    keys = opcode_keys(words)
    for key in np.unique(keys):
        places = np.flatnonzero(keys == key)
        mnemonic = _mnemonic(isa, words, places)
        mnemonics[mnemonic] = min(mnemonics.get(mnemonic, count), int(places[0]))
        if mnemonic == "BSYNC":
            for index in places:
                barrier[index] = _barrier(isa, words, int(index))
        if mnemonic not in FLOW_MNEMONICS:
            continue
        for index in places.tolist():
            try:
                decoded = isa.decode(word_at(words, index), pc=index * size)
            except DecodeError as error:
                raise UnsupportedError(
                    "word-unknown",
                    f"instruction {index} (0x{index * size:x}): a {mnemonic} that "
                    f"the tables can't read ({error.message})",
                ) from error
            address = decoded.target
            if address is not None:
                inside = address % size == 0 and 0 <= address < count * size
                target[index] = address // size if inside else OUTSIDE
            flow = _KINDS[mnemonic]
            if flow == Flow.SPLIT and address is None:
                flow = Flow.NEXT
            elif flow == Flow.CALL and (address is None or target[index] == OUTSIDE):
                flow = Flow.CALL_OUT
            elif flow == Flow.CALL and any(use.file in ("R", "UR") for use in decoded.effects.reads):
                flow = Flow.CALL_INDIRECT
            elif mnemonic == "BSSY":
                barrier[index] = _barrier(isa, words, index)
            kind[index] = flow
            conditional[index] = (
                decoded.guard != (isa.arch.predicate_true, False)
                or (flow == Flow.BRANCH and not _NO_CONDITION.issuperset(decoded.opcode.split(".")[1:]))
                or (flow in (Flow.BRANCH, Flow.EXIT) and _operand_count(decoded.text) > (flow == Flow.BRANCH))
            )
    return FlowTable(kind, conditional, target, barrier, mnemonics)


def _operand_count(text: str) -> int:
    body = text.split(None, 1)[1] if text.startswith("@") else text
    parts = body.split(None, 1)
    return len(parts[1].split(",")) if len(parts) > 1 and parts[1].strip(" ;") else 0


def _mnemonic(isa: Isa, words: Words, places: npt.NDArray[np.int64]) -> str:
    """The mnemonic of an opcode key, from the first of its words that decodes."""
    size = isa.arch.instruction_size
    for index in places[:64].tolist():
        try:
            return isa.decode(word_at(words, index), pc=index * size).mnemonic
        except DecodeError:
            continue
    first = int(places[0])
    raise UnsupportedError(
        "word-unknown",
        f"instruction {first} (0x{first * size:x}, word "
        f"{word_at(words, first):#034x}) has an opcode that the tables don't hold",
        "whether it is a branch can't be told, so this kernel isn't rewritten",
    )


def _barrier(isa: Isa, words: Words, index: int) -> int:
    decoded = isa.decode(word_at(words, index), pc=index * isa.arch.instruction_size)
    uses = [*decoded.effects.reads, *decoded.effects.writes]
    return next((use.first for use in uses if use.file == "B"), -1)


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start`` up to (not including) ``end``, entered at the top only, left at the bottom
    only."""

    start: int
    end: int


@dataclass(slots=True)
class Cfg:
    """The graph of a section. ``entries`` are the indices where code may be entered from outside; ``jumps``: where
    each indirect branch, and each call through a register, may lead; ``traps``: unconditional ones, by index.
    """

    flow: FlowTable
    entries: tuple[int, ...]
    instruction_size: int = 16
    jumps: Mapping[int, Sequence[int]] = field(default_factory=dict)
    traps: Sequence[int] = ()
    _extra: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _back: dict[int, list[int]] = field(default_factory=dict, repr=False)
    _falls: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool), repr=False)
    leaves: list[bool] = field(default_factory=list, repr=False)
    """Per instruction: whether it is a call out of the section (:attr:`Flow.CALL_OUT`), for loops over many."""
    _blocks: tuple[Block, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        flow = self.flow
        count = len(flow.kind)
        self._falls = _FALLS_THROUGH[flow.kind] | flow.conditional
        self._falls &= ~((flow.kind == Flow.BRANCH) & ~flow.conditional)
        # A call to nobody knows where is taken to come back.
        self._falls[[i for i in self.indirect if flow.kind[i] == Flow.CALL_INDIRECT]] = True
        self._falls[count - 1 :] = False
        functions = {*self.entries, *flow.target[flow.kind == Flow.CALL].tolist()}
        self._falls[[index for index in self.traps if index + 1 in functions]] = False
        self.leaves = (flow.kind == Flow.CALL_OUT).tolist()
        jumps = np.flatnonzero(np.isin(flow.kind, (Flow.BRANCH, Flow.SPLIT, Flow.CALL)) & (flow.target >= 0))
        for index in jumps.tolist():
            self._edge(index, int(flow.target[index]))
        for index, targets in self.jumps.items():
            for target in dict.fromkeys(targets):
                self._edge(index, target)
        self._bsync_edges()
        self._return_edges()

    def _edge(self, source: int, target: int) -> None:
        known = self._extra.setdefault(source, [])
        if target not in known:
            known.append(target)
            self._back.setdefault(target, []).append(source)

    def _bsync_edges(self) -> None:
        flow = self.flow
        syncs = np.flatnonzero((flow.kind == Flow.NEXT) & (flow.barrier >= 0))
        usual = set((syncs + 1).tolist()) | set(syncs.tolist())
        for opener in np.flatnonzero((flow.kind == Flow.REFERENCE) & (flow.barrier >= 0)).tolist():
            target = int(flow.target[opener])
            if target >= 0 and target not in usual:
                for sync in syncs[flow.barrier[syncs] == flow.barrier[opener]].tolist():
                    self._edge(sync, target)

    def _return_edges(self) -> None:
        callers: dict[int, list[int]] = {}
        for call in np.flatnonzero(np.isin(self.flow.kind, _CALLS)).tolist():
            for callee in self.callees(call):
                callers.setdefault(callee, []).append(call)
        for callee, sites in callers.items():
            for index in self.function_body(callee):
                if self.flow.kind[index] == Flow.RETURN:
                    for site in sites:
                        if site + 1 < len(self.flow.kind):
                            self._edge(index, site + 1)

    def callees(self, index: int) -> tuple[int, ...]:
        """Where the call at ``index`` may lead inside this section; nothing for other instructions."""
        if self.flow.kind[index] == Flow.CALL:
            return (int(self.flow.target[index]),)
        if self.flow.kind[index] == Flow.CALL_INDIRECT:
            return tuple(dict.fromkeys(self.jumps.get(index, ())))
        return ()

    def function_body(self, entry: int) -> list[int]:
        """Indices reached from ``entry`` without entering a callee (calls are stepped over), sorted."""
        seen = {entry}
        stack = [entry]
        kind = self.flow.kind
        while stack:
            index = stack.pop()
            if kind[index] in _CALLS:
                following = [index + 1] if index + 1 < len(kind) else []
            elif kind[index] == Flow.RETURN:
                following = [index + 1] if self._falls[index] else []
            else:
                following = self.successors(index)
            for item in following:
                if item not in seen:
                    seen.add(item)
                    stack.append(item)
        return sorted(seen)

    def successors(self, index: int) -> list[int]:
        """Indices that may run right after ``index``."""
        following = [index + 1] if self._falls[index] else []
        extra = self._extra.get(index)
        if extra:
            following.extend(item for item in extra if item not in following)
        return following

    def predecessors(self, index: int) -> list[int]:
        """Indices after which ``index`` may run."""
        before = [index - 1] if index > 0 and self._falls[index - 1] else []
        extra = self._back.get(index)
        if extra:
            before.extend(item for item in extra if item not in before)
        return before

    @property
    def indirect(self) -> list[int]:
        """Indices of indirect branches and calls whose targets nobody lists."""
        found: list[int] = np.flatnonzero(np.isin(self.flow.kind, (Flow.INDIRECT, Flow.CALL_INDIRECT))).tolist()
        return [index for index in found if index not in self.jumps]

    @property
    def leaders(self) -> npt.NDArray[np.bool_]:
        """Per instruction: whether a basic block starts there."""
        leads = np.zeros(len(self.flow.kind) + 1, bool)
        leads[list(self.entries)] = True
        leads[:1] = True
        leads[list(self._back)] = True
        breaks = np.flatnonzero(~np.isin(self.flow.kind, (Flow.NEXT, Flow.REFERENCE)))
        leads[breaks + 1] = True
        leads[[index + 1 for index in self._extra]] = True
        return leads[:-1]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The basic blocks in address order, covering the section."""
        if self._blocks is None:
            starts = [*np.flatnonzero(self.leaders).tolist(), len(self.flow.kind)]
            self._blocks = tuple(Block(a, b) for a, b in itertools.pairwise(starts))
        return self._blocks

    def reachable(self, starts: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Per instruction: whether it can run after one of ``starts`` (these included)."""
        seen = np.zeros(len(self.flow.kind), bool)
        stack = list(starts)
        while stack:
            index = stack.pop()
            if not seen[index]:
                seen[index] = True
                stack.extend(self.successors(index))
        return seen


def build_cfg(
    isa: Isa,
    words: Words,
    entries: Sequence[int] = (0,),
    jumps: Mapping[int, Sequence[int]] | None = None,
    callees: Sequence[int] = (),
) -> Cfg:
    """The control-flow graph of a section's ``words`` ``(n, 2)`` with function entries at ``entries``.

    ``jumps``: index of an indirect branch (or call) -> its targets; ``callees``: where the other relative calls through
    a register may lead. Raises what :func:`flow_table` raises.
    """
    flow = flow_table(isa, words)
    indirect = (Flow.INDIRECT, Flow.CALL_INDIRECT)
    listed = {index: targets for index, targets in (jumps or {}).items() if flow.kind[index] in indirect}
    if len(callees):
        calls = np.flatnonzero(flow.kind == Flow.CALL_INDIRECT).tolist()
        listed |= dict.fromkeys([index for index in calls if index not in listed], callees)
    return Cfg(flow, tuple(sorted(set(entries))), isa.arch.instruction_size, listed, _traps(isa, words, flow))


def _traps(isa: Isa, words: Words, flow: FlowTable) -> list[int]:
    """Indices of the traps without a guard."""
    if "BPT" not in flow.mnemonics:
        return []
    keys = opcode_keys(words)
    found = []
    for index in np.flatnonzero(keys == keys[flow.mnemonics["BPT"]]).tolist():
        with contextlib.suppress(DecodeError):
            if isa.decode(word_at(words, index)).text.startswith("BPT.TRAP"):
                found.append(index)
    return found
