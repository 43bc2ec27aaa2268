"""How often a scope took how long: histograms as inline SVG, bins that fit the clock's step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from gwatch.common.format.looks import Look, looks
from gwatch.common.format.losses import I64
from gwatch.common.format.run import Run
from gwatch.common.format.text import clip, duration

BINS = 48
TAIL = 3.0
"""Where the maximum is this many times the 99th percentile, what lies above the latter shares one last bin."""
MAX_SCOPES = 12
WIDTH, HIGH, FOOT, HEAD = 360, 64, 18, 18


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` durations lie in [low + i × width, low + (i + 1) × width); ``above`` lie beyond the last."""

    low: int
    width: int
    counts: I64
    above: int
    top: int
    """The largest duration."""


def histogram(durations: I64) -> Histogram:
    """Bins of a non-empty array. Widths are whole multiples of the step that all durations share."""
    ordered = np.sort(durations)
    low, top = int(ordered[0]), int(ordered[-1])
    last = int(ordered[max(0, int(np.ceil(0.99 * len(ordered))) - 1)])
    end = last if top > TAIL * max(last, 1) else top
    # Bins narrower than the clock's step, or no multiple of it, would show combs that are not there.
    step = max(1, int(np.gcd.reduce(ordered - low)))
    width = max(1, -(-(end - low + 1) // (BINS * step))) * step
    number = (end - low) // width + 1
    place = (ordered - low) // width
    return Histogram(low, width, np.bincount(place[place < number], minlength=number).astype(np.int64),
                     int((place >= number).sum()), top)


def histograms(run: Run, stats: Sequence[Mapping[str, object]]) -> str:
    """One picture per scope, longest total first; "" without scopes."""
    length = run.intervals.end - run.intervals.start
    parts, look = [], looks(run)
    for s in stats[:MAX_SCOPES]:
        k = run.labels.index(str(s["scope_label"]))
        parts.append(_picture(histogram(length[run.scope == k]), str(s["scope_label"]), look[k], run.unit))
    return f'<div class="histograms">{"".join(parts)}</div>' if parts else ""


def _picture(h: Histogram, label: str, look: Look, unit: str) -> str:
    bars = [*h.counts.tolist(), *([h.above] if h.above else [])]
    peak, step = max(bars), WIDTH / max(12, len(bars))
    body = []
    for i, n in enumerate(bars):
        if n == 0:
            continue
        first = h.low + i * h.width
        if i == len(h.counts):
            text = f"{duration(first, unit)} to {duration(h.top, unit)}: {n:,}"
        elif h.width == 1:
            text = f"{duration(first, unit)}: {n:,}"
        else:
            text = f"{duration(first, unit)} to below {duration(first + h.width, unit)}: {n:,}"
        # One in a million still gets a pixel: rare long runs are what one looks for.
        tall = max(1.0, n / peak * HIGH)
        kind = ' class="above"' if i == len(h.counts) else ""
        body.append(f'<rect{kind} x="{i * step:.1f}" y="{HEAD + HIGH - tall:.1f}" width="{max(1.0, step - 1):.1f}" '
                    f'height="{tall:.1f}"><title>{escape(text)}</title></rect>')
    right = ("more, to " if h.above else "") + duration(h.top, unit)
    return (f'<svg class="{look.css}" viewBox="0 0 {WIDTH} {HEAD + HIGH + FOOT}" role="img" '
            f'aria-label="{escape(f"Histogram of {label}")}"><text x="0" y="12">{escape(clip(label, 30))}</text>'
            f'<text class="soft end" x="{WIDTH}" y="12">{int(h.counts.sum()) + h.above:,} runs, bins of '
            f'{escape(duration(h.width, unit))}</text>{"".join(body)}'
            f'<path class="axis" d="M0 {HEAD + HIGH + 0.5}H{WIDTH}"/>'
            f'<text class="soft" x="0" y="{HEAD + HIGH + 14}">{escape(duration(h.low, unit))}</text>'
            f'<text class="soft end" x="{WIDTH}" y="{HEAD + HIGH + 14}">{escape(right)}</text></svg>')
