"""Which modifiers an opcode can have, over all tables, so that a misspelt rule is refused."""

from __future__ import annotations

import fnmatch
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from gwatch._resources import resource
from gwatch.errors import ToolError
from gwatch.inspect.opcodes import access_of
from gwatch.sass.arch import ARCHES
from gwatch.sass.isa.model import Choice
from gwatch.sass.isa.tree import paths

_KEY_START = '{"key":'
_WIDTHS = frozenset({"U8", "S8", "U16", "S16", "64", "128", "256"})
"""An opcode that accesses memory has one of these. Where bits of a word choose them one by one, compilers set one."""
_Opcode = tuple[Choice, ...]
"""Places of an opcode in the order of its text, the mnemonic first; the bits of the word choose among their labels."""


@lru_cache(maxsize=1)
def _spellings() -> dict[str, list[_Opcode]]:
    """Mnemonic -> the opcodes that have it, under every architecture that has a table, in upper case."""
    found: dict[str, dict[str, _Opcode]] = defaultdict(dict)
    for name in sorted({arch.table for arch in ARCHES.values()}):
        try:
            path = resource("isa", f"{name}.jsonl")
        except ToolError:
            continue  # an architecture without a table
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(_KEY_START):
                    data = json.loads(line)["opcode"]
                    choices = [Choice.from_json(choice) for choice in data]
                    opcode = tuple(Choice([label.upper() for label in c.labels], c.node) for c in choices)
                    for mnemonic in opcode[0].labels:
                        found[mnemonic].setdefault(json.dumps(data), opcode)
    return {mnemonic: list(opcodes.values()) for mnemonic, opcodes in found.items()}


def can_have(mnemonic: str, modifiers: list[str]) -> bool:
    """Whether some opcode that fits ``mnemonic`` can have these modifiers in this order, others between them (patterns
    in upper case)."""
    widths = sum(word in _WIDTHS for word in modifiers)
    return any(
        _reached(opcode[1:], modifiers) == len(modifiers)
        and any(
            _is_chosen(opcode[1:], modifiers, mask, value)
            for mask, value in paths(opcode[0].node, opcode[0].labels.index(name))
        )
        for name in fnmatch.filter(_spellings(), mnemonic)
        if widths < 2 or access_of(name) is None
        for opcode in _spellings()[name]
    )


def _reached(places: Sequence[Choice], wanted: list[str]) -> int:
    """How many of the words the labels have, whether one word's bits can choose them all or not: to be further on is
    never worse, so the furthest way is followed."""
    at = 0
    for choice in places:
        at = max(_passed(label, wanted, at) for label in choice.labels)
    return at


def _is_chosen(places: Sequence[Choice], wanted: list[str], mask: int, value: int, at: int = 0) -> bool:
    """Whether a word whose bits ``mask`` are ``value`` can have the words from ``at`` on."""
    if at == len(wanted):
        return True
    return any(
        _is_chosen(places[place + 1 :], wanted, more, bits, passed)
        for place, choice in enumerate(places)
        for number, label in enumerate(choice.labels)
        if (passed := _passed(label, wanted, at)) > at
        for more, bits in paths(choice.node, number, mask, value)
    )


def _passed(label: str, wanted: list[str], at: int) -> int:
    for word in label.split("."):
        if word and at < len(wanted) and fnmatch.fnmatchcase(word, wanted[at]):
            at += 1
    return at


def modifiers_of(mnemonic: str) -> set[str]:
    """All modifiers of the opcodes that fit ``mnemonic``, in upper case."""
    return {
        word
        for name in fnmatch.filter(_spellings(), mnemonic)
        for opcode in _spellings()[name]
        for choice in opcode[1:]
        for label in choice.labels
        for word in label.split(".")
        if word
    }
