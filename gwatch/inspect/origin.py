"""Where the registers of a kernel's addresses and predicates come from: parameters, thread and block numbers,
loaded values, and what was multiplied with what.

A forward pass over the basic blocks keeps, per register, a :class:`Value`; at joins values are united and one
more pass carries them round loops. It reads instruction text, so it works for every architecture. The result
explains; nothing is rewritten by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gwatch.inspect.code import Code, split_text
from gwatch.inspect.loops import Blocks

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


@dataclass(slots=True)
class State:
    """Registers at a point: their values, and which instruction (or join, as a negative number) defined each."""

    values: dict[Register, Value] = field(default_factory=dict)
    definitions: dict[Register, int] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.values), dict(self.definitions))

    def value(self, register: Register) -> Value:
        return self.values.get(register, NOTHING)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state in front of one instruction, cut down to the registers it names, in the order written."""

    index: int
    block: int
    text: str
    registers: tuple[Register, ...]
    values: dict[Register, Value]
    definitions: dict[Register, int]


def trace(code: Code, blocks: Blocks, wanted: frozenset[str]) -> list[Seen]:
    """What is known in front of every instruction with a mnemonic in ``wanted``, and of guarded branches and
    exits, in address order."""
    texts = code.texts
    outputs: dict[int, State] = {}
    seen: list[Seen] = []
    for last in (False, True):
        for number, (start, stop) in enumerate(blocks.ranges):
            state = _joined(number, blocks, outputs)
            for index in range(start, stop):
                guard, opcode, operands = split_text(texts[index])
                mnemonic = opcode.split(".")[0]
                if last and (mnemonic in wanted or (guard and mnemonic in ("BRA", "EXIT"))):
                    seen.append(_seen(index, number, texts[index], state))
                if mnemonic not in _SILENT:
                    _step(state, index, guard, mnemonic, opcode, operands)
            outputs[number] = state
    return seen


def _joined(number: int, blocks: Blocks, outputs: dict[int, State]) -> State:
    before = [outputs[b] for b in blocks.before[number] if b in outputs]
    if not before:
        return State()
    if len(before) == 1:
        return before[0].copy()
    state = before[0].copy()
    for other in before[1:]:
        for register, value in other.values.items():
            state.values[register] = state.value(register) | value
            if state.definitions.get(register) != other.definitions.get(register):
                state.definitions[register] = -1 - number
    return state


def _seen(index: int, block: int, text: str, state: State) -> Seen:
    names = [(file, int(number)) for file, number in _REGISTER.findall(text)]
    found = {}
    for name in names:
        for register in (name, (name[0], name[1] + 1)):
            found[register] = state.value(register)
    places = {register: state.definitions.get(register, -1) for register in found}
    return Seen(index, block, text, tuple(names), found, places)


def _step(state: State, index: int, guard: str, mnemonic: str, opcode: str, operands: str) -> None:
    parts = _SPLIT.split(operands) if operands else []
    if mnemonic in _COMPARES:
        targets = [part for part in parts[:2] if _PREDICATE.match(part)]
        sources = parts[len(targets) :]
    else:
        targets = parts[:1]
        while len(parts) > len(targets) and _PREDICATE.match(parts[len(targets)]) and len(targets) < 3:
            targets.append(parts[len(targets)])
        sources = parts[len(targets) :]
    value = _result(state, mnemonic, opcode, sources)
    constant = _CONSTANT.search(operands) if mnemonic in _CONSTANT_LOADS else None
    if guard:
        for name in _REGISTER.findall(guard):
            value = value | Value(specials=state.value((name[0], int(name[1]))).specials)
    for target in targets:
        match = _REGISTER.match(target)
        if match is None:
            continue
        file, first = match[1], int(match[2])
        width = _width(mnemonic, opcode) if file in ("R", "UR") else 1
        for number in range(first, first + width):
            register = (file, number)
            if constant is not None:  # each register of a wide load holds its own part of the bank
                value = Value(base=frozenset({int(constant[1], 16) + 4 * (number - first)}))
            state.values[register] = value | state.value(register) if guard else value
            state.definitions[register] = index


def _width(mnemonic: str, opcode: str) -> int:
    words = opcode.split(".")
    if "128" in words:
        return 4
    if "64" in words or "WIDE" in words or mnemonic in ("DADD", "DMUL", "DFMA"):
        return 2
    if mnemonic in ("CS2R", "CS2UR"):
        return 1 if "32" in words else 2
    return 1


def _result(state: State, mnemonic: str, opcode: str, sources: list[str]) -> Value:
    read = [_source(state, part) for part in sources]
    if mnemonic in _LOADS:
        return Value(loaded=True) if mnemonic in _GLOBAL_LOADS else Value(specials=frozenset({"memory"}))
    if mnemonic == "P2R":  # the whole predicate file in one register
        out = NOTHING
        for (file, _), value in state.values.items():
            out = out | value if file == "P" else out
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


def _source(state: State, part: str) -> Value:
    value = NOTHING
    for match in _CONSTANT.finditer(part):
        value = value | Value(base=frozenset({int(match[1], 16)}))
    for file, number in _REGISTER.findall(part):
        value = value | state.value((file, int(number)))
        if ".64" in part:
            value = value | state.value((file, int(number) + 1))
    for name in _SPECIAL.findall(part):
        value = value | Value(specials=frozenset({name}))
    return value
