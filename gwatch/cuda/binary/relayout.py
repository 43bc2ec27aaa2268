"""Moving everything that holds a code address when a code section grows.

The caller supplies the new code of one section and two kinds of maps from old instruction index to new index:

* *target*: the first instruction inserted before i. Control-flow targets, return addresses, function starts,
  frames.
* *place*: i itself, once per copy of the code in the new text. Offset attributes, relocation places, line
  rows.

Every holder known to gwatch is rewritten; a holder whose meaning isn't known is refused by name before
anything is written. See README.md of this folder for the table of holders.
"""

from __future__ import annotations

import struct

import numpy as np

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.codemap import TEXT_ALIGN, CodeMap, Moved, TextEdit
from gwatch.cuda.binary.debugmove import LINE_SECTIONS, REGISTER_RANGES, DebugMover
from gwatch.cuda.binary.debugregs import read_ranges
from gwatch.cuda.binary.elf import (
    ET_EXEC,
    REL,
    RELA,
    SHF_EXECINSTR,
    SHT_RELA,
    STT_FUNC,
    STT_SECTION,
    Elf,
    Relocation,
    Section,
)
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.binary.jumptables import find_tables, moved_bank, moved_records
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.mercury import check_mercury, mercury_sections, without_mercury
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import CubinError, UnsupportedError

__all__ = ["TEXT_ALIGN", "Moved", "TextEdit", "apply_edit", "check_supported"]

MAX_REGISTERS = 255
_EXIT_OPCODE = 0x94D
_R_64 = 2
_R_LOW, _R_HIGH = 56, 57
_R_CALL_OLD, _R_CALL = 58, 75
_ADDEND_TYPES = frozenset({_R_64, _R_LOW, _R_HIGH, _R_CALL})
"""RELA types whose addend is a plain byte offset from the symbol."""
_DEBUG = (".debug_", ".nv_debug")
_PLAIN_DEBUG = frozenset(
    {".debug_frame", ".debug_str", ".debug_abbrev", ".debug_info", ".debug_loc", ".debug_macinfo",
     ".debug_pubnames", ".nv_debug_ptx_txt", ".nv_debug_info_reg_type", REGISTER_RANGES, *LINE_SECTIONS}
)  # fmt: skip
"""Debug sections whose code addresses are all relocated (or that hold none)."""
_PTX_TEXT = ".nv_debug_ptx_txt."
"""Linked cubins have a PTX text per object, with a number behind its name."""


def apply_edit(image: bytes, edit: TextEdit, moved: Moved | None = None) -> bytes:
    """The image with the section's code replaced and every holder of a code address moved.

    ``moved``, when given, is filled with counts per kind of holder. Raises UnsupportedError ([mercury],
    [jump-table], [nvinfo-unknown], [debug-registers], [debug-section], [debug-info], [debug-line], [debug-frame],
    [relocation-type], [relocatable-object], [register-limit]) for what gwatch does not move, CubinError for
    damage or impossible maps.
    """
    given = Elf(image)
    check_supported(given, edit.section_index)
    counts = moved or Moved()
    counts.add("Mercury section left out", len(mercury_sections(given)))
    mover = _Mover(Elf(without_mercury(image)), edit, counts)
    mover.move_all()
    result = mover.editor.write()
    mover.verify(Elf(result))
    return result


def check_supported(elf: Elf, section_index: int) -> None:
    """Raise by name what keeps the code of a section from being moved, before any work is done on it.

    Raises what :func:`apply_edit` raises for the container; the maps and the new text are not looked at.
    """
    section = elf.section(section_index)
    name = section.name.removeprefix(".text.")
    if not (section.in_file and section.flags & SHF_EXECINSTR):
        raise CubinError("code-section", f"section {section_index} ({section.name}) holds no code")
    if elf.header.type != ET_EXEC:
        raise UnsupportedError(
            "relocatable-object",
            f"{name} is in a relocatable object, which no driver runs as it is: linking settles its constants, "
            "registers and addresses",
            "link it first (nvlink), then change the loadable cubin",
        )  # fmt: skip
    for other in elf.sections:
        if other.name.startswith((".nv.uft", ".nv.udt")) and other.size:
            raise UnsupportedError("function-table", f"the cubin has a unified function table ({other.name})")
        if other.name == REGISTER_RANGES and other.in_file:
            read_ranges(elf.content(other))
        plain = other.name in _PLAIN_DEBUG or other.name.startswith(_PTX_TEXT)
        if other.in_file and other.name.startswith(_DEBUG) and not plain:
            raise UnsupportedError("debug-section", f"gwatch does not move code addresses in {other.name}")
    check_mercury(elf)
    _check_debug_info(elf)
    attributes = _attributes(elf, section_index)
    nvinfo.check_movable(attributes, name)
    find_tables(elf, section_index, attributes)


