"""Lines of text to words: guard, reuse marks, control word and target around what the encoder makes of the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

from gwatch.errors import EncodeError
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.isa import lex
from gwatch.sass.isa.encode import Encoder, Reading, Recipe, argument_of
from gwatch.sass.isa.model import GUARD_SHIFT, Key
from gwatch.sass.isa.template import Template, Templates
from gwatch.sass.isa.values import Field, letter_name
from gwatch.sass.shape import split

_DEFAULT = Control()
_REMEMBERED = 1 << 16


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

    def encode(self, lines: LineEncoder, numbers: tuple[str, ...], pc: int) -> tuple[int, Reading, int] | None:
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
            arguments[-1] = hex(target - pc - lines.step)
        found = lines.encoder.words(self.recipe, arguments)
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


def _places(cut: lex.Cut, constant: tuple[bool, ...], numbers: tuple[str, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Which of ``numbers`` make up each value that is no constant; None when the two cuts do not agree, or when
    one of the numbers is a constant."""
    at = int(_holed_guard(cut) >= 0)
    if at and (not numbers or cut.guard is None or numbers[0] != cut.guard[2]):
        return None
    places = []
    for (kind, text), fixed in zip(cut.values, constant, strict=True):
        if fixed:
            continue
        parts = text[1:-1].split(",") if kind == "M" else [argument_of(kind, text)]
        if list(numbers[at:at + len(parts)]) != parts:
            return None
        places.append(tuple(range(at, at + len(parts))))
        at += len(parts)
    return tuple(places) if at == len(numbers) else None


class LineEncoder:
    """Encodes lines of one architecture, whose instructions are ``step`` bytes long."""

    def __init__(self, templates: Templates, step: int) -> None:
        self.table = templates.table
        self.encoder = Encoder(templates)
        self.step = step
        self._lines: dict[str, _LineShape | None] = {}
        self._controls: dict[Control, int] = {}
        self._legal: dict[tuple[int, int], bool] = {}
        self._relatives: dict[tuple[str, ...], bool] = {}

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
            cut = self.encoder.own_reuse(lex.cut(text))
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
        opcode = reading.template.key
        legal = self._legal.get((opcode.key, bits))
        if legal is None:
            legal = self._legal[opcode.key, bits] = opcode.allows(bits)
        if not legal:
            raise self._illegal(opcode, control, text)
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
        places = _places(cut, recipe.constant, numbers)
        self._lines[key] = None if places is None else _LineShape(cut, recipe, places, _holed_guard(cut))

    @staticmethod
    def _illegal(key: Key, control: Control, text: str) -> EncodeError:
        """Which part of a control word the opcode does not admit: the first that is legal when left out."""
        parts: list[tuple[str, str, dict[str, int]]] = [
            ("write", f"SB{control.write_scoreboard}", {"write_scoreboard": NO_SCOREBOARD}),
            ("read", f"SB{control.read_scoreboard}", {"read_scoreboard": NO_SCOREBOARD}),
            ("wait", f"mask {control.wait_mask:#x}", {"wait_mask": 0}),
            ("reuse", f"{control.reuse:#06b}", {"reuse": 0}),
            ("stall", str(control.stall), {"stall": 1, "yield_flag": 1})]
        for name, value, without in parts:
            if key.allows(replace(control, **without).to_bits()):
                return EncodeError("control-illegal", f"the opcode of {text!r} does not admit {name} {value}",
                                   f"leave {name} out", token=name)
        return EncodeError("control-illegal", f"the opcode of {text!r} does not admit this control word: {control}",
                           "stall 1 alone is always legal")

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
        offset = int(cut.values[-1][1], 16) - pc - self.step
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
