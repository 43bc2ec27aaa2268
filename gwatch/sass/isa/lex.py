"""Cut one instruction's text into an opcode, a skeleton, attachments and values, without losing a letter.

``LDG.E.128 R4, desc[UR4][R2.64+0x10], !P1`` becomes

* opcode words ``("LDG", "E", "128")``,
* skeleton ``R, desc[U][R+I], P``: the operand text with every value replaced by its kind letter and every
  attachment removed,
* attachments: what stands before (``-``, ``~``, ``!``, ``|``) and after (``.64``, ``|``, ``.H1_H1``) each value and
  after each closing bracket, in reading order,
* values: (kind, text) in reading order.

Kinds: R register, U uniform register, P predicate, Q uniform predicate, B convergence-barrier register, S scoreboard,
I integer in hexadecimal, F decimal number, N any other name (special registers and the like), M a set ``{5,3}``.
``.reuse`` is control-word state: it is taken out and reported as positions among the values. Some matrix products mark
an operand so by a bit of the instruction itself: there it is an attachment (:func:`attach_reuse`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from gwatch.errors import ParseError

DESCRIPTOR, POLICY = "desc[", "policy["
"""What stands before an access's descriptor register, and, where nvdisasm hides most of them (sm_80 to sm_89), what
stands in canonical text before one that it shows: that access has a cache policy of its own, by a bit of the word."""
_GUARD = re.compile(r"@(!?)(U?)P(T|\d+) +")
_TOKEN = re.compile(
    r"(?P<nan>[+-][QS]NAN\(0x[0-9a-f]+\)|[+-](?:INF|QNAN|SNAN) ?|-0\.0(?![0-9]) ?)"
    r"|(?P<hex>-?0x[0-9a-f]+)"
    r"|(?P<set>\{[0-9,]*\})"
    r"|(?P<dec>-?\d+(?:\.\d+)?(?:e[+-]\d+)?(?![A-Za-z_0-9]))"
    r"|(?P<rel>\(\*[+-]0x[0-9a-f]+\*\))"
    r"|(?P<pre>[-~!|]+(?=[A-Za-z_]))"
    r"|(?P<bank>[A-Za-z]+(?=\[))"
    r"|(?P<name>(?:[A-Za-z_]|[0-9][A-Z])[A-Za-z0-9_]*)"
    r"|(?P<close>\])"
    r"|(?P<other>[\[, ]+|\+)")
_POST = re.compile(r"(?:\.[A-Za-z0-9_]+|\|)+")
_REGISTER = re.compile(r"(UR|R|UP|P|B|SB)(\d+|Z|T)$")
_KIND = {"UR": "U", "R": "R", "UP": "Q", "P": "P", "B": "B", "SB": "S"}
_ZERO = {"RZ", "URZ", "PT", "UPT"}


@dataclass(frozen=True, slots=True)
class Cut:
    """One text, cut. ``guard`` is (negated, uniform, index text) or None; ``reuse`` holds value positions."""

    guard: tuple[bool, bool, str] | None
    opcode: tuple[str, ...]
    skeleton: str
    attachments: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    reuse: tuple[int, ...]


def _register_kind(name: str) -> str | None:
    match = _REGISTER.match(name)
    if match is None:
        return None
    if match[2] in ("Z", "T"):
        return _KIND[match[1]] if name in _ZERO else None
    return _KIND[match[1]]


def cut(text: str) -> Cut:
    """Cut ``text``. Raises ParseError ``[sass-syntax]`` naming the column of the first letter that does not fit."""
    text = text.rstrip(" ;")
    guard: tuple[bool, bool, str] | None = None
    start = 0
    match = _GUARD.match(text)
    if match:
        guard = (bool(match[1]), bool(match[2]), match[3])
        start = match.end()
    end = text.find(" ", start)
    opcode = text[start:] if end < 0 else text[start:end]
    if not opcode or not (opcode[0].isalpha() or opcode[0] == "_"):
        raise ParseError("sass-syntax", f"no mnemonic in {text!r}")
    skeleton: list[str] = []
    attachments: list[str] = []
    values: list[tuple[str, str]] = []
    reuse: list[int] = []
    pos = len(text) if end < 0 else end + 1
    size = len(text)
    pending = ""
    while pos < size:
        match = _TOKEN.match(text, pos)
        if match is None:
            raise ParseError("sass-syntax", f"column {pos + 1} of {text!r}: {text[pos]!r} is not understood here")
        kind = match.lastgroup
        piece = match[0]
        pos = match.end()
        if kind == "other":
            skeleton.append(piece)
            continue
        if kind == "pre":
            pending = piece
            continue
        if kind == "bank":
            skeleton.append(piece)
            attachments.append(pending)
            pending = ""
            continue
        post = ""
        tail = _POST.match(text, pos)
        if tail:
            post = tail[0]
            pos = tail.end()
        if kind == "close":
            skeleton.append("]")
            attachments.append(post)
            continue
        if kind == "name":
            letter = _register_kind(piece)
            if letter is None:
                letter = "N"
                piece += post
                post = ""
        else:
            letter = {"nan": "F", "dec": "F", "hex": "I", "rel": "I", "set": "M"}[kind or ""]
        if ".reuse" in post:
            post = post.replace(".reuse", "", 1)
            reuse.append(len(values))
        skeleton.append(letter)
        attachments.append(pending)
        attachments.append(post)
        pending = ""
        values.append((letter, piece))
    return Cut(guard, tuple(opcode.split(".")), "".join(skeleton), tuple(attachments), tuple(values), tuple(reuse))


def join(parts: Cut) -> str:
    """The text that :func:`cut` was given (without trailing blanks and ``;``)."""
    out = []
    if parts.guard:
        negated, uniform, index = parts.guard
        out.append(f"@{'!' if negated else ''}{'U' if uniform else ''}P{index} ")
    out.append(".".join(parts.opcode))
    if parts.skeleton:
        out.append(" ")
        out.append(fill(parts.skeleton, parts.attachments, [v for _, v in parts.values], parts.reuse))
    return "".join(out).rstrip(" ")


_PIECE = re.compile(r"[a-z]+(?=\[)|[A-Z]|\]|[^A-Za-z\]]+")


def pieces(skeleton: str) -> list[str]:
    """The skeleton in reading order: bank names, kind letters, closing brackets, other text."""
    return _PIECE.findall(skeleton)


def fill(skeleton: str, attachments: tuple[str, ...], values: list[str], reuse: tuple[int, ...] = ()) -> str:
    """Operand text from a skeleton, its attachments and value texts."""
    out = []
    at = 0
    index = 0
    for piece in pieces(skeleton):
        first = piece[0]
        if first == "]":
            out.append("]" + attachments[at])
            at += 1
        elif first.isupper():
            post = attachments[at + 1]
            if index in reuse:
                post = _marked(post)
            out.append(attachments[at] + values[index] + post)
            at += 2
            index += 1
        elif first.islower():
            out.append(attachments[at] + piece)
            at += 1
        else:
            out.append(piece)
    return "".join(out)


def _marked(post: str) -> str:
    """``post`` with ``.reuse``, which stands behind the closing bar, else directly behind the register."""
    bar = post.rfind("|") + 1
    return f"{post[:bar]}.reuse{post[bar:]}"


def suffix_places(skeleton: str) -> list[int]:
    """Per value, which of the attachments stands behind it."""
    places = []
    at = 0
    for piece in pieces(skeleton):
        if piece[0].isupper():
            places.append(at + 1)
            at += 2
        elif piece[0] == "]" or piece[0].islower():
            at += 1
    return places


def attach_reuse(parts: Cut, positions: Collection[int]) -> Cut:
    """``parts`` with the ``.reuse`` of the values at ``positions`` taken for the instruction's own attachment."""
    attachments = list(parts.attachments)
    places = suffix_places(parts.skeleton)
    for position in positions:
        attachments[places[position]] = _marked(attachments[places[position]])
    return replace(parts, attachments=tuple(attachments), reuse=tuple(p for p in parts.reuse if p not in positions))
