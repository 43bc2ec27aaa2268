"""Replay a rewritten section against the latency and scoreboard model, knowing nothing of how it was planned.

:func:`check_rewrite` looks at the finished words alone: every original instruction is in its place and
unchanged apart from moved code positions and cleared reuse bits; every code position reaches what it reached
before; inserted code writes only registers of its own; each of its reads comes late enough and behind the
right waits on every path; nothing it leaves in flight can be overwritten too early. A single disagreement
raises HazardError.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from gwatch.errors import GWatchError, HazardError
from gwatch.sass.cfg import build_cfg
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.integrity import OriginalsChecker, Report, Rewrite
from gwatch.sass.latency import LatencyTable, latency_class
from gwatch.sass.replay import Replay
from gwatch.sass.scoreboards import FAR, Waits, readiness, timed
from gwatch.sass.uses import ALWAYS, CodeView, Key, Use

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

_FILES_READ_LATE = ("R", "UR")
_TIMED_FILES = ("R", "UR", "P", "UP")
_MATRIX_READ = 16


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
        self.stalls: list[int] = np.maximum(self.view.control["stall"], 1).tolist()
        self.reports: list[Report] = []
        self.reads = 0

    def run(self) -> list[Report]:
        """All reports, in code order."""
        if not OriginalsChecker(self.isa, self.old, self.view, self.cfg, self._report).run():
            return self.reports
        for index in self.new:
            self._line(index)
        place = dict(enumerate(np.flatnonzero(~self.inserted).tolist()))
        Replay(self.old, self.view, self.cfg, self.waits, place, self._report, self.latency.signal).run()
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
        claims: Collection[Key] = self.old.own | self.old.entry_only
        if self.old.claims is not None:
            claims = self.old.claims.get(index, {}).keys()
        for use in facts.uses:
            ours = [key in claims for key in use.registers()]
            if any(ours) or use.write:
                self._window(index, use)
            if use.write:
                if any(key not in self.old.own or self._used_outside(key) for key in use.registers()):
                    self._lands(index, use)
            elif not all(ours):
                self._kernel_value(index, use)
            self.reads += not use.write

    def _used_outside(self, key: Key) -> bool:
        """Whether code behind a call may use a register for itself."""
        return key[0] == "R" and any(callee.uses >> key[1] & 1 for callee in self.old.calls.values())

    def _lands(self, index: int, use: Use) -> None:
        """A result in a register that the kernel uses as well must be there before the kernel comes to it."""
        facts = self.view.facts(index)
        if facts.kind != "fixed":
            return
        producer = latency_class(facts.opcode)
        best: dict[tuple[int, int], int] = {}
        start = self.view.stall(index)
        stack = [(item, start, number) for item in self.cfg.successors(index) for _, number in use.registers()]
        while stack:
            at, distance, number = stack.pop()
            if distance >= FAR or best.get((at, number), FAR) <= distance:
                continue
            best[at, number] = distance
            other = self.view.facts(at)
            theirs = [their for their in other.uses if their.file == use.file and their.covers(number)]
            if not self.inserted[at]:
                needed = 1
                if self.cfg.leaves[at] or not other.complete:
                    needed = self.latency.settled(producer, use.file)
                name = latency_class(other.opcode)
                for their in theirs:
                    least = (
                        self.latency.overwrite(producer, use.file, name)
                        if their.write
                        else self.latency.distance(producer, use.file, name, their.role)
                    )
                    needed = max(needed, least)
                if distance < needed:
                    self._report(
                        index,
                        "lands-late",
                        f"{facts.text} may land {needed - distance} cycles after {other.text} needs its register",
                    )
            # Behind an overwrite, which comes late enough itself, the register holds another result.
            if other.guard != ALWAYS or not any(their.write for their in theirs):
                stack.extend((item, distance + self.view.stall(at), number) for item in self.cfg.successors(at))

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
        for before in self.cfg.predecessors(index):
            taken = self.view.control[before]
            for field in ("write_scoreboard", "read_scoreboard"):
                if control.wait_mask >> int(taken[field]) & 1 and self.view.stall(before) < self.latency.signal:
                    self._report(index, "early-wait", f"{facts.text} waits for SB{taken[field]} as it is being taken")
        boards = {control.write_scoreboard, control.read_scoreboard} - {NO_SCOREBOARD}
        for board in boards & self.old.waits.use.counted:
            self._report(index, "counted", f"{facts.text} takes SB{board}, which a DEPBAR counts on")
        late = any(use.file in _FILES_READ_LATE for use in facts.reads())
        needs = facts.kind == "variable" and (facts.writes() or late)
        if needs and (control.write_scoreboard == NO_SCOREBOARD if facts.writes() else not boards):
            self._report(index, "scoreboard", f"{facts.text} takes no scoreboard for its result or sources")

    def _window(self, index: int, use: Use) -> None:
        """Results of fixed latency: walk back until none can still be on its way. A call that leaves the section hands
        over finished results of the kernel's.
        """
        consumer = self.view.facts(index)
        if use.file not in _TIMED_FILES:
            return
        masks = self.view.masks(use.file)
        best: dict[tuple[int, int, bool], int] = {}
        stack = [
            (before, self.stalls[before], number, False)
            for before in self.cfg.predecessors(index)
            for number in range(use.first, use.first + use.count)
        ]
        while stack:
            at, distance, number, called = stack.pop()
            if distance >= FAR or best.get((at, number, called), FAR) <= distance:
                continue
            best[at, number, called] = distance
            called = called or self.cfg.leaves[at]
            young = not called or bool(self.inserted[at])
            facts = self.view.facts(at)
            touched = (masks.reads[at] | masks.writes[at]) >> number & 1
            mine = [item for item in facts.uses if item.file == use.file and item.covers(number)] if touched else []
            slow = young and use.write and distance < _MATRIX_READ and facts.mnemonic.endswith("MMA")
            if slow and any(not item.write for item in mine):
                self._report(index, "overwrite", f"{consumer.text} overwrites what {facts.text} may still read")
            if young and any(item.write for item in mine) and timed(self.view, at):
                name = latency_class(consumer.opcode)
                producer = latency_class(facts.opcode)
                needed = (
                    self.latency.overwrite(producer, use.file, name)
                    if use.write
                    else self.latency.distance(producer, use.file, name, use.role)
                )
                if distance < needed:
                    self._report(
                        index,
                        "overwrite" if use.write else "too-early",
                        f"{consumer.text} issues {distance} cycles after {facts.text} (new instruction {at}); "
                        f"{use.file}{number} needs {needed}",
                    )
            if not masks.kills[at] >> number & 1:
                stack.extend(
                    (before, distance + self.stalls[before], number, called) for before in self.cfg.predecessors(at)
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
        f"{len(checker.new)} inserted lines, {checker.reads} operand reads, "
        f"{len(checker.old.view)} originals with padding"
    )
    return f"{counted}: 0 reports"
