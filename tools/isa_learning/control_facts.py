"""Which scoreboard fields compilers ever use, per opcode key and opcode text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from isa_learning.corpus import text_words

from gwatch.sass.isa.effects import BRANCHES
from gwatch.sass.isa.model import Key, key_of

NONE = 7


@dataclass
class ControlFacts:
    """Counts over compiler words of one key."""

    words: int = 0
    write: int = 0
    read: int = 0
    stall_min: int = 15


def control_facts(paths: Iterable[Path], more: Iterable[int] = ()) -> dict[int, ControlFacts]:
    """Facts per key over all words of the cubins (each distinct full word of a file counted once) and ``more``."""
    facts: dict[int, ControlFacts] = defaultdict(ControlFacts)
    for words in chain((set(text_words(path)) for path in paths), [more]):
        for word in words:
            fact = facts[key_of(word)]
            fact.words += 1
            fact.write += word >> 110 & 7 != NONE
            fact.read += word >> 113 & 7 != NONE
            fact.stall_min = min(fact.stall_min, word >> 105 & 15)
    return dict(facts)


ASYNC = frozenset({"HGMMA", "IGMMA", "QGMMA", "BGMMA"})


def note_kinds(models: Iterable[Key], facts: dict[int, ControlFacts]) -> None:
    """Write latency kind and used scoreboard fields into the models.

    A key that no compiler word has takes what all seen keys of its mnemonic agree on, else "unknown".
    """
    by_name: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
    unseen = []
    for model in models:
        name = model.opcode[0].labels[0].split(".")[0]
        fact = facts.get(model.key)
        if name in BRANCHES:
            model.extra["kind"] = "branch"
        elif fact is None:
            unseen.append((model, name))
            continue
        else:
            kind = "async" if name in ASYNC else "variable" if fact.write or fact.read else "fixed"
            model.extra["kind"] = kind
            by_name[name].add((kind, int(fact.write > 0), int(fact.read > 0)))
        model.extra["scoreboards"] = [int(fact.write > 0), int(fact.read > 0)] if fact else [0, 0]
        model.extra["seen"] = fact.words if fact else 0
    for model, name in unseen:
        kinds = {k for k, _, _ in by_name[name]}
        model.extra["kind"] = kinds.pop() if len(kinds) == 1 else "unknown"
        model.extra["scoreboards"] = [max((w for _, w, _ in by_name[name]), default=0),
                                      max((r for _, _, r in by_name[name]), default=0)]
        model.extra["seen"] = 0
