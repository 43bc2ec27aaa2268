"""Instruction words of one architecture: encode, decode, reads and writes, from the learned tables.

``isa_for("sm_90a")`` gives the :class:`Isa`; see ``isa/README.md`` for how the tables come about and what they hold.
"""

from __future__ import annotations

from gwatch.sass.isa.effects import Effects, RegUse
from gwatch.sass.isa.isa import Decoded, Isa, isa_for

__all__ = ["Decoded", "Effects", "Isa", "RegUse", "isa_for"]
