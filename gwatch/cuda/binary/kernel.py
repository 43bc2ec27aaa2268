"""A kernel (or a device function with a section of its own) inside a cubin: words, resources, parameters,
lines.

Everything is read lazily and without a driver. Instruction words are one ``(n, 2) uint64`` array over the
section's bytes; what they say is worked out once per kernel (:mod:`gwatch.sass.code`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.elf import STO_CUDA_ENTRY, STT_FUNC, Elf, Relocation, Section, Symbol
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE, Instruction
from gwatch.cuda.binary.nvinfo import Attr, Attribute, Parameter
from gwatch.errors import CubinError, SiteError, UnsupportedError
from gwatch.sass.arch import Arch
from gwatch.sass.code import Code, code_of

if TYPE_CHECKING:
    from gwatch.cuda.binary.graph import CFG
    from gwatch.cuda.binary.jumptables import JumpTables
    from gwatch.cuda.binary.lines import Call, LineTable


_REGISTER_CLASSES = {"R": "general", "P": "predicate", "UR": "uniform_general", "UP": "uniform_predicate"}


class Instructions(Sequence[Instruction]):
    """A kernel's instructions in address order, made on access: 45,000 of them cost no 45,000 objects."""

    def __init__(self, kernel: KernelDef) -> None:
        self._kernel = kernel

    def __len__(self) -> int:
        return len(self._kernel.words)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Instruction]: ...
    def __getitem__(self, index: int | slice) -> Instruction | list[Instruction]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        low, high = self._kernel.words[position].tolist()
        return Instruction(position, high << 64 | low, self._kernel.text)

    def __iter__(self) -> Iterator[Instruction]:
        text = self._kernel.text
        for position, (low, high) in enumerate(self._kernel.words.tolist()):
            yield Instruction(position, high << 64 | low, text)


