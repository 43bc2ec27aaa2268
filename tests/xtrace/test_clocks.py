"""Clock extension and the anchor fit, against clocks whose truth is known."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringsim import Clocks

from gwatch.cuda.xtrace.clocks import extend32, fit_anchor, timer_step
from gwatch.errors import TraceError


@given(start=st.integers(0, 2**62), ticks=st.integers(0, 2**32 - 1))
def test_extend32_is_exact_below_one_wrap(start: int, ticks: int) -> None:
    low = np.array([(start + ticks) & 0xFFFFFFFF], np.uint32)
    assert extend32(low, np.array([start], np.int64))[0] == start + ticks


def test_timer_step() -> None:
    assert timer_step(np.array([1000, 1064, 1032, 5 * 32 + 1000])) == 32
    assert timer_step(np.array([7, 7])) == 0
    assert timer_step(np.array([], np.int64)) == 0


def pairs(
    clocks: Clocks, sm: int, times: list[float], lags: list[float] | None = None
) -> tuple[list[int], list[int]]:
    late = lags or [1.0] * len(times)
    return (
        [clocks.cycles(sm, t) for t in times],
        [clocks.ns(t + lag) for t, lag in zip(times, late, strict=True)],
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), sms=st.integers(1, 6), hz=st.floats(0.4e9, 2.4e9))
def test_five_microseconds_with_header_pairs_only(seed: int, sms: int, hz: float) -> None:
    """Entry and exit pairs of a few warps: every time in between within one timer step and a half."""
    rng = random.Random(seed)
    clocks = Clocks(steps=((0.0, hz),), seed=seed % 911)
    cycles, ns, sm = [], [], []
    for s in range(sms):
        times = [rng.uniform(0, 300) for _ in range(4)] + [5000 + rng.uniform(0, 300) for _ in range(4)]
        c, n = pairs(clocks, s, times)
        cycles += c
        ns += n
        sm += [s] * 8
    fit = fit_anchor(np.array(cycles), np.array(ns), np.array(sm))
    assert fit.report.sms == sms and fit.report.pairs <= 8 * sms
    for s in range(sms):
        t = np.linspace(0, 5300, 200)
        c = np.array([clocks.cycles(s, x) for x in t])
        error = fit.to_ns(c, np.full(200, s)) - clocks.ns_base - t
        assert np.abs(error + 16).max() <= 48


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_200_ms_with_frequency_steps_and_outliers(seed: int) -> None:
    """99.9 % within 64 ns of the ns timer, whatever steps the SM's clock takes and with 2 % interrupted
    reads."""
    rng = random.Random(seed)
    steps = [(0.0, 1.98e9)]
    for _ in range(rng.randrange(8)):
        steps.append((rng.uniform(0, 200e6), rng.choice([1.98e9, 1.965e9, 1.755e9, 1.2e9, 0.345e9])))
    clocks = Clocks(steps=sorted(steps), seed=seed % 911)
    cycles, ns, sm, truth = [], [], [], []
    for s in range(2):
        times = sorted(rng.uniform(0, 200e6) for _ in range(8000))
        lags = [rng.uniform(40, 3000) if rng.random() < 0.02 else rng.uniform(1, 6) for _ in times]
        c, n = pairs(clocks, s, times, lags)
        cycles += c
        ns += n
        sm += [s] * len(times)
        truth += [clocks.ns(t) for t in times]
    fit = fit_anchor(np.array(cycles), np.array(ns), np.array(sm))
    error = np.abs(fit.to_ns(np.array(cycles), np.array(sm)) - np.array(truth))
    assert np.quantile(error, 0.999) <= 64
    assert np.median(error) <= 16
    assert fit.report.outliers > 0.005 * len(times)
    assert fit.report.residual_p999_ns <= 32


def test_a_slow_ramp_of_small_steps_is_followed() -> None:
    steps = [(5e6 * k, 1.98e9 - 15e6 * k) for k in range(30)]
    clocks = Clocks(steps=steps)
    times = np.linspace(0, 160e6, 20_000).tolist()
    c, n = pairs(clocks, 0, times)
    fit = fit_anchor(np.array(c), np.array(n), np.zeros(len(c), int))
    error = np.abs(fit.to_ns(np.array(c), np.zeros(len(c), int)) - np.array(n))
    assert error.max() <= 64
    assert fit.report.segments < 200
    assert fit.report.clock_hz_max == pytest.approx(1.98e9, rel=1e-3)
    assert fit.report.clock_hz_min == pytest.approx(1.545e9, rel=1e-2)


def test_the_curve_never_runs_backwards() -> None:
    rng = random.Random(5)
    clocks = Clocks(steps=((0.0, 1.98e9), (1e6, 0.9e9), (2e6, 1.7e9)))
    times = sorted(rng.uniform(0, 3e6) for _ in range(3000))
    c, n = pairs(clocks, 0, times)
    fit = fit_anchor(np.array(c), np.array(n), np.zeros(len(c), int))
    grid = np.arange(c[0] - 2000, c[-1] + 2000, 500)
    assert (np.diff(fit.to_ns(grid, np.zeros(len(grid), int))) >= 0).all()


def test_sms_share_one_axis() -> None:
    clocks = Clocks()
    cycles, ns, sm = [], [], []
    for s in range(132):
        c, n = pairs(clocks, s, [10.0 * k for k in range(100)])
        cycles += c
        ns += n
        sm += [s] * 100
    fit = fit_anchor(np.array(cycles), np.array(ns), np.array(sm))
    barrier = np.array([clocks.cycles(s, 500.0) for s in range(132)])
    times = fit.to_ns(barrier, np.arange(132))
    assert times.max() - times.min() <= 16


def test_impossible_fits_are_refused() -> None:
    empty = np.array([], np.int64)
    with pytest.raises(TraceError, match=r"^\[anchor-no-pairs\]"):
        fit_anchor(empty, empty, empty)
    with pytest.raises(TraceError, match=r"^\[anchor-no-span\]"):
        fit_anchor(np.array([5, 5]), np.array([64, 64]), np.array([0, 0]))
    fit = fit_anchor(np.array([0, 2000]), np.array([0, 1024]), np.array([0, 0]))
    with pytest.raises(TraceError, match=r"^\[anchor-no-pairs\] SM 3"):
        fit.to_ns(np.array([5]), np.array([3]))


def test_half_a_million_pairs_are_fitted() -> None:
    """On 132 SMs, with a change of clock."""
    rng = np.random.default_rng(1)
    t = rng.uniform(0, 200e6, 500_000)
    sm = rng.integers(0, 132, 500_000)
    kink = np.maximum(t - 80e6, 0) * 0.2
    cycles = (t * 1.98 - kink).astype(np.int64) + sm * 12345
    ns = (t.astype(np.int64) // 32) * 32
    fit = fit_anchor(cycles, ns, sm)
    assert fit.report.residual_p999_ns <= 32 and fit.report.segments <= 132 * 8
