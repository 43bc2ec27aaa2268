"""Which bits of a word decide how it is read: equal patterns of one opcode have one form, one opcode text, the same
operand marks, names and effects; only the numbers in the fields differ.

A tree looks at single bits or at wide values (``register == RZ``, ``immediate == 0``). The single bits are taken over
as they are; of a wide test only its outcome is kept, as one bit in a place that carries no meaning here (the guard's
and the control word's bits), so that not every immediate makes a pattern of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.isa.model import GUARD_SHIFT, KEY_BIT, Key
from gwatch.sass.isa.tree import Node

Words = npt.NDArray[np.uint64]

KEY_MASK = 0xFFF | 1 << KEY_BIT
GUARD_MASK = 0xF << GUARD_SHIFT
PLAIN_MASK = (1 << 126) - 1 & ~(CONTROL_MASK | GUARD_MASK)
"""The bits of a word that neither guard nor control word own; bits 126 and 127 are always 0."""

_M64 = (1 << 64) - 1
_NARROW = 2
_SPARE = (*range(105, 122), *range(GUARD_SHIFT, GUARD_SHIFT + 4))


def nodes_of(key: Key) -> Iterator[Node]:
    """Every tree of an opcode."""
    yield key.select
    for choice in key.opcode:
        yield choice.node
    for form in key.forms:
        for choice in form.attachments:
            yield choice.node
        for value in form.values:
            yield value.node
            if value.name is not None:
                yield value.name.node
        for rule in form.rules:
            yield rule.counts.node


def _tests(nodes: Iterable[Node]) -> tuple[int, set[tuple[str, int, int]]]:
    """Mask of the bits asked one by one, and the wide tests as (kind, mask, value)."""
    direct = 0
    wide: set[tuple[str, int, int]] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            continue
        if node[0] == "sw":
            for bit in node[1]:
                direct |= 1 << bit
            stack.extend(node[2].values())
            continue
        if node[0] == "eq":
            mask = int(node[1])
            if mask.bit_count() <= _NARROW:
                direct |= mask
            else:
                wide.add(("eq", mask, int(node[2])))
        else:
            wide.add(("pow2", (1 << node[2]) - 1 << node[1], 0))
        stack += (node[3], node[4])
    return direct, wide


class Pattern:
    """The deciding bits of one opcode. ``bits`` is everything that any of its trees looks at."""

    __slots__ = ("bits", "direct", "equal", "power")

    def __init__(self, key: Key) -> None:
        direct, wide = _tests(nodes_of(key))
        self.bits = direct
        for _, mask, _ in wide:
            self.bits |= mask
        tests = sorted(test for test in wide if test[1] & ~direct)
        for _, mask, _ in tests[len(_SPARE):]:
            direct |= mask
        self.direct = direct & PLAIN_MASK | KEY_MASK
        self.equal: list[tuple[int, int, int]] = []
        self.power: list[tuple[int, int, int]] = []
        for (kind, mask, value), spare in zip(tests, _SPARE, strict=False):
            if kind == "eq":
                self.equal.append((mask, value, 1 << spare))
            else:
                low = (mask & -mask).bit_length() - 1
                self.power.append((low, mask >> low, 1 << spare))

    def of(self, word: int) -> int:
        """The pattern of a word of this opcode."""
        found = word & self.direct
        for mask, value, bit in self.equal:
            if word & mask == value:
                found |= bit
        for low, ones, bit in self.power:
            field = word >> low & ones
            if field and not field & field - 1:
                found |= bit
        return found

    def columns(self, low: Words, high: Words, out_low: Words, out_high: Words) -> None:
        """The patterns of words given as halves, written into ``out_low`` and ``out_high``."""
        np.bitwise_and(low, np.uint64(self.direct & _M64), out=out_low)
        np.bitwise_and(high, np.uint64(self.direct >> 64), out=out_high)
        for mask, value, bit in self.equal:
            hit = np.ones(len(low), np.bool_)
            for half, shift in ((low, 0), (high, 64)):
                part = mask >> shift & _M64
                if part:
                    hit &= (half & np.uint64(part)) == np.uint64(value >> shift & _M64)
            _mark(hit, bit, out_low, out_high)
        for place, ones, bit in self.power:
            field = gather(low, high, place, ones.bit_length())
            _mark((field != 0) & ((field & (field - np.uint64(1))) == 0), bit, out_low, out_high)


def _mark(hit: npt.NDArray[np.bool_], bit: int, low: Words, high: Words) -> None:
    half, value = (high, bit >> 64) if bit > _M64 else (low, bit)
    half |= hit * np.uint64(value)


def gather(low: Words, high: Words, first: int, width: int) -> Words:
    """Bits ``first`` .. ``first + width - 1`` of words given as halves, right-aligned (width <= 64)."""
    if first >= 64:
        value = high >> np.uint64(first - 64)
    elif first + width <= 64:
        value = low >> np.uint64(first)
    else:
        value = low >> np.uint64(first) | high << np.uint64(64 - first)
    if width >= 64:
        return np.asarray(value, np.uint64)
    return np.asarray(value & np.uint64((1 << width) - 1), np.uint64)
