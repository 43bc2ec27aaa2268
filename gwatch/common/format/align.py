"""Several runs on one time axis, where each says how far its GPU's timer was from the same host's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gwatch.common.format.run import Run


def _clock(run: Run) -> tuple[int, int, str] | None:
    clock = run.launch.get("host_clock")
    if run.unit != "ns" or len(run.trace) == 0 or not isinstance(clock, Mapping):
        return None
    offset, error, host = clock.get("offset_ns"), clock.get("error_ns"), clock.get("host")
    if type(offset) is not int or type(error) is not int or not isinstance(host, str) or not host:
        return None
    return offset, error, host


def begins(runs: Sequence[Run]) -> tuple[list[int], int] | None:
    """(ns from the first run's first record to each run's, by the host's clock; how far off that may be).

    None where a run does not know, or the runs are of several machines.
    """
    clocks = [_clock(run) for run in runs]
    if len(runs) < 2 or any(clock is None for clock in clocks):
        return None
    known = [clock for clock in clocks if clock is not None]
    if len({host for _, _, host in known}) > 1:
        return None
    starts = [run.time_range[0] - offset for run, (offset, _, _) in zip(runs, known, strict=True)]
    first = min(starts)
    return [start - first for start in starts], sum(sorted(error for _, error, _ in known)[-2:])
