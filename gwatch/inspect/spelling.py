"""Which modifiers an opcode can have, over all tables, so that a misspelt rule is refused."""

from __future__ import annotations

import fnmatch
import json
from collections import defaultdict
from functools import lru_cache

from gwatch._resources import resource
from gwatch.errors import ToolError
from gwatch.sass.arch import ARCHES
from gwatch.sass.isa.model import Choice

_KEY_START = '{"key":'
_Slots = tuple[tuple[tuple[str, ...], ...], ...]
"""Places of an opcode in the order of its text; of each the alternatives, which are one word or several."""


@lru_cache(maxsize=1)
def _spellings() -> dict[str, frozenset[_Slots]]:
    """Mnemonic -> what may follow it, in upper case, under every architecture that has a table."""
    found: dict[str, set[_Slots]] = defaultdict(set)
    for name in sorted({arch.table for arch in ARCHES.values()}):
        try:
            path = resource("isa", f"{name}.jsonl")
        except ToolError:
            continue  # an architecture without a table
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(_KEY_START):
                    first, *rest = (Choice.from_json(choice).labels for choice in json.loads(line)["opcode"])
                    slots = tuple(tuple(tuple(label.upper().split(".")) for label in labels) for labels in rest)
                    for mnemonic in first:
                        found[mnemonic].add(slots)
    return {mnemonic: frozenset(slots) for mnemonic, slots in found.items()}


def can_have(mnemonic: str, modifiers: list[str]) -> bool:
    """Whether some opcode that fits ``mnemonic`` can have these modifiers in this order, others between them (patterns
    in upper case)."""
    return any(
        _reached(slots, modifiers) == len(modifiers)
        for name in fnmatch.filter(_spellings(), mnemonic)
        for slots in _spellings()[name]
    )


def _reached(slots: _Slots, wanted: list[str]) -> int:
    """How many of the words can be had: to be further on is never worse, so the furthest way is followed."""
    at = 0
    for alternatives in slots:
        at = max([_passed(words, wanted, at) for words in alternatives], default=at)
    return at


def _passed(words: tuple[str, ...], wanted: list[str], at: int) -> int:
    for word in words:
        if word and at < len(wanted) and fnmatch.fnmatchcase(word, wanted[at]):
            at += 1
    return at


def modifiers_of(mnemonic: str) -> set[str]:
    """All modifiers of the opcodes that fit ``mnemonic``, in upper case."""
    return {
        word
        for name in fnmatch.filter(_spellings(), mnemonic)
        for slots in _spellings()[name]
        for alternatives in slots
        for words in alternatives
        for word in words
        if word
    }
