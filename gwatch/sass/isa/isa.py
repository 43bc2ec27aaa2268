"""The front of the ISA tables: :class:`Isa`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import DecodeError, EncodeError, ToolError, UnsupportedError
from gwatch.sass.arch import ARCHES, Arch, arch_of
from gwatch.sass.control import Control
from gwatch.sass.isa.effects import Effects, RegUse
from gwatch.sass.isa.model import GUARD_SHIFT
from gwatch.sass.isa.pattern import PLAIN_MASK
from gwatch.sass.isa.table import Table, packaged
from gwatch.sass.isa.template import Template, Templates
from gwatch.sass.isa.text import guard_text
from gwatch.sass.isa.vector import Decoder, Section, Uses

if TYPE_CHECKING:
    from gwatch.sass.isa.lines import LineEncoder


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
        self.templates = Templates(table, self.zero, arch.fixed)
        self.decoder = Decoder(self.templates)

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
        canonical = template.text(plain, self.zero, target, reuse, True) if template.two_texts else text
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
        """Whether some compiler word of the training set has this word's form.

        Else the form is known from probes, or from compiler words of another form with one operand changed.
        """
        form = self._template(word).form
        return any(known not in form.derived for known in form.shapes)

    def seen_in_compiler_code(self, word: int) -> bool:
        """Whether some compiler word of the training set has this word's modifiers and operand marks.

        Else encoding its text takes the bits that no text shows from similar words.
        """
        template = self._template(word)
        shapes = self._lines.encoder.shapes(template.key, template.form)
        words = shapes.get((tuple(template.opcode.split(".")), template.attached), ())
        return any(w not in template.form.derived for w in words)

    # -- encoding ---------------------------------------------------------------------------------------------

    @cached_property
    def _lines(self) -> LineEncoder:
        # Not at the top: most who read code never write any.
        from gwatch.sass.isa.lines import LineEncoder

        return LineEncoder(self.templates, self.arch.instruction_size)

    def encode(self, text: str, control: Control | None = None, pc: int = 0) -> int:
        """The word of one line of canonical text standing at byte address ``pc``; targets are absolute.

        ``.reuse`` in the text is added to ``control``. Raises ParseError or EncodeError by name (see
        :meth:`gwatch.sass.isa.encode.Encoder.encode`).
        """
        return self._lines.encode(text, control, pc)

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
def _isa(arch: Arch) -> Isa | None:
    try:
        table = Table(packaged(arch.table), arch.table, arch.name)
    except ToolError as error:
        if error.code != "resource-missing":
            raise
        return None
    return Isa(arch, table) if arch.name in table.header["targets"] else None


def isa_for(arch: Arch | str) -> Isa:
    """The :class:`Isa` of an architecture (one per process).

    Raises UnsupportedError ``[arch-unknown]`` or ``[isa-missing]`` (no table speaks of this architecture), ToolError
    for a damaged table.
    """
    found = arch_of(arch)
    isa = _isa(found)
    if isa is None:
        raise UnsupportedError("isa-missing", f"there is no instruction table for {found.name}",
                               "supported: " + " ".join(a.name for a in ARCHES.values() if _isa(a) is not None))
    return isa
