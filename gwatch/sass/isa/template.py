"""Templates: what all words of one pattern (:mod:`gwatch.sass.isa.pattern`) have in common, worked out once.

A template is the text with holes for the numbers, and the list of registers that are read and written with the fields
they stand in. Choosing a form, its modifiers and its names takes many tree walks; a section of 100,000 instructions has
some thousand patterns, so this is done once a pattern, and a word costs no more than cutting its numbers out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gwatch.sass.isa import lex
from gwatch.sass.isa.effects import FILES, Effects, RegUse, code_address, warpgroup_counts
from gwatch.sass.isa.model import Form, Key, key_of
from gwatch.sass.isa.pattern import KEY_MASK, PLAIN_MASK, Pattern
from gwatch.sass.isa.table import Table
from gwatch.sass.isa.values import FLOATS, Field, number_text

_HOLE = "\x01"
_HIDDEN = "\x02"
_HIDDEN_BANK = re.compile(r"[a-z]+\[[^\]]*\x02[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Access:
    """``count`` registers of ``file`` starting at the number in ``place``; none where that number is ``zero``.

    ``count`` 0: whether the register is read or written is not known.
    """

    place: Field
    file: str
    count: int
    role: str
    write: bool
    zero: int

    def use(self, word: int) -> RegUse | None:
        """What ``word`` does here, None for nothing."""
        number = self.place.get(word)
        return None if number == self.zero else RegUse(self.file, number, self.count, self.role)


class Uses(NamedTuple):
    """What the words of a template read and write: ``accesses`` by operands, ``implicit`` uses that no operand names;
    ``complete``: they are all of them, unless one of the ``unproved`` accesses is there."""

    accesses: tuple[Access, ...]
    unproved: tuple[Access, ...]
    implicit: tuple[tuple[RegUse, bool], ...]
    complete: bool


@dataclass
class Template:
    """One pattern of one opcode.

    ``pieces[i]`` stands before the number in ``fields[i]``, ``pieces[-1]`` behind the last; ``hidden`` are the numbers
    that nvdisasm does not print (see :meth:`shown`). ``relative``: the last number is a pc-relative distance.
    ``find`` works the register uses out: who only asks for opcodes needs none.
    """

    key: Key
    form: Form
    number: int
    opcode: str
    attached: tuple[str, ...]
    filled: tuple[str, ...]
    fields: tuple[Field, ...]
    relative: bool
    kind: str
    find: Callable[[], Uses]
    _shown: dict[tuple[tuple[int, ...], bool], tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=dict)

    @cached_property
    def uses(self) -> Uses:
        """The register uses."""
        return self.find()

    @cached_property
    def two_texts(self) -> bool:
        """Whether the canonical text may say more than nvdisasm's."""
        return (bool(self.form.hidden) or lex.POLICY in self.form.skeleton
                or any(place.kind in FLOATS for place in self.fields))

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".", 1)[0]

    def shown(self, reuse: tuple[int, ...] = (), canonical: bool = False) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """``(pieces, numbers)``: texts and, between them, which of ``fields`` is printed.

        ``reuse`` are the positions of values marked ``.reuse``; ``canonical`` text also shows what nvdisasm hides.
        """
        known = self._shown.get((reuse, canonical))
        if known is None:
            hidden = set() if canonical else set(self.form.hidden)
            filled = [_HIDDEN if text == _HOLE and n in hidden else text for n, text in enumerate(self.filled)]
            operands = lex.fill(self.form.skeleton, self.attached, filled, reuse)
            if not canonical:
                operands = _HIDDEN_BANK.sub("", operands).replace(lex.POLICY, lex.DESCRIPTOR)
            body = f"{self.opcode} {operands}".rstrip(" ")
            values = [n for n, text in enumerate(self.filled) if text == _HOLE]
            numbers = tuple(i for i, n in enumerate(values) if n not in hidden)
            known = self._shown[reuse, canonical] = (tuple(body.split(_HOLE)), numbers)
        return known

    def text(self, word: int, zero: dict[str, int], target: int | None = None, reuse: int = 0,
             canonical: bool = False) -> str:
        """Text of ``word`` without guard; ``target`` replaces the distance, ``reuse`` are operand-cache bits."""
        marked = self.form.marked(word, reuse) if reuse else ()
        pieces, numbers = self.shown(marked, canonical)
        out = [pieces[0]]
        last = len(self.fields) - 1
        for piece, number in zip(pieces[1:], numbers, strict=True):
            place = self.fields[number]
            if target is not None and number == last:
                out.append(f"{target:#x}")
            else:
                out.append(number_text(place.kind, place.get(word), zero, canonical))
            out.append(piece)
        return "".join(out).rstrip(" ")

    def offset(self, word: int) -> int | None:
        """The pc-relative distance in bytes from the next instruction, None where there is none."""
        return self.fields[-1].get(word) if self.relative else None

    def reuse_bits(self, positions: tuple[int, ...]) -> int | None:
        """The operand-cache bits that mark the values at ``positions``; None where one of them cannot be cached."""
        fields = iter(self.fields)
        places = [next(fields) if text == _HOLE else None for text in self.filled]
        bits = 0
        for position in positions:
            place = places[position]
            low = place.runs[0][0] if place is not None and place.kind == "R" and place.runs else -1
            if low < 0 or low not in self.form.reuse:
                return None
            bits |= 1 << self.form.reuse.index(low)
        return bits

    def effects(self, word: int) -> Effects:
        """Reads and writes of ``word``, its guard aside."""
        reads: list[RegUse] = []
        writes: list[RegUse] = []
        found = self.uses
        for access in found.accesses:
            use = access.use(word)
            if use is not None:
                (writes if access.write else reads).append(use)
        for use, write in found.implicit:
            (writes if write else reads).append(use)
        complete = found.complete and not any(access.use(word) for access in found.unproved)
        boards = self.key.extra.get("scoreboards", (0, 0))
        return Effects(tuple(reads), tuple(writes), complete, self.kind, bool(boards[0]), bool(boards[1]))


