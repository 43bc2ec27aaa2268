"""Operands that nvdisasm does not print: shown in canonical text, needed to encode, dropped in nvdisasm's text.

The tables of sm_80 to sm_89 have such operands. Here a table is made to have them, so that every case is there.
"""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import pytest

from gwatch._resources import resource
from gwatch.errors import EncodeError
from gwatch.sass.arch import arch_by_name
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.isa.table import Table

LOAD = "LDG.E.64 R4, desc[UR6][R2.64+0x8]"
STORE = "@!P1 STG.E desc[UR6][R2.64], R5"


@lru_cache(maxsize=1)
def hiding() -> Isa:
    """sm_90a's table, in which the descriptor is not printed."""
    lines = []
    for line in resource("isa", "sm_90.jsonl").read_text(encoding="utf-8").splitlines():
        if '"form":"' in line and "desc[U]" in line:
            data = json.loads(line)
            before = data["form"][:data["form"].index("desc[")]
            data["hidden"] = [sum(letter.isupper() for letter in before)]
            line = json.dumps(data, separators=(",", ":"))
        lines.append(line)
    return Isa(arch_by_name("sm_90a"), Table("\n".join(lines) + "\n", "hiding"))


@pytest.mark.parametrize(("canonical", "shown"), [
    (LOAD, "LDG.E.64 R4, [R2.64+0x8]"), (STORE, "@!P1 STG.E [R2.64], R5"),
    ("RED.E.ADD.STRONG.GPU desc[UR4][R2.64], R5", "RED.E.ADD.STRONG.GPU [R2.64], R5"),
    ("IADD3 R1, R2, R3, RZ", "IADD3 R1, R2, R3, RZ"),
])
def test_both_texts_of_a_word(canonical: str, shown: str) -> None:
    if canonical.startswith("RED.E"):
        canonical, shown = canonical.replace("RED.E", "REDG.E"), shown.replace("RED.E", "REDG.E")
    word = isa_for("sm_90a").encode(canonical)
    isa = hiding()
    decoded = isa.decode(word)
    assert (decoded.canonical, decoded.text) == (canonical, shown)
    assert decoded.effects == isa_for("sm_90a").decode(word).effects
    assert isa.encode(canonical) == word
    rows = np.array([[word & (1 << 64) - 1, word >> 64]], np.uint64)
    section = isa.section(rows)
    assert section.texts(np.zeros(1, np.int64)) == [shown]
    assert section.texts(np.zeros(1, np.int64), canonical=True) == [canonical]


@pytest.mark.parametrize("text", ["LDG.E.64 R4, [R2.64+0x8]", "@!P1 STG.E [R2.64], R5", "LDG.E R4, [R2.64]"])
def test_a_line_that_hides_an_operand_is_refused_by_its_name(text: str) -> None:
    for _ in range(2):  # also when the shape is known
        with pytest.raises(EncodeError) as caught:
            hiding().encode(text)
        assert caught.value.code == "operand-hidden"
        assert "descriptor register" in caught.value.message and "desc[UR4]" in caught.value.hint


def test_lines_that_hide_nothing_are_not_taken_for_others() -> None:
    isa = hiding()
    for text in ("LDS R4, [R2+0x8]", "LDL R4, [R2]", "LDGSTS.E [R5], desc[UR6][R2.64]"):
        assert isa.decode(isa.encode(text)).canonical == text
