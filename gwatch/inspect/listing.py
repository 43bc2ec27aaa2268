"""SASS listings of whole cubins, in the two shapes people know.

``cuobjdump``: what ``cuobjdump -sass`` prints: absolute targets and both halves of every word. It is written from
:class:`~gwatch.inspect.code.Code`, so it is fast where the architecture has a table. ``nvdisasm``: what
``nvdisasm -g -c`` prints: labels and source lines; label numbers are that program's own, so it prints them itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import numpy as np

from gwatch.inspect.code import Code
from gwatch.inspect.view import CubinView
from gwatch.sass import nvdisasm

_ABI_OLD = 7
_TIGHT = 0x7E0
"""Stall 0, no yield hint, no scoreboards: printed without the blank in front of the semicolon."""
_SCOREBOARDS_AND_STALL = 0x7FF
_CONTROL_SHIFT = 41
_OLD_FLAGS = ((0x100, "EF_CUDA_TEXMODE_UNIFIED"), (0x400, "EF_CUDA_64BIT_ADDRESS"))
_END = "\t\t..........\n\n\n"
_SPECIAL_NUMBER = re.compile(r"(?:[+-](?:INF|[QS]NAN)|-0\.0)$")
"""nvdisasm ends these with a blank."""


class Style(str, Enum):
    """Shape of a listing."""

    CUOBJDUMP = "cuobjdump"
    NVDISASM = "nvdisasm"


def listing(view: CubinView, style: Style, wanted: Callable[[str], bool] | None = None) -> str:
    """The listing of a cubin, or of the functions for which ``wanted`` holds (in cuobjdump's style).

    Raises ToolError where nvdisasm is needed and missing.
    """
    if style is Style.NVDISASM:
        return nvdisasm.disassemble_cubin(view.cubin.data, "-g", "-c")
    name = view.arch.name
    target = "" if view.cubin.abi_version <= _ABI_OLD else f"\t.target\t{name}\n\n"
    out = [f"\n\tcode for {name}\n{target}"]
    flags = header_flags(view)
    kernels = sorted(
        {k.section_index: k for k in view.kernels}.values(), key=lambda kernel: kernel.section_index
    )
    bodies = [_bodies(view.code(kernel)) for kernel in kernels]
    column = max((width for _, width in bodies), default=0) + 2
    for kernel, (lines, _) in zip(kernels, bodies, strict=True):
        if wanted is None or wanted(kernel.name):
            out.append(f'\t\tFunction : {kernel.name}\n\t.headerflags\t@"{flags}"\n')
            out += _lines(view.code(kernel), lines, column)
            out.append(_END)
    return "".join(out)


def header_flags(view: CubinView) -> str:
    """The ELF flags in words, as NVIDIA's tools print them."""
    header, number = view.cubin.elf.header, view.arch.number
    words = []
    if header.abi_version <= _ABI_OLD:
        words += [name for bit, name in _OLD_FLAGS if header.flags & bit]
        virtual = header.flags >> 16 & 0xFF
    else:
        note = view.cubin.elf.find(".note.nv.cuinfo")
        content = view.cubin.elf.content(note) if note is not None else b""
        virtual = int.from_bytes(content[26:28], "little") if len(content) >= 28 else number
    if view.arch.suffix == "a":
        words.append("EF_CUDA_ACCELERATORS")
    words += [f"EF_CUDA_SM{number}", f"EF_CUDA_VIRTUAL_SM(EF_CUDA_SM{virtual})"]
    return " ".join(words)


def _bodies(code: Code) -> tuple[list[str], int]:
    """Lines up to the encodings (address, guard right-aligned, text, semicolon), and the width they ask for: that of
    the widest if guards stood behind the margin."""
    control = (code.words[:, 1] >> np.uint64(_CONTROL_SHIFT) & np.uint64(_SCOREBOARDS_AND_STALL)).tolist()
    out = []
    width = 0
    for address, text, bits in zip(code.addresses.tolist(), code.texts, control, strict=True):
        guard = ""
        if text[0] == "@" and text[1] != "U" and text[2] != "U":
            guard, text = text.split(" ", 1)  # a uniform guard stands where the opcode of other lines does
        end = ";" if bits == _TIGHT else " ;"
        if text[-1] in "NF0" and _SPECIAL_NUMBER.search(text):
            end = f" {end}"
        line = f"        /*{address:04x}*/{guard:>18} {text}{end}"
        width = max(width, len(line) + (len(guard) + 1 if guard else 0))
        out.append(line)
    return out, width


def _lines(code: Code, bodies: list[str], column: int) -> list[str]:
    blank = " " * column
    return [
        f"{body:{column}}/* 0x{low:016x} */\n{blank}/* 0x{high:016x} */\n"
        for body, (low, high) in zip(bodies, code.words.tolist(), strict=True)
    ]
