"""Addresses as sums: what is said of low bits holds for every value of the atoms."""

from __future__ import annotations

import random

from hypothesis import given, strategies

from gwatch.inspect.linear import WORD, Form, Kind, common, signed, zero_bits, zeros
from gwatch.inspect.sums import Sums
from gwatch.inspect.values import Atom

FULL = (1 << WORD) - 1
numbers = strategies.integers(-(1 << 31), (1 << 31) - 1)
forms = strategies.builds(
    lambda terms, constant, indexed: Form(tuple(sorted(terms.items())), constant, indexed),
    strategies.dictionaries(strategies.integers(0, 5), numbers.filter(bool), max_size=4),
    numbers,
    numbers,
)


def value(form: Form, atoms: list[int]) -> int:
    return (form.total + sum(factor * atoms[atom] for atom, factor in form.terms)) & FULL


@given(forms, forms, numbers, strategies.lists(numbers, min_size=6, max_size=6))
def test_sums_are_sums(one: Form, other: Form, factor: int, atoms: list[int]) -> None:
    assert value(one + other, atoms) == (value(one, atoms) + value(other, atoms)) & FULL
    assert value(one - other, atoms) == (value(one, atoms) - value(other, atoms)) & FULL
    assert value(one.times(factor), atoms) == value(one, atoms) * factor & FULL
    assert value(one.plus(factor), atoms) == value(one, atoms) + factor & FULL
    assert value(one.extended(), atoms) == value(one.flat(), atoms) == value(one, atoms)
    shared, left, right = common(one, other)
    assert value(shared + left, atoms) == value(one, atoms)
    assert value(shared + right, atoms) == value(other, atoms)


@given(forms, strategies.lists(strategies.integers(0, 6), min_size=6, max_size=6), strategies.integers(0, 1 << 30))
def test_zeros_are_zero_whatever_the_atoms_are(form: Form, low: list[int], seed: int) -> None:
    chance = random.Random(seed)
    atoms = [signed(chance.getrandbits(WORD) << bits) for bits in low]
    assert value(form, atoms) & ((1 << zeros(form, low.__getitem__)) - 1) == 0


@given(
    strategies.integers(0, 255),
    strategies.lists(
        strategies.tuples(strategies.integers(0, 8), strategies.booleans(), numbers), min_size=3, max_size=3
    ),
    strategies.integers(0, 1 << 30),
)  # fmt: skip
def test_zero_bits_of_a_logic_table(lut: int, operands: list[tuple[int, bool, int]], seed: int) -> None:
    chance = random.Random(seed)
    values = [number if known else chance.getrandbits(WORD) << low & FULL for low, known, number in operands]
    said = zero_bits(lut, tuple((low, number if known else None) for low, known, number in operands))
    result = 0
    for bit in range(WORD):
        row = sum((number >> bit & 1) << (2 - place) for place, number in enumerate(values))
        result |= (lut >> row & 1) << bit
    assert result & ((1 << said) - 1) == 0


def sums() -> Sums:
    known: dict[tuple[object, ...], int] = {}
    return Sums(lambda *what: known.setdefault(what, len(known)))


def test_instructions_as_sums() -> None:
    made = sums()
    thread = made.atom(made.number("tid"), Atom(Kind.SPECIAL, per_thread=True))

    def lookup(file: str, register: int) -> Form:
        return thread if register == 0 else Form((), register)

    def result(mnemonic: str, modifiers: str, *sources: str) -> Form | None:
        return made.result(mnemonic, modifiers.split("."), sources, made.number(mnemonic, sources), lookup)

    assert result("IADD3", "", "R0", "-R5", "0x10") == thread.plus(11)
    assert result("IADD3", "X", "R0", "R5", "RZ", "!PT") is None
    assert result("IMAD", "WIDE", "R0", "0x4", "R8") == thread.times(4).plus(8)
    assert result("IMAD", "WIDE.U32", "R7.reuse", "0x4", "R0") == thread.plus(28)
    assert result("LEA", "", "R0", "c[0x0][0x160]", "0x2") == thread.times(4) + made.parameter(0x160)
    assert result("LEA", "HI.X", "R0", "c[0x0][0x164]", "RZ", "0x2", "P0") is None
    assert result("SHF", "L.U32", "R0", "0x3", "RZ") == thread.times(8)
    assert result("SHF", "R.U32.HI", "RZ", "0x3", "R0") is None
    assert result("HFMA2", "MMA", "-RZ", "RZ", "0", "2.384185791015625e-07") == Form((), 4)
    assert result("HFMA2", "", "R0", "R5", "0", "0") is None
    shifted = result("LOP3", "LUT", "R0", "0xfffffff0", "RZ", "0xc0", "!PT")
    assert shifted is not None
    assert made.zeros(shifted) == 4
    made.atoms[99] = Atom(Kind.OTHER, 4)
    aligned = Form(((99, 1),))
    assert made.result("LOP3", ["LUT"], ["R9", "0x3", "RZ", "0xfc", "!PT"], 7, lambda *_: aligned) == aligned.plus(3)
    index = Form(((0, 1),), 3)
    assert made.result("IMAD", ["WIDE", "U32"], ["R9", "0x4", "RZ"], 8, lambda *_: index) == Form(((0, 4),), 0, 12)
    assert made.result("IMAD", ["WIDE"], ["R9", "0x4", "RZ"], 8, lambda *_: index) == Form(((0, 4),), 12)
