"""Code sections as ``nvdisasm -g -c`` (or ``-gi -c``) prints them: labels, source lines, symbols.

Label numbers follow the order in which that program meets the places: return addresses in relocations, targets of
branches, offsets that attributes list, ends of functions. All of it was seen in its output and is tested against it.
What it prints in a way that is not known here raises :class:`CannotLabel`; the caller then lets the program itself
print the cubin.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gwatch.cuda.binary import KernelDef, nvinfo
from gwatch.cuda.binary.elf import (
    ET_EXEC,
    SHF_EXECINSTR,
    SHT_PROGBITS,
    STB_GLOBAL,
    STO_CUDA_ENTRY,
    STT_FUNC,
    STT_OBJECT,
    STT_SECTION,
    Section,
    Symbol,
)
from gwatch.cuda.binary.lines import LineRow
from gwatch.cuda.binary.nvinfo import OFFSET_SHAPES, Attr
from gwatch.errors import printable
from gwatch.inspect.statements import statement_end, tight_ends
from gwatch.inspect.view import CubinView

_STB_WEAK = 2
_BINDINGS = {STB_GLOBAL: ".global", _STB_WEAK: ".weak"}
_KINDS = {STT_OBJECT: "@object", STT_FUNC: "@function"}
_ABS_LO, _ABS_HI, _CALL = 56, 57, 75
"""Types of relocations of instructions: halves of an address, and the target of an absolute call."""
_HALVES = {_ABS_LO: "32@lo", _ABS_HI: "32@hi"}
_FIRST_ONLY = frozenset({Attr.INSTR_REG_MAP})
"""Lists of which only the first entry is taken for a place."""
_SPILL = 1
"""Kind of annotation that is printed as SpillRefill."""
_BARRIER_SHIFT, _BARRIER_MASK = 20, 0x7F
_REGISTERS_SHIFT = 24
"""Where the ``info`` of a code section has its register count, on architectures that keep it there."""
_LAST = re.compile(r"-?0x[0-9a-f]+$")
_HEAD = "-" * 21
_TAIL = "-" * 26
_NAME_WIDTH = 25


class CannotLabel(Exception):
    """The cubin holds something that is not known to be printed here as nvdisasm does."""


class Labels:
    """Names of places in code: functions, and labels with nvdisasm's numbers."""

    def __init__(self, view: CubinView, sections: list[Section]) -> None:
        self._view = view
        self._sections = {section.index: section for section in sections}
        self._numbers: dict[tuple[int, int], int] = {}
        self._count = 0
        self.symbols: dict[tuple[int, int], list[Symbol]] = defaultdict(list)
        self._functions: dict[tuple[int, int], str] = {}
        for symbol in reversed(view.cubin.elf.symbols):
            if symbol.section in self._sections:
                aligned = symbol.value % view.arch.instruction_size == 0
                if symbol.kind not in (STT_FUNC, STT_SECTION) or not aligned:
                    raise CannotLabel(f"symbol {symbol}")
                self.symbols[symbol.section, symbol.value].append(symbol)
                if printable(symbol.name) != symbol.name:
                    raise CannotLabel(f"symbol {symbol}")
                if symbol.kind == STT_FUNC:
                    self._functions[symbol.section, symbol.value] = symbol.name
        self.relocated = self._relocations()
        self._branches()
        self._attributes()
        for symbol in view.cubin.elf.symbols:
            if symbol.kind == STT_FUNC and symbol.section in self._sections:
                self._mention(symbol.section, symbol.value + symbol.size)

    def name(self, section: int, address: int) -> str:
        """The name of a place; a new label where it has none."""
        known = self._functions.get((section, address))
        if known:
            return known
        number = self._numbers.get((section, address))
        if number is None:
            if not 0 <= address <= self._sections[section].size or address % self._view.arch.instruction_size:
                raise CannotLabel(f"place {address:#x} is no instruction of its section")
            number = self._numbers[section, address] = self._count
            self._count += 1
        return f".L_x_{number}"

    def at(self, section: int, address: int) -> str:
        """The line of the label at a place, "" for none."""
        number = self._numbers.get((section, address))
        return "" if number is None else f".L_x_{number}:\n"

    def _mention(self, section: int, address: int) -> None:
        """A place that an attribute or the end of a function names takes a number even where it has a name."""
        if (section, address) in self._numbers or (section, address) in self._functions:
            self._count += 1
        else:
            self.name(section, address)

    def _relocations(self) -> dict[tuple[int, int], str]:
        """(section, byte address) -> what is printed for the last operand of a relocated instruction."""
        elf = self._view.cubin.elf
        found = {}
        for table in elf.relocation_sections():
            if table.info not in self._sections:
                continue
            for entry in sorted(elf.relocations(table), key=lambda e: e.offset):
                symbol = elf.symbols[entry.symbol]
                text = symbol.name
                if entry.addend and symbol.section in self._sections:
                    text = f"({symbol.name} + {self.name(symbol.section, symbol.value + entry.addend)}@srel)"
                elif entry.addend or not text:
                    raise CannotLabel("relocation of data")
                if entry.type in _HALVES:
                    text = f"{_HALVES[entry.type]}({text})"
                elif entry.type == _CALL:
                    text = f"`({text})"
                else:
                    raise CannotLabel(f"relocation type {entry.type}")
                found[table.info, entry.offset - entry.offset % self._view.arch.instruction_size] = text
        return found

    def _branches(self) -> None:
        kernels = kernels_by_section(self._view)
        for index in self._sections:
            if index not in kernels:
                raise CannotLabel("a code section without a function of its size")
            for target in self._view.code(kernels[index]).targets.tolist():
                if target >= 0:
                    self.name(index, target)

    def _attributes(self) -> None:
        elf = self._view.cubin.elf
        for section in elf.sections:
            if section.info not in self._sections or not section.name.startswith(".nv.info."):
                continue
            for record in nvinfo.parse(elf.content(section), section.name):
                if record.code == Attr.INDIRECT_BRANCH_TARGETS:
                    for branch in nvinfo.indirect_branches(record):
                        for address in (branch.branch, *branch.targets):
                            self._mention(section.info, address)
                elif record.code in OFFSET_SHAPES:
                    shape = OFFSET_SHAPES[record.code]
                    places = record.words[shape.column :: shape.stride]
                    for address in places[:1] if record.code in _FIRST_ONLY else places:
                        self._mention(section.info, address)


