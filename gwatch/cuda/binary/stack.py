"""Local memory of a kernel: the sizes of its frame and of its stack.

A kernel's ``.nv.info`` states the bytes of its own frame (FRAME_SIZE) and the most that it and what it calls take
together (MIN_STACK_SIZE); the driver sets a thread's local memory aside by them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gwatch.cuda.binary.elf import Elf
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import CubinError

_SIZES = (Attr.FRAME_SIZE, Attr.MIN_STACK_SIZE, Attr.MAX_STACK_SIZE)
_SIZED = 4
_ALIGN = 16


def grow_stack(image: bytes, symbol: int, extra: int) -> bytes:
    """``image`` with ``extra`` more bytes (rounded up to 16) of local memory for the kernel of symbol index ``symbol``.

    Raises CubinError ``[stack-missing]`` when the file doesn't state the kernel's stack sizes.
    """
    extra = -(-extra // _ALIGN) * _ALIGN
    out = bytearray(image)
    grown = set()
    for code, at, value in _stated(Elf(image), symbol):
        struct.pack_into("<I", out, at, value + extra)
        grown.add(code)
    if not {int(Attr.FRAME_SIZE), int(Attr.MIN_STACK_SIZE)} <= grown:
        raise CubinError("stack-missing", "the cubin doesn't state the kernel's stack sizes")
    return bytes(out)


def stack_bytes(elf: Elf, symbol: int) -> int:
    """Bytes of local memory that the file states for the stack of the kernel of symbol index ``symbol``; 0 for none."""
    return max((value for code, _, value in _stated(elf, symbol) if code == Attr.MIN_STACK_SIZE), default=0)


def _stated(elf: Elf, symbol: int) -> Iterator[tuple[int, int, int]]:
    """(attribute, offset of its value in the file, value) of a kernel's stack sizes."""
    info = elf.find(".nv.info")
    if info is None:
        return
    at, end = info.offset, info.offset + info.size
    while at + 4 <= end:
        kind, code, size = struct.unpack_from("<BBH", elf.data, at)
        if kind == _SIZED and code in _SIZES and size == 8 and at + 12 <= end:
            owner, value = struct.unpack_from("<II", elf.data, at + 4)
            if owner == symbol:
                yield code, at + 8, value
        at += 4 + (size if kind == _SIZED else 0)
