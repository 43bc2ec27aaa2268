"""nvdisasm listings of whole cubins: sections, functions, labels and instructions.

Reads what ``nvdisasm`` prints for a cubin, plain or with ``-c``, ``-hex``, ``-g``, ``-gi``, ``-gp``,
``-raw``, ``-ndf`` and ``-sf``. Only code sections are kept. Instruction text stays text:
:mod:`gwatch.sass.syntax` reads it where its meaning is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gwatch.errors import KernelError, ParseError

_SOURCE = re.compile(r'//## File "(.*?)", line ([0-9]+)(?: inlined at "(.*?)", line ([0-9]+))?\s*$')
_ENCODING = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")
_FLAGS_SM = re.compile(r"\bEF_CUDA_SM([0-9]+)\b")
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A ``//## File`` comment: where the following instructions come from, and where that code was
    inlined."""

    file: str
    line: int
    inlined_at: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a directive. ``kind``: word, string, attribute (after ``@``) or difference (a − b).

    Quotes are not part of ``text``; ``minus`` is the second symbol of a difference.
    """

    kind: str
    text: str
    minus: str = ""


@dataclass(frozen=True, slots=True)
class Directive:
    """``.size g,(.L_x_62 - g)``: name with its dot, and arguments."""

    name: str
    arguments: tuple[Argument, ...]

    def text(self, position: int) -> str:
        """Text of an argument, "" if there are not so many."""
        return self.arguments[position].text if position < len(self.arguments) else ""


@dataclass(frozen=True, slots=True)
class ListedInstruction:
    """One instruction line: ``text + tail`` is what stands between offset comment and encoding comment.

    ``offset`` is in bytes from the start of the section. ``labels`` stand directly before the instruction.
    ``encoding`` is the 128-bit word if the listing has it. ``sources`` are the ``//## File`` comments in
    force, innermost first.
    """

    offset: int
    text: str
    tail: str
    labels: tuple[str, ...] = ()
    sources: tuple[SourcePlace, ...] = ()
    encoding: int | None = None

    @property
    def annotation(self) -> str:
        """What nvdisasm remarks on the instruction, e.g. ``"SpillRefill"`` with its quotes, or ""."""
        start, end = self.tail.find("(*"), self.tail.rfind("*)")
        return self.tail[start + 2:end] if start >= 0 else ""


@dataclass(frozen=True, slots=True)
class ListedFunction:
    """A ``@function`` symbol: ``binding`` is global, weak or local; ``size`` (bytes) None if the end is
    unknown."""

    name: str
    offset: int
    size: int | None
    binding: str
    entry: bool


@dataclass(slots=True)
class ListedSection:
    """A code section. ``labels`` maps each label to its byte offset, also those behind the last
    instruction."""

    name: str
    directives: list[Directive] = field(default_factory=list)
    instructions: list[ListedInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    functions: tuple[ListedFunction, ...] = ()

    def instructions_of(self, function: ListedFunction) -> list[ListedInstruction]:
        """Instructions in the function's range (a kernel's range holds its inner functions)."""
        start = function.offset
        if function.size is None:
            return [one for one in self.instructions if one.offset >= start]
        return [one for one in self.instructions if start <= one.offset < start + function.size]


@dataclass(slots=True)
class Listing:
    """A whole listing: ``target`` is the architecture ("sm_90a"), "" if the listing names none."""

    target: str = ""
    sections: list[ListedSection] = field(default_factory=list)

    def functions(self) -> Iterator[tuple[ListedSection, ListedFunction]]:
        """Every function with its section, in the order of the listing."""
        for section in self.sections:
            for function in section.functions:
                yield section, function

    def function(self, name: str) -> tuple[ListedSection, ListedFunction]:
        """The function of this name. Raises KernelError ``[kernel-unknown]``."""
        for section, function in self.functions():
            if function.name == name:
                return section, function
        known = ", ".join(sorted(function.name for _, function in self.functions())[:5])
        raise KernelError("kernel-unknown", f"the listing has no function {name!r}", f"it has {known}")


def parse_listing(text: str) -> Listing:
    """Parse a listing. Raises ParseError ``[listing-syntax]`` with the line for anything not understood in
    code."""
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        reader.read(line, number)
    reader.close()
    return reader.listing


class _Reader:
    """Reads a listing line by line."""

    def __init__(self) -> None:
        self.listing = Listing()
        self.section: ListedSection | None = None
        self.labels: list[str] = []
        self.sources: tuple[SourcePlace, ...] = ()
        self.fresh: list[SourcePlace] = []

    def read(self, line: str, number: int) -> None:
        section = self.section
        if section is not None and line[:8].isspace() and line.startswith("/*", 8):
            self._instruction(section, line, number)
            return
        body = line.strip()
        if not body:
            return
        if body.startswith("//"):
            self._comment(body)
        elif body[0] == "." and not body.endswith(":"):
            self._directive(body, number)
        elif section is None:
            return  # a label or a data line of a section without code
        elif body.endswith(":") and " " not in body:
            self.labels.append(body[:-1])
        elif _ENCODING.fullmatch(body):
            self._second_half(section, body, number)
        else:
            raise _error(number, line, "is no instruction, label or directive")

    def _instruction(self, section: ListedSection, line: str, number: int) -> None:
        start = line.find("*/", 8)
        end = line.rfind(";")
        encoding: int | None = None
        if start < 0 or end < start:
            raise _error(number, line, "is an instruction without semicolon")
        rest = line[end + 1:]
        if rest and not rest.isspace():
            match = _ENCODING.fullmatch(rest.strip())
            if match is None:
                raise _error(number, line, "has text behind the semicolon")
            encoding = int(match.group(1), 16)
        try:
            offset = int(line[10:start], 16)
        except ValueError:
            raise _error(number, line, "has no offset") from None
        whole = line[start + 2:end + 1].lstrip()
        text = whole[:-1]
        if text.endswith("*)"):
            text = text[:text.rfind("(*")]
        text = text.rstrip()
        if not text:
            raise _error(number, line, "is an empty instruction")
        if self.fresh:
            self.sources, self.fresh = tuple(self.fresh), []
        labels: tuple[str, ...] = ()
        if self.labels:
            self._place_labels(section, offset)
            labels, self.labels = tuple(self.labels), []
        section.instructions.append(
            ListedInstruction(offset, text, whole[len(text):], labels, self.sources, encoding))

    def _second_half(self, section: ListedSection, body: str, number: int) -> None:
        # -hex prints the high half of the word on a line of its own.
        match = _ENCODING.fullmatch(body)
        last = section.instructions[-1] if section.instructions else None
        if match is None or last is None or last.encoding is None or last.encoding > _MASK64:
            raise _error(number, body, "is an encoding without instruction")
        word = last.encoding | int(match.group(1), 16) << 64
        section.instructions[-1] = replace(last, encoding=word)

    def _place_labels(self, section: ListedSection, offset: int) -> None:
        for label in self.labels:
            section.labels.setdefault(label, offset)

    def _comment(self, body: str) -> None:
        match = _SOURCE.match(body)
        if match is not None:
            file, line, outer, outer_line = match.groups()
            inlined_at = None if outer is None else (outer, int(outer_line))
            self.fresh.append(SourcePlace(file, int(line), inlined_at))
        elif body.startswith("//----"):
            self._finish_section()

    def _directive(self, body: str, number: int) -> None:
        if self.section is None and not body.startswith((".section", ".target", ".headerflags")):
            return
        # Not at the top: Lark takes some 60 ms to import, and most users of this package read no listing.
        from gwatch.sass.grammar import parse_directive

        name, arguments = parse_directive(body, line=number)
        directive = Directive(name, tuple([Argument(*argument) for argument in arguments]))
        if name == ".section":
            self._finish_section()
            if "x" in directive.text(1):
                self.section = ListedSection(directive.text(0))
                self.listing.sections.append(self.section)
        elif name == ".target":
            self.listing.target = directive.text(0)
        elif name == ".headerflags":
            self.listing.target = self.listing.target or _flags_target(directive.text(0))
        if self.section is not None:
            self.section.directives.append(directive)

    def _finish_section(self) -> None:
        section = self.section
        if section is None:
            return
        instructions = section.instructions
        size = instructions[1].offset - instructions[0].offset if len(instructions) > 1 else 16
        self._place_labels(section, instructions[-1].offset + size if instructions else 0)
        section.functions = tuple(_functions(section))
        self.section, self.labels, self.sources, self.fresh = None, [], (), []

    def close(self) -> None:
        """End of the text."""
        self._finish_section()


def _functions(section: ListedSection) -> Iterator[ListedFunction]:
    binding: dict[str, str] = {}
    sizes: dict[str, Argument] = {}
    entries: set[str] = set()
    names: list[str] = []
    for directive in section.directives:
        symbol = directive.text(0)
        if directive.name in (".global", ".weak"):
            binding[symbol] = directive.name[1:]
        elif directive.name == ".size" and len(directive.arguments) > 1:
            sizes[symbol] = directive.arguments[1]
        elif directive.name == ".other" and "STO_CUDA_ENTRY" in directive.text(1).split():
            entries.add(symbol)
        elif directive.name == ".type" and directive.text(1) == "function":
            names.append(symbol)
    for name in names:
        if name not in section.labels:
            continue
        size: int | None = None
        argument = sizes.get(name)
        if argument is not None and argument.kind == "difference":
            end, start = section.labels.get(argument.text), section.labels.get(argument.minus)
            size = end - start if end is not None and start is not None else None
        yield ListedFunction(name, section.labels[name], size, binding.get(name, "local"), name in entries)


def _flags_target(flags: str) -> str:
    match = _FLAGS_SM.search(flags)
    if match is None:
        return ""
    return f"sm_{match.group(1)}{'a' if 'EF_CUDA_ACCELERATORS' in flags.split() else ''}"


def _error(number: int, line: str, what: str) -> ParseError:
    return ParseError("listing-syntax", f"line {number} {what}: {line.strip()[:120]!r}",
                      "gwatch reads listings of nvdisasm without -json, -plr, -cfg and -bbcfg")
