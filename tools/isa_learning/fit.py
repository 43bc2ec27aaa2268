"""Fit one opcode key: words and their texts in, a :class:`gwatch.sass.isa.model.Key` out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from isa_learning.grow import Grower
from isa_learning.order import Slots, arrange

from gwatch.sass.isa import values
from gwatch.sass.isa.lex import Cut, cut
from gwatch.sass.isa.model import Choice, Form, Key, Value
from gwatch.sass.isa.tree import Node

FIRST_BIT, LAST_BIT = 16, 104
PROBED_BITS = [b for b in range(FIRST_BIT, LAST_BIT + 1) if b != 91]
_U64 = (1 << 64) - 1
Bits = npt.NDArray[np.uint8]
Pair = tuple[int, int, int]


def bit_matrix(words: Sequence[int]) -> Bits:
    """(n, 128) matrix of word bits, lowest first."""
    raw = np.frombuffer(b"".join(w.to_bytes(16, "little") for w in words), dtype=np.uint8).reshape(-1, 16)
    return np.unpackbits(raw, axis=1, bitorder="little")


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

    def add(self, word: int, text: str | None) -> None:
        """Add one probed word."""
        if word in self.index or word in self.invalid:
            return
        if text is None:
            self.invalid.add(word)
            return
        parts = cut(text)
        self.index[word] = len(self.words)
        self.words.append(word)
        self.cuts.append(parts)

    def pairs(self) -> list[Pair]:
        """(i, j, bit): words i and j differ in that bit alone (i has 0, j has 1)."""
        found = []
        for i, word in enumerate(self.words):
            for bit in PROBED_BITS:
                if not word >> bit & 1:
                    j = self.index.get(word | 1 << bit)
                    if j is not None:
                        found.append((i, j, bit))
        return found


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


class Fitter:
    """Fits one key from its samples."""

    def __init__(self, samples: Samples, zero: dict[str, int]) -> None:
        self.samples = samples
        self.zero = zero
        self.bits = bit_matrix(samples.words)
        self.pairs = samples.pairs()
        self.report = FitReport()
        self.known: dict[str, list[values.Field]] = defaultdict(list)

    def choice(self, labels_of: Sequence[str], index: Sequence[int], pairs: Sequence[Pair],
               groups: Sequence[tuple[int, int]], where: str = "",
               spare: Iterable[int] = ()) -> Choice:
        """A tree for a text per sample (``labels_of`` parallel to ``index``)."""
        names = sorted(set(labels_of))
        if len(names) == 1:
            return Choice(names, 0)
        number = {n: i for i, n in enumerate(names)}
        label = dict(zip(index, labels_of, strict=True))
        relevant = {b for i, j, b in pairs if label[i] != label[j]}
        grower = Grower(self.bits[list(index)], np.array([number[t] for t in labels_of], dtype=np.int64),
                        sorted(relevant), groups)
        node = grower.grow()
        for extra in (set(spare), self.varying(index)):
            if not grower.impure:
                break
            wider = Grower(self.bits[list(index)], np.array([number[t] for t in labels_of], dtype=np.int64),
                           sorted(relevant | extra), groups)
            second = wider.grow()
            if wider.impure < grower.impure:
                grower, node = wider, second
        self.report.note(f"{where} {names[:6]} {sorted(relevant)}", grower.impure)
        return Choice(names, node)

    def varying(self, index: Sequence[int]) -> set[int]:
        """Bits that are not the same in all samples of ``index``."""
        rows = self.bits[list(index)]
        return {b for b in PROBED_BITS if rows[:, b].min() != rows[:, b].max()}

    def fit(self) -> Key:
        """The key's model."""
        s = self.samples
        members: dict[str, list[int]] = defaultdict(list)
        for i, c in enumerate(s.cuts):
            members[c.skeleton].append(i)
        skeletons = sorted(members)
        number = {k: n for n, k in enumerate(skeletons)}
        form_of = [number[c.skeleton] for c in s.cuts]
        inner: dict[int, list[Pair]] = defaultdict(list)
        crossing: set[int] = set()
        for pair in self.pairs:
            if form_of[pair[0]] == form_of[pair[1]]:
                inner[form_of[pair[0]]].append(pair)
            else:
                crossing.add(pair[2])
        groups: set[tuple[int, int]] = set()
        found: dict[str, list[Value | None]] = {}
        for n, skeleton in enumerate(skeletons):
            found[skeleton] = self.fit_numbers(members[skeleton], inner[n])
            for value in found[skeleton]:
                if value is not None:
                    for place in value.fields:
                        groups |= {(low, width) for low, width, _ in place.runs if width > 1}
                        if place not in self.known[place.kind]:
                            self.known[place.kind].append(place)
        forms = [self.fit_form(skeleton, members[skeleton], inner[n], found[skeleton])
                 for n, skeleton in enumerate(skeletons)]
        select: Node = 0
        ordered = sorted(groups)
        if len(skeletons) > 1:
            grower = Grower(self.bits, np.array(form_of, dtype=np.int64), sorted(crossing), ordered)
            select = grower.grow()
            if grower.impure:
                wider = Grower(self.bits, np.array(form_of, dtype=np.int64), sorted(self.varying(range(len(form_of)))),
                               ordered)
                second = wider.grow()
                if wider.impure < grower.impure:
                    grower, select = wider, second
            self.report.note(f"select {sorted(crossing)}", grower.impure)
        opcode = self.fit_opcode(ordered)
        uniform = any(c.guard and c.guard[1] for c in s.cuts)
        return Key(s.key, opcode, select, forms, uniform)

    def fit_opcode(self, groups: Sequence[tuple[int, int]]) -> list[Choice]:
        """Trees for the opcode's words, in printing order."""
        cuts = self.samples.cuts
        everything = range(len(cuts))
        slots: Slots = arrange([c.opcode for c in cuts], self.pairs)
        spare = {b for i, j, b in self.pairs if cuts[i].opcode != cuts[j].opcode}
        return [self.choice([slots.text(c.opcode, n) for c in cuts], everything, self.pairs, groups, "opcode", spare)
                for n in range(slots.count)]

    def fit_numbers(self, index: list[int], pairs: Sequence[Pair]) -> list[Value | None]:
        """Per value of one form: its single field, None for names and where one field does not explain it."""
        cuts = self.samples.cuts
        out: list[Value | None] = []
        for n, (kind, _) in enumerate(cuts[index[0]].values):
            place = None
            if kind != "N":
                tables, usable, inside = self._numbers(kind, n, index, pairs)
                place = next((f for name, numbers in tables if usable
                              and (f := self.linear(name, numbers, usable, inside)) is not None), None)
            out.append(None if place is None else Value(kind, None, [place], 0))
        return out

    def _numbers(self, kind: str, n: int, index: Sequence[int], pairs: Sequence[Pair]) -> tuple[
            list[tuple[str, dict[int, int | None]]], list[int], list[Pair]]:
        """Value ``n`` as numbers, per way of reading it; the samples that are not NaN; the pairs among them."""
        tables = []
        texts = {i: self.samples.cuts[i].values[n][1] for i in index}
        for name in values.FLOATS if kind == "F" else (kind,):
            numbers: dict[int, int | None] = {}
            for i, text in texts.items():
                number = values.float_bits(text, name) if kind == "F" else values.parse_number(kind, text, self.zero)
                numbers[i] = None if number is None else number & _U64
            tables.append((name, numbers))
        if kind != "F":
            return tables, list(index), list(pairs)
        usable = [i for i in index if not texts[i].strip().endswith("NAN")]
        good = set(usable)
        return tables, usable, [p for p in pairs if p[0] in good and p[1] in good]

    def fit_form(self, skeleton: str, index: list[int], pairs: Sequence[Pair], found: list[Value | None]) -> Form:
        """One form; fields that the form's own samples do not show are borrowed from the key's other forms."""
        cuts = self.samples.cuts
        kinds = [kind for kind, _ in cuts[index[0]].values]
        groups = {(low, width) for value in found if value is not None for place in value.fields
                  for low, width, _ in place.runs if width > 1}
        fitted = []
        for n, kind in enumerate(kinds):
            texts = [cuts[i].values[n][1] for i in index]
            if kind == "N":
                fitted.append(Value("N", self.choice(texts, index, pairs, sorted(groups), f"{skeleton} name {n}")))
                continue
            value = found[n]
            tables, usable, inside = self._numbers(kind, n, index, pairs)
            if value is not None:
                value = self.widen(value, tables, usable)
            elif usable:
                value = self._several(kind, tables, usable, inside, sorted(groups))
            if value is None:
                self.report.unfitted.append(f"{skeleton} value {n}")
                value = Value("N", self.choice(texts, index, pairs, (), f"{skeleton} value {n}"))
            fitted.append(value)
            for place in value.fields:
                groups |= {(low, width) for low, width, _ in place.runs if width > 1}
        attachments = [self.choice([cuts[i].attachments[n] for i in index], index, pairs, sorted(groups),
                                   f"{skeleton} attachment {n}")
                       for n in range(len(cuts[index[0]].attachments))]
        return Form(skeleton, attachments, fitted)

    def widen(self, value: Value, tables: Sequence[tuple[str, dict[int, int | None]]],
              usable: Sequence[int]) -> Value:
        """A wider field of the same key in place of ``value``'s, when it explains all samples as well."""
        place = value.fields[0]
        numbers = dict(tables)[place.kind]
        best = place
        for other in self.known[place.kind]:
            if other.mask & best.mask == best.mask and other.mask != best.mask and all(
                    other.get(self.samples.words[i]) & _U64 == numbers[i] for i in usable):
                best = other
        return value if best is place else Value(value.kind, None, [best], 0)

    def _several(self, kind: str, tables: Sequence[tuple[str, dict[int, int | None]]], usable: Sequence[int],
                 pairs: Sequence[Pair], groups: Sequence[tuple[int, int]]) -> Value | None:
        """Several fields and a tree that says which one holds."""
        beside: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for i, j, bit in pairs:
            beside[i].append((j, bit))
            beside[j].append((i, bit))
        theories: list[tuple[str, dict[int, int], int]] = []
        for i in sorted(beside, key=lambda n: (-len(beside[n]), n)):
            if len(beside[i]) < 12:
                break
            for name, numbers in tables:
                local: dict[int, int] = {}
                here = numbers[i]
                if here is None:
                    continue
                good = True
                for j, bit in beside[i]:
                    there = numbers[j]
                    if there is None:
                        good = False
                        break
                    local[bit] = here ^ there
                # A bit that changes the number in another way than by one place is a selector, not part of the field.
                local = {b: d for b, d in local.items() if d == 0 or _places(d)}
                if good and _field(name, {b: d for b, d in local.items() if d}, 0) is not None:
                    const = here
                    for bit, change in local.items():
                        if self.bits[i, bit]:
                            const ^= change
                    _merge(theories, name, local, const)
        fields: list[values.Field] = []
        explained: list[npt.NDArray[np.bool_]] = []
        of_kind = dict(tables)
        ideas = [place for name, _ in tables for place in self.known[name]]
        for name, local, const in theories:
            for base in sorted({const, 0}):
                idea = _field(name, {b: d for b, d in local.items() if d}, base)
                if idea is not None:
                    ideas.append(idea)
        for place in ideas:
            if place not in fields:
                fields.append(place)
                numbers = of_kind[place.kind]
                explained.append(np.array(
                    [(n := numbers[i]) is not None and place.get(self.samples.words[i]) & _U64 == n
                     for i in usable]))
        kept: list[int] = []
        left = np.ones(len(usable), dtype=bool)
        while left.any() and len(kept) < 8:
            scores = [int((e & left).sum()) for e in explained]
            if not scores or max(scores) < 1:
                break
            best = scores.index(max(scores))
            kept.append(best)
            left &= ~explained[best]
        if not kept or left.sum() > len(usable) // 20:
            return None
        matrix = np.array([explained[k] for k in kept])
        decided = [n for n in range(len(usable)) if matrix[:, n].sum() == 1]
        if not decided:
            return Value(kind, None, [fields[kept[0]]], 0)
        label = {usable[n]: int(matrix[:, n].argmax()) for n in decided}
        relevant = {b for i, j, b in pairs if i in label and j in label and label[i] != label[j]}
        moving = {b for k in kept for b in _bits_of(fields[k].mask)}
        column = self.bits[list(label)]
        varying = {b for b in PROBED_BITS if column[:, b].min() != column[:, b].max()}
        grower = Grower(column, np.array(list(label.values()), dtype=np.int64),
                        sorted(relevant or varying - moving), groups)
        node = grower.grow()
        if grower.impure:
            grower = Grower(column, np.array(list(label.values()), dtype=np.int64), sorted(varying), groups)
            node = grower.grow()
        self.report.note("value choice", grower.impure)
        self.report.note("value left", int(left.sum()))
        return Value(kind, None, [fields[k] for k in kept], node)

    def linear(self, kind: str, numbers: dict[int, int | None], index: Sequence[int],
               pairs: Iterable[Pair]) -> values.Field | None:
        """The field that explains all ``numbers`` as bits copied from the word, or None."""
        weight: dict[int, int] = {}
        for i, j, bit in pairs:
            a, b = numbers[i], numbers[j]
            if a is None or b is None:
                return None
            if a != b and weight.setdefault(bit, a ^ b) != a ^ b:
                return None
        for i in index:
            if numbers[i] is None:
                return None
        actual = np.array([numbers[i] for i in index], dtype=np.uint64)
        guess = np.zeros(len(index), dtype=np.uint64)
        rows = self.bits[list(index)]
        for bit, change in weight.items():
            guess ^= np.where(rows[:, bit] == 1, np.uint64(change), np.uint64(0))
        rest = actual ^ guess
        if rest.min() != rest.max():
            return None
        return _field(kind, weight, int(rest[0]))


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
