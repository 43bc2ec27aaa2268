"""PTX modules as text with places: functions, their statements, version and target (``grammars/ptx.lark``).

Operands are not parsed: what recording needs of an instruction is its text and where it stands.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from gwatch.errors import KernelError, ParseError

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NAME = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([$%\w]+)")
_PARAMETER = re.compile(r"\.param\b([^,)]*?)([$%\w]+)\s*(?:\[\s*(\d*)\s*\])?\s*(?=[,)])")
_TYPE_BITS = re.compile(r"\.(?:[bsuf]|bf)(8|16|32|64|128)(x2)?\b")
_COLUMN = re.compile(r"column (\d+): (unexpected \S+)")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class PtxStatement:
    """``text`` (comments blanked, no surrounding blanks) at ``start``..``end`` of the module's text; ``kind`` is
    "label", "directive", "loc" or "instruction"; ``depth`` counts the braces around it inside the body."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


@dataclass(frozen=True, slots=True)
class PtxFunction:
    """A kernel (``entry``) or device function with a body: ``start`` is where its head begins, ``begin`` and
    ``finish`` lie behind its opening brace and at the closing one; ``code`` is the first place before which
    instructions may be put.
    """

    name: str
    entry: bool
    head: str
    start: int
    begin: int
    finish: int
    code: int
    statements: tuple[PtxStatement, ...]

    @property
    def parameter_bytes(self) -> list[int]:
        """Bytes of each parameter."""
        opening = self.head.find("(", self.head.find(self.name))
        found = []
        for match in _PARAMETER.finditer(self.head[opening + 1 :] if opening >= 0 else ""):
            bits = _TYPE_BITS.search(match[1])
            size = int(bits[1]) // 8 * (2 if bits[2] else 1) if bits else 8
            found.append(size * int(match[3] or 1))
        return found


class PtxModule:
    """A parsed PTX module."""

    def __init__(self, text: str, name: str = "PTX") -> None:
        """Raises ParseError ``[ptx-syntax]`` with the line that is no PTX."""
        from gwatch.sass.grammar import parse_tree

        self.text, self.name = text, name
        blanked = _blank_comments(text)
        try:
            tree: Any = parse_tree("ptx.lark", blanked)
        except ParseError as error:
            raise self._located(error, blanked) from None
        self.version: tuple[int, int] | None = None
        self.target = ""
        functions: list[PtxFunction] = []
        for node in tree.children:
            rule = getattr(node, "data", None)  # tokens have none
            if rule == "version":
                major, _, minor = str(node.children[0]).partition(".")
                self.version = int(major), int(minor)
            elif rule == "target":
                self.target = str(node.children[0])
            elif rule == "function" and len(node.children) == 2:
                functions.append(_function(node))
        self.functions = tuple(functions)
        if self.version is None or not self.target:
            raise ParseError(
                "ptx-syntax", f"{name} names no .version and .target", "give a complete PTX module"
            )

    def _located(self, error: ParseError, blanked: str) -> ParseError:
        match = _COLUMN.search(error.message)
        place = int(match[1]) - 1 if match else 0
        line = self.line_of(place)
        shown = " ".join(blanked[place : place + _SHOWN].split())
        return ParseError("ptx-syntax", f"{self.name}, line {line}: no PTX statement at {shown!r}")

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *accumulate(len(line) for line in self.text.splitlines(keepends=True))]

    def line_of(self, place: int) -> int:
        """Line number, from 1, of a place in the text."""
        return bisect_right(self._line_starts, place) if place < len(self.text) else len(self._line_starts)

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels."""
        return [function.name for function in self.functions if function.entry]

    def kernel(self, name: str) -> PtxFunction:
        """The kernel of a mangled name. Raises KernelError ``[kernel-missing]``."""
        for function in self.functions:
            if function.entry and function.name == name:
                return function
        raise KernelError(
            "kernel-missing",
            f"{self.name} does not define {name}",
            f"it has {', '.join(self.kernels) or 'none'}",
        )


def defines(text: str, kernel: str) -> bool:
    """Whether PTX text has the kernel, by a plain search."""
    return re.search(rf"\.entry\s+{re.escape(kernel)}\s*[({{.]", text + "(") is not None


def _blank_comments(text: str) -> str:
    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return _COMMENT.sub(blank, text)


_KINDS = {"LABEL": "label", "LOC": "loc", "INSTRUCTION": "instruction"}


def _function(node: Any) -> PtxFunction:
    head, body = node.children
    text = str(head)
    start = head.start_pos
    assert start is not None
    match = _NAME.search(text)
    name = match[1] if match else "?"
    statements: list[PtxStatement] = []
    places: list[int] = []
    begin, finish = _collect(body, 0, statements, places)
    code = min(places, default=finish)
    return PtxFunction(name, ".entry" in text, text, start, begin, finish, code, tuple(statements))


def _collect(body: Any, depth: int, out: list[PtxStatement], places: list[int]) -> tuple[int, int]:
    """Statements of a body in order; ``places`` are those before which code may stand at the outermost level."""
    opening, *inner, closing = body.children
    for child in inner:
        if hasattr(child, "data"):
            nested = child.children[0]
            if depth == 0:
                places.append(nested.start_pos)
            _collect(child, depth + 1, out, places)
            continue
        kind = _KINDS.get(child.type, "directive")
        start, end = child.start_pos, child.end_pos
        assert start is not None and end is not None
        out.append(PtxStatement(kind, " ".join(str(child).split()), start, end, depth))
        if depth == 0 and kind in ("label", "instruction"):
            places.append(start)
    return opening.end_pos, closing.start_pos
