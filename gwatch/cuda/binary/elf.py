"""ELF64 containers as CUDA uses them: a strict, bounded reader.

An :class:`Elf` checks everything it will later rely on (table bounds, section extents, overlaps, name and
symbol indices), in time linear in the file, and allocates nothing in proportion to a number found in the file
before that number was compared with the file's size. Every defect is a :class:`~gwatch.errors.CubinError`.

Layout facts: System V ABI (ELF64), ``EM_CUDA`` = 190. Read with :mod:`struct`, because a rewriter needs the
exact byte position of each field; the tests compare every result with pyelftools'.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, replace
from functools import cached_property

from gwatch.errors import CubinError

EM_CUDA = 190
SHN_LORESERVE = 0xFF00
SHN_XINDEX = 0xFFFF
SHT_SYMTAB = 2
SHT_RELA = 4
SHT_NOTE = 7
SHT_NOBITS = 8
SHT_REL = 9
SHT_PROGBITS = 1
ET_REL = 1
ET_EXEC = 2
NO_BYTES = frozenset({0, SHT_NOBITS, 0x70000007, 0x7000000A, 0x70000015})
"""Section types without file contents: NULL, NOBITS and CUDA's own for .nv.global, .nv.shared, reserved
shared memory (seen in relocatable objects and Mercury copies)."""
MERCURY = (".nv.merc.", ".nv.capmerc.")
"""How the names of sections start that repeat another section for a second form of the code."""
SHF_ALLOC = 2
SHF_EXECINSTR = 4
PT_LOAD = 1
STT_OBJECT = 1
STT_FUNC = 2
STT_SECTION = 3
STB_GLOBAL = 1
STO_CUDA_ENTRY = 0x10
"""Bit of ``st_other`` that marks a kernel (entry) symbol."""

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
SHDR = struct.Struct("<IIQQQQIIQQ")
PHDR = struct.Struct("<IIQQQQQQ")
SYM = struct.Struct("<IBBHQQ")
REL = struct.Struct("<QQ")
RELA = struct.Struct("<QQq")


@dataclass(frozen=True, slots=True)
class Header:
    """The ELF file header; ``shnum`` and ``shstrndx`` are already resolved through section 0 where they
    overflow."""

    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    phoff: int
    shoff: int
    flags: int
    ehsize: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int

    @property
    def abi_version(self) -> int:
        return self.ident[8]


@dataclass(frozen=True, slots=True)
class Section:
    """One section header, with its resolved name. Offsets and sizes are in bytes."""

    index: int
    name: str
    name_offset: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int

    @property
    def in_file(self) -> bool:
        """Whether the section occupies bytes of the file."""
        return self.index != 0 and self.type not in NO_BYTES and self.size > 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header. Offsets and sizes are in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    file_size: int
    memory_size: int
    align: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One ``.symtab`` entry. ``value`` is an offset into section ``section``."""

    index: int
    name: str
    value: int
    size: int
    info: int
    other: int
    section: int

    @property
    def kind(self) -> int:
        return self.info & 0xF

    @property
    def binding(self) -> int:
        return self.info >> 4


@dataclass(frozen=True, slots=True)
class Relocation:
    """One relocation of a REL or RELA section.

    ``offset`` is a byte offset into the section it applies to; ``addend`` is None where the section is REL
    (the addend then sits in the bytes at ``offset``).
    """

    offset: int
    type: int
    symbol: int
    addend: int | None


def _string(table: bytes, offset: int, what: str) -> str:
    end = table.find(b"\0", offset) if offset < len(table) else -1
    if end < 0:
        raise CubinError("elf-string", f"{what} names byte {offset} of a string table of {len(table)} bytes")
    return table[offset:end].decode("utf-8", "backslashreplace")


