"""A small PTX interpreter: runs instrumented kernels, so that what they write into the ring can be decoded.

Warps run in lockstep; of lanes at different places those with the lowest one go first, which brings them together.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gwatch.cuda.binary.ptx import PtxModule

_GUARD = re.compile(r"@(!?)([%\w$]+)\s+(.*)", re.DOTALL)
_SPLIT = re.compile(r",\s*(?![^{\[]*[}\]])")
_ADDRESS = re.compile(r"\[([%$\w]+)(?:\+(\d+))?\]")
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "min": min,
}  # fmt: skip
_CLOCKS: dict[str, Callable[[int], int]] = {
    "%clock": lambda t: t & 0xFFFFFFFF, "%clock64": lambda t: t,
    "%globaltimer": lambda t: 8 * t, "%globaltimer_lo": lambda t: 8 * t & 0xFFFFFFFF,
}  # fmt: skip
CONSTANTS = 1 << 40


@cache
def _taken_apart(text: str) -> tuple[str, bool, str, list[str], list[str]]:
    """(guard, negated, name, kinds, operands) of an instruction."""
    guard = _GUARD.match(text)
    opcode, _, rest = (guard[3] if guard else text).partition(" ")
    name, *kinds = opcode.split(".")
    operands = [part.strip() for part in _SPLIT.split(rest)] if rest else []
    return (guard[2] if guard else ""), bool(guard and guard[1]), name, kinds, operands


class Machine:
    """One module, its constants, global memory, and a clock that moves with every warp instruction."""

    def __init__(self, text: str, kernel: str) -> None:
        self.function = PtxModule(text).kernel(kernel)
        self.code: list[str] = []
        self.labels: dict[str, int] = {}
        for statement in self.function.statements:
            if statement.kind == "label":
                self.labels[statement.text.rstrip(": ")] = len(self.code)
            elif statement.kind == "instruction":
                self.code.append(statement.text.rstrip("; "))
        self.symbols: dict[str, int] = {}
        self.memory: dict[int, int] = {}
        at = CONSTANTS
        for name, size, values in re.findall(r"\.const [^;]*?(\w+)\[(\d+)\]\s*(?:=\s*\{([^}]*)\})?;", text):
            self.symbols[name] = at
            self.write(at, bytes(int(v) for v in values.split(",")) if values else bytes(int(size)))
            at += 256
        self.clock = 1 << 20

    def write(self, address: int, data: bytes) -> None:
        for i, byte in enumerate(data):
            self.memory[address + i] = byte

    def read(self, address: int, size: int) -> bytes:
        get = self.memory.get
        return bytes([get(at, 0) for at in range(address, address + size)])

    def launch(self, grid: Sequence[int], block: Sequence[int], parameters: bytes = b"") -> None:
        """Run all CTAs, one warp after another (no barriers)."""
        threads = [(x, y, z) for z in range(block[2]) for y in range(block[1]) for x in range(block[0])]
        for cta in [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]:
            for first in range(0, len(threads), 32):
                _Warp(self, threads[first : first + 32], cta, grid, block, parameters).run()


class _Warp:
    def __init__(
        self, machine: Machine, threads: Any, cta: Any, grid: Any, block: Any, parameters: bytes
    ) -> None:
        self.machine, self.parameters = machine, parameters
        self.registers: list[dict[str, int]] = []
        for lane, thread in enumerate(threads):
            special = {"%smid": 3, "%lanemask_eq": 1 << lane}
            for name, values in (("tid", thread), ("ctaid", cta), ("ntid", block), ("nctaid", grid)):
                special |= {f"%{name}.{axis}": value for axis, value in zip("xyz", values, strict=True)}
            self.registers.append(special)
        self.places = dict.fromkeys(range(len(threads)), 0)

    def run(self) -> None:
        while self.places:
            place = min(self.places.values())
            lanes = [lane for lane, at in self.places.items() if at == place]
            self.machine.clock += 4
            for lane in lanes:
                self._step(lane, place, lanes)

    def _step(self, lane: int, place: int, lanes: list[int]) -> None:
        registers, text = self.registers[lane], self.machine.code[place]
        self.places[lane] = place + 1
        guard, negated, name, kinds, operands = _taken_apart(text)
        if guard and bool(registers[guard]) == negated:
            return
        if name == "bra":
            self.places[lane] = self.machine.labels[operands[0]]
        elif name == "ret":
            del self.places[lane]
        elif name == "activemask":
            registers[operands[0]] = sum(1 << other for other in lanes)
        elif name in ("ld", "st"):
            self._access(registers, name, kinds, operands)
        elif name != "pmevent":
            self._compute(registers, name, kinds, operands)

    def _value(self, registers: dict[str, int], operand: str) -> int:
        known = registers.get(operand)
        if known is not None:
            return known
        machine = self.machine
        if operand in _CLOCKS:
            return _CLOCKS[operand](machine.clock)
        return machine.symbols[operand] if operand in machine.symbols else int(operand.rstrip("U"), 0)

    def _access(self, registers: dict[str, int], name: str, kinds: list[str], operands: list[str]) -> None:
        size = _SIZES[kinds[-1].lstrip("bsuf")]
        match = _ADDRESS.fullmatch(operands[0 if name == "st" else 1])
        assert match is not None, operands
        offset = int(match[2] or 0)
        values = [part.strip() for part in operands[1 if name == "st" else 0].strip("{}").split(",")]
        if kinds[0] == "param":
            at = int(match[1].rsplit("_", 1)[1]) * 8
            registers[values[0]] = int.from_bytes(self.parameters[at : at + size], "little")
            return
        assert kinds[0] in ("global", "const"), kinds
        base = self._value(registers, match[1]) + offset
        assert base % (size * len(values)) == 0, f"misaligned {name} at {base:#x}"
        for i, value in enumerate(values):
            if name == "st":
                data = self._value(registers, value) % (1 << 8 * size)
                self.machine.write(base + i * size, data.to_bytes(size, "little"))
            else:
                registers[value] = int.from_bytes(self.machine.read(base + i * size, size), "little")

    def _compute(self, registers: dict[str, int], name: str, kinds: list[str], operands: list[str]) -> None:
        bits = int(kinds[-1].lstrip("bsuf"))
        target, *sources = operands
        if target.startswith("{"):
            low, high = (part.strip() for part in target.strip("{}").split(","))
            whole = self._value(registers, sources[0])
            registers[low], registers[high] = whole & 0xFFFFFFFF, whole >> 32
            return
        if sources[0].startswith("{"):
            low, high = (self._value(registers, part.strip()) for part in sources[0].strip("{}").split(","))
            registers[target] = low | high << 32
            return
        values = [self._value(registers, source) for source in sources]
        if name == "setp":
            result = int(_COMPARE[kinds[0]](values[0], values[1]))
            if kinds[1] == "and":
                result &= values[2]
        elif name == "mov":
            result = values[0]
        elif name == "neg":
            result = -values[0]
        elif name == "mad":
            result = values[0] * values[1] + values[2]
            bits = 64 if kinds[0] == "wide" else bits
        elif name == "lop3":
            a, b, c, table = values
            result = sum(
                (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32)
            )
        else:
            result = _BINARY[name](values[0], values[1])
        registers[target] = result % (1 << bits)


def parameters(*values: int) -> bytes:
    """Eight bytes each."""
    return b"".join(struct.pack("<Q", value) for value in values)
