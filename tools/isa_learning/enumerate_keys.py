"""Find the opcode keys that nvdisasm knows: every key, over default operand patterns, real patterns and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

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


def patterns(real: Iterable[int], rng: random.Random, real_rests: int) -> list[int]:
    """Operand patterns: defaults, then those of compiler words of as many different opcodes."""
    by_key: dict[int, int] = {}
    for word in sorted(real):
        by_key.setdefault(key_of(word), word & ~CONTROL_MASK)
    pool = sorted(by_key.values())
    return default_rests() + rng.sample(pool, min(len(pool), real_rests))


def first_words(rests: Sequence[int], rng: random.Random, random_rests: int = 3) -> Iterator[int]:
    """Words to try for every key: a few of the patterns (on sm_90 one compiler pattern alone finds 580 of 686 keys)."""
    few = rests[:24:6] + rests[24:38]
    for key in range(KEYS):
        for rest in few:
            yield with_key(key, rest)
        for _ in range(random_rests):
            yield with_key(key, rng.getrandbits(105))


def more_words(keys: Iterable[int], rests: Sequence[int], rng: random.Random, random_rests: int = 12) -> Iterator[int]:
    """All patterns and random ones for the keys found."""
    for key in sorted(keys):
        for rest in rests:
            yield with_key(key, rest)
        for _ in range(random_rests):
            yield with_key(key, rng.getrandbits(105))