class Templates:
    """The templates of one table, made when first met; ``zero`` gives the numbers of RZ, URZ, PT and UPT, ``fixed``
    names opcodes that are of fixed latency whatever the table says.
    """

    def __init__(self, table: Table, zero: dict[str, int], fixed: frozenset[str]) -> None:
        self.table = table
        self.zero = zero
        self.fixed = fixed
        self._patterns: dict[int, Pattern | None] = {}
        self._known: dict[int, Template | None] = {}

    def pattern(self, number: int) -> Pattern | None:
        """What decides about words of opcode key ``number``, None when the table does not have it."""
        if number not in self._patterns:
            key = self.table.key(number)
            self._patterns[number] = Pattern(key) if key is not None else None
        return self._patterns[number]

    def of(self, word: int) -> Template | None:
        """The template of a word, None where the table does not know it. Guard and control bits do not matter."""
        if word >> 126:
            return None
        pattern = self.pattern(key_of(word))
        return None if pattern is None else self.at(pattern.of(word & PLAIN_MASK), word)

    def at(self, pattern: int, word: int) -> Template | None:
        """The template of a pattern, of which ``word`` is an example."""
        if pattern not in self._known:
            self._known[pattern] = self._make(word & PLAIN_MASK)
        return self._known[pattern]

    def _make(self, word: int) -> Template | None:
        key = self.table.key(key_of(word & KEY_MASK))
        form = key.form_of(word) if key is not None else None
        opcode = key.opcode_text(word) if key is not None else None
        if key is None or form is None or opcode is None:
            return None
        attached = [choice.get(word) for choice in form.attachments]
        filled: list[str | None] = []
        fields: list[Field] = []
        places: list[Field | None] = []
        for value in form.values:
            place = value.field_of(word)
            places.append(place)
            if value.name is not None:
                filled.append(value.name.get(word))
            elif place is None:
                return None
            else:
                filled.append(_HOLE)
                fields.append(place)
        if None in attached or None in filled:
            return None
        relative = key.is_relative(opcode.split(".")) and bool(fields) and form.values[-1].kind == "I"
        kind = "fixed" if opcode.split(".")[0] in self.fixed else str(key.extra.get("kind", "unknown"))

        def find() -> Uses:
            accesses, unproved, complete = self._accesses(form, opcode, word, places)
            implicit = [(RegUse(file, first, 1, "implicit"), bool(flag)) for file, first, read, written in form.implicit
                        for flag, there in ((0, read), (1, written)) if there]
            return Uses(accesses, unproved, tuple(implicit), complete and kind != "unknown")

        return Template(key, form, key.forms.index(form), opcode, tuple(str(text) for text in attached),
                        tuple(str(text) for text in filled), tuple(fields), relative, kind, find)

    def _accesses(self, form: Form, opcode: str, word: int, places: Sequence[Field | None]
                  ) -> tuple[tuple[Access, ...], tuple[Access, ...], bool]:
        matrix = warpgroup_counts(opcode, form)
        if matrix is not None:
            return self._matrix_accesses(matrix, places)
        accesses: list[Access] = []
        unproved: list[Access] = []
        complete = form.proved
        words = opcode.split(".")
        for rule in form.rules:
            counts, place = rule.get(word), places[rule.value]
            if place is None:
                complete = False
                continue
            zero, file = self.zero.get(place.kind, -1), FILES[place.kind]
            if counts is None:
                unproved.append(Access(place, file, 0, rule.role, False, zero))
                continue
            # Some tables give such a pair in uniform registers as one.
            least = 2 if code_address(words, place.kind) else 0
            for count, write in zip(counts, (False, True), strict=True):
                if count:
                    count = max(count, least)
                    accesses.append(Access(place, file, count, rule.role, write, zero))
        return tuple(accesses), tuple(unproved), complete

    def _matrix_accesses(self, counts: dict[int, tuple[str, int]], places: Sequence[Field | None]
                         ) -> tuple[tuple[Access, ...], tuple[Access, ...], bool]:
        """Of a warpgroup matrix product: D, which stands first, is written; C and all others are read."""
        accesses = []
        for n, (role, count) in counts.items():
            place = places[n]
            if place is not None:
                accesses.append(Access(place, FILES[place.kind], count, role, n == 0, self.zero[place.kind]))
        return tuple(accesses), (), len(accesses) == len(counts)
