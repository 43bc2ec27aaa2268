"""Operands that nvdisasm does not print: the memory descriptor of sm_80 to sm_89, found by its life ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from isa_learning.probe import Prober, has_hidden_descriptor
from isa_learning.ranges import Holder

from gwatch.sass.isa.model import key_of

PLACES = (32, 64)
"""Lowest bits of the uniform-register fields that any instruction has (and that print as such elsewhere)."""
PER_KEY = 6
_NUMBERS = (20, 40)


def find_hidden(prober: Prober, words: Iterable[int], holder: Callable[[], Holder],
                log: Callable[[str], None]) -> dict[int, int]:
    """Opcode key -> lowest bit of its hidden descriptor register, for the keys of ``words`` that have one.

    A key counts only if every trial agrees: the two candidate fields get different registers, and life ranges say
    which one is read.
    """
    trials: dict[int, list[int]] = defaultdict(list)
    seen: set[tuple[int, str]] = set()
    for word in sorted(words):
        text = prober.cache.get(word)
        if text is None or not has_hidden_descriptor(text) or len(trials[key_of(word)]) >= PER_KEY:
            continue
        shape = (key_of(word), text.split(" ")[0])
        if shape not in seen:
            seen.add(shape)
            for low, number in zip(PLACES, _NUMBERS, strict=True):
                word = word & ~(63 << low) | number << low
            trials[key_of(word)].append(word)
    asked = sorted({w for group in trials.values() for w in group})
    if not asked:
        return {}
    good = [w for w, t in zip(asked, prober.texts(asked), strict=True) if t is not None and has_hidden_descriptor(t)]
    marks = dict(zip(good, holder().marks(good), strict=True))
    found: dict[int, int] = {}
    for key, group in sorted(trials.items()):
        read = {frozenset(n for (file, n), mark in (marks[w] or {}).items() if file == "UR" and mark in "vx")
                for w in group if w in marks}
        for low, number in zip(PLACES, _NUMBERS, strict=True):
            if read == {frozenset({number, number + 1})}:
                found[key] = low
        if key not in found:
            log(f"no hidden descriptor proved in {key:04x}: {sorted(map(sorted, read))}")
    return found
