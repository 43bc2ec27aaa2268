"""Code offsets in constants: jump tables and function tables, where they are, and the same tables for moved code.

*Jump tables.* A kernel with indirect branches (``BRX``) lists each in INDIRECT_BRANCH_TARGETS: byte offset of the
branch and of its targets. The table itself is a run of 32-bit byte offsets in ``.nv.constant2.<kernel>``, without
relocations, and holds exactly the listed targets in the listed order; the load in front of the branch names its start
(43,317 of 43,317 branches of the sm_90 kernels of one large wheel, duplicates included). So a table is found by its
contents, and where a list occurs several times, by the loads. The branch adds the loaded offset to ``next pc +
immediate`` = the start of the section; that immediate is in the code, so the caller of
:func:`gwatch.cuda.binary.relayout.apply_edit` keeps it pointing at the start.

*Function tables.* Where a module has several kernels, a function pointer is a byte offset into
``.nv.constant2.<kernel>``: 64-bit words, the first 1 (the null pointer: no instruction is there), the others byte
offsets of functions inside the section; a call through the pointer loads its target from there. Seen at offset 0 of the
bank, before any jump table.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.codemap import CodeMap
from gwatch.cuda.binary.elf import STT_FUNC, Elf, Section
from gwatch.cuda.binary.nvinfo import Attr, Attribute, IndirectBranch
from gwatch.errors import UnsupportedError

BANK = ".nv.constant2"
BANK_SIZE = 65536
COPY_ALIGN = 16
NULL_FUNCTION = 1
_FUNCTION_BYTES = 8
# Opcode -> lowest bit of the offset of loads with an index: LDC Rd, c[bank][Ra + offset] and, on sm_100 and later, LDCU
# with uniform registers. The bank is in bits 54-58 of both; alike on all architectures looked at (sm_75 to sm_120).
_LOADS = {0xB82: 38, 0x7AC: 37}
_BANK_SHIFT, _TABLE_BANK = 54, 2


@dataclass(frozen=True, slots=True)
class JumpTables:
    """The tables of one code section: its records, the bank section, and the word indices that hold code offsets.

    ``functions``: byte offsets of the functions that a pointer may name, in table order; the function table starts at
    byte 0 of the bank when there are any.
    """

    branches: tuple[IndirectBranch, ...]
    section: Section
    words: tuple[int, ...]
    functions: tuple[int, ...]

    @property
    def stride(self) -> int:
        """Bytes from a table that the untouched copy of the code reads to the same table of the changed copy.

        With one copy of the code there is one set of tables, in place.
        """
        return -(-self.section.size // COPY_ALIGN) * COPY_ALIGN

    def holds(self, offset: int, size: int) -> bool:
        """Whether all words of the bank's bytes ``offset`` to ``offset + size`` are moved with the code."""
        return offset % 4 == 0 and set(range(offset // 4, (offset + size) // 4)) <= set(self.words)


def find_tables(elf: Elf, section_index: int, attributes: tuple[Attribute, ...]) -> JumpTables | None:
    """The tables of a code section; None when it has neither indirect branches nor a function table.

    Raises UnsupportedError [jump-table] when a table can't be told from other constants.
    """
    branches = tuple(
        branch
        for attribute in attributes
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS
        for branch in nvinfo.indirect_branches(attribute)
    )
    name = elf.section(section_index).name.removeprefix(".text.")
    banks = [s for s in elf.sections if s.in_file and s.info == section_index and s.name.startswith(BANK)]
    if not branches and len(banks) != 1:
        return None
    if len(banks) != 1:
        raise UnsupportedError(
            "jump-table", f"{name} has indirect branches and {len(banks)} banks {BANK} for their tables"
        )
    content = elf.content(banks[0])
    if len(content) > BANK_SIZE:
        raise UnsupportedError(
            "jump-table", f"{banks[0].name} has {len(content)} bytes, a bank holds {BANK_SIZE}"
        )
    functions = _function_table(elf, section_index, content)
    if not branches and not functions:
        return None
    found = {_FUNCTION_BYTES * (1 + number) // 4 for number in range(len(functions))}
    doubtful: list[tuple[IndirectBranch, list[int]]] = []
    loads = _table_loads(elf, section_index) if branches else frozenset()
    for branch in {branch.targets: branch for branch in branches}.values():
        count = len(branch.targets)
        hits = _places(content, struct.pack(f"<{count}I", *branch.targets)) if count else []
        chosen = hits if len(hits) == 1 else [at for at in hits if 4 * at in loads]
        for at in chosen:
            found.update(range(at, at + count))
        if not chosen:
            doubtful.append((branch, hits))
    for branch, hits in doubtful:
        count = len(branch.targets)
        if not hits or not all(found.issuperset(range(at, at + count)) for at in hits):
            raise UnsupportedError(
                "jump-table",
                f"{name}: the jump table ({count} targets) of the branch at {branch.branch:#x} occurs {len(hits)} "
                f"times in {banks[0].name}",
                "gwatch does not change a kernel whose jump table it cannot tell from other constants",
            )
    return JumpTables(branches, banks[0], tuple(sorted(found)), functions)


def pointed_functions(elf: Elf, section_index: int) -> tuple[int, ...]:
    """Byte offsets that the function table of a code section names; empty where there is none."""
    banks = [s for s in elf.sections if s.in_file and s.info == section_index and s.name.startswith(BANK)]
    return _function_table(elf, section_index, elf.content(banks[0])) if len(banks) == 1 else ()


def _function_table(elf: Elf, section_index: int, content: bytes) -> tuple[int, ...]:
    starts = {s.value for s in elf.symbols if s.kind == STT_FUNC and s.section == section_index and s.value}
    words = [
        value for (value,) in struct.iter_unpack("<Q", content[: len(content) // _FUNCTION_BYTES * _FUNCTION_BYTES])
    ]
    found: list[int] = []
    if words[:1] == [NULL_FUNCTION]:
        for value in words[1:]:
            if value not in starts:
                break
            found.append(value)
    return tuple(found)


def _table_loads(elf: Elf, section_index: int) -> frozenset[int]:
    """Byte offsets in the bank that indexed loads of the code start from."""
    code = elf.content(elf.section(section_index))
    words = np.frombuffer(code[: len(code) // 16 * 16], dtype="<u8").reshape(-1, 2)
    low = words[(words[:, 0] >> np.uint64(_BANK_SHIFT) & np.uint64(31)) == np.uint64(_TABLE_BANK), 0]
    found: set[int] = set()
    for opcode, shift in _LOADS.items():
        mine = low[(low & np.uint64(0xFFF)) == np.uint64(opcode)]
        found.update((mine >> np.uint64(shift) & np.uint64(0xFFFF)).tolist())
    return frozenset(found)


def _places(content: bytes, table: bytes) -> list[int]:
    """Word indices where a table occurs."""
    found = []
    at = content.find(table)
    while at >= 0:
        if at % 4 == 0:
            found.append(at // 4)
        at = content.find(table, at + 1)
    return found


def moved_bank(tables: JumpTables, content: bytes, code: CodeMap) -> bytes:
    """New contents of the constant bank: the tables of the first copy of the code, which was changed.

    Alone, it has them in place. Where an untouched copy follows, that one keeps the old bytes (its code counts from its
    own start, as the old code did) and the changed copy finds its tables ``stride`` bytes further; other constants keep
    value and place. Raises UnsupportedError [jump-table] when both exceed the bank.
    """
    fresh = bytearray(content)
    for word in tables.words:
        old = int.from_bytes(content[4 * word : 4 * word + 4], "little")
        moved = code.target_of(old, 0, f"a table in {tables.section.name}")
        fresh[4 * word : 4 * word + 4] = moved.to_bytes(4, "little")
    if code.copies == 1:
        return bytes(fresh)
    out = content + bytes(tables.stride - len(content)) + fresh
    if len(out) > BANK_SIZE:
        raise UnsupportedError(
            "jump-table", f"{tables.section.name} would need {len(out)} of {BANK_SIZE} bytes"
        )
    return bytes(out)


def moved_records(attribute: Attribute, code: CodeMap) -> Attribute:
    """INDIRECT_BRANCH_TARGETS with branches (place map) and targets (target map) moved, once per copy of the code."""
    words: list[int] = []
    for copy in range(code.copies):
        for branch in nvinfo.indirect_branches(attribute):
            words += [
                code.place_of(branch.branch, copy, "an indirect branch"),
                branch.tag,
                len(branch.targets),
            ]
            words += [
                code.target_of(target, copy, "an indirect branch's target") for target in branch.targets
            ]
    return attribute.with_words(words)
