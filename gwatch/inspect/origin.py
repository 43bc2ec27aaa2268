"""Where the registers of a kernel's addresses and predicates come from: parameters, thread and block numbers,
loaded values, and what was multiplied with what.

A forward pass over the basic blocks keeps, per register, a :class:`Value`; at joins values are united and one
more pass carries them round loops. It reads instruction text, so it works for every architecture. The result
explains; nothing is rewritten by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gwatch.inspect.loops import Blocks
from gwatch.sass.code import Code, split_text

_REGISTER = re.compile(r"\b(U?R|U?P)([0-9]+)\b")
_CONSTANT = re.compile(r"c\[0x0\]\s?\[(?:UR[0-9]+\+)?(0x[0-9a-f]+)\]")
_SPECIAL = re.compile(r"\bSR_[A-Z0-9_.]+")
_SPLIT = re.compile(r",\s*(?![^\[]*\])")
_PREDICATE = re.compile(r"U?P(?:[0-9]+|T)$")
_LOADS = frozenset({"LDG", "LD", "LDS", "LDL", "LDSM", "ATOM", "ATOMG", "ATOMS", "TEX", "TLD", "SULD"})
_GLOBAL_LOADS = frozenset({"LDG", "LD", "ATOM", "ATOMG"})
_SILENT = frozenset(
    [
        "STG",
        "STS",
        "STL",
        "ST",
        "STSM",
        "RED",
        "REDG",
        "REDS",
        "LDGSTS",
        "BRA",
        "EXIT",
        "BSSY",
        "BSYNC",
        "BAR",
        "RET",
        "NOP",
        "CCTL",
        "MEMBAR",
        "ERRBAR",
        "DEPBAR",
        "LDGDEPBAR",
        "WARPSYNC",
        "YIELD",
        "SYNCS",
        "UTMALDG",
        "UTMASTG",
        "UBLKCP",
        "JMP",
        "BRX",
        "KILL",
        "BPT",
        "NANOSLEEP",
        "CGAERRBAR",
        "FENCE",
        "USETMAXREG",
    ]
)
_CONSTANT_LOADS = frozenset({"LDC", "ULDC", "LDCU"})
_PRODUCTS = frozenset({"IMAD", "UIMAD", "IMUL", "UIMUL", "XMAD", "IDP"})
_SHIFTED = frozenset({"LEA", "ULEA", "UCLEA"})
_SHIFTS = frozenset({"SHF", "USHF", "SHL", "SHR"})
_COMPARES = frozenset(
    {"ISETP", "UISETP", "FSETP", "DSETP", "PLOP3", "UPLOP3", "PSETP", "VOTE", "HSETP2", "R2P"}
)


@dataclass(frozen=True, slots=True)
class Value:
    """Origins of a value. ``base``: byte offsets in constant bank 0 that were only added; ``scaled``: those that
    were multiplied or shifted; ``specials``: special registers; ``products``: (bank offset, whether the other
    factor varies from thread to thread); ``loaded``: it depends on a value read from global memory."""

    base: frozenset[int] = frozenset()
    scaled: frozenset[int] = frozenset()
    specials: frozenset[str] = frozenset()
    products: frozenset[tuple[int, bool]] = frozenset()
    loaded: bool = False

    def __or__(self, other: Value) -> Value:
        if self == other or other == NOTHING:
            return self
        return Value(
            self.base | other.base,
            self.scaled | other.scaled,
            self.specials | other.specials,
            self.products | other.products,
            self.loaded or other.loaded,
        )

    @property
    def constants(self) -> frozenset[int]:
        """All bank offsets, however used."""
        return self.base | self.scaled

    @property
    def per_thread(self) -> bool:
        """Whether it varies between the threads of a block."""
        return self.loaded or any(
            name.startswith(("SR_TID", "SR_LANE", "SR_VIRTID")) for name in self.specials
        )

    def multiplied(self) -> Value:
        """The same origins after a multiplication or shift."""
        return Value(frozenset(), self.constants, self.specials, self.products, self.loaded)


NOTHING = Value()
Register = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """What a register holds: its ``value``'s origins, and a ``number`` that two registers share when the same
    operation on the same inputs made them (value numbering). Under the condition ``guard`` ("" for none) it holds
    ``guarded`` instead."""

    value: Value
    number: int
    guard: str = ""
    guarded: tuple[Value, int] = (Value(), -1)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state in front of one instruction, cut down to the registers it names."""

    index: int
    block: int
    text: str
    values: dict[Register, Value]
    numbers: dict[Register, int]


