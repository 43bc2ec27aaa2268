"""How scopes look on the page: a colour each, and stripes for waits, so that no two side by side are alike."""

from __future__ import annotations

from dataclasses import dataclass

from gwatch.common.format.payload import lonely_sites
from gwatch.common.format.run import Run
from gwatch.common.format.waits import WAITING

INKS = 7
"""Colours that people tell apart, whatever their eyes (``--ink0`` to ``--ink6`` of the page's style)."""
SOLID, DOTS, STRIPES = 0, 1, 2
HATCHES = 5
"""Solid, dots, and the ways that stripes run."""


@dataclass(frozen=True, slots=True)
class Look:
    """A colour by its number, and how it fills: ``SOLID``, ``DOTS``, or from ``STRIPES`` on a way of stripes."""

    ink: int
    hatch: int

    @property
    def css(self) -> str:
        return f"ink{self.ink}" + (f" hatch{self.hatch}" if self.hatch else "")


def looks(run: Run) -> list[Look]:
    """Of each scope, then of each recorded site without a region: work in plain colours, waits striped, in the colours
    that work left over first. What comes after all colours were used is dotted, or striped another way; sites are lines
    too thin for either."""
    n, waits = len(run.labels), [bool(WAITING.search(label)) for label in run.labels]
    order = [*sorted(range(n), key=lambda k: (waits[k], k)), *range(n, n + len(lonely_sites(run)))]
    found, count = [Look(0, SOLID)] * len(order), [0, 0]
    for place, k in enumerate(order):
        hatch = SOLID
        if k < n:
            turn = count[waits[k]] // INKS
            count[waits[k]] += 1
            hatch = STRIPES + turn % (HATCHES - STRIPES) if waits[k] else min(turn, DOTS)
        found[k] = Look(place % INKS, hatch)
    return found
