"""Everything outside the code that points into it or bounds it: attributes, tables, symbols, relocations, registers.

Which instructions an attribute may point at was read off compiler output of sm_75 to sm_120 (764 kernels, 20,000
offsets, no exception); so was that EXIT_INSTR_OFFSETS lists every EXIT and nothing else, and that a kernel's count of
registers is at least three above its highest one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.nvinfo import OFFSET_SHAPES, Attr
from gwatch.errors import CubinError, GWatchError
from gwatch.sass.cfg import opcode_keys

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin, KernelDef
    from gwatch.sass.uses import CodeView

SPARE = 2
"""Registers at the top of a kernel's count that its code may not name."""
_WARP_WIDE = frozenset({"VOTE", "VOTEU", "SHFL", "REDUX", "CREDUX", "MATCH", "NOP"})
_POINTED_AT = {
    Attr.EXIT_INSTR_OFFSETS: frozenset({"EXIT"}),
    Attr.SYSCALL_OFFSETS: frozenset({"CALL"}),
    Attr.COOP_GROUP_INSTR_OFFSETS: _WARP_WIDE | {"BAR", "WARPSYNC", "CALL"},
    Attr.INT_WARP_WIDE_INSTR_OFFSETS: _WARP_WIDE,
    Attr.MBARRIER_INSTR_OFFSETS: frozenset({"SYNCS", "NOP", "CALL"}),
    Attr.UNUSED_LOAD_BYTE_OFFSET: frozenset({"LDS", "LDG", "LD", "LDL", "LDC", "LDCU", "LDSM"}),
    Attr.INSTR_REG_MAP: frozenset({"NOP"}),
    Attr.ATOM16_EMUL_INSTR_REG_MAP: frozenset({"LD", "LDG", "LDS", "ATOM", "ATOMG", "ATOMS"}),
}
_SPILLS = 1
"""ANNOTATIONS of this kind point at spills."""
_LOCAL = frozenset({"STL", "LDL"})
_INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU"})
_SPECIAL_READS = frozenset({"S2R", "S2UR"})
_COUNT_SHIFT = 24
_BANK = ".nv.constant2"
_DISPLACEMENT = re.compile(r"-?0x[0-9a-f]+$")

Report = Callable[[int | None, str, str], None]


