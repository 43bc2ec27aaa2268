"""Scopes on the SASS tier: markers become sites, and the records of a marker's copies one scope's again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.markers import Marker, check_markers, find_markers
from gwatch.errors import SiteError, TraceError
from gwatch.rewrite.ring import MAX_SITES
from gwatch.rewrite.trace import SassTraceSite

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.cuda.xtrace.result import TraceResult

DEPTH_PER_MARKER = 32
MOST_DEFAULT_DEPTH = 1024


@dataclass(frozen=True, slots=True)
class Scopes:
    """The scopes of a kernel. ``names``: label by scope id, in order of the ids; ``boundaries``: per recorded site
    its (scope id, end); ``warp_level``: one record per warp."""

    names: tuple[tuple[int, str], ...]
    boundaries: tuple[tuple[int, bool], ...]
    warp_level: bool = False

    @classmethod
    def of(
        cls,
        kernel: str,
        boundaries: Sequence[tuple[int, bool]],
        names: Mapping[int, str],
        warp_level: bool,
    ) -> Scopes:
        """The scopes of a kernel's checked markers. Raises SiteError ``[scope-copies]``."""
        if len(boundaries) > MAX_SITES:
            raise SiteError(
                "scope-copies",
                f"{kernel} has {len(boundaries)} markers after unrolling and inlining, {MAX_SITES} can be recorded",
                "unroll less, or mark fewer scopes",
            )
        labels = name_scopes({scope for scope, _ in boundaries}, names)
        return cls(labels, tuple(boundaries), warp_level)

    @property
    def regions(self) -> tuple[tuple[int, int, str], ...]:
        """(start site, end site, label) after :func:`merge`: scope k of ``names`` has sites 2k and 2k + 1."""
        return tuple((2 * k, 2 * k + 1, label) for k, (_, label) in enumerate(self.names))

    @property
    def merged(self) -> npt.NDArray[np.int16]:
        """Site after :func:`merge` by recorded site."""
        rank = {scope: k for k, (scope, _) in enumerate(self.names)}
        return np.array([2 * rank[scope] + end for scope, end in self.boundaries], np.int16)

    def default_depth(self) -> int:
        """Records kept per lane where nobody said how many."""
        return min(MOST_DEFAULT_DEPTH, DEPTH_PER_MARKER * len(self.boundaries))


def checked_names(given: Mapping[Any, Any] | None) -> dict[int, str]:
    """``scope_name_map`` with integer ids. Raises SiteError ``[scope-id]``."""
    from gwatch.cuda.xtrace.markers import checked_id

    return {checked_id(scope): str(label) for scope, label in (given or {}).items()}


