"""``.debug_frame`` of moved code.

Entries: DWARF version 3 call frame information, 32-bit or 64-bit lengths; ptxas writes 64-bit ones. The start
address of an FDE is relocated (the caller moves it with the other relocations); this module moves its length
and the location advances inside. All follow the target map: the rules that hold after instruction i - 1 hold
for code inserted before i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gwatch.errors import CubinError, UnsupportedError

_ADVANCE, _OFFSET, _RESTORE = 1, 2, 3
_OPERANDS: dict[int, str] = {
    0x00: "", 0x05: "uu", 0x06: "u", 0x07: "u", 0x08: "u", 0x09: "uu", 0x0A: "", 0x0B: "", 0x0C: "uu",
    0x0D: "u", 0x0E: "u", 0x0F: "b", 0x10: "ub", 0x11: "us", 0x12: "us", 0x13: "s", 0x14: "uu", 0x15: "us",
    0x16: "ub",
}  # fmt: skip
"""Operands of call-frame opcodes without a location: u ULEB, s SLEB, b block. Others (0x01 to 0x04) are
handled apart."""


@dataclass(frozen=True, slots=True)
class Fde:
    """One frame description. ``start_at`` is the position of its 8-byte start address (its length stands
    behind)."""

    start_at: int
    length: int
    code_align: int
    program: int
    end: int


def _uleb(data: bytes | bytearray, at: int, end: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise CubinError("dwarf-frame", f"{where}: damaged number at {at:#x}")


def read_fdes(data: bytes, where: str) -> list[Fde]:
    """All FDEs of a ``.debug_frame`` section. Raises CubinError [dwarf-frame] on damage."""
    code_align = 0
    fdes = []
    at = 0
    while at < len(data):
        wide = data[at : at + 4] == b"\xff\xff\xff\xff"
        head, size = (12, 8) if wide else (4, 4)
        length = int.from_bytes(data[at + head - size : at + head], "little")
        body, end = at + head, at + head + length
        if end > len(data) or length < size:
            raise CubinError(
                "dwarf-frame", f"{where}: entry at {at:#x} claims {length} of {len(data) - at} bytes"
            )
        cie = int.from_bytes(data[body : body + size], "little")
        if cie == (1 << 8 * size) - 1:
            version = data[body + size : body + size + 1]
            text = data.find(b"\0", body + size + 1, end)
            if version not in (b"\1", b"\3") or text != body + size + 1:
                raise CubinError(
                    "dwarf-frame", f"{where}: entry at {at:#x} has version {version.hex()} or an augmentation"
                )
            code_align, _ = _uleb(data, text + 1, end, where)
        else:
            # The reference to the common entry is wrong in ABI 7 files (off by 16 and more for each entry
            # before); each frame entry follows its common entry directly.
            if not code_align:
                raise CubinError("dwarf-frame", f"{where}: entry at {at:#x} follows no common entry")
            start = body + size
            if start + 16 > end:
                raise CubinError("dwarf-frame", f"{where}: entry at {at:#x} is too short")
            span = int.from_bytes(data[start + 8 : start + 16], "little")
            fdes.append(Fde(start, span, code_align, start + 16, end))
        at = end
    return fdes


def move_fde(data: bytearray, fde: Fde, start: int, target: Callable[[int], int], where: str) -> None:
    """Rewrite length and advances of one FDE in place.

    ``start``: old byte offset of its first instruction; ``target``: old byte offset -> new. Raises
    UnsupportedError [debug-frame] when an advance no longer fits its field, CubinError [dwarf-frame] on
    damage.
    """
    new_start = target(start)
    span = target(start + fde.length) - new_start
    data[fde.start_at + 8 : fde.start_at + 16] = span.to_bytes(8, "little")
    at, old, new = fde.program, start, new_start
    while at < fde.end:
        code = data[at]
        at += 1
        primary = code >> 6
        size = {0x02: 1, 0x03: 2, 0x04: 4}.get(code, 0)
        if primary == _ADVANCE or size:
            steps = code & 0x3F if primary == _ADVANCE else int.from_bytes(data[at : at + size], "little")
            old += steps * fde.code_align
            if old > start + fde.length:
                # ptxas ends some programs with an advance of 2**32 - 16 bytes: no place in the code, so
                # nothing moves.
                return
            moved = target(old)
            fresh, rest = divmod(moved - new, fde.code_align)
            new = moved
            limit = 0x40 if primary == _ADVANCE else 1 << 8 * size
            if rest or not 0 <= fresh < limit or at + size > fde.end:
                raise UnsupportedError(
                    "debug-frame",
                    f"{where}: a frame advance at {at - 1:#x} of {steps} steps cannot become {fresh}",
                )
            if primary == _ADVANCE:
                data[at - 1] = _ADVANCE << 6 | fresh
            else:
                data[at : at + size] = fresh.to_bytes(size, "little")
            at += size
        elif primary == _OFFSET:
            _, at = _uleb(data, at, fde.end, where)
        elif primary == _RESTORE:
            pass
        elif code == 0x01:
            raise UnsupportedError("debug-frame", f"{where}: a frame program sets absolute locations")
        else:
            at = _skip(data, at, fde.end, code, where)


def _skip(data: bytearray, at: int, end: int, code: int, where: str) -> int:
    operands = _OPERANDS.get(code)
    if operands is None:
        raise UnsupportedError("debug-frame", f"{where}: unknown call-frame opcode {code:#x}")
    for kind in operands:
        value, at = _uleb(data, at, end, where)
        if kind == "b":
            at += value
    return at
