"""Local memory of a kernel: the sizes of its frame and of its stack.

A kernel's ``.nv.info`` states the bytes of its own frame (FRAME_SIZE) and the most that it and what it calls take
together (MIN_STACK_SIZE); the driver sets a thread's local memory aside by them.
"""

from __future__ import annotations

import struct

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
    elf = Elf(image)
    info = elf.find(".nv.info")
    out = bytearray(image)
    grown = set()
    if info is not None:
        at, end = info.offset, info.offset + info.size
        while at + 4 <= end:
            kind, code, size = struct.unpack_from("<BBH", out, at)
            if kind == _SIZED and code in _SIZES and size == 8:
                owner, value = struct.unpack_from("<II", out, at + 4)
                if owner == symbol:
                    struct.pack_into("<I", out, at + 8, value + extra)
                    grown.add(code)
            at += 4 + (size if kind == _SIZED else 0)
    if not {int(Attr.FRAME_SIZE), int(Attr.MIN_STACK_SIZE)} <= grown:
        raise CubinError("stack-missing", "the cubin doesn't state the kernel's stack sizes")
    return bytes(out)
