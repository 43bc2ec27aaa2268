"""Whole text sections at once, in numpy: opcodes, guards, control fields, reads and writes, targets.

No Python loop runs over instructions. Every word gets the number of its template
(:mod:`gwatch.sass.isa.template`) through a hash table over patterns; what a template says is kept in columns by that
number, so that a section's facts are table look-ups and bit fields.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.sass.arch import INSTRUCTION_SIZE
from gwatch.sass.control import control_fields
from gwatch.sass.isa.model import KEY_BIT
from gwatch.sass.isa.pattern import Words
from gwatch.sass.isa.template import Access, Template, Templates
from gwatch.sass.isa.text import Renderer
from gwatch.sass.isa.values import Field

Column = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

FILE_CODES = {"R": 0, "UR": 1, "P": 2, "UP": 3, "B": 4}
FILE_NAMES = tuple(FILE_CODES)
ROLE_NAMES = ("data", "address", "descriptor", "predicate", "guard", "barrier", "implicit")
ROLE_CODES = {name: code for code, name in enumerate(ROLE_NAMES)}
KIND_NAMES = ("fixed", "variable", "async", "branch", "unknown")
KIND_CODES = {name: code for code, name in enumerate(KIND_NAMES)}

ROW = np.dtype([
    ("key", "<u2"), ("form", "<i2"), ("opcode", "<i4"), ("kind", "u1"), ("known", "?"), ("complete", "?"),
    ("guard", "u1"), ("guard_negated", "?"), ("guard_uniform", "?"), ("stall", "u1"), ("yield_flag", "u1"),
    ("write_scoreboard", "u1"), ("read_scoreboard", "u1"), ("wait_mask", "u1"), ("reuse", "u1"), ("relative", "?"),
    ("uses", "u1"), ("first_use", "<u4"), ("target", "<i8")])
"""One instruction. ``key`` is the 13-bit opcode, ``form`` the number of its form (-1 unknown), ``opcode`` an index into
:attr:`Section.opcode_names` (-1 unknown), ``kind`` a code of :data:`KIND_NAMES`, ``guard`` 7 for none, ``target`` the
absolute byte address where ``relative`` is set, else 0. Its register reads and writes are the ``uses`` rows of
:attr:`Section.uses` from ``first_use`` on."""

CHUNK = 1 << 17
"""Words worked on at once: bounds the memory of what lies in between."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_NOTHING = np.uint64((1 << 64) - 1)


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


class _Growing:
    """Columns by template number that grow by doubling; ``shape`` may have a leading slot axis."""

    def __init__(self) -> None:
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self.capacity = 256

    def add(self, name: str, dtype: npt.DTypeLike, slots: int = 0) -> None:
        shape = (slots, self.capacity) if slots else (self.capacity,)
        self.columns[name] = np.zeros(shape, dtype)

    def reserve(self, count: int) -> None:
        while count > self.capacity:
            for name, old in self.columns.items():
                self.columns[name] = np.concatenate((old, np.zeros_like(old)), axis=-1)
            self.capacity *= 2

    def widen(self, name: str, slots: int) -> None:
        old = self.columns[name]
        if slots > len(old):
            more = np.zeros((slots - len(old), self.capacity), old.dtype)
            self.columns[name] = np.concatenate((old, more))


_RUNS = 3
_FIELD: dict[str, type[np.generic]] = {"xor": np.int64, "sign": np.int64, "add": np.int16, "ones": np.int16,
                                       "field_kind": np.uint8}
_FIELD |= {f"{name}{run}": dtype for run in range(_RUNS)
           for name, dtype in (("low", np.uint8), ("mask", np.uint64), ("shift", np.uint8))}
_USE: dict[str, type[np.generic]] = {
    "use_low": np.uint8, "use_mask": np.uint64, "use_xor": np.uint64, "use_zero": np.int16, "use_fixed": np.uint32,
    "use_field": np.int8}
