"""Operand values: between the bits of a field, a number, and nvdisasm's spelling of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from gwatch.errors import EncodeError

FLOATS = ("f32", "f64h", "f16", "bf16")
_WIDTH = {"f32": 32, "f64h": 32, "f16": 16, "bf16": 16}


class Field(NamedTuple):
    """Where a number sits: ``runs`` of (lowest bit, width, left shift of the value), sign of the whole, inversion.

    ``const`` is XORed in (0 for nearly all fields). ``add`` is added then: the register behind one that another operand
    names; a field of all ones stays what it is, RZ. ``kind`` is the lexer's letter, or one of FLOATS for decimals.
    """

    kind: str
    runs: tuple[tuple[int, int, int], ...]
    signed: bool = False
    const: int = 0
    add: int = 0

    @property
    def mask(self) -> int:
        """The word bits that the field owns."""
        mask = 0
        for low, width, _ in self.runs:
            mask |= (1 << width) - 1 << low
        return mask

    @property
    def top(self) -> int:
        """Width of the number in bits (position above its highest bit)."""
        return max((shift + width for _, width, shift in self.runs), default=0)

    def get(self, word: int) -> int:
        """The number in ``word``."""
        value = 0
        for low, width, shift in self.runs:
            value |= (word >> low & (1 << width) - 1) << shift
        value ^= self.const
        if self.signed and value >> self.top - 1 & 1:
            value -= 1 << self.top
        return value + self.add if self.add and value != self.ones else value

    @property
    def ones(self) -> int:
        """The number with all bits set."""
        return (1 << self.top) - 1

    def put(self, value: int) -> int:
        """The field's bits for ``value``. Raises EncodeError ``[operand-range]`` when it does not fit exactly."""
        raw = value & self.ones if self.signed else value
        raw -= self.add if raw != self.ones else 0
        raw ^= self.const
        bits = 0
        covered = 0
        for low, width, shift in self.runs:
            part = (1 << width) - 1
            bits |= (raw >> shift & part) << low
            covered |= part << shift
        if raw < 0 or raw & ~covered or self.get(bits) != value:
            raise EncodeError("operand-range", f"{value:#x} does not fit", self.range_text())
        return bits

    def range_text(self) -> str:
        """What fits, for messages."""
        step = 1 << min((shift for _, _, shift in self.runs), default=0)
        if self.signed:
            limits = f"{-(1 << self.top - 1):#x} to {(1 << self.top - 1) - step:#x}"
        else:
            limits = f"0x0 to {(1 << self.top) - step:#x}"
        return f"the field holds {limits}" + (f" in steps of {step}" if step > 1 else "")


def float_bits(text: str, kind: str) -> int | None:
    """The field bits of decimal ``text`` as ``kind``, None when the number is not exactly one of that kind.

    A NaN must carry its bits (``-QNAN(0xfff00000)``): many payloads share one name.
    """
    text = text.strip()
    if "NAN" in text:
        bits = nan_bits(text)
        same = bits is not None and not bits >> _WIDTH[kind] and float_text(bits, kind, True) == text
        return bits if same else None
    number = float("inf") if text == "+INF" else float("-inf") if text == "-INF" else float(text)
    try:
        if kind == "f32":
            bits = struct.unpack("<I", struct.pack("<f", number))[0]
            back = struct.unpack("<f", struct.pack("<I", bits))[0]
        elif kind == "f16":
            bits = struct.unpack("<H", struct.pack("<e", number))[0]
            back = struct.unpack("<e", struct.pack("<H", bits))[0]
        elif kind == "bf16":
            whole = struct.unpack("<I", struct.pack("<f", number))[0]
            if whole & 0xFFFF:
                return None
            bits = whole >> 16
            back = struct.unpack("<f", struct.pack("<I", whole))[0]
        else:
            whole = struct.unpack("<Q", struct.pack("<d", number))[0]
            if whole & 0xFFFFFFFF:
                return None
            bits = whole >> 32
            back = number
    except (OverflowError, struct.error):
        return None
    if back != number or math.copysign(1, back) != math.copysign(1, number):
        return None
    return int(bits)


def nan_bits(text: str) -> int | None:
    """The field bits that a NaN's text gives in parentheses, None where it gives none."""
    name, _, bits = text.partition("(0x")
    return int(bits[:-1], 16) if name[1:] in ("QNAN", "SNAN") and bits else None


def float_text(bits: int, kind: str, canonical: bool = False) -> str:
    """nvdisasm's spelling of the number that a field of ``kind`` holds; ``canonical``: a NaN carries its bits."""
    if kind == "f32":
        number = struct.unpack("<f", struct.pack("<I", bits))[0]
        quiet = bits >> 22 & 1
    elif kind == "f16":
        number = struct.unpack("<e", struct.pack("<H", bits))[0]
        quiet = bits >> 9 & 1
    elif kind == "bf16":
        number = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
        quiet = bits >> 6 & 1
    else:
        number = struct.unpack("<d", struct.pack("<Q", bits << 32))[0]
        quiet = bits >> 19 & 1
    sign = "-" if bits >> _WIDTH[kind] - 1 else "+"
    if number != number:
        return f"{sign}{'Q' if quiet else 'S'}NAN" + (f"({bits:#x})" if canonical else " ")
    if math.isinf(number):
        return f"{sign}INF "
    if number == 0 and sign == "-":
        return "-0.0 "
    return f"{number:.20e}" if abs(number) >= 1e9 else f"{number:.20g}"


def set_text(value: int) -> str:
    """A set of scoreboards, highest first."""
    return "{" + ",".join(str(i) for i in range(31, -1, -1) if value >> i & 1) + "}"


def parse_number(letter: str, text: str, zero: dict[str, int]) -> int:
    """The number that ``text`` of kind ``letter`` (not F, not N) stands for; ``zero`` gives RZ, URZ, PT, UPT."""
    if letter == "I":
        return int(text, 16)
    if letter == "M":
        value = 0
        for item in text[1:-1].split(","):
            if item:
                value |= 1 << int(item)
        return value
    if text[-1] in "ZT":
        return zero[letter]
    index = int(text.lstrip("URPBS"))
    if letter in zero and index >= zero[letter]:
        raise EncodeError("register-range", f"register {text} does not exist",
                          f"the last one is {letter_name(letter)}{zero[letter] - 1}")
    return index


def letter_name(letter: str) -> str:
    """Register-file prefix of a kind letter."""
    return {"U": "UR", "Q": "UP", "S": "SB"}.get(letter, letter)


def number_text(letter: str, value: int, zero: dict[str, int], canonical: bool = False) -> str:
    """nvdisasm's spelling of a number of kind ``letter`` (not N); ``canonical``: a NaN carries its bits."""
    if letter == "I":
        return f"{value:#x}"
    if letter in FLOATS:
        return float_text(value, letter, canonical)
    if letter == "M":
        return set_text(value)
    name = letter_name(letter)
    if zero.get(letter) == value:
        return name + ("T" if letter in "PQ" else "Z")
    return f"{name}{value}"


def gather(word: int, bits: Sequence[int]) -> int:
    """The bits of ``word`` at ``bits``, first one lowest."""
    value = 0
    for position, bit in enumerate(bits):
        value |= (word >> bit & 1) << position
    return value
