"""Line tables and call frames of a moved code section."""

from __future__ import annotations

import struct

from gwatch.cuda.binary.codemap import CodeMap, Moved
from gwatch.cuda.binary.debugregs import move_ranges, read_ranges, write_ranges
from gwatch.cuda.binary.dwarf import LineHeader, line_headers
from gwatch.cuda.binary.elf import STT_FUNC, Section
from gwatch.cuda.binary.frames import move_fde, read_fdes
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.lineprogram import Row, Sequence, decode, encode
from gwatch.cuda.binary.lines import moved_rows, start_addresses
from gwatch.errors import UnsupportedError

LINE_SECTIONS = (".debug_line", ".nv_debug_line_sass")
REGISTER_RANGES = ".nv_debug_info_reg_sass"


class DebugMover:
    """Rewrites ``.debug_line``, ``.nv_debug_line_sass`` (place map) and ``.debug_frame`` (target map)."""

    def __init__(self, code: CodeMap, editor: Editor, moved: Moved) -> None:
        self.code, self.editor, self.moved = code, editor, moved
        self.elf = code.elf
        self.starts_moved: dict[tuple[int, int], int] = {}
        """(section index, old position of a start address) -> new position, for the relocations that apply
        there."""

    def move_lines(self) -> None:
        for name in LINE_SECTIONS:
            section = self.elf.find(name)
            if section is None or not section.in_file:
                continue
            content = self.elf.content(section)
            starts = start_addresses(self.elf, section)
            headers = line_headers(content, name)
            if len(headers) > 1 and self.elf.find(".debug_info") is not None:
                raise UnsupportedError(
                    "debug-line", f"{name} has {len(headers)} units that .debug_info refers to"
                )
            out = bytearray()
            for header in headers:
                out += self._move_unit(section, content, header, starts, len(out))
            self.editor.replace(section.index, bytes(out))

    def _move_unit(
        self,
        section: Section,
        content: bytes,
        header: LineHeader,
        starts: dict[int, tuple[int, int]],
        at: int,
    ) -> bytes:
        """One unit with its program rewritten, to stand at byte ``at`` of the new section."""
        unit = bytearray(content[header.offset : header.program])
        done = header.program
        sequences = decode(content, header, section.name)
        mine = [s for s in sequences if self.code.owns(starts.get(s.address_at))]
        if len(mine) > 1 and self.code.copies > 1:
            raise UnsupportedError(
                "debug-line", f"{section.name} describes {self.code.name} in {len(mine)} pieces"
            )
        for sequence in sequences:
            unit += content[done : sequence.start]
            fresh = content[sequence.start : sequence.stop]
            moved_at = at + len(unit) + sequence.address_at - sequence.start
            rows = (
                self._move_rows(sequence, starts[sequence.address_at], section) if sequence in mine else None
            )
            if rows is not None and rows != sequence.rows:
                fresh = encode(rows, 0, header)
                moved_at = at + len(unit) + 3
                self.moved.add(f"{section.name} rows", len(sequence.rows))
            if sequence.address_at >= 0:
                self.starts_moved[section.index, sequence.address_at] = moved_at
            unit += fresh
            done = sequence.stop
        unit += content[done : header.end]
        size = len(unit) - header.length_size
        if header.length_size == 4:
            struct.pack_into("<I", unit, 0, size)
        else:
            struct.pack_into("<Q", unit, 4, size)
        return bytes(unit)

    def _move_rows(self, sequence: Sequence, start: tuple[int, int], section: Section) -> list[Row]:
        symbol, addend = start
        base = self.elf.symbols[symbol].value + addend
        if not sequence.regular or addend or not sequence.rows or not sequence.rows[-1].end:
            why = sequence.why or ("a relocated offset" if addend else "no rows")
            raise UnsupportedError("debug-line", f"{section.name} describes {self.code.name} with {why}")
        new_base = self.code.new_value(symbol)
        last = base + sequence.rows[-1].address
        maps = []
        ends = []
        for copy in range(self.code.copies):
            where = {}
            for row in sequence.rows[:-1]:
                code = base + row.address
                moved = (
                    self.code.end_of(copy)
                    if code == self.code.old_size
                    else self.code.row_of(code, copy, f"a row of {section.name}")
                )
                where[row.address] = moved - new_base
            maps.append(where)
            ends.append(self.code.span_end(base, last) - new_base)
        return moved_rows(sequence.rows, ends, maps)

    def move_frames(self) -> None:
        section = self.elf.find(".debug_frame")
        if section is None or not section.in_file:
            return
        content = self.elf.content(section)
        starts = start_addresses(self.elf, section)
        data = bytearray(content)
        for fde in read_fdes(content, section.name):
            start = starts.get(fde.start_at)
            # Entries of functions that the linker dropped stay behind without a relocation: they describe no
            # code.
            if start is not None and self.code.owns(start):
                begin = self.elf.symbols[start[0]].value + start[1]
                end = begin + fde.length

                def target(offset: int, begin: int = begin, end: int = end) -> int:
                    return self.code.span_end(begin, end) if offset == end else self.code.target_of(offset)

                move_fde(data, fde, begin, target, section.name)
                self.moved.add("frame entry")
        self.editor.replace(section.index, bytes(data))

    def move_registers(self) -> None:
        """Where ``-G`` code keeps PTX registers. Raises UnsupportedError [debug-registers] for an unknown layout."""
        section = self.elf.find(REGISTER_RANGES)
        if section is None or not section.in_file:
            return
        starts = {
            symbol.name.encode(): symbol.value
            for symbol in self.elf.symbols
            if symbol.kind == STT_FUNC and symbol.section == self.code.section.index
        }
        known = {symbol.name.encode() for symbol in self.elf.symbols if symbol.kind == STT_FUNC}
        functions = []
        for name, ranges in read_ranges(self.elf.content(section)):
            if name not in known:
                raise UnsupportedError(
                    "debug-registers",
                    f"{section.name} describes {name.decode('utf-8', 'backslashreplace')}, which is no function",
                )
            if name in starts:
                self.moved.add("register range", len(ranges))
                ranges = move_ranges(ranges, starts[name], self.code)
            functions.append((name, ranges))
        self.editor.replace(section.index, write_ranges(functions))
