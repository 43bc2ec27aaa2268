"""Cubins inside any file: members of fat binaries, and ELF images of the CUDA machine that lie in it as they are.

A library or executable keeps its fat binaries in ``.nv_fatbin`` (host ELF) or anywhere else (PE, archives);
AOTInductor's embedded cubins are plain bytes in ``.rodata``. Both are found by their magic, window by window,
so that nothing but the image found is held in memory. A magic number followed by an impossible header is data
that happens to look like one and is passed over; one followed by a header that only the end of the file contradicts is
what is left of something cut off, which is named.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from gwatch.cuda.binary.elf import EHDR, EM_CUDA, NO_BYTES, SHDR
from gwatch.cuda.binary.fatbin import (
    MAGIC,
    MAX_IMAGE,
    FatbinEntry,
    container,
    is_cut_off,
    iter_fatbin_entries,
)
from gwatch.errors import GWatchError
from gwatch.inspect.reader import Reader

WINDOW = 8 << 20
_FATBIN = struct.pack("<I", MAGIC)
_ELF = b"\x7fELF\x02\x01"
_CONTAINER = struct.Struct("<IHHQ")
_HEAD = 64
_MAX_SECTIONS = 1 << 20


class Found(NamedTuple):
    """A cubin: plain ``data``, the byte ``offset`` it was found at, and how it is kept there. ``start``: where the
    container begins, or the image itself."""

    offset: int
    kind: str  # "cubin" (plain ELF image) or "fatbin" (member of a fat binary)
    data: bytes
    start: int


class Passed(NamedTuple):
    """Something at ``offset`` that is no cubin that can be read: what, and why. ``unread``: it may be one, but for
    damage or a missing package."""

    offset: int
    what: str
    reason: str
    unread: bool = True


def scan(reader: Reader) -> Iterator[Found | Passed]:
    """Everything found in ``reader`` in order of offset."""
    position = 0
    while True:
        hit = _next_magic(reader, position)
        if hit is None:
            return
        offset, is_fatbin = hit
        position = offset + 4
        if is_fatbin:
            inside = container(reader.read, offset, reader.size)
            if inside is not None:
                yield from _members(reader, offset, *inside)
                position = inside[1]
            elif is_cut_off(reader.read, offset, reader.size):
                # Its size may be what is damaged: the search goes on where its members end.
                position = max(position, (yield from _members(reader, offset, offset + _CONTAINER.size, None)))
            elif offset == 0:
                yield Passed(0, "fat binary", "its header is damaged")
        else:
            size = cubin_size(reader, offset)
            if size is None and _is_cubin_header(reader.read(offset, EHDR.size)):
                yield Passed(offset, "cubin", "it is cut off, or its headers are damaged")
            if size is not None and size > MAX_IMAGE:
                yield Passed(offset, "cubin", f"its headers say {size} bytes, more than {MAX_IMAGE}")
            elif size is not None:
                yield Found(offset, "cubin", reader.read(offset, size), offset)
                position = offset + size


def _next_magic(reader: Reader, start: int) -> tuple[int, bool] | None:
    """Offset of the next magic number and whether it is a fat binary's (else an ELF image's)."""
    keep = max(len(_FATBIN), len(_ELF)) - 1
    while start < reader.size:
        window = reader.read(start, WINDOW + keep)
        fatbin, elf = window.find(_FATBIN), window.find(_ELF)
        if fatbin >= 0 or elf >= 0:
            first = min(at for at in (fatbin, elf) if at >= 0)
            return start + first, first == fatbin
        start += WINDOW
    return None


def _is_cubin_header(head: bytes) -> bool:
    """Whether all that tells an ELF header of the GPU from other data with its magic is there."""
    return (
        head[:7] == _ELF + b"\x01"
        and head[18:20] == struct.pack("<H", EM_CUDA)
        and len(head) == EHDR.size
        and EHDR.unpack(head)[8] == EHDR.size
    )


def _members(reader: Reader, start: int, at: int, end: int | None) -> Generator[Found | Passed, None, int]:
    """Members of the container at ``start``, from ``at`` on, read one at a time; returns where they end. ``end``: of
    the container, None where the file ends before it does."""
    limit = reader.size if end is None else end
    while at < limit or end is None:
        head = reader.read(at, _HEAD)
        size = (
            struct.unpack_from("<I", head, 4)[0] + struct.unpack_from("<Q", head, 8)[0]
            if len(head) == _HEAD
            else 0
        )
        if end is None and (at + size > limit or len(head) < _HEAD or head.startswith(_FATBIN)):
            yield Passed(min(at, limit), "fat binary", "it is cut off here, or its header gives a wrong size")
            # The image of a member that is cut off isn't named a second time.
            return at if head.startswith(_FATBIN) else at + _HEAD + len(_ELF)
        if size < _HEAD or at + size > limit:
            yield Passed(at, "fat binary member", "its header points outside the container")
            return at
        # One member at a time: the same bytes in a container of their own.
        chunk = _CONTAINER.pack(MAGIC, 1, 16, size) + reader.read(at, size)
        yield from _member(chunk, at, start)
        at += size
    return at


def _member(chunk: bytes, at: int, start: int) -> Iterator[Found | Passed]:
    entry: FatbinEntry | None = None
    try:
        entry = next(iter_fatbin_entries(chunk))
        if entry.kind == "elf":
            yield Found(at, "fatbin", entry.image(), start)
        else:
            yield Passed(at, f"{entry.kind} for sm_{entry.sm}", "no machine code", False)
    except GWatchError as error:
        name = f"sm_{entry.sm} member" if entry else "fat binary member"
        yield Passed(at, name, str(error))


def is_cubin(reader: Reader) -> bool:
    """Whether the file as a whole is an ELF image for the GPU, undamaged or not."""
    head = reader.read(0, EHDR.size)
    return head[:4] == _ELF[:4] and head[18:20] == struct.pack("<H", EM_CUDA)


def cubin_size(reader: Reader, offset: int = 0) -> int | None:
    """Bytes of the CUDA ELF image that starts at ``offset``; None when there is none or it is cut off."""
    head = reader.read(offset, EHDR.size)
    if len(head) < EHDR.size or head[:6] != _ELF:
        return None
    _, _, machine, _, _, phoff, shoff, _, ehsize, phentsize, phnum, shentsize, shnum, _ = EHDR.unpack(head)
    if machine != EM_CUDA:
        return None
    end = max(ehsize, phoff + phnum * phentsize)
    if shoff:
        if shentsize != SHDR.size:
            return None
        first = reader.read(offset + shoff, SHDR.size)
        if len(first) < SHDR.size:
            return None
        count = shnum or SHDR.unpack(first)[5]
        table = reader.read(offset + shoff, count * SHDR.size) if count <= _MAX_SECTIONS else b""
        if count == 0 or len(table) < count * SHDR.size:
            return None
        end = max(end, shoff + len(table))
        for _, kind, _, _, begin, size, *_ in SHDR.iter_unpack(table):
            if kind not in NO_BYTES:
                end = max(end, begin + size)
    return end if offset + end <= reader.size else None
