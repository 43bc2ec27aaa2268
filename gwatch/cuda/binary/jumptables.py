"""Jump tables: where they are, and the same tables for moved code.

A kernel with indirect branches (``BRX``) lists each in INDIRECT_BRANCH_TARGETS: byte offset of the branch and of its
targets. The table itself is a run of 32-bit byte offsets in ``.nv.constant2.<kernel>``, without relocations, and holds
exactly the listed targets in the listed order (35 of 35 tables of compiler output looked at, duplicates included). So a
table is found by its contents: a list that occurs once is the table, because the table always occurs.

The branch adds the loaded offset to ``next pc + immediate`` = the start of the section; that immediate is in the code,
so the caller of :func:`gwatch.cuda.binary.relayout.apply_edit` keeps it pointing at the start.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.codemap import CodeMap
from gwatch.cuda.binary.elf import Elf, Section
from gwatch.cuda.binary.nvinfo import Attr, Attribute, IndirectBranch
from gwatch.errors import UnsupportedError

BANK = ".nv.constant2"
BANK_SIZE = 65536
COPY_ALIGN = 16


@dataclass(frozen=True, slots=True)
class JumpTables:
    """The tables of one code section: its records, the bank section, and the word indices that hold code offsets."""

    branches: tuple[IndirectBranch, ...]
    section: Section
    words: tuple[int, ...]

    @property
    def stride(self) -> int:
        """Bytes from a table to the same table of the next copy of the code, when a rewritten kernel has several.

        The code of copy c has to load from its table's old offset + c * stride.
        """
        return -(-self.section.size // COPY_ALIGN) * COPY_ALIGN


def find_tables(elf: Elf, section_index: int, attributes: tuple[Attribute, ...]) -> JumpTables | None:
    """The jump tables of a code section; None when it has no indirect branches.

    Raises UnsupportedError [jump-table] when a table can't be told from other constants.
    """
    branches: tuple[IndirectBranch, ...] = ()
    for attribute in attributes:
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS:
            branches += nvinfo.indirect_branches(attribute)
    if not branches:
        return None
    name = elf.section(section_index).name.removeprefix(".text.")
    banks = [s for s in elf.sections if s.in_file and s.info == section_index and s.name.startswith(BANK)]
    if len(banks) != 1:
        raise UnsupportedError(
            "jump-table", f"{name} has indirect branches, but {len(banks)} constant banks 2"
        )
    content = elf.content(banks[0])
    if len(content) > BANK_SIZE:
        raise UnsupportedError(
            "jump-table", f"{banks[0].name} has {len(content)} bytes, a bank holds {BANK_SIZE}"
        )
    found: set[int] = set()
    for targets, wanted in Counter(branch.targets for branch in branches).items():
        count = len(targets)
        hits = _places(content, struct.pack(f"<{count}I", *targets)) if count else []
        # Branches with equal lists may share a table or have one each; any other surplus is a coincidence.
        if not hits or len(hits) > wanted:
            raise UnsupportedError(
                "jump-table",
                f"{name}: a jump table of {count} targets occurs {len(hits)} times in {banks[0].name}",
                "gwatch does not change a kernel whose jump table it cannot tell from other constants",
            )
        for at in hits:
            found.update(range(at, at + count))
    return JumpTables(branches, banks[0], tuple(sorted(found)))


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
    """New contents of the constant bank: the old ones with moved tables, once per copy of the code.

    Raises UnsupportedError [jump-table] when they exceed the bank.
    """
    out = b""
    for copy in range(code.copies):
        out += bytes(copy * tables.stride - len(out))
        fresh = bytearray(content)
        for word in tables.words:
            old = int.from_bytes(content[4 * word : 4 * word + 4], "little")
            moved = code.target_of(old, copy, f"a jump table in {tables.section.name}")
            fresh[4 * word : 4 * word + 4] = moved.to_bytes(4, "little")
        out += fresh
    if len(out) > BANK_SIZE:
        raise UnsupportedError(
            "jump-table", f"{tables.section.name} would need {len(out)} of {BANK_SIZE} bytes"
        )
    return out


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
