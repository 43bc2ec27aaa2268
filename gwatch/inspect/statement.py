"""One instruction's text taken apart: what it writes and reads, and which instructions an address depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gwatch.inspect.loops import Blocks
from gwatch.inspect.values import Register
from gwatch.sass.code import split_text

REGISTER = re.compile(r"\b(U?R|U?P)([0-9]+)\b")
PREDICATE = re.compile(r"U?P(?:[0-9]+|T)$")
_TARGET = re.compile(r"U?R(?:[0-9]+|Z)$")
_SPLIT = re.compile(r",\s*(?![^\[]*\])")
_COMPARES = frozenset(
    {"ISETP", "UISETP", "FSETP", "UFSETP", "DSETP", "PLOP3", "UPLOP3", "PSETP", "UPSETP", "HSETP2"}
)
_SILENT = frozenset(
    [
        "STG", "STS", "STL", "ST", "STSM", "RED", "REDG", "REDS", "LDGSTS", "BRA", "EXIT", "BSSY", "BSYNC", "BAR",
        "RET", "NOP", "CCTL", "MEMBAR", "ERRBAR", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "YIELD", "SYNCS", "UTMALDG",
        "UTMASTG", "UBLKCP", "JMP", "BRX", "KILL", "BPT", "NANOSLEEP", "CGAERRBAR", "FENCE", "USETMAXREG",
    ]
)  # fmt: skip
_FILES = {"R": 0, "UR": 256, "P": 512, "UP": 528}
_ALL_PREDICATES = 0x7F << _FILES["P"]
_WIDE = frozenset({"64", "WIDE"})


@dataclass(frozen=True, slots=True)
class Statement:
    """An instruction: ``targets`` and ``sources`` are its operands' texts; ``written`` the registers of each target;
    ``writes`` and ``reads`` all of them as bits, the guard's among the latter."""

    guard: str
    guard_register: Register | None
    opcode: str
    mnemonic: str
    modifiers: tuple[str, ...]
    operands: str
    targets: tuple[str, ...]
    sources: tuple[str, ...]
    written: tuple[tuple[Register, ...], ...]
    writes: int
    reads: int


@lru_cache(maxsize=1 << 15)
def statement(text: str) -> Statement:
    """``text`` taken apart."""
    guard, opcode, operands = split_text(text)
    mnemonic, *modifiers = opcode.split(".")
    parts = _SPLIT.split(operands) if operands else []
    targets: list[str] = [] if mnemonic in _SILENT else _targets(mnemonic, parts)
    sources = parts[len(targets) :]
    written = []
    writes = 0
    for target in targets:
        match = REGISTER.match(target)
        registers: tuple[Register, ...] = ()
        if match is not None:
            file, first = match[1], int(match[2])
            count = _width(mnemonic, modifiers) if file in ("R", "UR") else 1
            registers = tuple((file, first + place) for place in range(count))
        if target == "PR":  # the whole predicate file
            registers = tuple(("P", number) for number in range(7))
        written.append(registers)
        for register in registers:
            writes |= bit(register)
    match = REGISTER.search(guard)
    guarded = (match[1], int(match[2])) if match is not None else None
    reads = bit(guarded) if guarded else 0
    wide = not _WIDE.isdisjoint(modifiers)
    for part in sources:
        for file, number in REGISTER.findall(part):
            reads |= bit((file, int(number)))
            if wide or ".64" in part or "[" in part:
                reads |= bit((file, int(number) + 1))
    if mnemonic == "P2R":
        reads |= _ALL_PREDICATES
    return Statement(
        guard, guarded, opcode, mnemonic, tuple(modifiers), operands, tuple(targets), tuple(sources), tuple(written),
        writes, reads,
    )  # fmt: skip


def bit(register: Register) -> int:
    """A register as one bit."""
    return 1 << (_FILES[register[0]] + register[1])


def needed(
    statements: Sequence[Statement], blocks: Blocks, asked: Callable[[int, Statement], int]
) -> list[list[int]]:
    """Per block, the instructions that what is asked for depends on. ``asked``: the registers, as bits, that are of
    interest in front of an instruction (0: none, and it is none to stop at)."""
    count = len(blocks.ranges)
    wanted = {index: bits for index, one in enumerate(statements) if (bits := asked(index, one))}
    entries = [0] * count
    chosen: list[list[int]] = [[] for _ in range(count)]
    work = list(range(count))
    waiting = bytearray(b"\1" * count)
    while work:
        block = work.pop()
        waiting[block] = 0
        need = 0
        for after in blocks.after[block]:
            need |= entries[after]
        found = []
        first, last = blocks.ranges[block]
        for index in range(last - 1, first - 1, -1):
            one = statements[index]
            if one.writes & need:
                found.append(index)
                if one.guard_register is None:
                    need &= ~one.writes
                need |= one.reads
            if index in wanted:
                need |= wanted[index]
                if not found or found[-1] != index:
                    found.append(index)
        chosen[block] = found[::-1]
        if need != entries[block]:
            entries[block] = need
            for before in blocks.before[block]:
                if not waiting[before]:
                    waiting[before] = 1
                    work.append(before)
    return chosen


def _targets(mnemonic: str, parts: list[str]) -> list[str]:
    """The operands that are written: the first one, and the predicates directly behind it; where the first one is a
    predicate, the register behind it, too."""
    if mnemonic in _COMPARES:
        return [part for part in parts[:2] if PREDICATE.match(part)]
    if mnemonic == "VOTE":
        return parts[: 1 if PREDICATE.match(parts[0]) else 2]
    targets = parts[:1]
    if len(parts) > 1 and PREDICATE.match(parts[0]) and mnemonic != "FCHK" and _TARGET.match(parts[1]):
        return parts[:2]
    while len(targets) < min(3, len(parts)) and PREDICATE.match(parts[len(targets)]):
        targets.append(parts[len(targets)])
    return targets


def _width(mnemonic: str, modifiers: Sequence[str]) -> int:
    if "128" in modifiers:
        return 4
    if not _WIDE.isdisjoint(modifiers) or mnemonic in ("DADD", "DMUL", "DFMA"):
        return 2
    if mnemonic in ("CS2R", "CS2UR"):
        return 1 if "32" in modifiers else 2
    return 1
