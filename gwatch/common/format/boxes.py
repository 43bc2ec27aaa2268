"""Box strips: how long one run of each scope takes, on a log scale, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gwatch.common.format.looks import Look
from gwatch.common.format.text import clip, duration

WIDTH, LABEL, RIGHT, LINE, TOP = 1120, 190, 90, 26, 24


def box_strips(stats: Sequence[Mapping[str, Any]], roles: Mapping[str, str], labels: Sequence[str],
               looks: Sequence[Look], unit: str) -> str:
    """SVG per scope, grouped by role: whisker min to max, box p25 to p75, median; "" without scopes."""
    if not stats:
        return ""
    low = math.log10(max(1, min(s["min"] for s in stats)))
    high = math.log10(max(2, max(s["max"] for s in stats)))
    low, high = math.floor(low * 4) / 4, math.ceil(high * 4) / 4
    high = max(high, low + 0.25)
    plot = WIDTH - LABEL - RIGHT

    def x(value: float) -> float:
        return LABEL + plot * (min(max(math.log10(max(value, 1)), low), high) - low) / (high - low)

    groups: dict[str, list[Mapping[str, Any]]] = {}
    for s in stats:
        groups.setdefault(roles.get(s["scope_label"], ""), []).append(s)
    parts, y = [], TOP
    for role in sorted(groups, key=lambda r: (r == "", r)):
        if role:
            parts.append(f'<text class="role" x="0" y="{y + 17}">{escape(role)}</text>')
            y += LINE
        for s in groups[role]:
            parts.append(_strip(s, looks[labels.index(s["scope_label"])], y, x, unit))
            y += LINE
    ticks = "".join(
        f'<line class="grid" x1="{x(v):.1f}" x2="{x(v):.1f}" y1="{TOP - 4}" y2="{y}"/>'
        f'<text class="tick" x="{x(v):.1f}" y="{TOP - 9}">{escape(duration(v, unit))}</text>'
        for v in _ticks(low, high))
    return (f'<svg class="boxes" viewBox="0 0 {WIDTH} {y + 6}" role="img" '
            f'aria-label="Distribution of durations per scope">{ticks}{"".join(parts)}</svg>')


def _ticks(low: float, high: float) -> list[int]:
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    values = [m * 10 ** e for e in range(math.floor(low), math.ceil(high) + 1) for m in steps]
    return [v for v in values if 10 ** low <= v * 1.0001 and v <= 10 ** high * 1.0001]


def _strip(s: Mapping[str, Any], look: Look, y: int, x: Any, unit: str) -> str:
    middle = y + LINE // 2
    label = escape(clip(str(s["scope_label"]), 26))
    title = escape(f"{s['scope_label']}: " + ", ".join(
        f"{k} {duration(s[k], unit)}" for k in ("min", "p25", "p50", "mean", "p75", "p95", "max")))
    width = max(2.0, x(s["p75"]) - x(s["p25"]))
    value = escape(duration(s["p50"], unit))
    return (f'<g class="{look.css}"><title>{title}</title>'
            f'<text class="label" x="{LABEL - 12}" y="{middle + 4}">{label}</text>'
            f'<path class="whisker" d="M{x(s["min"]):.1f} {middle}H{x(s["max"]):.1f}"/>'
            f'<rect class="box" x="{x(s["p25"]):.1f}" y="{middle - 7}" width="{width:.1f}" height="14"/>'
            f'<path class="median" d="M{x(s["p50"]):.1f} {middle - 8}v16"/>'
            f'<text class="value" x="{WIDTH - RIGHT + 12}" y="{middle + 4}">{value}</text></g>')