def name_scopes(scopes: set[int], names: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """(id, label) in order of the ids; an id without a name is its own."""
    return tuple((scope, names.get(scope, str(scope))) for scope in sorted(scopes))


def scope_sites(
    kernel: KernelDef, names: Mapping[int, str], warp_level: bool
) -> tuple[tuple[SassTraceSite, ...], Scopes]:
    """The sites of all markers of a kernel, and what they mean.

    Raises SiteError as :func:`~gwatch.cuda.xtrace.markers.check_markers`, and ``[scope-copies]``.
    """
    markers = find_markers(kernel)
    check_markers(kernel, markers, names)
    scopes = Scopes.of(kernel.name, [(marker.scope, marker.end) for marker in markers], names, warp_level)
    labels = dict(scopes.names)
    return tuple(_site(marker, labels[marker.scope], warp_level) for marker in markers), scopes


def _site(marker: Marker, label: str, warp_level: bool) -> SassTraceSite:
    return SassTraceSite(
        marker.index,
        value_reg=marker.value_reg,
        warp_level=warp_level,
        label=f"{label} {'end' if marker.end else 'start'}",
    )


def merge(result: TraceResult, scopes: Scopes, *, refuse: bool = True) -> None:
    """Make of the records of copied markers those of their scopes, with a region each.

    Raises TraceError ``[scope-diverged]`` where groups of a warp passed a warp-level scope at the same time; not to
    ``refuse`` makes a warning of it.
    """
    target = scopes.merged
    records = result["records"].copy()
    records["site"] = target[records["site"]]
    if scopes.warp_level:
        try:
            check_divergence(records, result["grid_dim"], result["block_dim"], scopes)
        except TraceError as error:
            if refuse:
                raise
            result["warnings"].append(f"[{error.code}] {error.message}")
    result["records"] = records
    result["sites"] = _merged_sites(result["sites"], target)
    if "splice_results" in result:
        result["splice_results"]["sites"] = {
            site["site_id"]: {"spliced": "plain"} for site in result["sites"]
        }
    result["scopes"] = dict(scopes.names)
    result["compile_results"]["record_shape"] = "scope"
    result["analysis"] = {"site_regions": [list(region) for region in scopes.regions]}


def _merged_sites(sites: Sequence[Mapping[str, Any]], target: npt.NDArray[np.int16]) -> list[dict[str, Any]]:
    """The first copy stands for all; ``copies`` lists their instruction indices."""
    found: dict[int, dict[str, Any]] = {}
    for site, number in zip(sites, target.tolist(), strict=True):
        entry = found.setdefault(number, {**site, "site_id": number, "copies": []})
        entry["copies"].append(site["index"])
    return [found[number] for number in sorted(found)]


def check_divergence(
    records: npt.NDArray[np.void], grid: Sequence[int], block: Sequence[int], scopes: Scopes
) -> None:
    """Refuse warp-level records that several groups of a warp's lanes made side by side.

    Each group elects a lane of its own. Where one lane makes all records of a warp, nothing needs to be proved; else
    each lane's starts and ends must alternate, and the intervals of different lanes may not overlap. Raises
    TraceError ``[scope-diverged]``.
    """
    if not len(records):
        return
    warps = -(-int(np.prod(block)) // 32)
    x, y, z = records["block"].astype(np.int64).T
    warp = (x + grid[0] * (y + grid[1] * z)) * warps + records["warp"]
    lane = records["lane"].astype(np.int64)
    order = np.lexsort((records["sequence"], lane, records["site"] // 2, warp))
    warp, lane = warp[order], lane[order]
    site, time, sequence = records["site"][order], records["time"][order], records["sequence"][order]
    group = np.cumsum(np.r_[True, (np.diff(warp) != 0) | (np.diff(site // 2) != 0)]) - 1
    low, high = (np.zeros(group[-1] + 1, np.int64) for _ in range(2))
    low[:] = 32
    np.minimum.at(low, group, lane)
    np.maximum.at(high, group, lane)
    for number in np.flatnonzero(low != high).tolist():
        inside = np.flatnonzero(group == number)
        _check_group(
            site[inside] % 2,
            lane[inside],
            time[inside],
            sequence[inside],
            int(warp[inside[0]]),
            scopes.names[int(site[inside[0]]) // 2][1],
        )


def _check_group(
    end: npt.NDArray[Any],
    lane: npt.NDArray[Any],
    time: npt.NDArray[Any],
    sequence: npt.NDArray[Any],
    warp: int,
    label: str,
) -> None:
    starts, ends, owners = [], [], []
    for each in np.unique(lane).tolist():
        mine = lane == each
        kinds, times = end[mine], time[mine]
        if int(sequence[mine].min()) > 0 and kinds[0] == 1:
            kinds, times = kinds[1:], times[1:]  # its start may be among the records that were dropped
        if len(kinds) % 2 or (kinds != np.arange(len(kinds)) % 2).any():
            raise _diverged(warp, label, "starts and ends were recorded by different lanes")
        starts.append(times[::2])
        ends.append(times[1::2])
        owners.append(np.full(len(times) // 2, each))
    start, finish, owner = (np.concatenate(part) for part in (starts, ends, owners))
    order = np.argsort(start, kind="stable")
    start, finish, owner = start[order], finish[order], owner[order]
    if (np.maximum.accumulate(finish)[:-1] > start[1:])[np.diff(owner) != 0].any():
        raise _diverged(warp, label, "several groups of its lanes were inside it at the same time")


def _diverged(warp: int, label: str, how: str) -> TraceError:
    return TraceError(
        "scope-diverged",
        f"warp {warp} was diverged at scope {label!r}: {how}",
        "record each thread (warp_level=False), or put the markers where the whole warp comes by together",
    )
