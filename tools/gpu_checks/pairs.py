"""Timing variants of a kernel against each other: launches by turns in random order, paired round by round."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Z_95 = 1.96


@dataclass(frozen=True)
class Paired:
    """How much slower than the baseline: mean of the pairs' log ratios with its 95 % interval, in percent."""

    percent: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.percent:+.2f}%[{self.low:+.2f},{self.high:+.2f}]"


def interleave(
    variants: Mapping[str, Callable[[], float]], rounds: int, warm: int = 3
) -> dict[str, list[float]]:
    """Milliseconds of each variant in each round; every round runs all variants once, in an order of its own."""
    order = random.Random(1)
    names = list(variants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(warm):
        for name in names:
            variants[name]()
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            found[name].append(variants[name]())
    return found


def against(times: Mapping[str, list[float]], baseline: str, name: str) -> Paired:
    """``name`` against ``baseline``; a round whose ratio is far from the others (a clock change) is kept."""
    ratios = [math.log(t / b) for t, b in zip(times[name], times[baseline], strict=True)]
    mean = statistics.fmean(ratios)
    half = Z_95 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    low, mid, high = (100 * math.expm1(value) for value in (mean - half, mean, mean + half))
    return Paired(mid, low, high, len(ratios))
