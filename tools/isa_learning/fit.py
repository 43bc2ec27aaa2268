"""Fit one opcode key: words and their texts in, a :class:`gwatch.sass.isa.model.Key` out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from isa_learning.grow import Grower
from isa_learning.order import Slots, arrange

from gwatch.sass.isa import values
from gwatch.sass.isa.lex import Cut, attach_reuse, cut
from gwatch.sass.isa.model import Choice, Form, Key, Value
from gwatch.sass.isa.tree import UNKNOWN, Node

FIRST_BIT, LAST_BIT = 16, 104
PROBED_BITS = [b for b in range(FIRST_BIT, LAST_BIT + 1) if b != 91]
SIMPLE = 5
_U64 = (1 << 64) - 1
_HASH = np.random.default_rng(1).integers(0, 1 << 64, 128, dtype=np.uint64)
Bits = npt.NDArray[np.uint8]
Pairs = npt.NDArray[np.int64]
"""(m, 3): words i and j differ in that bit alone (i has 0, j has 1)."""
Numbers = npt.NDArray[np.uint64]


def bit_matrix(words: Sequence[int]) -> Bits:
    """(n, 128) matrix of word bits, lowest first."""
    raw = np.frombuffer(b"".join(w.to_bytes(16, "little") for w in words), dtype=np.uint8).reshape(-1, 16)
    return np.unpackbits(raw, axis=1, bitorder="little")


@lru_cache(maxsize=1 << 20)
def cut_probed(text: str) -> Cut:
    """The text of a probed word, whose control word marks no reuse: ``.reuse`` is then the word's own attachment.

    Sparse matrix products mark their metadata register so by a bit of the instruction. Many words share a text.
    """
    parts = cut(text)
    return attach_reuse(parts, parts.reuse) if parts.reuse else parts


@dataclass
class Samples:
    """Everything known about one key: words with a text (cut), and words that are no instruction."""

    key: int
    words: list[int] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    invalid: set[int] = field(default_factory=set)
    real: set[int] = field(default_factory=set)
    flipped: set[int] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    numbers: dict[tuple[str, str], int | None] = field(default_factory=dict)
    _pairs: list[Pairs] = field(default_factory=list)
    _paired: int = 0

    def add(self, word: int, text: str | None) -> None:
        """Add one probed word."""
        if word in self.index or word in self.invalid:
            return
        if text is None:
            self.invalid.add(word)
            return
        parts = cut_probed(text)
        self.index[word] = len(self.words)
        self.words.append(word)
        self.cuts.append(parts)

    def pairs(self) -> Pairs:
        """All pairs of words that differ in one bit."""
        count = len(self.words)
        if count > self._paired:
            # A hash that is linear over bits: that of a word with one bit flipped is one XOR away.
            rows = bit_matrix(self.words)
            hashes = np.zeros(count, dtype=np.uint64)
            for bit in range(128):
                hashes ^= np.where(rows[:, bit] == 1, _HASH[bit], np.uint64(0))
            order = np.argsort(hashes)
            ordered = hashes[order]
            fresh = np.arange(self._paired, count)
            for bit in PROBED_BITS:
                wanted = hashes[fresh] ^ _HASH[bit]
                at = np.minimum(np.searchsorted(ordered, wanted), count - 1)
                other = order[at]
                hit = (ordered[at] == wanted) & (other < fresh)
                if hit.any():
                    one, two = other[hit], fresh[hit]
                    up = rows[two, bit] == 1
                    self._pairs.append(np.column_stack([np.where(up, one, two), np.where(up, two, one),
                                                        np.full(len(one), bit)]))
            self._paired = count
        return np.concatenate(self._pairs) if self._pairs else np.zeros((0, 3), dtype=np.int64)


@dataclass
class FitReport:
    """What a fit could not explain."""

    impure: int = 0
    unfitted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, where: str, impure: int) -> None:
        """Count samples that a tree could not decide."""
        if impure:
            self.impure += impure
            self.notes.append(f"{where}: {impure}")


@dataclass(frozen=True)
class Reading:
    """One value of one form as numbers of ``kind``; ``known`` False: the text is no such number."""

    kind: str
    numbers: Numbers
    known: npt.NDArray[np.bool_]


class Fitter:
    """Fits one key from its samples."""

    def __init__(self, samples: Samples, zero: dict[str, int]) -> None:
        self.samples = samples
        self.zero = zero
        self.bits = bit_matrix(samples.words)
        self.pairs = samples.pairs()
        self.report = FitReport()
        self.known: dict[str, list[values.Field]] = defaultdict(list)

    def choice(self, labels_of: Sequence[str], index: npt.NDArray[np.int64], pairs: Pairs,
               groups: Sequence[tuple[int, int]], where: str = "", spare: Iterable[int] = ()) -> Choice:
        """A tree for a text per sample (``labels_of`` parallel to ``index``)."""
        names = sorted(set(labels_of))
        if len(names) == 1:
            return Choice(names, 0)
        number = {n: i for i, n in enumerate(names)}
        labels = np.array([number[t] for t in labels_of], dtype=np.int64)
        whole = np.full(len(self.bits), -1, dtype=np.int64)
        whole[index] = labels
        relevant = set(np.unique(pairs[whole[pairs[:, 0]] != whole[pairs[:, 1]], 2]).tolist())
        grower = Grower(self.bits[index], labels, sorted(relevant), groups)
        node = grower.grow()
        for extra in (set(spare), self.varying(index)):
            if not grower.impure:
                break
            wider = Grower(self.bits[index], labels, sorted(relevant | extra), groups)
            second = wider.grow()
            if wider.impure < grower.impure:
                grower, node = wider, second
        self.report.note(f"{where} {names[:6]} {sorted(relevant)}", grower.impure)
        return Choice(names, node)

    def varying(self, index: npt.NDArray[np.int64]) -> set[int]:
        """Bits that are not the same in all samples of ``index``."""
        rows = self.bits[index]
        differ = rows.min(axis=0) != rows.max(axis=0)
        return {b for b in PROBED_BITS if differ[b]}

    def fit(self) -> Key:
        """The key's model."""
        s = self.samples
        members: dict[str, list[int]] = defaultdict(list)
        for i, c in enumerate(s.cuts):
            members[c.skeleton].append(i)
        skeletons = sorted(members)
        number = {k: n for n, k in enumerate(skeletons)}
        form_of = np.array([number[c.skeleton] for c in s.cuts], dtype=np.int64)
        first, second = form_of[self.pairs[:, 0]], form_of[self.pairs[:, 1]]
        inner = [self.pairs[(first == second) & (first == n)] for n in range(len(skeletons))]
        crossing = np.unique(self.pairs[first != second, 2]).tolist()
        groups: set[tuple[int, int]] = set()
        found: dict[str, list[Value | None]] = {}
        for n, skeleton in enumerate(skeletons):
            found[skeleton] = self.fit_numbers(np.array(members[skeleton]), inner[n])
            for value in found[skeleton]:
                if value is not None:
                    for place in value.fields:
                        groups |= {(low, width) for low, width, _ in place.runs if width > 1}
                        if place not in self.known[place.kind]:
                            self.known[place.kind].append(place)
        forms = [self.fit_form(skeleton, np.array(members[skeleton]), inner[n], found[skeleton])
                 for n, skeleton in enumerate(skeletons)]
        select: Node = 0
        ordered = sorted(groups)
        if len(skeletons) > 1:
            grower = Grower(self.bits, form_of, crossing, ordered)
            select = grower.grow()
            if grower.impure:
                wider = Grower(self.bits, form_of, sorted(self.varying(np.arange(len(form_of)))), ordered)
                other = wider.grow()
                if wider.impure < grower.impure:
                    grower, select = wider, other
            self.report.note(f"select {crossing}", grower.impure)
        opcode = self.fit_opcode(ordered)
        uniform = any(c.guard and c.guard[1] for c in s.cuts)
        return Key(s.key, opcode, select, forms, uniform)

    def fit_opcode(self, groups: Sequence[tuple[int, int]]) -> list[Choice]:
        """Trees for the opcode's words, in printing order."""
        opcodes = [c.opcode for c in self.samples.cuts]
        distinct = sorted(set(opcodes))
        number = {o: n for n, o in enumerate(distinct)}
        which = np.array([number[o] for o in opcodes], dtype=np.int64)
        changing = np.column_stack([which[self.pairs[:, 0]], which[self.pairs[:, 1]], self.pairs[:, 2]])
        changing = np.unique(changing[changing[:, 0] != changing[:, 1]], axis=0)
        slots: Slots = arrange(distinct, ((distinct[a], distinct[b], bit) for a, b, bit in changing.tolist()))
        spare = set(changing[:, 2].tolist())
        texts = [slots.texts(o) for o in distinct]
        everything = np.arange(len(opcodes))
        return [self.choice([texts[k][n] for k in which.tolist()], everything, self.pairs, groups, "opcode", spare)
                for n in range(slots.count)]

    def fit_numbers(self, index: npt.NDArray[np.int64], pairs: Pairs) -> list[Value | None]:
        """Per value of one form: its single field, None for names and where one field does not explain it."""
        out: list[Value | None] = []
        for n, (kind, _) in enumerate(self.samples.cuts[index[0]].values):
            place = None
            if kind != "N":
                readings, usable, inside = self._numbers(kind, n, index, pairs)
                place = next((f for reading in readings if len(usable)
                              and (f := self.linear(reading, usable, inside) or self.following(reading, usable, inside))
                              is not None), None)
            out.append(None if place is None else Value(kind, None, [place], 0))
        return out

    def _numbers(self, kind: str, n: int, index: npt.NDArray[np.int64], pairs: Pairs) -> tuple[
            list[Reading], npt.NDArray[np.int64], Pairs]:
        """Value ``n`` per way of reading it (arrays over all samples); the samples that are not NaN; their pairs."""
        cuts, memo = self.samples.cuts, self.samples.numbers
        texts = [cuts[i].values[n][1] for i in index.tolist()]
        readings = []
        for name in values.FLOATS if kind == "F" else (kind,):
            parsed: list[int | None] = []
            for text in texts:
                if (name, text) not in memo:
                    number = (values.float_bits(text, name) if kind == "F"
                              else values.parse_number(kind, text, self.zero))
                    memo[name, text] = None if number is None else number & _U64
                parsed.append(memo[name, text])
            known = np.zeros(len(self.bits), dtype=bool)
            numbers = np.zeros(len(self.bits), dtype=np.uint64)
            known[index] = [p is not None for p in parsed]
            numbers[index] = np.array([p or 0 for p in parsed], dtype=np.uint64)
            readings.append(Reading(name, numbers, known))
        if kind != "F":
            return readings, index, pairs
        good = np.zeros(len(self.bits), dtype=bool)
        good[index] = [not t.strip().endswith("NAN") for t in texts]
        return readings, index[good[index]], pairs[good[pairs[:, 0]] & good[pairs[:, 1]]]

    def fit_form(self, skeleton: str, index: npt.NDArray[np.int64], pairs: Pairs,
                 found: list[Value | None]) -> Form:
        """One form; fields that the form's own samples do not show are borrowed from the key's other forms."""
        cuts = self.samples.cuts
        members = index.tolist()
        kinds = [kind for kind, _ in cuts[members[0]].values]
        groups = {(low, width) for value in found if value is not None for place in value.fields
                  for low, width, _ in place.runs if width > 1}
        fitted = []
        for n, kind in enumerate(kinds):
            texts = [cuts[i].values[n][1] for i in members]
            if kind == "N":
                fitted.append(Value("N", self.choice(texts, index, pairs, sorted(groups), f"{skeleton} name {n}")))
                continue
            value = found[n]
            readings, usable, inside = self._numbers(kind, n, index, pairs)
            if value is not None:
                value = self.widen(value, readings, usable)
            elif len(usable):
                value = self._several(kind, readings, usable, inside, sorted(groups))
            if value is None:
                self.report.unfitted.append(f"{skeleton} value {n}")
                value = Value("N", self.choice(texts, index, pairs, (), f"{skeleton} value {n}"))
            fitted.append(value)
            for place in value.fields:
                groups |= {(low, width) for low, width, _ in place.runs if width > 1}
        attachments = [self.choice([cuts[i].attachments[n] for i in members], index, pairs, sorted(groups),
                                   f"{skeleton} attachment {n}")
                       for n in range(len(cuts[members[0]].attachments))]
        return Form(skeleton, attachments, fitted)

    def read(self, place: values.Field, index: npt.NDArray[np.int64]) -> Numbers:
        """The field's number in the samples ``index``, modulo 2**64."""
        rows = self.bits[index]
        out = np.zeros(len(index), dtype=np.uint64)
        for low, width, shift in place.runs:
            for k in range(width):
                out |= rows[:, low + k].astype(np.uint64) << np.uint64(shift + k)
        out ^= np.uint64(place.const)
        if place.signed:
            out |= np.where(out >> np.uint64(place.top - 1) & np.uint64(1), np.uint64(_U64 << place.top & _U64),
                            np.uint64(0))
        if place.add:
            out += np.where(out != np.uint64(place.ones), np.uint64(place.add), np.uint64(0))
        return out

    def widen(self, value: Value, readings: Sequence[Reading], usable: npt.NDArray[np.int64]) -> Value:
        """A wider field of the same key in place of ``value``'s, when it explains all samples as well."""
        place = value.fields[0]
        numbers = next(r.numbers for r in readings if r.kind == place.kind)
        best = place
        for other in self.known[place.kind]:
            if other.mask & best.mask == best.mask and other.mask != best.mask and bool(
                    (self.read(other, usable) == numbers[usable]).all()):
                best = other
        return value if best is place else Value(value.kind, None, [best], 0)

    def _several(self, kind: str, readings: Sequence[Reading], usable: npt.NDArray[np.int64],
                 pairs: Pairs, groups: Sequence[tuple[int, int]]) -> Value | None:
        """Several fields and a tree that says which one holds."""
        beside: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, j, bit in pairs.tolist():
            beside[i].append((j, bit))
            beside[j].append((i, bit))
        theories: list[tuple[str, dict[int, int], int]] = []
        tables = [(r.kind, r.numbers.tolist(), r.known.tolist()) for r in readings]
        for i in sorted(beside, key=lambda n: (-len(beside[n]), n)):
            if len(beside[i]) < 12:
                break
            for name, numbers, known in tables:
                if not known[i]:
                    continue
                here = numbers[i]
                # A neighbour whose text is no such number shows a selector, too.
                local = {bit: here ^ numbers[j] for j, bit in beside[i] if known[j]}
                if len(local) < 12:
                    continue
                # A bit that changes the number in another way than by one place is a selector, not part of the field.
                local = {b: d for b, d in local.items() if d == 0 or _places(d)}
                # Of two bits that extend a sign the lower is the field's; the other one says whether it has a sign.
                signs = sorted((b for b, d in local.items() if d & d - 1), key=lambda b: (local[b] & -local[b], b))
                for bit in signs[1:]:
                    del local[bit]
                if _field(name, {b: d for b, d in local.items() if d}, 0) is not None:
                    const = here
                    for bit, change in local.items():
                        if self.bits[i, bit]:
                            const ^= change
                    _merge(theories, name, local, const)
        fields: list[values.Field] = []
        explained: list[npt.NDArray[np.bool_]] = []
        of_kind = {r.kind: r for r in readings}
        ideas = [place for r in readings for place in self.known[r.kind]]
        for name, local, const in theories:
            for base in sorted({const, 0}):
                idea = _field(name, {b: d for b, d in local.items() if d}, base)
                if idea is not None:
                    ideas.append(idea)
        for place in ideas:
            if place not in fields:
                fields.append(place)
                reading = of_kind[place.kind]
                explained.append(reading.known[usable] & (self.read(place, usable) == reading.numbers[usable]))
        kept: list[int] = []
        left = np.ones(len(usable), dtype=bool)
        while left.any() and len(kept) < 8:
            scores = [int((e & left).sum()) for e in explained]
            if not scores or max(scores) < 1:
                break
            best = scores.index(max(scores))
            kept.append(best)
            left &= ~explained[best]
        if not kept:
            return None
        matrix = np.array([explained[k] for k in kept])
        if left.any():
            # A sum (UR+1) looks like several fields; the first one, known for even registers, is all that code needs.
            for number in range(1, len(kept) + 1):
                value = self._partly(kind, [fields[k] for k in kept[:number]], matrix[:number], usable, pairs, groups)
                if value is not None and (_size(value.node) <= SIMPLE or number == len(kept)):
                    return value
            if left.sum() > len(usable) // 20:
                return None
        decided = np.flatnonzero(matrix.sum(axis=0) == 1)
        if not len(decided):
            return Value(kind, None, [fields[kept[0]]], 0)
        whole = np.full(len(self.bits), -1, dtype=np.int64)
        whole[usable[decided]] = labels = matrix[:, decided].argmax(axis=0)
        one, other = whole[pairs[:, 0]], whole[pairs[:, 1]]
        relevant = set(pairs[(one >= 0) & (other >= 0) & (one != other), 2].tolist())
        moving = {b for k in kept for b in _bits_of(fields[k].mask)}
        column = self.bits[usable[decided]]
        varying = self.varying(usable[decided])
        grower = Grower(column, labels, sorted(relevant or varying - moving), groups)
        node = grower.grow()
        if grower.impure:
            grower = Grower(column, labels, sorted(varying), groups)
            node = grower.grow()
        self.report.note("value choice", grower.impure)
        self.report.note("value left", int(left.sum()))
        return Value(kind, None, [fields[k] for k in kept], node)

    def _partly(self, kind: str, fields: list[values.Field], matrix: npt.NDArray[np.bool_],
                usable: npt.NDArray[np.int64], pairs: Pairs, groups: Sequence[tuple[int, int]]) -> Value | None:
        """Fields that explain a part of the samples, if a tree tells which part; the rest is left unknown."""
        count = matrix.sum(axis=0)
        decided = np.flatnonzero(count <= 1)
        labels = np.where(count[decided] == 1, matrix[:, decided].argmax(axis=0), len(fields))
        whole = np.full(len(self.bits), -1, dtype=np.int64)
        whole[usable[decided]] = labels
        one, other = whole[pairs[:, 0]], whole[pairs[:, 1]]
        relevant = set(pairs[(one >= 0) & (other >= 0) & (one != other), 2].tolist())
        for candidates in (relevant, self.varying(usable[decided])):
            grower = Grower(self.bits[usable[decided]], labels, sorted(candidates), groups)
            node = grower.grow()
            if not grower.impure:
                self.report.note(f"value known in part: {fields}", int((count == 0).sum()))
                return Value(kind, None, fields, _unknown(node, len(fields)))
        return None

    def linear(self, reading: Reading, index: npt.NDArray[np.int64], pairs: Pairs) -> values.Field | None:
        """The field that explains all numbers of ``reading`` as bits copied from the word, or None."""
        if not reading.known[index].all():
            return None
        change = reading.numbers[pairs[:, 0]] ^ reading.numbers[pairs[:, 1]]
        moving = change != 0
        weight: dict[int, int] = {}
        for bit in np.unique(pairs[moving, 2]).tolist():
            changes = np.unique(change[moving & (pairs[:, 2] == bit)])
            if len(changes) > 1:
                return None
            weight[bit] = int(changes[0])
        guess = np.zeros(len(index), dtype=np.uint64)
        rows = self.bits[index]
        for bit, moved in weight.items():
            guess ^= np.where(rows[:, bit] == 1, np.uint64(moved), np.uint64(0))
        rest = reading.numbers[index] ^ guess
        if rest.min() != rest.max():
            # A bit that no pair flips alone: the places beside it say what it moves, and all samples whether it does.
            for bit in sorted(self.varying(index) - weight.keys()):
                below, above = weight.get(bit - 1, 0), weight.get(bit + 1, 0)
                if below and below & below - 1 == 0 and above & -above == below << 2:
                    weight[bit] = below << 1
                    rest ^= np.where(rows[:, bit] == 1, np.uint64(below << 1), np.uint64(0))
            if rest.min() != rest.max():
                return None
        return _field(reading.kind, weight, int(rest[0]))


    def following(self, reading: Reading, index: npt.NDArray[np.int64], pairs: Pairs) -> values.Field | None:
        """The field that names the register before the printed one, or None."""
        zero = self.zero.get(reading.kind)
        if zero is None or not reading.known[index].all() or not reading.numbers[index].all():
            return None
        plain = np.zeros(len(self.bits), dtype=bool)
        plain[index] = reading.numbers[index] != zero
        before = Reading(reading.kind, reading.numbers - np.uint64(1), reading.known)
        inside = pairs[plain[pairs[:, 0]] & plain[pairs[:, 1]]]
        place = self.linear(before, index[plain[index]], inside) if plain.any() else None
        if place is None or not place.runs or place.const:
            return None
        place = place._replace(add=1)
        return place if bool((self.read(place, index) == reading.numbers[index]).all()) else None


