"""SASS listings of whole cubins, in the shapes people know.

``cuobjdump``: what ``cuobjdump -sass`` prints: absolute targets and both halves of every word. ``nvdisasm`` and
``nvdisasm-inline``: what ``nvdisasm -g -c`` and ``-gi -c`` print: labels and source lines, without or with the calls
that were inlined. These are written from :class:`~gwatch.sass.code.Code`, so they are fast where the architecture has a
table. Of cubins that are not linked, or made for a debugger, nvdisasm prints the last two itself, and it does so of all
cubins for ``nvdisasm-sections``, which is ``nvdisasm -g``: attributes, constants and debug information as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from operator import add

import numpy as np

from gwatch.errors import printable
from gwatch.inspect.statements import statement_end, tight_ends
from gwatch.inspect.view import CubinView
from gwatch.sass import nvdisasm
from gwatch.sass.code import Code, CodePart

_ABI_OLD = 7
_OLD_FLAGS = ((0x100, "EF_CUDA_TEXMODE_UNIFIED"), (0x400, "EF_CUDA_64BIT_ADDRESS"))
_MARGIN = " " * 19
_END = "\t\t..........\n\n\n"


class Style(str, Enum):
    """Shape of a listing."""

    CUOBJDUMP = "cuobjdump"
    NVDISASM = "nvdisasm"
    INLINED = "nvdisasm-inline"
    SECTIONS = "nvdisasm-sections"


def listing(view: CubinView, style: Style, wanted: Callable[[str], bool] | None = None) -> str:
    """The listing of a cubin, or of the functions for which ``wanted`` holds.

    Raises ToolError where nvdisasm is needed and missing.
    """
    if style is Style.SECTIONS:
        functions = _functions(view, wanted)
        whole = wanted is None or bool(functions)
        return _shown(view, nvdisasm.disassemble_cubin(view.cubin.data, "-g", *functions)) if whole else ""
    name = view.arch.name
    target = "" if view.cubin.abi_version <= _ABI_OLD else f"\t.target\t{name}\n\n"
    if style is not Style.CUOBJDUMP:
        head = target or f'\t.headerflags\t@"{header_flags(view)}"\n'
        return _labelled(view, f'{head}\t.elftype\t@"ET_EXEC"\n', style is Style.INLINED, wanted)
    out = [f"\n\tcode for {name}\n{target}"]
    flags = header_flags(view)
    kernels = sorted({k.section_index: k for k in view.kernels}.values(), key=lambda k: k.section_index)
    if not kernels:
        return out[0]
    lines = _Lines(view.whole)
    for kernel in kernels:
        if wanted is None or wanted(kernel.name):
            out.append(f'\t\tFunction : {printable(kernel.name)}\n\t.headerflags\t@"{flags}"\n')
            out.append(lines.text(view.code(kernel)))
            out.append(_END)
    return "".join(out)


def _labelled(view: CubinView, head: str, inlined: bool, wanted: Callable[[str], bool] | None) -> str:
    from gwatch.inspect.labelled import CannotLabel, text

    with suppress(CannotLabel):
        return text(view, head, inlined, wanted)
    functions = _functions(view, wanted)
    if wanted is not None and not functions:
        return head
    return _shown(view, nvdisasm.disassemble_cubin(view.cubin.data, "-gi" if inlined else "-g", "-c", *functions))


def _shown(view: CubinView, text: str) -> str:
    """What nvdisasm printed, without characters that a terminal would obey."""
    for name in sorted({symbol.name for symbol in view.cubin.elf.symbols}, key=len, reverse=True):
        if printable(name) != name:
            text = text.replace(name, printable(name))  # it may hold line ends
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _functions(view: CubinView, wanted: Callable[[str], bool] | None) -> list[str]:
    """The option that has nvdisasm print only the functions for which ``wanted`` holds."""
    chosen = [str(kernel.symbol.index) for kernel in view.kernels if wanted is not None and wanted(kernel.name)]
    return ["-fun", ",".join(chosen)] if chosen else []


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
        words = whole.words[first]
        self.digits = words.astype(">u8").tobytes().hex()  # 16 for each half, low half first
        self.bodies = []
        widths = []
        for text, tight in zip(whole.distinct_texts, tight_ends(words).tolist(), strict=True):
            end = statement_end(text, tight)
            if text[0] == "@" and text[1] != "U" and text[2] != "U":
                # A uniform guard stands where the opcode of other lines does; any other in the margin.
                guard, _, text = text.partition(" ")
                body = f"{guard:>18} {text}{end}"
                # The tool measures a line as if its guard stood behind the margin.
                widths.append(len(body) + len(guard) + 1)
            else:
                body = f"{_MARGIN}{text}{end}"
                widths.append(len(body))
            self.bodies.append(body)
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
        bodies, digits = self.bodies, self.digits
        return [
            f"{bodies[n]:{width}}/* 0x{digits[at : at + 16]} */\n{blank}/* 0x{digits[at + 16 : at + 32]} */\n"
            for n, at in zip(numbers, map((32).__mul__, numbers), strict=True)
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
