"""The control-flow graph as the seed API shows it: basic blocks by id and by byte address.

The graph itself is :mod:`gwatch.sass.cfg`'s; it is built when its blocks are first asked for, so that
``cfg.instruction_size`` needs no instruction tables.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.sass.cfg import Cfg

Edge = tuple[int, int, int]
"""(block id, from pc, to pc): the other block, the address jumped from, the address reached."""


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions ``base_pc`` to ``end_pc`` (the last one's address, inclusive), entered at the top only."""

    id: int
    base_pc: int
    end_pc: int
    predecessors: tuple[Edge, ...]
    successors: tuple[Edge, ...]
    _kernel: KernelDef = field(repr=False, compare=False)

    @property
    def nb_instructions(self) -> int:
        return (self.end_pc - self.base_pc) // INSTRUCTION_SIZE + 1

    @property
    def instruction_strs(self) -> list[str]:
        """Text of its instructions, as nvdisasm prints it."""
        first = self.base_pc // INSTRUCTION_SIZE
        return list(self._kernel.texts[first : first + self.nb_instructions])

    def serialize(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "id": self.id,
            "base_pc": self.base_pc,
            "end_pc": self.end_pc,
            "predecessors": [list(edge) for edge in self.predecessors],
            "successors": [list(edge) for edge in self.successors],
            "instructions": self.instruction_strs,
        }


class CFG:
    """Control flow of one kernel, functions inside its section included."""

    instruction_size = INSTRUCTION_SIZE

    def __init__(self, kernel: KernelDef) -> None:
        self._kernel = kernel

    @cached_property
    def graph(self) -> Cfg:
        """The graph by instruction index. Raises UnsupportedError [word-unknown] where the tables know too little."""
        from gwatch.sass.cfg import build_cfg
        from gwatch.sass.isa import isa_for

        kernel = self._kernel
        return build_cfg(
            isa_for(kernel.arch), kernel.words, kernel.entry_indices, kernel.indirect_targets, kernel.pointer_callees
        )

    @cached_property
    def basic_blocks(self) -> tuple[BasicBlock, ...]:
        """Blocks in address order; ``basic_blocks[i].id == i``."""
        graph, size = self.graph, self.instruction_size
        blocks = graph.blocks
        owner = {block.start: number for number, block in enumerate(blocks)}
        successors: list[list[Edge]] = [[] for _ in blocks]
        predecessors: list[list[Edge]] = [[] for _ in blocks]
        for number, block in enumerate(blocks):
            last = block.end - 1
            for item in graph.successors(last):
                successors[number].append((owner[item], last * size, item * size))
                predecessors[owner[item]].append((number, last * size, item * size))
        return tuple(
            BasicBlock(
                number, block.start * size, (block.end - 1) * size, tuple(predecessors[number]),
                tuple(successors[number]), self._kernel,
            )
            for number, block in enumerate(blocks)
        )  # fmt: skip

    @property
    def nb_basic_blocks(self) -> int:
        return len(self.basic_blocks)

    def get_basic_block_by_id(self, number: int) -> BasicBlock | None:
        """Block by id; None if absent."""
        return self.basic_blocks[number] if 0 <= number < len(self.basic_blocks) else None

    def get_basic_block_by_pc(self, pc: int) -> BasicBlock | None:
        """The block that holds byte address ``pc``; None outside the code."""
        found = bisect_right(self.basic_blocks, pc, key=lambda block: block.base_pc) - 1
        return (
            self.basic_blocks[found]
            if found >= 0 and pc < self.basic_blocks[found].end_pc + INSTRUCTION_SIZE
            else None
        )

    def serialize(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "instruction_size": self.instruction_size,
            "basic_blocks": [block.serialize() for block in self.basic_blocks],
        }
