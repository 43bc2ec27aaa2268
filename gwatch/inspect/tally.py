"""What the instructions of all kernels of a cubin say, counted in one go: most kernels are small, and asking each by
itself takes longer than counting does."""

from __future__ import annotations

import itertools
import re
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gwatch.inspect.loops import Loop, find_all_loops
from gwatch.inspect.opcodes import Access, access_of, unit_of
from gwatch.sass.code import Code

_MAXREG = re.compile(r"USETMAXREG\.(\w+)\S*\s+(?:\S+, )?(0x[0-9a-f]+)")
_STACK_SLOT = re.compile(r"\[R1(?:\+-?0x[0-9a-f]+)?\]")

Indirect = dict[int, tuple[int, ...]]


class Opcode(NamedTuple):
    """An opcode with modifiers, what runs it and what it accesses."""

    name: str
    unit: str
    access: Access | None


class Tally:
    """Counts over sections that lie one behind the other in ``code``, each from one of ``starts`` on. ``indirect``: of
    each section, byte address of an indirect branch -> byte addresses of its targets."""

    def __init__(self, code: Code, starts: list[int], indirect: list[Indirect]) -> None:
        self.code, self.starts, self._indirect = code, starts, indirect
        self._edges = np.array([*starts, len(code)], np.int64)

    @cached_property
    def unpadded(self) -> list[int]:
        """Instructions of each section without the NOPs that fill it up."""
        other = np.flatnonzero(~self.code.mask("NOP"))
        if not len(other):
            return [0] * len(self.starts)
        last = np.searchsorted(other, self._edges[1:]) - 1
        ends = np.where(last >= 0, other[last] + 1, 0) - self._edges[:-1]
        return [max(0, end) for end in ends.tolist()]

    @cached_property
    def _opcodes(self) -> tuple[list[Opcode], npt.NDArray[np.int64]]:
        """The opcodes by name, and the place of each of the code's among them."""
        names = self.code.opcode_names
        order = sorted(range(len(names)), key=names.__getitem__)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        return [Opcode(names[n], unit_of(names[n]), access_of(names[n])) for n in order], rank

    @cached_property
    def opcodes(self) -> list[list[tuple[Opcode, int]]]:
        """The opcodes of each section by name, with their counts; padding is none."""
        known, rank = self._opcodes
        if not known:
            return [[] for _ in self.starts]
        lengths = np.diff(self._edges)
        section = np.repeat(np.arange(len(self.starts)), lengths)
        inside = np.arange(len(self.code)) - np.repeat(self._edges[:-1], lengths)
        keys = section * len(known) + rank[self.code.opcodes]
        keys = np.sort(keys[inside < np.repeat(np.array(self.unpadded), lengths)])
        first = np.flatnonzero(np.concatenate((np.ones(min(1, len(keys)), np.bool_), keys[1:] != keys[:-1])))
        counts = np.diff(np.append(first, len(keys))).tolist()
        out: list[list[tuple[Opcode, int]]] = [[] for _ in self.starts]
        for key, count in zip(keys[first].tolist(), counts, strict=True):
            out[key // len(known)].append((known[key % len(known)], count))
        return out

    def _split(self, *mnemonics: str) -> tuple[npt.NDArray[np.int64], list[int]]:
        """Instructions with these mnemonics, and where those of each section begin among them."""
        places = self.code.where(*mnemonics)
        return places, np.searchsorted(places, self._edges).tolist()

    @cached_property
    def budgets(self) -> list[tuple[tuple[int, str, int], ...]]:
        """(byte address, DEALLOC or TRY_ALLOC, registers) of every setmaxnreg of each section."""
        places, edges = self._split("USETMAXREG")
        found = [_MAXREG.search(text) for text in self.code.texts_at(places)]
        addresses = self.code.addresses[places].tolist()
        return [
            tuple(
                (address, match[1], int(match[2], 16))
                for address, match in zip(addresses[first:end], found[first:end], strict=True)
                if match is not None
            )
            for first, end in itertools.pairwise(edges)
        ]

    @cached_property
    def local(self) -> list[int]:
        """Local loads and stores of each section."""
        _, edges = self._split("LDL", "STL")
        return [end - first for first, end in itertools.pairwise(edges)]

    @cached_property
    def slots(self) -> list[int]:
        """Local loads and stores of each section at fixed places of the stack."""
        places, edges = self._split("LDL", "STL")
        fixed = [_STACK_SLOT.search(text) is not None for text in self.code.texts_at(places)]
        return [sum(fixed[first:end]) for first, end in itertools.pairwise(edges)]

    @cached_property
    def loops(self) -> list[tuple[Loop, ...]]:
        """The loops of each section."""
        return find_all_loops(self.code, self.starts, self._indirect)
