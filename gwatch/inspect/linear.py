"""Addresses as sums: low words of registers written as ``constant + factor x atom + …``, modulo 2^32.

An atom is something that isn't followed further: a parameter, a special register, a loop's iteration number, a loaded
value, a product of two atoms, or the result of an instruction that is no sum. Two addresses with the same atoms and
factors are a known number of bytes apart, and the factors tell what an address is a multiple of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

WORD = 32
_MASK = (1 << WORD) - 1
MAX_TERMS = 12
"""Terms of a sum beyond which it is taken as one atom: no address that a person wrote has more."""


class Kind(Enum):
    """What an atom is."""

    PARAMETER = "parameter"
    SPECIAL = "special register"
    STEP = "iteration"
    LOADED = "loaded"
    PRODUCT = "product"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Form:
    """A sum: ``terms`` (atom, factor) by atom, ``constant``, and ``indexed``, the part of the constant that was added
    to an index of 32 bits before it was extended: there it may have wrapped around."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0
    indexed: int = 0

    @property
    def total(self) -> int:
        """The whole constant."""
        return signed(self.constant + self.indexed)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def __add__(self, other: Form) -> Form:
        return _sum(self, other, 1)

    def __sub__(self, other: Form) -> Form:
        return _sum(self, other, -1)

    def times(self, factor: int) -> Form:
        """This sum multiplied by a number."""
        terms = tuple((atom, number) for atom, old in self.terms if (number := signed(old * factor)))
        return Form(terms, signed(self.constant * factor), signed(self.indexed * factor))

    def plus(self, number: int) -> Form:
        """This sum and a number."""
        return Form(self.terms, signed(self.constant + number), self.indexed)

    def extended(self) -> Form:
        """This index of 32 bits as part of an address of 64."""
        return Form(self.terms, 0, self.total) if self.terms else self

    def flat(self) -> Form:
        """The sum as a number of 32 bits: where its constant came from no longer matters."""
        return Form(self.terms, self.total) if self.indexed else self


def signed(number: int) -> int:
    """``number`` modulo 2^32, from -2^31 on."""
    number &= _MASK
    return number - (1 << WORD) if number >> (WORD - 1) else number


def zeros_of(number: int) -> int:
    """Low bits of ``number`` that are zero."""
    number &= _MASK
    return WORD if not number else (number & -number).bit_length() - 1


def zeros(form: Form, known: Callable[[int], int]) -> int:
    """Low bits of a sum that are zero whatever its atoms are; ``known``: those of an atom."""
    least = zeros_of(form.total)
    for atom, factor in form.terms:
        least = min(least, zeros_of(factor) + known(atom))
    return min(least, WORD)


def _sum(one: Form, other: Form, sign: int) -> Form:
    if not other.terms:
        terms = one.terms
    elif not one.terms and sign == 1:
        terms = other.terms
    else:
        factors = dict(one.terms)
        for atom, factor in other.terms:
            factors[atom] = signed(factors.get(atom, 0) + sign * factor)
        terms = tuple(sorted((atom, factor) for atom, factor in factors.items() if factor))
    return Form(
        terms, signed(one.constant + sign * other.constant), signed(one.indexed + sign * other.indexed)
    )


def common(one: Form, other: Form) -> tuple[Form, Form, Form]:
    """What two sums share, and what is left of each."""
    factors = dict(other.terms)
    shared = tuple(term for term in one.terms if factors.get(term[0]) == term[1])
    both = Form(shared)
    return both, one - both, other - both


def zero_bits(lut: int, operands: tuple[tuple[int, int | None], ...]) -> int:
    """Low bits of a LOP3's result that are zero; each operand is (low bits that are zero, its value if it has one)."""
    for bit in range(WORD):
        rows = [0]
        for low, value in operands:  # the first operand is the highest bit of a row of the table
            choices = (value >> bit & 1,) if value is not None else (0,) if bit < low else (0, 1)
            rows = [row << 1 | choice for row in rows for choice in choices]
        if any(lut >> row & 1 for row in rows):
            return bit
    return WORD