class Elf:
    """A parsed ELF64 image. Immutable: edits go through :class:`gwatch.cuda.binary.layout.Editor`."""

    def __init__(self, data: bytes, what: str = "cubin") -> None:
        """Parse ``data``; ``what`` names the image in error messages. Raises CubinError."""
        self.data = bytes(data)
        self.what = what
        self.header = self._read_header()
        self.sections = self._read_sections()
        self.segments = self._read_segments()
        self._check_extents()

    # reading ------------------------------------------------------------------------------------------------

    def _read_header(self) -> Header:
        data, what = self.data, self.what
        if len(data) < EHDR.size:
            raise CubinError(
                "elf-truncated",
                f"{what}: {len(data)} bytes are too few for an ELF header",
                "is the file complete?",
            )
        fields = EHDR.unpack_from(data)
        ident = fields[0]
        if ident[:4] != b"\x7fELF":
            raise CubinError(
                "elf-magic", f"{what}: not an ELF file (starts with {ident[:4].hex()})",
                "a cubin is what nvcc -cubin writes; for fatbins, libraries and archives extract it first",
            )  # fmt: skip
        if ident[4] != 2:
            raise CubinError("elf-class", f"{what}: ELF class {ident[4]}; cubins are 64-bit (class 2)")
        if ident[5] != 1:
            raise CubinError(
                "elf-endian", f"{what}: ELF data encoding {ident[5]}; cubins are little-endian (1)"
            )
        header = Header(*fields)
        if header.machine != EM_CUDA:
            raise CubinError(
                "elf-machine", f"{what}: ELF machine {header.machine}, not CUDA ({EM_CUDA})",
                "this is host code; extract the cubin embedded in it first",
            )  # fmt: skip
        if header.ehsize != EHDR.size:
            raise CubinError("elf-header", f"{what}: ELF header size {header.ehsize}, expected {EHDR.size}")
        if header.shoff and header.shentsize != SHDR.size:
            raise CubinError(
                "elf-header", f"{what}: section header size {header.shentsize}, expected {SHDR.size}"
            )
        if header.phnum and header.phentsize != PHDR.size:
            raise CubinError(
                "elf-header", f"{what}: program header size {header.phentsize}, expected {PHDR.size}"
            )
        if not header.shoff:
            raise CubinError("elf-sections", f"{what}: no section header table")
        self._check_range(header.shoff, SHDR.size, "section header 0")
        first = SHDR.unpack_from(data, header.shoff)
        shnum = header.shnum or first[5]
        shstrndx = first[6] if header.shstrndx == SHN_XINDEX else header.shstrndx
        self._check_range(header.shoff, shnum * SHDR.size, f"table of {shnum} section headers")
        if header.phnum:
            self._check_range(
                header.phoff, header.phnum * PHDR.size, f"table of {header.phnum} program headers"
            )
        if not 0 < shstrndx < shnum:
            raise CubinError(
                "elf-sections", f"{what}: section name table index {shstrndx} of {shnum} sections"
            )
        return replace(header, shnum=shnum, shstrndx=shstrndx)

    def _check_range(self, offset: int, size: int, label: str) -> None:
        if offset + size > len(self.data):
            raise CubinError(
                "elf-bounds",
                f"{self.what}: {label} at {offset:#x}+{size:#x} lies outside the file ({len(self.data):#x} bytes)",
                "the file is truncated or damaged",
            )

    def _read_sections(self) -> tuple[Section, ...]:
        header = self.header
        end = header.shoff + header.shnum * SHDR.size
        raw = list(SHDR.iter_unpack(self.data[header.shoff : end]))
        for index, fields in enumerate(raw):
            if index and fields[1] not in NO_BYTES:
                self._check_range(fields[4], fields[5], f"section {index}")
        names = raw[header.shstrndx]
        if names[1] in NO_BYTES:
            raise CubinError("elf-sections", f"{self.what}: the section name table has no contents")
        table = self.data[names[4] : names[4] + names[5]]
        sections = []
        for index, fields in enumerate(raw):
            name = _string(table, fields[0], f"{self.what}: section {index}") if index else ""
            sections.append(Section(index, name, *fields))
        return tuple(sections)

    def _read_segments(self) -> tuple[Segment, ...]:
        header = self.header
        if not header.phnum:
            return ()
        raw = self.data[header.phoff : header.phoff + header.phnum * PHDR.size]
        segments = tuple(Segment(*fields) for fields in PHDR.iter_unpack(raw))
        for index, segment in enumerate(segments):
            self._check_range(segment.offset, segment.file_size, f"program header {index}")
        return segments

    def _check_extents(self) -> None:
        header = self.header
        extents = [
            (0, EHDR.size, "the ELF header"),
            (header.shoff, header.shnum * SHDR.size, "the section headers"),
        ]
        if header.phnum:
            extents.append((header.phoff, header.phnum * PHDR.size, "the program headers"))
        shared: dict[tuple[int, int], bool] = {}
        for section in self.sections:
            if section.align & (section.align - 1):
                raise CubinError(
                    "elf-align", f"{self.what}: section {section.name} has alignment {section.align}"
                )
            if not section.in_file:
                continue
            # Mercury sections share the bytes of the section they mirror: that extent counts once.
            extent, own = (section.offset, section.size), not section.name.startswith(MERCURY)
            if extent not in shared or (own and shared[extent]):
                extents.append((*extent, f"section {section.name}"))
            shared[extent] = own or shared.get(extent, False)
        extents.sort()
        for (start, size, name), (following, _, other) in itertools.pairwise(extents):
            if start + size > following:
                raise CubinError(
                    "elf-overlap",
                    f"{self.what}: {name} at {start:#x}+{size:#x} overlaps {other} at {following:#x}",
                )

    # access -------------------------------------------------------------------------------------------------

    def content(self, section: Section | int) -> bytes:
        """The bytes of a section (empty for NOBITS)."""
        if isinstance(section, int):
            section = self.section(section)
        return self.data[section.offset : section.offset + section.size] if section.in_file else b""

    def section(self, index: int) -> Section:
        """Section by index. Raises CubinError [elf-index]."""
        if not 0 <= index < len(self.sections):
            raise CubinError("elf-index", f"{self.what}: section {index} of {len(self.sections)}")
        return self.sections[index]

    def find(self, name: str) -> Section | None:
        """The first section of that name, or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Section]:
        return {section.name: section for section in reversed(self.sections)}

    @cached_property
    def symbol_table(self) -> Section | None:
        """The ``.symtab`` section, or None."""
        return next((s for s in self.sections if s.type == SHT_SYMTAB), None)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """All symbols of ``.symtab`` in index order."""
        table = self.symbol_table
        if table is None:
            return ()
        if table.entry_size != SYM.size or table.size % SYM.size:
            raise CubinError(
                "elf-symbol", f"{self.what}: symbol table of {table.size} bytes, {table.entry_size} each"
            )
        strings = self.section(table.link)
        if strings.type in NO_BYTES:
            raise CubinError(
                "elf-symbol", f"{self.what}: the symbol table's string section {table.link} is empty"
            )
        names = self.content(strings)
        symbols = []
        for index, (name, info, other, shndx, value, size) in enumerate(SYM.iter_unpack(self.content(table))):
            if SHN_LORESERVE > shndx >= len(self.sections):
                raise CubinError("elf-symbol", f"{self.what}: symbol {index} names section {shndx}")
            label = _string(names, name, f"{self.what}: symbol {index}")
            if not label and info & 0xF == STT_SECTION and shndx < len(self.sections):
                label = self.sections[shndx].name
            symbols.append(Symbol(index, label, value, size, info, other, shndx))
        return tuple(symbols)

    def relocation_sections(self, target: int | None = None) -> list[Section]:
        """REL/RELA sections, all or those that apply to section ``target``."""
        kinds = (SHT_REL, SHT_RELA)
        return [s for s in self.sections if s.type in kinds and (target is None or s.info == target)]

    def relocations(self, section: Section) -> tuple[Relocation, ...]:
        """The entries of a REL or RELA section, checked against the symbol table and the section they apply
        to."""
        layout = RELA if section.type == SHT_RELA else REL
        if section.size % layout.size or (section.size and section.entry_size != layout.size):
            raise CubinError("elf-relocation", f"{self.what}: {section.name} is {section.size} bytes long")
        target = self.section(section.info)
        count = len(self.symbols)
        entries = []
        for fields in layout.iter_unpack(self.content(section)):
            symbol, kind = fields[1] >> 32, fields[1] & 0xFFFFFFFF
            if symbol >= count:
                raise CubinError(
                    "elf-relocation", f"{self.what}: {section.name} names symbol {symbol} of {count}"
                )
            if fields[0] >= target.size:
                raise CubinError(
                    "elf-relocation",
                    f"{self.what}: {section.name} names byte {fields[0]:#x} of {target.name}",
                )
            entries.append(
                Relocation(fields[0], kind, symbol, fields[2] if section.type == SHT_RELA else None)
            )
        return tuple(entries)
