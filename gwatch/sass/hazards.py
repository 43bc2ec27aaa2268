"""Replay a rewritten section against the latency and scoreboard model, knowing nothing of how it was planned.

:func:`check_rewrite` looks at the finished words alone: every original instruction is in its place and
unchanged apart from moved code positions and cleared reuse bits; every code position reaches what it reached
before; inserted code writes only registers of its own; each of its reads comes late enough and behind the
right waits on every path; nothing it leaves in flight can be overwritten too early. A single disagreement
raises HazardError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gwatch.errors import GWatchError, HazardError
from gwatch.sass.cfg import OUTSIDE, build_cfg
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.integrity import Key, OriginalsChecker, Report, Rewrite
from gwatch.sass.latency import LatencyTable, latency_class
from gwatch.sass.scoreboards import FAR, Waits, producers, readiness
from gwatch.sass.uses import CodeView, Use

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

_FILES_READ_LATE = ("R", "UR")


@dataclass(slots=True)
class _Flight:
    """Registers that instructions in flight will still write or may still read, by scoreboard."""

    results: dict[int, set[Key]] = field(default_factory=dict)
    sources: dict[int, set[Key]] = field(default_factory=dict)

    def wait(self, mask: int) -> None:
        for board in [*self.results, *self.sources]:
            if mask >> board & 1:
                self.results.pop(board, None)
                self.sources.pop(board, None)

    def merge(self, other: _Flight) -> None:
        for mine, theirs in ((self.results, other.results), (self.sources, other.sources)):
            for board, found in theirs.items():
                mine.setdefault(board, set()).update(found)

    def copy(self) -> _Flight:
        return _Flight(
            {b: set(k) for b, k in self.results.items()}, {b: set(k) for b, k in self.sources.items()}
        )


def _keys(use: Use) -> Iterator[Key]:
    return ((use.file, number) for number in range(use.first, use.first + use.count))


class RewriteChecker:
    """One replay. :meth:`run` returns the reports."""

    def __init__(self, isa: Isa, latency: LatencyTable, rewrite: Rewrite) -> None:
        self.isa, self.latency, self.old = isa, latency, rewrite
        self.size = isa.arch.instruction_size
        self.view = CodeView(isa, rewrite.words[: rewrite.count])
        self.cfg = build_cfg(isa, self.view.words, (0,), rewrite.jumps())
        self.waits = Waits(self.view)
        self.inserted = rewrite.inserted[: rewrite.count]
        self.new = np.flatnonzero(self.inserted).tolist()
        self.reports: list[Report] = []
        self.reads = 0

    def run(self) -> list[Report]:
        """All reports, in code order."""
        if not OriginalsChecker(self.isa, self.old, self.view, self.cfg, self._report).run():
            return self.reports
        for index in self.new:
            self._line(index)
        self._flights()
        return sorted(self.reports, key=lambda item: item.index)

    def _report(self, index: int, kind: str, message: str) -> None:
        self.reports.append(Report(index, kind, message))

    # inserted code
    # ---------------------------------------------------------------------------------------------

    def _line(self, index: int) -> None:
        facts = self.view.facts(index)
        if not facts.known or not facts.complete:
            self._report(index, "unknown", "an inserted word can't be read")
            return
        self._control(index)
        mine = self._mine(index)
        for use in facts.writes():
            for key in _keys(use):
                if key not in mine and not self._idle(index, key):
                    self._report(
                        index, "clobber", f"{facts.text} writes {key[0]}{key[1]}, which belongs to the kernel"
                    )
        for use in facts.uses:
            ours = [key in mine for key in _keys(use)]
            if any(ours) or use.write:
                self._window(index, use)
            if not all(ours):
                if use.write:
                    self._kernel_writes(index, use)
                else:
                    self._kernel_value(index, use)
            self.reads += not use.write

    def _idle(self, index: int, key: Key) -> bool:
        """Whether no original instruction can still read ``key`` before it is surely overwritten."""
        seen = set()
        stack = self.cfg.successors(index)
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            if not self.inserted[at]:
                facts = self.view.facts(at)
                if not facts.complete and facts.may_touch(*key):
                    return False
                touched = [use for use in facts.uses if use.file == key[0] and use.covers(key[1])]
                if any(not use.write for use in touched):
                    return False
                if touched and facts.guard == (7, False):
                    continue
            stack.extend(self.cfg.successors(at))
        return True

    def _kernel_writes(self, index: int, use: Use) -> None:
        """A write of the kernel's that is still on its way must not land on top of an inserted one."""
        for number in range(use.first, use.first + use.count):
            try:
                found = producers(self.cfg, self.view, self.waits, index, use.file, number)
            except GWatchError as error:
                self._report(index, "not-ready", error.message)
                return
            for item in found:
                facts = self.view.facts(item.index)
                board = int(self.view.control["write_scoreboard"][item.index])
                waited = item.waited | int(self.view.control["wait_mask"][index])
                if facts.kind == "fixed" or (board != NO_SCOREBOARD and waited >> board & 1):
                    continue
                self._report(index, "in-flight", f"{facts.text} may still write {use.file}{number}")

    def _mine(self, index: int) -> frozenset[Key]:
        """Registers that the inserted word ``index`` may write."""
        return self.old.own | self.old.entry_only if index < self.old.entry else self.old.own

    def _control(self, index: int) -> None:
        facts = self.view.facts(index)
        word = int(self.view.words[index, 0]) | int(self.view.words[index, 1]) << 64
        try:
            control = Control.from_word(word)
            self.isa.decode(word, pc=index * self.size)
        except GWatchError as error:
            self._report(index, "control", error.message)
            return
        if control.illegal or control.reuse:
            self._report(index, "control", f"{facts.text}: {control.illegal or 'keeps operands for reuse'}")
        boards = {control.write_scoreboard, control.read_scoreboard} - {NO_SCOREBOARD}
        for board in boards & self.old.waits.use.counted:
            self._report(index, "counted", f"{facts.text} takes SB{board}, which a DEPBAR counts on")
        late = any(use.file in _FILES_READ_LATE for use in facts.reads())
        needs = facts.kind == "variable" and (facts.writes() or late)
        if needs and (control.write_scoreboard == NO_SCOREBOARD if facts.writes() else not boards):
            self._report(index, "scoreboard", f"{facts.text} takes no scoreboard for its result or sources")

    def _window(self, index: int, use: Use) -> None:
        """Fixed-latency results of inserted code: walk back until no result can still be on its way."""
        consumer = self.view.facts(index)
        best: dict[tuple[int, Key], int] = {}
        stack = [
            (before, self.view.stall(before), key)
            for before in self.cfg.predecessors(index)
            for key in _keys(use)
        ]
        while stack:
            at, distance, key = stack.pop()
            if distance >= FAR or best.get((at, key), FAR) <= distance:
                continue
            best[at, key] = distance
            facts = self.view.facts(at)
            written = [item for item in facts.writes() if item.file == key[0] and item.covers(key[1])]
            if written and facts.kind == "fixed":
                name = latency_class(consumer.opcode)
                producer = latency_class(facts.opcode)
                needed = (
                    self.latency.overwrite(producer, key[0], name)
                    if use.write
                    else self.latency.distance(producer, key[0], name, use.role)
                )
                if distance < needed:
                    self._report(
                        index,
                        "overwrite" if use.write else "too-early",
                        f"{consumer.text} issues {distance} cycles after {facts.text} (new instruction {at}); "
                        f"{key[0]}{key[1]} needs {needed}",
                    )
            if written and facts.guard == (7, False):
                continue
            stack.extend(
                (before, distance + self.view.stall(before), key) for before in self.cfg.predecessors(at)
            )

    def _kernel_value(self, index: int, use: Use) -> None:
        facts = self.view.facts(index)
        try:
            need = readiness(
                self.cfg, self.view, self.waits, self.latency, index, use, latency_class(facts.opcode)
            )
        except GWatchError as error:
            self._report(index, "not-ready", error.message)
            return
        missing = need.wait_mask & ~int(self.view.control["wait_mask"][index])
        if missing or need.delay > 0:
            self._report(
                index,
                "not-ready",
                f"{facts.text} reads {use.file}{use.first} "
                + (
                    f"without waiting for scoreboards {missing:#x}"
                    if missing
                    else f"{need.delay} cycles early"
                ),
            )

    def _flights(self) -> None:
        """Scoreboards of inserted code: nothing in flight is read, overwritten or lent out too long."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self.inserted.astype(np.int8), [0]))))
        runs = edges.reshape(-1, 2).tolist()
        carried = _Flight()
        for first, end in runs:
            carried.merge(self._replay(first, end, _Flight(), _Flight(), report=False))
        for first, end in runs:
            start = _Flight() if first < self.old.entry else carried.copy()
            self._handed_over(end, self._replay(first, end, start, carried, report=True))
            self._lands(first, end)

    def _handed_over(self, end: int, flight: _Flight) -> None:
        """Report registers of the kernel (or of its entry) that are still in flight when the kernel goes
        on."""
        for where, found in (("be read", flight.sources), ("be written", flight.results)):
            lent = {key for keys in found.values() for key in keys}
            # Code outside the cubin may put a register away and use it in between.
            lent -= self.old.own if self.old.survivors is None else frozenset()
            if lent:
                name = "".join(map(str, min(lent)))
                self._report(end - 1, "lent", f"{name} may still {where} when the kernel goes on")

    def _lands(self, first: int, end: int) -> None:
        """Results in registers that the kernel uses as well must be there before it goes on."""
        left = 0
        for index in reversed(range(first, end)):
            left += self.view.stall(index)
            facts = self.view.facts(index)
            for use in facts.writes():
                lends = self.old.survivors is not None
                shared = lends or any(key not in self.old.own for key in _keys(use))
                slow = self.latency.settled(latency_class(facts.opcode), use.file)
                if shared and facts.kind == "fixed" and left < slow:
                    self._report(
                        index, "lands-late", f"{facts.text} may land {slow - left} cycles into the kernel"
                    )

    def _replay(self, first: int, end: int, flight: _Flight, joining: _Flight, report: bool) -> _Flight:
        arriving: dict[int, list[_Flight]] = {}
        for index in range(first, end):
            for other in arriving.get(index, []):
                flight.merge(other)
            if index == self.old.entry and index > first and self.cfg.predecessors(index) != [index - 1]:
                flight.merge(joining)
            facts, control = self.view.facts(index), self.view.control[index]
            flight.wait(int(self.waits.mask[index]))
            if report:
                self._conflicts(index, flight)
            if facts.kind == "variable":
                writer, reader = int(control["write_scoreboard"]), int(control["read_scoreboard"])
                board = reader if reader != NO_SCOREBOARD else writer
                flight.results.setdefault(writer, set()).update(
                    key for use in facts.writes() for key in _keys(use)
                )
                flight.sources.setdefault(board, set()).update(
                    key for use in facts.reads() if use.file in _FILES_READ_LATE for key in _keys(use)
                )
            target = int(self.cfg.flow.target[index])
            if target == OUTSIDE and report:
                self._handed_over(index + 1, flight)
            if target != OUTSIDE and first <= target < end:
                if target > index:
                    arriving.setdefault(target, []).append(flight.copy())
                elif report and (any(flight.results.values()) or any(flight.sources.values())):
                    self._report(index, "loop", f"{facts.text} goes back with results in flight")
        return flight

    def _conflicts(self, index: int, flight: _Flight) -> None:
        facts = self.view.facts(index)
        for use in facts.uses:
            for key in _keys(use):
                if any(key in found for found in flight.results.values()):
                    self._report(
                        index,
                        "in-flight",
                        f"{facts.text} uses {key[0]}{key[1]} while it is still to be written",
                    )
                if use.write and any(key in found for found in flight.sources.values()):
                    self._report(
                        index,
                        "in-flight",
                        f"{facts.text} overwrites {key[0]}{key[1]} while it may still be read",
                    )


def check_rewrite(isa: Isa, latency: LatencyTable, rewrite: Rewrite) -> str:
    """Replay ``rewrite``; a one-line summary when nothing disagrees.

    Raises HazardError ``[hazard]`` with the first report and the number of others.
    """
    checker = RewriteChecker(isa, latency, rewrite)
    reports = checker.run()
    if reports:
        first = reports[0]
        more = f" (and {len(reports) - 1} more)" if len(reports) > 1 else ""
        raise HazardError(
            "hazard",
            f"new instruction {first.index}: {first.kind}: {first.message}{more}",
            "nothing was written; this is a defect of the rewriter or of the latency table",
        )
    counted = (
        f"{len(checker.new)} inserted lines, {checker.reads} operand reads, {len(checker.old.view)} originals"
    )
    return f"{counted}: 0 reports"
