"""What is found for a whole section at once is what is found instruction by instruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.rewrite import Rewriter
from gwatch.sass.isa import isa_for
from gwatch.sass.uses import CodeView

DATA = Path(__file__).resolve().parent.parent / "rewrite" / "data"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("control_sm90.cubin", "switch_kernel"),
        ("control_sm90.cubin", "malloc_kernel"),
        ("control_sm75.cubin", "printf_kernel"),
    ],
)
def test_columns_agree_with_single_answers(file: str, name: str) -> None:
    around = Rewriter(Cubin.from_file(DATA / file), name).surroundings
    places = range(len(around.view))
    mnemonics, kinds = around.view.kinds()
    facts = [around.view.facts(index) for index in places]
    assert (mnemonics, kinds) == ([item.mnemonic for item in facts], [item.kind for item in facts])
    never, matrix = around.flights.masks()
    flights = [around.flights.at(index) for index in places]
    assert (never, matrix) == ([item.never for item in flights], [item.matrix for item in flights])
    assert any(any(item.boards) for item in flights)
    live = around.liveness({})
    assert live.outs() == [live.live_out(index) for index in places]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_move_for_some_lanes_of_four_leaves_the_others_what_they_had(arch: str) -> None:
    isa = isa_for(arch)
    words = [isa.encode(line) for line in ("MOV R1, R2", "MOV R1, R2, 0x3", "@P0 MOV R1, R2", "SEL R1, R2, R3, P0")]
    view = CodeView(isa, np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64))
    assert view.masks("R").writes == [2, 2, 2, 2] and view.masks("R").kills == [2, 0, 0, 2]