def kernels_by_section(view: CubinView) -> dict[int, KernelDef]:
    """Code section -> the kernel or function that it was made for."""
    return {kernel.section_index: kernel for kernel in reversed(view.kernels)}


@dataclass(slots=True)
class _Line:
    """An instruction line without address: ``body`` before the semicolon, ``end`` from there on; ``note``: what the
    compiler says of it; ``extra``: the guard, which the tool counts twice."""

    body: str
    end: str
    extra: int
    note: str = ""


def text(
    view: CubinView, head: str, inlined: bool, wanted: Callable[[str], bool] | None = None
) -> str:
    """The listing behind its first lines ``head``. ``inlined``: with call sites, as ``-gi`` prints them. ``wanted``:
    only these functions' sections. Raises CannotLabel."""
    elf = view.cubin.elf
    if elf.header.type != ET_EXEC or elf.find(".debug_info") is not None:
        raise CannotLabel("not linked, or with symbols for a debugger")
    sections = [s for s in elf.sections if s.type == SHT_PROGBITS and s.flags & SHF_EXECINSTR]
    labels = Labels(view, sections)
    kernels = kernels_by_section(view)
    size = view.arch.instruction_size
    lines = {s.index: _lines(view, kernels[s.index], labels) for s in sections}
    column = 0
    for found in lines.values():
        for number, line in enumerate(found):
            column = max(column, len(_prefix(number * size)) + len(line.body) + len(line.end) + line.extra)
    out = [head]
    for section in sections:
        kernel = kernels[section.index]
        if wanted is None or wanted(kernel.name):
            out.append(f"\n\n//{_HEAD} {section.name:{_NAME_WIDTH}} {_TAIL}\n")
            out += _section(view, kernel, labels, lines[section.index], column, inlined)
    out += _undefined(elf.symbols)
    return "".join(out)


def _prefix(address: int) -> str:
    return f"        /*{address:04x}*/"


def _lines(view: CubinView, kernel: KernelDef, labels: Labels) -> list[_Line]:
    code, index, size = view.code(kernel), kernel.section_index, view.arch.instruction_size
    notes = _notes(view, kernel, labels)
    out = []
    for place, (plain, target, tight) in enumerate(
        zip(code.texts, code.targets.tolist(), tight_ends(code.words).tolist(), strict=True)
    ):
        body, guard = plain, ""
        operand = labels.relocated.get((index, place * size))
        if target >= 0:
            operand = f"`({labels.name(index, target)})"
        if operand is not None:
            match = _LAST.search(plain)
            if match is None:
                raise CannotLabel(f"operand of {plain}")
            body = plain[: match.start()] + operand
        if body[0] == "@" and body[1] != "U" and body[2] != "U":
            guard, body = body.split(" ", 1)  # a uniform guard stands where the opcode of other lines does
        end = statement_end(body, tight)
        out.append(_Line(f"{guard:>18} {body}", end, len(guard) + 1 if guard else 0, notes.get(place * size, "")))
    return out


