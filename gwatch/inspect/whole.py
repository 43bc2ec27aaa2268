"""Whether a library, object, executable or static archive is all there: its own headers say how far it goes."""

from __future__ import annotations

import struct

from gwatch.cuda.binary.elf import EHDR, NO_BYTES, SHDR
from gwatch.inspect.reader import Reader

_ELF64 = b"\x7fELF\x02\x01"
_PE, _AR = b"MZ", b"!<arch>\n"
_PHDR = struct.Struct("<IIQQQQQQ")
_PE_SECTION = 40
_AR_HEAD = 60


def is_cut_off(reader: Reader) -> bool:
    """Whether ``reader`` ends before the place where its headers put its last byte.

    False for files of other kinds (a 32-bit library holds no kernels) and for headers that say nothing. Time is bounded
    by the size of the tables, or the number of an archive's members.
    """
    head = reader.read(0, EHDR.size)
    if head[:6] == _ELF64:
        return len(head) < EHDR.size or _elf_end(reader, head) > reader.size
    if head[:2] == _PE:
        return _pe_end(reader, head) > reader.size
    return head[:8] == _AR and _ar_end(reader) > reader.size


def _elf_end(reader: Reader, head: bytes) -> int:
    _, _, _, _, _, phoff, shoff, _, ehsize, phentsize, phnum, shentsize, shnum, _ = EHDR.unpack(head)
    end: int = max(ehsize, shoff + shnum * shentsize if shoff else 0, phoff + phnum * phentsize if phoff else 0)
    if end > reader.size:
        return end
    if shoff and shentsize == SHDR.size:
        for _, kind, _, _, begin, size, *_ in SHDR.iter_unpack(reader.read(shoff, shnum * SHDR.size)):
            end = end if kind in NO_BYTES else max(end, begin + size)
    if phoff and phentsize == _PHDR.size:
        for _, _, begin, _, _, size, *_ in _PHDR.iter_unpack(reader.read(phoff, phnum * _PHDR.size)):
            end = max(end, begin + size)
    return end


def _pe_end(reader: Reader, head: bytes) -> int:
    start = struct.unpack_from("<I", head, 60)[0] if len(head) == EHDR.size else reader.size
    coff = reader.read(start, 24)
    if len(coff) < 24:
        return start + 24
    if coff[:4] != b"PE\0\0":
        return 0  # a program for DOS
    sections, optional = struct.unpack_from("<H", coff, 6)[0], struct.unpack_from("<H", coff, 20)[0]
    at = start + 24 + optional
    table = reader.read(at, sections * _PE_SECTION)
    end: int = at + sections * _PE_SECTION
    for place in range(0, len(table) - _PE_SECTION + 1, _PE_SECTION):
        size, begin = struct.unpack_from("<II", table, place + 16)
        end = max(end, begin + size) if size else end
    return end


def _ar_end(reader: Reader) -> int:
    at = len(_AR)
    while at < reader.size:
        head = reader.read(at, _AR_HEAD)
        size = head[48:58].strip()
        if len(head) < _AR_HEAD or head[58:] != b"`\n" or not size.isdigit():
            return reader.size + 1
        at += _AR_HEAD + int(size)
        if at < reader.size:
            at += at % 2  # members start on even bytes; nothing need follow the last
    return at
