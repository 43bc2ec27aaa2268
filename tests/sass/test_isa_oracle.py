"""The ISA tables against nvdisasm: texts and words of the open corpus, reads and writes of its life ranges."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from isa_learning.corpus import text_words
from isa_learning.ranges import parse_marks

from gwatch.errors import EncodeError
from gwatch.sass.control import Control
from gwatch.sass.isa import FILE_NAMES, KIND_NAMES, ROLE_NAMES, isa_for
from gwatch.sass.isa.effects import BRANCHES
from gwatch.sass.nvdisasm import disassemble_cubin, disassemble_words

PC = 0x100000


def sample(paths: list[Path], every: int) -> list[int]:
    """A fixed fraction of the distinct words."""
    words = sorted({w for path in paths for w in text_words(path)})
    return [w for w in words if hash((w & 0xFFFFFFFFFFFF, w >> 64)) % every == 0]


def test_corpus_words_print_and_encode_exactly(corpus_sm90: list[Path]) -> None:
    isa = isa_for("sm_90a")
    words = sample(corpus_sm90, 16)
    assert len(words) > 4000
    counts: Counter[str] = Counter()
    for word, text in zip(words, disassemble_words("sm_90a", words, pc=PC), strict=True):
        assert text is not None
        text = text.rstrip(" ;")
        assert isa.decode(word, PC).text == text
        try:
            made = isa.encode(text, Control.from_word(word), PC)
        except EncodeError as error:
            counts[error.code] += 1
            continue
        assert made == word, f"{text}: {made:032x} is not {word:032x}"
        counts["exact"] += 1
    assert counts["exact"] >= 0.999 * len(words), counts


@pytest.mark.parametrize("name", ["5c8e698c11aa", "38d1a903907e", "bb4300356c24"])
def test_reads_and_writes_agree_with_life_ranges(corpus_sm90: list[Path], name: str) -> None:
    isa = isa_for("sm_90a")
    path = next(p for p in corpus_sm90 if name in p.name)
    words = list(text_words(path))
    marks = parse_marks(disassemble_cubin(path, "-plr"))
    compared = 0
    for index, found in marks.items():
        decoded = isa.decode(words[index], 16 * index)
        if decoded.mnemonic in BRANCHES:
            continue
        assert decoded.effects.complete, decoded.text
        reads = {(u.file, u.first + i) for u in decoded.effects.reads for i in range(u.count) if u.file != "B"}
        writes = {(u.file, u.first + i) for u in decoded.effects.writes for i in range(u.count) if u.file != "B"}
        unmarked = {("UR", n) for n in range(4)}
        assert {k for k, v in found.items() if v in "vx"} - unmarked == reads - unmarked, decoded.text
        if decoded.mnemonic == "LDGSTS":  # nvdisasm marks its fill predicate as written; it is only read
            found = {k: "v" if k[0] == "P" and v == "x" else v for k, v in found.items()}
        assert {k for k, v in found.items() if v in "^x"} - unmarked == writes - unmarked, decoded.text
        compared += 1
    assert compared > 0.8 * len(marks)


def test_vectorised_uses_equal_decoding_one_by_one(corpus_sm90: list[Path]) -> None:
    isa = isa_for("sm_90a")
    words = sample(corpus_sm90, 40)
    pairs = np.array([[w & (1 << 64) - 1, w >> 64] for w in words], dtype=np.uint64)
    uses = isa.uses(pairs)
    edges = np.searchsorted(uses.index, np.arange(len(words) + 1))
    assert uses.known.all()
    for row, word in enumerate(words):
        decoded = isa.decode(word)
        part = slice(int(edges[row]), int(edges[row + 1]))
        got = {(FILE_NAMES[f], int(a), int(c), ROLE_NAMES[r], bool(w)) for f, a, c, r, w in zip(
            uses.file[part], uses.first[part], uses.count[part], uses.role[part], uses.write[part], strict=True)}
        effects = decoded.effects
        assert got == {(u.file, u.first, u.count, u.role, w) for side, w in ((effects.reads, False),
                                                                            (effects.writes, True)) for u in side}
        assert uses.mnemonic_names[uses.mnemonic[row]] == decoded.mnemonic
        assert KIND_NAMES[uses.kind[row]] == effects.kind
        assert bool(uses.complete[row]) == effects.complete
        assert bool(uses.relative[row]) == (decoded.target is not None)
        if decoded.target is not None:
            assert int(uses.offset[row]) + 16 == decoded.target
