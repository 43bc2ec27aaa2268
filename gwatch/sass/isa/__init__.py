"""Instruction words of one architecture: encode, decode, reads and writes, from the learned tables.

``isa_for("sm_90a")`` gives the :class:`Isa`; see ``isa/README.md`` for how the tables come about and what they hold.
"""

from __future__ import annotations

from gwatch.sass.isa.effects import Effects, RegUse
from gwatch.sass.isa.isa import Decoded, Isa, isa_for
from gwatch.sass.isa.vector import FILE_NAMES, KIND_NAMES, ROLE_NAMES, Uses

__all__ = ["FILE_NAMES", "KIND_NAMES", "ROLE_NAMES", "Decoded", "Effects", "Isa", "RegUse", "Uses", "isa_for"]
