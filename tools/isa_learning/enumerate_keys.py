"""Find the opcode keys that nvdisasm knows: every key, over default operand patterns, real patterns and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from isa_learning.probe import CONTROL_MASK, PROBE_CONTROL

from gwatch.sass.isa.model import key_of

KEYS = 1 << 13
_PT = 7
_BODY = ((1 << 105) - 1) & ~0xFFFF & ~(1 << 91)


def with_key(key: int, rest: int) -> int:
    """A probing word of ``key`` with operand bits ``rest`` and guard PT."""
    return key & 0xFFF | (key >> 12) << 91 | rest & _BODY | _PT << 12 | PROBE_CONTROL


def default_rests() -> list[int]:
    """Operand patterns that suit many opcodes: zeros, true predicates in the usual places, zero registers."""
    source, targets, extra = _PT << 87, _PT << 81 | _PT << 84, _PT << 77
    registers = 0xFF << 16 | 0xFF << 24 | 0xFF << 32 | 0xFF << 64
    uniform = 0x3F << 16 | 0x3F << 24 | 0x3F << 32 | 0x3F << 64
    rests = []
    for predicates in (0, source, source | targets, source | targets | extra, targets, _PT << 81 | source):
        for operands in (0, registers, uniform, 2 << 16 | 4 << 24 | 6 << 32 | 8 << 64):
            rests.append(predicates | operands)
    return rests


def seed_words(real: Iterable[int], rng: random.Random, random_rests: int = 12, real_rests: int = 48) -> Iterator[int]:
    """Words to try for every key."""
    by_key: dict[int, int] = {}
    for word in sorted(real):
        by_key.setdefault(key_of(word), word & ~CONTROL_MASK)
    pool = sorted(by_key.values())
    rests = default_rests() + rng.sample(pool, min(len(pool), real_rests))
    for key in range(KEYS):
        for rest in rests:
            yield with_key(key, rest)
        for _ in range(random_rests):
            yield with_key(key, rng.getrandbits(105))
