"""Follow every value through a rewritten kernel: what each register holds, and what is still on its way.

This is the proof that inserted code takes nothing from the kernel. It runs forward over the finished words, along all
paths, and asks no liveness analysis: each register holds the kernel's own value until inserted code overwrites it; an
original instruction that reads such a register is an error, one that overwrites it makes it the kernel's again. Values
of inserted code are followed by name through copies, so a reader that would find another value (or one that the
kernel has overwritten) is an error as well. Registers saved to local memory count as the kernel's again once they are
loaded back; values of inserted code may be kept there as well. Its words of local memory lie below the kernel's frame
at all times, within the bytes that the kernel's stack grew by: a frame that comes to lie on one, or a call out of the
section, makes it worthless, and so does a newer value that isn't stored there.

Beside the values goes what is in flight: an instruction of variable latency may write its results and read its sources
until its scoreboard is waited for. Of original instructions only the registers that inserted code overwrites matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gwatch.sass.cfg import OUTSIDE, Cfg, Flow
from gwatch.sass.control import NO_SCOREBOARD
from gwatch.sass.flight import reads_late
from gwatch.sass.scoreboards import IN_ORDER, result_board, unit_of
from gwatch.sass.uses import ALWAYS, CodeView, Key, WordFacts

if TYPE_CHECKING:
    from gwatch.sass.integrity import Rewrite
    from gwatch.sass.scoreboards import Waits

MIXED = "different values, depending on the way"
STALE = "an old copy"
UNCLAIMED = ".a value"
STACK_TOP = "the top of the stack"
_WORD = 4
NEVER, GROUP = -1, -2
Slot = tuple[str, int]
"""A word of local memory: "top" (of the stack) or "R1", and the distance."""
# Plain numbers: members of an enumeration cost much to compare by the hundred thousand.
_CALLS = frozenset({int(Flow.CALL), int(Flow.CALL_OUT), int(Flow.CALL_INDIRECT)})
_CALL_INSIDE, _RETURN, _INDIRECT = int(Flow.CALL), int(Flow.RETURN), int(Flow.INDIRECT)
_STACK_LOAD = re.compile(r"(?:LDC|MOV|IMAD\.MOV\.U32) R(\d+), (?:RZ, RZ, )?c\[0x0\]\[(0x[0-9a-f]+)\]$")
_STACK_STEP = re.compile(r"(?:IADD3?|VIADD) R1, (?:PT, )*R1, (-?0x[0-9a-f]+)(?:, RZ)?$")
_COPY = re.compile(r"MOV R(\d+), R(\d+)$")
_SAVE = re.compile(r"STL \[R(\d+)\+(-0x[0-9a-f]+)\], R(\d+)$")
_LOAD = re.compile(r"LDL R(\d+), \[R(\d+)\+(-0x[0-9a-f]+)\]$")
_PACK = re.compile(r"P2R R(\d+), PR, RZ, 0x7f$")
_UNPACK = re.compile(r"R2P PR, R(\d+), (0x[0-9a-f]+)$")


@dataclass(frozen=True, slots=True)
class Flying:
    """A register that something may still write (``result``) or read, until scoreboard ``board`` is waited for
    (:data:`NEVER`: nothing tells; :data:`GROUP`: the asynchronous group).

    ``unit`` completes its instructions in order: ``covers`` are the scoreboards (a mask) that later ones of it took,
    any of which tells as well.
    """

    board: int
    result: bool
    key: Key
    inserted: bool
    unit: str = ""
    covers: int = 0


@dataclass(slots=True)
class State:
    """What is known at a point. ``values``: registers that don't hold the kernel's own value, with what they hold.
    ``defined``: registers that the kernel may have written on some way here; the others hold nothing that it could use.
    ``depth``: R1, counted from the top of the stack (None: not known). ``slots``: what inserted code left in local
    memory, by place, counted from the top or from R1.
    """

    values: dict[Key, str] = field(default_factory=dict)
    slots: dict[Slot, str] = field(default_factory=dict)
    flying: set[Flying] = field(default_factory=set)
    defined: set[Key] = field(default_factory=set)
    depth: int | None = None

    def copy(self) -> State:
        """Its own copy."""
        return State(dict(self.values), dict(self.slots), set(self.flying), set(self.defined), self.depth)

    def merge(self, other: State, own: Set[Key]) -> bool:
        """Join ``other`` in; whether anything changed. ``own``: registers that only inserted code uses.

        What a register holds on a way on which the kernel never wrote it is nothing that the kernel could read.
        """
        changed = False
        for key in self.values.keys() | other.values.keys():
            held = mine, theirs = self.values.get(key, ""), other.values.get(key, "")
            if mine != theirs and key not in own:
                mine, theirs = mine if key in self.defined else "", theirs if key in other.defined else ""
            joined = mine if mine == theirs else MIXED
            if joined != held[0]:
                if joined:
                    self.values[key] = joined
                else:
                    del self.values[key]
                changed = True
        for slot in list(self.slots):
            if other.slots.get(slot) != self.slots[slot]:
                del self.slots[slot]
                changed = True
        if self.depth is not None and other.depth != self.depth:
            self.depth = None
            changed = True
        if not other.flying <= self.flying:
            self.flying |= other.flying
            changed = True
        if not other.defined <= self.defined:
            self.defined |= other.defined
            changed = True
        return changed

    def held(self, key: Key) -> str:
        """What a register holds; ``=R5`` is the kernel's own value of R5."""
        return self.values.get(key) or f"={key[0]}{key[1]}"


