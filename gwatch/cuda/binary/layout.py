"""Writing ELF images: edit sections of a parsed image and lay the file out again.

The layout rule keeps everything where it was unless something before it grew. The file is seen as an ordered
list of
*extents* (headers, tables, section contents) with gaps between them. An extent that outgrows its room pushes
all that follows by one multiple of the largest alignment in the file, so each following offset keeps its
alignment, odd or not, and its distance to its neighbours. Gaps are copied. An image without edits is written
back byte for byte.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, replace

from gwatch.cuda.binary.elf import (
    EHDR,
    PHDR,
    SHDR,
    SHN_LORESERVE,
    SYM,
    Elf,
    Section,
    Segment,
    Symbol,
)
from gwatch.errors import CubinError

MAX_ALIGN = 1 << 16
"""A larger section alignment is refused: following it would blow the file up."""


@dataclass(slots=True)
class _Extent:
    """A file range and its new contents."""

    offset: int
    size: int
    content: bytes


class Editor:
    """Collects edits of an :class:`~gwatch.cuda.binary.elf.Elf` and writes the new image.

    Section and symbol indices never change: sections and symbols are only appended.
    """

    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self._sections: list[Section] = list(elf.sections)
        self._segments: list[Segment] = list(elf.segments)
        self._new_segments: dict[int, int] = {}
        self._symbols: list[Symbol] | None = None
        self._new_names: dict[int, str] = {}
        self._contents: dict[tuple[int, int], bytes] = {}
        self._appended: list[tuple[int, bytes, int | None]] = []
        self._symbol_names: dict[int, str] = {}

    # what to change -----------------------------------------------------------------------------------------

    def content(self, index: int) -> bytes:
        """Contents of a section of the original image, as edited so far."""
        original = self.elf.section(index)
        fresh = self._contents.get((original.offset, original.size))
        return self.elf.content(original) if fresh is None else fresh

    def replace(self, index: int, content: bytes) -> None:
        """Replace the contents of section ``index``; sections that share its bytes (Mercury mirrors) follow.

        Raises CubinError [elf-nobits] for a section that occupies no bytes.
        """
        section = self.elf.section(index)
        if not section.in_file:
            raise CubinError("elf-nobits", f"{self.elf.what}: section {section.name} has no bytes to replace")
        self._contents[section.offset, section.size] = bytes(content)
        for other in self.elf.sections:
            if other.in_file and (other.offset, other.size) == (section.offset, section.size):
                self._sections[other.index] = replace(self._sections[other.index], size=len(content))

    def set_section(self, index: int, **fields: int) -> None:
        """Change header fields (``info``, ``link``, ``flags``, ``align`` ...) of a section."""
        self._sections[index] = replace(self._sections[index], **fields)  # type: ignore[arg-type]

    def set_symbol(self, index: int, *, value: int, size: int) -> None:
        """Move or resize a symbol."""
        symbols = self._symbol_list()
        symbols[index] = replace(symbols[index], value=value, size=size)

    def append_symbol(self, name: str, *, value: int, size: int, info: int, other: int, section: int) -> int:
        """Append a symbol at the end of ``.symtab`` (indices of others do not change); returns its index.

        Only a non-local symbol may stand there (locals precede globals). Raises CubinError [elf-symbol].
        """
        if info >> 4 == 0:
            raise CubinError("elf-symbol", f"local symbol {name} cannot be appended behind global symbols")
        symbols = self._symbol_list()
        symbols.append(Symbol(len(symbols), name, value, size, info, other, section))
        self._symbol_names[len(symbols) - 1] = name
        return len(symbols) - 1

    def append_section(self, name: str, content: bytes, *, kind: int, flags: int, align: int, link: int = 0,
                       info: int = 0, entry_size: int = 0, after: int | None = None) -> int:  # fmt: skip
        """Append a section header; the contents go to the end of the file, or behind section ``after``.

        Returns the new section's index. Raises CubinError [elf-sections] when there is no index left.
        """
        index = len(self._sections)
        if index >= SHN_LORESERVE - 1:
            raise CubinError("elf-sections", f"{self.elf.what}: no room for another section ({index} exist)")
        self._sections.append(
            Section(index, name, 0, kind, flags, 0, 0, len(content), link, info, align, entry_size)
        )
        self._appended.append((index, bytes(content), after))
        self._new_names[index] = name
        return index

    def append_segment(self, kind: int, flags: int, section: int, align: int = 8) -> None:
        """Append a program header that covers one appended section (resolved when written)."""
        self._new_segments[len(self._segments)] = section
        self._segments.append(Segment(kind, flags, 0, 0, 0, 0, 0, align))

    def _symbol_list(self) -> list[Symbol]:
        if self._symbols is None:
            if self.elf.symbol_table is None:
                raise CubinError("elf-symbol", f"{self.elf.what}: no symbol table")
            self._symbols = list(self.elf.symbols)
        return self._symbols

    # writing ------------------------------------------------------------------------------------------------

    def write(self) -> bytes:
        """Lay the image out. The result has been parsed again: every bound and overlap check holds for it.

        Raises CubinError [elf-range] when a header field that grows with its contents has no room left.
        """
        try:
            self._write_names()
            self._write_symbols()
            image = _Layout(
                self.elf, self._sections, self._segments, self._new_segments, self._contents, self._appended
            ).build()
        except struct.error as error:
            raise CubinError(
                "elf-range", f"{self.elf.what}: an offset, size or address exceeds its field: {error}"
            ) from None
        Elf(image, self.elf.what)
        return image

    def _grow_strings(self, table: int, names: dict[int, str]) -> dict[int, int]:
        """Append names to a string table; offsets by key."""
        content = bytearray(self.content(table))
        offsets = {}
        for key, name in names.items():
            offsets[key] = len(content)
            content += name.encode() + b"\0"
        if names:
            self.replace(table, bytes(content))
        return offsets

    def _write_names(self) -> None:
        shstrtab = self.elf.header.shstrndx
        for index, offset in self._grow_strings(shstrtab, self._new_names).items():
            self._sections[index] = replace(self._sections[index], name_offset=offset)
        self._new_names = {}

    def _write_symbols(self) -> None:
        table = self.elf.symbol_table
        if self._symbols is None or table is None:
            return
        names = self._grow_strings(table.link, self._symbol_names)
        self._symbol_names = {}
        content = bytearray(self.elf.content(table))
        for symbol in self._symbols:
            at = symbol.index * SYM.size
            if symbol.index < len(self.elf.symbols):
                if symbol != self.elf.symbols[symbol.index]:
                    struct.pack_into("<QQ", content, at + 8, symbol.value, symbol.size)
            else:
                content += SYM.pack(
                    names[symbol.index], symbol.info, symbol.other, symbol.section, symbol.value, symbol.size
                )
        self.replace(table.index, bytes(content))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class _Layout:
    """One run of the layout rule."""

    def __init__(
        self,
        elf: Elf,
        sections: list[Section],
        segments: list[Segment],
        new_segments: dict[int, int],
        contents: dict[tuple[int, int], bytes],
        appended: list[tuple[int, bytes, int | None]],
    ) -> None:
        self.elf, self.sections, self.segments, self.new_segments = elf, sections, segments, new_segments
        self.contents, self.appended = contents, appended
        header = elf.header
        aligns = [s.align for s in sections if s.index >= len(elf.sections) or s.in_file]
        self.step = max([8, *aligns])
        if self.step > MAX_ALIGN:
            raise CubinError(
                "elf-align", f"{elf.what}: a section alignment of {self.step} bytes is not supported"
            )
        self.table_room = header.shnum * SHDR.size
        self.offsets: dict[int, int] = {}

    def build(self) -> bytes:
        elf, header = self.elf, self.elf.header
        extents = [_Extent(0, EHDR.size, b"\0" * EHDR.size)]
        extents.append(_Extent(header.shoff, self.table_room, b"\0" * (len(self.sections) * SHDR.size)))
        if header.phnum:
            extents.append(
                _Extent(header.phoff, header.phnum * PHDR.size, b"\0" * (len(self.segments) * PHDR.size))
            )
        ranges = dict.fromkeys((s.offset, s.size) for s in elf.sections if s.in_file)
        for offset, size in ranges:
            fresh = self.contents.get((offset, size))
            extents.append(
                _Extent(offset, size, elf.data[offset : offset + size] if fresh is None else fresh)
            )
        extents.sort(key=lambda extent: extent.offset)
        behind: dict[int, list[tuple[int, bytes]]] = {}
        tail: list[tuple[int, bytes]] = []
        for index, content, after in self.appended:
            anchor = None if after is None else elf.section(after)
            if anchor is not None and anchor.in_file:
                behind.setdefault(anchor.offset, []).append((index, content))
            else:
                tail.append((index, content))
        out = bytearray()
        shift = 0
        starts: list[int] = []
        shifts: list[int] = []
        end_of_previous = 0
        for position, extent in enumerate(extents):
            out += elf.data[end_of_previous : extent.offset]
            starts.append(extent.offset)
            shifts.append(shift)
            out += extent.content
            for index, content in behind.get(extent.offset, []):
                self._place(out, index, content)
            end_of_previous = extent.offset + extent.size
            surplus = len(out) - (end_of_previous + shift)
            if surplus < 0:
                out += bytes(-surplus)
            elif surplus > 0:
                # Bytes behind the last extent follow it directly; in between, later offsets keep their
                # alignment.
                grow = _round_up(surplus, self.step) if position + 1 < len(extents) else surplus
                out += bytes(grow - surplus)
                shift += grow
        out += elf.data[end_of_previous:]
        for index, content in tail:
            self._place(out, index, content)
        self.starts, self.shifts = starts, shifts
        self.ends = [extent.offset + extent.size for extent in extents]
        self._write_tables(out)
        return bytes(out)

    def _place(self, out: bytearray, index: int, content: bytes) -> None:
        out += bytes(-len(out) % max(1, self.sections[index].align))
        self.offsets[index] = len(out)
        out += content

    def _moved(self, offset: int) -> int:
        """New place of an old file offset that starts something; one outside the file stays."""
        if offset > len(self.elf.data):
            return offset
        position = bisect_right(self.starts, offset) - 1
        if offset == self.starts[position] or offset < self.ends[position]:
            return offset + self.shifts[position]
        following = position + 1
        return offset + (self.shifts[following] if following < len(self.shifts) else self.shifts[position])

    def _write_tables(self, out: bytearray) -> None:
        elf, header = self.elf, self.elf.header
        sections = []
        for section in self.sections:
            known = section.index < len(elf.sections)
            offset = self._moved(section.offset) if known else self.offsets[section.index]
            sections.append(replace(section, offset=offset))
        shoff = self._moved(header.shoff)
        for section in sections:
            SHDR.pack_into(
                out, shoff + section.index * SHDR.size, section.name_offset, section.type, section.flags,
                section.address, section.offset, section.size, section.link, section.info, section.align,
                section.entry_size,
            )  # fmt: skip
        count = len(sections)
        raw_header = list(EHDR.unpack_from(elf.data))
        if raw_header[12]:
            raw_header[12] = count
        else:
            # Extended numbering: the size field of section 0 holds the count.
            struct.pack_into("<Q", out, shoff + 32, count)
        phoff = self._moved(header.phoff) if header.phnum else header.phoff
        raw_header[5], raw_header[6] = phoff, shoff
        raw_header[10] = len(self.segments) if header.phnum else raw_header[10]
        EHDR.pack_into(out, 0, *raw_header)
        for position, segment in enumerate(self.segments):
            moved = self._segment(position, segment, sections, phoff)
            PHDR.pack_into(
                out, phoff + position * PHDR.size, moved.type, moved.flags, moved.offset, moved.vaddr,
                moved.paddr, moved.file_size, moved.memory_size, moved.align,
            )  # fmt: skip

    def _segment(self, position: int, segment: Segment, sections: list[Section], phoff: int) -> Segment:
        header = self.elf.header
        if position in self.new_segments:
            section = sections[self.new_segments[position]]
            return replace(segment, offset=section.offset, file_size=section.size, memory_size=section.size)
        end = segment.offset + segment.file_size
        if segment.offset == header.phoff and segment.file_size == header.phnum * PHDR.size:
            size = len(self.segments) * PHDR.size
            return replace(segment, offset=phoff, file_size=size, memory_size=size)
        inside = [s for s in self.elf.sections if s.in_file and segment.offset <= s.offset < end]
        offset = self._moved(segment.offset)
        if not inside:
            return replace(segment, offset=offset)
        last = max(inside, key=lambda s: s.offset)
        slack = end - (last.offset + last.size)
        new_end = sections[last.index].offset + sections[last.index].size
        anchored = {old.offset for old in inside}
        for index, _, after in self.appended:
            if after is not None and self.elf.section(after).offset in anchored:
                new_end = max(new_end, sections[index].offset + sections[index].size)
        size = new_end + slack - offset
        return replace(
            segment,
            offset=offset,
            file_size=size,
            memory_size=max(0, segment.memory_size + size - segment.file_size),
        )
