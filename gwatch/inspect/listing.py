"""SASS listings of whole cubins, in the two shapes people know.

``cuobjdump``: what ``cuobjdump -sass`` prints: absolute targets and both halves of every word. It is written from
:class:`~gwatch.sass.code.Code`, so it is fast where the architecture has a table. ``nvdisasm``: what
``nvdisasm -g -c`` prints: labels and source lines; label numbers are that program's own, so it prints them itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from operator import add

import numpy as np

from gwatch.inspect.view import CubinView
from gwatch.sass import nvdisasm
from gwatch.sass.code import Code, CodePart

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
    kernels = sorted({k.section_index: k for k in view.kernels}.values(), key=lambda k: k.section_index)
    if not kernels:
        return out[0]
    lines = _Lines(view.whole)
    for kernel in kernels:
        if wanted is None or wanted(kernel.name):
            out.append(f'\t\tFunction : {kernel.name}\n\t.headerflags\t@"{flags}"\n')
            out.append(lines.text(view.code(kernel)))
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


class _Lines:
    """Lines of a whole cubin: what follows the address is made once for instructions that are printed alike."""

    def __init__(self, whole: Code) -> None:
        first, self.inverse = whole.distinct
        self.words = whole.words[first].tolist()
        control = whole.words[first, 1] >> np.uint64(_CONTROL_SHIFT) & np.uint64(_SCOREBOARDS_AND_STALL)
        self.bodies = []
        widths = []
        for text, bits in zip(whole.distinct_texts, control.tolist(), strict=True):
            guard = ""
            if text[0] == "@" and text[1] != "U" and text[2] != "U":
                guard, text = text.split(
                    " ", 1
                )  # a uniform guard stands where the opcode of other lines does
            end = ";" if bits == _TIGHT else " ;"
            if text[-1] in "NF0" and _SPECIAL_NUMBER.search(text):
                end = f" {end}"
            body = f"{guard:>18} {text}{end}"
            self.bodies.append(body)
            # The tool measures a line as if its guard stood behind the margin.
            widths.append(len(body) + (len(guard) + 1 if guard else 0))
        size = whole.arch.instruction_size
        self.prefixes = [f"        /*{at:04x}*/" for at in range(0, int(whole.addresses.max()) + 1, size)]
        prefix = np.array([len(text) for text in self.prefixes])[whole.addresses // size]
        self.column = int((np.array(widths)[self.inverse] + prefix).max()) + 2
        self.tails: dict[int, dict[int, str]] = {}
        for width in sorted({len(text) for text in self.prefixes}):
            used = np.flatnonzero(np.bincount(self.inverse[prefix == width]))
            self.tails[width] = dict(zip(used.tolist(), self._tails(used.tolist(), width), strict=True))

    def _tails(self, numbers: list[int], prefix: int) -> list[str]:
        """What follows an address of ``prefix`` characters, for these distinct instructions."""
        width, blank = self.column - prefix, " " * self.column
        bodies, words = self.bodies, self.words
        return [
            f"{bodies[n]:{width}}/* 0x{words[n][0]:016x} */\n{blank}/* 0x{words[n][1]:016x} */\n"
            for n in numbers
        ]

    def text(self, part: Code) -> str:
        """The lines of one section, which starts at address 0."""
        assert isinstance(part, CodePart)
        numbers = self.inverse[part.start : part.stop].tolist()
        out: list[str] = []
        at = 0
        while at < len(numbers):
            prefix = len(self.prefixes[at])
            end = len(numbers)
            if len(self.prefixes[end - 1]) > prefix:  # addresses get longer on the way
                end = next(k for k in range(at, end) if len(self.prefixes[k]) > prefix)
            tail = self.tails[prefix]
            out += map(add, self.prefixes[at:end], map(tail.__getitem__, numbers[at:end]))
            at = end
        return "".join(out)
