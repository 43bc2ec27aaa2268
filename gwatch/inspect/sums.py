"""The low word that an integer instruction computes, as a sum (see :mod:`gwatch.inspect.linear`)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gwatch.inspect.linear import MAX_TERMS, Form, Kind, common, signed, zero_bits, zeros
from gwatch.inspect.loops import components
from gwatch.inspect.values import Atom

_OPERAND = re.compile(
    r"(-?)(?:(U?R)([0-9]+|Z)|c\[0x0\]\s?\[(?:U?RZ\+)?(0x[0-9a-f]+|U?RZ)\]|(0x[0-9a-f]+))(?:\.reuse)?(?:\.64)?"
)
_FLOAT_ZERO = frozenset({"RZ", "-RZ", "URZ", "-URZ"})
_SUMS = frozenset({"IADD3", "IADD", "UIADD3", "UIADD", "VIADD", "UVIADD", "IADD32I"})
_PRODUCTS = frozenset({"IMAD", "UIMAD", "IMUL", "UIMUL"})
_COPIES = frozenset({"MOV", "UMOV", "MOV32I", "R2UR", "UR2R"})
_CHOICES = frozenset({"SEL", "USEL"})
_LOGIC = frozenset({"LOP3", "ULOP3"})
_HALF_SUMS = frozenset({"HFMA2", "HFMA2.MMA"})
_PREDICATE = re.compile(r"!?U?P(?:[0-9]|T)$")
_OR, _XOR, _OR3 = 0xFC, 0x3C, 0xFE
_HIGH = frozenset({"X", "HI", "HI_LO"})
NUMBER = Form()

Lookup = Callable[[str, int], Form]


class Sums:
    """Forms of results, and the atoms they are made of. ``number`` gives equal things equal numbers."""

    def __init__(self, number: Callable[..., int]) -> None:
        self.number = number
        self.atoms: dict[int, Atom] = {}
        self.multiplied: set[int] = set()  # offsets of the parameters that instructions multiply
        self.carried: dict[int, tuple[int, int]] = {}  # what a loop carries round, and its first and last block
        self.sources: dict[int, set[int]] = {}  # the atoms that an atom was computed or read with

    def known(self, atom: int) -> int:
        """Low bits of an atom that are zero."""
        return self.atoms[atom].zeros

    def zeros(self, form: Form) -> int:
        """Low bits of a sum that are zero."""
        return zeros(form, self.known)

    def atom(self, number: int, made: Atom) -> Form:
        """The sum that is this atom alone."""
        self.atoms.setdefault(number, made)
        return Form(((number, 1),))

    def made_from(self, number: int, forms: Iterable[Form]) -> None:
        """Remember what an atom was computed from, or with which address it was read."""
        found = {atom for form in forms for atom, _ in form.terms}
        if found:
            self.sources.setdefault(number, set()).update(found)

    @cached_property
    def _chased(self) -> frozenset[int]:
        """What a loop carries round that was read from memory with itself: a pointer chase. To be asked for when
        everything was walked through."""
        if not self.carried:
            return frozenset()
        last = max((self.sources.keys() | self.carried.keys()).union(*self.sources.values()))
        graph = [tuple(self.sources.get(atom, ())) for atom in range(last + 1)]
        chased: set[int] = set()
        for part in components(sorted(self.sources), graph):
            if any(self.atoms[atom].kind is Kind.LOADED for atom in part if atom in self.atoms):
                chased.update(atom for atom in part if atom in self.carried)
        return frozenset(chased)

    def is_chased(self, form: Form, block: int) -> bool:
        """Whether a sum is known in a loop's block once the iteration before read something from memory with it."""
        goals = {atom for atom in self._chased if self.carried[atom][0] <= block <= self.carried[atom][1]}
        work = [atom for atom, _ in form.terms] if goals else []
        seen = set(work)
        while work:
            atom = work.pop()
            if atom in goals:
                return True
            fresh = self.sources.get(atom, set()) - seen
            seen |= fresh
            work += fresh
        return False

    def parameter(self, offset: int) -> Form:
        """The word at an offset of constant bank 0."""
        made = Atom(Kind.PARAMETER, parameters=frozenset({offset}))
        return self.atom(self.number("parameter", offset), made)

    def mixed(self, number: int, forms: Sequence[Form], low: int, iterates: bool = False) -> Form:
        """Something computed from ``forms`` that isn't followed, with ``low`` zero bits; ``iterates``: anew in each
        iteration of a loop."""
        parts = [self.atoms[atom] for form in forms for atom, _ in form.terms]
        self.made_from(number, forms)
        return self.atom(
            number,
            Atom(
                Kind.OTHER, low,
                any(part.per_thread for part in parts), iterates or any(part.iterates for part in parts),
                frozenset().union(*(part.parameters for part in parts)), any(part.loaded for part in parts),
                any(part.across for part in parts), max((part.loop for part in parts), default=-1),
            ),
        )  # fmt: skip

    def merged(self, one: Form, other: Form, number: int, iterates: bool = False) -> Form:
        """One of two sums, it isn't known which."""
        if one == other:
            return one
        shared, left, right = common(one, other)
        if left.is_constant and right.is_constant:
            choice = self.atom(number, Atom(Kind.OTHER, iterates=iterates))
            return shared + left + choice.times(right.total - left.total)
        rest = self.mixed(number, (left, right), min(self.zeros(left), self.zeros(right)), iterates)
        return shared + rest

    def stepped(self, start: Form, step: Form, loop: int, number: int) -> Form:
        """A sum that ``step`` is added to with each iteration of a loop."""
        count = self.atom(self.number("step", loop), Atom(Kind.STEP, iterates=True, loop=loop))
        parts = [self.atoms[atom] for atom, _ in step.terms]
        if all(part.kind in (Kind.PARAMETER, Kind.SPECIAL, Kind.PRODUCT) and not part.iterates for part in parts):
            return start + self.product(step.flat(), count)
        base = Form(tuple(term for term in start.terms if self.atoms[term[0]].kind is Kind.PARAMETER))
        rest = start - base
        return base + self.mixed(number, (rest, step, count), min(self.zeros(rest), self.zeros(step)))

    def product(self, one: Form, other: Form) -> Form:
        """Two sums multiplied, term by term."""
        if one.is_constant or other.is_constant:
            return other.times(one.total) if one.is_constant else one.times(other.total)
        out = other.flat().times(one.total) + Form(one.terms).times(other.total)
        for atom, factor in one.terms:
            for second, times in other.terms:
                pair = self.number("product", *sorted((atom, second)))
                self.sources.setdefault(pair, set()).update((atom, second))
                parts = self.atoms[atom], self.atoms[second]
                self.atoms.setdefault(
                    pair,
                    Atom(
                        Kind.PRODUCT, min(31, parts[0].zeros + parts[1].zeros),
                        parts[0].per_thread or parts[1].per_thread, parts[0].iterates or parts[1].iterates,
                        parts[0].parameters | parts[1].parameters, parts[0].loaded or parts[1].loaded,
                        parts[0].across or parts[1].across, max(parts[0].loop, parts[1].loop),
                    ),
                )  # fmt: skip
                out = out + Form(((pair, 1),)).times(signed(factor * times))
        return out

    def operand(self, text: str, lookup: Lookup) -> Form | None:
        """An operand as a sum; None for what is no whole 32-bit word."""
        match = _OPERAND.fullmatch(text)
        if match is None:
            return None
        sign, file, register, offset, number = match.groups()
        if register == "Z":
            return NUMBER
        if file:
            form = lookup(file, int(register))
        elif offset:
            form = self.parameter(0 if offset.endswith("Z") else int(offset, 16))
        else:
            form = Form((), signed(int(number, 16)))
        return form.times(-1) if sign else form

    def result(
        self, mnemonic: str, modifiers: Sequence[str], sources: Sequence[str], number: int, lookup: Lookup
    ) -> Form | None:
        """The low word of an instruction's result; None where it is no sum that can be written down."""
        form = self._result(mnemonic, modifiers, sources, number, lookup)
        if form is not None and len(form.terms) > MAX_TERMS:
            return self.mixed(number, (form,), self.zeros(form))
        return form

    def _result(
        self, mnemonic: str, modifiers: Sequence[str], sources: Sequence[str], number: int, lookup: Lookup
    ) -> Form | None:
        if mnemonic == "HFMA2":
            return _packed(sources)
        plain = [text for text in sources if not _PREDICATE.match(text)]
        if not _HIGH.isdisjoint(modifiers):
            return None
        if mnemonic in _COPIES and plain:
            return self.operand(plain[0], lookup)
        if mnemonic in _SUMS:
            return self._add(plain, lookup)
        if mnemonic in _PRODUCTS and len(plain) >= 2:
            return self._multiply(plain, "WIDE" in modifiers and "U32" in modifiers, lookup)
        if mnemonic in ("LEA", "ULEA") and len(plain) >= 2:
            shift = self.operand(plain[2], lookup) if len(plain) > 2 else NUMBER
            first, second = self.operand(plain[0], lookup), self.operand(plain[1], lookup)
            if first is None or second is None or shift is None or not shift.is_constant:
                return None
            return first.times(1 << (shift.total & 31)) + second
        if mnemonic in ("SHF", "USHF", "SHL", "USHL") and ("L" in modifiers or mnemonic.endswith("SHL")):
            first, shift = self.operand(plain[0], lookup), self.operand(plain[1], lookup)
            whole = len(plain) < 3 or plain[2] in ("RZ", "URZ")
            if first is None or shift is None or not shift.is_constant or not whole or "U64" in modifiers:
                return None
            return first.flat().times(1 << (shift.total & 31))
        if mnemonic in _CHOICES and len(plain) >= 2:
            one, other = self.operand(plain[0], lookup), self.operand(plain[1], lookup)
            return None if one is None or other is None else self.merged(one.flat(), other.flat(), number)
        if mnemonic in _LOGIC and len(plain) >= 4:
            return self._logic(plain, number, lookup)
        return None

    def _add(self, sources: Sequence[str], lookup: Lookup) -> Form | None:
        out = NUMBER
        for text in sources:
            form = self.operand(text, lookup)
            if form is None:
                return None
            out = out + form
        return out

    def _multiply(self, sources: Sequence[str], extended: bool, lookup: Lookup) -> Form | None:
        one, other = self.operand(sources[0], lookup), self.operand(sources[1], lookup)
        added = self.operand(sources[2], lookup) if len(sources) > 2 else NUMBER
        if one is None or other is None or added is None:
            return None
        if len(one.terms) * len(other.terms) > MAX_TERMS:
            return None
        if not (one.is_constant or other.is_constant):
            for atom, _ in one.terms + other.terms:
                self.multiplied |= self.atoms[atom].parameters
        product = self.product(one, other)
        return (product.extended() if extended else product) + added

    def _logic(self, sources: Sequence[str], number: int, lookup: Lookup) -> Form | None:
        forms = [self.operand(text, lookup) for text in sources[:3]]
        table = self.operand(sources[3], lookup)
        if table is None or not table.is_constant:
            return None
        known: list[Form] = [form for form in forms if form is not None]
        if len(known) < 3:
            return None
        lut = table.total & 0xFF
        joined = known[:2] if lut in (_OR, _XOR) else known if lut == _OR3 else []
        for constant in joined:
            others = [form for form in joined if form is not constant and form != NUMBER]
            if constant.is_constant and len(others) == 1 and 0 <= constant.total < 1 << self.zeros(others[0]):
                return others[0].plus(constant.total)
        low = zero_bits(
            lut, tuple((self.zeros(form), form.total if form.is_constant else None) for form in known)
        )
        return self.mixed(number, known, low)


def _packed(sources: Sequence[str]) -> Form | None:
    """A number that compilers load by ``-0 x 0 + (two halves)``."""
    if len(sources) != 4 or not set(sources[:2]) <= _FLOAT_ZERO:
        return None
    try:
        high, low = (struct.unpack("<H", struct.pack("<e", float(text)))[0] for text in sources[2:])
    except (ValueError, OverflowError, struct.error):
        return None
    return Form((), signed(high << 16 | low))
