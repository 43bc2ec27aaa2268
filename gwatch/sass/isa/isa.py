"""The front of the ISA tables: :class:`Isa`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from gwatch._resources import resource
from gwatch.errors import DecodeError, EncodeError, ToolError, UnsupportedError
from gwatch.sass.arch import ARCHES, Arch, arch_of
from gwatch.sass.control import Control
from gwatch.sass.isa import lex
from gwatch.sass.isa.effects import Effects, RegUse
from gwatch.sass.isa.encode import Encoder, Reading, Recipe, is_constant
from gwatch.sass.isa.model import GUARD_SHIFT
from gwatch.sass.isa.pattern import PLAIN_MASK
from gwatch.sass.isa.table import Table, load
from gwatch.sass.isa.template import Template, Templates
from gwatch.sass.isa.text import guard_text
from gwatch.sass.isa.values import Field, letter_name
from gwatch.sass.isa.vector import Decoder, Section, Uses
from gwatch.sass.shape import split

_DEFAULT = Control()
_REMEMBERED = 1 << 16
_REGISTERS = frozenset("RUPQBS")


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded word.

    ``text`` is nvdisasm's (no closing ``;``), targets absolute; ``canonical`` also shows what nvdisasm hides
    (descriptor registers, the bits of a NaN) and is what encoding takes back. ``opcode`` has the modifiers,
    ``mnemonic`` not. ``guard`` is (index 0..7, negated); 7 is PT. ``target`` is the absolute byte address that a
    pc-relative instruction names.
    """

    text: str
    canonical: str
    mnemonic: str
    opcode: str
    guard: tuple[int, bool]
    uniform_guard: bool
    control: Control
    effects: Effects
    target: int | None


@dataclass(frozen=True, slots=True)
class _LineShape:
    """A line's text with its numbers cut out (:mod:`gwatch.sass.shape`), and what becomes of the numbers.

    ``places`` are, per argument of the recipe, the numbers that make it up (several for a set). ``guard`` is the
    negation bit where the first number is the guard's predicate, -1 where there is no number in the guard.
    """

    cut: lex.Cut
    recipe: Recipe
    places: tuple[tuple[int, ...], ...]
    guard: int

    def encode(self, isa: Isa, numbers: tuple[str, ...], pc: int) -> tuple[int, Reading, int] | None:
        """(word without guard and control bits, its reading, guard bits); None for what needs a closer look."""
        arguments = [numbers[place[0]] if len(place) == 1 else "{" + ",".join([numbers[n] for n in place]) + "}"
                     for place in self.places]
        if self.recipe.relative:
            try:
                target = int(arguments[-1], 16)
            except ValueError:
                return None
            if hex(target) != arguments[-1]:
                return None
            arguments[-1] = hex(target - pc - isa.arch.instruction_size)
        found = isa.encoder.words(self.recipe, arguments)
        if len(found) != 1:
            return None
        guard = _guard_bits(self.cut) if self.guard < 0 else _PREDICATES.get(numbers[0], -1)
        if guard < 0:
            return None
        ((word, reading),) = found.items()
        return word, reading, guard | max(0, self.guard)


_PREDICATES = {str(index): index for index in range(7)}


def _guard_bits(cut: lex.Cut) -> int:
    """The guard's four bits. Raises EncodeError ``[register-range]``."""
    if cut.guard is None:
        return 7
    negated, uniform, index = cut.guard
    number = 7 if index == "T" else _PREDICATES.get(index, -1)
    if number < 0:
        token = f"{'U' if uniform else ''}P{index}"
        raise EncodeError("register-range", f"guard predicate {token} does not exist", "P0..P6 and PT", token=token)
    return number | (8 if negated else 0)


def _holed_guard(cut: lex.Cut) -> int:
    """The negation bit (8 or 0) of a guard whose index is a number, -1 otherwise."""
    return -1 if cut.guard is None or cut.guard[2] == "T" else 8 * cut.guard[0]


