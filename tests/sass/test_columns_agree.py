"""What is found for a whole section at once is what is found instruction by instruction."""

from __future__ import annotations

from pathlib import Path

import pytest

from gwatch.cuda.binary import Cubin
from gwatch.rewrite import Rewriter

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
