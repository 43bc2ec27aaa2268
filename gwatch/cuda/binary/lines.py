"""Source lines of kernels, with call sites of inlined code, and line tables of moved code."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from gwatch.cuda.binary.dwarf import line_headers
from gwatch.cuda.binary.elf import SHT_RELA, Elf, Section
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.binary.lineprogram import Row, decode
from gwatch.errors import CubinError

PTX_FILE = "<ptx>"
"""File name for rows of ``.nv_debug_line_sass`` that refer to the PTX text inside the cubin."""
MAX_COVER = 64
"""Rows may cover a section this often (code is covered once; more than this is damage that would cost time)."""
MAX_DEPTH = 256
"""Longest chain of call sites followed; longer ones mean a damaged (cyclic) table."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call site that was inlined: where the call stands and the name of the function called there."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class LineRow:
    """One row: from byte ``address`` of the section on, code stems from ``file``:``line``; ``calls``
    innermost first."""

    address: int
    end: int
    file: str
    line: int
    column: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class LineTable:
    """Rows of one code section by address; empty where the cubin has none."""

    rows: tuple[LineRow, ...]

    def by_address(self, size: int) -> dict[int, tuple[str, int]]:
        """Instruction address -> (file, line), for addresses below ``size`` bytes."""
        return {
            address: (row.file, row.line)
            for row in self.rows
            for address in range(row.address, min(row.end, size), INSTRUCTION_SIZE)
        }

    def calls_by_address(self, size: int) -> dict[int, tuple[Call, ...]]:
        """Instruction address -> inlined call sites, for inlined instructions below ``size`` bytes."""
        return {
            address: row.calls
            for row in self.rows if row.calls
            for address in range(row.address, min(row.end, size), INSTRUCTION_SIZE)
        }  # fmt: skip


def start_addresses(elf: Elf, section: Section) -> dict[int, tuple[int, int]]:
    """Byte position in a debug section -> (symbol index, addend) of the 64-bit address relocated there."""
    content = elf.content(section)
    found = {}
    for table in elf.relocation_sections(section.index):
        for entry in elf.relocations(table):
            in_place = int.from_bytes(content[entry.offset : entry.offset + 8], "little")
            found[entry.offset] = (entry.symbol, in_place if table.type != SHT_RELA else entry.addend or 0)
    return found


def line_table(elf: Elf, name: str, code_section: int) -> LineTable:
    """The rows of debug section ``name`` that belong to one code section. Raises CubinError [dwarf-line] on
    damage."""
    section = elf.find(name)
    if section is None or not section.in_file:
        return LineTable(())
    content, where = elf.content(section), f"{elf.what}: {name}"
    starts = start_addresses(elf, section)
    strings = elf.find(".debug_str")
    names = elf.content(strings) if strings is not None else b""
    rows: list[LineRow] = []
    for header in line_headers(content, where):
        for sequence in decode(content, header, where):
            symbol, addend = starts.get(sequence.address_at, (0, 0))
            if elf.symbols[symbol].section != code_section if symbol else True:
                continue
            rows += _rows(sequence.rows, elf.symbols[symbol].value + addend, header.files, names)
    if sum(row.end - row.address for row in rows) > MAX_COVER * elf.section(code_section).size:
        raise CubinError("dwarf-line", f"{where}: the rows cover the code of {code_section} many times over")
    return LineTable(tuple(sorted(rows, key=lambda row: row.address)))


def _rows(rows: list[Row], base: int, files: dict[int, str], names: bytes) -> list[LineRow]:
    found = []
    for row, following in itertools.pairwise(rows):
        if following.address <= row.address:
            continue
        file = files.get(row.file, PTX_FILE)
        found.append(
            LineRow(
                base + row.address,
                base + following.address,
                file,
                row.line,
                row.column,
                _calls(row, rows, files, names),
            )
        )
    return found


def _calls(row: Row, rows: list[Row], files: dict[int, str], names: bytes) -> tuple[Call, ...]:
    calls: list[Call] = []
    while 0 < row.context <= len(rows) and len(calls) < MAX_DEPTH:
        end = names.find(b"\0", row.function)
        function = names[row.function : end].decode("utf-8", "backslashreplace") if end >= 0 else ""
        row = rows[row.context - 1]
        calls.append(Call(files.get(row.file, PTX_FILE), row.line, function))
    return tuple(calls)


def moved_rows(rows: list[Row], ends: list[int], maps: list[dict[int, int]]) -> list[Row]:
    """Rows of a moved sequence, once per copy of the code.

    ``maps``: per copy, old row address -> new; ``ends``: per copy, the address where its rows stop.
    """
    body = [row for row in rows if not row.end]
    last = rows[-1]
    moved = []
    for copy, where in enumerate(maps):
        shift = copy * len(body)
        for row in body:
            context = row.context + shift if row.context else 0
            moved.append(replace(row, address=where[row.address], context=context))
    moved.append(replace(last, address=ends[-1], context=0 if not last.context else last.context))
    return moved
