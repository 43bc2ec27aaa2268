"""The second form of the code that compilers add for sm_100 and later ("Mercury"), and files without it.

Beside ``.text.*`` such files carry ``.nv.capmerc.text.*`` (the code in another encoding, which gwatch can't read) and
``.nv.merc.*`` (its own symbols, relocations, attributes and debug information). Once the code of a kernel changes they
contradict it, so a changed file leaves them out and says so in its header.

What that rests on (no GPU of that kind was at hand: that drivers take such a file is not proved). ``e_flags`` has bit
1 in files with these sections and bit 2 in files without: every sm_90 cubin of CUDA 13, and sm_100 cubins made by
NVIDIA's own assembler that one public wheel ships. nvlink 13.0 takes an object changed in this way ("Output is limited
to run on SM Arch '100' only due to limitations in input file") and writes a cubin with bit 2, without Mercury sections
and without record 0x0b of ``.nv.compat``; so does this module. In 177 of 177 cubins of two wheels the sections are the
last ones of the section table, no symbol, link or segment needs them, and bytes that they share with other sections are
the others' too. What is lost: the file runs on the very architecture it was compiled for, on no other chip of the
family.
"""

from __future__ import annotations

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.elf import EHDR, MERCURY, PHDR, SHDR, SHN_LORESERVE, Elf, Section
from gwatch.cuda.binary.layout import Editor
from gwatch.errors import UnsupportedError

WITH_MERCURY, WITHOUT_MERCURY = 1 << 1, 1 << 2
"""Bits of ``e_flags`` (ABI 8)."""
_TABLE_ALIGN = 8
_COMPAT = ".nv.compat"
_FAMILY_RECORD = 0x0B


def mercury_sections(elf: Elf) -> list[Section]:
    """The sections of the second form; empty where there is none."""
    return [section for section in elf.sections if section.name.startswith(MERCURY)]


def without_mercury(image: bytes) -> bytes:
    """The image without the second form of its code; the image itself where it has none.

    Section and symbol indices stay. Raises UnsupportedError [mercury] for an image in which something else depends on
    those sections.
    """
    elf = Elf(image)
    gone = mercury_sections(elf)
    if not gone:
        return image
    check_mercury(elf)
    count = gone[0].index
    kept = elf.sections[:count]
    header = elf.header
    tables = (header.phoff, header.phoff + header.phnum * PHDR.size) if header.phnum else (0, 0)
    ends = [section.offset + section.size for section in kept if section.in_file]
    end = max([EHDR.size, *ends])
    out = bytearray(image[:end])
    out += bytes(-len(out) % _TABLE_ALIGN)
    shoff = len(out)
    out += image[header.shoff : header.shoff + count * SHDR.size]
    phoff = len(out) if header.phnum else header.phoff
    for segment in elf.segments:
        offset, size = segment.offset, segment.file_size
        if header.phnum and (offset, offset + size) == tables:
            offset = phoff
        out += PHDR.pack(
            segment.type, segment.flags, offset, segment.vaddr, segment.paddr, size, segment.memory_size, segment.align
        )
    fields = list(EHDR.unpack_from(image))
    fields[5], fields[6] = phoff, shoff
    fields[7] = header.flags & ~WITH_MERCURY | WITHOUT_MERCURY
    fields[12] = count
    EHDR.pack_into(out, 0, *fields)
    return _without_family(Elf(bytes(out), elf.what))


def _without_family(elf: Elf) -> bytes:
    """The image without the record of ``.nv.compat`` that files with one form of the code, written by nvlink, lack."""
    section = elf.find(_COMPAT)
    if section is None or not section.in_file:
        return elf.data
    records = nvinfo.parse(elf.content(section), _COMPAT)
    editor = Editor(elf)
    editor.replace(section.index, nvinfo.serialize(item for item in records if item.code != _FAMILY_RECORD))
    return editor.write()


def check_mercury(elf: Elf) -> None:
    """Raise UnsupportedError [mercury] for a second form of the code that something else depends on."""
    gone = mercury_sections(elf)
    if not gone:
        return
    count = gone[0].index
    kept = elf.sections[:count]
    header = elf.header
    why = ""
    last = max((section.offset + section.size for section in kept if section.in_file), default=0)
    if len(gone) != len(elf.sections) - count:
        why = "they are not the last of its sections"
    elif header.shstrndx >= count or len(elf.sections) >= SHN_LORESERVE or header.flags & WITHOUT_MERCURY:
        why = "its header does not fit"
    elif any(count <= symbol.section < len(elf.sections) for symbol in elf.symbols):
        why = "a symbol names one of them"
    elif any(section.link >= count for section in kept):
        why = "another section is linked to one of them"
    elif min(header.shoff, header.phoff if header.phnum else header.shoff) < last:
        why = f"its tables stand before its contents (byte {last:#x})"
    else:
        shared = {(section.offset, section.size) for section in kept}
        own = [s for s in gone if s.in_file and (s.offset, s.size) not in shared]
        tables = range(min(header.shoff, header.phoff or header.shoff), len(elf.data))
        if any(section.offset < last for section in own):
            why = "they stand among other contents"
        for segment in elf.segments:
            end = segment.offset + segment.file_size
            if end > last and segment.offset not in tables and segment.file_size:
                why = f"a segment reaches to byte {end:#x}"
    if why:
        raise UnsupportedError(
            "mercury",
            f"{elf.what} carries a second form of its code ({gone[0].name}) that can't be left out: {why}",
            "gwatch does not change such a file",
        )
