"""Reads, writes, kinds and targets of whole text sections, in numpy: no Python loop over instructions.

Words are grouped by opcode key; the trees of a key are then evaluated over all its words at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gwatch.sass.isa.effects import FILES, Effects
from gwatch.sass.isa.model import Form, Key, Rule, Value
from gwatch.sass.isa.table import Table
from gwatch.sass.isa.tree import UNKNOWN, Node
from gwatch.sass.isa.values import Field

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

FILE_CODES = {"R": 0, "UR": 1, "P": 2, "UP": 3, "B": 4}
FILE_NAMES = tuple(FILE_CODES)
ROLE_NAMES = ("data", "address", "descriptor", "predicate", "guard", "barrier", "implicit")
ROLE_CODES = {name: code for code, name in enumerate(ROLE_NAMES)}
KIND_NAMES = ("fixed", "variable", "async", "branch", "unknown")
KIND_CODES = {name: code for code, name in enumerate(KIND_NAMES)}
_M64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Uses:
    """Register uses of ``n`` words, one row per use, sorted by word.

    Use columns (length m): ``index`` word row, ``file`` code (:data:`FILE_NAMES`), ``first`` register, ``count``,
    ``role`` code (:data:`ROLE_NAMES`), ``write`` (False: read). Word columns (length n): ``known`` (the tables have the
    word), ``complete`` (its effects are proved), ``mnemonic`` (index into ``mnemonic_names``, -1 unknown), ``kind``
    code (:data:`KIND_NAMES`), ``relative`` (has a pc-relative target) and ``offset`` (bytes from the next instruction).
    """

    index: npt.NDArray[np.int32]
    file: npt.NDArray[np.uint8]
    first: npt.NDArray[np.int16]
    count: npt.NDArray[np.int16]
    role: npt.NDArray[np.uint8]
    write: npt.NDArray[np.bool_]
    known: npt.NDArray[np.bool_]
    complete: npt.NDArray[np.bool_]
    mnemonic: npt.NDArray[np.int16]
    kind: npt.NDArray[np.uint8]
    relative: npt.NDArray[np.bool_]
    offset: npt.NDArray[np.int64]
    mnemonic_names: tuple[str, ...]


def _gather(words: Words, low: int, width: int) -> npt.NDArray[np.uint64]:
    """Bits low..low+width-1 of each word, right-aligned (width <= 64)."""
    if low >= 64:
        value = words[:, 1] >> np.uint64(low - 64)
    elif low + width <= 64:
        value = words[:, 0] >> np.uint64(low)
    else:
        value = words[:, 0] >> np.uint64(low) | words[:, 1] << np.uint64(64 - low)
    out: npt.NDArray[np.uint64] = value & np.uint64((1 << width) - 1)
    return out


def labels(node: Node, words: Words) -> npt.NDArray[np.int16]:
    """The tree's label of each word (-1 unknown)."""
    if isinstance(node, int):
        return np.full(len(words), node, dtype=np.int16)
    if node[0] == "sw":
        value = np.zeros(len(words), dtype=np.int64)
        for position, bit in enumerate(node[1]):
            value |= _gather(words, bit, 1).astype(np.int64) << position
        leaves = np.full(1 << len(node[1]), UNKNOWN, dtype=np.int16)
        for number, child in node[2].items():
            if isinstance(child, int):
                leaves[number] = child
        out: npt.NDArray[np.int16] = leaves[value]
        for number, child in node[2].items():
            if not isinstance(child, int):
                here = value == number
                out[here] = labels(child, words[here])
        return out
    if node[0] == "eq":
        hit = np.ones(len(words), dtype=bool)
        for half in (0, 1):
            mask = node[1] >> 64 * half & _M64
            if mask:
                hit &= (words[:, half] & np.uint64(mask)) == np.uint64(node[2] >> 64 * half & _M64)
    else:
        field = _gather(words, node[1], node[2])
        hit = (field != 0) & ((field & (field - np.uint64(1))) == 0)
    yes, no = node[3], node[4]
    both = np.empty(len(words), dtype=np.int16)
    both[hit] = yes if isinstance(yes, int) else labels(yes, words[hit])
    both[~hit] = no if isinstance(no, int) else labels(no, words[~hit])
    return both


def field_values(place: Field, words: Words) -> npt.NDArray[np.int64]:
    """The field's number in each word (fields of up to 63 bits)."""
    value = np.zeros(len(words), dtype=np.uint64)
    for low, width, shift in place.runs:
        value |= _gather(words, low, width) << np.uint64(shift)
    value ^= np.uint64(place.const)
    if place.signed:
        left = np.uint64(64 - place.top)
        moved: npt.NDArray[np.int64] = (value << left).astype(np.int64)
        moved >>= np.int64(64 - place.top)
        return moved
    return value.astype(np.int64)


