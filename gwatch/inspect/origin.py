"""Where the registers of a kernel's addresses and predicates come from: parameters, thread and block numbers,
loaded values, and what was multiplied with what.

A forward pass over the basic blocks keeps, per register, a :class:`Value`; at joins values are united and one
more pass carries them round loops. It reads instruction text, so it works for every architecture. The result
explains; nothing is rewritten by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gwatch.inspect.linear import Form, Kind
from gwatch.inspect.loops import Blocks
from gwatch.inspect.statement import PREDICATE, REGISTER, Statement, bit, needed, statement
from gwatch.inspect.sums import Sums
from gwatch.inspect.values import NOTHING, Atom, Held, Register, Value
from gwatch.sass.code import Code

_CONSTANT = re.compile(r"c\[0x0\]\s?\[(?:(?:UR[0-9]+\+)?(0x[0-9a-f]+)|U?RZ)\]")
_BRACKETS = re.compile(r"(?<!desc)\[([^\]]*)\]")
_SPECIAL = re.compile(r"\bSR_[A-Z0-9_.]+")
_LOADS = frozenset({"LDG", "LD", "LDS", "LDL", "LDSM", "ATOM", "ATOMG", "ATOMS", "TEX", "TLD", "SULD"})
KEPT_PREDICATES = "predicates"
"""Stands among the special registers of a value that predicates were kept in: which of them a later test asks for isn't
followed."""
_ATOMICS = frozenset({"ATOM", "ATOMG", "ATOMS"})
_GLOBAL_LOADS = frozenset({"LDG", "LD", "ATOM", "ATOMG"})
_CONSTANT_LOADS = frozenset({"LDC", "ULDC", "LDCU"})
_SPECIALS = frozenset({"S2R", "S2UR", "CS2R", "CS2UR"})
_PRODUCTS = frozenset({"IMAD", "UIMAD", "IMUL", "UIMUL", "XMAD", "IDP"})
_SHIFTED = frozenset({"LEA", "ULEA", "UCLEA"})
_SHIFTS = frozenset({"SHF", "USHF", "SHL", "SHR"})


@dataclass(frozen=True, slots=True)
class Seen:
    """The state in front of one instruction, cut down to the registers it names. ``condition``: under which it runs."""

    index: int
    block: int
    text: str
    condition: str
    values: dict[Register, Value]
    numbers: dict[Register, int]
    forms: dict[Register, Form]


class _Tracer:
    """Walks the blocks of a section and keeps, per block, what the registers hold at its start and end."""

    def __init__(self, code: Code, blocks: Blocks) -> None:
        self.texts = code.texts
        self.statements = [statement(text) for text in self.texts]
        self.blocks = blocks
        self.chosen: list[list[int]] = []
        self.starts: dict[int, dict[Register, Held]] = {}
        self.outputs: dict[int, dict[Register, Held]] = {}
        self.numbers: dict[tuple[object, ...], int] = {}
        self.sums = Sums(self.number)
        self.round = 0

    def number(self, *what: object) -> int:
        """The number of an operation on numbered inputs; equal operations get equal numbers."""
        return self.numbers.setdefault(what, len(self.numbers))

    def form(self, held: Held, condition: str = "") -> Form:
        """A register's low word; what isn't known as a sum is an atom of its own."""
        value, number, form = held.under(condition)
        if form is None:
            form = self.sums.atom(
                number, Atom(Kind.OTHER, 0, value.per_thread, False, value.constants, value.loaded, value.across)
            )
        return form

    def joined(self, block: int) -> dict[Register, Held]:
        """Registers at the start of a block: united over the blocks in front of it seen so far."""
        before = [b for b in self.blocks.before[block] if b in self.outputs]
        forward = [b for b in before if b < block]
        state: dict[Register, Held] = {}
        for position, number in enumerate(forward):
            other = self.outputs[number]
            if not position:
                state = dict(other)
                continue
            for register, held in other.items():
                mine = state.get(register)
                if mine is None:
                    state[register] = held
                elif mine != held:
                    state[register] = self.united(mine, held, block, register)
        start = self.starts.get(block, {})
        for number in before:
            if number >= block:
                self.looped(state, start, self.outputs[number], block)
        return state

    def united(self, mine: Held, held: Held, block: int, register: Register) -> Held:
        """What a register holds where two ways meet."""
        if mine.number == held.number:
            return Held(mine.value | held.value, mine.number, mine.form)
        number = self.number("join", self.round, block, register)
        form = None
        if mine.form is not None or held.form is not None:
            form = self.sums.merged(self.form(mine), self.form(held), number)
        return Held(mine.value | held.value, number, form)

    def looped(
        self, state: dict[Register, Held], start: dict[Register, Held], back: dict[Register, Held], block: int
    ) -> None:
        """Unite ``state``, as the loop is entered, with what its end leaves. ``start`` and ``back`` are the first
        walk's: what changed between them changes with each iteration."""
        for register, held in back.items():
            mine, first = state.get(register), start.get(register)
            if mine is None or first is None:
                state.setdefault(register, held)
                continue
            if first == held:
                continue
            number = self.number("join", self.round, block, register)
            self.sums.carried[number] = block, max(self.blocks.before[block])
            form = None
            if mine.form is not None and first.form is not None and held.form is not None:
                step = held.form - first.form
                if step == Form():
                    continue
                if set(first.form.terms) <= set(held.form.terms):
                    form = self.sums.stepped(mine.form, step, block, number)
                else:  # another value, not one that something was added to
                    form = self.sums.merged(mine.form, held.form, number, True)
            elif first.number == held.number:
                continue
            else:
                self.sums.made_from(number, (self.form(mine), self.form(held)))
            state[register] = Held(mine.value | held.value, number, form)

    def walk(self, block: int, wanted: frozenset[int], seen: list[Seen] | None) -> None:
        """Go through what matters of a block; append to ``seen`` what is in front of the wanted instructions."""
        state = self.joined(block)
        self.starts[block] = dict(state)
        for index in self.chosen[block]:
            one = self.statements[index]
            condition = self.condition(state, one)
            if seen is not None and index in wanted:
                seen.append(self.seen(index, block, state, condition))
            if one.targets:
                self.step(state, index, one, condition)
        self.outputs[block] = state

    def seen(self, index: int, block: int, state: dict[Register, Held], condition: str) -> Seen:
        values: dict[Register, Value] = {}
        numbers: dict[Register, int] = {}
        forms: dict[Register, Form] = {}
        for file, first in REGISTER.findall(self.texts[index]):
            for register in ((file, int(first)), (file, int(first) + 1)):
                held = state.get(register)
                values[register], numbers[register] = held.under(condition)[:2] if held else (NOTHING, -1)
                if held and file in ("R", "UR"):
                    forms[register] = self.form(held, condition)
        return Seen(index, block, self.texts[index], condition, values, numbers, forms)

    def condition(self, state: dict[Register, Held], one: Statement) -> str:
        """A key for a guard that is equal where the same predicate value is asked for; "" for none."""
        if one.guard_register is None:
            return ""
        held = state.get(one.guard_register)
        return f"{one.guard}:{held.number if held else -1}"

    def step(self, state: dict[Register, Held], index: int, one: Statement, condition: str) -> None:
        """One instruction's effect on the registers."""
        mnemonic, sources = one.mnemonic, one.sources
        value = _result(state, condition, one)
        constant = _CONSTANT.search(one.operands) if mnemonic in _CONSTANT_LOADS else None
        inputs: tuple[object, ...] = ("instruction", index)
        if mnemonic not in _LOADS:
            inputs = (one.opcode, *(self.source(state, condition, part) for part in sources))
        written: dict[Register, Held] = {}
        for order, registers in enumerate(one.written):
            for place, register in enumerate(registers):
                part = value
                if constant is not None:  # each register of a wide load holds its own part of the bank
                    part = Value(base=frozenset({_offset(constant) + 4 * place}))
                number = self.number(*inputs, order, place)
                form = None
                if register[0] in ("R", "UR"):
                    form = self.low(state, condition, one, constant, number, place)
                    if form is None:
                        self.sums.made_from(number, self.read(state, condition, one))
                before = state.get(register)
                if one.guard_register is None:
                    written[register] = Held(part, number, form)
                    continue
                old = before.number if before else -1
                merged = self.number("if", condition, number, old)
                both = None
                if before is not None and (form is not None or before.form is not None):
                    fresh = self.form(Held(part, number, form))
                    both = self.sums.merged(self.form(before), fresh, merged)
                whole = part | before.value if before else part
                written[register] = Held(whole, merged, both, condition, (part, number, form))
        state.update(written)  # only now: a wide result may stand on its own operands
        if mnemonic in ("LEA", "ULEA") and one.modifiers[:2] == ("HI", "X"):
            self.widened(state, one)

    def low(
        self,
        state: dict[Register, Held],
        condition: str,
        one: Statement,
        constant: re.Match[str] | None,
        number: int,
        place: int,
    ) -> Form | None:
        """The low word of one register written, as a sum; None where it is an atom of its own."""
        if constant is not None:
            return self.sums.parameter(_offset(constant) + 4 * place)
        mnemonic, sources = one.mnemonic, one.sources
        if mnemonic in _LOADS:
            return self.loaded(state, condition, one, number)
        if mnemonic in _SPECIALS and _SPECIAL.match(sources[0] if sources else ""):
            if place:
                return None
            made = Value(specials=frozenset({sources[0]}))
            number = self.number("special", sources[0])
            return self.sums.atom(number, Atom(Kind.SPECIAL, 0, made.per_thread, across=made.across))
        if mnemonic in ("CS2R", "CS2UR") and sources[:1] == ("SRZ",):
            return Form()
        if place and one.opcode not in ("MOV.64", "UMOV.64"):
            return None

        def lookup(file: str, at: int) -> Form:
            held = state.get((file, at + place))
            if held is None:
                unset = self.number("unset", file, at + place)
                return self.sums.atom(unset, Atom(Kind.OTHER))
            return self.form(held, condition)

        return self.sums.result(mnemonic, one.modifiers, sources, number, lookup)

    def loaded(self, state: dict[Register, Held], condition: str, one: Statement, number: int) -> Form:
        """A word read from memory: it varies with its address. What an atomic operation found differs each time; of
        what comes back from a thread's own stack nothing is known, it was computed once."""
        if one.mnemonic == "LDL":
            return self.sums.atom(number, Atom(Kind.OTHER))
        forms = self.read(state, condition, one)
        atoms = [self.sums.atoms[atom] for form in forms for atom, _ in form.terms]
        self.sums.made_from(number, forms)
        # Set anew: what its address does in a loop is known when the loop is walked through again.
        self.sums.atoms[number] = Atom(
            Kind.LOADED, 0,
            one.mnemonic in _ATOMICS or any(a.per_thread for a in atoms), any(a.iterates for a in atoms),
            frozenset(), True,
        )  # fmt: skip
        return Form(((number, 1),))

    def read(self, state: dict[Register, Held], condition: str, one: Statement) -> list[Form]:
        """The sums in the registers that an instruction reads."""
        names = REGISTER.findall(" ".join(one.sources))
        held = [state.get((file, int(first))) for file, first in names if file in ("R", "UR")]
        return [self.form(one, condition) for one in held if one is not None]

    def widened(self, state: dict[Register, Held], one: Statement) -> None:
        """A LEA whose high half takes RZ or a sign for the upper half of its index: that index had 32 bits."""
        match = REGISTER.match(one.targets[0])
        plain = [text for text in one.sources if not PREDICATE.match(text.lstrip("!"))]
        if match is None or len(plain) < 4 or plain[2] not in ("RZ", "URZ"):
            return
        low = (match[1], int(match[2]) - 1)
        held, index = state.get(low), REGISTER.match(plain[0])
        source = state.get((index[1], int(index[2]))) if index else None
        if held is None or held.form is None or source is None or source.form is None or source.form.is_constant:
            return
        number = source.form.times(1 << int(plain[3], 16)).total
        if number and held.form.constant and not held.guard:
            form = Form(held.form.terms, held.form.constant - number, held.form.indexed + number)
            state[low] = Held(held.value, held.number, form)

    def source(self, state: dict[Register, Held], condition: str, part: str) -> str:
        """An operand with its registers replaced by the numbers of what they hold."""

        def name(match: re.Match[str]) -> str:
            file, first = match[1], int(match[2])
            wide = ".64" in part or "[" in part
            held = [state.get((file, first + k)) for k in range(2 if wide else 1)]
            return ",".join(
                str(h.under(condition)[1]) if h else f"?{file}{first + k}" for k, h in enumerate(held)
            )

        return REGISTER.sub(name, part.replace(".reuse", ""))


