"""Names of the data that a host library embeds: AOTInductor puts kernels there as ``__NAME_start``."""

from __future__ import annotations

import re

from gwatch.cuda.binary.elf import EHDR, SHDR, SYM
from gwatch.inspect.reader import Reader

_ELF = b"\x7fELF\x02\x01"
_SHT_DYNSYM = 11
_FATBIN_SECTION = b"\0.nv_fatbin\0"
_START = re.compile(rb"__(\w{1,500})_start\0")
_LIMIT = 64 << 20
"""Bytes of a table that are looked at, at most."""


def embedded_symbols(reader: Reader) -> dict[int, str]:
    """Byte offset in the file -> NAME of the symbol ``__NAME_start`` that leads there.

    Empty for files that are no 64-bit host ELF and for libraries that nvcc made (their kernels have a section of their
    own); of a damaged symbol table what can be read is. Time and memory are bounded by the tables' sizes.
    """
    head = reader.read(0, EHDR.size)
    if len(head) < EHDR.size or head[:6] != _ELF:
        return {}
    shoff, shentsize, shnum, names = (EHDR.unpack(head)[field] for field in (6, 11, 12, 13))
    table = reader.read(shoff, shnum * SHDR.size) if shentsize == SHDR.size else b""
    sections = list(SHDR.iter_unpack(table[: len(table) - len(table) % SHDR.size]))

    def content(number: int) -> bytes:
        offset, size = sections[number][4:6] if number < len(sections) else (0, 0)
        return reader.read(offset, min(size, _LIMIT))

    if _FATBIN_SECTION in content(names):
        return {}
    found: dict[int, str] = {}
    for number, (_, kind, _, _, _, _, link, *_) in enumerate(sections):
        if kind != _SHT_DYNSYM:
            continue
        symbols, strings = content(number), content(link)
        for name, _, _, index, value, _ in SYM.iter_unpack(symbols[: len(symbols) - len(symbols) % SYM.size]):
            match = _START.match(strings, name)
            if match is not None and 0 < index < len(sections):
                _, _, _, address, offset, *_ = sections[index]
                found[value - address + offset] = match[1].decode()
    return found
