"""One instruction as a syntax tree, without loss: ``render(parse(text)) == text``.

The grammar is used once per *shape* (:mod:`gwatch.sass.shape`). A line of a known shape is cut by one regular
expression and its tree is put together from operands met before, or from the shape's first operand with other
values filled in; that is some twenty times faster and gives the same tree (tests compare the two roads).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gwatch.errors import ParseError
from gwatch.sass.operand import (
    Address,
    BarrierSet,
    Constant,
    Core,
    Immediate,
    Label,
    Memory,
    Operand,
    Register,
    Relocation,
    Virtual,
)
from gwatch.sass.shape import split

_TAIL = re.compile(r"\s*(?:\(\*.*\*\)\s*)?;?\s*$")
_REMEMBERED = 200_000
"""Operands, and shapes, kept for reuse. A file of a million lines has about 40,000 distinct ones."""


@dataclass(frozen=True, slots=True)
class Guard:
    """``@!P0`` and the blanks behind it. The register is P0–P6, PT, UP0–…, UPT or a snippet's ``%p0``."""

    register: Register | Virtual
    negated: bool
    gap: str = " "

    def __str__(self) -> str:
        return f"@{'!' if self.negated else ''}{self.register}{self.gap}"


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction. ``separators[i]`` stands before operand i; ``tail`` is all that follows the last
    operand.

    The tail holds the semicolon and, in listings of whole cubins, an annotation such as
    ``(*"SpillRefill"*)``.
    """

    guard: Guard | None
    mnemonic: str
    modifiers: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    separators: tuple[str, ...] = ()
    tail: str = ""

    @property
    def opcode(self) -> str:
        """Mnemonic with its modifiers, e.g. ``LDG.E.128``."""
        return ".".join([self.mnemonic, *self.modifiers])

    def registers(self) -> Iterator[Register | Virtual]:
        """Every register named in the line, guard first, in the order written."""
        if self.guard is not None:
            yield self.guard.register
        for operand in self.operands:
            yield from operand.registers()

    def __str__(self) -> str:
        guard = "" if self.guard is None else str(self.guard)
        operands = "".join([f"{blank}{operand}"
                            for blank, operand in zip(self.separators, self.operands, strict=True)])
        return f"{guard}{self.opcode}{operands}{self.tail}"


def render(line: Line) -> str:
    """The text of a line, character for character what was parsed."""
    return str(line)


def canonical(line: Line) -> str:
    """The line in nvdisasm's spacing and without its tail.

    One blank behind guard and opcode, comma and blank between operands; where the text has no comma (``BRX R4
    -0x40``) one blank. An infinity or NaN that something follows has a blank behind it.
    """
    guard = "" if line.guard is None else str(line.guard).rstrip() + " "
    out = [guard, line.opcode]
    blank = ""
    for number, (separator, operand) in enumerate(zip(line.separators, line.operands, strict=True)):
        out.append(f"{blank}, " if "," in separator and number else " ")
        out.append(str(operand))
        core = operand.core
        blank = " " if isinstance(core, Immediate) and core.text[1:] in ("INF", "QNAN", "SNAN") else ""
    return "".join(out)


class _OperandShape:
    """An operand with holes for values; remembers the operands made from it."""

    __slots__ = ("made", "sample")

    def __init__(self, sample: Operand) -> None:
        self.sample = sample
        self.made: dict[tuple[str, ...], Operand] = {}

    def make(self, values: tuple[str, ...]) -> Operand:
        operand = self.made[values] = _fill_operand(self.sample, iter(values))
        return operand


@dataclass(slots=True)
class _Plan:
    """How to make the lines of one shape: first value and last value (exclusive) of each operand."""

    first: Line
    guarded: bool
    operands: list[tuple[_OperandShape, int, int]]


_plans: dict[str, _Plan] = {}
_shapes: dict[str, _OperandShape] = {}
_guards: dict[tuple[Guard, str], Guard] = {}
_remembered = 0


def parse(text: str, *, line: int = 1) -> Line:
    """Parse one instruction, with or without guard, closing semicolon and annotation.

    Raises ParseError ``[sass-syntax]`` with line (the number given), column and what was expected there.
    """
    tail = ""
    if text[-1:] in "; \t\n":
        cut = _TAIL.search(text)
        assert cut is not None  # the pattern also matches nothing, at the end
        text, tail = text[:cut.start()], cut.group()
    key, values = split(text)
    plan = _plans.get(key)
    if plan is None:
        plan = _learn(text, key, values, line)
    try:
        return _made(plan, values, tail)
    except ParseError:
        from gwatch.sass.grammar import parse_instruction

        parse_instruction(text, line=line)  # the grammar refuses it too, and says where
        raise


def _made(plan: _Plan, values: tuple[str, ...], tail: str) -> Line:
    """The line of a known shape with these values."""
    global _remembered
    operands = []
    for shape, start, end in plan.operands:
        part = values[start:end]
        operand = shape.made.get(part)
        if operand is None:
            operand = shape.make(part)
            _remembered += 1
        operands.append(operand)
    if _remembered > _REMEMBERED or len(_plans) > _REMEMBERED:
        _forget()
    first = plan.first
    guard = first.guard
    if plan.guarded and guard is not None:
        index = values[0]
        guard = _guards.get((guard, index)) or _make_guard(guard, index)
    return Line(guard, first.mnemonic, first.modifiers, tuple(operands), first.separators, tail)


def _learn(text: str, key: str, values: tuple[str, ...], line: int) -> _Plan:
    # Lark costs about 60 ms to import and a grammar 30 ms to compile; whoever parses nothing pays nothing.
    from gwatch.sass.grammar import parse_instruction

    parsed = parse_instruction(text, line=line)
    guard = None
    at = 0
    if parsed.guard is not None:
        guard = Guard(parsed.guard.register, parsed.guard.negated, parsed.guard.gap)
        at = int(isinstance(guard.register, Register) and guard.register.index is not None)
    first = Line(guard, parsed.mnemonic, parsed.modifiers, parsed.operands, parsed.separators)
    plan = _Plan(first, at == 1, [])
    for operand, (start, end) in zip(parsed.operands, parsed.places, strict=True):
        # A blank in front, because the cut looks at the character before a value.
        shape_key, part = split(" " + text[start:end])
        stop = at + len(part)
        if values[at:stop] != part:
            raise ParseError("sass-syntax",
                             f"line {line}, column {start + 1}: {text[start:end]!r} has two readings")
        shape = _shapes.setdefault(shape_key, _OperandShape(operand))
        plan.operands.append((shape, at, stop))
        at = stop
    _plans[key] = plan
    return plan


def _forget() -> None:
    global _remembered
    _plans.clear()
    _shapes.clear()
    _guards.clear()
    _remembered = 0


def _make_guard(guard: Guard, index: str) -> Guard:
    assert isinstance(guard.register, Register)
    made = Guard(Register(guard.register.file, _index(index)), guard.negated, guard.gap)
    return _guards.setdefault((guard, index), made)


def _index(value: str) -> int:
    # As strict as the grammar: a leading zero would not come back, 0x1 or -1 is no register index.
    if value.isascii() and value.isdigit() and (value[0] != "0" or value == "0"):
        return int(value)
    raise ParseError("sass-syntax", f"{value!r} is not a register index or scoreboard number")


def _fill_operand(operand: Operand, values: Iterator[str]) -> Operand:
    core = _fill_core(operand.core, values)
    return Operand(core, operand.prefix, operand.absolute, operand.inner, operand.suffixes)


def _fill_core(core: Core, values: Iterator[str]) -> Core:
    """The same core with the values of another text, taken in the order written."""
    if isinstance(core, Register):
        return core if core.index is None else Register(core.file, _index(next(values)))
    if isinstance(core, Immediate):
        return Immediate(next(values), core.blank)
    if isinstance(core, Memory):
        descriptor = None if core.descriptor is None else _fill_address(core.descriptor, values)
        return Memory(core.space, _fill_address(core.address, values), descriptor)
    if isinstance(core, Constant):
        bank = _fill_operand(core.bank, values)
        return Constant(core.bindless, bank, _fill_address(core.address, values), core.gap)
    if isinstance(core, Label):
        return Label(next(values))
    if isinstance(core, Relocation):
        return Relocation(core.bits, core.part, next(values))
    if isinstance(core, BarrierSet):
        return BarrierSet(tuple([_index(next(values)) for _ in core.items]))
    if isinstance(core, Virtual) and core.offset is not None:
        return Virtual(core.name, _index(next(values)))
    return core


def _fill_address(address: Address, values: Iterator[str]) -> Address:
    return Address(tuple([_fill_operand(term, values) for term in address.terms]))
