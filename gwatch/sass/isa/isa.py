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
from gwatch.sass.isa.effects import FILES, Effects, RegUse, warpgroup_counts
from gwatch.sass.isa.encode import Encoder
from gwatch.sass.isa.model import GUARD_SHIFT, Form, Key, key_of
from gwatch.sass.isa.table import Table, load
from gwatch.sass.isa.vector import Uses, Vectoriser

GUARD_MASK = 0xF << GUARD_SHIFT
_CACHE = 1 << 17


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded word.

    ``text`` is nvdisasm's (no closing ``;``), targets absolute. ``opcode`` has the modifiers, ``mnemonic`` not.
    ``guard`` is (index 0..7, negated); 7 is PT. ``target`` is the absolute byte address that a pc-relative
    instruction names.
    """

    text: str
    mnemonic: str
    opcode: str
    guard: tuple[int, bool]
    uniform_guard: bool
    control: Control
    effects: Effects
    target: int | None


@dataclass(slots=True)
class _Core:
    """What a word says apart from its control bits; ``offset`` is the pc-relative distance of ``value``."""

    key: Key
    form: Form
    body: str
    opcode: str
    effects: Effects
    offset: int | None


class Isa:
    """Words and text of one architecture."""

    def __init__(self, arch: Arch, table: Table) -> None:
        self.arch = arch
        self.table = table
        self.zero = {"R": arch.register_zero, "U": arch.uniform_zero, "P": arch.predicate_true,
                     "Q": arch.predicate_true}
        self.encoder = Encoder(table, self.zero)
        self._vector = Vectoriser(table, self.zero, lambda word: self._core(word).effects)
        self._cores: dict[int, _Core] = {}
        self._relatives: dict[tuple[str, ...], bool] = {}

    # -- whole sections ---------------------------------------------------------------------------------------

    def uses(self, words: npt.NDArray[np.uint64]) -> Uses:
        """Register uses, kinds and targets of words ``(n, 2) uint64`` (low half, high half), vectorised."""
        return self._vector.uses(words)

    # -- decoding ---------------------------------------------------------------------------------------------

    def decode(self, word: int, pc: int = 0) -> Decoded:
        """Decode a 128-bit word standing at byte address ``pc``.

        Raises DecodeError ``[word-unknown]`` when the tables do not know it.
        """
        core = self._core(word)
        control = self._control(word)
        body = core.body
        if control.reuse and control.yield_flag:
            marked = core.form.marked(word & ~(CONTROL_MASK | GUARD_MASK), control.reuse)
            body = core.key.body(word, self.zero, marked) or body
        target = None
        if core.offset is not None:
            target = pc + self.arch.instruction_size + core.offset
            body = body[:len(body) - len(f"{core.offset:#x}")] + f"{target:#x}"
        guard = (word >> GUARD_SHIFT & 7, bool(word >> GUARD_SHIFT + 3 & 1))
        text = body
        if guard != (7, False):
            index = "T" if guard[0] == 7 else str(guard[0])
            text = f"@{'!' if guard[1] else ''}{'U' if core.key.uniform_guard else ''}P{index} {body}"
        effects = core.effects
        if guard[0] != 7:
            use = RegUse("UP" if core.key.uniform_guard else "P", guard[0], 1, "guard")
            effects = replace(effects, reads=(*effects.reads, use))
        return Decoded(text, core.opcode.split(".")[0], core.opcode, guard, core.key.uniform_guard, control, effects,
                       target)

    def _control(self, word: int) -> Control:
        try:
            return Control.from_word(word)
        except EncodeError as error:
            raise DecodeError("word-unknown", f"word {word:#034x}: {error.message}") from None

    def _core(self, word: int) -> _Core:
        plain = word & ~(CONTROL_MASK | GUARD_MASK)
        core = self._cores.get(plain)
        if core is None:
            core = self._read(plain)
            if len(self._cores) >= _CACHE:
                self._cores.clear()
            self._cores[plain] = core
        return core

    def _read(self, plain: int) -> _Core:
        key = self.table.key(key_of(plain))
        form = key.form_of(plain) if key else None
        body = key.body(plain, self.zero) if key else None
        opcode = key.opcode_text(plain) if key else None
        if key is None or form is None or body is None or opcode is None or plain >> 126:
            raise DecodeError("word-unknown", f"word {plain:#034x} is not in the {self.table.name} table",
                              "nvdisasm may know it")
        offset = None
        if key.is_relative(opcode.split(".")) and form.values and form.values[-1].kind == "I":
            place = form.values[-1].field_of(plain)
            offset = place.get(plain) if place is not None else None
        return _Core(key, form, body, opcode, self._effects(key, form, plain, opcode), offset)

    def _effects(self, key: Key, form: Form, plain: int, opcode: str) -> Effects:
        kind = str(key.extra.get("kind", "unknown"))
        boards = key.extra.get("scoreboards", [0, 0])
        matrix = warpgroup_counts(opcode, form)
        if matrix is not None:
            return self._matrix_effects(form, plain, matrix, kind, boards)
        reads: list[RegUse] = []
        writes: list[RegUse] = []
        complete = form.proved
        for rule in form.rules:
            counts = rule.get(plain)
            place = form.values[rule.value].field_of(plain)
            number = place.get(plain) if place is not None else -1
            if place is not None and self.zero.get(place.kind) == number:
                continue
            if counts is None or place is None:
                complete = False
                continue
            file = FILES[place.kind]
            if counts[0]:
                reads.append(RegUse(file, number, counts[0], rule.role))
            if counts[1]:
                writes.append(RegUse(file, number, counts[1], rule.role))
        for file, first, read, written in form.implicit:
            if read:
                reads.append(RegUse(file, first, 1, "implicit"))
            if written:
                writes.append(RegUse(file, first, 1, "implicit"))
        return Effects(tuple(reads), tuple(writes), complete and kind != "unknown", kind, bool(boards[0]),
                       bool(boards[1]))

    def _matrix_effects(self, form: Form, plain: int, counts: dict[int, tuple[str, int]], kind: str,
                        boards: list[int]) -> Effects:
        """Of a warpgroup matrix product: D is written, C is D (then both are read and written) or zero."""
        reads: list[RegUse] = []
        writes: list[RegUse] = []
        complete = kind != "unknown"
        uses: dict[int, RegUse] = {}
        for n, (role, count) in counts.items():
            place = form.values[n].field_of(plain)
            if place is None:
                complete = False
            elif (number := place.get(plain)) != self.zero.get(place.kind):
                uses[n] = RegUse(FILES[place.kind], number, count, role)
        accumulator = uses.get(0)
        accumulates = accumulator is not None and any(use == accumulator for n, use in uses.items() if n)
        for n, use in uses.items():
            if n or accumulates:
                reads.append(use)
            if use == accumulator:
                writes.append(use)
        return Effects(tuple(reads), tuple(writes), complete, kind, bool(boards[0]), bool(boards[1]))

    def reuse_places(self, word: int) -> tuple[int, ...]:
        """Per reuse bit (a, b, c, d) the lowest bit of the register field it keeps, -1 where this form keeps none.

        Empty for a word that the tables don't know.
        """
        try:
            return self._core(word).form.reuse
        except DecodeError:
            return ()

    def in_compiler_code(self, word: int) -> bool:
        """Whether some compiler word of the training set has this word's form (else the form is known from probes)."""
        return bool(self._core(word).form.shapes)

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
        effects = self._core(word).effects
        for use in (*effects.reads, *effects.writes):
            step = 4 if use.count >= 4 else 2 if use.count > 1 else 1
            if use.first % step:
                raise EncodeError("register-alignment", f"{use.file}{use.first} in {body!r} starts a group of "
                                  f"{use.count} registers", f"use a multiple of {step}")

    def _relocated(self, cut: lex.Cut, pc: int) -> lex.Cut:
        """``cut`` with its absolute target turned into the distance from the next instruction."""
        offset = int(cut.values[-1][1], 16) - pc - self.arch.instruction_size
        if offset >> 63 == 1:
            offset -= 1 << 64
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
        form = self._core(word).form
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
        core = self._core(word)
        return None if core.offset is None else pc + self.arch.instruction_size + core.offset

    def with_target(self, word: int, pc: int, target: int) -> int:
        """``word`` (standing at ``pc``) with its pc-relative target replaced.

        Raises EncodeError ``[target-range]`` when the distance does not fit, ``[not-relative]`` for other words.
        """
        core = self._core(word)
        if core.offset is None:
            raise EncodeError("not-relative", f"{core.body} has no pc-relative target")
        place = core.form.values[-1].field_of(word & ~(CONTROL_MASK | GUARD_MASK))
        assert place is not None
        try:
            bits = place.put(target - pc - self.arch.instruction_size)
        except EncodeError as error:
            raise EncodeError("target-range", f"{core.opcode} at {pc:#x} cannot reach {target:#x}",
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