def _places(cut: lex.Cut, numbers: tuple[str, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Which of ``numbers`` make up each value that is no constant; None when the two cuts do not agree."""
    at = int(_holed_guard(cut) >= 0)
    if at and (not numbers or cut.guard is None or numbers[0] != cut.guard[2]):
        return None
    places = []
    for kind, text in cut.values:
        if is_constant(kind, text):
            continue
        parts = [text.lstrip("URPBS")] if kind in _REGISTERS else [text.strip()]
        if kind == "M":
            parts = text[1:-1].split(",")
        if list(numbers[at:at + len(parts)]) != parts:
            return None
        places.append(tuple(range(at, at + len(parts))))
        at += len(parts)
    return tuple(places) if at == len(numbers) else None


class Isa:
    """Words and text of one architecture."""

    def __init__(self, arch: Arch, table: Table) -> None:
        self.arch = arch
        self.table = table
        self.zero = {"R": arch.register_zero, "U": arch.uniform_zero, "P": arch.predicate_true,
                     "Q": arch.predicate_true}
        self.templates = Templates(table, self.zero)
        self.decoder = Decoder(self.templates)
        self.encoder = Encoder(self.templates)
        self._lines: dict[str, _LineShape | None] = {}
        self._controls: dict[Control, int] = {}
        self._relatives: dict[tuple[str, ...], bool] = {}

    # -- whole sections ---------------------------------------------------------------------------------------

    def section(self, words: npt.NDArray[np.uint64]) -> Section:
        """Everything about words ``(n, 2) uint64`` (low half, high half) by columns, vectorised."""
        return Section(self.decoder, words)

    def uses(self, words: npt.NDArray[np.uint64]) -> Uses:
        """Register uses, kinds and targets of words ``(n, 2) uint64``, vectorised."""
        return self.section(words).uses

    # -- decoding ---------------------------------------------------------------------------------------------

    def decode(self, word: int, pc: int = 0) -> Decoded:
        """Decode a 128-bit word standing at byte address ``pc``.

        Raises DecodeError ``[word-unknown]`` when the tables do not know it.
        """
        template = self._template(word)
        control = self._control(word)
        plain = word & PLAIN_MASK
        reuse = control.reuse if control.yield_flag else 0
        offset = template.offset(plain)
        target = None if offset is None else pc + self.arch.instruction_size + offset
        text = template.text(plain, self.zero, target, reuse)
        canonical = template.text(plain, self.zero, target, reuse, True)
        guard = (word >> GUARD_SHIFT & 7, bool(word >> GUARD_SHIFT + 3 & 1))
        uniform = template.key.uniform_guard
        if guard != (7, False):
            front = guard_text(*guard, uniform)
            text, canonical = front + text, front + canonical
        effects = template.effects(plain)
        if guard[0] != 7:
            use = RegUse("UP" if uniform else "P", guard[0], 1, "guard")
            effects = replace(effects, reads=(*effects.reads, use))
        return Decoded(text, canonical, template.mnemonic, template.opcode, guard, uniform, control, effects, target)

    def _control(self, word: int) -> Control:
        try:
            return Control.from_word(word)
        except EncodeError as error:
            raise DecodeError("word-unknown", f"word {word:#034x}: {error.message}") from None

    def _template(self, word: int) -> Template:
        template = self.templates.of(word)
        if template is None:
            raise DecodeError("word-unknown", f"word {word:#034x} is not in the {self.table.name} table",
                              "nvdisasm may know it")
        return template

    def reuse_places(self, word: int) -> tuple[int, ...]:
        """Per reuse bit (a, b, c, d) the lowest bit of the register field it keeps, -1 where this form keeps none.

        Empty for a word that the tables don't know.
        """
        template = self.templates.of(word)
        return () if template is None else template.form.reuse

    def in_compiler_code(self, word: int) -> bool:
        """Whether some compiler word of the training set has this word's form (else the form is known from probes)."""
        return bool(self._template(word).form.shapes)

    # -- encoding ---------------------------------------------------------------------------------------------

    def encode(self, text: str, control: Control | None = None, pc: int = 0) -> int:
        """The word of one line of canonical text standing at byte address ``pc``; targets are absolute.

        ``.reuse`` in the text is added to ``control``. Raises ParseError or EncodeError by name (see
        :meth:`Encoder.encode`).
        """
        text = text.rstrip(" ;")
        key, numbers = split(text)
        shape = self._lines.get(key)
        found = shape.encode(self, numbers, pc) if shape is not None else None
        if found is None:
            cut = lex.cut(text)
            recipe, word, reading = self._encode(cut, pc)
            guard = _guard_bits(cut)
            if key not in self._lines:
                self._learn(key, numbers, cut, recipe)
        else:
            word, reading, guard = found
            cut = shape.cut if shape is not None else lex.cut(text)
        if cut.guard is not None and cut.guard[1] != reading.template.key.uniform_guard:
            self._refuse_guard(cut, reading.template)
        for mask, place, zero, count in reading.groups:
            if word & mask:
                self._check_alignment(word, place, zero, count, text)
        control = _DEFAULT if control is None else control
        if cut.reuse:
            control = self._with_reuse(reading.template, cut, control)
        bits = self._controls.get(control)
        if bits is None:
            bits = self._controls[control] = control.to_bits()
        return word | guard << GUARD_SHIFT | bits

    def _encode(self, whole: lex.Cut, pc: int) -> tuple[Recipe, int, Reading]:
        cut = lex.Cut(None, whole.opcode, whole.skeleton, whole.attachments, whole.values, ())
        relative = bool(cut.values) and cut.values[-1][0] == "I" and self._relative(cut.opcode)
        if relative:
            cut = self._relocated(cut, pc)
        recipe = self.encoder.recipe(cut, relative)
        word, reading = self.encoder.encode(recipe, cut)
        return recipe, word, reading

    def _learn(self, key: str, numbers: tuple[str, ...], cut: lex.Cut, recipe: Recipe) -> None:
        """Remember the line's shape, so that the next one like it need not be cut by the lexer."""
        if len(self._lines) > _REMEMBERED:
            self._lines.clear()
        places = _places(cut, numbers)
        self._lines[key] = None if places is None else _LineShape(cut, recipe, places, _holed_guard(cut))

    def _refuse_guard(self, cut: lex.Cut, template: Template) -> NoReturn:
        assert cut.guard is not None
        _, uniform, index = cut.guard
        wanted = "uniform predicate" if template.key.uniform_guard else "predicate"
        token = f"{'UP' if uniform else 'P'}{index}"
        raise EncodeError("guard-file", f"{cut.opcode[0]} takes a {wanted} as guard, not {token}", token=token)

    def _check_alignment(self, word: int, place: Field, zero: int, count: int, text: str) -> None:
        """Register groups start at even numbers, groups of four and more at multiples of four.

        nvdisasm prints misaligned groups without complaint; no compiler word of 166 cubins has one.
        """
        number = place.get(word)
        step = 4 if count >= 4 else 2
        if number % step and number != zero:
            name = f"{letter_name(place.kind)}{number}"
            raise EncodeError("register-alignment", f"{name} in {text!r} starts a group of {count} registers",
                              f"use a multiple of {step}", token=name)

    def _relocated(self, cut: lex.Cut, pc: int) -> lex.Cut:
        """``cut`` with its absolute target turned into the distance from the next instruction."""
        offset = int(cut.values[-1][1], 16) - pc - self.arch.instruction_size
        return lex.Cut(None, cut.opcode, cut.skeleton, cut.attachments, (*cut.values[:-1], ("I", hex(offset))), ())

    def _relative(self, opcode: tuple[str, ...]) -> bool:
        answer = self._relatives.get(opcode)
        if answer is None:
            keys = (self.table.key(number) for number in self.table.mnemonics.get(opcode[0], ()))
            answer = self._relatives[opcode] = any(
                key is not None and key.is_relative(opcode) and key.constant_words() <= set(opcode) for key in keys)
        return answer

    def _with_reuse(self, template: Template, cut: lex.Cut, control: Control) -> Control:
        """``control`` with the operand-cache bits of the values that the text marks."""
        bits = template.reuse_bits(cut.reuse)
        if bits is None:
            names = " ".join(cut.values[position][1] for position in cut.reuse)
            raise EncodeError("reuse-position", f"{'.'.join(cut.opcode)} cannot cache all of {names}",
                              "drop .reuse there", token=cut.values[cut.reuse[0]][1])
        return replace(control, reuse=control.reuse | bits)

    # -- control flow -----------------------------------------------------------------------------------------

    def relative_target(self, word: int, pc: int) -> int | None:
        """The absolute byte address that a pc-relative instruction names; None for all others."""
        offset = self._template(word).offset(word & PLAIN_MASK)
        return None if offset is None else pc + self.arch.instruction_size + offset

    def with_target(self, word: int, pc: int, target: int) -> int:
        """``word`` (standing at ``pc``) with its pc-relative target replaced.

        Raises EncodeError ``[target-range]`` when the distance does not fit, ``[not-relative]`` for other words.
        """
        template = self._template(word)
        if not template.relative:
            raise EncodeError("not-relative", f"{template.text(word, self.zero)} has no pc-relative target")
        place = template.fields[-1]
        try:
            bits = place.put(target - pc - self.arch.instruction_size)
        except EncodeError as error:
            raise EncodeError("target-range", f"{template.opcode} at {pc:#x} cannot reach {target:#x}",
                              error.hint) from None
        return word & ~place.mask | bits


@lru_cache(maxsize=32)
def _isa(arch: Arch) -> Isa:
    return Isa(arch, load(arch.table))


def isa_for(arch: Arch | str) -> Isa:
    """The :class:`Isa` of an architecture (one per process).

    Raises UnsupportedError ``[arch-unknown]`` or ``[isa-missing]`` (no table for this architecture yet), ToolError for
    a damaged table.
    """
    found = arch_of(arch)
    try:
        return _isa(found)
    except ToolError as error:
        if error.code != "resource-missing":
            raise
        raise UnsupportedError("isa-missing", f"there is no instruction table for {found.name}",
                               "supported: " + " ".join(a.name for a in ARCHES.values() if _has_table(a))) from None


def _has_table(arch: Arch) -> bool:
    try:
        resource("isa", f"{arch.table}.jsonl")
    except ToolError:
        return False
    return True
