"""Control words: which scoreboard fields compilers use with an opcode, and which values nvdisasm accepts."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from isa_learning.corpus import text_words
from isa_learning.probe import CONTROL_MASK, Prober, probing_word

from gwatch.sass.isa.effects import BRANCHES
from gwatch.sass.isa.model import Key, key_of

NONE = 7


@dataclass
class ControlFacts:
    """Counts over compiler words of one key, and the masks of what their control words hold."""

    words: int = 0
    write: int = 0
    read: int = 0
    writes: int = 0
    reads: int = 0
    waits: int = 0
    reuse: list[int] = field(default_factory=lambda: [0, 0])


def control_facts(paths: Iterable[Path], more: Iterable[int] = (), apart: Set[int] = frozenset()
                  ) -> dict[int, ControlFacts]:
    """Facts per key over all words of the cubins (each distinct full word of a file counted once) and ``more``, those
    aside whose probing word is in ``apart``."""
    facts: dict[int, ControlFacts] = defaultdict(ControlFacts)
    keys = {key_of(word) for word in apart}
    for words in chain((set(text_words(path)) for path in paths), [more]):
        for word in words:
            key = key_of(word)
            if key in keys and probing_word(word) in apart:
                continue
            fact = facts[key]
            fact.words += 1
            fact.write += word >> 110 & 7 != NONE
            fact.read += word >> 113 & 7 != NONE
            fact.writes |= 1 << (word >> 110 & 7)
            fact.reads |= 1 << (word >> 113 & 7)
            fact.waits |= word >> 116 & 63
            fact.reuse[word >> 109 & 1] |= 1 << (word >> 122 & 15)
    return dict(facts)


def _all_if_any(mask: int) -> int:
    """All six scoreboards where one of them is seen: compilers choose any that is free."""
    return mask | 63 if mask & 63 else mask


ASYNC = frozenset({"HGMMA", "IGMMA", "QGMMA", "BGMMA"})


_CONSTANT_BANK = re.compile(r"cx?\[[^\]]*\]\[[^\]]*\]")


def note_kinds(models: Iterable[Key], facts: dict[int, ControlFacts]) -> None:
    """Write latency kind and used scoreboard fields into the models.

    Of an opcode with an address, few compiler words prove nothing by leaving scoreboards out (the last store of a
    kernel needs none): it is like the opcodes of its mnemonic that are seen with them. A key that no compiler word has
    takes what all seen keys of its mnemonic agree on, else "unknown".
    """
    seen: list[tuple[Key, str]] = []
    unseen: list[tuple[Key, str]] = []
    boards: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for model in models:
        name = model.opcode[0].labels[0].split(".")[0]
        fact = facts.get(model.key)
        if fact is not None and "control" in model.extra:
            control = model.extra["control"]
            # What some form of an opcode takes, nvdisasm may refuse in the forms that were asked.
            control["write"] |= _all_if_any(fact.writes)
            control["read"] |= _all_if_any(fact.reads)
            control["wait"] |= fact.waits
            control["reuse"] = [a | b for a, b in zip(control["reuse"], fact.reuse, strict=True)]
        if name not in BRANCHES and fact is None:
            unseen.append((model, name))
            continue
        own = [int(fact.write > 0), int(fact.read > 0)] if fact else [0, 0]
        model.extra["kind"] = "branch" if name in BRANCHES else "async" if name in ASYNC else \
            "variable" if any(own) else "fixed"
        model.extra["scoreboards"] = own
        model.extra["seen"] = fact.words if fact else 0
        if name not in BRANCHES:
            seen.append((model, name))
            boards[name] = [max(pair) for pair in zip(boards[name], own, strict=True)]
    kinds: dict[str, set[str]] = defaultdict(set)
    for model, name in seen:
        if model.extra["kind"] == "fixed" and any(boards[name]) and _addresses(model):
            model.extra["kind"] = "variable"
            model.extra["scoreboards"] = list(boards[name])
        kinds[name].add(model.extra["kind"])
    for model, name in unseen:
        known = kinds[name]
        model.extra["kind"] = next(iter(known)) if len(known) == 1 else "unknown"
        model.extra["scoreboards"] = list(boards[name])
        model.extra["seen"] = 0


def _addresses(model: Key) -> bool:
    """Whether the opcode has an address operand, constant banks aside."""
    return any("[" in _CONSTANT_BANK.sub("", form.skeleton) for form in model.forms)


REPRESENTATIVES = 12
TRIALS = 12


def control_bits(stall: int = 1, stay: int = 1, write: int = NONE, read: int = NONE, wait: int = 0,
                 reuse: int = 0) -> int:
    """The control word with these fields."""
    return stall << 105 | stay << 109 | write << 110 | read << 113 | wait << 116 | reuse << 122


def note_control(models: Iterable[Key], prober: Prober) -> None:
    """Write the legal control words of every key into ``extra["control"]``, field by field.

    ``write``, ``read``: masks of the allowed scoreboard numbers; ``wait``: mask of the allowed wait bits; ``issue``:
    mask of the allowed ``stay << 4 | stall`` without reuse; ``reuse``: masks of the allowed reuse values, without and
    with the stay bit (reuse needs a stall). A key takes the reuse values that any of its forms
    takes. ``apart`` counts random combinations that nvdisasm accepts although one of the fields says no.
    """
    singles = {
        "write": [control_bits(write=n) for n in range(8)], "read": [control_bits(read=n) for n in range(8)],
        "wait": [control_bits(wait=1 << n) for n in range(6)],
        "issue": [control_bits(n & 15, n >> 4) for n in range(32)],
        "reuse0": [control_bits(stay=0, reuse=n) for n in range(16)],
        "reuse1": [control_bits(reuse=n) for n in range(16)]}
    rng = random.Random(1)
    plan: list[tuple[Key, list[int], list[int]]] = []
    reuse = singles["reuse1"][1:8]
    for model in models:
        shown: dict[tuple[int, str | None], int] = {}
        for n, form in enumerate(model.forms):
            for word in form.shapes or form.probes:
                shown.setdefault((n, model.opcode_text(word)), word & ~CONTROL_MASK & ~(15 << 12) | 7 << 12)
        step = max(1, len(shown) // REPRESENTATIVES)
        bare = list(shown.values())[::step][:REPRESENTATIVES]
        mixed = [control_bits(rng.randrange(16), rng.randrange(2), *(rng.choice((7, rng.randrange(8))) for _ in "wr"),
                              rng.getrandbits(6), rng.choice((0, rng.randrange(16)))) for _ in range(TRIALS)]
        plan.append((model, bare, mixed))
    every = [c for values in singles.values() for c in values]
    asked = sorted({b | c for _, bare, mixed in plan for n, b in enumerate(bare)
                    for c in (reuse if n else (*mixed, *every))})
    good = {w for w, text in zip(asked, prober.texts(asked), strict=True) if text is not None}
    for model, bare, mixed in plan:
        masks = {name: sum(1 << n for n, c in enumerate(values) if any(b | c in good for b in bare))
                 for name, values in singles.items()}
        model.extra["control"] = {"write": masks["write"], "read": masks["read"], "wait": masks["wait"],
                                  "issue": masks["issue"], "reuse": [masks["reuse0"], masks["reuse1"]]}
        apart = sum(b | c in good and not model.allows(c) for b in bare[:1] for c in mixed)
        if apart:
            model.extra["control"]["apart"] = apart
