"""From text to a word: find the form, take the bits the compiler uses for it, put the numbers in, check by decoding.

Bits that a text does not show come from compiler words of the same shape (form, opcode words, attachments). Where
compilers write several values for the same shape the line is refused as ambiguous; for a shape no compiler word has,
the trees are solved and the bits they leave open are taken from similar compiler words, if those agree. Whatever comes
out is decoded again, and only a word whose text is the text given is returned.

Working a shape out takes milliseconds, so it is kept as a :class:`Recipe`. A line of a known shape is cut by one
regular expression; its numbers are put into the recipe's words and the pattern of the result is looked up among those
that are known to read as the shape says (equal patterns differ in their numbers only, :mod:`gwatch.sass.isa.pattern`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from operator import or_

from gwatch.errors import EncodeError
from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.isa import tree, values
from gwatch.sass.isa.lex import Cut, attach_reuse, join, pieces, suffix_places
from gwatch.sass.isa.model import GUARD_SHIFT, KEY_BIT, Choice, Form, Key, Value, key_of
from gwatch.sass.isa.pattern import PLAIN_MASK, Pattern
from gwatch.sass.isa.template import Template, Templates
from gwatch.sass.isa.tree import Node
from gwatch.sass.isa.values import Field

SOLUTIONS = 64
_FIXED = 0xFFF | 1 << KEY_BIT | 0xF << GUARD_SHIFT | CONTROL_MASK
_STEPS = 4000
_SAME_MODIFIERS = 2
"""How many of the pools of compiler words that hidden bits are taken from have the line's own modifiers."""
_SEVERAL, _NOBODY = "several", ""
"""Whose a compiler word is where not one project's: more than one's; none's, for words that were derived from one."""
_REMEMBERED = 1 << 16
_CONSTANT = frozenset({"RZ", "URZ", "PT", "UPT"})
_REGISTERS = frozenset("RUPQBS")

Packer = Callable[[str], "int | None"]