def _check_debug_info(elf: Elf) -> None:
    """DWARF 2 and 3 hold code addresses as relocated words only; later versions also as plain lengths."""
    section = elf.find(".debug_info")
    content = elf.content(section) if section is not None else b""
    at = 0
    while at + 6 <= len(content):
        length, version = struct.unpack_from("<IH", content, at)
        if not 2 <= version <= 3:
            raise UnsupportedError("debug-info", f"gwatch does not move code addresses in DWARF {version}")
        at += 4 + length


def _info_section(elf: Elf, section_index: int) -> Section | None:
    for section in elf.sections:
        if section.info == section_index and section.name.startswith(".nv.info."):
            return section
    return None


def _attributes(elf: Elf, section_index: int) -> tuple[nvinfo.Attribute, ...]:
    section = _info_section(elf, section_index)
    return nvinfo.parse(elf.content(section), section.name) if section is not None else ()


class _Mover:
    def __init__(self, elf: Elf, edit: TextEdit, moved: Moved) -> None:
        self.elf, self.edit, self.moved = elf, edit, moved
        self.editor = Editor(elf)
        self.section = elf.section(edit.section_index)
        self.code = CodeMap(elf, edit)
        self.attributes = _attributes(elf, edit.section_index)
        self.name = self.code.name
        self.debug = DebugMover(self.code, self.editor, moved)

    # moving -------------------------------------------------------------------------------------------------

    def move_all(self) -> None:
        self.editor.replace(self.section.index, self.edit.text)
        self.debug.move_lines()
        self.debug.move_frames()
        self.debug.move_registers()
        self._move_relocations()
        self._move_symbols()
        self._move_attributes()
        self._move_tables()
        if self.edit.register_count is not None:
            self._set_registers(self.edit.register_count)

    def _move_attributes(self) -> None:
        section = _info_section(self.elf, self.section.index)
        if section is None or not section.in_file:
            return
        fresh, counts = nvinfo.move(
            self.attributes,
            lambda offset, copy: self.code.place_of(offset, copy, "an attribute"),
            self.code.copies,
        )
        for name, count in counts.items():
            self.moved.add(name, count)
        fresh = tuple(self._moved_attribute(attribute) for attribute in fresh)
        self.editor.replace(section.index, nvinfo.serialize(fresh))

    def _moved_attribute(self, attribute: nvinfo.Attribute) -> nvinfo.Attribute:
        """The attributes that are no plain list of offsets."""
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS:
            self.moved.add("jump table", len(nvinfo.indirect_branches(attribute)))
            return moved_records(attribute, self.code)
        count = self.edit.register_count
        if (
            attribute.code == Attr.MAXREG_COUNT
            and attribute.format != 4
            and count
            and attribute.value < count
        ):
            # Never below REGCOUNT in compiler output (5,700 kernels looked at): keep it so.
            self.moved.add("MAXREG_COUNT")
            return attribute._replace(value=count)
        return attribute

    def _move_tables(self) -> None:
        tables = find_tables(self.elf, self.section.index, self.attributes)
        if tables is not None:
            fresh = moved_bank(tables, self.elf.content(tables.section), self.code)
            self.editor.replace(tables.section.index, fresh)

    def _move_symbols(self) -> None:
        for symbol in self.elf.symbols:
            if symbol.section != self.section.index or symbol.kind == STT_SECTION:
                continue
            value = self.code.target_of(symbol.value, holder=f"symbol {symbol.name}")
            size = 0
            if symbol.size:
                end = symbol.value + symbol.size
                size = self.code.span_end(symbol.value, end) - value
            if (value, size) != (symbol.value, symbol.size):
                self.editor.set_symbol(symbol.index, value=value, size=size)
                self.moved.add("symbol")

    def _move_relocations(self) -> None:
        for table in self.elf.relocation_sections():
            if not table.in_file:
                continue
            own = table.info == self.section.index
            target = self.elf.section(table.info)
            content = self.elf.content(target)
            entries: list[Relocation] = []
            changed = False
            for copy in range(self.code.copies if own else 1):
                for entry in self.elf.relocations(table):
                    fresh = self._move_relocation(entry, target, content, copy, own)
                    changed |= fresh != entry
                    entries.append(fresh)
            if changed:
                layout = RELA if table.type == SHT_RELA else REL
                packed = bytearray()
                for e in entries:
                    head = (e.offset, e.symbol << 32 | e.type)
                    packed += layout.pack(*head) if e.addend is None else layout.pack(*head, e.addend)
                self.editor.replace(table.index, bytes(packed))

    def _move_relocation(
        self, entry: Relocation, target: Section, content: bytes, copy: int, own: bool
    ) -> Relocation:
        offset, addend = entry.offset, entry.addend
        if own:
            base = offset - offset % INSTRUCTION_SIZE
            offset = self.code.place_of(base, copy, "a relocation") + entry.offset - base
            self.moved.add("relocation place")
        elif target.name in LINE_SECTIONS:
            offset = self.debug.starts_moved.get((target.index, offset), offset)
        symbol = self.elf.symbols[entry.symbol]
        if symbol.section == self.section.index:
            addend = self._move_addend(entry, target, content, copy)
        return Relocation(offset, entry.type, entry.symbol, addend)

    def _move_addend(self, entry: Relocation, target: Section, content: bytes, copy: int) -> int | None:
        symbol = self.elf.symbols[entry.symbol]
        new_value = self.code.new_value(entry.symbol)
        if entry.addend is None:
            self._move_in_place(entry, target, content, new_value)
            return None
        code = symbol.value + entry.addend
        if entry.addend == 0 and (copy == 0 or code == 0):
            return 0
        if entry.type not in _ADDEND_TYPES:
            raise UnsupportedError(
                "relocation-type", f"relocation type {entry.type} in {target.name} points into {self.name}"
            )
        self.moved.add("relocation addend")
        holder = f"a relocation in {target.name}"
        if target.name.startswith(".debug_") and code == self.code.old_size:
            return self.code.span_end(symbol.value, code) - new_value
        return self.code.target_of(code, copy, holder) - new_value

    def _move_in_place(self, entry: Relocation, target: Section, content: bytes, new_value: int) -> None:
        """REL: the addend sits in the bytes. Zero everywhere but in 64-bit debug addresses."""
        symbol = self.elf.symbols[entry.symbol]
        if entry.type == _R_64:
            old = int.from_bytes(content[entry.offset : entry.offset + 8], "little")
            if old and target.name not in LINE_SECTIONS:
                code = symbol.value + old
                fresh = (
                    self.code.span_end(symbol.value, code)
                    if code == self.code.old_size
                    else self.code.target_of(code)
                )
                data = bytearray(self.editor.content(target.index))
                data[entry.offset : entry.offset + 8] = (fresh - new_value).to_bytes(8, "little")
                self.editor.replace(target.index, bytes(data))
                self.moved.add("relocation addend")
            return
        at = entry.offset - entry.offset % INSTRUCTION_SIZE
        word = int.from_bytes(content[at : at + INSTRUCTION_SIZE], "little")
        bits = {_R_LOW: (32, 32), _R_HIGH: (32, 32), _R_CALL_OLD: (34, 47)}.get(entry.type)
        if bits is None or word >> bits[0] & ((1 << bits[1]) - 1):
            raise UnsupportedError(
                "relocation-type", f"relocation type {entry.type} in {target.name} points into {self.name}"
            )

    # registers ----------------------------------------------------------------------------------------------

    def _set_registers(self, count: int) -> None:
        if not 0 < count <= MAX_REGISTERS:
            raise UnsupportedError(
                "register-limit", f"{self.name}: {count} registers per thread, at most {MAX_REGISTERS}"
            )
        info = self.elf.find(".nv.info")
        if info is None:
            raise CubinError("regcount-missing", f"no .nv.info section states the registers of {self.name}")
        symbol = self._code_symbol()
        records = []
        old = None
        for attribute in nvinfo.parse(self.elf.content(info)):
            if attribute.code == Attr.REGCOUNT and attribute.words[:1] == (symbol,):
                old = attribute.words[1]
                attribute = attribute.with_words([attribute.words[0], count])
            records.append(attribute)
        if old is None:
            raise CubinError("regcount-missing", f"no REGCOUNT attribute for {self.name}")
        top = self.section.info >> 24
        if top and top != old:
            raise CubinError(
                "regcount-mismatch", f"{self.name}: REGCOUNT {old}, but the section header says {top}"
            )
        if top:
            self.editor.set_section(self.section.index, info=self.section.info & 0xFFFFFF | count << 24)
        self.editor.replace(info.index, nvinfo.serialize(records))
        self.moved.add("REGCOUNT")

    def _code_symbol(self) -> int | None:
        """Index of the symbol that attributes name the code by: the one in sh_info, else a function at the start."""
        starts = [
            s.index
            for s in self.elf.symbols
            if s.section == self.section.index and s.kind == STT_FUNC and s.value == 0
        ]
        named = self.section.info & 0xFFFFFF
        return named if named in starts else starts[0] if starts else None

    # proof --------------------------------------------------------------------------------------------------

    def verify(self, result: Elf) -> None:
        """Independent look at the result: moved EXIT offsets still name EXIT instructions.

        Raises CubinError [relayout-check].
        """
        section = _info_section(self.elf, self.section.index)
        if section is None:
            return
        words = np.frombuffer(self.edit.text, dtype="<u8").reshape(-1, 2)[:, 0] & 0xFFF
        old = np.frombuffer(self.elf.content(self.section), dtype="<u8").reshape(-1, 2)[:, 0] & 0xFFF
        before = nvinfo.first(self.attributes, Attr.EXIT_INSTR_OFFSETS)
        after = nvinfo.first(nvinfo.parse(result.content(section.index)), Attr.EXIT_INSTR_OFFSETS)
        if before is None or after is None:
            return
        for copy in range(self.code.copies):
            for position, offset in enumerate(before.words):
                fresh = after.words[copy * len(before.words) + position]
                if old[offset // INSTRUCTION_SIZE] == _EXIT_OPCODE != words[fresh // INSTRUCTION_SIZE]:
                    raise CubinError(
                        "relayout-check", f"{self.name}: EXIT at {offset:#x} is not at {fresh:#x} any more"
                    )