_DOUBT: dict[str, type[np.generic]] = {"doubt_field": np.int8, "doubt_zero": np.int16}
_SLOTTED = _FIELD | _USE | _DOUBT


class Decoder:
    """Template numbers of words, and what each number stands for. Number 0 is every word the table does not know.

    May be used from several threads: ``lock`` is held while templates are made or texts are written.
    """

    def __init__(self, templates: Templates) -> None:
        self.source = templates
        self.lock = threading.RLock()
        self.templates: list[Template | None] = [None]
        self.opcode_names: list[str] = []
        self._opcodes: dict[str, int] = {}
        self.kind_names: list[str] = []
        self.mnemonic_names = tuple(templates.table.mnemonics)
        self._mnemonics = {name: n for n, name in enumerate(self.mnemonic_names)}
        self._low = np.full(256, _NOTHING, np.uint64)
        self._high = np.full(256, _NOTHING, np.uint64)
        self._table = np.zeros(1 << 14, np.int32)
        self._grow = _Growing()
        for name, dtype in (("form", np.int16), ("opcode", np.int32), ("mnemonic", np.int16),
                            ("kind", np.uint8), ("known", np.bool_), ("complete", np.bool_), ("uniform", np.bool_),
                            ("relative", np.bool_), ("texts", np.uint8), ("uses", np.uint8), ("doubts", np.uint8),
                            ("detailed", np.bool_)):
            self._grow.add(name, dtype)
        for name, dtype in _SLOTTED.items():
            self._grow.add(name, dtype, 4)
        columns = self._grow.columns
        columns["form"][0] = columns["opcode"][0] = columns["mnemonic"][0] = -1
        columns["kind"][0] = KIND_CODES["unknown"]

    @cached_property
    def renderer(self) -> Renderer:
        """Writes texts."""
        return Renderer(self)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A fact by template number."""
        return self._grow.columns[name]

    # -- numbers of templates ---------------------------------------------------------------------------------

    def ids(self, words: Words) -> Ids:
        """The template number of each word ``(n, 2) uint64``."""
        out = np.empty(len(words), np.int32)
        with self.lock:
            for start in range(0, len(words), CHUNK):
                part = words[start:start + CHUNK]
                out[start:start + len(part)] = self._chunk(part)
        return out

    def _chunk(self, words: Words) -> Ids:
        keys = keys_of(words)
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        low, high = words[order, 0], words[order, 1]
        bits_low, bits_high = np.empty_like(low), np.empty_like(high)
        edges = [0, *(np.flatnonzero(np.diff(sorted_keys)) + 1).tolist(), len(words)]
        for a, b in itertools.pairwise(edges):
            pattern = self.source.pattern(int(sorted_keys[a]))
            if pattern is None:
                bits_low[a:b] = bits_high[a:b] = _NOTHING
            else:
                pattern.columns(low[a:b], high[a:b], bits_low[a:b], bits_high[a:b])
        odd = _impossible(high)
        bits_low[odd] = bits_high[odd] = _NOTHING
        out = np.empty(len(words), np.int32)
        out[order] = self._lookup(bits_low, bits_high, low, high)
        return out

    def _lookup(self, bits_low: Words, bits_high: Words, low: Words, high: Words) -> Ids:
        mixed = (bits_low ^ bits_high * _MIX) * _MIX
        mixed ^= mixed >> np.uint64(32)
        while True:
            size = len(self._table)
            slots = (mixed & np.uint64(size - 1)).astype(np.intp)
            found: Ids = self._table[slots]
            # A slot that is empty says 0, and pattern 0 is the one that no word of the table has.
            todo = np.flatnonzero((self._low[found] != bits_low) | (self._high[found] != bits_high))
            fresh: list[npt.NDArray[np.intp]] = []
            while len(todo):
                empty = found[todo] == 0
                fresh.append(todo[empty])
                todo = todo[~empty]
                slots[todo] = (slots[todo] + 1) & (size - 1)
                found[todo] = self._table[slots[todo]]
                todo = todo[(self._low[found[todo]] != bits_low[todo]) | (self._high[found[todo]] != bits_high[todo])]
            missing = np.concatenate(fresh) if fresh else np.zeros(0, np.intp)
            if not len(missing):
                return found
            # One of the words that want the same empty slot is put there; the rest is looked up again.
            owner = np.empty(size, np.intp)
            owner[slots[missing]] = missing
            chosen = missing[owner[slots[missing]] == missing]
            self._insert(chosen, slots, bits_low, bits_high, low, high)

    def _insert(self, chosen: npt.NDArray[np.intp], slots: npt.NDArray[np.intp], bits_low: Words, bits_high: Words,
                low: Words, high: Words) -> None:
        count = len(self.templates)
        total = count + len(chosen)
        while total > len(self._low):
            self._low = np.concatenate((self._low, np.full(len(self._low), _NOTHING, np.uint64)))
            self._high = np.concatenate((self._high, np.full(len(self._high), _NOTHING, np.uint64)))
        self._grow.reserve(total)
        self._low[count:total], self._high[count:total] = bits_low[chosen], bits_high[chosen]
        self._table[slots[chosen]] = np.arange(count, total, dtype=np.int32)
        patterns = zip(bits_low[chosen].tolist(), bits_high[chosen].tolist(), strict=True)
        words = zip(low[chosen].tolist(), high[chosen].tolist(), strict=True)
        for number, ((p, q), (a, b)) in enumerate(zip(patterns, words, strict=True), count):
            self._describe(number, self.source.at(p | q << 64, a | b << 64))
        if total * 4 > len(self._table):
            self._rehash()

    def _rehash(self) -> None:
        size = len(self._table) * 4
        self._table = np.zeros(size, np.int32)
        count = len(self.templates)
        mixed = (self._low[:count] ^ self._high[:count] * _MIX) * _MIX
        mixed ^= mixed >> np.uint64(32)
        for number, slot in enumerate((mixed & np.uint64(size - 1)).tolist()):
            while number and self._table[slot]:
                slot = slot + 1 & size - 1
            if number:
                self._table[slot] = number

    def _describe(self, number: int, template: Template | None) -> None:
        self.templates.append(template)
        columns = self._grow.columns
        if template is None:
            for name in ("form", "opcode", "mnemonic"):
                columns[name][number] = -1
            columns["kind"][number] = KIND_CODES["unknown"]
            return
        columns["form"][number] = template.number
        if template.opcode not in self._opcodes:
            self._opcodes[template.opcode] = len(self.opcode_names)
            self.opcode_names.append(template.opcode)
        columns["opcode"][number] = self._opcodes[template.opcode]
        columns["mnemonic"][number] = self._mnemonics[template.mnemonic]
        columns["kind"][number] = KIND_CODES[template.kind]
        columns["known"][number] = True
        columns["uniform"][number] = template.key.uniform_guard
        columns["relative"][number] = template.relative
        columns["texts"][number] = len(template.fields)

    def _detail(self, ids: Ids) -> None:
        """Fill the columns of fields and uses for these templates: who only asks for opcodes needs none of them."""
        missing = ids[~self.column("detailed")[ids]]
        if not len(missing):
            return
        with self.lock:
            for number in np.flatnonzero(np.bincount(missing)).tolist():
                template = self.templates[number]
                if template is not None and not self.column("detailed")[number]:
                    self._describe_fields(number, template)
                self.column("detailed")[number] = True

    def _describe_fields(self, number: int, template: Template) -> None:
        fields = template.fields
        guard = Access(_GUARD, "UP" if template.key.uniform_guard else "P", 1, "guard", False, self.source.zero["P"])
        found = template.uses
        implicit = [Access(Field("", (), const=use.first), use.file, use.count, use.role, write, -1)
                    for use, write in found.implicit]
        uses = [guard, *found.accesses, *implicit]
        grow = self._grow
        for names, count in ((_FIELD, len(fields)), (_USE, len(uses)), (_DOUBT, len(found.unproved))):
            for name in names:
                grow.widen(name, count)
        columns = grow.columns
        for slot, place in enumerate(fields):
            for run, (low, width, shift) in enumerate(_halves(place)):
                columns[f"low{run}"][slot, number] = low
                columns[f"mask{run}"][slot, number] = (1 << width) - 1
                columns[f"shift{run}"][slot, number] = shift
            columns["field_kind"][slot, number] = _index(self.kind_names, place.kind)
            columns["xor"][slot, number] = place.const
            columns["sign"][slot, number] = 1 << place.top - 1 if place.signed else 0
            if place.add:
                columns["add"][slot, number], columns["ones"][slot, number] = place.add, place.ones
        for slot, access in enumerate(uses):
            place = access.place
            columns["use_zero"][slot, number] = access.zero
            columns["use_fixed"][slot, number] = _packed(access)
            columns["use_field"][slot, number] = -1 if _simple(place) else fields.index(place)
            columns["use_xor"][slot, number] = place.const
            for low, width, _ in place.runs[:1]:
                columns["use_low"][slot, number] = low
                columns["use_mask"][slot, number] = (1 << width) - 1
        for slot, access in enumerate(found.unproved):
            columns["doubt_field"][slot, number] = fields.index(access.place)
            columns["doubt_zero"][slot, number] = access.zero
        columns["uses"][number], columns["doubts"][number] = len(uses), len(found.unproved)
        columns["complete"][number] = found.complete

    # -- numbers in fields ------------------------------------------------------------------------------------

    def numbers(self, words: Words, ids: Ids, slot: int) -> Column:
        """The number in field ``slot`` of each word; all these words' templates have that many fields."""
        self._detail(ids)
        flat = words.reshape(-1)
        out = np.zeros(len(words), np.uint64)
        for run in range(_RUNS):
            mask = self.column(f"mask{run}")[slot][ids]
            rows = np.arange(len(words)) if run == 0 else np.flatnonzero(mask)
            if not len(rows):
                break
            mine = ids[rows]
            low = self.column(f"low{run}")[slot][mine]
            bits = flat[2 * rows + (low >> 6)] >> (low & np.uint8(63)).astype(np.uint64) & mask[rows]
            out[rows] |= bits << self.column(f"shift{run}")[slot][mine].astype(np.uint64)
        number: Column = out.view(np.int64) ^ self.column("xor")[slot][ids]
        if self.column("sign")[slot].any():
            sign = self.column("sign")[slot][ids]
            number = (number ^ sign) - sign
        if self.column("add")[slot].any():
            number += self.column("add")[slot][ids] * (number != self.column("ones")[slot][ids])
        return number

    def uses(self, words: Words, ids: Ids) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
        """``(packed, complete)``: register uses, one row a word, 0 for none (see :func:`unpacked`); and whether they
        are known to be all."""
        self._detail(ids)
        flat = words.reshape(-1)
        counts = self.column("uses")[ids]
        packed = np.zeros((len(words), int(counts.max(initial=0))), np.uint32)
        for slot in range(packed.shape[1]):
            rows = np.flatnonzero(counts > slot)
            mine = ids[rows]
            low = self.column("use_low")[slot][mine]
            value = flat[2 * rows + (low >> 6)] >> (low & np.uint8(63)).astype(np.uint64)
            value &= self.column("use_mask")[slot][mine]
            value ^= self.column("use_xor")[slot][mine]
            fields = self.column("use_field")[slot][mine]
            for odd in np.flatnonzero(np.bincount(fields[fields >= 0])).tolist():
                here = np.flatnonzero(fields == odd)
                value[here] = self.numbers(words[rows[here]], mine[here], odd).view(np.uint64)
            there = value.astype(np.int16) != self.column("use_zero")[slot][mine]
            packed[rows, slot] = (value.astype(np.uint32) | self.column("use_fixed")[slot][mine]) * there
        complete = self.column("complete")[ids]
        doubts = self.column("doubts")[ids]
        for slot in range(int(doubts.max(initial=0))):
            rows = np.flatnonzero(doubts > slot)
            fields, zero = (self.column(name)[slot][ids[rows]] for name in ("doubt_field", "doubt_zero"))
            for number in np.flatnonzero(np.bincount(fields)).tolist():
                here = np.flatnonzero(fields == number)
                complete[rows[here]] &= self.numbers(words[rows[here]], ids[rows[here]], number) == zero[here]
        return packed, complete


