"""Clock readings to times.

32-bit readings are extended to 64 bits from the pair that every warp leaves in its header. For the ``anchor``
clock the SM's cycle counter is mapped to the GPU-wide ns axis by all (cycles, ns) pairs of that SM: a
continuous piecewise-linear curve, whose knots are added only where the pairs show that the SM's clock changed
its rate.

The ns timer moves in steps (32 ns on the H200), so that a single pair is good to one step; many pairs are
better. The fitted curve passes through the middle of the readings: it agrees with what a read of the ns timer
would have given, rounded down to its step, within half a step and the fit's residual.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.errors import TraceError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_CLOCK_HZ = 3.0e9
"""No SM clock is faster: 32 bits of cycles last at least 1.43 s."""

CYCLE_WRAP_NS = 2.0**32 / MAX_CLOCK_HZ * 1e9
TIMER_WRAP_NS = 2.0**32

FLAG_NS = 64.0
"""An anchor residual above this is reported as a warning."""
FLAG_GAP_NS = 5.0e6
"""Clock pairs further apart than this are, too: a clock change between them can be off by microseconds."""

# Spread of cycles (squared, summed over pairs) from which on a stretch of pairs tells its own slope.
_SLOPE_PRIOR = 1.0e6


def extend32(low: npt.NDArray[np.uint32], start: Ints) -> Ints:
    """64-bit times of 32-bit readings ``low`` taken less than 2**32 ticks after the 64-bit ``start`` (same
    shape)."""
    since = low - start.astype(np.uint32)
    return start + since.astype(np.int64)


def timer_step(ns: Ints) -> int:
    """The ns timer's step: the largest number that divides all differences of its readings (0: a single
    reading)."""
    if len(ns) == 0:
        return 0
    return int(np.gcd.reduce(np.unique(ns - ns.min())))


@dataclass(frozen=True, slots=True)
class AnchorReport:
    """How well the cycle counters were mapped to the ns axis. Residuals are |curve - reading| in ns over the
    pairs kept; ``gap_max_ns`` the longest time between neighbouring pairs of an SM; ``outliers`` are pairs
    that were interrupted between the two reads and left out of the fit."""

    pairs: int
    outliers: int
    sms: int
    segments: int
    timer_step_ns: int
    residual_max_ns: float
    residual_p999_ns: float
    gap_max_ns: float
    clock_hz_min: float
    clock_hz_max: float

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Curve:
    """ns offsets ``values`` at cycle offsets ``knots`` of one SM; linear between, end slopes outside."""

    cycle0: int
    knots: Floats
    values: Floats

    def at(self, cycles: Ints) -> Floats:
        c = (cycles - self.cycle0).astype(np.float64)
        k, v = self.knots, self.values
        if len(k) == 2:
            straight: Floats = (c - k[0]) * ((v[1] - v[0]) / (k[1] - k[0])) + v[0]
            return straight
        i = np.clip(np.searchsorted(k, c, side="right") - 1, 0, len(k) - 2)
        slopes: Floats = np.diff(v) / np.diff(k)
        result: Floats = v[i] + (c - k[i]) * slopes[i]
        return result


@dataclass(frozen=True, slots=True)
class AnchorFit:
    """Per-SM curves from cycles to ns on one GPU-wide axis."""

    origin_ns: int
    curves: dict[int, _Curve]
    report: AnchorReport

    def to_ns(self, cycles: Ints, sm: npt.NDArray[Any]) -> Ints:
        """int64 ns of int64 ``cycles`` read on SMs ``sm`` (same length).

        Raises TraceError ``anchor-no-pairs`` for an SM without pairs.
        """
        out = np.empty(len(cycles), np.int64)
        for start, stop in _runs(sm):
            curve = self.curves.get(int(sm[start]))
            if curve is None:
                raise TraceError("anchor-no-pairs", f"SM {int(sm[start])} left no clock pair")
            out[start:stop] = self.origin_ns + np.rint(curve.at(cycles[start:stop])).astype(np.int64)
        return out


def _runs(keys: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """(start, stop) of each run of equal keys."""
    if len(keys) == 0:
        return []
    cuts = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    edges = [0, *cuts.tolist(), len(keys)]
    return list(itertools.pairwise(edges))


def fit_anchor(cycles: Ints, ns: Ints, sm: npt.NDArray[Any]) -> AnchorFit:
    """Fits each SM's cycle counter to the ns axis.

    ``cycles``, ``ns`` (64-bit readings taken back to back) and ``sm`` have one length and any order. Raises
    TraceError ``anchor-no-pairs`` without pairs and ``anchor-no-span`` when no SM's pairs span any time.
    """
    if len(cycles) == 0:
        raise TraceError("anchor-no-pairs", "the ring holds no clock pair")
    order = _by_sm_and_cycle(sm, cycles)
    cycles, ns, sm = cycles[order], ns[order], sm[order]
    # Lanes of one instruction read the same pair: it counts once.
    new = np.ones(len(sm), bool)
    new[1:] = (cycles[1:] != cycles[:-1]) | (sm[1:] != sm[:-1]) | (ns[1:] != ns[:-1])
    cycles, ns, sm = cycles[new], ns[new], sm[new]
    origin = int(ns.min())
    step = timer_step(ns)
    groups = _runs(sm)
    rate = _common_rate(cycles, ns, groups, step)

    curves: dict[int, _Curve] = {}
    residuals = []
    outliers = segments = 0
    gap = 0.0
    slopes = []
    for start, stop in groups:
        c0 = int(cycles[start])
        c = (cycles[start:stop] - c0).astype(np.float64)
        n = (ns[start:stop] - origin).astype(np.float64)
        curve, keep = _fit_curve(c0, c, n, rate, max(step, 1))
        curves[int(sm[start])] = curve
        gap = max(gap, float(np.diff(n[keep]).max(initial=0.0)))
        residuals.append(np.abs(curve.at(cycles[start:stop]) - n)[keep])
        outliers += int((~keep).sum())
        segments += len(curve.knots) - 1
        lengths = np.diff(curve.knots)
        slopes.append((np.diff(curve.values) / lengths)[lengths >= 0.1 * lengths.max()])
    res = np.concatenate(residuals)
    all_slopes = np.concatenate(slopes)
    all_slopes = all_slopes[all_slopes > 0] if (all_slopes > 0).any() else np.array([rate])
    report = AnchorReport(
        pairs=len(cycles),
        outliers=outliers,
        sms=len(groups),
        segments=segments,
        timer_step_ns=step,
        residual_max_ns=float(res.max()),
        residual_p999_ns=float(np.quantile(res, 0.999)),
        gap_max_ns=gap,
        clock_hz_min=1e9 / float(all_slopes.max()),
        clock_hz_max=1e9 / float(all_slopes.min()),
    )
    return AnchorFit(origin, curves, report)


def _by_sm_and_cycle(sm: npt.NDArray[Any], cycles: Ints) -> npt.NDArray[np.intp]:
    """The order by SM, then cycles: one sort of one key where the counters' range allows."""
    names, number = np.unique(sm, return_inverse=True)
    start = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(start, number, cycles)
    since = cycles - start[number]
    if int(since.max()) >= 1 << 48 or len(names) >= 1 << 14:
        return np.lexsort((cycles, sm))
    return np.argsort(number.astype(np.int64) << 48 | since, kind="stable")


