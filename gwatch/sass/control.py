"""The control word: bits 105-125 of every 128-bit instruction, identical from sm_75 to sm_121.

===========  =======  ==========================================================================================
field        bits     meaning
===========  =======  ==========================================================================================
stall        105-108  issue cycles before this warp's next instruction (0-15; 12-15 only with yield_flag 0)
yield        109      1 = stay with this warp, 0 = the issuer may prefer another warp (inverted sense)
write sb     110-112  scoreboard released when the result is written; 7 = none
read sb      113-115  scoreboard released when the sources have been read; 7 = none
wait mask    116-121  scoreboards that must be zero before this instruction issues
reuse        122-125  operand positions a, b, c, d kept in the operand cache (shown as ``.reuse`` only with yield 1)
===========  =======  ==========================================================================================

Bits 126 and 127 are 0 in every instruction. Which combinations an opcode admits is part of its table
(:mod:`gwatch.sass.isa`), not of this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gwatch.errors import EncodeError

SHIFT = 105
CONTROL_MASK = ((1 << 21) - 1) << SHIFT
NO_SCOREBOARD = 7
SCOREBOARDS = 6

_LIMITS = (("stall", 15), ("yield_flag", 1), ("write_scoreboard", 7), ("read_scoreboard", 7),
           ("wait_mask", 63), ("reuse", 15))


@dataclass(frozen=True, slots=True)
class Control:
    """One control word. Defaults: stall 1, stay, no scoreboard, no wait, no reuse.

    Raises EncodeError ``[control-range]`` for a field outside its width (``write_scoreboard`` and
    ``read_scoreboard`` are 0-5, or 7 for none; 6 does not exist).
    """

    stall: int = 1
    yield_flag: int = 1
    write_scoreboard: int = NO_SCOREBOARD
    read_scoreboard: int = NO_SCOREBOARD
    wait_mask: int = 0
    reuse: int = 0

    def __post_init__(self) -> None:
        for name, limit in _LIMITS:
            value = getattr(self, name)
            if not 0 <= value <= limit or (limit == 7 and value == 6):
                raise EncodeError("control-range", f"control field {name} = {value} does not exist",
                                  f"{name} is 0..{limit}" + (" without 6" if "board" in name else ""))

    @property
    def illegal(self) -> str:
        """Why no opcode admits this combination (nvdisasm rejects such words), or "" when some opcode does."""
        if self.yield_flag and self.stall == 0:
            return "stall 0 needs yield_flag 0"
        if self.yield_flag and self.stall >= 12:
            return f"stall {self.stall} needs yield_flag 0"
        if self.reuse and not self.yield_flag and self.stall == 0:
            return "reuse needs a stall or yield_flag 1"
        return ""

    def to_bits(self) -> int:
        """The control word in place (bits 105-125 of the instruction word, everything else 0).

        Raises EncodeError ``[control-illegal]`` for a combination that no opcode admits.
        """
        problem = self.illegal
        if problem:
            raise EncodeError("control-illegal", f"control word {self} is not legal: {problem}")
        return (self.stall | self.yield_flag << 4 | self.write_scoreboard << 5 | self.read_scoreboard << 8
                | self.wait_mask << 11 | self.reuse << 17) << SHIFT

    @classmethod
    def from_word(cls, word: int) -> Control:
        """The control word of a 128-bit instruction word.

        Raises EncodeError ``[control-range]`` when the bits hold a value that does not exist (scoreboard 6).
        """
        bits = word >> SHIFT
        return cls(bits & 15, bits >> 4 & 1, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63, bits >> 17 & 15)

    def replace_in(self, word: int) -> int:
        """``word`` (128 bits) with its control word replaced by this one."""
        return word & ~CONTROL_MASK | self.to_bits()


CONTROL_DTYPE = np.dtype([("stall", "u1"), ("yield_flag", "u1"), ("write_scoreboard", "u1"),
                          ("read_scoreboard", "u1"), ("wait_mask", "u1"), ("reuse", "u1")])


def control_fields(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
    """Control fields of words ``(n, 2) uint64`` (low, high) as an ``(n,)`` array of :data:`CONTROL_DTYPE`."""
    bits = (words[:, 1] >> np.uint64(SHIFT - 64)).astype(np.uint32)
    out = np.empty(len(words), dtype=CONTROL_DTYPE)
    for name, shift, mask in (("stall", 0, 15), ("yield_flag", 4, 1), ("write_scoreboard", 5, 7),
                              ("read_scoreboard", 8, 7), ("wait_mask", 11, 63), ("reuse", 17, 15)):
        out[name] = (bits >> np.uint32(shift)) & np.uint32(mask)
    return out