@dataclass(slots=True)
class Plan:
    """How one shape is encoded in one form: starting words, whether compilers use it."""

    key: Key
    form: Form
    bases: list[int]
    compiled: bool
    problem: EncodeError | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A pattern that reads as a recipe's shape says.

    ``groups`` are the register groups that must be aligned: (bits that are 0 if it is, field, its RZ, registers).
    """

    template: Template
    groups: tuple[tuple[int, Field, int, int], ...]


@dataclass(slots=True)
class Candidate:
    """One way to fill a shape's numbers in: ``word`` with constants in place, and per argument what packs it.

    ``shared``: the masks of all arguments' fields and those of the constants, with the bits that they must have, where
    some of these fields overlap.
    """

    word: int
    fields: tuple[Field, ...]
    packers: tuple[Packer, ...]
    pattern: Pattern
    shared: tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None = None
    readings: dict[int, Reading | None] = field(default_factory=dict)

    def pack(self, arguments: Sequence[str]) -> int | None:
        """The word with these numbers, None when one of them does not fit."""
        word = self.word
        for packer, argument in zip(self.packers, arguments, strict=True):
            bits = packer(argument)
            if bits is None:
                return None
            word |= bits
        if self.shared is not None:
            masks, constants = self.shared
            for packer, argument, mask in zip(self.packers, arguments, masks, strict=True):
                if word & mask != packer(argument):
                    return None
            if any(word & mask != bits for mask, bits in constants):
                return None
        return word


@dataclass(slots=True)
class Recipe:
    """All ways to encode one shape with the same constants.

    ``plans[i]`` is (compilers use it, bases); a base is groups of candidates of which the first that reads back counts.
    ``relative``: the last argument is the distance to a target. ``only`` is the one candidate, where there is but one.
    ``constant``: which values of the line belong to the shape; the others are the arguments.
    """

    cut: Cut
    constant: tuple[bool, ...]
    plans: list[tuple[bool, list[list[list[Candidate]]]]]
    relative: bool
    only: Candidate | None


class Encoder:
    """Encodes the part of a line between guard and control word."""

    def __init__(self, templates: Templates) -> None:
        self.templates = templates
        self.table = templates.table
        self.zero = templates.zero
        self._plans: dict[tuple[tuple[str, ...], str, tuple[str, ...]], list[Plan]] = {}
        self._recipes: dict[tuple[object, ...], Recipe] = {}
        self._listed: dict[tuple[str, str], frozenset[int]] = {}
        self._packers: dict[tuple[str, Field], Packer] = {}
        self._names: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._pins: dict[tuple[int, tuple[int, int]], list[tuple[int, int]]] = {}
        self._modifiers: dict[int, int] = {}
        self._masks: dict[int, list[tuple[int, int, str]]] = {}
        self._shapes: dict[int, dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]]] = {}

    def recipe(self, cut: Cut, relative: bool) -> Recipe:
        """The recipe of the shape of ``cut`` and of its names and zero registers."""
        listed = self._enumerated(cut)
        constant = tuple(is_constant(kind, text) or n in listed for n, (kind, text) in enumerate(cut.values))
        constants = tuple(text if fixed else None for fixed, (_, text) in zip(constant, cut.values, strict=True))
        kinds = tuple(kind for kind, _ in cut.values)
        at = (cut.opcode, cut.skeleton, cut.attachments, kinds, constants)
        found = self._recipes.get(at)
        if found is None:
            if len(self._recipes) > _REMEMBERED:
                self._recipes.clear()
            found = self._recipes[at] = self._recipe(cut, constant, relative)
        return found

    def _enumerated(self, cut: Cut) -> frozenset[int]:
        """Positions of the values that some form lists one by one, though they are numbers."""
        at = cut.opcode[0], cut.skeleton
        found = self._listed.get(at)
        if found is None:
            found = self._listed[at] = frozenset(
                n for key in self._keys(cut.opcode[0]) for form in key.forms if form.skeleton == cut.skeleton
                for n, value in enumerate(form.values) if value.name is not None)
        return found

    def own_reuse(self, cut: Cut) -> Cut:
        """``cut`` with those ``.reuse`` marks as attachments that the opcode's own bits print.

        Sparse and scaled matrix products mark their metadata or scale register so; no operand-cache bit stands for it.
        """
        if not cut.reuse:
            return cut
        words = set(cut.opcode)
        places = suffix_places(cut.skeleton)
        own = {position for key in self._keys(cut.opcode[0]) if key.constant_words() <= words for form in key.forms
               if form.skeleton == cut.skeleton for position in cut.reuse
               if any(".reuse" in label for label in form.attachments[places[position]].labels)}
        return attach_reuse(cut, own) if own else cut

    def encode(self, recipe: Recipe, cut: Cut) -> tuple[int, Reading]:
        """The word (guard and control bits 0) whose text is that of ``cut``, a line of the recipe's shape.

        Raises EncodeError: ``[mnemonic-unknown]``, ``[form-unknown]``, ``[modifier-unknown]``, ``[operand-range]``,
        ``[register-range]``, ``[nan-payload]``, ``[operand-hidden]``, ``[encode-ambiguous]``, ``[encode-unproved]``.
        """
        found = self.words(recipe, arguments_of(cut, recipe.constant))
        if len(found) == 1:
            return next(iter(found.items()))
        body = join(cut)
        for kind, text in cut.values:
            if kind == "F" and "NAN" in text and values.nan_bits(text.strip()) is None:
                name = text.strip()
                example = (0x7FC00000 if name[1] == "Q" else 0x7F800001) | (name[0] == "-") << 31
                raise EncodeError("nan-payload", f"{name} in {body!r} stands for many bit patterns",
                                  f"give its bits, like {name}({example:#x}) in a 32-bit field", token=name)
        if found:
            differing = 0
            first, *rest = found
            for word in rest:
                differing |= first ^ word
            bits = [b for b in range(128) if differing >> b & 1]
            raise EncodeError("encode-ambiguous", f"{body!r} stands for {len(found)} known words",
                              f"they differ in bits {bits} that the text does not show; give the whole word")
        raise self._problem(cut, body)

    def words(self, recipe: Recipe, arguments: Sequence[str]) -> dict[int, Reading]:
        """Every word that the shape may stand for with these numbers, with its reading."""
        if recipe.only is not None:
            word = recipe.only.pack(arguments)
            reading = None if word is None else self.reading(recipe, recipe.only, word)
            return {} if reading is None or word is None else {word: reading}
        found: dict[int, Reading] = {}
        certain = False
        for compiled, bases in recipe.plans:
            if found and not compiled:
                break
            for groups in bases:
                hit = self._first(recipe, groups, arguments)
                if hit is not None:
                    found[hit[0]] = hit[1]
                    certain = compiled
        if len(found) > 1 and not certain:
            return self._canonical(recipe.cut, found)
        return found

    def _first(self, recipe: Recipe, groups: list[list[Candidate]], arguments: Sequence[str]
               ) -> tuple[int, Reading] | None:
        for group in groups:
            for candidate in group:
                word = candidate.pack(arguments)
                if word is not None:
                    reading = self.reading(recipe, candidate, word)
                    if reading is not None:
                        return word, reading
        return None

    def reading(self, recipe: Recipe, candidate: Candidate, word: int) -> Reading | None:
        """What ``word`` reads as, None unless it is the recipe's shape with the candidate's fields."""
        pattern = candidate.pattern.of(word)
        if pattern in candidate.readings:
            return candidate.readings[pattern]
        template = self.templates.at(pattern, word)
        reading = None
        if template is not None and self._matches(recipe, candidate, template):
            reading = Reading(template, tuple(self._groups(template)))
        if len(candidate.readings) < _REMEMBERED:
            candidate.readings[pattern] = reading
        return reading

    @staticmethod
    def _matches(recipe: Recipe, candidate: Candidate, template: Template) -> bool:
        cut = recipe.cut
        if (template.form.skeleton, template.attached) != (cut.skeleton, cut.attachments):
            return False
        if tuple(template.opcode.split(".")) != cut.opcode or template.relative != recipe.relative:
            return False
        names = [text for (kind, text), value in zip(cut.values, template.form.values, strict=True)
                 if value.name is not None]
        shown = [text for text, value in zip(template.filled, template.form.values, strict=True)
                 if value.name is not None]
        return names == shown and template.fields == candidate.fields

    def _groups(self, template: Template) -> Iterator[tuple[int, Field, int, int]]:
        for access in template.uses.accesses:
            step = 4 if access.count >= 4 else 2 if access.count > 1 else 1
            place = access.place
            if step > 1 and place.runs:
                plain = len(place.runs) == 1 and not place.const and not place.add and not place.runs[0][2]
                yield (step - 1) << place.runs[0][0] if plain else place.mask, place, access.zero, access.count

    def _recipe(self, cut: Cut, constant: tuple[bool, ...], relative: bool) -> Recipe:
        plans = []
        # What nvdisasm prints of an access with a hidden operand stands for that one as well: then no plan is followed.
        for plan in self.plans(cut) if self._hidden_operand(cut) is None else ():
            if plan.problem is None:
                pattern = self.templates.pattern(plan.key.key)
                assert pattern is not None
                bases = [self._groups_of(plan, base, cut, constant, pattern) for base in plan.bases]
                plans.append((plan.compiled, bases))
        alone = [candidate for _, bases in plans for groups in bases for group in groups for candidate in group]
        return Recipe(cut, constant, plans, relative, alone[0] if len(alone) == 1 else None)

    def _groups_of(self, plan: Plan, base: int, cut: Cut, constant: tuple[bool, ...], pattern: Pattern
                   ) -> list[list[Candidate]]:
        """Candidates with the fields that the starting word itself uses; then those with any others (they hold where
        a value chooses the field)."""
        own: list[Sequence[Field]] = []
        several = False
        for value in plan.form.values:
            places: Sequence[Field] = () if value.name is not None else value.fields
            if len(places) > 1:
                several = True
                place = value.field_of(base)
                places = [place] if place is not None else []
            own.append(places)
        groups = [list(self._candidates(plan, base, cut, constant, pattern, own))]
        if several:
            every = [() if value.name is not None else value.fields for value in plan.form.values]
            rest = self._candidates(plan, base, cut, constant, pattern, every)
            groups.append([one for one, _ in zip(rest, range(SOLUTIONS), strict=False)])
        return [group for group in groups if group]

    def _candidates(self, plan: Plan, base: int, cut: Cut, constant: tuple[bool, ...], pattern: Pattern,
                    places: Sequence[Sequence[Field]]) -> Iterator[Candidate]:
        named = [value for value in plan.form.values if value.name is not None]
        for chosen in product(*[fields for fields, value in zip(places, plan.form.values, strict=True)
                                if value.name is None]):
            for word in self._named(base, named, cut, plan):
                made = self._candidate(word, chosen, cut, constant, plan.form, pattern)
                if made is not None:
                    yield made

    def _named(self, base: int, named: list[Value], cut: Cut, plan: Plan) -> list[int]:
        """``base`` with the names of ``cut`` put in, in every way the trees allow."""
        words = [base]
        if not named:
            return words
        for value, (_, text) in zip(plan.form.values, cut.values, strict=True):
            if value.name is None:
                continue
            if text not in value.name.labels:
                return []
            ways = self._name_paths(value.name, value.name.labels.index(text))
            if value.name.get(base) != text:
                pinned = (self._pinned(plan, value.name, text, way) for way in ways)
                ways = [way for way in pinned if way is not None]
            words = [word & ~mask | bits for word in words for mask, bits in ways][:SOLUTIONS]
        return words

    def _candidate(self, word: int, fields: tuple[Field, ...], cut: Cut, constant: tuple[bool, ...], form: Form,
                   pattern: Pattern) -> Candidate | None:
        """The word with all constants put in; None when a constant does not fit."""
        covered = 0
        overlap = False
        for place in fields:
            overlap = overlap or bool(covered & place.mask)
            covered |= place.mask
        word &= PLAIN_MASK & ~covered
        packers, masks, constants = [], [], []
        remaining = iter(fields)
        for value, (kind, text), fixed in zip(form.values, cut.values, constant, strict=True):
            if value.name is not None:
                continue
            place = next(remaining)
            if fixed:
                bits = self._constant(place, kind, text)
                if bits is None:
                    return None
                word |= bits
                constants.append((place.mask, bits))
            else:
                packers.append(self.packer(kind, place))
                masks.append(place.mask)
        shared = (tuple(masks), tuple(constants)) if overlap else None
        return Candidate(word, fields, tuple(packers), pattern, shared)

    def _constant(self, place: Field, kind: str, text: str) -> int | None:
        if not is_constant(kind, text):
            return self.packer(kind, place)(argument_of(kind, text))
        try:
            return place.put(self.zero[kind]) if place.kind == kind else None
        except EncodeError:
            return None

    def packer(self, kind: str, place: Field) -> Packer:
        """What turns the text of a number of ``kind`` into the bits of ``place``; None for what is not its spelling."""
        found = self._packers.get((kind, place))
        if found is None:
            found = self._packers[kind, place] = self._make_packer(kind, place)
        return found

    def _make_packer(self, kind: str, place: Field) -> Packer:
        if kind == "F" and place.kind in values.FLOATS:
            return _float_packer(place)
        if kind != place.kind:
            return _no_packer
        if kind in _REGISTERS:
            limit = min(self.zero.get(kind, 1 << place.top), 1 << place.top)
            known: dict[str, int] = {}
            for number in range(limit):
                try:
                    known[str(number)] = place.put(number)
                except EncodeError:
                    continue
            return known.get
        return _set_packer(place) if kind == "M" else _integer_packer(place)

    def _problem(self, cut: Cut, body: str) -> EncodeError:
        """Why no word reads as ``cut``: the first thing that does not fit, or the nearest that there is."""
        hidden = self._hidden_operand(cut)
        if hidden is not None:
            return EncodeError("operand-hidden", f"{body!r} does not say its descriptor register, which nvdisasm does "
                               "not print", f"canonical text shows it, like {_with_descriptor(body, hidden)}")
        problems: list[EncodeError] = []
        for plan in self.plans(cut):
            problem = plan.problem or self._misfit(plan, cut)
            if problem is not None:
                problems.append(problem)
                continue
            others = []
            for base in plan.bases:
                for word in self._closest(plan, base, cut):
                    text = plan.key.body(word, self.zero)
                    if text is not None and text != body:
                        others.append(text)
            nearest = f"nearest: {others[0]}" if others else "the tables do not cover this combination of operands"
            problems.append(EncodeError("encode-unproved", f"no word reads back as {body!r}", nearest))
        return problems[0] if problems else self._unknown(cut, body)

    def _closest(self, plan: Plan, base: int, cut: Cut) -> Iterator[int]:
        """``base`` with whatever of the numbers of ``cut`` fits."""
        for value, (kind, text) in zip(plan.form.values, cut.values, strict=True):
            place = value.field_of(base) if value.name is None else None
            if place is not None:
                try:
                    number = self._number(kind, place.kind, text)
                    base = base & ~place.mask | place.put(number)
                except EncodeError:
                    continue
        yield base

    def _misfit(self, plan: Plan, cut: Cut) -> EncodeError | None:
        """The first value that no field of the form holds."""
        opcode = ".".join(cut.opcode)
        for value, (kind, text) in zip(plan.form.values, cut.values, strict=True):
            if value.name is not None:
                if text not in value.name.labels:
                    near = _close(text, value.name.labels)
                    return EncodeError("name-unknown", f"{text!r} is not known to {opcode}", _listed("nearest", near),
                                       near, text)
                continue
            problem: EncodeError | None = None
            for place in value.fields:
                try:
                    place.put(self._number(kind, place.kind, text))
                    break
                except EncodeError as error:
                    problem = EncodeError(error.code, f"{text.strip()} in {opcode}: {error.message}", error.hint,
                                          token=text.strip())
            else:
                return problem or EncodeError("operand-range", f"{text} does not fit {opcode}", token=text)
        return None

    def _pinned(self, plan: Plan, name: Choice, text: str, way: tuple[int, int]) -> tuple[int, int] | None:
        """``way`` with the bits that the tree asks about for other names only: as all words have them that show
        ``text`` there. None where no word tells: with another value they may name nothing."""
        known = self._pins.get((id(name), way))
        if known is None:
            trees = [*plan.key.opcode, *plan.form.attachments]
            others = reduce(or_, (tree.tested_bits(choice.node) for choice in trees), tree.tested_bits(plan.key.select))
            others |= reduce(or_, (value.mask for value in plan.form.values), 0)
            loose = tree.tested_bits(name.node) & ~way[0] & ~others
            mnemonic = plan.key.opcode[0].labels[0].split(".")[0]
            shown = {word & loose for key in self._keys(mnemonic) for form in key.forms for value in form.values
                     if value.name is not None and not loose & ~tree.tested_bits(value.name.node)
                     for word in (*form.shapes, *form.probes) if value.name.get(word) == text} if loose else {0}
            known = self._pins[id(name), way] = [(way[0] | loose, way[1] | shown.pop())] if len(shown) == 1 else []
        return known[0] if known else None

    def _name_paths(self, name: Choice, label: int) -> list[tuple[int, int]]:
        ways = self._names.get((id(name), label))
        if ways is None:
            ways = self._names[id(name), label] = list(tree.paths(name.node, label))
        return ways

    def _number(self, kind: str, place: str, text: str) -> int:
        if kind == "F":
            bits = values.float_bits(text, place) if place in values.FLOATS else None
            if bits is None:
                raise EncodeError("operand-range", f"{text.strip()} is not exactly a {place} number")
            return bits
        return values.parse_number(kind, text, self.zero)

    def _keys(self, mnemonic: str) -> list[Key]:
        """The opcodes of a mnemonic; the index of a table shared by several targets has more than one of them has."""
        return [key for n in self.table.mnemonics.get(mnemonic, ()) if (key := self.table.key(n)) is not None]

    def plans(self, cut: Cut) -> list[Plan]:
        """All ways to encode the shape of ``cut``, those that compilers use first."""
        shape = (cut.opcode, cut.skeleton, cut.attachments)
        plans = self._plans.get(shape)
        if plans is None:
            plans = []
            for key in self._keys(cut.opcode[0]):
                for form in key.forms:
                    if form.skeleton != cut.skeleton:
                        continue
                    bases = self.shapes(key, form).get((cut.opcode, cut.attachments))
                    try:
                        if bases:
                            self._check_derived(key, form, bases, cut)
                            plans.append(Plan(key, form, bases, True))
                        elif solved := self._solve(key, form, cut):
                            plans.append(Plan(key, form, solved, False))
                    except EncodeError as error:
                        plans.append(Plan(key, form, [], False, error))
            plans.sort(key=lambda p: not p.compiled)
            for plan in plans:
                rival = None if plan.compiled or plan.problem else self._rival(plan.key, cut)
                if rival is not None:
                    plan.problem = EncodeError(
                        "encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, and "
                        f"opcodes {plan.key.key:04x} and {rival.key:04x} may both print it", "give the whole word")
            self._plans[shape] = plans
        return plans

    def _check_derived(self, key: Key, form: Form, bases: list[int], cut: Cut) -> None:
        """Raise EncodeError ``[encode-ambiguous]`` where all ``bases`` were derived from compiler words and a bit that
        was proved not to matter is not what compiler words of two projects have: then it is a pick among words."""
        if not form.derived.issuperset(bases):
            return
        sensitive = int(key.extra.get("sensitive", "0"), 16)
        for word, determined, _ in self._determined(key, [form]):
            if word in bases:
                hidden = ~(determined | _FIXED | sensitive) & (1 << 105) - 1
                differing = (self._hidden_bits(key, form, hidden, cut) ^ word) & hidden
                if differing:
                    bits = [b for b in range(128) if differing >> b & 1]
                    raise EncodeError("encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler "
                                      f"word, and similar ones differ in bits {bits} that the text does not show",
                                      "give the whole word")

    def _rival(self, key: Key, cut: Cut) -> Key | None:
        """Another opcode of the mnemonic that nothing in its fixed words tells apart from ``key`` for this text."""
        for other in self._keys(cut.opcode[0]):
            if other is key or all(f.skeleton != cut.skeleton for f in other.forms):
                continue
            words = {w for choice in other.opcode for label in choice.labels for w in label.split(".")}
            if other.constant_words() <= set(cut.opcode) <= words:
                return other
        return None

    def shapes(self, key: Key, form: Form) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]]:
        """Compiler words of a form by (opcode words, attachments)."""
        known = self._shapes.get(id(form))
        if known is None:
            known = {}
            for word in form.shapes:
                opcode = key.opcode_text(word)
                attached = [a.get(word) for a in form.attachments]
                if opcode is not None and None not in attached:
                    known.setdefault((tuple(opcode.split(".")), tuple(a or "" for a in attached)), []).append(word)
            self._shapes[id(form)] = known
        return known

    def _canonical(self, cut: Cut, found: dict[int, Reading]) -> dict[int, Reading]:
        """Of several words for a text that no compiler word has, those whose differing bits are the compilers'.

        Only bits that have one value in all compiler words of the form (with these modifiers, else in general) decide,
        and only if these are of two projects.
        """
        keys = {key_of(word) for word in found}
        key = self.table.key(keys.pop()) if len(keys) == 1 else None
        forms = [f for f in key.forms if f.skeleton == cut.skeleton] if key else []
        if key is None or not forms:
            return found
        differing = 0
        first, *rest = found
        for word in rest:
            differing |= first ^ word
        for pool in list(self._pools(key, forms[0], cut))[:_SAME_MODIFIERS + 1]:
            values = {row[0] & differing for row in pool}
            if len(values) == 1 and _shown_twice({project: 1 for *_, project in pool}):
                value = values.pop()
                return {w: f for w, f in found.items() if w & differing == value} or found
        return found

    def _solve(self, key: Key, form: Form, cut: Cut) -> list[int]:
        """Starting words for a shape that no compiler word has.

        Trees and values fix some bits. Every other bit takes the value it has in the compiler words that do not fix it
        either: words of the same form, else of the same opcode, else of the same mnemonic. Empty when a way through
        the trees does not exist; raises EncodeError ``[encode-ambiguous]`` when those words disagree or there are none.
        """
        chosen: list[tuple[Node, int]] = [(key.select, key.forms.index(form))]
        labels = _assign(key.opcode, cut.opcode)
        if labels is None:
            return []
        chosen += [(choice.node, label) for choice, label in zip(key.opcode, labels, strict=True)]
        for choice, text in zip(form.attachments, cut.attachments, strict=True):
            if text not in choice.labels:
                return []
            chosen.append((choice.node, choice.labels.index(text)))
        out: list[int] = []
        for fields in product(*(range(len(v.fields)) if v.name is None else (-1,) for v in form.values)):
            filled = 0
            choices = list(chosen)
            for value, number in zip(form.values, fields, strict=True):
                if value.name is not None:
                    filled |= tree.tested_bits(value.name.node)
                else:
                    filled |= value.fields[number].mask
                    choices.append((value.node, number))
            for mask, bits in _intersect([self._ways(key, node, label) for node, label in choices]):
                hidden = ~(mask | filled | _FIXED) & (1 << 105) - 1
                word = key.key & 0xFFF | key.key >> 12 << KEY_BIT
                out.append(word & ~mask | bits | self._hidden_bits(key, form, hidden, cut))
        return list(dict.fromkeys(out))[:SOLUTIONS]

    def _ways(self, key: Key, node: Node, label: int) -> list[tuple[int, int]]:
        """Ways through a tree to ``label``: those that compiler words of the opcode take, else all."""
        ways = list(tree.paths(node, label))
        if len(ways) < 2:
            return ways
        words = [w for form in key.forms for w in form.shapes if tree.lookup(node, w) == label]
        return [(mask, bits) for mask, bits in ways if any(w & mask == bits for w in words)] or ways

    def _hidden_bits(self, key: Key, form: Form, hidden: int, cut: Cut) -> int:
        """What compiler words have in the ``hidden`` bits.

        Of bits that were proved not to matter, any value is a word with this text: two projects must agree on these.
        """
        known = 0
        bits = 0
        sensitive = self._modifier_bits(key)
        matters = int(key.extra.get("sensitive", "0"), 16)
        for number, pool in enumerate(self._pools(key, form, cut)):
            ones = zeros = 0
            shown: dict[str, int] = {}
            # Bits of modifiers are believed only from words with the very same modifiers.
            trusted = hidden & ~known & ~(sensitive if number >= _SAME_MODIFIERS else 0)
            for word, determined, project in pool:
                free = trusted & ~determined
                ones |= word & free
                zeros |= ~word & free
                shown[project] = shown.get(project, 0) | free
            if ones & zeros:
                clash = [b for b in range(128) if (ones & zeros) >> b & 1]
                raise EncodeError("encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, "
                                  f"and similar ones differ in bits {clash} that the text does not show",
                                  "give the whole word")
            settled = _shown_twice(shown) | (ones | zeros) & matters
            bits |= ones & settled
            known |= settled
            if not hidden & ~known:
                return bits
        open_bits = hidden & ~known
        if not any(f.shapes for f in key.forms):
            # An opcode no compiler word has: what was proved not to matter stays 0.
            open_bits &= int(key.extra.get("sensitive", f"{open_bits:x}"), 16)
            if not open_bits:
                return bits
        missing = [b for b in range(128) if open_bits >> b & 1]
        raise EncodeError("encode-ambiguous", f"{'.'.join(cut.opcode)} {cut.skeleton} is in no compiler word, and no "
                          f"similar ones of two projects show bits {missing}", "give the whole word")

    def _modifier_bits(self, key: Key) -> int:
        """Bits that matter to ``key`` and are no operand's (nor an operand's sign or negation) in any of its forms."""
        mask = self._modifiers.get(key.key)
        if mask is None:
            mask = int(key.extra.get("sensitive", "0"), 16)
            for form in key.forms:
                for value in form.values:
                    mask &= ~value.mask
                for choice in form.attachments:
                    mask &= ~tree.tested_bits(choice.node)
            self._modifiers[key.key] = mask
        return mask

    def _pools(self, key: Key, form: Form, cut: Cut) -> Iterator[list[tuple[int, int, str]]]:
        """(word, bits it determines, project) of compiler words: those with the same modifiers (of the form, then of
        any form of the opcode), then of the form, the opcode, the mnemonic."""
        alike, every = self._determined(key, [form]), self._determined(key, key.forms)
        for pool in (alike, every):
            yield [row for row in pool if key.opcode_text(row[0]) == ".".join(cut.opcode)]
        yield alike
        yield every
        siblings: list[tuple[int, int, str]] = []
        for other in self._keys(key.opcode[0].labels[0].split(".")[0]):
            if other is not key:
                siblings += self._determined(other, other.forms)
        yield siblings

    def _determined(self, key: Key, forms: list[Form]) -> list[tuple[int, int, str]]:
        out: list[tuple[int, int, str]] = []
        for form in forms:
            rows = self._masks.get(id(form))
            if rows is None:
                rows = []
                for word in form.shapes:
                    mask = tree.pinned_bits(key.select, word)
                    for choice in (*key.opcode, *form.attachments):
                        mask |= tree.pinned_bits(choice.node, word)
                    for value in form.values:
                        place = value.field_of(word)
                        mask |= (place.mask if place else 0) | tree.pinned_bits(value.node, word)
                        if value.name is not None:
                            mask |= tree.pinned_bits(value.name.node, word)
                    rows.append((word, mask, _NOBODY if word in form.derived else form.lone.get(word, _SEVERAL)))
                self._masks[id(form)] = rows
            out += rows
        return out

    def _unknown(self, cut: Cut, body: str) -> EncodeError:
        """Why no opcode has the shape of ``cut`` at all."""
        mnemonic = cut.opcode[0]
        keys = self._keys(mnemonic)
        if not keys:
            near = _close(mnemonic, list(self.table.mnemonics))
            return EncodeError("mnemonic-unknown", f"mnemonic {mnemonic!r} in {body!r} is not in the {self.table.name} "
                               "table", _listed("nearest", near), near, mnemonic)
        words = {w for key in keys for c in key.opcode for label in c.labels for w in label.split(".")}
        for word in cut.opcode:
            if word not in words:
                near = [f".{name}" for name in _close(word, sorted(words - {mnemonic, ""}))]
                return EncodeError("modifier-unknown", f"{mnemonic} has no modifier .{word} (in {body!r})",
                                   _listed("nearest", near), near, f".{word}")
        skeletons = sorted({f.skeleton for key in keys for f in key.forms})
        if cut.skeleton not in skeletons:
            near = _close(cut.skeleton, skeletons)
            return EncodeError("form-unknown", f"{mnemonic} does not take operands like {cut.skeleton!r} ({body!r})",
                               _listed("nearest form", near), near)
        return EncodeError("form-unknown", f"{mnemonic} has no form with these modifiers and operand marks: {body!r}",
                           "known opcode words: " + " ".join(sorted(words))[:200])

    def _hidden_operand(self, cut: Cut) -> str | None:
        """The skeleton of operands of which nvdisasm prints ``cut``, leaving a descriptor out; None if there are none.

        Where compilers write what ``cut`` says as it stands, only hidden operands that they write as well count.
        """
        if "desc[" in cut.skeleton:
            return None
        hiding = [(key, form) for key in self._keys(cut.opcode[0]) for form in key.forms if form.hidden]
        if not hiding:
            return None
        plainly = any(plan.compiled for plan in self.plans(cut))
        for key, form in hiding:
            skeleton, places = shown_form(form)
            if skeleton != cut.skeleton:
                continue
            if plainly:
                found = any(opcode == cut.opcode and tuple(attached[n] for n in places) == cut.attachments
                            for opcode, attached in self.shapes(key, form))
            else:
                words = {w for choice in key.opcode for label in choice.labels for w in label.split(".")}
                found = set(cut.opcode) <= words and all(
                    text in form.attachments[n].labels for text, n in zip(cut.attachments, places, strict=True))
            if found:
                return form.skeleton
        return None


def shown_form(form: Form) -> tuple[str, list[int]]:
    """What nvdisasm prints of a form whose descriptors it hides: its skeleton, and which attachments are in it."""
    skeleton = []
    places: list[int] = []
    at = 0
    inside = False
    for piece in pieces(form.skeleton):
        count = 2 if piece[0].isupper() else 1 if piece[0].islower() or piece[0] == "]" else 0
        inside = inside or piece == "desc"
        if not inside:
            skeleton.append(piece)
            places += range(at, at + count)
        inside = inside and piece[0] != "]"
        at += count
    return "".join(skeleton), places


def _with_descriptor(body: str, skeleton: str) -> str:
    """``body`` with a descriptor where ``skeleton`` has one."""
    parts = body.split("[")
    at = skeleton[:skeleton.index("desc[")].count("[") + 1
    return "[".join(parts[:at]) + "desc[UR4][" + "[".join(parts[at:])


def is_constant(kind: str, text: str) -> bool:
    """Whether a value belongs to the shape: a name, RZ, URZ, PT or UPT."""
    return kind == "N" or text in _CONSTANT


def arguments_of(cut: Cut, constant: tuple[bool, ...]) -> list[str]:
    """The numbers of a line that are not ``constant``, as packers take them."""
    return [argument_of(kind, text) for (kind, text), fixed in zip(cut.values, constant, strict=True) if not fixed]


def argument_of(kind: str, text: str) -> str:
    """A number as packers take it: registers by their index, everything else as written."""
    return text.lstrip("URPBS") if kind in _REGISTERS else text.strip()


def _no_packer(text: str) -> int | None:
    return None


def _integer_packer(place: Field) -> Packer:
    put = place.put
    if len(place.runs) != 1 or place.const or place.add:

        def general(text: str) -> int | None:
            try:
                number = int(text, 16)
                return put(number) if hex(number) == text else None
            except (EncodeError, ValueError):
                return None

        return general
    low, width, shift = place.runs[0]
    ones, step = (1 << width) - 1, (1 << shift) - 1
    least = -(1 << place.top - 1) if place.signed else 0
    most = (1 << place.top - 1) - 1 if place.signed else (1 << place.top) - 1

    def pack(text: str) -> int | None:
        try:
            number = int(text, 16)
        except ValueError:
            return None
        if not least <= number <= most or number & step or hex(number) != text:
            return None
        return (number >> shift & ones) << low

    return pack


def _set_packer(place: Field) -> Packer:

    def pack(text: str) -> int | None:
        try:
            number = values.parse_number("M", text, {})
            return place.put(number) if values.set_text(number) == text else None
        except (EncodeError, ValueError):
            return None

    return pack


def _float_packer(place: Field) -> Packer:
    known: dict[str, int | None] = {}

    def pack(text: str) -> int | None:
        if text not in known:
            if len(known) > _REMEMBERED:
                known.clear()
            try:
                bits = values.float_bits(text, place.kind)
                same = bits is not None and values.float_text(bits, place.kind, True).strip() == text
                known[text] = place.put(bits) if bits is not None and same else None
            except (EncodeError, ValueError):
                known[text] = None
        return known[text]

    return pack


def _shown_twice(shown: dict[str, int]) -> int:
    """The bits that words of at least two projects show."""
    twice = shown.get(_SEVERAL, 0)
    once = 0
    for project, bits in shown.items():
        if project != _NOBODY:
            twice |= once & bits
            once |= bits
    return twice


def _assign(choices: list[Choice], opcode: tuple[str, ...]) -> list[int] | None:
    """Which label each slot must show so that together they print ``opcode``."""

    def go(slot: int, position: int) -> list[int] | None:
        if slot == len(choices):
            return [] if position == len(opcode) else None
        order = sorted(range(len(choices[slot].labels)), key=lambda n: -len(choices[slot].labels[n]))
        for number in order:
            label = choices[slot].labels[number]
            words = tuple(label.split(".")) if label else ()
            if opcode[position:position + len(words)] == words:
                rest = go(slot + 1, position + len(words))
                if rest is not None:
                    return [number, *rest]
        return None

    return go(0, 0)


def _intersect(wanted: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Consistent (mask, value) combinations, one path of every list; at most SOLUTIONS."""
    wanted = sorted(wanted, key=len)
    out: list[tuple[int, int]] = []
    steps = 0

    def go(depth: int, mask: int, value: int) -> None:
        nonlocal steps
        steps += 1
        if len(out) >= SOLUTIONS or steps > _STEPS:
            return
        if depth == len(wanted):
            out.append((mask, value))
            return
        for more, bits in wanted[depth]:
            if (value ^ bits) & mask & more == 0:
                go(depth + 1, mask | more, value | bits)

    go(0, 0, 0)
    return out


def _close(word: str, known: list[str]) -> list[str]:
    """The nearest of ``known``, or some of them."""
    import difflib

    return difflib.get_close_matches(word, known, 3, 0.4) or known[:3]


def _listed(what: str, found: list[str]) -> str:
    return f"{what}: {' '.join(found) or 'none'}"
