"""A parsed cubin with what many questions need, read once: attributes by section, code of all kernels."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary import Cubin, KernelDef, nvinfo
from gwatch.cuda.binary.elf import STT_OBJECT
from gwatch.cuda.binary.nvinfo import Attr, Attribute
from gwatch.sass.arch import Arch
from gwatch.sass.code import Code, code_of

if TYPE_CHECKING:
    from gwatch.inspect.tally import Tally

_BANK = re.compile(r"\.nv\.constant([0-9]+)\.")
FIRST_TO_MARK = (12, 8)
"""First toolkit release whose ptxas writes ANNOTATIONS (seen over compiler output of 11.8 to 13.4)."""
_RELEASE = re.compile(rb"release ([0-9]+\.[0-9]+), V([0-9.]+)")


class CubinView:
    """A cubin and indices over it. Made by :meth:`of`; everything is worked out when first asked for."""

    def __init__(self, cubin: Cubin) -> None:
        self.cubin = cubin
        self._ends: dict[int, int] = {}

    def end(self, kernel: KernelDef, count: int) -> None:
        """Look at the first ``count`` instructions of a kernel only. To be said before its code is asked for."""
        self._ends[kernel.section_index] = count

    @classmethod
    def of(cls, data: bytes, name: str = "cubin") -> CubinView:
        """Parse an image. Raises CubinError, or UnsupportedError for an architecture gwatch does not know."""
        return cls(Cubin.from_bytes(data, name))

    @property
    def has_notes(self) -> bool:
        """Whether gwatch left notes in it, as it does where it patches a kernel."""
        return any(section.name.startswith(".note.gwatch") for section in self.cubin.elf.sections)

    @property
    def is_debug(self) -> bool:
        """Whether it was compiled for a debugger (-G), without optimization (-lineinfo leaves line tables alone)."""
        return self.cubin.elf.find(".nv_debug_info_reg_sass") is not None

    @property
    def arch(self) -> Arch:
        return self.cubin.arch

    @cached_property
    def initial_values(self) -> dict[str, bytes]:
        """Initial bytes of the module's variables and constants that have some in the file."""
        elf, found = self.cubin.elf, {}
        for symbol in elf.symbols:
            section = elf.sections[symbol.section] if 0 < symbol.section < len(elf.sections) else None
            if symbol.kind == STT_OBJECT and symbol.size and section is not None and section.in_file:
                found[symbol.name] = elf.content(section)[symbol.value : symbol.value + symbol.size]
        return found

    @cached_property
    def kernels(self) -> list[KernelDef]:
        """Kernels and, behind them, device functions with a code section of their own, in symbol order."""
        return [*self.cubin.get_map_kernel_def().values(), *self.cubin.get_map_function_def().values()]

    @cached_property
    def section_sizes(self) -> dict[str, int]:
        """Section name -> size in bytes."""
        return {section.name: section.size for section in self.cubin.elf.sections}

    @cached_property
    def _attributes(self) -> dict[int, tuple[Attribute, ...]]:
        elf = self.cubin.elf
        return {
            section.info: nvinfo.parse(elf.content(section), section.name)
            for section in elf.sections
            if section.name.startswith(".nv.info.")
        }

    def attributes(self, kernel: KernelDef) -> tuple[Attribute, ...]:
        """Records of the kernel's own attribute section."""
        return self._attributes.get(kernel.section_index, ())

    @cached_property
    def _first(self) -> dict[int, dict[int, Attribute]]:
        return {
            section: {record.code: record for record in reversed(records)}
            for section, records in self._attributes.items()
        }

    def attribute(self, code: Attr, kernel: KernelDef) -> Attribute | None:
        """The kernel's first record of this code."""
        return self._first.get(kernel.section_index, {}).get(code)

    @cached_property
    def constant_banks(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Function name -> (bank, bytes) of the constant sections that belong to it alone, by bank."""
        found: dict[str, list[tuple[int, int]]] = {}
        for name, size in self.section_sizes.items():
            match = _BANK.match(name)
            if match is not None:
                found.setdefault(name[match.end() :], []).append((int(match[1]), size))
        return {name: tuple(sorted(banks)) for name, banks in found.items()}

    @cached_property
    def _numbers(self) -> dict[int, dict[int, int]]:
        section = self.cubin.elf.find(".nv.info")
        if section is None:
            return {}
        records = nvinfo.parse(self.cubin.elf.content(section))
        codes = (Attr.REGCOUNT, Attr.FRAME_SIZE, Attr.MIN_STACK_SIZE)
        return {code: nvinfo.by_symbol(records, code) for code in codes}

    def number(self, code: Attr, kernel: KernelDef) -> int | None:
        """REGCOUNT, FRAME_SIZE or MIN_STACK_SIZE of a kernel; None when the cubin states none."""
        return self._numbers.get(code, {}).get(kernel.symbol.index)

    @cached_property
    def _words(self) -> dict[int, npt.NDArray[np.uint64]]:
        """Code section -> its words, in the order of :attr:`whole`."""
        return {
            kernel.section_index: kernel.words[: self._ends.get(kernel.section_index)] for kernel in self.kernels
        }

    @cached_property
    def whole(self) -> Code:
        """One Code over all sections: a process, or a look at the tables, is paid once a cubin."""
        words = list(self._words.values())
        if not words:
            return code_of(self.arch, np.zeros((0, 2), np.uint64))
        addresses = [np.arange(len(w), dtype=np.int64) * self.arch.instruction_size for w in words]
        return code_of(self.arch, np.concatenate(words), np.concatenate(addresses))

    @cached_property
    def _parts(self) -> dict[int, Code]:
        parts: dict[int, Code] = {}
        start = 0
        for index, words in self._words.items():
            parts[index] = self.whole.part(start, start + len(words))
            start += len(words)
        return parts

    def indirect_targets(self, kernel: KernelDef) -> dict[int, tuple[int, ...]]:
        """Byte address of each indirect branch -> byte addresses of its targets. Raises CubinError."""
        found = self.attribute(Attr.INDIRECT_BRANCH_TARGETS, kernel)
        if found is None:
            return {}
        end = len(self._words[kernel.section_index]) * self.arch.instruction_size
        return {b.branch: b.targets for b in nvinfo.indirect_branches(found) if b.branch < end}

    @cached_property
    def tally(self) -> tuple[Tally, dict[int, int]]:
        """Counts over all sections, and the place of each section in them. Raises CubinError, ToolError."""
        from gwatch.inspect.tally import Tally

        sections = {kernel.section_index: kernel for kernel in self.kernels}
        starts, start = [], 0
        for words in self._words.values():
            starts.append(start)
            start += len(words)
        indirect = [self.indirect_targets(sections[index]) for index in self._words]
        return Tally(self.whole, starts, indirect), {index: place for place, index in enumerate(self._words)}

    def code(self, kernel: KernelDef) -> Code:
        """The words of the kernel's section."""
        return self._parts[kernel.section_index]

    @cached_property
    def toolkit(self) -> str:
        """Version of the compiler as far as the cubin says ("13.0.48", "12.8"), else ""."""
        elf = self.cubin.elf
        note = elf.find(".note.nv.tkinfo")
        match = _RELEASE.search(elf.content(note)) if note is not None else None
        if match is not None:
            return match[2].decode()
        for records in self._attributes.values():
            version = nvinfo.first(records, Attr.CUDA_API_VERSION)
            if version is not None and len(version.words) == 1:
                return f"{version.words[0] // 10}.{version.words[0] % 10}"
        return ""

    @cached_property
    def marks_spills(self) -> bool:
        """Whether the compiler marked the spill code it made, so that no mark means no spill.

        ptxas does since 12.8. Of cubins that went through nvlink, or don't say what made them, only those with marks
        are known to have them.
        """
        note = self.cubin.elf.find(".note.nv.tkinfo")
        content = self.cubin.elf.content(note) if note is not None else b""
        match = _RELEASE.search(content)
        if b"ptxas\0" in content and match is not None:
            major, minor = match[1].split(b".")
            if (int(major), int(minor)) >= FIRST_TO_MARK:
                return True
        return any(record.code == Attr.ANNOTATIONS for found in self._attributes.values() for record in found)