def _size(node: Node) -> int:
    """Number of tests in ``node``."""
    if isinstance(node, int):
        return 0
    return 1 + sum(map(_size, node[2].values() if node[0] == "sw" else node[3:]))


def _unknown(node: Node, label: int) -> Node:
    """``node`` with the leaves ``label`` made unknown."""
    if isinstance(node, int):
        return UNKNOWN if node == label else node
    if node[0] == "sw":
        return ("sw", node[1], {value: _unknown(child, label) for value, child in node[2].items()})
    return (*node[:3], _unknown(node[3], label), _unknown(node[4], label))


def _field(kind: str, weight: dict[int, int], const: int) -> values.Field | None:
    places = []
    signed = False
    for bit, change in weight.items():
        if change & change - 1 == 0:
            places.append((change.bit_length() - 1, bit))
            continue
        low = (change & -change).bit_length() - 1
        if change | (1 << low) - 1 != _U64 or signed:
            return None
        signed = True
        places.append((low, bit))
        sign = low
    places.sort()
    if len({p for p, _ in places}) != len(places) or (signed and sign != places[-1][0]):
        return None
    runs: list[list[int]] = []
    for shift, bit in places:
        if runs and runs[-1][0] + runs[-1][1] == bit and runs[-1][2] + runs[-1][1] == shift:
            runs[-1][1] += 1
        else:
            runs.append([bit, 1, shift])
    if signed and const >> places[-1][0]:
        return None
    return values.Field(kind, tuple((a, b, c) for a, b, c in runs), signed, const)


def _places(change: int) -> bool:
    low = change & -change
    return change == low or change | low - 1 == _U64


def _bits_of(mask: int) -> list[int]:
    return [b for b in range(128) if mask >> b & 1]


def _merge(theories: list[tuple[str, dict[int, int], int]], name: str, local: dict[int, int], const: int) -> None:
    """Join ``local`` (bit -> change of the number, 0 = none) to the first theory it agrees with, or start one."""
    for other, known, base in theories:
        if other == name and all(known.get(b, d) == d for b, d in local.items()):
            new = {b: d for b, d in local.items() if b not in known}
            merged = {**known, **local}
            agree = base == const or any(new.values())
            if agree and _field(name, {b: d for b, d in merged.items() if d}, 0) is not None:
                known.update(new)
                return
    theories.append((name, dict(local), const))
