"""How NVIDIA's listings end an instruction: with or without a blank in front of the semicolon."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

_TIGHT = 0x7E0
"""Stall 0, no yield hint, no scoreboards: printed without the blank in front of the semicolon."""
_SCOREBOARDS_AND_STALL = 0x7FF
_CONTROL_SHIFT = 41
_SPECIAL_NUMBER = re.compile(r"(?:[+-](?:INF|[QS]NAN)|-0\.0)$")
"""nvdisasm ends these with a blank."""


def tight_ends(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Per word ``(n, 2)``: whether no blank stands in front of its semicolon."""
    control = words[:, 1] >> np.uint64(_CONTROL_SHIFT) & np.uint64(_SCOREBOARDS_AND_STALL)
    return np.asarray(control == _TIGHT, np.bool_)


def statement_end(text: str, tight: bool) -> str:
    """What follows the text of an instruction."""
    end = ";" if tight else " ;"
    return f" {end}" if text[-1] in "NF0" and _SPECIAL_NUMBER.search(text) else end
