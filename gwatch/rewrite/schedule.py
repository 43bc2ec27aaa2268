"""Control words for inserted code: stalls, scoreboards and waits. The text's order is kept.

A *run* is everything inserted before one instruction. Inside a run each line issues as early as its operands
allow (latency table); a result of variable latency takes the write scoreboard, a store that reads inserted
registers the read scoreboard, and the first later line that needs it waits: in this run or in any other,
whichever runs next. So a store's sources are waited for where they are next overwritten, not behind the
store. What a run reads from the kernel is waited for exactly (:func:`gwatch.sass.scoreboards.readiness`);
what it lends to the kernel's own future writes (a kernel register that a store still reads) is waited for
before the run ends, unless the kernel itself waits for the same scoreboard first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gwatch.errors import HazardError, UnsupportedError
from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.flight import Flights
from gwatch.sass.latency import UNKNOWN, LatencyTable, latency_class
from gwatch.sass.scoreboards import Waits, producers, readiness, result_board, timed
from gwatch.sass.uses import ALWAYS, CodeView, Key, Use, WordFacts

BRANCH_STALL = 5
LONGEST_STALL = 15
MATRIX_READ = 16
YIELD_FROM = 12
TO_ORIGINAL = -1
VARIABLE = frozenset({"variable"})


@dataclass(slots=True)
class Line:
    """One inserted instruction. ``target`` is the offset of a line of the same run, :data:`TO_ORIGINAL`, or
    None. ``joins``: control may arrive here other than from the line before. ``owner``: which insertion it
    belongs to (-1: none). ``foreign``: registers that it reads of the kernel although the run writes them as well;
    ``releases``: registers of the run's that the kernel may overwrite from here on. ``claims``: what the registers of
    inserted code that it names stand for, which the hazard checker holds it to. ``pad``: a NOP that is only there for
    its stall.
    """

    text: str
    facts: WordFacts
    owner: int
    target: int | None = None
    joins: bool = False
    foreign: frozenset[Key] = frozenset()
    releases: frozenset[Key] = frozenset()
    claims: Mapping[Key, str] = field(default_factory=dict)
    control: Control = field(default_factory=Control)
    pad: bool = False

    @property
    def name(self) -> str:
        """Latency class."""
        return latency_class(self.facts.opcode)


@dataclass(slots=True)
class Run:
    """The lines before original instruction ``index``; the first ``entry`` of them run only at function entry.
    ``borrowed``: registers of the kernel that these lines may write, some of which they must put back
    (``restored``); ``held``: registers of the kernel that hold values of inserted code there. ``board``: the read
    scoreboard to take (-1: the scheduler's).
    """

    index: int
    lines: list[Line]
    entry: int = 0
    borrowed: frozenset[Key] = frozenset()
    restored: frozenset[Key] = frozenset()
    held: frozenset[Key] = frozenset()
    board: int = -1


@dataclass(slots=True)
class _Pending:
    """What one scoreboard still covers, and when it was last taken (run time)."""

    results: set[Key] = field(default_factory=set)
    sources: set[Key] = field(default_factory=set)
    taken: int | None = None

    def copy(self) -> _Pending:
        return _Pending(set(self.results), set(self.sources), self.taken)

    def clear(self) -> None:
        self.results.clear()
        self.sources.clear()

    def __bool__(self) -> bool:
        return bool(self.results or self.sources)


@dataclass(slots=True)
class _State:
    """Where the scheduler stands inside a run."""

    boards: dict[int, _Pending]
    results: dict[Key, list[tuple[int, str]]] = field(default_factory=dict)


class Scheduler:
    """Schedules the runs of one kernel.

    ``own``: registers given to inserted code alone; ``entry_only``: further ones that only the entry's lines may
    use (the kernel writes them afterwards); ``state`` those of ``own`` that live from site to site.
    ``read_board`` and ``write_board`` are the scoreboards it may take. ``nop``: facts of a NOP, used where
    only waiting is needed. ``boards(index, registers)``: mask of the scoreboards that the kernel waits for on every
    way from ``index`` before it overwrites any of ``registers`` (a mask of general registers). ``flights``: what is in
    flight where; asked for only where registers of the kernel are overwritten. ``exposed``: those of ``own`` that code
    behind a call may overwrite.
    """

    def __init__(
        self,
        cfg: Cfg,
        view: CodeView,
        waits: Waits,
        latency: LatencyTable,
        own: frozenset[Key],
        entry_only: frozenset[Key],
        state: frozenset[Key],
        read_board: int,
        write_board: int,
        nop: WordFacts,
        boards: Callable[[int, int], int] = lambda index, registers: 0,
        flights: Callable[[], Flights] | None = None,
        exposed: frozenset[Key] = frozenset(),
    ) -> None:
        self.cfg, self.view, self.waits, self.latency = cfg, view, waits, latency
        self.own, self.entry_only, self.state = own, entry_only, state
        self.read_board, self.write_board = read_board, write_board
        self.nop = nop
        self.covering = boards
        self.exposed = exposed
        self.flights = flights
        self._boards_used: set[int] = {read_board, write_board}
        self._ready: dict[tuple[int, Use, str], tuple[int, int]] = {}
        self._landed: dict[tuple[int, Key], tuple[int, int]] = {}
        self._reach: dict[tuple[int, int], set[int]] = {}

    def schedule(self, runs: list[Run]) -> None:
        """Set every line's control word; may add NOP lines. Raises SiteError, HazardError or
        UnsupportedError.
        """
        self._boards_used |= {run.board for run in runs if run.board >= 0}
        ends: dict[int, _State] = {}
        for run in runs:
            end = self._run(run, self._boards())
            if self._drain(run, end):
                end = self._run(run, self._boards())
            ends[run.index] = end
        carried = self._carried(runs, ends)
        for run in runs:
            fresh = run.entry > 0 and not self.cfg.predecessors(run.index)
            ends[run.index] = self._run(run, self._boards() if fresh else carried[run.index])
        self._across(runs, ends)

    def _carried(self, runs: list[Run], ends: dict[int, _State]) -> dict[int, dict[int, _Pending]]:
        """What may be in flight when each run starts: left by a run from which a way leads here on which the kernel
        doesn't wait for the scoreboard.
        """
        carried = {run.index: self._boards() for run in runs}
        for run in runs:
            for board, pending in ends[run.index].boards.items():
                if not pending:
                    continue
                reached = self._unwaited(run.index, board)
                for other in runs:
                    if other.index in reached:
                        carried[other.index][board].results |= pending.results
                        carried[other.index][board].sources |= pending.sources
        return carried

    def _unwaited(self, index: int, board: int) -> set[int]:
        """Instructions before which code can come from a run before ``index`` without a wait for ``board``."""
        if (index, board) not in self._reach:
            seen: set[int] = set()
            stack = [] if int(self.waits.mask[index]) >> board & 1 else self.cfg.successors(index)
            while stack:
                at = stack.pop()
                if at in seen:
                    continue
                seen.add(at)
                if not int(self.waits.mask[at]) >> board & 1:
                    stack.extend(self.cfg.successors(at))
            self._reach[index, board] = seen
        return self._reach[index, board]

    def _boards(self) -> dict[int, _Pending]:
        return {board: _Pending() for board in self._boards_used}

    def _drain(self, run: Run, end: _State) -> bool:
        """End the run with a NOP that waits where a state register is still to come, or where a line may
        still read (or write) a register that the kernel goes on to use.
        """
        kept = self.state | run.held
        mask = 0
        for board, pending in end.boards.items():
            lent = (pending.results | pending.sources) - (self.own - self.exposed)
            wanted = pending.results & (kept | run.restored)
            if wanted or (lent and not self._covered(run, board, lent)):
                mask |= 1 << board
        if mask:
            run.lines.append(Line("NOP", self.nop, run.lines[-1].owner, control=Control(wait_mask=mask)))
        return mask != 0

    def _covered(self, run: Run, board: int, lent: set[Key]) -> bool:
        """Whether the kernel waits for ``board`` before it overwrites any of ``lent``, dead registers that it doesn't
        read before that.
        """
        if lent - run.borrowed - run.held - self.exposed or any(file != "R" for file, _ in lent):
            return False
        return bool(self.covering(run.index, sum(1 << number for _, number in lent)) >> board & 1)

    def _board(self, run: Run, line: Line) -> int:
        if line.facts.writes():
            return self.write_board
        return run.board if run.board >= 0 else self.read_board

    def _run(self, run: Run, boards: dict[int, _Pending]) -> _State:
        """Schedule one run from its start; the returned state's times count from the end of the run."""
        self._unpad(run)
        state = _State(boards)
        issued: list[int] = []
        arriving: dict[int, list[dict[int, _Pending]]] = {}
        position = 0
        while position < len(run.lines):
            line = run.lines[position]
            if position == run.entry and run.entry and self.cfg.predecessors(run.index):
                line.joins = True
            for other in arriving.get(position, []):
                for board, pending in other.items():
                    state.boards[board].results |= pending.results
                    state.boards[board].sources |= pending.sources
            earliest = issued[-1] + self._least_stall(run.lines[position - 1]) if issued else 0
            mine = self.own | run.borrowed | run.held
            mine |= self.entry_only if position < run.entry else frozenset()
            when, mask = self._demands(run, line, state, earliest, mine)
            if line.target == TO_ORIGINAL:
                mask |= sum(
                    1 << board
                    for board, pending in state.boards.items()
                    if (pending.results | pending.sources) - self.own
                )
            elif line.target is not None and line.target <= position:
                mask |= sum(1 << board for board, pending in state.boards.items() if pending)
            for board, pending in state.boards.items():
                if mask >> board & 1:
                    if pending.taken is not None:
                        when = max(when, pending.taken + self.latency.signal)
                    pending.clear()
            when = max(when, self._visible(run.index, mask))
            while when > (issued[-1] + LONGEST_STALL if issued else 0):
                self._pad(run, position, line.owner, arriving)
                issued.append(issued[-1] + LONGEST_STALL if issued else 0)
                if position:
                    self._stretch(run, issued[:-1], position, issued[-1])
                position += 1
            if issued:
                self._stretch(run, issued, position, when)
            issued.append(when)
            self._issue(run, line, when, mask, state)
            if line.target is not None and line.target > position:
                arriving.setdefault(line.target, []).append(
                    {b: item.copy() for b, item in state.boards.items()}
                )
            position += 1
        last = run.lines[-1]
        waits = int(self.waits.mask[run.index])
        # The kernel's own wait right behind may not see a scoreboard taken yet.
        for board, pending in state.boards.items():
            if pending.taken is not None and waits >> board & 1:
                seen = pending.taken + self.latency.signal - issued[-1]
                if seen > last.control.stall:
                    self._set(last, seen, last.control)
        end = issued[-1] + last.control.stall
        state.results = {
            key: [(when - end, name) for when, name in items] for key, items in state.results.items()
        }
        return state

    def _visible(self, index: int, mask: int) -> int:
        """When, from the start of a run, those of the scoreboards ``mask`` that the kernel took right before it can be
        waited for: who waits sooner may not see them taken.
        """
        control = self.view.control
        return max(
            (
                self.latency.signal - self.view.stall(before)
                for before in self.cfg.predecessors(index)
                for field in ("write_scoreboard", "read_scoreboard")
                if mask >> int(control[field][before]) & 1
            ),
            default=0,
        )

    def _pad(
        self, run: Run, position: int, owner: int, arriving: dict[int, list[dict[int, _Pending]]]
    ) -> None:
        """Put a NOP before line ``position``; branches to that line still lead to it."""
        run.lines.insert(position, Line("NOP", self.nop, owner, pad=True))
        for line in run.lines:
            if line.target is not None and line.target != TO_ORIGINAL and line.target >= position:
                line.target += 1
        for place in sorted((place for place in arriving if place >= position), reverse=True):
            arriving[place + 1] = arriving.pop(place)
        if run.entry and position <= run.entry:
            run.entry += 1

    @staticmethod
    def _unpad(run: Run) -> None:
        """Take the NOPs of an earlier pass out again."""
        for position in range(len(run.lines) - 1, -1, -1):
            if run.lines[position].pad:
                del run.lines[position]
                run.entry -= position < run.entry
                for line in run.lines:
                    if line.target is not None and line.target > position:
                        line.target -= 1

    @staticmethod
    def _least_stall(line: Line) -> int:
        return BRANCH_STALL if line.target is not None else 1

    def _stretch(self, run: Run, issued: list[int], position: int, when: int) -> None:
        """Give the line before ``position`` the stall that makes ``position`` issue at ``when``."""
        stall = when - issued[-1]
        if not 1 <= stall <= LONGEST_STALL:
            raise HazardError(
                "stall",
                f"inserted line {run.lines[position].text!r} before instruction {run.index} needs "
                f"{stall} cycles after the line before it",
                "split the snippet",
            )
        self._set(run.lines[position - 1], stall, run.lines[position - 1].control)

    @staticmethod
    def _set(line: Line, stall: int, control: Control) -> None:
        stall = max(1, stall)
        line.control = Control(
            stall,
            int(stall < YIELD_FROM),
            control.write_scoreboard,
            control.read_scoreboard,
            control.wait_mask,
            0,
        )

    def _demands(
        self, run: Run, line: Line, state: _State, earliest: int, mine: frozenset[Key]
    ) -> tuple[int, int]:
        """(issue time, wait mask) that ``line`` needs."""
        when, mask = earliest, line.control.wait_mask if line.text == "NOP" else 0
        name = line.name
        settle = line.joins or line.target is not None
        if settle:
            for (file, _), items in state.results.items():
                when = max([when, *(at + self.latency.settled(producer, file) for at, producer in items)])
        mine -= line.foreign
        for use in line.facts.reads():
            for key in use.registers():
                # Also of the kernel's: an insertion before this one may have put its register back.
                for at, producer in state.results.get(key, ()):
                    when = max(when, at + self.latency.distance(producer, use.file, name, use.role))
                for board, pending in state.boards.items():
                    if key in pending.results:
                        mask |= 1 << board
            if any(key not in mine for key in use.registers()):
                wait, delay = self._kernel_read(run.index, use, name)
                mask |= wait
                when = max(when, delay)
        for key in line.releases:
            for board, pending in state.boards.items():
                if key in pending.results or key in pending.sources:
                    mask |= 1 << board
        mine |= line.foreign & run.borrowed
        for use in line.facts.writes():
            for key in use.registers():
                if key not in mine:
                    raise UnsupportedError(
                        "snippet-clobbers",
                        f"inserted line {line.text!r} writes {key[0]}{key[1]}, which belongs to the kernel",
                        "write to a virtual register (%r0, %p0, %ur0)",
                    )
                if key in run.borrowed:
                    wait, delay = self._kernel_overwrite(run.index, key)
                    mask |= wait
                    when = max(when, delay)
                for at, producer in state.results.get(key, ()):
                    when = max(when, at + self.latency.overwrite(producer, use.file, name))
                for board, pending in state.boards.items():
                    if key in pending.results or key in pending.sources:
                        mask |= 1 << board
        return when, mask

    def _kernel_read(self, index: int, use: Use, name: str) -> tuple[int, int]:
        wanted = (index, use, name)
        if wanted not in self._ready:
            found = readiness(self.cfg, self.view, self.waits, self.latency, index, use, name)
            self._ready[wanted] = (found.wait_mask, found.delay)
        return self._ready[wanted]

    def _kernel_overwrite(self, index: int, key: Key) -> tuple[int, int]:
        """(wait mask, cycles) until nothing of the kernel's in flight touches ``key`` at ``index`` any more."""
        wanted = (index, key)
        if wanted not in self._landed:
            mask = delay = 0
            for item in producers(self.cfg, self.view, self.waits, index, *key):
                facts = self.view.facts(item.index)
                board = result_board(self.view, item.index, key[0])
                if timed(self.view, item.index):
                    delay = max(
                        delay, self.latency.settled(latency_class(facts.opcode), key[0]) - item.distance
                    )
                elif board != NO_SCOREBOARD and not item.waited >> board & 1:
                    mask |= 1 << board
            if key[0] == "R" and self.flights is not None:
                mask |= self.flights().at(index).covering(1 << key[1])
                delay = max(delay, self._matrix_reads(index, key))
            self._landed[wanted] = (mask, delay)
        return self._landed[wanted]

    def _matrix_reads(self, index: int, key: Key) -> int:
        """Cycles until matrix instructions issued before ``index`` have read ``key``: they take their operands over
        several cycles.
        """
        left = 0
        best: dict[int, int] = {}
        stack = [(before, self.view.stall(before)) for before in self.cfg.predecessors(index)]
        while stack:
            at, distance = stack.pop()
            if distance >= MATRIX_READ or best.get(at, MATRIX_READ) <= distance:
                continue
            best[at] = distance
            facts = self.view.facts(at)
            if facts.mnemonic.endswith("MMA") and any(key in use.registers() for use in facts.reads()):
                left = max(left, MATRIX_READ - distance)
            stack.extend(
                (before, distance + self.view.stall(before)) for before in self.cfg.predecessors(at)
            )
        return left

    def _issue(self, run: Run, line: Line, when: int, mask: int, state: _State) -> None:
        """Record what ``line`` leaves behind and give it its control word (stall 1 for now)."""
        facts = line.facts
        write_board = read_board = NO_SCOREBOARD
        if facts.kind in VARIABLE:
            board = self._board(run, line)
            if facts.writes():
                write_board = board
            elif any(use.file in ("R", "UR") for use in facts.reads()):
                read_board = board
            pending = state.boards[board]
            pending.taken = when
            pending.results |= {key for use in facts.writes() for key in use.registers()}
            # Predicates are read when the instruction issues; registers of both files may be read later.
            pending.sources |= {key for use in facts.reads() if use.file in ("R", "UR") for key in use.registers()}
        for use in facts.writes():
            for key in use.registers():
                if facts.guard == ALWAYS:
                    state.results.pop(key, None)
                if facts.kind not in VARIABLE:
                    state.results.setdefault(key, []).append((when, line.name))
        self._set(line, self._least_stall(line), Control(1, 1, write_board, read_board, mask))

    def _across(self, runs: list[Run], ends: dict[int, _State]) -> None:
        """Lengthen the last stall of a run whose fixed-latency results a later run would use too early."""
        by_index = {run.index: run for run in runs}
        for run in runs:
            end = ends[run.index]
            shortfall = max(self._shortfall(run, end, by_index), self._landing(run, end))
            if shortfall > 0:
                last = run.lines[-1]
                stall = last.control.stall + shortfall
                while stall > LONGEST_STALL:
                    self._set(last, LONGEST_STALL, last.control)
                    stall -= LONGEST_STALL
                    last = Line("NOP", self.nop, last.owner)
                    run.lines.append(last)
                self._set(last, stall, last.control)

    def _landing(self, run: Run, end: _State) -> int:
        """Cycles by which the kernel would come too early to registers of its own that the run wrote."""
        safe = self.own - self.exposed
        theirs = {key: items for key, items in end.results.items() if key not in safe}
        if not theirs:
            return 0
        worst = 0
        best: dict[tuple[int, Key], int] = {}
        stack = [(run.index, 0, key) for key in theirs]
        while stack:
            index, elapsed, key = stack.pop()
            if elapsed >= UNKNOWN or best.get((index, key), UNKNOWN) <= elapsed:
                continue
            best[index, key] = elapsed
            facts = self.view.facts(index)
            mine = [use for use in facts.uses if key in use.registers()]
            leaves = self.cfg.flow.kind[index] == Flow.CALL_OUT or not facts.complete
            for at, producer in theirs[key]:
                needed = self.latency.settled(producer, key[0]) if leaves else 0
                for use in mine:
                    needed = max(needed, self._distance(producer, use, latency_class(facts.opcode)))
                worst = max(worst, needed - (elapsed - at))
            # Who comes behind an overwrite finds another value, which is the kernel's to time.
            if facts.guard != ALWAYS or not any(use.write for use in mine):
                stack.extend((item, elapsed + self.view.stall(index), key) for item in self.cfg.successors(index))
        return worst

    def _distance(self, producer: str, use: Use, consumer: str) -> int:
        """Issue cycles that a later use of a result must leave."""
        if use.write:
            return self.latency.overwrite(producer, use.file, consumer)
        return self.latency.distance(producer, use.file, consumer, use.role)

    def _shortfall(self, run: Run, end: _State, by_index: dict[int, Run]) -> int:
        if not end.results:
            return 0
        worst = 0
        best: dict[int, int] = {}
        stack = [(item, self.view.stall(run.index)) for item in self.cfg.successors(run.index)]
        while stack:
            index, elapsed = stack.pop()
            if elapsed >= UNKNOWN or best.get(index, UNKNOWN) <= elapsed:
                continue
            best[index] = elapsed
            other = by_index.get(index)
            passed = elapsed
            if other is not None:
                for line in other.lines[other.entry :]:
                    worst = max(worst, self._early(line, passed, end))
                    passed += line.control.stall
            stack.extend((item, passed + self.view.stall(index)) for item in self.cfg.successors(index))
        return worst

    def _early(self, line: Line, passed: int, end: _State) -> int:
        worst = 0
        for use in line.facts.uses:
            for key in use.registers():
                for at, producer in end.results.get(key, ()):
                    worst = max(worst, self._distance(producer, use, line.name) - (passed - at))
        return worst