class Replay:
    """One forward pass to a fixed point, then one that reports. ``view``/``cfg``/``waits``: the rewritten code;
    ``place``: original index -> new index; ``report(index, kind, message)``.
    """

    def __init__(
        self,
        rewrite: Rewrite,
        view: CodeView,
        cfg: Cfg,
        waits: Waits,
        place: Mapping[int, int],
        report: Callable[[int, str, str], None],
        signal: int = 1,
    ) -> None:
        self.rewrite, self.view, self.cfg, self.waits = rewrite, view, cfg, waits
        self.inserted = rewrite.inserted[: rewrite.count].tolist()
        self.original = {new: old for old, new in place.items()}
        self._tell = report
        self._told: set[tuple[int, str, str]] = set()
        self._loud = False
        # Registers of the kernel that inserted code overwrites: only there original instructions in flight matter.
        self.shared = {
            key
            for index, flag in enumerate(self.inserted)
            if flag
            for use in view.facts(index).writes()
            for key in use.registers()
            if key not in rewrite.own
        }
        # What only the entry's lines name is the kernel's from there on: of these only what the entry leaves in flight
        # matters.
        later = {
            key
            for index, flag in enumerate(self.inserted)
            if flag and index >= rewrite.entry
            for use in view.facts(index).uses
            for key in use.registers()
        }
        self._passing = self.shared - later - rewrite.initial.keys()
        self.shared -= self._passing
        self._stack_load = self._only_stack_load()
        self._stack_top = view.isa.arch.stack_offset
        self._steps = self._own_frame()
        self._quick = self._masks(self.shared | set(rewrite.own), True)
        self._wide = self._masks(self._passing, False)
        self._covering = self._covers()
        self._kinds: list[int] = cfg.flow.kind.tolist()
        self._waits: list[int] = waits.mask.tolist()
        self._blind(signal)
        self._group: list[bool] = waits.group.tolist()

    def _blind(self, signal: int) -> None:
        """A wait less than ``signal`` cycles behind an inserted line doesn't see the scoreboards that it takes."""
        for index, flag in enumerate(self.inserted[:-1]):
            if flag and 0 < int(self.view.control["stall"][index]) < signal:
                for field_name in ("write_scoreboard", "read_scoreboard"):
                    board = int(self.view.control[field_name][index])
                    if board != NO_SCOREBOARD:
                        self._waits[index + 1] &= ~(1 << board)

    def _only_stack_load(self) -> str | None:
        """The text of the one original instruction that writes R1, where that is a constant."""
        texts = [
            self.view.facts(index).text.rstrip(" ;")
            for index in self.view.writers("R", 1).tolist()
            if not self.inserted[index]
        ]
        return texts[0] if len(texts) == 1 and _STACK_LOAD.match(texts[0]) else None

    def _own_frame(self) -> int:
        """Bytes by which the kernel's own code moves R1 down, all in all."""
        steps = (
            step_of(self.view.facts(index).text)
            for index in self.view.writers("R", 1).tolist()
            if not self.inserted[index]
        )
        return sum(-step for step in steps if step is not None and step < 0)

    def _masks(self, keys: set[Key], special_too: bool) -> list[bool]:
        """Per instruction: whether it touches one of ``keys``; with ``special_too`` also where it is inserted, moves
        the stack pointer, or leaves.
        """
        wanted = dict.fromkeys(("R", "UR", "P", "UP"), 0)
        for file, number in keys:
            wanted[file] = wanted.get(file, 0) | 1 << number
        out = [special_too and bool(flag) for flag in self.inserted]
        for file, mask in wanted.items():
            if mask:
                masks = self.view.masks(file)
                for index, (reads, writes) in enumerate(zip(masks.reads, masks.writes, strict=True)):
                    if (reads | writes) & mask:
                        out[index] = True
        if not special_too:
            return out
        special = np.isin(self.cfg.flow.kind, (*_CALLS, Flow.RETURN, Flow.INDIRECT))
        special[self.view.writers("R", 1)] = True
        for index in np.flatnonzero(special[: len(out)]).tolist():
            out[index] = True
        return out

    def _covers(self) -> dict[int, tuple[int, str]]:
        """Instructions that take a write scoreboard in a unit that completes in order: index -> (scoreboard, unit).

        Only those that always run: where a guard is false, no scoreboard is taken.
        """
        out = {}
        boards = self.view.control["write_scoreboard"].tolist()
        for index, board in enumerate(boards[: len(self.inserted)]):
            if board != NO_SCOREBOARD:
                facts = self.view.facts(index)
                unit = unit_of(facts.opcode)
                if unit in IN_ORDER and facts.guard == ALWAYS:
                    out[index] = (board, unit)
        return out

    def _report(self, index: int, kind: str, message: str) -> None:
        if self._loud and (index, kind, message) not in self._told:
            self._told.add((index, kind, message))
            self._tell(index, kind, message)

    def run(self) -> None:
        """Find the fixed point, then report what is wrong in it."""
        blocks = self.cfg.blocks
        number_of = {block.start: number for number, block in enumerate(blocks)}
        found: list[State | None] = [None] * len(blocks)
        claimed = (self.rewrite.claims or {}).values()
        known = {key: value for claims in claimed for key, value in claims.items()}
        elsewhere = {key: known[key] for key in self.rewrite.own if "." not in known.get(key, ".")}
        stops = self._stops()
        found[0] = State(dict(self.rewrite.initial))
        work = [0]
        for entry in sorted(set(self.cfg.entries) - {0}):
            # Entered from code that isn't shown here: what nobody else uses has kept its value.
            if not self.cfg.predecessors(entry):
                found[number_of[entry]] = State(dict(elsewhere), defined=set(self.shared))
                work.append(number_of[entry])
        while work:
            number = work.pop()
            state = found[number]
            assert state is not None
            state = state.copy()
            block = blocks[number]
            for index in stops[number]:
                self._step(index, state)
            for item in self.cfg.successors(block.end - 1):
                following = number_of[item]
                old = found[following]
                if old is None:
                    found[following] = state.copy()
                    work.append(following)
                elif old.merge(state, self.rewrite.own):
                    work.append(following)
        self._loud = True
        for state, chosen in zip(found, stops, strict=True):
            if state is not None:
                state = state.copy()
                for index in chosen:
                    self._step(index, state)

    def _stops(self) -> list[list[int]]:
        """Per block, the instructions at which something may change."""
        chosen = np.array(self._quick) | np.array(self._wide) | (self.waits.mask != 0) | self.waits.group
        chosen[list(self._covering)] = True
        found = np.flatnonzero(chosen)
        starts = np.array([block.start for block in self.cfg.blocks[1:]], np.int64)
        return [part.tolist() for part in np.split(found, np.searchsorted(found, starts))]

    def _step(self, index: int, state: State) -> None:
        mask, group = self._waits[index], self._group[index]
        if state.flying and (mask or group):
            state.flying = {
                item
                for item in state.flying
                if not (item.board >= 0 and mask >> item.board & 1)
                and not (group and item.board == GROUP)
                and not mask & item.covers
            }
        if state.flying and index in self._covering:
            board, unit = self._covering[index]
            state.flying = {
                replace(item, covers=item.covers | 1 << board) if item.unit == unit else item
                for item in state.flying
            }
        if not self._quick[index] and not (
            self._wide[index] and any(item.inserted and item.key in self._passing for item in state.flying)
        ):
            return
        facts = self.view.facts(index)
        if self.inserted[index]:
            self._line(index, facts, state)
            if index == self.rewrite.entry - 1:
                # Nothing is defined yet when a kernel is entered: but for the homes of its values, what the entry's
                # lines leave in the kernel's registers is as good.
                kept = self.rewrite.own | self.rewrite.initial.keys()
                state.values = {
                    key: value for key, value in state.values.items() if "." not in value and key in kept
                }
        else:
            self._kernel(index, facts, state)

    # original instructions -----------------------------------------------------------------------------------------

    def _kernel(self, index: int, facts: WordFacts, state: State) -> None:
        reads = {key for use in facts.reads() for key in use.registers()}
        writes = {key for use in facts.writes() for key in use.registers()}
        if not facts.complete:
            lent = {item.key for item in state.flying if item.inserted}
            wanted = (state.values.keys() | self.shared | lent) - self.rewrite.own
            reads |= {key for key in wanted if facts.may_touch(*key)}
            writes |= {key for key in wanted if facts.may_write(*key)}
        sure = facts.complete and facts.guard == ALWAYS
        kind = self._kinds[index]
        if self.original[index] in self.rewrite.calls:
            self._call(index, facts, state)
        for key in reads & state.values.keys() & (state.defined | self.rewrite.own):
            self._report(
                index,
                "clobber",
                f"{facts.text} reads {key[0]}{key[1]}, which holds {self._name(state.values[key])}",
            )
        for item in list(state.flying) if state.flying else ():
            if item.key in writes or (item.result and item.key in reads):
                if item.inserted:
                    self._report(
                        index,
                        "lent",
                        f"{facts.text} uses {item.key[0]}{item.key[1]}, which inserted code may still "
                        + ("write" if item.result else "read"),
                    )
                elif item.key in writes or item.board == NEVER:
                    # A compiler waits as long as it must: what it overwrites (or reads) is there.
                    state.flying.discard(item)
        for key in writes:
            if key in state.values:
                # Where the guard of a first write is false the kernel has nothing there to read either.
                if sure or (key not in state.defined and key not in self.rewrite.own):
                    del state.values[key]
                else:
                    state.values[key] = MIXED
        state.defined |= writes & self.shared
        if ("R", 1) in writes:
            self._moved(facts, state)
        if kind in _CALLS:
            state.defined |= self.shared
            callee = self.rewrite.calls.get(self.original[index])
            if kind != _CALL_INSIDE and (callee is None or callee.returns):
                # What runs there has its frames below this one's.
                state.slots.clear()
        if kind in (_RETURN, _INDIRECT) and not set(self.cfg.successors(index)) - {index + 1}:
            for key in state.values.keys() - self.rewrite.own:
                self._report(
                    index,
                    "clobber",
                    f"{facts.text} goes on where {key[0]}{key[1]} may be read, which holds "
                    f"{self._name(state.values[key])}",
                )
        self._launch(index, facts, state, reads & self.shared, writes & self.shared, inserted=False)

    def _moved(self, facts: WordFacts, state: State) -> None:
        """R1 changes. A frame may come to lie on words of inserted code: what they held is lost."""
        text = facts.text.rstrip(" ;")
        load, step = _STACK_LOAD.match(text), step_of(text)
        if load and int(load[2], 16) == self._stack_top:
            state.depth = 0
        elif step is not None and state.depth is not None:
            state.depth += step
        else:
            state.depth = None
        depth = state.depth
        state.slots = {
            slot: value
            for slot, value in state.slots.items()
            if slot[0] == "top" and depth is not None and slot[1] + _WORD <= depth
        }

    def _slot(self, index: int, facts: WordFacts, state: State, base: int, offset: int) -> Slot:
        """The word of local memory that an inserted line names."""
        depth = state.depth
        if base == 1:
            below = -offset
            slot = ("R1", offset) if depth is None else ("top", depth + offset)
        elif state.values.get(("R", base)) == STACK_TOP:
            below = -offset - self._steps
            slot = ("top", offset)
            if depth is not None and offset + _WORD > depth:
                self._report(index, "stack", f"{facts.text} is at a word of the kernel's frame")
        else:
            self._report(index, "stack", f"{facts.text}: R{base} is not known to hold a stack address")
            return ("nowhere", index)
        if below > self.rewrite.frame:
            self._report(
                index,
                "stack",
                f"{facts.text} is {below} bytes below the kernel's frame, whose stack grew by {self.rewrite.frame}",
            )
        return slot

    def _call(self, index: int, facts: WordFacts, state: State) -> None:
        callee = self.rewrite.calls.get(self.original[index])
        if callee is None:
            return
        for key in list(state.values):
            if key[0] != "R":
                continue
            # The kernel can hand over nothing in a register that it doesn't name.
            if callee.reads >> key[1] & 1 and key not in self.rewrite.own:
                self._report(
                    index,
                    "clobber",
                    f"{facts.text} may read {key[0]}{key[1]}, which holds {self._name(state.values[key])}",
                )
            if callee.touches >> key[1] & 1:
                state.values[key] = MIXED
        for item in state.flying:
            used = callee.uses | (callee.reads if item.result else 0)
            if item.inserted and item.key[0] == "R" and used >> item.key[1] & 1:
                self._report(
                    index, "lent", f"{facts.text} may use R{item.key[1]} while inserted code still does"
                )

    # inserted code -------------------------------------------------------------------------------------------------

    def _line(self, index: int, facts: WordFacts, state: State) -> None:
        claims = (self.rewrite.claims or {}).get(index, {})
        text = facts.text.rstrip(" ;")
        pack = _PACK.match(text)
        for use in facts.reads():
            for key in use.registers():
                if not (pack and key[0] == "P"):
                    self._read(index, facts, state, key, claims.get(key))
                self._not_flying(index, facts, state, key, results_only=True)
        if text == self._stack_load:
            # The kernel's own load of R1 again: the same value, whichever lands last.
            state.depth = 0
            state.flying = {item for item in state.flying if item.inserted or item.key != ("R", 1)}
            self._launch(index, facts, state, set(), {("R", 1)}, inserted=True)
            return
        for use in facts.writes():
            for key in use.registers():
                self._not_flying(index, facts, state, key, results_only=False)
        self._write(index, facts, text, state, claims)
        reads = {key for use in facts.reads() for key in use.registers()}
        writes = {key for use in facts.writes() for key in use.registers()}
        self._launch(index, facts, state, reads, writes, inserted=True)
        if int(self.cfg.flow.target[index]) == OUTSIDE:
            for item in state.flying:
                if item.inserted and item.key not in self.rewrite.own:
                    self._report(
                        index, "lent", f"{item.key[0]}{item.key[1]} is in flight when the copy is entered"
                    )

    def _read(self, index: int, facts: WordFacts, state: State, key: Key, claim: str | None) -> None:
        found = state.values.get(key)
        if self.rewrite.claims is None:
            return
        name = f"{key[0]}{key[1]}"
        if claim is None:
            if found is not None:
                self._report(index, "clobber", f"{facts.text} reads {name}, which holds {self._name(found)}")
        elif "." not in claim:
            if found != claim:
                self._report(
                    index,
                    "stale",
                    f"{facts.text} reads {name} as %{claim}, but it holds {self._name(found or 'the kernel value')}",
                )
        elif found is not None and found != claim and found.partition(".")[0] == claim.partition(".")[0]:
            self._report(index, "stale", f"{facts.text} reads {name} as {claim}, but it holds {found}")

    def _write(
        self, index: int, facts: WordFacts, text: str, state: State, claims: Mapping[Key, str]
    ) -> None:
        save, load = _SAVE.match(text), _LOAD.match(text)
        top = _STACK_LOAD.match(text)
        pack, unpack, copy = _PACK.match(text), _UNPACK.match(text), _COPY.match(text)
        if save:
            slot = self._slot(index, facts, state, int(save[1]), int(save[2], 16))
            state.slots[slot] = state.held(("R", int(save[3])))
        elif load and "." in claims.get(("R", int(load[1])), ""):
            state.values["R", int(load[1])] = claims["R", int(load[1])]
        elif load:
            slot = self._slot(index, facts, state, int(load[2]), int(load[3], 16))
            self._set(state, ("R", int(load[1])), state.slots.get(slot, MIXED))
        elif (
            top
            and int(top[2], 16) == self._stack_top
            and top[1] != "1"
            and (self.rewrite.claims is None or ("R", int(top[1])) in claims)
        ):
            state.values["R", int(top[1])] = STACK_TOP
        elif pack:
            mine = sum(1 << number for number in range(7) if ("P", number) not in state.values)
            self._set(state, ("R", int(pack[1])), f"predicates {mine:#x}")
        elif unpack:
            packed = re.match(r"predicates (0x[0-9a-f]+)$", state.held(("R", int(unpack[1]))))
            sound = int(packed[1], 16) if packed else 0
            for number in range(7):
                if int(unpack[2], 16) >> number & 1:
                    self._set(state, ("P", number), f"=P{number}" if sound >> number & 1 else MIXED)
        elif copy and ("R", int(copy[1])) in claims:
            self._set(state, ("R", int(copy[1])), state.held(("R", int(copy[2]))))
            self._claimed(state, ("R", int(copy[1])), claims[("R", int(copy[1]))])
        else:
            for use in facts.writes():
                for key in use.registers():
                    self._assign(index, facts, state, key, claims.get(key))

    @staticmethod
    def _claimed(state: State, key: Key, claim: str) -> None:
        """A copy of scratch, or of a kernel's register into scratch, is what its name says."""
        if "." in claim:
            state.values[key] = claim
        elif state.values.get(key) != claim and not state.held(key).startswith("="):
            _outdate(state, claim)
            if "." in state.held(key):
                state.values[key] = claim

    def _assign(self, index: int, facts: WordFacts, state: State, key: Key, claim: str | None) -> None:
        if self.rewrite.claims is None:
            state.values[key] = UNCLAIMED
            return
        if claim is None:
            self._report(
                index, "clobber", f"{facts.text} writes {key[0]}{key[1]}, which belongs to the kernel"
            )
            state.values[key] = MIXED
            return
        if "." not in claim:
            if facts.guard != ALWAYS and state.values.get(key) != claim:
                state.values[key] = MIXED
                return
            _outdate(state, claim)
        state.values[key] = claim

    @staticmethod
    def _set(state: State, key: Key, value: str) -> None:
        if value == f"={key[0]}{key[1]}":
            state.values.pop(key, None)
        else:
            state.values[key] = value

    def _not_flying(self, index: int, facts: WordFacts, state: State, key: Key, results_only: bool) -> None:
        for item in state.flying:
            if item.key == key and (item.result or not results_only):
                whose = "inserted code" if item.inserted else "the kernel"
                self._report(
                    index,
                    "in-flight",
                    f"{facts.text} uses {key[0]}{key[1]} while {whose} may still "
                    + ("write it" if item.result else "read it"),
                )

    def _launch(
        self, index: int, facts: WordFacts, state: State, reads: set[Key], writes: set[Key], inserted: bool
    ) -> None:
        """What an instruction leaves in flight."""
        control = self.view.control[index]
        writer, reader = int(control["write_scoreboard"]), int(control["read_scoreboard"])
        if facts.kind == "async":
            late = {key for key in reads | writes if key[0] == "R"}
            state.flying |= {Flying(GROUP, result, key, inserted) for key in late for result in (True, False)}
            return
        announced = writer != NO_SCOREBOARD or reader != NO_SCOREBOARD
        if not announced and not reads_late(facts.mnemonic, facts.kind):
            return
        # Inserted code waits for its own scoreboards; that units complete in order is for the compiler to rely on.
        unit = "" if inserted else unit_of(facts.opcode)
        unit = unit if unit in IN_ORDER else ""
        for key in writes:
            board = result_board(self.view, index, key[0])
            state.flying.add(Flying(board if board != NO_SCOREBOARD else NEVER, True, key, inserted, unit))
        board = reader if reader != NO_SCOREBOARD else writer if writer != NO_SCOREBOARD else NEVER
        for key in reads - writes:
            # Predicates are read when the instruction issues.
            if key[0] == "R" or (key[0] == "UR" and inserted):
                state.flying.add(Flying(board, False, key, inserted, unit))

    @staticmethod
    def _name(value: str) -> str:
        if value in (MIXED, STALE):
            return value
        return f"{value.lstrip('.')} of inserted code"


def _outdate(state: State, claim: str) -> None:
    """A value of the state is new: whatever else was called that is an old copy now."""
    for other, value in state.values.items():
        if value == claim:
            state.values[other] = STALE
    for slot, value in state.slots.items():
        if value == claim:
            state.slots[slot] = STALE


def step_of(text: str) -> int | None:
    """By how much an instruction moves R1; None where it does something else."""
    match = _STACK_STEP.match(text.rstrip(" ;"))
    if match is None:
        return None
    step = int(match[1], 16)
    return step - (1 << 32) if step >= 1 << 31 else step
