"""From snippets to lines of physical SASS: registers chosen, values written out, effects read back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gwatch.errors import EncodeError, RegisterPressureError, SiteError, UnsupportedError
from gwatch.rewrite.registers import Allocator
from gwatch.rewrite.schedule import TO_ORIGINAL, Key, Line, Run
from gwatch.rewrite.snippet import ORIGINAL, Reference, Snippet, SnippetLine
from gwatch.sass.cfg import FLOW_MNEMONICS
from gwatch.sass.uses import CodeView, WordFacts, plain, word_facts

if TYPE_CHECKING:
    from gwatch.cuda.binary import KernelDef
    from gwatch.sass.isa import Isa

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


@dataclass(frozen=True, slots=True)
class Insertion:
    """One request: ``snippet`` before original instruction ``index`` (-1: at the entry) with ``values``."""

    index: int
    snippet: Snippet
    values: Mapping[str, int | str]
    label: str


@dataclass(slots=True)
class Binder:
    """Gives every insertion its registers and turns it into lines.

    ``state`` maps reserved names to (file, first register, width). Scratch registers are shared by all
    insertions; where no predicate is free for the whole kernel, ``idle_predicates(index)`` names those that a
    site may borrow.
    """

    isa: Isa
    kernel: KernelDef
    view: CodeView
    allocator: Allocator
    state: Mapping[str, tuple[str, int, int]]
    idle_predicates: Callable[[int], Sequence[int]]
    _pools: dict[tuple[str, int, bool], list[int]] = field(default_factory=dict)
    _borrowed: dict[int, frozenset[Key]] = field(default_factory=dict)

    def bind(self, insertions: list[Insertion]) -> tuple[list[Run], list[dict[str, str]]]:
        """The runs in address order, and for each insertion its names with their physical registers."""
        runs: dict[int, Run] = {}
        names: list[dict[str, str]] = []
        entry_first = sorted(
            range(len(insertions)),
            key=lambda owner: (max(insertions[owner].index, 0), insertions[owner].index >= 0),
        )
        # Registers of the sites first: those of the entry may be anything that is left.
        registers: list[dict[str, tuple[str, int, int]]] = [{} for _ in insertions]
        for owner in reversed(entry_first):
            registers[owner] = self._registers(insertions[owner])
        for chosen in registers:
            names.append({name: f"{file}{first}" for name, (file, first, _) in chosen.items()})
        for owner in entry_first:
            item = insertions[owner]
            index = max(item.index, 0)
            run = runs.setdefault(index, Run(index, [], borrowed=self._borrowed.get(index, frozenset())))
            base = len(run.lines)
            run.lines.extend(self._lines(item, owner, registers[owner], base))
            if item.index < 0:
                run.entry = len(run.lines)
        return [runs[index] for index in sorted(runs)], names

    def _registers(self, item: Insertion) -> dict[str, tuple[str, int, int]]:
        snippet, entry = item.snippet, item.index < 0
        chosen = {name: self.state[name] for name in snippet.state}
        used: dict[tuple[str, int], int] = {}
        for name, (file, width) in sorted(snippet.scratch.items(), key=lambda pair: -pair[1][1]):
            pool = self._pools.setdefault((file, width, entry), [])
            place = used.get((file, width), 0)
            if place == len(pool):
                try:
                    pool.append(self.allocator.take(file, width, name, entry))
                except RegisterPressureError:
                    if file != "P" or entry:
                        raise
                    chosen[name] = ("P", self._borrow(item, name, chosen), 1)
                    continue
            used[file, width] = place + 1
            chosen[name] = (file, pool[place], width)
        return chosen

    def _borrow(self, item: Insertion, name: str, chosen: Mapping[str, tuple[str, int, int]]) -> int:
        """A predicate of the kernel's that is idle at the site."""
        taken = {first for file, first, _ in chosen.values() if file == "P"} | self.allocator.excluded["P"]
        idle = [number for number in self.idle_predicates(item.index) if number not in taken]
        if not idle:
            raise RegisterPressureError(
                "predicates",
                f"{self.kernel.name}: no predicate is free for %{name} at instruction {item.index}: each of "
                "P0-P6 is excluded, holds a value that is needed later, or was written just before",
                "choose a neighbouring instruction",
            )
        self._borrowed[item.index] = self._borrowed.get(item.index, frozenset()) | {("P", idle[0])}
        return idle[0]

    def _lines(
        self, item: Insertion, owner: int, registers: Mapping[str, tuple[str, int, int]], base: int
    ) -> list[Line]:
        snippet = item.snippet
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
            out.append(Line(text, facts, owner, target, joins=place in targets))
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
        self, item: Insertion, line: SnippetLine, registers: Mapping[str, tuple[str, int, int]], guard: str
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
        message = f"{item.snippet.name} line {line.line}: {failure.message}"
        raise EncodeError(failure.code, message, failure.hint)

    def _spellings(
        self, item: Insertion, line: SnippetLine, registers: Mapping[str, tuple[str, int, int]], guard: str
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
        registers: Mapping[str, tuple[str, int, int]],
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
        file, first, width = registers[piece.name]
        if piece.offset >= width:
            raise SiteError(
                "snippet-state",
                f"%{piece.name}+{piece.offset} of {item.snippet.name} is outside the {width} "
                "registers reserved for it",
            )
        return f"{file}{first + piece.offset}"

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
