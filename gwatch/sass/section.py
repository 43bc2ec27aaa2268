"""Check any section, compiler output included, against the latency and scoreboard model.

Every result is followed forward from the instruction that makes it, along all paths: a result of fixed latency until
it is there, a result or a source of variable latency until its scoreboard is waited for. What the tables can't say is
not reported: pairs seen rarely, distances behind a wait, asynchronous matrix results. 0 reports on compiler output is
the standard the model is held to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gwatch.sass.cfg import Cfg, Flow, Words, build_cfg
from gwatch.sass.control import NO_SCOREBOARD
from gwatch.sass.integrity import Key, Report
from gwatch.sass.latency import LatencyTable, latency_class
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView, Use, WordFacts

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

ALWAYS = (7, False)
# These pass through one queue in order: a load can't write a register before an earlier one has read its sources.
_MEMORY = frozenset(
    {
        "LDS",
        "STS",
        "LDSM",
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


def _keys(use: Use) -> Iterator[Key]:
    return ((use.file, number) for number in range(use.first, use.first + use.count))


def _exclusive(first: WordFacts, second: WordFacts) -> bool:
    """Whether the guards of two instructions can't both hold (same predicate, one negated)."""
    return first.guard[0] == second.guard[0] and first.guard[1] != second.guard[1]


class SectionChecker:
    """The reports on one section; see :func:`check_section`."""

    def __init__(self, isa: Isa, latency: LatencyTable, words: Words, cfg: Cfg) -> None:
        self.latency, self.cfg = latency, cfg
        self.view = CodeView(isa, words)
        self.waits = Waits(self.view)
        self.reports: list[Report] = []
        self.pairs = 0

    def run(self) -> list[Report]:
        """Follow every result; reports in code order."""
        live = self.cfg.reachable(self.cfg.entries)
        for index in range(len(self.view)):
            if not live[index]:
                continue
            facts = self.view.facts(index)
            if facts.kind == "fixed":
                self._fixed(index, facts)
            elif facts.kind == "variable":
                control = self.view.control[index]
                written = {key for use in facts.writes() for key in _keys(use)}
                # Uniform registers and predicates are read when the instruction issues.
                sources = {key for use in facts.reads() if use.file == "R" for key in _keys(use)}
                self._variable(index, facts, written, int(control["write_scoreboard"]), reads=True)
                self._variable(index, facts, sources - written, int(control["read_scoreboard"]), reads=False)
        return sorted(self.reports, key=lambda item: item.index)

    def _fixed(self, index: int, facts: WordFacts) -> None:
        producer = latency_class(facts.opcode)
        for use in facts.writes():
            slowest = self.latency.slowest(producer, use.file)
            for key in _keys(use):
                self._follow(index, facts, producer, key, slowest)

    def _follow(self, index: int, facts: WordFacts, producer: str, key: Key, slowest: int) -> None:
        """Visit the readers of ``key`` that issue less than ``slowest`` cycles after ``index``."""
        best: dict[int, int] = {}
        stack = self._after(index, 0)
        while stack:
            at, distance = stack.pop()
            if distance >= slowest or best.get(at, slowest) <= distance:
                continue
            best[at] = distance
            reader = self.view.facts(at)
            if self.waits.mask[at] or self.waits.group[at] or not reader.known:
                continue
            over = False
            for use in reader.uses:
                if use.file != key[0] or not use.covers(key[1]):
                    continue
                if use.write:
                    over = over or reader.guard == ALWAYS
                elif not _exclusive(facts, reader):
                    self.pairs += 1
                    least = self.latency.frequent(producer, key[0], latency_class(reader.opcode), use.role)
                    if distance < least:
                        self._report(
                            at,
                            "too-early",
                            f"{reader.text} issues {distance} cycles after {facts.text} "
                            f"(instruction {index}); {key[0]}{key[1]} needs {least}",
                        )
            if not over:
                stack.extend(self._after(at, distance))

    def _after(self, index: int, distance: int) -> list[tuple[int, int]]:
        """Successors with their issue distance; none behind a stall of 0, which says nothing about time."""
        if self.view.control["stall"][index] == 0:
            return []
        passed = distance + self.view.stall(index)
        return [(item, passed) for item in self.cfg.successors(index)]

    def _variable(self, index: int, facts: WordFacts, wanted: set[Key], board: int, reads: bool) -> None:
        """Nothing may write ``wanted`` (nor read it, for results) before ``board`` is waited for."""
        if board == NO_SCOREBOARD or not wanted:
            return
        seen: set[int] = set()
        stack = self.cfg.successors(index)
        while stack:
            at = stack.pop()
            if at in seen or int(self.waits.mask[at]) >> board & 1:
                continue
            seen.add(at)
            other = self.view.facts(at)
            touched = any(
                use.role != "guard"
                and any(key in wanted for key in _keys(use))
                and self._matters(facts, other, use, reads)
                for use in other.uses
            )
            if touched and not _exclusive(facts, other) and at != index:
                verb = "uses" if reads else "overwrites"
                self._report(
                    at,
                    "in-flight",
                    f"{other.text} {verb} what {facts.text} (instruction {index}) still "
                    f"{'writes' if reads else 'reads'}: SB{board} was not waited for",
                )
                continue
            if self.cfg.flow.kind[at] != Flow.CALL_OUT:
                stack.extend(self.cfg.successors(at))

    @staticmethod
    def _matters(facts: WordFacts, other: WordFacts, use: Use, reads: bool) -> bool:
        """Whether ``use`` by ``other`` conflicts with what ``facts`` still reads (or writes, with ``reads``)."""
        if not use.write:
            return reads
        if reads:
            return facts.mnemonic != other.mnemonic
        return not {facts.mnemonic, other.mnemonic} <= _MEMORY

    def _report(self, index: int, kind: str, message: str) -> None:
        self.reports.append(Report(index, kind, message))


def check_section(
    isa: Isa, latency: LatencyTable, words: Words, entries: tuple[int, ...] = (0,)
) -> list[Report]:
    """Reports on a section's ``words`` ``(n, 2)`` with function entries at ``entries``.

    Raises UnsupportedError ``[word-unknown]`` when its control flow can't be read. Code that only a jump table leads
    to is not looked at.
    """
    return SectionChecker(isa, latency, words, build_cfg(isa, words, entries)).run()
