"""How long the matched launch takes with and without records: events around it, and honest statistics.

An event recorded while the GPU is idle is reached at once, so that the host's own launch time would be
counted (6 µs for a 2 µs kernel on the H200). A kernel that spins for some µs in front keeps the GPU busy
until event, launch and event are all queued: what remains on top of the kernel is about 1.4 µs, with a
spread of 0.1 µs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from statistics import median

from gwatch.cuda.driver import Driver
from gwatch.errors import GWatchError

SPIN_NS = 100_000
"""How long the kernel in front spins: longer than Python takes to enqueue a launch and an event."""
_SPIN_PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry gwatch_spin(.param .u32 spin_ns)
{
    .reg .u64 %t<4>;
    .reg .u32 %n;
    .reg .pred %p;
    ld.param.u32 %n, [spin_ns];
    cvt.u64.u32 %t0, %n;
    mov.u64 %t1, %globaltimer;
again:
    mov.u64 %t2, %globaltimer;
    sub.u64 %t3, %t2, %t1;
    setp.lt.u64 %p, %t3, %t0;
    @%p bra again;
    ret;
}
\0"""


class LaunchTimer:
    """Event pairs around launches, in the contexts they run in. ``before`` and ``after`` only enqueue."""

    def __init__(self, driver: Driver, spin_ns: int = SPIN_NS) -> None:
        self._driver = driver
        self._free: dict[int, list[tuple[int, int]]] = {}
        self._spin: int | None = None
        self._value = ctypes.c_uint32(spin_ns)
        self._parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._value))

    def prepare(self, context: int, pairs: int) -> None:
        """Make event pairs and the spin kernel ready for a context (which must be current)."""
        if self._spin is None:
            try:
                self._spin = self._driver.library_kernel(self._driver.load_library(_SPIN_PTX), "gwatch_spin")
            except GWatchError:
                self._spin = 0  # no PTX compiler beside the driver: times then include the launch itself
        if self._spin:
            self._driver.kernel_function(self._spin)
        pool = self._free.setdefault(context, [])
        while len(pool) < pairs:
            pool.append((self._driver.create_event(), self._driver.create_event()))

    @property
    def spins(self) -> bool:
        """Whether launches are timed behind a spinning kernel."""
        return bool(self._spin)

    def before(self, context: int, stream: int) -> tuple[int, int] | None:
        """Enqueue the first event; None when this context's event pairs are used up."""
        pool = self._free.get(context)
        if not pool:
            return None
        pair = pool.pop()
        if self._spin:
            self._driver.launch(
                self._spin, (1, 1, 1), (1, 1, 1), ctypes.addressof(self._parameters), stream=stream
            )
        self._driver.record_event(pair[0], stream)
        return pair

    def after(self, pair: tuple[int, int], stream: int) -> None:
        """Enqueue the second event."""
        self._driver.record_event(pair[1], stream)

    def take(self, context: int, pair: tuple[int, int]) -> float | None:
        """Nanoseconds of a finished pair, which is free again; None if it was not reached."""
        self._free[context].append(pair)
        elapsed = self._driver.elapsed_ms(*pair)
        return None if elapsed is None else elapsed * 1e6

    def close(self, context: int) -> None:
        """Free a context's events (it must be current)."""
        for pair in self._free.pop(context, []):
            for event in pair:
                self._driver.destroy_event(event)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Traced over plain time of one launch.

    ``median``: of the ratios of neighbouring plain and traced passes. ``low``, ``high``: an interval for
    it at ``confidence`` (order statistics; the extremes for few passes). ``noise``: how far from 1 such an interval
    reaches for the ratios of neighbouring plain passes, the same measurement with nothing changed (A/A).
    """

    median: float
    low: float
    high: float
    confidence: float
    noise: float
    plain_ns: float
    traced_ns: float
    passes: int

    def to_json(self) -> dict[str, float | int]:
        """Plain numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def slowdown(plain: list[float], traced: list[float]) -> Slowdown | None:
    """Compare paired times in ns, equally long lists in the order of the passes; None without any."""
    if not plain or len(plain) != len(traced) or min(plain) <= 0:
        return None
    ratios = sorted(t / p for p, t in zip(plain, traced, strict=True))
    same = sorted(b / a for a, b in pairwise(plain))
    rank, missed = _rank(len(ratios))
    edge = _rank(len(same))[0]
    noise = max(abs(same[edge] - 1.0), abs(same[-1 - edge] - 1.0)) if same else 0.0
    return Slowdown(
        median(ratios),
        ratios[rank],
        ratios[-1 - rank],
        max(0.0, 1.0 - missed),
        noise,
        median(plain),
        median(traced),
        len(ratios),
    )


def _rank(count: int) -> tuple[int, float]:
    """(k, how likely the median lies outside the interval from the k-th smallest to the k-th largest of ``count``), k
    from 0 and as large as 5 % allow: 2 sum_{i<=k} C(n,i)/2^n."""
    rank, missed = 0, 2.0 / 2**count
    while rank + 1 < count // 2 and missed + 2.0 * comb(count, rank + 1) / 2**count <= 0.05:
        rank += 1
        missed += 2.0 * comb(count, rank) / 2**count
    return rank, missed
