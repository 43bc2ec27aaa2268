"""Word files of tools/harvest_words.py: which of their words count for an architecture."""

from __future__ import annotations

from pathlib import Path

from isa_learning.corpus import WORDS, listed_words

from gwatch.sass.arch import ARCHES


def test_words_stand_under_their_target_and_library(tmp_path: Path) -> None:
    path = tmp_path / "sm_90.txt"
    path.write_text("# comment\nsm_90 one 1.0\n0f\nsm_90a one 1.0\n10\nsm_90 two 2.0\n11\nsm_100 one 1.0\n12\n")
    assert listed_words(path, 90) == {0x0F, 0x10, 0x11}
    assert listed_words(path, 90, ["two"]) == {0x0F, 0x10}
    assert listed_words(path, 100) == {0x12}


def test_every_table_has_words_of_its_architectures() -> None:
    for table in sorted({arch.table for arch in ARCHES.values()}):
        lines = (WORDS / f"{table}.txt").read_text(encoding="utf-8").splitlines()
        targets = {line.split(" ")[0] for line in lines[1:] if " " in line}
        assert targets
        assert all(ARCHES[target].table == table for target in targets)
        assert all(len(line) == 32 for line in lines[1:] if " " not in line)
