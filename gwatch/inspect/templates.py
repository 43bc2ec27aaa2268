"""Text of many instruction words at once, from the ISA tables.

All choices that the tables make for a word (form, modifiers, names, which field holds a number) look at a few
bits only. Words that agree in those bits share one *template*: fixed pieces of text and, between them, fields.
A cubin of 100,000 instructions has a few hundred templates, so choosing is done once each and the rest is
numpy columns and one format string.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.isa import Isa, lex, tree
from gwatch.sass.isa.model import Form, Key
from gwatch.sass.isa.values import Field, number_text

Words = npt.NDArray[np.uint64]
Column = npt.NDArray[np.int64]

_KEYS = 1 << 13
_MASK64 = (1 << 64) - 1
_GUARD_BITS = 0xF << 12
_REUSE = 15 << 122
_YIELD = 1 << 109
_FIXED = ~(CONTROL_MASK | _GUARD_BITS)
_HOLE = "\x01"
_MIX = np.uint64(0x9E3779B97F4A7C15)
_REGISTERS = frozenset("RUPQBS")


@dataclass(frozen=True, slots=True)
class Template:
    """Text with holes: ``pieces[i]``, then ``fields[i]`` (None: the pc-relative target), ... ``pieces[-1]``."""

    pieces: tuple[str, ...]
    fields: tuple[Field | None, ...]

    @property
    def format(self) -> str:
        """A ``%`` format of the holes."""
        return "%s".join(piece.replace("%", "%%") for piece in self.pieces)


def group(*columns: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``(first, inverse)`` of rows that agree in all columns: index of one member per group, group of each row."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * _MIX
        mixed ^= mixed >> np.uint64(29)
    # numpy.unique would do, but importing numpy.ma for it costs a short command a tenth of its time.
    order = np.argsort(mixed, kind="stable")
    sorted_ = mixed[order]
    starts = np.flatnonzero(
        np.concatenate((np.ones(min(1, len(mixed)), np.bool_), sorted_[1:] != sorted_[:-1]))
    )
    first = order[starts]
    inverse = np.empty(len(mixed), np.int64)
    inverse[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(mixed))))
    if not all(np.array_equal(column[first][inverse], column) for column in columns):
        rows = np.stack(columns, axis=1)  # different rows with one mixed value: group by the rows themselves
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


@dataclass(frozen=True, slots=True)
class _Base:
    """A template before reuse marks are put in."""

    form: Form
    opcode: str
    attached: tuple[str, ...]
    filled: list[str]
    fields: tuple[Field | None, ...]
    relative: bool


class WordTemplates:
    """The templates of one architecture, made when first met."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self._opcode_mask = np.zeros((2, _KEYS), np.uint64)
        self._text_mask = np.zeros((2, _KEYS), np.uint64)
        self._known = np.zeros(_KEYS, bool)
        self._prepared: set[int] = set()
        self._templates: dict[tuple[int, int], Template | None] = {}
        self._bases: dict[tuple[int, int], _Base | None] = {}
        self._opcodes: dict[tuple[int, int], str | None] = {}
        self.names = {letter: self._register_names(letter) for letter in _REGISTERS}

    def _register_names(self, letter: str) -> npt.NDArray[np.object_]:
        zero = self.isa.zero
        return np.array([number_text(letter, value, zero) for value in range(256)], object)

    def keys(self, words: Words) -> npt.NDArray[np.int64]:
        """The 13-bit opcode key of each word; its masks are ready afterwards."""
        low = words[:, 0] & np.uint64(0xFFF)
        joined = low | (words[:, 1] >> np.uint64(27) & np.uint64(1)) << np.uint64(12)
        found: npt.NDArray[np.int64] = joined.astype(np.int64)
        for key in np.flatnonzero(np.bincount(found)).tolist():
            if key not in self._prepared:
                self._prepare(key)
        return found

    def _prepare(self, number: int) -> None:
        self._prepared.add(number)
        key = self.isa.table.key(number)
        if key is None:
            return
        self._known[number] = True
        opcode = 0xFFF | 1 << 91
        for choice in key.opcode:
            opcode |= tree.tested_bits(choice.node)
        text = opcode | _text_bits(key)
        for masks, mask in ((self._opcode_mask, opcode), (self._text_mask, text)):
            masks[0, number], masks[1, number] = mask & _MASK64, mask >> 64 & _MASK64

    def known(self, words: Words, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the tables have the opcode and the control word exists (bits 126 and 127 clear, no scoreboard 6)."""
        high = words[:, 1]
        odd = (high >> np.uint64(62)) != 0
        for shift in (46, 49):
            odd |= (high >> np.uint64(shift) & np.uint64(7)) == 6
        found: npt.NDArray[np.bool_] = self._known[keys] & ~odd
        return found

    # opcodes ------------------------------------------------------------------------------------------------

    def opcodes(
        self, words: Words, keys: npt.NDArray[np.int64]
    ) -> tuple[list[str | None], npt.NDArray[np.int64]]:
        """``(names, codes)``: opcode text (``LDG.E.128``) of word i is ``names[codes[i]]``, None if unknown."""
        low = words[:, 0] & self._opcode_mask[0][keys]
        high = words[:, 1] & self._opcode_mask[1][keys]
        first, inverse = group(low, high)
        names = []
        for place in first.tolist():
            pair = int(low[place]), int(high[place])
            if pair not in self._opcodes:
                key = self.isa.table.key(int(keys[place]))
                self._opcodes[pair] = key.opcode_text(pair[0] | pair[1] << 64) if key else None
            names.append(self._opcodes[pair])
        return names, inverse

    # text ---------------------------------------------------------------------------------------------------

    def grouped(
        self, words: Words, keys: npt.NDArray[np.int64]
    ) -> list[tuple[Template | None, npt.NDArray[np.int64]]]:
        """Templates with the indices of the words that share each; None where the tables do not know."""
        high = words[:, 1]
        reuse = np.where(high >> np.uint64(45) & np.uint64(1), high & np.uint64(_REUSE >> 64), np.uint64(0))
        low = words[:, 0] & self._text_mask[0][keys]
        bare = high & self._text_mask[1][keys] & np.uint64(_MASK64 ^ _REUSE >> 64)
        high = bare | reuse
        first, inverse = group(low, high)
        order = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[order], np.arange(len(first) + 1))
        out = []
        for number, place in enumerate(first.tolist()):
            pair = int(low[place]), int(high[place])
            if pair not in self._templates:
                word = int(words[place, 0]) | int(words[place, 1]) << 64
                without = pair[0], int(bare[place])
                self._templates[pair] = self._make(int(keys[place]), word, without)
            out.append((self._templates[pair], order[bounds[number] : bounds[number + 1]]))
        return out

    def _make(self, number: int, word: int, pair: tuple[int, int]) -> Template | None:
        """The template of ``word``; ``pair`` are the bits that decide about it, reuse marks aside."""
        if pair not in self._bases:
            self._bases[pair] = self._base(number, word & _FIXED)
        base = self._bases[pair]
        if base is None:
            return None
        form = base.form
        reuse = form.marked(word & _FIXED, word >> 122 & 15) if word & _YIELD else ()
        body = f"{base.opcode} {lex.fill(form.skeleton, base.attached, base.filled, reuse)}"
        pieces = body.split(_HOLE)
        if base.relative:  # the distance is the last value; the mark in the last piece says so
            pieces[-1] = _HOLE + pieces[-1]
        return Template(tuple(pieces), base.fields)

    def _base(self, number: int, plain: int) -> _Base | None:
        key = self.isa.table.key(number)
        form = key.form_of(plain) if key is not None and not plain >> 126 else None
        opcode = key.opcode_text(plain) if key is not None else None
        if key is None or form is None or opcode is None:
            return None
        attached = [choice.get(plain) for choice in form.attachments]
        filled: list[str | None] = []
        fields: list[Field | None] = []
        for value in form.values:
            if value.name is not None:
                filled.append(value.name.get(plain))
            else:
                filled.append(_HOLE)
                fields.append(value.field_of(plain))
        if None in attached or None in filled or None in fields:
            return None
        relative = key.is_relative(opcode.split(".")) and bool(fields) and form.values[-1].kind == "I"
        texts = tuple(str(text) for text in attached), [str(text) for text in filled]
        return _Base(form, opcode, *texts, tuple(fields), relative)

    def targets(self, words: Words, keys: npt.NDArray[np.int64], following: Column) -> Column:
        """Absolute byte address named by each pc-relative word, else -1; ``following``: the address behind
        each word."""
        out = np.full(len(words), -1, np.int64)
        relative = np.zeros(_KEYS, np.bool_)
        for number in np.flatnonzero(np.bincount(keys)).tolist():
            key = self.isa.table.key(number)
            relative[number] = key is not None and key.relative is not None
        chosen = np.flatnonzero(relative[keys])
        if len(chosen):
            for template, members in self.grouped(words[chosen], keys[chosen]):
                if template is not None and template.pieces[-1].startswith(_HOLE) and template.fields[-1]:
                    places = chosen[members]
                    out[places] = field_column(words[places], template.fields[-1]) + following[places]
        return out

    def filler(self, words: Words, following: Column) -> Filler:
        """What fills templates for ``words``; ``following``: the byte address behind each."""
        return Filler(self, words, following)


class Filler:
    """Puts numbers into templates. A field is cut out of all words at once, the first time a template has it."""

    def __init__(self, templates: WordTemplates, words: Words, following: Column) -> None:
        self.templates, self.words, self.following = templates, words, following
        self._numbers: dict[Field, Column] = {}
        self._registers: dict[Field, npt.NDArray[np.object_]] = {}

    def fill(self, template: Template, members: npt.NDArray[np.int64]) -> list[str]:
        """The text of the words at ``members``, which share ``template``."""
        pieces, fields = template.pieces, template.fields
        if not fields:
            return ["".join(pieces).rstrip(" ")] * len(members)
        columns: list[list[str]] = []
        for number, place in enumerate(fields):
            assert place is not None
            if number == len(fields) - 1 and pieces[-1].startswith(_HOLE):
                targets = (self._column(place)[members] + self.following[members]).astype(np.uint64)
                columns.append([f"{v:#x}" for v in targets.tolist()])
            elif place.kind in _REGISTERS:
                columns.append(self._names(place)[members].tolist())
            else:
                columns.append(self._texts(place.kind, self._column(place)[members]))
        form = template.format.replace(_HOLE, "")
        if pieces[-1].strip(" "):
            return [form % row for row in zip(*columns, strict=True)]
        return [(form % row).rstrip(" ") for row in zip(*columns, strict=True)]

    def _column(self, place: Field) -> Column:
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = field_column(self.words, place)
        return found

    def _names(self, place: Field) -> npt.NDArray[np.object_]:
        found = self._registers.get(place)
        if found is None:
            found = self._registers[place] = self.templates.names[place.kind][self._column(place)]
        return found

    def _texts(self, kind: str, values: Column) -> list[str]:
        if kind == "I":
            return [f"{v:#x}" for v in values.tolist()]
        zero = self.templates.isa.zero
        known: dict[int, str] = {v: number_text(kind, v, zero) for v in set(values.tolist())}
        return [known[v] for v in values.tolist()]


def _text_bits(key: Key) -> int:
    """All bits that decide about a word's text besides its opcode and the fields themselves."""
    mask = tree.tested_bits(key.select)
    for form in key.forms:
        for choice in form.attachments:
            mask |= tree.tested_bits(choice.node)
        for value in form.values:
            mask |= tree.tested_bits(value.node)
            if value.name is not None:
                mask |= tree.tested_bits(value.name.node)
    return mask


def field_column(words: Words, place: Field) -> Column:
    """The number that ``place`` holds in each of ``words`` (n, 2); fields are at most 63 bits wide."""
    value = np.zeros(len(words), np.uint64)
    for low, width, shift in place.runs:
        value |= _bits(words, low, width) << np.uint64(shift)
    number = value.astype(np.int64) ^ place.const
    if place.signed:
        top = place.top
        number = np.where(number >> (top - 1) & 1, number - (1 << top), number)
    return number


def _bits(words: Words, low: int, width: int) -> Words:
    mask = np.uint64((1 << width) - 1)
    if low >= 64:
        upper: Words = words[:, 1] >> np.uint64(low - 64)
        return np.asarray(upper & mask, np.uint64)
    part: Words = words[:, 0] >> np.uint64(low)
    if low + width > 64:
        part = np.bitwise_or(part, words[:, 1] << np.uint64(64 - low))
    return np.asarray(part & mask, np.uint64)


@lru_cache(maxsize=32)
def templates_for(isa: Isa) -> WordTemplates:
    """The templates of an architecture (one set per process)."""
    return WordTemplates(isa)