def trace(code: Code, blocks: Blocks, wanted: frozenset[str], branches: bool) -> tuple[list[Seen], Sums]:
    """What is known in front of every instruction with a mnemonic in ``wanted`` and, if ``branches``, of guarded
    branches and exits, in address order; and the atoms of its sums."""
    tracer = _Tracer(code, blocks)
    places: set[int] = set()

    def asked(index: int, one: Statement) -> int:
        skips = branches and one.guard_register is not None and one.mnemonic in ("BRA", "EXIT")
        if one.mnemonic not in wanted and not skips:
            return 0
        places.add(index)
        bits = bit(one.guard_register) if one.guard_register else 0
        # Of an access the address only, which stands in brackets; it may be a pair.
        for group in _BRACKETS.findall("" if skips else one.operands):
            for file, number in REGISTER.findall(group):
                bits |= bit((file, int(number))) | bit((file, int(number) + 1))
        return bits or bit(("R", 255))

    tracer.chosen = needed(tracer.statements, blocks, asked)
    chosen = frozenset(places)
    seen: list[Seen] = []
    # What the ends of loops leave must be known at their heads: a first walk, up to the last of them, finds it.
    ends = [b for block, before in enumerate(blocks.before) for b in before if b >= block]
    for block in range(max(ends, default=-1) + 1):
        tracer.walk(block, chosen, None)
    tracer.round = 1
    for block in range(len(blocks.ranges)):
        tracer.walk(block, chosen, seen)
    return seen, tracer.sums


