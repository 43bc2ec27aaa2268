"""Adding things to a cubin that its code can refer to: user constants and notes; and what module state a
kernel reaches.

User constants live in ``.nv.constant3`` (bank 3, at most 64 KiB per module, shared by all its kernels). A new
object is appended behind the existing ones with a GLOBAL symbol at the end of the symbol table, so that no
symbol or section index changes. Notes are ordinary SHT_NOTE sections without the ALLOC flag: drivers and
nvdisasm skip them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gwatch.cuda.binary.elf import (
    PT_LOAD,
    SHF_ALLOC,
    SHT_NOTE,
    SHT_PROGBITS,
    STB_GLOBAL,
    STT_FUNC,
    STT_OBJECT,
    STT_SECTION,
    Elf,
    Section,
)
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.mercury import without_mercury
from gwatch.errors import CubinError, UnsupportedError

if TYPE_CHECKING:
    from gwatch.cuda.binary.cubin import Cubin
    from gwatch.cuda.binary.kernel import KernelDef

CONSTANT3 = ".nv.constant3"
BANK_SIZE = 65536
"""Size limit of the user constant bank in bytes."""
SYMBOL_ALIGN = 8
NOTE_OWNER = b"gwatch\0\0"
_PF_R = 4
_PF_W = 2


def add_constant3(
    image: bytes, symbol: str, size: int, init: bytes = b"", align: int = SYMBOL_ALIGN
) -> tuple[bytes, int]:
    """Append a user constant; returns the new image and the object's byte offset in constant bank 3.

    ``init`` is its initial value, padded with zeros to ``size`` bytes. Any loader finds it by its name
    (``cuModuleGetGlobal``, ``cuLibraryGetGlobal``). Raises CubinError [constant-size], [constant-exists] or
    [constant-bank-full]; UnsupportedError [mercury]: a second form of the code (sm_100 and later), which would lack the
    constant, is left out.
    """
    elf = Elf(without_mercury(image))
    if size <= 0 or len(init) > size or align <= 0 or align & (align - 1):
        raise CubinError(
            "constant-size", f"constant {symbol}: {len(init)} initial bytes for {size}, alignment {align}"
        )
    if any(s.name == symbol for s in elf.symbols):
        raise CubinError("constant-exists", f"the cubin already has a symbol named {symbol}")
    editor = Editor(elf)
    section = elf.find(CONSTANT3)
    value = init + bytes(size - len(init))
    if section is not None and section.in_file:
        old = elf.content(section)
        offset = -(-len(old) // align) * align
        _check_bank(offset + size)
        index = section.index
        editor.replace(index, old + bytes(offset - len(old)) + value)
        # The section's own alignment stays: a bank starts at its offset 0, wherever its bytes lie in the
        # file.
    elif section is not None:
        raise CubinError("constant-size", f"section {CONSTANT3} exists without contents")
    else:
        offset = 0
        _check_bank(size)
        index = _new_bank(elf, editor, value, align)
    editor.append_symbol(
        symbol, value=offset, size=size, info=STB_GLOBAL << 4 | STT_OBJECT, other=0, section=index
    )
    return editor.write(), offset


def set_constant3(image: bytes, offset: int, value: bytes) -> bytes:
    """The image with ``value`` at a byte offset of constant bank 3. Raises CubinError [constant-size]."""
    elf = Elf(image)
    section = elf.find(CONSTANT3)
    if section is None or not section.in_file or not 0 <= offset <= section.size - len(value):
        raise CubinError(
            "constant-size", f"{len(value)} bytes at {offset:#x} of {CONSTANT3}: there is no such place"
        )
    at = section.offset + offset
    return image[:at] + value + image[at + len(value) :]


def _check_bank(size: int) -> None:
    if size > BANK_SIZE:
        raise CubinError("constant-bank-full", f"constant bank 3 would need {size} bytes, it has {BANK_SIZE}")


def _new_bank(elf: Elf, editor: Editor, value: bytes, align: int) -> int:
    """A new constant bank section: inside the read-only load segment that holds bank 4 or 2, else in one
    of its own."""
    anchor = None
    for segment in elf.segments:
        if segment.type != PT_LOAD or segment.flags & _PF_W:
            continue
        end = segment.offset + segment.file_size
        inside = [s for s in elf.sections if s.in_file and segment.offset <= s.offset < end]
        banks = [s for s in inside if s.name.startswith((".nv.constant4", ".nv.constant2"))]
        if banks:
            anchor = max(banks, key=lambda s: s.offset).index
            break
    index = editor.append_section(
        CONSTANT3, value, kind=SHT_PROGBITS, flags=SHF_ALLOC, align=align, after=anchor
    )
    if anchor is None and elf.segments:
        editor.append_segment(PT_LOAD, _PF_R, index)
    return index


def add_note(image: bytes, name: str, payload: bytes, kind: int = 1) -> bytes:
    """Append a note section ``name`` (like ``.note.gwatch.sites``) that holds ``payload``.

    Raises CubinError [note-exists].
    """
    elf = Elf(image)
    if elf.find(name) is not None:
        raise CubinError("note-exists", f"the cubin already has a section named {name}")
    body = (
        struct.pack("<III", len(NOTE_OWNER), len(payload), kind)
        + NOTE_OWNER
        + payload
        + bytes(-len(payload) % 4)
    )
    editor = Editor(elf)
    editor.append_section(name, body, kind=SHT_NOTE, flags=0, align=4)
    return editor.write()


def read_note(image: bytes, name: str) -> bytes | None:
    """Payload of a note that :func:`add_note` wrote; None when there is no such section.

    Raises CubinError [note-damaged].
    """
    elf = Elf(image)
    section = elf.find(name)
    if section is None:
        return None
    body = elf.content(section)
    if len(body) < 12:
        raise CubinError("note-damaged", f"note {name} has {len(body)} bytes")
    owner, size, _ = struct.unpack_from("<III", body)
    start = 12 + -(-owner // 4) * 4
    if body[12 : 12 + owner] != NOTE_OWNER or start + size > len(body):
        raise CubinError("note-damaged", f"note {name} isn't gwatch's or is cut short")
    return body[start : start + size]


@dataclass(frozen=True, slots=True)
class ModuleObject:
    """A module variable: its symbol, section, and whether the kernel (or host) may change it."""

    symbol: int
    name: str
    section: str
    offset: int
    size: int
    mutable: bool


def globals_reached(cubin: Cubin, kernel: str | KernelDef) -> list[ModuleObject]:
    """Objects in ``.nv.global``, ``.nv.global.init`` and ``.nv.constant3`` that a kernel's code can reach.

    Followed: relocations of its code, of every code section it refers to, and of the module-wide address
    table ``.nv.constant4`` when there is one (which entries a kernel loads isn't known, so all count).
    ``.nv.constant3`` objects count for every kernel: its accesses carry no relocation. ``mutable`` is False
    only for compiler-made string and table objects (names starting with ``$`` or ``__cuda``).
    """
    elf = cubin.elf
    section = (cubin.get_kerneldef_by_name(kernel) if isinstance(kernel, str) else kernel).section_index
    reached: set[int] = set()
    codes, pending = {section}, [section]
    while pending:
        for symbol in _relocated_symbols(elf, pending.pop()):
            found = elf.symbols[symbol]
            reached.add(symbol)
            if (
                found.kind == STT_FUNC
                and 0 < found.section < len(elf.sections)
                and found.section not in codes
            ):
                codes.add(found.section)
                pending.append(found.section)
    for table in elf.sections:
        if table.name.startswith(".nv.constant4"):
            reached.update(_relocated_symbols(elf, table.index))
    objects = []
    for item in elf.symbols:
        if not 0 < item.section < len(elf.sections) or item.kind != STT_OBJECT:
            continue
        name = elf.sections[item.section].name
        if name == CONSTANT3 or (item.index in reached and name in (".nv.global", ".nv.global.init")):
            mutable = not item.name.startswith(("$", "__cuda"))
            objects.append(ModuleObject(item.index, item.name, name, item.value, item.size, mutable))
    return objects


def _relocated_symbols(elf: Elf, target: int) -> set[int]:
    return {e.symbol for table in elf.relocation_sections(target) for e in elf.relocations(table)}


_R_64, _R_GENERIC_64, _R_LOW, _R_HIGH = 2, 4, 56, 57


def bind_globals(image: bytes, addresses: dict[str, int]) -> bytes:
    """Replace references to module variables by absolute device addresses.

    A second module loaded beside the original then works on the original's ``__device__`` variables.
    ``addresses``: symbol name -> device address. Handled: 64-bit entries of ``.nv.constant4`` and the 32-bit
    halves in code. Raises CubinError [symbol-not-found], UnsupportedError [bind-constant] (bank 3 is
    addressed by offset) or [bind-relocation].
    """
    elf = Elf(image)
    wanted: dict[int, int] = {}
    for name, address in addresses.items():
        matches = [s for s in elf.symbols if s.name == name and s.kind == STT_OBJECT]
        if len(matches) != 1:
            raise CubinError("symbol-not-found", f"{len(matches)} module variables are named {name}")
        if elf.sections[matches[0].section].name == CONSTANT3:
            raise UnsupportedError(
                "bind-constant", f"{name} is a __constant__ variable, which has no address to bind"
            )
        wanted[matches[0].index] = address
    editor = Editor(elf)
    for table in elf.relocation_sections():
        _bind_table(elf, editor, table, wanted)
    return editor.write()


def _bind_table(elf: Elf, editor: Editor, table: Section, wanted: dict[int, int]) -> None:
    entries = elf.relocations(table)
    target = elf.section(table.info)
    if not target.flags & SHF_ALLOC:
        return
    homes = {elf.symbols[symbol].section for symbol in wanted}
    for entry in entries:
        found = elf.symbols[entry.symbol]
        if found.kind == STT_SECTION and found.section in homes:
            raise UnsupportedError(
                "bind-relocation", f"{target.name} refers to {elf.sections[found.section].name} as a whole"
            )
    if not any(e.symbol in wanted for e in entries):
        return
    size = table.entry_size
    raw = elf.content(table)
    kept = bytearray()
    data = bytearray(editor.content(target.index))
    for position, entry in enumerate(entries):
        if entry.symbol not in wanted:
            kept += raw[position * size : (position + 1) * size]
            continue
        at = entry.offset
        if entry.type in (_R_64, _R_GENERIC_64):
            old = int.from_bytes(data[at : at + 8], "little") if entry.addend is None else entry.addend
            value = wanted[entry.symbol] + old & (1 << 64) - 1
            data[at : at + 8] = value.to_bytes(8, "little")
        elif entry.type in (_R_LOW, _R_HIGH):
            # The 32-bit immediate of an instruction: bits 32 to 63 of the word at the relocated place.
            old = int.from_bytes(data[at + 4 : at + 8], "little") if entry.addend is None else entry.addend
            value = wanted[entry.symbol] + old
            half = value >> 32 if entry.type == _R_HIGH else value
            data[at + 4 : at + 8] = (half & 0xFFFFFFFF).to_bytes(4, "little")
        else:
            raise UnsupportedError(
                "bind-relocation",
                f"relocation type {entry.type} in {target.name} refers to a module variable",
            )
    editor.replace(target.index, bytes(data))
    editor.replace(table.index, bytes(kept))
