"""``.nv_debug_info_reg_sass``: where a ``-G`` kernel keeps its PTX registers, by range of code.

Layout, observed in nvcc 13.0 output (no public description): per function a NUL-terminated name and a u32 count, then
that many records: u32 flag (0 or 1), the PTX register's name (NUL-terminated), u32 location (class << 24 | number), u32
begin, u32 end. Begin and end are byte offsets from the function's start.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gwatch.cuda.binary.codemap import CodeMap
from gwatch.errors import UnsupportedError

_RECORD = struct.Struct("<3I")
_COUNT = struct.Struct("<I")
_LONGEST_NAME = 4096


@dataclass(frozen=True, slots=True)
class RegisterRange:
    """PTX register ``name`` lives at ``location`` from byte ``begin`` to byte ``end`` of its function."""

    name: bytes
    location: int
    begin: int
    end: int
    flag: int


def read_ranges(data: bytes) -> list[tuple[bytes, list[RegisterRange]]]:
    """(function name, its ranges) in file order. Raises UnsupportedError [debug-registers] where the layout differs."""
    found: list[tuple[bytes, list[RegisterRange]]] = []
    at = 0
    while at < len(data):
        function, at = _name(data, at)
        (count,) = _COUNT.unpack(_take(data, at, _COUNT.size))
        at += _COUNT.size
        if count > len(data) // _RECORD.size:
            raise _unlike(at)
        ranges = []
        for _ in range(count):
            (flag,) = _COUNT.unpack(_take(data, at, _COUNT.size))
            name, at = _name(data, at + _COUNT.size)
            location, begin, end = _RECORD.unpack(_take(data, at, _RECORD.size))
            at += _RECORD.size
            if begin > end or begin % 16 or end % 16 or flag > 1:
                raise _unlike(at)
            ranges.append(RegisterRange(name, location, begin, end, flag))
        found.append((function, ranges))
    return found


def write_ranges(functions: list[tuple[bytes, list[RegisterRange]]]) -> bytes:
    """The section's bytes; ``write_ranges(read_ranges(data)) == data``."""
    out = bytearray()
    for function, ranges in functions:
        out += function + b"\0" + _COUNT.pack(len(ranges))
        for item in ranges:
            out += (
                _COUNT.pack(item.flag) + item.name + b"\0" + _RECORD.pack(item.location, item.begin, item.end)
            )
    return bytes(out)


def move_ranges(ranges: list[RegisterRange], start: int, code: CodeMap) -> list[RegisterRange]:
    """Ranges of a function at old byte offset ``start`` of the moved section, once per copy of the code.

    A range begins at the instruction itself and ends before what was inserted at its end: inserted code may use a
    register that is dead there, so the range never covers it.
    """
    new_start = code.target_of(start)
    moved = []
    for copy in range(code.copies):
        for item in ranges:
            begin = code.row_of(start + item.begin, copy, "a register range") - new_start
            end = code.target_of(start + item.end, copy, "a register range") - new_start
            moved.append(RegisterRange(item.name, item.location, begin, max(begin, end), item.flag))
    return moved


def _name(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\0", at, at + _LONGEST_NAME)
    if end <= at:
        raise _unlike(at)
    return data[at:end], end + 1


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise _unlike(at)
    return data[at : at + size]


def _unlike(at: int) -> UnsupportedError:
    return UnsupportedError(
        "debug-registers",
        f"the register table of this -G cubin has a layout gwatch does not know (byte {at:#x})",
        "rebuild with -lineinfo instead of -G",
    )
