"""The front of the ISA tables: :class:`Isa`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gwatch._resources import resource
from gwatch.errors import DecodeError, EncodeError, ToolError, UnsupportedError
from gwatch.sass.arch import ARCHES, Arch, arch_of
from gwatch.sass.control import CONTROL_MASK, Control
from gwatch.sass.isa import lex
from gwatch.sass.isa.effects import Effects, RegUse
from gwatch.sass.isa.encode import Encoder
from gwatch.sass.isa.model import GUARD_SHIFT, key_of
from gwatch.sass.isa.pattern import GUARD_MASK, PLAIN_MASK
from gwatch.sass.isa.table import Table, load
from gwatch.sass.isa.template import Template, Templates
from gwatch.sass.isa.text import guard_text
from gwatch.sass.isa.vector import Decoder, Section, Uses


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


class Isa:
    """Words and text of one architecture."""

    def __init__(self, arch: Arch, table: Table) -> None:
        self.arch = arch
        self.table = table
        self.zero = {"R": arch.register_zero, "U": arch.uniform_zero, "P": arch.predicate_true,
                     "Q": arch.predicate_true}
        self.encoder = Encoder(table, self.zero)
        self.templates = Templates(table, self.zero)
        self.decoder = Decoder(self.templates)
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
        """The word of one line of text standing at byte address ``pc``; targets are absolute.

        ``.reuse`` in the text is added to ``control``. Raises ParseError or EncodeError by name (see
        :meth:`Encoder.encode`).
        """
        control = Control() if control is None else control
        whole = lex.cut(text)
        cut = lex.Cut(None, whole.opcode, whole.skeleton, whole.attachments, whole.values, ())
        if cut.values and cut.values[-1][0] == "I" and self._relative(cut.opcode):
            cut = self._relocated(cut, pc)
        body = lex.join(cut)
        word = self.encoder.encode(cut, body)
        key = self.table.key(key_of(word))
        assert key is not None
        self._check_alignment(word, body)
        if whole.reuse:
            control = self._with_reuse(word, whole, control)
        guard = 7
        if whole.guard:
            negated, uniform, index = whole.guard
            if uniform != key.uniform_guard:
                raise EncodeError("guard-file", f"{cut.opcode[0]} takes a "
                                  f"{'uniform ' if key.uniform_guard else ''}predicate as guard, not "
                                  f"{'UP' if uniform else 'P'}{index}")
            number = 7 if index == "T" else int(index)
            if number > 7 or (number == 7 and index != "T"):
                raise EncodeError("register-range", f"guard predicate P{index} does not exist", "P0..P6 and PT")
            guard = number | (8 if negated else 0)
        return word & ~(GUARD_MASK | CONTROL_MASK) | guard << GUARD_SHIFT | control.to_bits()

    def _check_alignment(self, word: int, body: str) -> None:
        """Register groups start at even numbers, groups of four and more at multiples of four.

        nvdisasm prints misaligned groups without complaint; no compiler word of 166 cubins has one.
        """
        effects = self._template(word).effects(word & PLAIN_MASK)
        for use in (*effects.reads, *effects.writes):
            step = 4 if use.count >= 4 else 2 if use.count > 1 else 1
            if use.first % step:
                raise EncodeError("register-alignment", f"{use.file}{use.first} in {body!r} starts a group of "
                                  f"{use.count} registers", f"use a multiple of {step}")

    def _relocated(self, cut: lex.Cut, pc: int) -> lex.Cut:
        """``cut`` with its absolute target turned into the distance from the next instruction."""
        offset = int(cut.values[-1][1], 16) - pc - self.arch.instruction_size
        return lex.Cut(None, cut.opcode, cut.skeleton, cut.attachments, (*cut.values[:-1], ("I", f"{offset:#x}")), ())

    def _relative(self, opcode: tuple[str, ...]) -> bool:
        answer = self._relatives.get(opcode)
        if answer is None:
            keys = (self.table.key(number) for number in self.table.mnemonics.get(opcode[0], ()))
            answer = self._relatives[opcode] = any(
                key is not None and key.is_relative(opcode) and key.constant_words() <= set(opcode) for key in keys)
        return answer

    def _with_reuse(self, word: int, cut: lex.Cut, control: Control) -> Control:
        """``control`` with the operand-cache bits of the values that the text marks."""
        form = self._template(word).form
        bits = 0
        for position in cut.reuse:
            place = form.values[position].field_of(word)
            low = place.runs[0][0] if place is not None else -1
            if low not in form.reuse:
                raise EncodeError("reuse-position", f"{'.'.join(cut.opcode)} cannot cache "
                                  f"{cut.values[position][1]} (operand value {position + 1})")
            bits |= 1 << form.reuse.index(low)
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
