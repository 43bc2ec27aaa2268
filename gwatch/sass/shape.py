"""Instruction text cut into a shape and the values that fill it, without a parser.

A *shape* is the text of an instruction with its register indices, numbers, float immediates and label names
cut out; tens of thousands of lines share a few hundred shapes, so whatever is costly (a parse, an encoding
plan) is done once per shape. Everything else stays in the shape: mnemonic, modifiers (``.U32``, ``.H0_H0``,
``.X8``), special register names, zero and true registers (``RZ``, ``PT``), punctuation and blanks, also odd
ones. The cut is lossless by construction: the two halves of one ``re.split`` are kept whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

HOLE = "\x00"
"""Stands in a shape key where a value was cut out. nvdisasm never prints it; in foreign text it is a value
itself."""

# The pattern starts with a plain character set, so that the engine skips to the next digit or sign on its
# own; what must stand in front is then asked of the characters just passed. A dot in front means a modifier
# (R0.B2, .H0_H0), a word character a name, % a snippet's register.
_FRONT = r"(?<![\w.%?}].)"
_DIGITS = r"[0-9]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?"
_NUMBER = (
    r"[-+0-9\x00](?:"
    r"(?:(?<=[^\w.%?{][RPB][0-9])|(?<=[^\w.%?{]U[RP][0-9])|(?<=[^\w.%?{]SB[0-9])|(?<=[^\w.%?{]gsb[0-9]))[0-9]*(?!\w)"
    rf"|{_FRONT}(?:(?<=0)x[0-9a-fA-F]+|(?<=[0-9]){_DIGITS}"
    rf"|(?<=[-+])(?:0x[0-9a-fA-F]+|[0-9]{_DIGITS}|INF|[QS]NAN(?:\(0x[0-9a-fA-F]+\))?))(?![\w@%])"
    r"|(?<=\x00))"
)
_NAME = r"(?:(?<=`\()|(?<=@hi\()|(?<=@lo\())(?:[^()]|\((?:[^()]|\([^()]*\))*\))+(?=\))"
_split_plain = re.compile(f"({_NUMBER})").split
_split_named = re.compile(f"({_NAME}|{_NUMBER})").split

Value = int | float | str


def split(text: str) -> tuple[str, tuple[str, ...]]:
    """Shape key and values of any text, such that ``join(*split(text)) == text``.

    >>> split("@!P0 LDG.E R4, desc[UR4][R2.64+0x10]")
    ('@!P\\x00 LDG.E R\\x00, desc[UR\\x00][R\\x00.64+\\x00]', ('0', '4', '4', '2', '0x10'))
    """
    parts = _split_named(text) if "(" in text else _split_plain(text)
    return HOLE.join(parts[::2]), tuple(parts[1::2])


def join(key: str, values: Iterable[str]) -> str:
    """The text with this shape and these values; raises ValueError when their numbers differ."""
    pieces = key.split(HOLE)
    filled = tuple(values)
    if len(pieces) != len(filled) + 1:
        raise ValueError(f"shape has {len(pieces) - 1} holes, got {len(filled)} values")
    out = [pieces[0]]
    for value, piece in zip(filled, pieces[1:], strict=True):
        out.append(value)
        out.append(piece)
    return "".join(out)


def parse_value(value: str) -> Value:
    """One cut-out value: int for indices and integers, float for floats, the text itself for names and NaNs.

    A NaN stays text because its payload is not printed. A decimal without a point (``-13154260``) comes back
    as int, although nvdisasm prints whole float immediates that way too: the operand's slot decides, not the
    text.
    """
    head = value.lstrip("+-")
    if "_" in head:  # a name; int() and float() would read 1_000 as a number
        return value
    if head.startswith("0x"):
        try:
            return int(value, 16)
        except ValueError:
            return value
    if head.isascii() and head.isdigit():
        return int(value)
    if head == "INF":
        return -math.inf if value[0] == "-" else math.inf
    if head[:1].isdigit() and value.isascii():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def parse_values(values: Iterable[str]) -> tuple[Value, ...]:
    """``parse_value`` over a whole shape's values."""
    return tuple(parse_value(value) for value in values)