class _Tracer:
    """Walks the blocks of a section and keeps, per block, what the registers hold at its end."""

    def __init__(self, code: Code, blocks: Blocks) -> None:
        self.texts = code.texts
        self.blocks = blocks
        self.outputs: dict[int, dict[Register, Held]] = {}
        self.numbers: dict[tuple[object, ...], int] = {}

    def number(self, *what: object) -> int:
        """The number of an operation on numbered inputs; equal operations get equal numbers."""
        return self.numbers.setdefault(what, len(self.numbers))

    def joined(self, block: int) -> dict[Register, Held]:
        """Registers at the start of a block: united over the blocks in front of it seen so far."""
        before = [self.outputs[b] for b in self.blocks.before[block] if b in self.outputs]
        if not before:
            return {}
        state = dict(before[0])
        for other in before[1:]:
            for register, held in other.items():
                mine = state.get(register)
                if mine is None:
                    state[register] = held
                elif mine != held:
                    number = (
                        mine.number if mine.number == held.number else self.number("join", block, register)
                    )
                    state[register] = Held(mine.value | held.value, number)
        return state

    def walk(self, block: int, wanted: frozenset[str], seen: list[Seen] | None) -> None:
        """Go through a block; append to ``seen`` what is in front of the wanted instructions."""
        state = self.joined(block)
        for index in range(*self.blocks.ranges[block]):
            guard, opcode, operands = split_text(self.texts[index])
            mnemonic = opcode.split(".")[0]
            condition = self.condition(state, guard)
            if seen is not None and (mnemonic in wanted or (guard and mnemonic in ("BRA", "EXIT"))):
                seen.append(_seen(index, block, self.texts[index], state, condition))
            if mnemonic not in _SILENT:
                self.step(state, index, guard, condition, mnemonic, opcode, operands)
        self.outputs[block] = state

    def condition(self, state: dict[Register, Held], guard: str) -> str:
        """A key for a guard that is equal where the same predicate value is asked for; "" for none."""
        match = _REGISTER.search(guard)
        if match is None:
            return ""
        held = state.get((match[1], int(match[2])))
        return f"{guard}:{held.number if held else -1}"

    def step(
        self,
        state: dict[Register, Held],
        index: int,
        guard: str,
        condition: str,
        mnemonic: str,
        opcode: str,
        operands: str,
    ) -> None:
        """One instruction's effect on the registers."""
        parts = _SPLIT.split(operands) if operands else []
        targets = _targets(mnemonic, parts)
        sources = parts[len(targets) :]
        value = _result(state, condition, mnemonic, opcode, sources)
        constant = _CONSTANT.search(operands) if mnemonic in _CONSTANT_LOADS else None
        inputs: tuple[object, ...] = ("instruction", index)
        if mnemonic not in _LOADS:
            inputs = (opcode, *(self.source(state, condition, part) for part in sources))
        for order, target in enumerate(targets):
            match = _REGISTER.match(target)
            if match is None:
                continue
            file, first = match[1], int(match[2])
            for place in range(_width(mnemonic, opcode) if file in ("R", "UR") else 1):
                register = (file, first + place)
                part = value
                if constant is not None:  # each register of a wide load holds its own part of the bank
                    part = Value(base=frozenset({int(constant[1], 16) + 4 * place}))
                number = self.number(*inputs, order, place)
                before = state.get(register)
                if not guard:
                    state[register] = Held(part, number)
                else:
                    old = before.number if before else -1
                    whole = part | before.value if before else part
                    state[register] = Held(
                        whole, self.number("if", condition, number, old), condition, (part, number)
                    )

    def source(self, state: dict[Register, Held], condition: str, part: str) -> str:
        """An operand with its registers replaced by the numbers of what they hold."""

        def name(match: re.Match[str]) -> str:
            file, first = match[1], int(match[2])
            wide = ".64" in part or "[" in part
            held = [state.get((file, first + k)) for k in range(2 if wide else 1)]
            return ",".join(
                str(_under(h, condition)[1]) if h else f"?{file}{first + k}" for k, h in enumerate(held)
            )

        return _REGISTER.sub(name, part.replace(".reuse", ""))