def keys_of(words: Words) -> npt.NDArray[np.uint16]:
    """The 13-bit opcode key of each word ``(n, 2) uint64``."""
    low = words[:, 0].astype(np.uint16) & np.uint16(0xFFF)
    high = (words[:, 1] >> np.uint64(KEY_BIT - 76)).astype(np.uint16) & np.uint16(1 << 12)
    return np.asarray(low | high, np.uint16)


_GUARD = Field("P", ((12, 3, 0),))


def _impossible(high: Words) -> npt.NDArray[np.bool_]:
    """Words that no opcode has: bits 126 and 127 set, or a scoreboard field of 6."""
    odd = (high >> np.uint64(62)) != 0
    for shift in (46, 49):
        odd |= (high >> np.uint64(shift) & np.uint64(7)) == np.uint64(6)
    return np.asarray(odd, np.bool_)


def _index(names: list[str], name: str) -> int:
    """The number of ``name``, which is appended where it is not there."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _simple(place: Field) -> bool:
    """Whether the field is one run of bits within one half of the word, or a constant."""
    return not place.signed and not place.add and (not place.runs or (
        len(place.runs) == 1 and not place.runs[0][2] and not place.runs[0][0] < 64 < place.runs[0][0]
        + place.runs[0][1]))


def _packed(access: Access) -> int:
    """A use without its register: valid bit, write, role, file, count."""
    return (1 << 31 | int(access.write) << 30 | ROLE_CODES[access.role] << 26 | FILE_CODES[access.file] << 22
            | access.count << 10)


def _halves(place: Field) -> list[tuple[int, int, int]]:
    """The field's runs, cut where they cross from one half of the word to the other."""
    out = []
    for low, width, shift in place.runs:
        if low < 64 < low + width:
            out += [(low, 64 - low, shift), (64, low + width - 64, shift + 64 - low)]
        else:
            out.append((low, width, shift))
    return out


