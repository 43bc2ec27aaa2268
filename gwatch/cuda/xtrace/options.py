"""The arguments of do_trace, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gwatch.errors import KernelError, TraceError, UnsupportedError
from gwatch.rewrite.ring import Keep
from gwatch.rewrite.sitemap import CLOCKS

DEFAULT_DEPTH = 32
TIERS = ("sass", "ptx")
_SPLICE_MODES = ("auto", "split", "plain")
_SCHEDULE_MODES = ("first_feasible", "least_makespan")
_REGISTER_FILES = ("general", "uniform_general", "predicate", "uniform_predicate")


def kernel_pattern(pattern: str) -> re.Pattern[str]:
    """Raises KernelError ``[kernel-pattern]`` for an empty pattern or one that is no regular expression."""
    if not pattern:
        raise KernelError(
            "kernel-pattern",
            "kernel_name_pattern is empty, which matches every kernel",
            "give a regular expression that the mangled name contains",
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise KernelError(
            "kernel-pattern",
            f"kernel_name_pattern {pattern!r} is no regular expression: {error}",
            "escape parentheses and brackets of a literal name with re.escape",
        ) from None


def check_tier(tier: str, others: Mapping[str, Any]) -> None:
    """``others``: arguments of other tools' tracers that gwatch has no use for, by name.

    Raises TraceError ``[tier-unknown]``, UnsupportedError ``[argument-unsupported]``.
    """
    if tier not in TIERS:
        raise TraceError("tier-unknown", f"instrumentation_tier {tier!r} is neither 'sass' nor 'ptx'")
    for name, given in others.items():
        if given is not None:
            raise UnsupportedError(
                "argument-unsupported", f"gwatch has no use for {name}", f"leave {name} out"
            )


def scope_depth(counts: Mapping[tuple[str, str], int] | None) -> int | None:
    """Records per lane from ``per_thread_counts``: one ring holds all markers' records. Raises TraceError
    ``[option-range]``."""
    if not counts:
        return None
    return sum(depth(count) for count in counts.values())


def check_choices(
    clock: str, splice: str, schedule: str, keep: str, passes: int, ring_bytes: int, max_launches: int
) -> Keep:
    """Raises TraceError ``[clock-unknown]``, ``[option-unknown]`` or ``[option-range]``."""
    if clock not in CLOCKS:
        raise TraceError("clock-unknown", f"clock_type {clock!r} is none of {', '.join(CLOCKS)}")
    for name, value, known in (
        ("sass_splice_mode", splice, _SPLICE_MODES),
        ("sass_schedule_mode", schedule, _SCHEDULE_MODES),
        ("keep", keep, tuple(mode.value for mode in Keep)),
    ):
        if value not in known:
            raise TraceError("option-unknown", f"{name} {value!r} is none of {', '.join(known)}")
    if splice == "split":
        raise UnsupportedError(
            "splice-split",
            "sass_splice_mode='split' stores a record later than it is taken; gwatch stores in place",
            "use 'auto' or 'plain'",
        )
    for name, number in (("passes", passes), ("ring_bytes", ring_bytes), ("max_launches", max_launches)):
        if number < 1:
            raise TraceError("option-range", f"{name} is {number}, at least 1 is needed")
    return Keep(keep)


def depth(records: int | None) -> int:
    """Ring depth asked for; None and 0 mean the default of 32. Raises TraceError ``[option-range]``."""
    if records is not None and (isinstance(records, bool) or not isinstance(records, int | np.integer)):
        raise TraceError(
            "option-range", f"sass_per_thread_records is {records!r}", "give a whole number of records"
        )
    if records is not None and records < 0:
        raise TraceError("option-range", f"sass_per_thread_records is {records}, at least 1 is needed")
    return int(records or DEFAULT_DEPTH)


def excluded_registers(given: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Registers by file that no record may use. Raises TraceError ``[option-unknown]``."""
    result = {}
    for file, numbers in (given or {}).items():
        if file not in _REGISTER_FILES:
            raise TraceError(
                "option-unknown",
                f"sass_excluded_registers names {file!r}, none of {', '.join(_REGISTER_FILES)}",
            )
        result[file] = tuple(int(number) for number in numbers)
    return result


def stream_handle(stream: Any) -> int:
    """Handle of None, an int, a torch stream or a cuda-python stream. Raises TraceError ``[option-type]``."""
    if stream is None:
        return 0
    for value in (stream, getattr(stream, "cuda_stream", None), getattr(stream, "ptr", None)):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TraceError(
            "option-type",
            f"profile_stream is a {type(stream).__name__}, which is no stream",
            "pass None, a handle, or a torch or cuda-python stream",
        ) from None
