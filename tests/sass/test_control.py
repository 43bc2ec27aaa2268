"""The control word round-trips, and refuses what does not exist."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gwatch.errors import EncodeError
from gwatch.sass.control import CONTROL_MASK, Control, control_fields

SCOREBOARD = st.sampled_from([0, 1, 2, 3, 4, 5, 7])
CONTROLS = st.builds(Control, st.integers(0, 15), st.integers(0, 1), SCOREBOARD, SCOREBOARD, st.integers(0, 63),
                     st.integers(0, 15))


@given(CONTROLS, st.integers(0, (1 << 128) - 1))
def test_every_legal_control_word_round_trips(control: Control, word: int) -> None:
    if control.illegal:
        with pytest.raises(EncodeError, match="control-illegal"):
            control.to_bits()
        return
    replaced = control.replace_in(word)
    assert Control.from_word(replaced) == control
    assert replaced & ~CONTROL_MASK == word & ~CONTROL_MASK
    pair = np.array([[replaced & (1 << 64) - 1, replaced >> 64]], dtype=np.uint64)
    assert tuple(int(v) for v in control_fields(pair)[0]) == (
        control.stall, control.yield_flag, control.write_scoreboard, control.read_scoreboard, control.wait_mask,
        control.reuse)


def test_the_default_is_stall_one_stay_nothing_else() -> None:
    assert Control().to_bits() == 0x7F1 << 105


@pytest.mark.parametrize("field,value", [("stall", 16), ("stall", -1), ("yield_flag", 2), ("write_scoreboard", 6),
                                         ("read_scoreboard", 8), ("wait_mask", 64), ("reuse", 16)])
def test_a_field_outside_its_width_is_refused(field: str, value: int) -> None:
    with pytest.raises(EncodeError, match="control-range") as caught:
        Control(**{field: value})
    assert field in str(caught.value)


@pytest.mark.parametrize("control", [Control(stall=0), Control(stall=12), Control(stall=15),
                                     Control(stall=0, yield_flag=0, reuse=1)])
def test_combinations_no_opcode_admits_are_refused(control: Control) -> None:
    assert control.illegal
    with pytest.raises(EncodeError, match="control-illegal"):
        control.to_bits()


def test_scoreboard_six_in_a_word_is_refused() -> None:
    with pytest.raises(EncodeError, match="write_scoreboard = 6"):
        Control.from_word(6 << 110 | 1 << 105)
