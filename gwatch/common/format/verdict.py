"""Whether a trace can be believed: stated rules over the evidence that came with it.

``yes`` needs evidence that outputs stayed the same and that the kernel kept its speed; ``no`` needs one
broken rule; everything else is ``unknown``, with what is missing. Nothing is assumed in the trace's favour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_SLOWDOWN = 1.10
"""A traced kernel slower than this (and beyond its noise) shows other timings than the plain one. It kept its speed
where all of what was measured says so: the median, the end of its interval, and how far plain launches differ."""
CERTAIN = 3.0
"""A median beyond the limit counts against a trace where it lies this many times the noise above 1."""
MORE_PASSES = 25
"""Passes to advise where those made don't tell; four times as many where those were no fewer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``trustworthy`` is "yes", "no" or "unknown"; ``reasons`` say why it is not "yes"."""

    trustworthy: str
    line: str
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"trustworthy": self.trustworthy, "line": self.line, "reasons": list(self.reasons)}


def judge(evidence: Mapping[str, Any], n_records: int, region_stats: Sequence[Mapping[str, Any]],
          rows_with_drops: int, n_rows: int, depth_needed: int | None = None,
          apart: Collection[str] = (), steps_back: tuple[int, str] = (0, ""), lost_more: bool = False) -> Verdict:
    """Verdict over ``evidence`` (keys outputs, outputs_detail, dropped, slowdown, cost_per_record, registers,
    occupancy); ``depth_needed`` is the record budget per thread that would have kept everything, if known;
    ``apart`` are the labels of regions whose two sites never record in one row; ``steps_back`` says how many records
    have an earlier time than the one ahead of them, and by how much at most; ``lost_more``: whether a dropped
    one may have been the record of several sites.
    """
    against: list[str] = []
    missing: list[str] = []
    parts = [_outputs(evidence.get("outputs"), evidence.get("outputs_detail") or (), against, missing)]
    dropped = int(evidence.get("dropped") or 0)
    parts.append(f"dropped {dropped}")
    if n_records == 0:
        against.append("no records")
    if dropped:
        share = dropped / (dropped + n_records)
        rows = f" in {rows_with_drops} of {n_rows} rows" if rows_with_drops else ""
        cure = f"; a depth of {depth_needed} (--depth, sass_per_thread_records) keeps all" if depth_needed else ""
        least = "at least " if lost_more else ""
        against.append(f"{least}{dropped} records ({least}{share:.1%}){rows} were dropped: totals are incomplete{cure}")
    elif evidence.get("dropped") is None:
        missing.append("drops not counted")
    parts.append(_slowdown(evidence.get("slowdown"), against, missing))
    cost = evidence.get("cost_per_record")
    if cost is not None:
        parts.append(f"{float(cost):.0f} cycles/record")
    parts += _resources(evidence, against)
    for region in region_stats:
        alone = region["dropped"] - region["at_edges"]
        if region["label"] in apart:
            against.append(f"region {region['label']}: one of sites {region['enter_site']} and "
                           f"{region['leave_site']} records threads, the other warps, so they share no row: make both "
                           "warp_level or neither")
        elif alone:
            against.append(f"region {region['label']}: {alone} boundary records inside rows have no partner "
                           f"(pair rate {region['pair_rate']:.1%}, {region['broken_by_drops']} beside drops)")
        if region["backwards"]:
            against.append(f"region {region['label']}: {region['backwards']} intervals end before they begin")
    if steps_back[0]:
        against.append(f"{steps_back[0]} records are earlier than the one ahead of them in their row, by up to "
                       f"{steps_back[1]}: a wrong clock, or a damaged file")
    word = "no" if against else "unknown" if missing else "yes"
    line = " · ".join([f"trustworthy: {word}", *(part for part in parts if part)])
    return Verdict(word, line, (*against, *missing))


def cost_unknown(evidence: Mapping[str, Any], n_records: int) -> str | None:
    """Why a trace has no cost per record; None where it has one."""
    if evidence.get("cost_per_record") is not None:
        return None
    slowdown, sampled = evidence.get("slowdown"), evidence.get("sampled")
    if n_records == 0:
        return "nothing was recorded"
    if not slowdown:
        return "the slowdown was not measured (gwatch trace --verify measures it)"
    if sampled:
        return "only some CTAs record, so the launch's extra time is not all records in a row"
    median, noise = float(slowdown["median"]), float(slowdown.get("noise") or 0.0)
    if median - 1 <= noise:
        return f"the extra time ({median - 1:+.1%}) does not stand out of the noise ({noise:.1%})"
    return "it was not worked out where the trace was taken"


def _outputs(outputs: Any, details: Sequence[Any], against: list[str], missing: list[str]) -> str:
    if not outputs:
        missing.append("outputs not compared")
        return "outputs not checked"
    text = str(outputs)
    word, _, why = text.partition(":")
    which = f" ({details[0]})" if len(details) and not why else ""
    if text.startswith("differ"):
        against.append(f"outputs {text}: the traced kernel computed something else{which}")
    elif text.startswith("nondeterministic"):
        missing.append(f"outputs of plain runs differ already, so the traced run's prove little{which}")
    elif not text.startswith("identical"):
        missing.append(f"outputs {text}")
    return f"outputs {word.strip()}"


def _slowdown(slowdown: Any, against: list[str], missing: list[str]) -> str:
    if not slowdown:
        missing.append("slowdown not measured")
        return "slowdown not measured"
    median, noise = float(slowdown["median"]), float(slowdown.get("noise") or 0.0)
    low, high = (float(median if slowdown.get(end) is None else slowdown[end]) for end in ("low", "high"))
    passes = int(slowdown.get("passes") or 0)
    advice = max(MORE_PASSES, 4 * passes)
    if median > MAX_SLOWDOWN and median - 1 > CERTAIN * noise:
        against.append(f"slowdown {median:.3f} is above {MAX_SLOWDOWN:.2f}: timings are distorted")
    elif median > MAX_SLOWDOWN:
        count = f" in {passes} passes" if passes else ""
        missing.append(f"slowdown {median:.3f} may be noise ({noise:.3f}{count}): trace with --passes {advice} "
                       f"(do_trace: passes={advice})")
    elif high > MAX_SLOWDOWN or noise > MAX_SLOWDOWN - 1:
        count = f", {passes} passes" if passes else ""
        missing.append(f"speed not known: slowdown {low:.3f} to {high:.3f} (noise {noise:.3f}{count}), a short launch "
                       f"takes more: --passes {advice}")
    return f"slowdown {median:.3f} (noise {noise:.3f})"


def _resources(evidence: Mapping[str, Any], against: list[str]) -> list[str]:
    parts = []
    registers, occupancy = evidence.get("registers"), evidence.get("occupancy")
    if registers:
        parts.append(f"registers {registers['before']}→{registers['after']}")
    if occupancy:
        before, after = occupancy["before"], occupancy["after"]
        needed = occupancy.get("needed")
        parts.append(f"{before}→{after} CTAs/SM" + (f" ({needed} needed)" if needed and before != after else ""))
        # A launch with fewer CTAs than fit at once loses nothing until they no longer fit.
        wanted = before if before is None else min(before, occupancy.get("needed") or before)
        if wanted is not None and after is not None and after < wanted:
            against.append(f"occupancy fell from {before} to {after} CTAs/SM: fewer run at once"
                           + (f", and the grid has {needed} for each SM" if needed else ""))
    return parts