def _common_rate(cycles: Ints, ns: Ints, groups: list[tuple[int, int]], step: int) -> float:
    """ns per cycle over all SMs: the median of each SM's slope between its outer quarters of
    pairs."""
    rates, spans = [], []
    for start, stop in groups:
        c, n = cycles[start:stop], ns[start:stop]
        quarter = max(1, len(c) // 4)
        dc = float(np.median(c[-quarter:] - c[0])) - float(np.median(c[:quarter] - c[0]))
        dn = float(np.median(n[-quarter:] - n[0])) - float(np.median(n[:quarter] - n[0]))
        if dc > 0 and dn > 0:
            rates.append(dn / dc)
            spans.append(dc)
    if not rates:
        raise TraceError(
            "anchor-no-span",
            f"{len(cycles)} clock pairs on {len(groups)} SMs span no time (timer step {step} ns)",
            "use the gpu or sm clock for so short a kernel",
        )
    order = np.argsort(rates)
    weights = np.cumsum(np.asarray(spans)[order])
    middle = int(np.searchsorted(weights, weights[-1] / 2))
    return float(np.asarray(rates)[order][middle])


def _fit_curve(c0: int, c: Floats, n: Floats, rate: float, step: int) -> tuple[_Curve, npt.NDArray[np.bool_]]:
    """The curve of one SM through its pairs (``c`` ascends), and which of them it kept.

    The fewest lines, found from left to right, such that each passes within one timer step of all its pairs
    but isolated outliers; between two lines the curve goes straight.
    """
    knots: list[float] = []
    values: list[float] = []
    keep = np.ones(len(c), bool)
    start = 0
    line: _Line | None = None
    while start < len(c):
        if _late(c, n, start, line, rate, step):
            keep[start] = False
            start += 1
            continue
        stop, line = _longest_line(c, n, start, rate, step)
        keep[start:stop] = line.keep
        first, last = float(c[start]), float(c[stop - 1])
        for place in (first, last):
            if not knots or place > knots[-1]:
                knots.append(place)
                values.append(line.at(place))
        start = stop
    # Outside its pairs the curve follows the common rate.
    margin = 1000.0
    knots = [knots[0] - margin, *knots, knots[-1] + margin]
    values = [values[0] - margin * rate, *values, values[-1] + margin * rate]
    # Where two lines meet they may disagree; time still never runs backwards. Readings err to the late side,
    # so the earlier value gives way.
    falling = np.minimum.accumulate(np.asarray(values)[::-1])[::-1]
    return _Curve(c0, np.asarray(knots), falling), keep


@dataclass(frozen=True, slots=True)
class _Line:
    mean_c: float
    mean_n: float
    slope: float
    keep: npt.NDArray[np.bool_]

    def at(self, place: float) -> float:
        return self.mean_n + self.slope * (place - self.mean_c)


def _late(c: Floats, n: Floats, start: int, before: _Line | None, rate: float, step: int) -> bool:
    """Whether the pair at ``start`` is late for the line before it and for the one that begins after it."""
    after = (
        _line(c[start + 1 : start + 17], n[start + 1 : start + 17], rate, step)
        if start + 17 <= len(c)
        else None
    )
    if after is None:
        return False
    expected = max(after.at(float(c[start])), before.at(float(c[start])) if before else -np.inf)
    return bool(n[start] - expected > 1.5 * step)


def _longest_line(c: Floats, n: Floats, start: int, rate: float, step: int) -> tuple[int, _Line]:
    """(stop, line): the longest stretch of pairs from ``start`` that one line explains, by doubling and
    halving."""
    one = slice(start, start + 1)
    good, best = start + 1, _least_squares(c[one], n[one], np.ones(1, bool), rate)[0]
    size, bad = 64, len(c) + 1
    while good < len(c) and good < bad - 1:
        stop = min(len(c), start + size) if bad > len(c) else (good + bad) // 2
        line = _line(c[start:stop], n[start:stop], rate, step)
        if line is None:
            bad = stop
        else:
            good, best = stop, line
        size *= 2
    return good, best


def _line(c: Floats, n: Floats, rate: float, step: int) -> _Line | None:
    """The least-squares line through a stretch of pairs, or None when it misses one that is no isolated
    outlier.

    A pair interrupted between its two reads is an outlier: its ns are late. At most one pair in sixteen may
    be, no more than three in a row, and none at the ends, where it could be a change of the SM's clock.
    """
    line, res = _least_squares(c, n, np.ones(len(c), bool), rate)
    if np.abs(res).max() <= step:
        return line
    if len(c) < 16:
        return None
    # The outliers bend the first line: judge them from the median of the neighbourhood.
    lone = np.abs(res - _running_median(res)) > 1.5 * step
    if lone.sum() * 16 > len(c) or lone[0] or lone[-1] or _longest_run(lone) > 3:
        return None
    if res[lone].min(initial=1.0) < 0:
        return None
    line, res = _least_squares(c, n, ~lone, rate)
    return line if np.abs(res[~lone]).max() <= step else None


def _least_squares(c: Floats, n: Floats, keep: npt.NDArray[np.bool_], rate: float) -> tuple[_Line, Floats]:
    """Line through the pairs kept, and all residuals. The slope leans towards ``rate`` where the pairs span
    less than a thousand cycles or so and would only tell timer steps."""
    x, y = c[keep], n[keep]
    mean_c, mean_n = float(x.mean()), float(y.mean())
    dx = x - mean_c
    slope = (float(dx @ (y - mean_n)) + _SLOPE_PRIOR * rate) / (float(dx @ dx) + _SLOPE_PRIOR)
    res: Floats = n - mean_n - slope * (c - mean_c)
    return _Line(mean_c, mean_n, slope, keep), res


def _longest_run(flags: npt.NDArray[np.bool_]) -> int:
    """Length of the longest run of True; the first and last flag are False."""
    clear = np.flatnonzero(~flags)
    return int(np.diff(clear).max()) - 1


def _running_median(values: Floats) -> Floats:
    """Median of the nine values around each."""
    padded = np.concatenate([values[4:0:-1], values, values[-2:-6:-1]])
    result: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, 9), axis=1)
    return result