class KernelDef:
    """One kernel definition. Made by :class:`~gwatch.cuda.binary.cubin.Cubin`; treat it as read-only."""

    def __init__(self, elf: Elf, arch: Arch, symbol: Symbol) -> None:
        self._elf = elf
        self.arch = arch
        self.symbol = symbol
        self.name = symbol.name
        self.section_index = symbol.section
        self.is_entry = bool(symbol.other & STO_CUDA_ENTRY)
        self._cfg: CFG | None = None

    def __repr__(self) -> str:
        return f"KernelDef({self.name!r}, {len(self.words)} instructions, {self.arch.name})"

    @property
    def mangled_prototype(self) -> str:
        """The kernel's (mangled) name."""
        return self.name

    @property
    def section(self) -> Section:
        return self._elf.section(self.section_index)

    # code ---------------------------------------------------------------------------------------------------

    @cached_property
    def words(self) -> npt.NDArray[np.uint64]:
        """All instruction words of the section, shape (n, 2): low and high half. Read-only.

        Raises CubinError [text-size] when the section isn't whole instructions.
        """
        content = self._elf.content(self.section)
        if not content or len(content) % INSTRUCTION_SIZE:
            raise CubinError(
                "text-size", f"{self._elf.what}: code section {self.section.name} has {len(content)} bytes,"
                f" not whole instructions of {INSTRUCTION_SIZE}"
            )  # fmt: skip
        return np.frombuffer(content, dtype="<u8").reshape(-1, 2)

    @cached_property
    def list_instructions(self) -> Instructions:
        """Instructions in address order, padding included; index i sits at pc ``i * 16``."""
        return Instructions(self)

    def get_list_instruction(self) -> Instructions:
        """Same as :attr:`list_instructions`."""
        return self.list_instructions

    @property
    def map_pc_to_instruction(self) -> dict[int, Instruction]:
        """Byte address -> instruction."""
        return {instruction.pc: instruction for instruction in self.list_instructions}

    @cached_property
    def code(self) -> Code:
        """The instructions as columns: opcodes, guards, targets, text."""
        return code_of(self.arch, self.words)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """nvdisasm's text of every instruction, branch targets absolute; ``(undecoded) 0x…`` for words that nothing
        reads.

        Raises ToolError [nvdisasm-missing] for an architecture with neither a table nor an nvdisasm to read it.
        """
        return tuple(self.code.texts)

    def text(self, index: int) -> str:
        """Text of one instruction."""
        return self.texts[index]

    @cached_property
    def inner_functions(self) -> tuple[Symbol, ...]:
        """Function symbols inside this section besides the kernel itself, by address."""
        inside = [
            s for s in self._elf.symbols
            if s.kind == STT_FUNC and s.section == self.section_index and s.index != self.symbol.index
        ]  # fmt: skip
        return tuple(sorted(inside, key=lambda s: s.value))

    @property
    def entry_indices(self) -> tuple[int, ...]:
        """Instruction indices where code is entered by name: the kernel's start and its inner functions.

        Raises CubinError [code-offset] for a function symbol that names no instruction.
        """
        starts = {0}
        for symbol in self.inner_functions:
            index, rest = divmod(symbol.value, INSTRUCTION_SIZE)
            if rest or index >= len(self.words):
                raise CubinError(
                    "code-offset",
                    f"{self._elf.what}: function {symbol.name} starts at {symbol.value:#x} of {self.name}",
                )
            starts.add(index)
        return tuple(sorted(starts))

    @cached_property
    def relocations(self) -> tuple[Relocation, ...]:
        """All relocations of the kernel's code; ``offset`` is a byte offset into its section."""
        tables = self._elf.relocation_sections(self.section_index)
        return tuple(entry for table in tables for entry in self._elf.relocations(table))

    @cached_property
    def jump_tables(self) -> JumpTables | None:
        """Jump and function tables of the kernel; None without any. Raises UnsupportedError [jump-table]."""
        from gwatch.cuda.binary.jumptables import find_tables

        return find_tables(self._elf, self.section_index, self.attributes)

    @cached_property
    def pointer_callees(self) -> tuple[int, ...]:
        """Indices of the functions inside the section that a function pointer may name; empty where none is listed.

        Raises what :meth:`index_of` raises.
        """
        from gwatch.cuda.binary.jumptables import pointed_functions

        offsets = pointed_functions(self._elf, self.section_index)
        return tuple(self.index_of(offset) for offset in dict.fromkeys(offsets))

    def table_bytes(self) -> bytes:
        """The bank that holds the kernel's tables (``c[0x2]``); empty without any."""
        tables = self.jump_tables
        return b"" if tables is None else self._elf.content(tables.section)

    @cached_property
    def indirect_targets(self) -> dict[int, tuple[int, ...]]:
        """Index of each indirect branch (BRX) -> indices of all its targets, as the compiler lists them.

        Raises SiteError [pc-unaligned] or [pc-range] where a listed offset is no instruction.
        """
        return {
            self.index_of(branch.branch): tuple(self.index_of(target) for target in branch.targets)
            for attribute in self.attributes
            if attribute.code == Attr.INDIRECT_BRANCH_TARGETS
            for branch in nvinfo.indirect_branches(attribute)
        }

    @cached_property
    def map_registers(self) -> dict[str, set[int]]:
        """Registers named by the code: class (general, predicate, uniform_general, uniform_predicate) -> numbers.

        Raises UnsupportedError [word-unknown] when the tables cannot read an instruction completely.
        """
        from gwatch.sass.isa import FILE_NAMES, isa_for

        uses = isa_for(self.arch).uses(self.words)
        unknown = np.flatnonzero(~uses.complete)
        if len(unknown):
            raise UnsupportedError(
                "word-unknown", f"{self.name}: not all registers of instruction {int(unknown[0])} are known"
            )
        found: dict[str, set[int]] = {name: set() for name in _REGISTER_CLASSES.values()}
        for code, file in enumerate(FILE_NAMES):
            if file in _REGISTER_CLASSES:
                mine = uses.file == code
                for first, count in zip(uses.first[mine].tolist(), uses.count[mine].tolist(), strict=True):
                    found[_REGISTER_CLASSES[file]].update(range(first, first + count))
        return found

    # control flow -------------------------------------------------------------------------------------------

    def parse_cfg(self) -> None:
        """Provide :attr:`cfg`; calling it again does nothing."""
        if self._cfg is None:
            from gwatch.cuda.binary.graph import CFG

            self._cfg = CFG(self)

    @property
    def cfg(self) -> CFG | None:
        """The control-flow graph, None before :meth:`parse_cfg`."""
        return self._cfg

    # resources and parameters -------------------------------------------------------------------------------

    @cached_property
    def info_section(self) -> Section | None:
        """The kernel's own ``.nv.info.<name>`` section."""
        return next(
            (
                s
                for s in self._elf.sections
                if s.info == self.section_index and s.name.startswith(".nv.info.")
            ),
            None,
        )

    @cached_property
    def attributes(self) -> tuple[Attribute, ...]:
        """Records of the kernel's own ``.nv.info`` section in file order."""
        section = self.info_section
        return nvinfo.parse(self._elf.content(section), section.name) if section is not None else ()

    @cached_property
    def register_count(self) -> int:
        """Registers per thread the launch allocates (REGCOUNT). Raises CubinError [regcount-missing] or
        [regcount-range]."""
        section = self._elf.find(".nv.info")
        counts = nvinfo.by_symbol(nvinfo.parse(self._elf.content(section)), Attr.REGCOUNT) if section else {}
        if self.symbol.index not in counts:
            raise CubinError("regcount-missing", f"{self._elf.what}: no REGCOUNT attribute for {self.name}")
        count = counts[self.symbol.index]
        if count > self.arch.max_registers:
            raise CubinError(
                "regcount-range",
                f"{self._elf.what}: {self.name} states {count} registers, a thread has at most "
                f"{self.arch.max_registers}",
                "the attribute section is damaged; compile the kernel again",
            )
        return count

    @cached_property
    def cluster_dim(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster as (x, y, z) where the code fixes them (``__cluster_dims__``), else None: then the launch
        says."""
        found = nvinfo.dims(self.attributes, Attr.CTA_PER_CLUSTER)
        return found if found is not None and all(found) else None

    @property
    def max_threads(self) -> tuple[int, int, int] | None:
        """Launch bounds (REQNTID, else MAX_THREADS) as x, y, z; None when the kernel states none."""
        required = nvinfo.dims(self.attributes, Attr.REQNTID)
        return nvinfo.dims(self.attributes, Attr.MAX_THREADS) if required is None else required

    @cached_property
    def params(self) -> tuple[Parameter, ...]:
        """Parameters in signature order: ``(ordinal, offset, size)``, offsets relative to
        :attr:`param_base`."""
        return nvinfo.parameters(self.attributes)

    @property
    def param_base(self) -> int | None:
        """Byte offset of the parameters in constant bank 0 (PARAM_CBANK); None for device functions."""
        attribute = nvinfo.first(self.attributes, Attr.PARAM_CBANK)
        return None if attribute is None or len(attribute.words) != 2 else attribute.words[1] & 0xFFFF

    @property
    def list_param_sizes(self) -> list[int]:
        """Byte sizes of the parameters in signature order."""
        return [p.size for p in self.params]

    @property
    def list_param_offsets(self) -> list[int]:
        """Byte offsets of the parameters in signature order."""
        return [p.offset for p in self.params]

    @property
    def list_param_sizes_reversed(self) -> list[int]:
        return self.list_param_sizes[::-1]

    @property
    def list_param_offsets_reversed(self) -> list[int]:
        return self.list_param_offsets[::-1]

    # source lines -------------------------------------------------------------------------------------------

    def _line_table(self, section: str) -> LineTable:
        from gwatch.cuda.binary.lines import line_table

        return line_table(self._elf, section, self.section_index)

    @cached_property
    def line_table(self) -> LineTable:
        """Rows of ``.debug_line`` for this kernel (empty without ``-lineinfo`` / ``-G``)."""
        return self._line_table(".debug_line")

    @cached_property
    def ptx_line_table(self) -> LineTable:
        """Rows of ``.nv_debug_line_sass``: lines of the PTX text the kernel was compiled from."""
        return self._line_table(".nv_debug_line_sass")

    @cached_property
    def map_address_to_line(self) -> dict[int, tuple[str, int]]:
        """Byte address -> (file, line) for every instruction with line information."""
        return self.line_table.by_address(len(self.words) * INSTRUCTION_SIZE)

    @cached_property
    def map_line_to_addresses(self) -> dict[tuple[str, int], list[int]]:
        """(file, line) -> byte addresses, ascending."""
        return _inverse(self.map_address_to_line)

    @cached_property
    def set_filepaths(self) -> set[str]:
        """Files that appear in :attr:`map_address_to_line`."""
        return {file for file, _ in self.map_address_to_line.values()}

    @cached_property
    def inlined_at(self) -> dict[int, tuple[Call, ...]]:
        """Byte address -> call sites the instruction was inlined through, innermost first; absent when not
        inlined."""
        return self.line_table.calls_by_address(len(self.words) * INSTRUCTION_SIZE)

    @cached_property
    def map_address_to_ptx_line(self) -> dict[int, tuple[str, int]]:
        """Byte address -> (PTX text name, line)."""
        return self.ptx_line_table.by_address(len(self.words) * INSTRUCTION_SIZE)

    @cached_property
    def map_ptx_line_to_addresses(self) -> dict[tuple[str, int], list[int]]:
        return _inverse(self.map_address_to_ptx_line)

    @property
    def set_ptx_filepaths(self) -> set[str]:
        """Files that appear in :attr:`map_address_to_ptx_line`."""
        return {file for file, _ in self.map_address_to_ptx_line.values()}

    # helpers ------------------------------------------------------------------------------------------------

    def check_index(self, index: int) -> None:
        """Raise SiteError [site-range] unless ``index`` is one of the kernel's instructions."""
        if not 0 <= index < len(self.words):
            raise SiteError(
                "site-range",
                f"{self.name}: index {index} is outside its {len(self.words)} instructions",
                f"give an index from 0 to {len(self.words) - 1}",
            )

    def index_of(self, pc: int) -> int:
        """Instruction index of a byte address. Raises SiteError [pc-unaligned] or [pc-range]."""
        if pc % INSTRUCTION_SIZE:
            raise SiteError(
                "pc-unaligned",
                f"{self.name}: address {pc:#x} is no multiple of {INSTRUCTION_SIZE}",
                "give the address of an instruction",
            )
        if not 0 <= pc < len(self.words) * INSTRUCTION_SIZE:
            raise SiteError(
                "pc-range",
                f"{self.name}: address {pc:#x} is outside its {len(self.words)} instructions",
                f"give an address below {len(self.words) * INSTRUCTION_SIZE:#x}",
            )
        return pc // INSTRUCTION_SIZE


def _inverse(lines: dict[int, tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    addresses: dict[tuple[str, int], list[int]] = {}
    for address in sorted(lines):
        addresses.setdefault(lines[address], []).append(address)
    return addresses
