"""Random numbers in every form that compilers use, and random words: gwatch and nvdisasm say the same, and whatever is
encoded decodes back. One nvdisasm run per table."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from gwatch._resources import resource
from gwatch.errors import EncodeError
from gwatch.sass.arch import ARCHES, Arch
from gwatch.sass.control import CONTROL_MASK, Control
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.isa.pattern import GUARD_MASK, PLAIN_MASK
from gwatch.sass.nvdisasm import disassemble_words

PC = 0x40000000
COUNT = 1500


def tables() -> list[Arch]:
    """One architecture of every table that is there."""
    folder = resource("isa", "README.md").parent
    there = {path.stem for path in folder.glob("sm_*.jsonl")}
    chosen = {arch.table: arch for arch in ARCHES.values() if arch.table in there}
    return list(chosen.values())


def filled(isa: Isa, rng: random.Random) -> list[int]:
    """Compiler words of the table with other numbers in their fields, as far as the tables still read them."""
    shapes = [(form, word) for number in isa.table.numbers() if (key := isa.table.key(number)) is not None
              for form in key.forms for word in form.shapes]
    out = []
    while len(out) < COUNT:
        form, word = rng.choice(shapes)
        for value in form.values:
            place = value.field_of(word) if value.name is None else None
            if place is None or rng.random() < 0.3:
                continue
            word = word & ~place.mask | (rng.getrandbits(128) if rng.random() < 0.8 else 0) & place.mask
        word = word & PLAIN_MASK | 7 << 12 | Control().to_bits()
        if isa.templates.of(word) is not None:
            out.append(word)
    return out


@pytest.mark.parametrize("arch", tables(), ids=lambda arch: arch.name)
def test_random_numbers_print_alike_and_encode_back(arch: Arch) -> None:
    isa = isa_for(arch)
    words = filled(isa, random.Random(20))
    texts = disassemble_words(arch.name, words, pc=PC, mostly_valid=False)
    counts: Counter[str] = Counter()
    for word, text in zip(words, texts, strict=True):
        decoded = isa.decode(word, PC)
        if text is None or "INVALID" in text or "???" in text:
            counts["undecodable"] += 1
            continue
        assert decoded.text == text.rstrip(" ;")
        try:
            made = isa.encode(decoded.canonical, pc=PC)
        except EncodeError as error:
            # Groups of registers that no compiler would write, or bits that the text does not show.
            assert error.code in ("register-alignment", "encode-ambiguous", "encode-unproved", "operand-hidden"), error
            counts[error.code] += 1
            continue
        assert isa.decode(made, PC).canonical == decoded.canonical
        counts["exact" if made == word else "another word"] += 1
    # Random registers seldom are aligned as the groups of matrix products must be.
    assert counts["exact"] > 0.5 * (COUNT - counts["register-alignment"]), counts
    assert counts["undecodable"] < 0.2 * COUNT, counts


@pytest.mark.parametrize("arch", tables(), ids=lambda arch: arch.name)
def test_random_words_print_alike_by_both_roads(arch: Arch) -> None:
    isa = isa_for(arch)
    rng = random.Random(21)
    seeds = filled(isa, rng)
    words = []
    for word in seeds:
        for _ in range(rng.randrange(1, 4)):
            word ^= 1 << rng.randrange(16, 105)
        words.append(word & ~(GUARD_MASK | CONTROL_MASK) | rng.getrandbits(4) << 12 | Control().to_bits())
    rows = np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)
    columns = isa.section(rows).texts(np.full(len(words), PC, np.int64))
    both = 0
    for word, text, column in zip(words, disassemble_words(arch.name, words, pc=PC, mostly_valid=False), columns,
                                  strict=True):
        template = isa.templates.of(word)
        ours = isa.decode(word, PC).text if template is not None else None
        assert ours == column
        if text is not None and ours is not None and "INVALID" not in text and "???" not in text:
            # Sparse products mark their metadata by bit 50 of the word; no compiler word has it.
            assert ours.replace(".reuse", "") == text.rstrip(" ;").replace(".reuse", "")
            both += 1
    assert both > 0.3 * COUNT