class Section:
    """The words of a section and, by columns, what they say. Everything is worked out when first asked for."""

    def __init__(self, decoder: Decoder, words: Words) -> None:
        self.decoder = decoder
        self.words = np.ascontiguousarray(words)
        self.ids = decoder.ids(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def _of(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.decoder.column(name)[self.ids]
        return found

    def facts(self, fact: Callable[[Template], Any], dtype: npt.DTypeLike, unknown: Any) -> npt.NDArray[Any]:
        """``fact`` of each word's template; ``unknown`` where there is none."""
        chosen = np.zeros(len(self.decoder.templates), np.bool_)
        chosen[self.ids] = True
        by_id = np.full(len(self.decoder.templates), unknown, dtype)
        for number in np.flatnonzero(chosen).tolist():
            template = self.decoder.templates[number]
            if template is not None:
                by_id[number] = fact(template)
        return by_id[self.ids]

    @cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """Per word: whether the table has it."""
        return self._of("known")

    @property
    def opcode_names(self) -> Sequence[str]:
        """Opcodes with modifiers; :attr:`opcodes` are indices into it."""
        return self.decoder.opcode_names

    @cached_property
    def opcodes(self) -> npt.NDArray[np.int32]:
        """Per word: index into :attr:`opcode_names`, -1 for a word that the table does not know."""
        return self._of("opcode")

    @cached_property
    def relative(self) -> npt.NDArray[np.bool_]:
        """Per word: whether it names a pc-relative target."""
        return self._of("relative")

    @cached_property
    def offsets(self) -> Column:
        """Per word: distance in bytes from the next instruction to its target, 0 for words without one."""
        out = np.zeros(len(self.words), np.int64)
        rows = np.flatnonzero(self.relative)
        if len(rows):
            last = self.decoder.column("texts")[self.ids[rows]] - 1
            for slot in np.flatnonzero(np.bincount(last)).tolist():
                here = rows[last == slot]
                out[here] = self.decoder.numbers(self.words[here], self.ids[here], slot)
        return out

    @cached_property
    def _uses(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Packed uses in word order, the word of each, and whether each word's uses are complete."""
        packed, index, complete = [], [], []
        for start in range(0, len(self.words), CHUNK):
            part = slice(start, start + CHUNK)
            matrix, whole = self.decoder.uses(self.words[part], self.ids[part])
            places = np.flatnonzero(matrix.reshape(-1))
            packed.append(matrix.reshape(-1)[places])
            index.append((places // max(1, matrix.shape[1]) + start).astype(np.int32))
            complete.append(whole)
        if not packed:
            return np.zeros(0, np.uint32), np.zeros(0, np.int32), np.zeros(0, np.bool_)
        return np.concatenate(packed), np.concatenate(index), np.concatenate(complete)

    @cached_property
    def uses(self) -> Uses:
        """Register uses, guards included."""
        packed, index, complete = self._uses
        return Uses(
            index, (packed >> np.uint32(22) & np.uint32(15)).astype(np.uint8),
            (packed & np.uint32(0x3FF)).astype(np.int16), (packed >> np.uint32(10) & np.uint32(0xFFF)).astype(np.int16),
            (packed >> np.uint32(26) & np.uint32(15)).astype(np.uint8), (packed >> np.uint32(30) & np.uint32(1)) != 0,
            self.known, complete, self._of("mnemonic"), self._of("kind"), self.relative, self.offsets,
            self.decoder.mnemonic_names)

    def texts(self, addresses: Column, canonical: bool = False) -> list[str | None]:
        """nvdisasm's text of each word, guard included and targets absolute, None where the table does not know it.

        ``addresses`` are the words' byte addresses; ``canonical`` text also shows what nvdisasm hides.
        """
        return self.texts_at(np.arange(len(self.words)), addresses, canonical)

    def texts_at(self, places: npt.NDArray[np.int64], addresses: Column, canonical: bool = False) -> list[str | None]:
        """:meth:`texts` of the words at these indices only; ``addresses`` are those of all words."""
        out: list[str | None] = []
        renderer = self.decoder.renderer
        for start in range(0, len(places), CHUNK):
            part = places[start:start + CHUNK]
            with self.decoder.lock:
                texts = renderer.texts(self.words[part], self.ids[part], addresses[part], canonical)
            out += texts.tolist()
        return out

    def rows(self, address: int = 0) -> npt.NDArray[np.void]:
        """One :data:`ROW` per word, the first one standing at byte ``address``."""
        out = np.zeros(len(self.words), ROW)
        out["key"] = keys_of(self.words)
        for name in ("form", "opcode", "kind", "known"):
            out[name] = self._of(name)
        _, index, out["complete"] = self._uses
        counts = np.bincount(index, minlength=len(self.words))
        out["uses"], out["first_use"] = counts, np.cumsum(counts) - counts
        guard = (self.words[:, 0] >> np.uint64(12)).astype(np.uint8)
        out["guard"], out["guard_negated"] = guard & np.uint8(7), guard & np.uint8(8)
        out["guard_uniform"] = self._of("uniform")
        control = control_fields(self.words)
        for name in control.dtype.names or ():
            out[name] = control[name]
        out["relative"] = self.relative
        here = np.flatnonzero(self.relative)
        out["target"][here] = self.offsets[here] + (here + 1) * INSTRUCTION_SIZE + address
        return out