def _notes(view: CubinView, kernel: KernelDef, labels: Labels) -> dict[int, str]:
    """Byte address -> what is remarked on the instruction."""
    found = {}
    for record in view.attributes(kernel):
        if record.code == Attr.ANNOTATIONS:
            for kind, address in zip(record.words[::2], record.words[1::2], strict=False):
                if kind != _SPILL:
                    raise CannotLabel(f"annotation {kind}")
                found[address] = "SpillRefill"
        elif record.code == Attr.INDIRECT_BRANCH_TARGETS:
            for branch in nvinfo.indirect_branches(record):
                names = ",".join(labels.name(kernel.section_index, target) for target in branch.targets)
                found[branch.branch] = f"BRANCH_TARGETS {names}"
    return found


def _section(
    view: CubinView, kernel: KernelDef, labels: Labels, lines: list[_Line], column: int, inlined: bool
) -> Iterator[str]:
    section, size = kernel.section, view.arch.instruction_size
    yield f'\t.section\t{section.name},"ax",@progbits\n'
    barriers = section.flags >> _BARRIER_SHIFT & _BARRIER_MASK
    if barriers:
        yield f'\t.sectionflags\t@"SHF_BARRIERS={barriers}"\n'
    if view.arch.section_registers:
        yield f'\t.sectioninfo\t@"SHI_REGISTERS={section.info >> _REGISTERS_SHIFT}"\n'
    yield f"\t.align\t{section.align}\n"
    sources = _sources(kernel, inlined)
    for number, line in enumerate(lines):
        address = number * size
        for symbol in labels.symbols.get((section.index, address), ()):
            yield from _symbol(symbol, section, labels)
        yield labels.at(section.index, address)
        yield sources.get(address, "")
        start = f"{_prefix(address)}{line.body}"
        yield f'{start:{column}}(*"{line.note}"*);\n' if line.note else f"{start}{line.end}\n"
    yield labels.at(section.index, len(lines) * size)


def _symbol(symbol: Symbol, section: Section, labels: Labels) -> Iterator[str]:
    name = symbol.name
    if symbol.kind == STT_FUNC:
        if symbol.binding in _BINDINGS:
            yield f"        {_BINDINGS[symbol.binding]:16}{name}\n"
        elif symbol.binding:
            raise CannotLabel(f"binding {symbol.binding}")
        yield f"        {'.type':16}{name},@function\n"
        end = labels.name(section.index, symbol.value + symbol.size)
        yield f"        {'.size':16}{name},({end} - {name})\n"
        if symbol.other == STO_CUDA_ENTRY:
            yield f"        {'.other':16}{name},@\"STO_CUDA_ENTRY STV_DEFAULT\"\n"
        elif symbol.other:
            raise CannotLabel(f"visibility {symbol.other:#x}")
    yield f"{name}:\n"


def _sources(kernel: KernelDef, inlined: bool) -> dict[int, str]:
    """Byte address -> comment lines with the source of the instructions from there on."""
    found: dict[int, str] = {}
    last = None
    for row in kernel.line_table.rows:
        text = _source(row, inlined)
        if text != last:
            found[row.address] = last = text
    return found


def _source(row: LineRow, inlined: bool) -> str:
    places = [(row.file, row.line), *((call.file, call.line) for call in row.calls if inlined)]
    lines = []
    for number, (file, line) in enumerate(places):
        caller = ""
        if number + 1 < len(places):
            caller = f' inlined at "{printable(places[number + 1][0])}", line {places[number + 1][1]}'
        lines.append(f'\t//## File "{printable(file)}", line {line}{caller}\n')
    return "".join(lines)


def _undefined(symbols: tuple[Symbol, ...]) -> Iterator[str]:
    """Symbols that are defined elsewhere, and reserved ones."""
    found = [symbol for symbol in symbols if symbol.name and not symbol.section]
    if found:
        yield f"\n\n//{_HEAD} SYMBOLS {_TAIL}\n\n"
    for symbol in found:
        if symbol.kind not in _KINDS:
            raise CannotLabel(f"symbol {symbol}")
        yield f"\t.type\t\t{symbol.name},{_KINDS[symbol.kind]}\n"
        if symbol.size:
            yield f"\t.size\t\t{symbol.name},{symbol.size:#x}\n"