def trace(code: Code, blocks: Blocks, wanted: frozenset[str]) -> list[Seen]:
    """What is known in front of every instruction with a mnemonic in ``wanted``, and of guarded branches and exits,
    in address order."""
    tracer = _Tracer(code, blocks)
    seen: list[Seen] = []
    for found in (None, seen):
        for block in range(len(blocks.ranges)):
            tracer.walk(block, wanted, found)
    return seen


def _under(held: Held, condition: str) -> tuple[Value, int]:
    """What a register holds for an instruction that runs under ``condition``."""
    return held.guarded if condition and held.guard == condition else (held.value, held.number)


def _seen(index: int, block: int, text: str, state: dict[Register, Held], condition: str) -> Seen:
    values: dict[Register, Value] = {}
    numbers: dict[Register, int] = {}
    for file, first in _REGISTER.findall(text):
        for register in ((file, int(first)), (file, int(first) + 1)):
            held = state.get(register)
            values[register], numbers[register] = _under(held, condition) if held else (NOTHING, -1)
    return Seen(index, block, text, values, numbers)


def _targets(mnemonic: str, parts: list[str]) -> list[str]:
    """The operands that are written: the first one, and the predicates directly behind it."""
    if mnemonic in _COMPARES:
        return [part for part in parts[:2] if _PREDICATE.match(part)]
    targets = parts[:1]
    while len(targets) < min(3, len(parts)) and _PREDICATE.match(parts[len(targets)]):
        targets.append(parts[len(targets)])
    return targets


def _width(mnemonic: str, opcode: str) -> int:
    words = opcode.split(".")
    if "128" in words:
        return 4
    if "64" in words or "WIDE" in words or mnemonic in ("DADD", "DMUL", "DFMA"):
        return 2
    if mnemonic in ("CS2R", "CS2UR"):
        return 1 if "32" in words else 2
    return 1


def _result(
    state: dict[Register, Held], condition: str, mnemonic: str, opcode: str, sources: list[str]
) -> Value:
    read = [_source(state, condition, part) for part in sources]
    if mnemonic in _LOADS:
        return Value(loaded=True) if mnemonic in _GLOBAL_LOADS else Value(specials=frozenset({"memory"}))
    if mnemonic == "P2R":  # the whole predicate file in one register
        out = NOTHING
        for (file, _), held in state.items():
            out = out | held.value if file == "P" else out
        return out
    real = [
        value for value, part in zip(read, sources, strict=True) if not _PREDICATE.match(part.lstrip("!"))
    ]
    out = NOTHING
    if mnemonic in _PRODUCTS and "MOV" not in opcode.split(".") and len(real) >= 2:
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
    value = NOTHING
    for match in _CONSTANT.finditer(part):
        value = value | Value(base=frozenset({int(match[1], 16)}))
    for file, first in _REGISTER.findall(part):
        for number in range(int(first), int(first) + (2 if ".64" in part else 1)):
            held = state.get((file, number))
            value = value | _under(held, condition)[0] if held else value
    for name in _SPECIAL.findall(part):
        value = value | Value(specials=frozenset({name}))
    return value