class HolderChecker:
    """Follows every holder of a code offset of one kernel; ``report`` takes (index, kind, cause)."""

    def __init__(self, cubin: Cubin, kernel: KernelDef, view: CodeView, report: Report) -> None:
        self.cubin, self.kernel, self.view, self.report = cubin, kernel, view, report
        self.size = cubin.arch.instruction_size
        self.followed = 0

    def run(self, live: Iterable[bool]) -> int:
        """Report what is wrong; the number of offsets followed. ``live``: which instructions can run."""
        section = self.kernel.section
        if section.size % (8 * self.size):
            self.report(None, "text-size", f"{section.name} has {section.size} bytes, not a multiple of 128")
        exits: set[int] = set()
        for attribute in self.kernel.attributes:
            exits.update(self._attribute(attribute))
        self._exits(exits, live)
        self._tables()
        self._symbols()
        self._relocations()
        self._registers()
        self._specials()
        return self.followed

    def _place(self, offset: int, holder: str) -> int | None:
        """The instruction at byte ``offset``; reports an offset that is none."""
        self.followed += 1
        index, rest = divmod(offset, self.size)
        if rest or index >= len(self.view):
            self.report(None, "offset", f"{holder} holds {offset:#x}, which is no instruction of the kernel")
            return None
        return index

    def _attribute(self, attribute: nvinfo.Attribute) -> Iterator[int]:
        """The places an offset list points at, where it is the list of exits."""
        try:
            entries = nvinfo.entries(attribute)
        except CubinError as error:
            self.report(None, "attribute", error.message)
            return
        for entry in entries:
            allowed = _POINTED_AT.get(Attr(attribute.code))
            if attribute.code == Attr.ANNOTATIONS and entry[0] == _SPILLS:
                allowed = _LOCAL
            index = self._place(entry[OFFSET_SHAPES[attribute.code].column], attribute.name)
            if index is None:
                continue
            facts = self.view.facts(index)
            if allowed is not None and facts.known and facts.mnemonic not in allowed:
                self.report(index, "offset", f"{attribute.name} points at this {facts.mnemonic}")
            if attribute.code == Attr.EXIT_INSTR_OFFSETS:
                yield index

    def _exits(self, listed: set[int], live: Iterable[bool]) -> None:
        if not any(item.code == Attr.EXIT_INSTR_OFFSETS for item in self.kernel.attributes):
            return
        for index in np.flatnonzero(np.asarray(list(live))).tolist():
            if self.view.facts(index).mnemonic == "EXIT" and index not in listed:
                self.report(index, "offset", "EXIT_INSTR_OFFSETS does not list this EXIT")

    def _tables(self) -> None:
        """Jump tables: their records name indirect branches and instructions, and the table itself is there."""
        listed: set[int] = set()
        for attribute in self.kernel.attributes:
            if attribute.code != Attr.INDIRECT_BRANCH_TARGETS:
                continue
            for branch in nvinfo.indirect_branches(attribute):
                index = self._place(branch.branch, attribute.name)
                for target in branch.targets:
                    self._place(target, attribute.name)
                if index is None:
                    continue
                listed.add(index)
                mnemonic = self.view.facts(index).mnemonic
                if mnemonic in _INDIRECT:
                    self._table(index, branch.targets)
                elif self.view.facts(index).known:
                    self.report(
                        index, "offset", f"{attribute.name} names this {mnemonic} as an indirect branch"
                    )
        for index in range(len(self.view)):
            if self.view.facts(index).mnemonic in _INDIRECT and index not in listed:
                self.report(index, "offset", "INDIRECT_BRANCH_TARGETS does not list this indirect branch")

    def _table(self, index: int, targets: tuple[int, ...]) -> None:
        """The table that an indirect branch reads holds its targets, counted from where the branch counts."""
        match = _DISPLACEMENT.search(self.view.facts(index).text.rstrip(" ;"))
        base = self.size * (index + 1) + int(match[0], 16) if match else 0
        wanted = struct.pack(f"<{len(targets)}I", *((target - base) & 0xFFFFFFFF for target in targets))
        banks = [
            self.cubin.elf.content(section)
            for section in self.cubin.elf.sections
            if section.in_file
            and section.info == self.kernel.section_index
            and section.name.startswith(_BANK)
        ]
        if not any(bank.find(wanted) >= 0 for bank in banks):
            self.report(
                index, "jump-table", f"no table holds the {len(targets)} targets listed for this branch"
            )
        self.followed += len(targets)

    def _symbols(self) -> None:
        for symbol in self.kernel.inner_functions:
            if self._place(symbol.value, f"symbol {symbol.name}") is not None and (
                symbol.value + symbol.size > self.kernel.section.size
            ):
                self.report(None, "symbol", f"symbol {symbol.name} ends behind the code")

    def _relocations(self) -> None:
        for entry in self.kernel.relocations:
            self._place(entry.offset // self.size * self.size, "a relocation")

    def _registers(self) -> None:
        try:
            count = self.kernel.register_count
        except GWatchError as error:
            self.report(None, "registers", error.message)
            return
        named = self.view.named("R", certain=True)
        budgets = any(
            "SETMAXREG" in self.view.facts(index).mnemonic for index in self._first_of_each_opcode()
        )
        if named and max(named) + SPARE >= count and not budgets:
            index = self._user_of(max(named))
            self.report(
                index,
                "registers",
                f"uses R{max(named)}; with {count} registers the last usable one is R{count - SPARE - 1}",
            )
        held = self.kernel.section.info >> _COUNT_SHIFT
        if held and held != count:
            self.report(None, "registers", f"the code section says {held} registers, the attribute {count}")

    def _specials(self) -> None:
        if not self.cubin.arch.marks_ctaid_z:
            return
        if any(item.code == Attr.CTAIDZ_USED for item in self.kernel.attributes):
            return
        for index in range(len(self.view)):
            facts = self.view.facts(index)
            if facts.mnemonic in _SPECIAL_READS and "SR_CTAID.Z" in facts.text:
                self.report(index, "attribute", "reads SR_CTAID.Z in a kernel without CTAIDZ_USED")
                return

    def _user_of(self, register: int) -> int:
        """The first instruction that reads or writes ``register``."""
        return next(
            index
            for index in range(len(self.view))
            if any(use.file == "R" and use.covers(register) for use in self.view.facts(index).uses)
        )

    def _first_of_each_opcode(self) -> list[int]:
        _, first = np.unique(opcode_keys(self.view.words), return_index=True)
        found: list[int] = first.tolist()
        return found
