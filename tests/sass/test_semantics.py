"""Reads, writes, register lives and control flow against nvdisasm; ``tools/isa_semantics.py`` says what may differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from isa_semantics import BASES, KernelCheck, Outcome, compare, graphs, life_ranges, names

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.kernel import KernelDef

SMALL = ("bb4300356c24", "38d1a903907e", "5c8e698c11aa")


@pytest.mark.parametrize("name", SMALL)
def test_nothing_unexplained_in_the_open_corpus(corpus_sm90: list[Path], name: str) -> None:
    outcome = Outcome()
    compare(next(path for path in corpus_sm90 if name in path.name), outcome)
    assert outcome.bad == []
    assert outcome.counts["cubins"] == outcome.counts["kernels"] == 1
    assert outcome.counts["rows"] > 150 and outcome.counts["blocks"] > 10
    assert outcome.counts["unproved"] == 0


def test_a_wrong_reading_is_noticed(corpus_sm90: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(KernelCheck):
        def __init__(self, cubin: Cubin, kernel: KernelDef, outcome: Outcome) -> None:
            super().__init__(cubin, kernel, outcome)
            self.read[next(index for index, read in enumerate(self.read) if read.bit_count() > 1)] = 0

    monkeypatch.setattr("isa_semantics.KernelCheck", Forgetful)
    outcome = Outcome()
    compare(next(path for path in corpus_sm90 if SMALL[0] in path.name), outcome)
    assert any(": reads " in line for line in outcome.bad) and any("live for nvdisasm" in line for line in outcome.bad)


def test_marks_and_blocks_are_read_from_listings() -> None:
    listing = (
        '\t.section\t.text.k,"ax",@progbits\n'
        "        // | GPR       | PRED  |\n        // |  # R0 R10 |  # P0 |\n"
        "        /*0000*/ X ;  // |  1  ^  :  |       |\n        /*0010*/ Y ;  // |  2  x  v  |     v |\n"
    )
    rows = life_ranges(listing)["k"]
    assert (names(rows[0].live), names(rows[0].written)) == ("R10", "R0")
    assert (names(rows[1].read), names(rows[1].written)) == ("R0 R10 P0", "R0")
    assert names(1 << BASES["UP"] | 1 << BASES["UR"] + 3) == "UR3 UP0"
    graph = graphs(
        'subgraph "cluster_k" {\n"k"\n[label="{<entry>A ;\\lB ;\\l}"]\n"BB0"\n[label="{<entry>C ;\\l}"]\n'
        '"k":exit0:s -> "BB0":entry:n [style=solid];\n', {"k"})["k"]
    assert graph.successors() == {1: {2}, 2: set()}