def _offset(constant: re.Match[str]) -> int:
    return int(constant[1], 16) if constant[1] else 0


def _result(state: dict[Register, Held], condition: str, one: Statement) -> Value:
    mnemonic, sources = one.mnemonic, one.sources
    read = [_source(state, condition, part) for part in sources]
    if mnemonic in _LOADS:
        return Value(loaded=True) if mnemonic in _GLOBAL_LOADS else Value(specials=frozenset({"memory"}))
    if mnemonic == "P2R":  # the whole predicate file in one register
        out = Value(specials=frozenset({KEPT_PREDICATES}))
        for (file, _), held in state.items():
            out = out | held.value if file == "P" else out
        return out
    real = [
        value for value, part in zip(read, sources, strict=True) if not PREDICATE.match(part.lstrip("!"))
    ]
    out = NOTHING
    if mnemonic in _PRODUCTS and "MOV" not in one.modifiers and len(real) >= 2:
        first, second = real[0], real[1]
        pairs = {(c, second.per_thread) for c in first.constants} | {
            (c, first.per_thread) for c in second.constants
        }
        out = first.multiplied() | second.multiplied() | Value(products=frozenset(pairs))
        for value in real[2:]:
            out = out | value
        return out
    if mnemonic in _SHIFTED and real:
        # LEA.HI takes the upper half of its first operand's pair as a third one: all but the addend are shifted.
        for position, value in enumerate(real):
            out = out | (value if position == 1 else value.multiplied())
        return out
    for value in real:
        out = out | (value.multiplied() if mnemonic in _SHIFTS else value)
    if mnemonic in ("ISETP", "UISETP") or mnemonic in ("PLOP3", "UPLOP3"):
        for value in read:
            out = out | value
    return out


def _source(state: dict[Register, Held], condition: str, part: str) -> Value:
    """Origins of one operand."""
    value, registers = _mentioned(part)
    for register in registers:
        held = state.get(register)
        value = value | held.under(condition)[0] if held else value
    return value


@lru_cache(maxsize=1 << 14)
def _mentioned(part: str) -> tuple[Value, tuple[Register, ...]]:
    """Constants and special registers of an operand, and the registers that it reads."""
    offsets = [_offset(match) for match in _CONSTANT.finditer(part)]
    registers = [
        (file, number)
        for file, first in REGISTER.findall(part)
        for number in range(int(first), int(first) + (2 if ".64" in part else 1))
    ]
    return Value(base=frozenset(offsets), specials=frozenset(_SPECIAL.findall(part))), tuple(registers)
