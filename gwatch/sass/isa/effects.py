"""What an instruction reads and writes: which registers, how many, in which role."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gwatch.sass.isa import lex
from gwatch.sass.isa.model import Form

FILES = {"R": "R", "U": "UR", "P": "P", "Q": "UP", "B": "B"}
DESCRIPTORS = frozenset((lex.DESCRIPTOR[:-1], lex.POLICY[:-1]))
BRANCHES = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "RET", "EXIT", "BSYNC", "BREAK", "KILL",
                      "RTT", "BPT", "WARPSYNC", "YIELD", "BSSY", "RPCMOV", "LEPC", "ULEPC"})
_CODE_ADDRESSES = frozenset({"BRX", "BRXU", "JMX", "JMXU", "CALL", "RET", "LEPC", "ULEPC"})
PREDICATE_TARGETS = (81, 84)
REGISTER_TARGET = 16


@dataclass(frozen=True, slots=True)
class RegUse:
    """``count`` consecutive registers of ``file`` (R, UR, P, UP, B) from ``first``, in a ``role``.

    Roles: data, address, descriptor, predicate, guard, barrier, implicit (no operand
    names it). Zero registers and PT never appear.
    """

    file: str
    first: int
    count: int
    role: str

    def __str__(self) -> str:
        last = f"..{self.first + self.count - 1}" if self.count > 1 else ""
        return f"{self.file}{self.first}{last}"


@dataclass(frozen=True, slots=True)
class Effects:
    """Reads and writes of one instruction.

    ``complete`` False: the tables cannot say, callers must refuse. ``kind``: fixed (result after a fixed number of
    cycles, no compiler word has a scoreboard), variable (compilers announce the result or the release of the sources
    by a scoreboard), async (runs on after issue; no scoreboard covers its registers), branch (transfers control),
    unknown (no compiler word of this opcode was seen). ``write_scoreboard`` and ``read_scoreboard``: compilers use
    that field with this opcode.
    """

    reads: tuple[RegUse, ...]
    writes: tuple[RegUse, ...]
    complete: bool
    kind: str
    write_scoreboard: bool = False
    read_scoreboard: bool = False


@dataclass(slots=True)
class Position:
    """Where a value stands in its form's text."""

    kind: str
    bank: str
    low_bits: list[int] = field(default_factory=list)


def positions(form: Form) -> list[Position]:
    """Per value: its kind and the bank it is an index of ("[" for plain addresses, "" outside brackets)."""
    out: list[Position] = []
    bank = ""
    open_bank = ""
    for piece in lex.pieces(form.skeleton):
        if piece[0] == "]":
            bank = ""
            open_bank = ""
        elif piece[0].isupper():
            out.append(Position(piece, bank))
        elif piece[0].islower():
            open_bank = piece
        elif "[" in piece:
            bank = open_bank or "["
            open_bank = ""
    for place, value in zip(out, form.values, strict=True):
        place.low_bits = sorted({low for f in value.fields for low, _, _ in f.runs[:1]})
    return out


_PAIRS = {"DADD", "DMUL", "DFMA", "DSETP", "DMNMX"}


def code_address(opcode: Sequence[str], kind: str) -> bool:
    """Whether a register operand of ``kind`` holds an address of code, which is always a pair of registers."""
    return kind in "RU" and (opcode[0] in _CODE_ADDRESSES or (opcode[0] == "RPCMOV" and "64" in opcode))


def guess(opcode: Sequence[str], form: Form, attachments: Sequence[str]) -> list[tuple[int, bool, str, int]]:
    """(value position, write, role, count) by the architecture's habits; checked against nvdisasm's life ranges."""
    width = 4 if "128" in opcode else 2 if "64" in opcode else 1
    memory = opcode[0][:2] in ("LD", "ST", "RE", "AT", "SU") and "[" in form.skeleton
    out = []
    at = 0
    index = 0
    posts: list[str] = []
    for piece in lex.pieces(form.skeleton):
        if piece[0] == "]" or piece[0].islower():
            at += 1
        elif piece[0].isupper():
            posts.append(attachments[at + 1])
            at += 2
            index += 1
    for n, place in enumerate(positions(form)):
        if place.kind not in FILES:
            continue
        low = place.low_bits[0] if place.low_bits else -1
        if place.kind in "PQ":
            out.append((n, low in PREDICATE_TARGETS, "predicate", 1))
            continue
        if place.kind == "B":
            out.append((n, opcode[0] == "BSSY", "barrier", 1))
            continue
        write = low == REGISTER_TARGET and not place.bank
        role = "descriptor" if place.bank in DESCRIPTORS else "address" if place.bank else "data"
        count = 1
        wide = "WIDE" in opcode and (write or low == 64) and place.kind in "RU"
        if code_address(opcode, place.kind) or place.bank in DESCRIPTORS or ".64" in posts[n]:
            count = 2
        elif not place.bank and (memory or opcode[0] in ("LDC", "ULDC", "CS2R", "CS2UR")):
            count = width
            if opcode[0] == "CS2R":
                count = 1 if "32" in opcode else 2
        elif wide or (opcode[0] in _PAIRS and place.kind == "R"):
            count = 2
        out.append((n, write, role, count))
    return out


_WARPGROUP_SHAPE = re.compile(r"64x(\d+)x\d+")
_DESCRIPTOR_REGISTERS = 4
_MATRIX_A_REGISTERS = 4


def warpgroup_counts(opcode: str, form: Form) -> dict[int, tuple[str, int]] | None:
    """Value position -> (role, registers) of a warpgroup matrix product; None for any other opcode.

    Its life ranges can't be learned form by form: groups of up to 128 registers overlap whatever else a probe uses. By
    rule, which is the PTX ISA's layout of wgmma and agrees with nvdisasm's life ranges on every compiler word seen: an
    accumulator of 64 x N elements takes N/2 registers a thread (N/4 for F16), A from registers four, metadata one; the
    shared-memory descriptors of A and B are four uniform registers.
    """
    words = opcode.split(".")
    shape = _WARPGROUP_SHAPE.search(opcode)
    if not words[0].endswith("GMMA") or shape is None:
        return None
    accumulator = int(shape[1]) // (4 if "F16" in words else 2)
    counts: dict[int, tuple[str, int]] = {}
    seen = 0
    first_a = form.skeleton.startswith("R, R, ")
    for n, place in enumerate(positions(form)):
        if place.kind == "R":
            matrix_a = first_a and seen == 1
            spare = seen >= (3 if first_a else 2)
            counts[n] = ("data", _MATRIX_A_REGISTERS if matrix_a else 1 if spare else accumulator)
            seen += 1
        elif place.kind == "U":
            counts[n] = ("address", _DESCRIPTOR_REGISTERS)
        elif place.kind in "PQ":
            counts[n] = ("predicate", 1)
    return counts
