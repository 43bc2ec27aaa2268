"""From snippets to lines of physical SASS: registers chosen, values written out, effects read back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gwatch.errors import EncodeError, RegisterPressureError, SiteError, UnsupportedError
from gwatch.rewrite.homes import Move, bits
from gwatch.rewrite.planning import STACK, Copy, Effort, Group, Plan, Planner, Wish
from gwatch.rewrite.registers import Allocator
from gwatch.rewrite.schedule import TO_ORIGINAL, Line, Run
from gwatch.rewrite.snippet import ORIGINAL, Reference, Snippet, SnippetLine
from gwatch.sass.cfg import FLOW_MNEMONICS
from gwatch.sass.uses import CodeView, Key, WordFacts, plain, registers_in, word_facts

if TYPE_CHECKING:
    from gwatch.cuda.binary import KernelDef
    from gwatch.rewrite.surroundings import Surroundings
    from gwatch.sass.isa import Isa

Registers = dict[str, tuple[str, list[int]]]

_GUARD = re.compile(r"@(!?)(U?P\w+)\s")
_CONSTANT_UNIFORM = frozenset({"ULDC", "UMOV"})
_FORBIDDEN = (FLOW_MNEMONICS - {"BRA"}) | {
    "BAR",
    "BSYNC",
    "BREAK",
    "BPT",
    "DEPBAR",
    "LDGDEPBAR",
    "WARPGROUP",
    "USETMAXREG",
    "B2R",
    "R2B",
    "BMOV",
}
_BRANCHES = frozenset({"BRA"})
_WORD = 1 << 32
_WIDEST_OPERAND = 4
_STACK = 1
_SAVED = "#predicates"


@dataclass(frozen=True, slots=True)
class Insertion:
    """One request: ``snippet`` before original instruction ``index`` (-1: at the entry) with ``values``."""

    index: int
    snippet: Snippet
    values: Mapping[str, int | str]
    label: str


@dataclass(slots=True)
class Bound:
    """What :meth:`Binder.bind` hands back: runs in address order; per insertion name -> (file, registers); the plan."""

    runs: list[Run]
    registers: list[Registers]
    plan: Plan


@dataclass(slots=True)
class Binder:
    """Gives every insertion its registers and turns it into lines.

    ``groups`` are the reserved general registers, ``uniforms`` maps reserved uniform ones to (first register, width).
    Scratch predicates and uniform registers are shared by all insertions; where no predicate is free for the whole
    kernel, a site borrows one that is idle there, or saves one in a general register.
    """

    around: Surroundings
    allocator: Allocator
    groups: Mapping[str, Group]
    uniforms: Mapping[str, tuple[int, int]]
    effort: Effort
    lost: int
    _pools: dict[tuple[str, int, bool], list[int]] = field(default_factory=dict)
    _borrowed: dict[int, frozenset[Key]] = field(default_factory=dict)
    _saved: dict[int, list[int]] = field(default_factory=dict)

    @property
    def isa(self) -> Isa:
        """The kernel's instruction set."""
        return self.around.isa

    @property
    def kernel(self) -> KernelDef:
        """The kernel that is rewritten."""
        return self.around.kernel

    @property
    def view(self) -> CodeView:
        """Its code."""
        return self.around.view

    def bind(self, insertions: list[Insertion]) -> Bound:
        """The runs in address order, and for each insertion its names with their physical registers."""
        owners = range(len(insertions))
        entry_first = sorted(
            owners, key=lambda owner: (max(insertions[owner].index, 0), insertions[owner].index >= 0)
        )
        # Registers of the sites first: those of the entry may be anything that is left.
        others: list[Registers] = [{} for _ in insertions]
        for owner in reversed(entry_first):
            others[owner] = self._others(owner, insertions[owner])
        wishes = [self._wish(owner, insertions[owner]) for owner in owners]
        plan = Planner(self.around, wishes, _mask(self.allocator.excluded["R"]), self.lost).plan(self.effort)
        registers: list[Registers] = []
        for owner in owners:
            names = plan.placements[owner].names
            registers.append({**others[owner], **{name: ("R", found) for name, found in names.items()}})
        runs: dict[int, Run] = {}
        moves: dict[int, list[Move]] = {}
        for move in plan.moves:
            moves.setdefault(move.index, []).append(move)
        for owner in (owner for owner in entry_first if insertions[owner].index < 0):
            run = runs.setdefault(0, self._run(0, plan))
            self._extend(run, insertions[owner], owner, registers[owner], plan)
            run.entry = len(run.lines)
        for index, found in moves.items():
            run = runs.setdefault(index, self._run(index, plan))
            run.lines.extend(self._move(move.value, move.old, move.new, -1, release=True) for move in found)
            run.borrowed |= {("R", move.new) for move in found if not plan.own >> move.new & 1}
        for owner in (owner for owner in entry_first if insertions[owner].index >= 0):
            index = insertions[owner].index
            run = runs.setdefault(index, self._run(index, plan))
            self._extend(run, insertions[owner], owner, registers[owner], plan)
        for run in runs.values():
            run.board = self._choose_board(run, plan)
        return Bound([runs[index] for index in sorted(runs)], registers, plan)

    def _run(self, index: int, plan: Plan) -> Run:
        held = plan.held.get(index, 0) | (plan.held.get(-1, 0) if index == 0 else 0)
        return Run(
            index,
            [],
            borrowed=self._borrowed.get(index, frozenset()),
            held=frozenset(("R", number) for number in bits(held)),
        )

    def _choose_board(self, run: Run, plan: Plan) -> int:
        """A scoreboard that the kernel waits for before it overwrites what the run's stores read; -1 for any."""
        lent = 0
        for line in run.lines:
            if line.facts.kind == "variable":
                for use in line.facts.reads():
                    if use.file == "R":
                        lent |= ((1 << use.count) - 1) << use.first
        lent &= (~plan.own | self.around.exposed) & ~self._foreign(run)
        boards = self.around.waits.use
        if not lent:
            return -1
        covering = plan.boards(run.index, lent)
        if covering >> boards.choose() & 1:
            return -1
        good = [board for board in bits(covering) if board not in boards.counted]
        return min(good, key=lambda board: boards.taken[board]) if good else -1

    @staticmethod
    def _foreign(run: Run) -> int:
        return sum(1 << number for file, number in run.restored if file == "R")

    def _wish(self, owner: int, item: Insertion) -> Wish:
        snippet = item.snippet
        scratch = [Group(name, width) for name, (file, width) in snippet.scratch.items() if file == "R"]
        if owner in self._saved:
            scratch.append(Group(_SAVED, 1))
        asked = 0
        if item.index >= 0:
            for line in snippet.lines:
                text = "".join(
                    piece if isinstance(piece, str) else str(item.values.get(piece.name, ""))
                    for piece in line.pieces
                )
                # How many registers an operand spans isn't known before the line is encoded: take the widest.
                width = 1 if text.split()[:1] == ["MOV"] else _WIDEST_OPERAND
                for number in registers_in(text).get("R", ()):
                    asked |= ((1 << width) - 1) << number
        return Wish(
            owner,
            item.index,
            tuple(self.groups[name] for name in snippet.state if name in self.groups),
            tuple(scratch),
            asked & ((1 << 255) - 1),
            not snippet.uses_original,
            frozenset(snippet.sets),
        )

    def _others(self, owner: int, item: Insertion) -> Registers:
        """Uniform registers and predicates."""
        snippet, entry = item.snippet, item.index < 0
        chosen: Registers = {}
        for name in snippet.state:
            if name in self.uniforms:
                first, width = self.uniforms[name]
                chosen[name] = ("UR", list(range(first, first + width)))
        used: dict[tuple[str, int], int] = {}
        for name, (file, width) in sorted(snippet.scratch.items(), key=lambda pair: -pair[1][1]):
            if file == "R":
                continue
            pool = self._pools.setdefault((file, width, entry), [])
            place = used.get((file, width), 0)
            if place == len(pool):
                try:
                    pool.append(self.allocator.take(file, width, name, entry))
                except RegisterPressureError:
                    if file != "P" or entry:
                        raise
                    chosen[name] = ("P", [self._borrow(owner, item, name, chosen)])
                    continue
            used[file, width] = place + 1
            chosen[name] = (file, list(range(pool[place], pool[place] + width)))
        return chosen

    def _borrow(self, owner: int, item: Insertion, name: str, chosen: Registers) -> int:
        """A predicate of the kernel's: idle at the site, or else one that is saved around it."""
        taken = {numbers[0] for file, numbers in chosen.values() if file == "P"}
        taken |= self.allocator.excluded["P"]
        idle = [number for number in self.around.idle_predicates(item.index) if number not in taken]
        if not idle:
            guard = self.view.facts(item.index).guard[0]
            named = {number for line in item.snippet.lines for number in _named_predicates(line, item)}
            idle = [
                number
                for number in range(self.isa.arch.predicate_true)
                if number not in taken and number != guard and number not in named
            ]
            if not idle or not self.around.settling_predicates(item.index):
                raise RegisterPressureError(
                    "predicates",
                    f"{self.kernel.name}: no predicate is free for %{name} at instruction {item.index}: each of "
                    "P0-P6 is excluded, needed by the site itself, or written in a way that can't be waited for",
                    "choose a neighbouring instruction",
                )
            self._saved.setdefault(owner, []).append(idle[0])
        self._borrowed[item.index] = self._borrowed.get(item.index, frozenset()) | {("P", idle[0])}
        return idle[0]

    # lines ---------------------------------------------------------------------------------------------------------

    def _extend(self, run: Run, item: Insertion, owner: int, registers: Registers, plan: Plan) -> None:
        """Append the insertion's lines, with what must be saved or copied around them."""
        placement = plan.placements[owner]
        reload = self.around.stack_reload
        parked = [copy for copy in placement.copies if copy.slot]
        if item.index >= 0 and (placement.saved or parked) and reload is not None:
            run.lines.append(self._line(reload, owner))
            run.borrowed |= {("R", _STACK)}
        top = next((copy.base for copy in parked if copy.base >= 0), -1)
        stack = f"LDC R{top}, c[0x0][{self.isa.arch.stack_offset:#x}]"
        stack_claim = {("R", top): f"{owner}.{STACK}+0"}
        for register, slot in placement.saved:
            text = f"STL [R{_STACK}+-{slot:#x}], R{register}"
            run.lines.append(self._line(text, owner, foreign=frozenset({("R", register)})))
        saved = self._saved.get(owner, [])
        if saved:
            key = ("R", registers[_SAVED][1][0])
            claim = {key: f"{owner}.{_SAVED}"}
            others = frozenset(("P", number) for number in range(7))
            run.lines.append(self._line(f"P2R R{key[1]}, PR, RZ, 0x7f", owner, others, claim))
        if top >= 0 and item.index >= 0:
            run.lines.append(self._line(stack, owner, claims=stack_claim))
        for copy in placement.copies:
            if copy.loaded:
                run.lines.append(self._fetch(copy, owner))
        base = len(run.lines)
        lines = self._lines(item, owner, registers, base)
        run.lines.extend(lines)
        written = {key for line in lines for use in line.facts.writes() for key in use.registers()}
        back = [copy for copy in placement.copies if ("R", copy.there) in written]
        if top >= 0 and item.index < 0:
            run.lines.append(self._line(stack, owner, claims=stack_claim))
        for copy in back:
            run.lines.append(self._store(copy, owner))
        if saved:
            mask = _mask(saved)
            restore = self._line(f"R2P PR, R{key[1]}, {mask:#x}", owner, claims=claim)
            if not restore.facts.complete:
                raise RegisterPressureError(
                    "predicates",
                    f"{self.kernel.name} ({self.isa.arch.name}): no predicate is free at instruction {item.index}, and "
                    f"the tables can't say all that {restore.text} does, which would restore one",
                    "record every lane (not by warp) at this site, or choose another one",
                )
            run.lines.append(restore)
            run.restored |= {("P", number) for number in saved}
        for register, slot in placement.saved:
            run.lines.append(self._line(f"LDL R{register}, [R{_STACK}+-{slot:#x}]", owner))
        run.borrowed |= {("R", number) for number in bits(placement.borrowed)}
        run.restored |= {("R", register) for register, _ in placement.saved}

    def _fetch(self, copy: Copy, owner: int) -> Line:
        """A value comes from its home to where the snippet wants it."""
        if not copy.slot:
            return self._move(copy.value, copy.home, copy.there, owner)
        place, claims = self._slot(copy, owner)
        return self._line(f"LDL R{copy.there}, [{place}]", owner, claims=claims)

    def _store(self, copy: Copy, owner: int) -> Line:
        """It goes back there."""
        if not copy.slot:
            return self._move(copy.value, copy.there, copy.home, owner)
        place, claims = self._slot(copy, owner)
        return self._line(f"STL [{place}], R{copy.there}", owner, claims=claims)

    def _slot(self, copy: Copy, owner: int) -> tuple[str, dict[Key, str]]:
        """Where a parked value is, and what the registers of the access stand for."""
        claims = {("R", copy.there): copy.value}
        if copy.base < 0:
            return f"R{_STACK}+-{copy.slot:#x}", claims
        # The kernel hasn't made its frame yet.
        return f"R{copy.base}+-{copy.slot + self.around.frame:#x}", claims | {("R", copy.base): f"{owner}.{STACK}+0"}

    def _move(self, value: str, old: int, new: int, owner: int, release: bool = False) -> Line:
        claims = {("R", old): value, ("R", new): value}
        releases = frozenset({("R", old)}) if release else frozenset[Key]()
        return self._line(f"MOV R{new}, R{old}", owner, claims=claims, releases=releases)

    def _line(
        self,
        text: str,
        owner: int,
        foreign: frozenset[Key] = frozenset(),
        claims: Mapping[Key, str] | None = None,
        releases: frozenset[Key] = frozenset(),
    ) -> Line:
        word = self.isa.encode(text)
        facts = word_facts(self.isa, plain(word))
        return Line(text, facts, owner, foreign=foreign, releases=releases, claims=claims or {})

    def _claims(self, owner: int, registers: Registers) -> dict[Key, str]:
        """What each register of an insertion stands for: a value by its name, scratch by its owner's."""
        out: dict[Key, str] = {}
        for name, (file, numbers) in registers.items():
            group = self.groups.get(name) if file == "R" else None
            for element, number in enumerate(numbers):
                if name in self.uniforms:
                    out[file, number] = f"{name}+{element}"
                elif group is not None and element in group.kept:
                    out[file, number] = group.value(element)
                else:
                    out[file, number] = f"{owner}.{name}+{element}"
        return out

    def _lines(self, item: Insertion, owner: int, registers: Registers, base: int) -> list[Line]:
        snippet = item.snippet
        claims = self._claims(owner, registers)
        guard = self._guard(item) if self._wants_guard(snippet) else ""
        targets = {
            index
            for name, index in snippet.labels.items()
            if any(line.target == name for line in snippet.lines)
        }
        out = []
        for place, line in enumerate(snippet.lines):
            text, facts = self._text(item, line, registers, guard)
            target = None
            if line.target is not None:
                target = TO_ORIGINAL if line.target == ORIGINAL else base + snippet.labels[line.target]
            self._check(item, line, text, facts, target)
            mine = {key: claims[key] for use in facts.uses for key in use.registers() if key in claims}
            out.append(Line(text, facts, owner, target, joins=place in targets, claims=mine))
        return out

    @staticmethod
    def _wants_guard(snippet: Snippet) -> bool:
        return snippet.inherit_guard and any(
            isinstance(piece, Reference) and piece.kind == "guard"
            for line in snippet.lines
            for piece in line.pieces
        )

    def _guard(self, item: Insertion) -> str:
        """The guard of the site's instruction ("P0", "!P0") or ""."""
        if item.index < 0:
            return ""
        text = self.view.facts(item.index).text
        match = _GUARD.match(text)
        if match is None:
            return ""
        if match[2].startswith("U"):
            raise SiteError(
                "uniform-guard",
                f"instruction {item.index} of {self.kernel.name} ({text}) is guarded by a uniform "
                "predicate, which inserted code can't inherit",
                "record unconditionally, or choose another site",
            )
        return match[1] + match[2]

    def _text(
        self, item: Insertion, line: SnippetLine, registers: Registers, guard: str
    ) -> tuple[str, WordFacts]:
        """The line's physical text and effects."""
        failure: EncodeError | None = None
        for text in self._spellings(item, line, registers, guard):
            try:
                word = self.isa.encode(text + ("0x0" if line.target is not None else ""), pc=0)
                return text, word_facts(self.isa, plain(word))
            except EncodeError as error:
                failure = failure or error
        assert failure is not None
        arch = self.isa.arch.name
        raise EncodeError(
            failure.code,
            f"{self.kernel.name} ({arch}): line {line.line} of {item.snippet.name} ({text}): {failure.message}",
            failure.hint or f"write it as {arch} code does: gwatch rewrite --list prints the kernel's own",
        )

    def _spellings(
        self, item: Insertion, line: SnippetLine, registers: Registers, guard: str
    ) -> Iterator[str]:
        """The line with values written out, in the ways that nvdisasm may print them: a negative number with its
        sign or as 32 bits, a constant at offset 0 as ``[0x0]`` or ``[RZ]``.
        """
        for signed in (False, True):
            text = "".join(
                piece if isinstance(piece, str) else self._piece(item, piece, registers, guard, signed)
                for piece in line.pieces
            )
            if line.guarded and not guard:
                text = text.split(None, 1)[1]
            text = text if line.target is not None else text.rstrip()
            yield text
            if "][0x0]" in text:
                yield text.replace("][0x0]", "][RZ]")

    def _piece(
        self,
        item: Insertion,
        piece: Reference,
        registers: Registers,
        guard: str,
        signed: bool,
    ) -> str:
        if piece.kind == "guard":
            return guard or "PT"
        if piece.kind == "value":
            value = item.values[piece.name]
            if isinstance(value, str):
                return value
            if signed and -_WORD // 2 <= value < 0:
                value += _WORD
            elif signed and _WORD // 2 <= value < _WORD:
                value -= _WORD
            return f"{value:#x}"
        file, numbers = registers[piece.name]
        if piece.offset >= len(numbers):
            raise SiteError(
                "snippet-state",
                f"%{piece.name}+{piece.offset} of {item.snippet.name} is outside the {len(numbers)} "
                "registers reserved for it",
                "reserve a wider group",
            )
        return f"{file}{numbers[piece.offset]}"

    def _check(
        self, item: Insertion, line: SnippetLine, text: str, facts: WordFacts, target: int | None
    ) -> None:
        where = f"{item.snippet.name} line {line.line} ({text})"
        if not facts.known or not facts.complete:
            raise UnsupportedError(
                "snippet-effects", f"{where}: the tables can't say all that it reads and writes"
            )
        if facts.mnemonic in _FORBIDDEN or (target is None) == (facts.mnemonic in _BRANCHES):
            raise UnsupportedError(
                "snippet-flow",
                f"{where}: {facts.mnemonic} can't be inserted",
                "a snippet runs through; BRA to one of its labels or {original} is allowed",
            )
        if facts.kind not in ("fixed", "variable", "branch"):
            raise UnsupportedError("snippet-kind", f"{where}: {facts.kind} instructions can't be inserted")
        if (
            item.index >= 0
            and any(use.file in ("UR", "UP") for use in facts.writes())
            and (
                facts.mnemonic not in _CONSTANT_UNIFORM
                or any(use.file in ("R", "UR") for use in facts.reads())
            )
        ):
            raise UnsupportedError(
                "uniform-write",
                f"{where}: a uniform register written at a site may be overwritten by a diverged group of "
                "the same warp",
                "load it once at the entry, or from a constant (ULDC, UMOV)",
            )


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def _named_predicates(line: SnippetLine, item: Insertion) -> set[int]:
    """Predicates of the kernel that a snippet's line names."""
    text = "".join(
        piece if isinstance(piece, str) else str(item.values.get(piece.name, "")) for piece in line.pieces
    )
    return registers_in(text).get("P", set())
