"""What a report read from a file says about its recording, checked before any view relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from gwatch.common.format.listing import fits
from gwatch.errors import TraceError


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _before_after(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        key in value and (value[key] is None or _number(value[key])) for key in ("before", "after"))


def _slowdown(value: Any) -> bool:
    return isinstance(value, Mapping) and _number(value.get("median")) and all(
        value.get(key) is None or _number(value[key]) for key in ("low", "high", "noise")) and isinstance(
        value.get("passes", 0), int | None)


def _clock(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _number(value.get(key)) for key in ("pairs", "sms", "residual_p999_ns", "timer_step_ns"))


def _sites(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(site, Mapping) and isinstance(site.get("site_id", 0), int)
        and all(isinstance(site.get(key), int | None) for key in ("index", "pc"))
        for site in value)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _object(value: Any) -> bool:
    return isinstance(value, Mapping)


FORMS: dict[str, Callable[[Any], bool]] = {
    "outputs": lambda value: isinstance(value, str),
    "outputs_detail": _list,
    "dropped": lambda value: isinstance(value, int) and value >= 0,
    "cost_per_record": _number,
    "slowdown": _slowdown,
    "registers": _before_after,
    "occupancy": _before_after,
    "clock": _clock,
    "sampled": _object,
    "sites": _sites,
    "warnings": _list,
    "launch": _object,
    "scope_roles": _object,
    "site_regions": _list,
}
"""Entry of ``analysis`` -> does a value that is not null have the form that the views expect?"""


OWN = ("records", "trace_results")
"""Entries of a run whose numbers are checked where they are read."""


def check_numbers(data: Any, where: str, skip: tuple[str, ...] = ()) -> None:
    """Refuse numbers that no view and no other form of the report could hold: integers beyond 64 bits, infinities, NaN.

    ``skip``: entries of ``data`` itself to leave out. Raises TraceError ``[bad-report]`` naming the place.
    """
    left = [(where, data if not skip or not isinstance(data, Mapping) else
             {key: value for key, value in data.items() if key not in skip})]
    while left:
        place, value = left.pop()
        if isinstance(value, Mapping):
            left += ((f"{place}.{key}", entry) for key, entry in value.items())
        elif isinstance(value, list):
            left += ((f"{place}[{i}]", entry) for i, entry in enumerate(value)
                     if not isinstance(entry, str))
        elif isinstance(value, float) and not isfinite(value):
            raise TraceError("bad-report", f"{place} is {value}, which is no number")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TraceError("bad-report", f"{place} does not fit 64 bits")


def check_statements(run: Mapping[str, Any], analysis: Any, where: str) -> None:
    """Refuse a run whose statements have another form than a report's; ``where`` names the run.

    Raises TraceError ``[bad-report]`` naming the entry.
    """
    if not isinstance(analysis, Mapping):
        raise TraceError("bad-report", f"{where}.analysis is no object")
    for name, right in FORMS.items():
        if analysis.get(name) is not None and not right(analysis[name]):
            raise TraceError("bad-report", f"{where}.analysis.{name} has an unknown form")
    for name in ("compile_results", "oe_results", "splice_results"):
        if run.get(name) is not None and not isinstance(run[name], Mapping):
            raise TraceError("bad-report", f"{where}.{name} is no object")
    if run.get("listing") and not fits(run["listing"]):
        raise TraceError("bad-report", f"{where}.listing has an unknown form")
    if run.get("trace_results") is not None and not isinstance(run["trace_results"], list):
        raise TraceError("bad-report", f"{where}.trace_results is no list")
