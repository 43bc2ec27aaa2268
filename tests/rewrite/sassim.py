"""A small interpreter of inserted SASS: one warp, 32 lanes, a byte-addressed memory.

It knows only what the tracer's snippets use, and knows it from the instruction set, not from the snippets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Lanes = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
M32 = np.uint64(0xFFFFFFFF)


@dataclass
class Machine:
    """What the warps share: constant banks, memory at ``base``, and clocks that move with every read."""

    banks: dict[int, bytes]
    base: int
    memory: bytearray
    cycles: int = 5_000_000_000
    ns: int = 77 * 2**33
    reads: list[tuple[str, int]] = field(default_factory=list)

    def clock(self, name: str) -> int:
        self.cycles += 7
        self.ns += 5
        value = self.cycles if name == "SR_CLOCKLO" else self.ns // 32 * 32
        self.reads.append((name, value))
        return value


class Warp:
    """Registers of one warp. ``special`` gives S2R values, scalar or one per lane."""

    def __init__(self, machine: Machine, special: dict[str, object], exists: Lanes) -> None:
        self.machine = machine
        self.special = special
        self.exists = exists
        self.r: dict[int, Words] = {}
        self.ur: dict[int, int] = {}
        self.p: dict[int, Lanes] = {}
        self.up: dict[int, bool] = {}
        self.elected: list[int] = []
        self.local: dict[tuple[int, int], int] = {}

    def run(self, texts: tuple[str, ...], active: Lanes) -> str | None:
        """Execute lines; "original" when a branch leaves for the untouched copy."""
        for text in texts:
            guard = re.match(r"@(!?)P(\d+|T)\s+", text)
            mask = active.copy()
            if guard:
                value = self._predicate(("!" if guard[1] else "") + "P" + guard[2])
                mask &= value
                text = text[guard.end() :]
            opcode, _, rest = text.strip().partition(" ")
            operands = [item.strip() for item in rest.split(",") if item.strip()]
            if opcode == "BRA":
                assert (mask == active).all() or not mask.any(), (
                    "the prologue's branches are taken by whole warps"
                )
                if mask.any():
                    return "original"
                continue
            getattr(self, "_" + opcode.split(".")[0])(opcode.split(".")[1:], operands, mask)
        return None

    # operands

    def _predicate(self, text: str) -> Lanes:
        negated, name = text.startswith("!"), text.lstrip("!")
        value = np.ones(32, bool) if name == "PT" else self.p[int(name[1:])]
        return ~value if negated else value

    def _get(self, text: str) -> Words:
        negative = text.startswith("-")
        name = text.lstrip("-")
        if name in ("RZ", "URZ"):
            value = np.zeros(32, np.uint64)
        elif name.startswith("UR"):
            value = np.full(32, self.ur[int(name[2:])], np.uint64)
        elif name.startswith("R"):
            value = self._read(int(name[1:]))
        else:
            value = np.full(32, int(name, 0) & 0xFFFFFFFF, np.uint64)
        return (np.uint64(1 << 32) - value) & M32 if negative else value

    def _set(self, register: int, value: Words, mask: Lanes) -> None:
        self.r[register] = np.where(mask, value & M32, self._read(register))

    def _read(self, register: int) -> Words:
        # A register nobody wrote holds garbage: whoever relies on it will be seen.
        return self.r.get(register, np.full(32, 0xDEAD0000 + register, np.uint64))

    def _set_pair(self, register: int, value: Words, mask: Lanes) -> None:
        assert register % 2 == 0
        self._set(register, value, mask)
        self._set(register + 1, value >> np.uint64(32), mask)

    def _pair(self, register: int) -> Words:
        assert register % 2 == 0
        return self.r[register] | self.r[register + 1] << np.uint64(32)

    def _constant(self, text: str, size: int) -> int:
        match = re.fullmatch(r"c\[0x(\d)\]\[(RZ|0x[0-9a-f]+)\]", text)
        assert match, text
        offset = 0 if match[2] == "RZ" else int(match[2], 16)
        assert offset % size == 0
        return int.from_bytes(self.machine.banks[int(match[1])][offset : offset + size], "little")

    def _address(self, text: str) -> Words:
        offset = re.fullmatch(r"\[R(\d+)\.U32\+UR(\d+)(?:\+(0x[0-9a-f]+))?\]", text)
        if offset:
            register = int(offset[2])
            assert register % 2 == 0
            base = self.ur[register] | self.ur[register + 1] << 32
            return self._read(int(offset[1])) + np.uint64(base + int(offset[3] or "0", 16))
        match = re.fullmatch(r"desc\[UR(\d+)\]\[R(\d+)\.64(?:\+(0x[0-9a-f]+))?\]", text)
        assert match, text
        assert self.ur[int(match[1])] == 0xDE5C and self.ur[int(match[1]) + 1] == 0xDE5D
        return self._pair(int(match[2])) + np.uint64(int(match[3] or "0", 16))

    # instructions

    def _LDC(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        register, wide = int(operands[0][1:]), modifiers == ["64"]
        value = np.full(32, self._constant(operands[1], 8 if wide else 4), np.uint64)
        (self._set_pair if wide else self._set)(register, value, mask)

    def _ULDC(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers == ["64"]
        value, register = self._constant(operands[1], 8), int(operands[0][2:])
        assert register % 2 == 0
        self.ur[register], self.ur[register + 1] = value & 0xFFFFFFFF, value >> 32

    def _S2R(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        value = np.zeros(32, np.uint64) + np.asarray(self.special[operands[1]], np.uint64)
        self._set(int(operands[0][1:]), value, mask)

    def _CS2R(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        value = np.full(32, self.machine.clock(operands[1]), np.uint64)
        register = int(operands[0][1:])
        (self._set if modifiers == ["32"] else self._set_pair)(register, value, mask)

    def _LOP3(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        a, b, c = (self._get(text) for text in operands[1:4])
        table, out = int(operands[4], 16), np.zeros(32, np.uint64)
        for row in range(8):
            if table >> row & 1:
                term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                out |= term & M32
        self._set(int(operands[0][1:]), out, mask)

    def _IADD3(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        a, b, c = (self._get(text) for text in operands[1:4])
        self._set(int(operands[0][1:]), a + b + c, mask)

    def _IMAD(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        register = int(operands[0][1:])
        if modifiers == ["WIDE", "U32"]:
            value = self._get(operands[1]) * self._get(operands[2]) + self._pair(int(operands[3][1:]))
            self._set_pair(register, value, mask)
            return
        assert not modifiers
        self._set(register, self._get(operands[1]) * self._get(operands[2]) + self._get(operands[3]), mask)

    def _MOV(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        self._set(int(operands[0][1:]), self._get(operands[1]), mask)

    def _SHF(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        low, amount, high = (self._get(text) for text in operands[1:4])
        if modifiers == ["R", "U32", "HI"]:
            value = high >> amount
        else:
            assert modifiers == ["R", "W", "U32"]
            value = (low | high << np.uint64(32)) >> (amount & np.uint64(31))
        self._set(int(operands[0][1:]), value, mask)

    def _VIMNMX(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers == ["U32"] and operands[3] == "PT"
        self._set(int(operands[0][1:]), np.minimum(self._get(operands[1]), self._get(operands[2])), mask)

    def _ISETP(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        compare, kind, combine = modifiers
        assert kind == "U32" and operands[1] == "PT"
        a, b = self._get(operands[2]), self._get(operands[3])
        value = {"EQ": a == b, "NE": a != b, "GE": a >= b}[compare]
        other = self._predicate(operands[4])
        self._set_predicate(operands[0], value & other if combine == "AND" else value | other, mask)

    def _set_predicate(self, name: str, value: Lanes, mask: Lanes) -> None:
        old = self.p.get(int(name[1:]), np.arange(32) % 2 == 0)
        self.p[int(name[1:])] = np.where(mask, value, old)

    def _PLOP3(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers == ["LUT"] and operands[1:4] == ["PT"] * 3 and operands[5:] == ["0x80", "0x0"]
        negated, name = operands[4].startswith("!"), operands[4].lstrip("!")
        value = (name == "UPT" or self.up[int(name[2:])]) != negated
        self._set_predicate(operands[0], np.full(32, value), mask)

    def _VOTE(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers == ["ANY"] and operands[1] == "PT"
        bits = np.flatnonzero(mask & self._predicate(operands[2]))
        self._set(int(operands[0][1:]), np.full(32, sum(1 << int(b) for b in bits), np.uint64), mask)

    def _ELECT(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert operands[1:] == ["URZ", "PT"]
        # Which active lane is elected is not specified: take the highest, so that nothing relies on the lowest.
        chosen = int(np.flatnonzero(mask)[-1])
        self.elected.append(chosen)
        self._set_predicate(operands[0], np.arange(32) == chosen, mask)

    def _R2UR(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        values = np.unique(self._get(operands[1])[mask])
        assert len(values) == 1
        self.ur[int(operands[0][2:])] = int(values[0])

    def _NOP(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        pass

    def _STG(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers[:2] == ["E", "EF"]
        size = int(modifiers[2]) // 8
        addresses, register = self._address(operands[0]), int(operands[1][1:])
        assert register % (size // 4) == 0
        for lane in np.flatnonzero(mask).tolist():
            place = int(addresses[lane]) - self.machine.base
            assert place % size == 0 and 0 <= place <= len(self.machine.memory) - size
            words = [int(self._read(register + k)[lane]) for k in range(size // 4)]
            data = b"".join(word.to_bytes(4, "little") for word in words)
            self.machine.memory[place : place + size] = data

    def _local(self, text: str) -> list[int]:
        match = re.fullmatch(r"\[R(\d+)\+-(0x[0-9a-f]+)\]", text)
        assert match, text
        places: list[int] = (self._read(int(match[1])) - np.uint64(int(match[2], 16)) & M32).tolist()
        return places

    def _STL(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert not modifiers
        places, value = self._local(operands[0]), self._get(operands[1])
        for lane in np.flatnonzero(mask).tolist():
            self.local[lane, places[lane]] = int(value[lane])

    def _LDL(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert not modifiers
        places, value = self._local(operands[1]), np.zeros(32, np.uint64)
        for lane in np.flatnonzero(mask).tolist():
            value[lane] = self.local[lane, places[lane]]
        self._set(int(operands[0][1:]), value, mask)

    def _LDG(self, modifiers: list[str], operands: list[str], mask: Lanes) -> None:
        assert modifiers == ["E"]
        addresses, value = self._address(operands[1]), np.zeros(32, np.uint64)
        for lane in np.flatnonzero(mask).tolist():
            place = int(addresses[lane]) - self.machine.base
            assert place % 4 == 0 and 0 <= place <= len(self.machine.memory) - 4
            value[lane] = int.from_bytes(self.machine.memory[place : place + 4], "little")
        self._set(int(operands[0][1:]), value, mask)
