"""Check any section, compiler output included, against the latency and scoreboard model.

Every result is followed forward from the instruction that makes it, along all paths: a result of fixed latency until
it is there, a result or a source of variable latency until its scoreboard is waited for. Each rule here holds without
exception in the compiler output it was learned from; what the tables can't say is not reported: pairs seen rarely,
asynchronous matrix results, code that only an unlisted jump reaches. 0 reports on compiler output is the standard the
model is held to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gwatch.errors import EncodeError
from gwatch.sass.cfg import OUTSIDE, Cfg, Flow, Words, build_cfg, word_at
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.integrity import Report
from gwatch.sass.latency import LatencyTable, latency_class
from gwatch.sass.scoreboards import IN_ORDER, Waits, timed, unit_of
from gwatch.sass.uses import ALWAYS, CodeView, Key, Use, WordFacts

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

# These pass through one queue in order: a load can't write a register before an earlier one has read its sources.
_MEMORY = frozenset(
    {
        "LDS",
        "STS",
        "LDSM",
        "LDGSTS",
        "STSM",
        "ATOMS",
        "LDG",
        "STG",
        "LD",
        "ST",
        "LDL",
        "STL",
        "REDG",
        "RED",
        "ATOMG",
        "ATOM",
        "SHFL",
    }
)


# On sm_75 their results are of variable latency; sums pass from one to the next without a scoreboard.
_CHAINED = frozenset({"HMMA", "IMMA", "BMMA", "DMMA", "QMMA"})


def _exclusive(first: WordFacts, second: WordFacts) -> bool:
    """Whether the guards of two instructions can't both hold (same predicate, one negated)."""
    return first.guard[0] == second.guard[0] and first.guard[1] != second.guard[1]


def _again(first: WordFacts, second: WordFacts) -> bool:
    """Whether the second loads the same constant into the same register, so that it doesn't matter which lands last."""
    return (
        second.mnemonic == "LDC"
        and second.text == first.text
        and second.guard == ALWAYS
        and not any(use.file in ("R", "UR") for use in second.reads())
    )


