"""Snippets: SASS text with virtual registers, immediates and labels.

A snippet is written in the grammar that nvdisasm prints, one instruction a line (or separated by ``;``),
plus:

==================  ==========================================================================================
written             stands for
==================  ==========================================================================================
``%r0``, ``%t``     a general register; ``%t+1`` the next one of a wider, aligned group
``%p0``             a predicate
``%ur0``            a uniform register
``%guard``          the guard of the instruction the snippet is inserted before (``@%guard`` disappears and a
                    ``%guard`` operand is ``PT`` when there is none or the snippet does not inherit it)
``{name}``          an immediate (int), or operand text (str), given when the snippet is inserted
``name:``           a label; a control-flow line may name it as its target
``{original}``      as a target: the untouched copy of the kernel (only in a rewrite with a twin)
``// text``         a comment
==================  ==========================================================================================

``%r<N>``, ``%p<N>`` and ``%ur<N>`` need no declaration (one register each). Control words are never
written: the scheduler computes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gwatch.errors import ParseError

ORIGINAL = "original"
GUARD = "guard"
KNOWN_NEEDS = frozenset({"ctaid.z"})
MAX_WIDTH = 4

_NAME = r"[A-Za-z_][A-Za-z_0-9]*"
_REFERENCE = re.compile(rf"%({_NAME})(?:\+(\d+)(?![\dx]))?|\{{({_NAME})\}}")
_LABEL = re.compile(rf"\s*({_NAME})\s*:(?!:)")
_IMPLICIT = re.compile(r"(ur|r|p)\d+\Z")
_INSTRUCTION = re.compile(r"(?:@!?(?:%?[A-Za-z_]\w*)\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?=\s|$|;)")
_TARGET = re.compile(rf"(?:^|[\s,])(\{{{ORIGINAL}\}}|{_NAME})\s*$")


@dataclass(frozen=True, slots=True)
class Reference:
    """One ``%name`` or ``%name+offset`` (``kind`` "R", "UR", "P", "state", "guard"), or ``{name}``
    (``kind`` "value").
    """

    kind: str
    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SnippetLine:
    """One instruction: ``pieces`` alternate fixed text and :class:`Reference`; ``target`` is a label or None.

    ``line`` (1-based) says where it was written; ``guarded`` that ``@%guard`` stood in front.
    """

    pieces: tuple[str | Reference, ...]
    target: str | None
    line: int
    guarded: bool


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of SASS and what it needs.

    ``registers`` maps scratch names to widths (1, 2 or 4 consecutive registers, aligned to the width),
    ``uniforms`` the same for uniform registers, ``predicates`` names scratch predicates; ``state`` names
    registers that the rewriter was asked to :meth:`~gwatch.rewrite.Rewriter.reserve` (they keep their value
    from site to site), ``sets`` those of them, one register each, that it writes whatever they held.
    ``inherit_guard``: whether ``%guard`` means the guard of the site's instruction.
    ``needs`` declares facts that the container must carry ("ctaid.z").

    Raises ParseError (``[snippet-syntax]``, ``[snippet-name]``, ``[snippet-label]``, ``[snippet-width]``,
    ``[snippet-need]``, ``[snippet-empty]``) with line and column.
    """

    text: str
    registers: Mapping[str, int] = field(default_factory=dict)
    predicates: tuple[str, ...] = ()
    uniforms: Mapping[str, int] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    inherit_guard: bool = True
    needs: tuple[str, ...] = ()
    name: str = "snippet"
    lines: tuple[SnippetLine, ...] = field(init=False, repr=False, compare=False)
    labels: Mapping[str, int] = field(init=False, repr=False, compare=False)
    values: frozenset[str] = field(init=False, repr=False, compare=False)
    scratch: Mapping[str, tuple[str, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parser = _Parser(self)
        parser.run()
        for attribute in ("lines", "labels", "values", "scratch"):
            object.__setattr__(self, attribute, getattr(parser, attribute))

    @property
    def uses_original(self) -> bool:
        """Whether a line branches to the untouched copy of the kernel."""
        return any(line.target == ORIGINAL for line in self.lines)


class _Parser:
    """Collects the lines, labels, names and widths of one snippet."""

    def __init__(self, snippet: Snippet) -> None:
        self.snippet = snippet
        self.scratch: dict[str, tuple[str, int]] = {}
        self.labels: dict[str, int] = {}
        self.values: frozenset[str] = frozenset()
        self.lines: tuple[SnippetLine, ...] = ()
        self._found: list[tuple[str, int, int]] = []
        self._values: set[str] = set()

    def run(self) -> None:
        snippet = self.snippet
        for file, widths in (("R", snippet.registers), ("UR", snippet.uniforms)):
            for name, width in widths.items():
                self._declare(name, file, width)
        for name in snippet.predicates:
            self._declare(name, "P", 1)
        for need in snippet.needs:
            if need not in KNOWN_NEEDS:
                raise ParseError(
                    "snippet-need",
                    f"{snippet.name} declares the need {need!r}, which is not known",
                    "known: " + " ".join(sorted(KNOWN_NEEDS)),
                )
        self._split()
        if not self._found:
            raise ParseError("snippet-empty", f"{snippet.name} holds no instruction")
        self.lines = tuple(self._line(*entry) for entry in self._found)
        for label, index in self.labels.items():
            if index == len(self.lines):
                raise ParseError(
                    "snippet-label",
                    f"label {label!r} of {snippet.name} stands behind the last instruction",
                    "a branch there needs an instruction to land on: add a NOP",
                )
        self.values = frozenset(self._values)

    def _declare(self, name: str, file: str, width: int) -> None:
        if not re.fullmatch(_NAME, name) or name in (GUARD, ORIGINAL):
            raise ParseError("snippet-name", f"{name!r} cannot name a register of {self.snippet.name}")
        if name in self.scratch or name in self.snippet.state:
            raise ParseError("snippet-name", f"register {name!r} of {self.snippet.name} is declared twice")
        if width not in (1, 2, MAX_WIDTH):
            raise ParseError(
                "snippet-width",
                f"register {name!r} of {self.snippet.name} is {width} wide",
                "widths are 1, 2 or 4",
            )
        self.scratch[name] = (file, width)

    def _fail(self, code: str, line: int, column: int, message: str, hint: str = "") -> ParseError:
        return ParseError(code, f"{self.snippet.name} line {line}, column {column}: {message}", hint)

    def _split(self) -> None:
        """Cut the text into (instruction text, line, column), taking labels and comments out."""
        for number, raw in enumerate(self.snippet.text.splitlines(), 1):
            rest, column = raw.split("//", 1)[0], 1
            for part in rest.split(";"):
                start = column
                column += len(part) + 1
                while match := _LABEL.match(part):
                    label = match[1]
                    if label in self.labels or label == ORIGINAL:
                        raise self._fail(
                            "snippet-label",
                            number,
                            start + match.start(1),
                            f"label {label!r} is defined twice",
                        )
                    self.labels[label] = len(self._found)
                    start += match.end()
                    part = part[match.end() :]
                if part.strip():
                    self._found.append((part.strip(), number, start + len(part) - len(part.lstrip())))

    def _line(self, text: str, number: int, column: int) -> SnippetLine:
        if not _INSTRUCTION.match(text):
            raise self._fail(
                "snippet-syntax",
                number,
                column,
                f"{text!r} is not an instruction",
                "write it as nvdisasm prints it, without a control word",
            )
        body, target = text, None
        found = _TARGET.search(text)
        if found and (found[1] == f"{{{ORIGINAL}}}" or found[1] in self.labels):
            target = found[1].strip("{}")
            body = text[: found.start(1)]
        guarded = text.startswith(f"@%{GUARD}")
        if text.startswith(f"@!%{GUARD}"):
            raise self._fail(
                "snippet-name", number, column, "the site's guard cannot be negated", "use @%guard"
            )
        pieces: list[str | Reference] = []
        at = 0
        for match in _REFERENCE.finditer(body):
            pieces.append(body[at : match.start()])
            pieces.append(self._reference(match, number, column + match.start()))
            at = match.end()
        pieces.append(body[at:])
        for piece in pieces:
            if isinstance(piece, str) and (stray := re.search(r"[%{](?!\d)", piece)):
                raise self._fail(
                    "snippet-syntax",
                    number,
                    column,
                    f"{piece[stray.start() :]!r} is not a register or value name",
                )
        return SnippetLine(tuple(pieces), target, number, guarded)

    def _reference(self, match: re.Match[str], number: int, column: int) -> Reference:
        if match[3]:
            if match[3] == ORIGINAL:
                raise self._fail(
                    "snippet-label",
                    number,
                    column,
                    "{original} is only a control-flow target",
                    "write it as the last operand of a branch",
                )
            self._values.add(match[3])
            return Reference("value", match[3])
        name, offset = match[1], int(match[2] or 0)
        if name == GUARD:
            return Reference("guard", name)
        if name in self.snippet.state:
            return Reference("state", name, offset)
        if name not in self.scratch:
            implicit = _IMPLICIT.match(name)
            if not implicit:
                raise self._fail(
                    "snippet-name",
                    number,
                    column,
                    f"%{name} is not declared",
                    "declare it in registers=, predicates=, uniforms= or state=, or call it %r0, %p0, %ur0",
                )
            self.scratch[name] = (implicit[1].upper(), 1)
        file, width = self.scratch[name]
        if offset >= width:
            raise self._fail(
                "snippet-width", number, column, f"%{name}+{offset} is outside its {width} registers"
            )
        return Reference(file, name, offset)