class Vectoriser:
    """Evaluates one table over arrays of words; ``zero`` gives the numbers of RZ, URZ, PT and UPT."""

    def __init__(self, table: Table, zero: dict[str, int], effects: Callable[[int], Effects]) -> None:
        """``effects`` gives those of one word (without guard), for the few opcodes that trees can't tell."""
        self.table = table
        self._effects = effects
        self.zero = zero
        self.names = tuple(table.mnemonics)
        self._number = {name: n for n, name in enumerate(self.names)}

    def uses(self, words: Words) -> Uses:
        """All register uses of ``words`` ``(n, 2) uint64``."""
        count = len(words)
        out = _Builder(count)
        if count:
            keys = (words[:, 0] & np.uint64(0xFFF)) | ((words[:, 1] >> np.uint64(27)) & np.uint64(1)) << np.uint64(12)
            order = np.argsort(keys, kind="stable")
            edges = np.flatnonzero(np.diff(keys[order])) + 1
            for rows in np.split(order, edges):
                key = self.table.key(int(keys[rows[0]]))
                if key is not None:
                    self._key(key, rows, words[rows], out)
        return out.finish(self.names)

    def _key(self, key: Key, rows: Rows, words: Words, out: _Builder) -> None:
        kind = str(key.extra.get("kind", "unknown"))
        out.kind[rows] = KIND_CODES[kind]
        heads = labels(key.opcode[0].node, words)
        known = heads >= 0
        for label, text in enumerate(key.opcode[0].labels):
            out.mnemonic[rows[heads == label]] = self._number[text.split(".")[0]]
        for choice in key.opcode[1:]:
            if not isinstance(choice.node, int):
                known &= labels(choice.node, words) >= 0
        forms = labels(key.select, words)
        known &= forms >= 0
        out.known[rows] = known
        guards = _gather(words, 12, 3)
        guarded = guards != 7
        out.add(rows[guarded], "UP" if key.uniform_guard else "P", guards[guarded].astype(np.int64), 1, "guard", False)
        for number, form in enumerate(key.forms):
            here = forms == number
            if here.any():
                part = words[here]
                self._form(key, form, rows[here], part, kind, out)

    def _form(self, key: Key, form: Form, rows: Rows, words: Words, kind: str, out: _Builder) -> None:
        if key.opcode[0].labels[0].split(".")[0].endswith("GMMA"):
            self._one_by_one(rows, words, out)
            return
        good = np.full(len(rows), form.proved and kind != "unknown")
        for rule in form.rules:
            good &= self._rule(rule, form.values[rule.value], rows, words, out)
        for file, first, read, written in form.implicit:
            for flag, write in ((read, False), (written, True)):
                if flag:
                    out.add(rows, file, np.full(len(rows), first, dtype=np.int64), 1, "implicit", write)
        out.complete[rows] = good
        if key.relative is not None and form.values and form.values[-1].kind == "I":
            value = form.values[-1]
            which = labels(value.node, words)
            which[~self._relative(key, words)] = UNKNOWN
            for label, place in enumerate(value.fields):
                hit = which == label
                out.relative[rows[hit]] = True
                out.offset[rows[hit]] = field_values(place, words[hit])

    def _one_by_one(self, rows: Rows, words: Words, out: _Builder) -> None:
        for row, (low, high) in zip(rows, words.tolist(), strict=True):
            if not out.known[row]:
                continue
            effects = self._effects(low | high << 64)
            for uses, write in ((effects.reads, False), (effects.writes, True)):
                for use in uses:
                    out.add(np.array([row]), use.file, np.array([use.first], np.int64), use.count, use.role, write)
            out.complete[row] = effects.complete

    def _relative(self, key: Key, words: Words) -> npt.NDArray[np.bool_]:
        found = np.full(len(words), not key.relative)
        if key.relative:
            for choice in key.opcode:
                which = labels(choice.node, words)
                for label, text in enumerate(choice.labels):
                    if key.relative in text.split("."):
                        found |= which == label
        return found

    def _rule(self, rule: Rule, value: Value, rows: Rows, words: Words, out: _Builder) -> npt.NDArray[np.bool_]:
        chosen = labels(rule.counts.node, words)
        which = labels(value.node, words)
        known = (chosen >= 0) & (which >= 0)
        for number, place in enumerate(value.fields):
            if place.kind in self.zero and not known.all():
                known |= (which == number) & (field_values(place, words) == self.zero[place.kind])
        for label, text in enumerate(rule.counts.labels):
            reads, writes = (int(part) for part in text.split(","))
            for number, place in enumerate(value.fields):
                hit = (chosen == label) & (which == number)
                if not hit.any():
                    continue
                first = field_values(place, words[hit])
                real = first != self.zero.get(place.kind, -1)
                targets, first = rows[hit][real], first[real]
                if reads:
                    out.add(targets, FILES[place.kind], first, reads, rule.role, False)
                if writes:
                    out.add(targets, FILES[place.kind], first, writes, rule.role, True)
        return known


class _Builder:
    def __init__(self, count: int) -> None:
        self.known = np.zeros(count, dtype=bool)
        self.complete = np.zeros(count, dtype=bool)
        self.mnemonic = np.full(count, -1, dtype=np.int16)
        self.kind = np.full(count, KIND_CODES["unknown"], dtype=np.uint8)
        self.relative = np.zeros(count, dtype=bool)
        self.offset = np.zeros(count, dtype=np.int64)
        self.parts: list[tuple[Rows, int, npt.NDArray[np.int64], int, int, bool]] = []

    def add(self, rows: Rows, file: str, first: npt.NDArray[np.int64], count: int, role: str, write: bool) -> None:
        if len(rows):
            self.parts.append((rows, FILE_CODES[file], first, count, ROLE_CODES[role], write))

    def finish(self, names: tuple[str, ...]) -> Uses:
        sizes = [len(p[0]) for p in self.parts]

        def column(position: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
            return np.repeat(np.array([p[position] for p in self.parts], dtype=dtype), sizes)

        index = np.concatenate([p[0] for p in self.parts]) if self.parts else np.zeros(0, dtype=np.int64)
        first = np.concatenate([p[2] for p in self.parts]) if self.parts else np.zeros(0, dtype=np.int64)
        order = np.argsort(index, kind="stable")
        return Uses(
            index[order].astype(np.int32), column(1, np.uint8)[order].astype(np.uint8), first[order].astype(np.int16),
            column(3, np.int16)[order].astype(np.int16), column(4, np.uint8)[order].astype(np.uint8),
            column(5, np.bool_)[order].astype(np.bool_), self.known, self.complete & self.known, self.mnemonic,
            self.kind, self.relative, self.offset, names)
