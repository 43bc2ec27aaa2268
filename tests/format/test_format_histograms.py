"""Histograms: every duration is in exactly one bin, and bins are as wide as the clock can tell apart."""

from __future__ import annotations

import re
from math import gcd

import numpy as np
from format_synth import REGIONS, ROLES, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.common.format.histograms import BINS, TAIL, histogram, histograms
from gwatch.common.format.run import run_of


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=60), st.sampled_from([1, 32, 7]),
       st.sampled_from([0, 20, 34]))
def test_every_duration_is_in_its_bin(values, step, shift):
    values = [(v >> shift) * step for v in values]
    h = histogram(np.array(values, np.int64))
    assert 1 <= len(h.counts) <= BINS and h.low == min(values) and h.top == max(values)
    for i, n in enumerate(h.counts.tolist()):
        assert n == sum(h.low + i * h.width <= v < h.low + (i + 1) * h.width for v in values)
    assert h.above == sum(v >= h.low + len(h.counts) * h.width for v in values)
    assert int(h.counts.sum()) + h.above == len(values)
    shared = 0
    for v in values:
        shared = gcd(shared, v - h.low)
    assert h.width % max(1, shared) == 0


def test_one_long_run_does_not_flatten_the_rest():
    values = np.r_[np.arange(1000) % 50 + 100, 1_000_000]
    h = histogram(values)
    assert (h.width, h.above, h.low, h.top, len(h.counts)) == (2, 1, 100, 1_000_000, 25)
    assert h.counts.tolist() == [40] * 25
    near = np.r_[np.arange(1000) % 50 + 100, int(TAIL * 149)]
    assert histogram(near).above == 0


def test_the_pictures_tell_the_counts():
    run = run_of(specialised(), REGIONS, ROLES)
    text = histograms(run, run.analysis["scope_stats"])
    pictures = text.split("<svg")[1:]
    assert len(pictures) == 3
    for picture, s in zip(pictures, run.analysis["scope_stats"], strict=True):
        told = [int(n.replace(",", "")) for n in re.findall(r"<title>[^<]*: ([\d,]+)</title>", picture)]
        assert sum(told) == s["count"] and f"Histogram of {s['scope_label']}" in picture
        assert f"{s['count']:,} runs" in picture


def test_no_regions_no_picture_and_labels_are_escaped():
    assert histograms(run_of(specialised(), None), []) == ""
    run = run_of(result_of({(0, 0): [(0, 1), (1, 5)]}, (1, 1, 1), (32, 1, 1)), [(0, 1, "<b>\"&")])
    text = histograms(run, run.analysis["scope_stats"])
    assert "<b>" not in text and "&lt;b&gt;" in text and "<title>4 ns: 1</title>" in text
