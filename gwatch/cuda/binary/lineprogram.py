"""DWARF line-number programs: decode to rows, encode rows, with CUDA's inlining extension.

ptxas marks inlined code by the extended opcode 0x90: two ULEB numbers follow, *context* (the number, from 1,
of the row of the same sequence that holds the call site; 0 = not inlined) and the offset of the callee's name
in ``.debug_str``. Both stay in force until the next 0x90. (Observed; ``nvdisasm -gi`` prints the same
chains.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gwatch.cuda.binary.dwarf import LineHeader
from gwatch.errors import CubinError, UnsupportedError

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN, _NEGATE, _BLOCK, _CONST_PC, _FIXED_PC = range(
    1, 10
)
_PROLOGUE_END, _EPILOGUE_BEGIN, _SET_ISA = 10, 11, 12
_END_SEQUENCE, _SET_ADDRESS, _DEFINE_FILE, _DISCRIMINATOR, _INLINED = 1, 2, 3, 4, 0x90
_OPERANDS = {_COPY: 0, _ADVANCE_PC: 1, _ADVANCE_LINE: 1, _SET_FILE: 1, _SET_COLUMN: 1, _NEGATE: 0, _BLOCK: 0,
             _CONST_PC: 0, _FIXED_PC: 1, _PROLOGUE_END: 0, _EPILOGUE_BEGIN: 0, _SET_ISA: 1}  # fmt: skip


@dataclass(slots=True)
class Row:
    """One row of the line matrix. ``address`` is a byte offset from the sequence's start address.

    ``flags``: 1 basic block, 2 prologue end, 4 epilogue begin. ``context``/``function`` see the module's
    text.
    """

    address: int
    file: int
    line: int
    column: int
    is_stmt: bool
    flags: int = 0
    isa: int = 0
    discriminator: int = 0
    context: int = 0
    function: int = 0
    end: bool = False


@dataclass(slots=True)
class Sequence:
    """A run of rows with one start address.

    ``start``/``stop`` are byte positions of its opcodes in the section; ``address_at`` is the position of the
    8-byte operand of its set-address opcode (-1: none), to which a relocation applies; ``address`` is that
    operand. ``regular`` is False when it uses something the encoder does not reproduce (``why`` says what).
    """

    start: int
    stop: int
    address_at: int
    address: int
    rows: list[Row]
    regular: bool = True
    why: str = ""


class _Reader:
    __slots__ = ("at", "data", "end", "where")

    def __init__(self, data: bytes, at: int, end: int, where: str) -> None:
        self.data, self.at, self.end, self.where = data, at, end, where

    def fail(self) -> CubinError:
        return CubinError("dwarf-line", f"{self.where}: the line program runs past its end at {self.at:#x}")

    def u8(self) -> int:
        if self.at >= self.end:
            raise self.fail()
        self.at += 1
        return self.data[self.at - 1]

    def fixed(self, size: int) -> int:
        if self.at + size > self.end:
            raise self.fail()
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise CubinError("dwarf-line", f"{self.where}: an over-long number at {self.at:#x}")

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if self.data[self.at - 1] & 0x40 else value


def decode(data: bytes, header: LineHeader, where: str) -> list[Sequence]:
    """All sequences of one program. Raises CubinError [dwarf-line] on damage."""
    reader = _Reader(data, header.program, header.end, where)
    sequences = []
    while reader.at < header.end:
        sequence = _sequence(reader, header)
        if sequence.rows or sequence.address_at >= 0:
            sequences.append(sequence)
    return sequences


def _sequence(reader: _Reader, header: LineHeader) -> Sequence:
    found = Sequence(reader.at, reader.at, -1, 0, [])
    now = Row(0, 1, 1, 0, header.default_is_stmt)
    minimum, line_base, line_range, base = (
        header.min_instruction_length, header.line_base, header.line_range, header.opcode_base,
    )  # fmt: skip

    def emit(end: bool = False) -> None:
        found.rows.append(Row(now.address, now.file, now.line, now.column, now.is_stmt, now.flags, now.isa,
                              now.discriminator, now.context, now.function, end))  # fmt: skip
        now.flags = now.discriminator = 0

    def irregular(why: str) -> None:
        found.regular, found.why = False, found.why or why

    while reader.at < header.end:
        code = reader.u8()
        if code >= base:
            step = code - base
            now.address += step // line_range * minimum
            now.line += line_base + step % line_range
            emit()
        elif code == 0:
            size = reader.uleb()
            start = reader.at
            if size == 0 or start + size > header.end:
                raise reader.fail()
            kind = reader.u8()
            if kind == _END_SEQUENCE:
                emit(end=True)
                found.stop = reader.at = start + size
                return found
            if kind == _SET_ADDRESS:
                if found.address_at >= 0 or found.rows:
                    irregular("more than one start address")
                elif size != 9:
                    irregular(f"a start address of {size - 1} bytes")
                found.address_at = reader.at
                found.address, now.address = reader.fixed(size - 1), 0
            elif kind == _DISCRIMINATOR:
                now.discriminator = reader.uleb()
            elif kind == _INLINED:
                now.context, now.function = reader.uleb(), reader.uleb()
            else:
                irregular(f"extended opcode {kind:#x}")
            reader.at = start + size
        elif header.opcode_lengths[code - 1] != _OPERANDS.get(code, -1):
            irregular(f"standard opcode {code}")
            for _ in range(header.opcode_lengths[code - 1]):
                reader.uleb()
        else:
            _standard(reader, header, code, now, emit)
    found.stop = reader.at
    irregular("no end")
    return found


def _standard(reader: _Reader, header: LineHeader, code: int, now: Row, emit: Callable[[], None]) -> None:
    if code == _COPY:
        emit()
    elif code == _ADVANCE_PC:
        now.address += reader.uleb() * header.min_instruction_length
    elif code == _ADVANCE_LINE:
        now.line += reader.sleb()
    elif code == _SET_FILE:
        now.file = reader.uleb()
    elif code == _SET_COLUMN:
        now.column = reader.uleb()
    elif code == _NEGATE:
        now.is_stmt = not now.is_stmt
    elif code == _CONST_PC:
        now.address += (255 - header.opcode_base) // header.line_range * header.min_instruction_length
    elif code == _FIXED_PC:
        now.address += reader.fixed(2)
    elif code == _SET_ISA:
        now.isa = reader.uleb()
    else:
        now.flags |= {_BLOCK: 1, _PROLOGUE_END: 2, _EPILOGUE_BEGIN: 4}[code]


def _uleb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sleb(value: int) -> bytes:
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def _extended(kind: int, operands: bytes) -> bytes:
    return b"\0" + _uleb(len(operands) + 1) + bytes([kind]) + operands


def encode(rows: list[Row], address: int, header: LineHeader) -> bytes:
    """Opcodes of a sequence: a set-address opcode (its operand at byte 3) and the rows.

    Raises UnsupportedError [debug-line] for addresses that run backwards or aren't multiples of the program's
    step.
    """
    out = bytearray(_extended(_SET_ADDRESS, address.to_bytes(8, "little")))
    now = Row(0, 1, 1, 0, header.default_is_stmt)
    for row in rows:
        if row.file != now.file or row is rows[0]:
            out += bytes([_SET_FILE]) + _uleb(row.file)
        if (row.context, row.function) != (now.context, now.function):
            out += _extended(_INLINED, _uleb(row.context) + _uleb(row.function))
        if row.column != now.column:
            out += bytes([_SET_COLUMN]) + _uleb(row.column)
        if row.is_stmt != now.is_stmt:
            out.append(_NEGATE)
        if row.isa != now.isa:
            out += bytes([_SET_ISA]) + _uleb(row.isa)
        if row.discriminator:
            out += _extended(_DISCRIMINATOR, _uleb(row.discriminator))
        for bit, code in ((1, _BLOCK), (2, _PROLOGUE_END), (4, _EPILOGUE_BEGIN)):
            if row.flags & bit:
                out.append(code)
        if (row.flags >> 1 or row.isa) and header.opcode_base <= _SET_ISA:
            raise UnsupportedError(
                "debug-line", "a line row needs an opcode that the program's header doesn't have"
            )
        steps, rest = divmod(row.address - now.address, header.min_instruction_length or 1)
        if rest or steps < 0:
            raise UnsupportedError(
                "debug-line", f"a line row cannot step from {now.address:#x} to {row.address:#x}"
            )
        out += _advance(steps, row.line - now.line, row.end, header)
        now = row
    return bytes(out)


def _advance(steps: int, lines: int, end: bool, header: LineHeader) -> bytes:
    if end:
        out = bytes([_ADVANCE_PC]) + _sleb(steps) if steps else b""
        if lines:
            out += bytes([_ADVANCE_LINE]) + _sleb(lines)
        return out + _extended(_END_SEQUENCE, b"")
    if steps and header.line_base <= lines < header.line_base + header.line_range:
        special = lines - header.line_base + steps * header.line_range + header.opcode_base
        if special <= 255:
            return bytes([special])
    out = bytes([_ADVANCE_LINE]) + _sleb(lines) if lines or not steps else b""
    if steps:
        out += bytes([_ADVANCE_PC]) + _sleb(steps)
    return out + bytes([_COPY])