class SectionChecker:
    """The reports on one section; see :func:`check_section`."""

    def __init__(self, isa: Isa, latency: LatencyTable, words: Words, cfg: Cfg) -> None:
        self.isa, self.latency, self.cfg = isa, latency, cfg
        self.view = CodeView(isa, words)
        self.waits = Waits(self.view)
        self.reports: list[Report] = []
        self.pairs = 0

    def run(self) -> list[Report]:
        """Follow every result; reports in code order, each once."""
        live = self.cfg.reachable(self.cfg.entries)
        self._targets(live)
        for index in np.flatnonzero(live).tolist():
            facts = self.view.facts(index)
            if not self._control(index, facts):
                continue
            if timed(self.view, index):
                self._fixed(index, facts)
            elif facts.kind in ("fixed", "variable"):
                self._announced(index, facts)
            if self.view.control["reuse"][index]:
                self._reuse(index, facts)
        return sorted(dict.fromkeys(self.reports), key=lambda item: item.index)

    def _report(self, index: int, kind: str, message: str) -> None:
        self.reports.append(Report(index, kind, message))

    # one word
    # ---------------------------------------------------------------------------------------------

    def _control(self, index: int, facts: WordFacts) -> bool:
        """Whether the control word of ``index`` exists at all; reports what no opcode, or not this one, admits."""
        try:
            control = Control.from_word(word_at(self.view.words, index))
        except EncodeError as error:
            self._report(index, "control", f"{facts.text or 'an unknown word'}: {error.message}")
            return False
        if control.illegal:
            self._report(index, "control", f"{facts.text or 'an unknown word'}: {control.illegal}")
        # What some compilers give a scoreboard, and others none, is waited for in the one case and timed in the other.
        either = facts.mnemonic in self.isa.arch.fixed
        if facts.kind == "fixed" and not either and control.write_scoreboard != NO_SCOREBOARD:
            self._report(
                index,
                "control",
                f"{facts.text} takes SB{control.write_scoreboard} for a result of fixed latency: nothing releases it",
            )
        return True

    def _targets(self, live: Sequence[bool] | np.ndarray) -> None:
        """Branches must lead to instructions of the section, and no path may run off its end."""
        flow = self.cfg.flow
        for index in np.flatnonzero(flow.target == OUTSIDE).tolist():
            if live[index] and flow.kind[index] != Flow.CALL_OUT:
                self._report(
                    index, "target", f"{self.view.text(index)} leads out of the section or into an instruction"
                )
        last = len(self.view) - 1
        if last >= 0 and live[last]:
            ends = flow.kind[last] in (Flow.BRANCH, Flow.EXIT, Flow.RETURN, Flow.INDIRECT)
            if not ends or flow.conditional[last]:
                self._report(last, "runs-off", f"{self.view.text(last)} is the last instruction and goes on")

    def _reuse(self, index: int, facts: WordFacts) -> None:
        """A kept operand may not be read from the cache after its register was overwritten."""
        control = self.view.control[index]
        # With bit 109 at 0 the reuse bits mean something else.
        if not control["yield_flag"]:
            return
        for slot in range(4):
            if int(control["reuse"]) >> slot & 1:
                register = self._operand(index, slot)
                if register is not None:
                    self._kept(index, facts, slot, register)

    def _operand(self, index: int, slot: int) -> int | None:
        """The general register at operand place ``slot`` (0-3) of an instruction; None where it has none."""
        word = word_at(self.view.words, index)
        places = self.isa.reuse_places(word)
        low = places[slot] if slot < len(places) else -1
        return word >> low & 0xFF if low >= 0 else None

    def _kept(self, index: int, facts: WordFacts, slot: int, register: int) -> None:
        """Until the end of the block, or until another register takes the place in the cache."""
        leaders = self.cfg.leaders
        writer = index if any(use.file == "R" and use.covers(register) for use in facts.writes()) else None
        for at in range(index + 1, len(self.view)):
            if leaders[at]:
                return
            held = self._operand(at, slot)
            user = self.view.facts(at)
            if held == register and any(use.file == "R" and use.covers(register) for use in user.reads()):
                if writer is not None:
                    self._report(
                        index,
                        "reuse",
                        f"{facts.text} keeps R{register} for operand place {slot} of {user.text} (instruction {at}), "
                        f"but instruction {writer} overwrites it in between",
                    )
                return
            if held is not None and held != self.isa.arch.register_zero:
                return
            if any(use.file == "R" and use.covers(register) for use in user.writes()):
                writer = at

    # results of fixed latency
    # ---------------------------------------------------------------------------------------------

    def _fixed(self, index: int, facts: WordFacts) -> None:
        producer = latency_class(facts.opcode)
        for use in facts.writes():
            for offset, key in enumerate(use.registers()):
                self._follow(index, facts, producer, offset, key)

    def _follow(self, index: int, facts: WordFacts, producer: str, offset: int, key: Key) -> None:
        """Visit the users of ``key``, register ``offset`` of a result, that might come too early."""
        slowest = self.latency.slowest(producer, key[0], offset)
        best: dict[int, int] = {}
        stack = self._after(index, 0)
        while stack:
            at, distance = stack.pop()
            if distance >= slowest or best.get(at, slowest) <= distance:
                continue
            best[at] = distance
            user = self.view.facts(at)
            over = False
            for use in user.uses:
                if use.file != key[0] or not use.covers(key[1]):
                    continue
                over = over or (use.write and user.guard == ALWAYS)
                if not use.write and not _exclusive(facts, user):
                    self._pair(index, facts, (producer, offset), key, at, user, use, distance)
            if not over:
                stack.extend(self._after(at, distance))

    def _pair(
        self,
        index: int,
        facts: WordFacts,
        producer: tuple[str, int],
        key: Key,
        at: int,
        user: WordFacts,
        use: Use,
        distance: int,
    ) -> None:
        least = self.latency.limit(producer[0], key[0], latency_class(user.opcode), use.role, producer[1])
        self.pairs += 1
        if distance < least:
            self._report(
                at,
                "too-early",
                f"{user.text} issues {distance} cycles after {facts.text} "
                f"(instruction {index}); {key[0]}{key[1]} needs {least}",
            )

    def _after(self, index: int, distance: int) -> list[tuple[int, int]]:
        """Successors with their issue distance; none behind a stall of 0, which says nothing about time."""
        if self.view.control["stall"][index] == 0:
            return []
        passed = distance + self.view.stall(index)
        return [(item, passed) for item in self.cfg.successors(index)]

    # results and sources of variable latency
    # ---------------------------------------------------------------------------------------------

    def _announced(self, index: int, facts: WordFacts) -> None:
        control = self.view.control[index]
        writer, reader = int(control["write_scoreboard"]), int(control["read_scoreboard"])
        written = {key for use in facts.writes() for key in use.registers()}
        # Uniform registers and predicates are read when the instruction issues.
        sources = {key for use in facts.reads() if use.file == "R" for key in use.registers()}
        # An atomic's predicate is there when its sources have been read: compilers wait for that.
        flags = {key for key in written if key[0] == "P" and reader != NO_SCOREBOARD}
        if writer != NO_SCOREBOARD:
            self._variable(index, facts, written - flags, 1 << writer, reads=True)
            self._variable(index, facts, flags, 1 << writer | 1 << reader, reads=True)
        else:
            self._variable(index, facts, flags, 1 << reader, reads=True)
            self._unannounced(index, facts, written - flags)
        boards = sum(1 << board for board in {reader, writer} - {NO_SCOREBOARD})
        if reader != NO_SCOREBOARD:
            self._variable(index, facts, sources - written, boards, reads=False)

    def _variable(self, index: int, facts: WordFacts, wanted: set[Key], boards: int, reads: bool) -> None:
        """Nothing may write ``wanted`` (nor read it, for results) before one of ``boards`` is waited for."""
        if not wanted:
            return
        seen: set[int] = set()
        stack = self.cfg.successors(index)
        # Whose control word waits right behind it may not see the scoreboard taken yet; a DEPBAR does.
        early = set(stack) if 0 < int(self.view.control["stall"][index]) < self.latency.signal else set()
        while stack:
            at = stack.pop()
            unseen = int(self.view.control["wait_mask"][at]) if at in early else 0
            if at in seen or int(self.waits.mask[at]) & ~unseen & boards:
                continue
            seen.add(at)
            early.discard(at)
            other = self.view.facts(at)
            touched = any(
                any(key in wanted for key in use.registers()) and self._matters(facts, other, use, reads)
                for use in other.uses
            )
            if touched and not _exclusive(facts, other) and at != index:
                verb = "uses" if reads else "overwrites"
                names = ", ".join(f"SB{board}" for board in range(6) if boards >> board & 1)
                self._report(
                    at,
                    "in-flight",
                    f"{other.text} {verb} what {facts.text} (instruction {index}) still "
                    f"{'writes' if reads else 'reads'}: {names} was not waited for in time",
                )
                continue
            if self.cfg.flow.kind[at] != Flow.CALL_OUT:
                stack.extend(self.cfg.successors(at))

    def _unannounced(self, index: int, facts: WordFacts, written: set[Key]) -> None:
        """A result without a scoreboard is covered by the next one that a later instruction of its unit takes."""
        if not written:
            return
        unit = unit_of(facts.opcode)
        seen: set[tuple[int, int]] = set()
        stack = [(at, 0) for at in self.cfg.successors(index)]
        while stack:
            at, board = stack.pop()
            if (at, board) in seen or (board and int(self.waits.mask[at]) & board):
                continue
            seen.add((at, board))
            other = self.view.facts(at)
            same = (unit in IN_ORDER or unit in _CHAINED) and unit_of(other.opcode) == unit
            touched = any(any(key in written for key in use.registers()) for use in other.uses)
            if touched and _again(facts, other):
                continue
            if touched and not same and not _exclusive(facts, other):
                self._report(
                    at,
                    "unannounced",
                    f"{other.text} uses what {facts.text} (instruction {index}) writes, which takes no scoreboard",
                )
                continue
            taken = int(self.view.control["write_scoreboard"][at])
            if taken != NO_SCOREBOARD and same:
                board |= 1 << taken
            if self.cfg.flow.kind[at] != Flow.CALL_OUT:
                stack.extend((item, board) for item in self.cfg.successors(at))

    @staticmethod
    def _matters(facts: WordFacts, other: WordFacts, use: Use, reads: bool) -> bool:
        """Whether ``use`` by ``other`` conflicts with what ``facts`` still reads (or writes, with ``reads``)."""
        if not use.write:
            return reads
        in_order = unit_of(facts.opcode) == unit_of(other.opcode)
        return not in_order and (reads or not {facts.mnemonic, other.mnemonic} <= _MEMORY)


def check_section(
    isa: Isa, latency: LatencyTable, words: Words, entries: Sequence[int] = (0,)
) -> list[Report]:
    """Reports on a section's ``words`` ``(n, 2)``, entered at ``entries``: functions, and targets of jump tables.

    Raises UnsupportedError ``[word-unknown]`` when its control flow can't be read. Code that nothing known leads to is
    not looked at.
    """
    return SectionChecker(isa, latency, words, build_cfg(isa, words, entries)).run()
