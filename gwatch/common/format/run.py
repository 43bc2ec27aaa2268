"""One traced launch, ready to be told: the records as columns plus everything known about how they were
taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gwatch.common.format import analysis as tables
from gwatch.common.format.losses import I32, I64
from gwatch.common.format.records import Geometry, Trace, from_records, from_rows, rebase_per_sm, triple
from gwatch.common.format.regions import Intervals, PairCounts, Region, pair, parse_regions
from gwatch.common.format.scopes import from_scopes, is_scope_shape
from gwatch.common.format.text import duration
from gwatch.common.format.verdict import Verdict, cost_unknown, judge
from gwatch.errors import TraceError

EVIDENCE = ("outputs", "outputs_detail", "dropped", "slowdown", "cost_per_record", "registers", "occupancy",
            "sampled", "clock")
UNITS = {"sm": "cyc"}
CLOCK_STEP = 64
"""Nanoseconds that clocks which are mapped to ns may differ by: no sign of damage where a row's times step back."""


def lookup(result: Any, name: str, default: Any = None) -> Any:
    """``result[name]``, else ``result.name``, else the default."""
    if isinstance(result, Mapping) and name in result:
        return result[name]
    return getattr(result, name, default)


def plain(value: Any) -> Any:
    """JSON-able copy: numpy scalars to Python's, tuples to lists, NaN and infinities to None, keys to
    strings.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    return str(value)


@dataclass(frozen=True)
class Run:
    """A launch: identity, geometry, columns, the regions asked for, and the evidence for the verdict."""

    kernel: str
    geometry: Geometry
    trace: Trace
    regions: tuple[Region, ...]
    roles: Mapping[str, str]
    clock: str
    compile_results: Mapping[str, Any]
    evidence: Mapping[str, Any]
    sites: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    splice_results: Mapping[str, Any] | None = None
    oe_results: Mapping[str, Any] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    listing: Mapping[str, Any] = field(default_factory=dict)
    """The kernel's code, as :mod:`gwatch.common.format.listing` reads it; empty where the report has none."""
    record_shape: str = "site"
    window: tuple[int, int] | None = None
    """Only intervals that overlap this span of time count."""
    first: int | None = None
    """Time of the first record before the run was narrowed; None: it was not."""
    kept_roles: tuple[list[str], I32] | None = None
    """What :attr:`row_roles` was before scopes were left out; None: none were."""
    memory: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What other modules derived from the run and want again."""

    @property
    def unit(self) -> str:
        """Unit of all times: "ns", or "cyc" for the per-SM cycle counter."""
        return UNITS.get(self.clock, "ns")

    @property
    def granularity(self) -> str:
        """"warp" when all rows are warps, else "thread"."""
        lanes = self.trace.rows.lane
        if len(lanes) == 0:
            return str(self.compile_results.get("record_granularity", "thread"))
        return "warp" if bool((lanes < 0).all()) else "thread"

    @cached_property
    def _whole(self) -> tuple[Intervals, tuple[PairCounts, ...]]:
        return pair(self.trace, self.regions)

    @cached_property
    def paired(self) -> tuple[Intervals, tuple[PairCounts, ...]]:
        """Intervals of all regions, and per region what did not pair."""
        intervals, counts = self._whole
        if self.window is not None:
            low, high = self.window
            intervals = intervals.take((intervals.end >= low) & (intervals.start <= high))
        return intervals, counts

    @property
    def intervals(self) -> Intervals:
        return self.paired[0]

    @cached_property
    def labels(self) -> list[str]:
        """Scope names, sorted; a scope's id is its place here."""
        return tables.scope_labels(self.regions)

    @cached_property
    def scope(self) -> I32:
        """Scope id of each interval."""
        return tables.scope_of(self.intervals, self.regions, self.labels)

    @cached_property
    def whole(self) -> tuple[Intervals, I32]:
        """Intervals of any time, whatever the window, and their scope ids."""
        whole = self._whole[0]
        return whole, self.scope if self.window is None else tables.scope_of(whole, self.regions, self.labels)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """(first, last) time that the run tells of: of its records, and in its window."""
        low, high = self.time_range
        return (low, high) if self.window is None else (max(low, self.window[0]), min(high, self.window[1]))

    @cached_property
    def inside(self) -> I64:
        """Of each interval, the time that lies in the window."""
        start, end = self.intervals.start, self.intervals.end
        if self.window is None:
            return end - start
        low, high = self.window
        return np.minimum(end, high) - np.maximum(start, low)

    @cached_property
    def cover(self) -> tables.Coverage:
        """Stretches that intervals cover, in the window."""
        cover = tables.coverage(self.intervals)
        if self.window is None:
            return cover
        low, high = self.window
        return replace(cover, start=np.maximum(cover.start, low), end=np.minimum(cover.end, high))

    @cached_property
    def row_roles(self) -> tuple[list[str], I32]:
        """(role names, per row the index of its role; -1 without any). A row keeps its role in every window of time
        and whatever scopes are left out."""
        if self.kept_roles is not None:
            return self.kept_roles
        return tables.row_roles(*self.whole, self.labels, self.roles, len(self.trace.rows))

    @property
    def cluster_dim(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster as (x, y, z), where the launch says so and a cluster has more than one."""
        dims = self._cluster
        return dims if dims is not None and max(dims) > 1 else None

    @property
    def _cluster(self) -> tuple[int, int, int] | None:
        dims = self.launch.get("cluster")
        if not isinstance(dims, (list, tuple)) or len(dims) != 3 or not all(type(d) is int and d > 0 for d in dims):
            return None
        x, y, z = dims
        return x, y, z

    @property
    def no_clusters(self) -> str:
        """Why there is nothing to say of clusters; "" where there is."""
        if self.cluster_dim is not None:
            return ""
        if self._cluster is not None:
            return "the launch has no clusters of several blocks"
        return "whether the launch has clusters is not known: the trace does not say"

    @cached_property
    def row_clusters(self) -> NDArray[np.int64] | None:
        """Linear cluster id of each row; None for a launch without clusters."""
        dims = self.cluster_dim
        if dims is None:
            return None
        block, number, stride = self.trace.rows.block.copy(), np.zeros(len(self.trace.rows), np.int64), 1
        for size, of in zip(self.geometry.grid, dims, strict=True):
            number += block % size // of * stride
            block //= size
            stride *= -(-size // of)
        return number

    @cached_property
    def per_row(self) -> NDArray[np.int64]:
        """(row, active, bubble, lifetime) of each row with intervals."""
        return tables.pipeline(self.cover, self.trace, self.extent)[1]

    @cached_property
    def time_range(self) -> tuple[int, int]:
        """(first, last) time of all records; (0, 0) without records."""
        t = self.trace.time
        return (int(t.min()), int(t.max())) if len(t) else (0, 0)

    @property
    def zero(self) -> int:
        """The time that all views count from: the run's first record, narrowed or not."""
        return self.time_range[0] if self.first is None else self.first

    @cached_property
    def verdict(self) -> Verdict:
        regions = tables.region_stats(self.regions, self.paired[1])
        rows = self.trace.rows
        return judge(self.evidence, len(self.trace), regions, int((rows.dropped > 0).sum()), len(rows),
                     self._depth_needed(), self._apart(), self._steps_back(),
                     any(warning.startswith("[dropped-shared]") for warning in self.warnings))

    def _steps_back(self) -> tuple[int, str]:
        """How many records lie before the one that their row, or their lane of it, made ahead of them, and how far the
        farthest does."""
        trace, exact = self.trace, self.trace.rows.exact
        if not exact.all():
            # Lanes that take turns for a warp share only the clock: each lane's own records have an order, too.
            turns = np.flatnonzero(~exact[trace.row] & (trace.sequence >= 0))
            turns = turns[np.lexsort((trace.sequence[turns], trace.lane[turns], trace.row[turns]))]
            same = (np.diff(trace.row[turns]) == 0) & (np.diff(trace.lane[turns]) == 0)
            back = -np.diff(trace.time[turns])[same]
        else:
            back = np.zeros(0, np.int64)
        steps = np.flatnonzero(trace.time[1:] < trace.time[:-1])
        steps = steps[(trace.row[steps + 1] == trace.row[steps]) & exact[trace.row[steps]]]
        back = np.concatenate([back, trace.time[steps] - trace.time[steps + 1]])
        back = back[back > (CLOCK_STEP if self.unit == "ns" else 0)]
        return len(back), duration(int(back.max()), self.unit) if len(back) else ""

    def _apart(self) -> list[str]:
        """Labels of regions whose one site records threads and whose other records warps."""
        warps = self.trace.rows.lane[self.trace.row] < 0
        if len(warps) == 0 or bool(warps.all()) or not bool(warps.any()):
            return []
        kinds = [set(np.unique(self.trace.site[mask]).tolist()) for mask in (warps, ~warps)]
        return [r.label for r in self.regions for a, b in (kinds, kinds[::-1])
                if r.enter in a - b and r.leave in b - a]

    def _depth_needed(self) -> int | None:
        """Records per thread (a power of two) that would have kept everything; None where that is unknown.

        A lane numbers all its records, so its last number tells how many it made, unless it lost the last.
        """
        trace, rows = self.trace, self.trace.rows
        if not rows.dropped.any() or (rows.tail_gap.any() and not rows.exact.all()):
            return None
        made = int(trace.sequence.max()) + 1
        if rows.tail_gap.any():
            made = max(made, int((np.bincount(trace.row, minlength=len(rows)) + rows.dropped).max()))
        return 1 << (made - 1).bit_length()

    def site(self, number: int) -> Mapping[str, Any]:
        """What is known of a site by its number; empty when nothing is."""
        known = self.memory.get("sites")
        if not isinstance(known, dict):
            known = self.memory["sites"] = {int(site.get("site_id", i)): site for i, site in enumerate(self.sites)}
        found: Mapping[str, Any] = known.get(number, {})
        return found

    @property
    def source(self) -> str:
        """Where a merged report has the run from; "" for a report's own run."""
        return str(self.launch.get("source") or "")

    def to_pandas(self, what: str = "intervals") -> Any:
        """A ``pandas.DataFrame`` of the run's "intervals" or "records"; see :mod:`gwatch.common.format.frames`."""
        from gwatch.common.format.frames import frame_of
        return frame_of([self], what)

    @cached_property
    def analysis(self) -> dict[str, Any]:
        """The ``analysis`` block of the report format."""
        return analyse(self)


def analyse(run: Run) -> dict[str, Any]:
    """All tables of a run under their report keys."""
    trace, geometry = run.trace, run.geometry
    intervals, counts = run.paired
    t_min, t_max = run.extent
    summary, _ = tables.pipeline(run.cover, trace, run.extent)
    rows = trace.rows
    return {
        "verdict": run.verdict.as_dict(),
        "clock_type": run.clock,
        "unit": run.unit,
        "time_origin": "per SM" if bool(rows.origin.any()) else "launch",
        "record_shape": run.record_shape,
        "record_granularity": run.granularity,
        "n_records": len(trace),
        "n_rows": len(rows),
        "n_threads": int(np.count_nonzero(np.bincount(intervals.row))),
        "n_scopes": len(run.labels),
        "scope_labels": run.labels,
        "grid_dim": list(geometry.grid),
        "block_dim": list(geometry.block),
        "block_size": geometry.block_size,
        "t_zero": run.zero,
        "t_min": t_min,
        "t_max": t_max,
        "span": t_max - t_min,
        "unmatched_starts": sum(c.lost_leaves for c in counts),
        "unmatched_ends": sum(c.orphan_leaves for c in counts),
        **{key: plain(run.evidence.get(key)) for key in EVIDENCE},
        "cost_unknown": cost_unknown(run.evidence, len(trace)),
        "rows_with_drops": int((rows.dropped > 0).sum()),
        "warnings": list(run.warnings),
        "launch": plain(run.launch),
        "sites": [plain(site) for site in run.sites],
        "site_regions": [[r.enter, r.leave, r.label] + ([r.pairing] if r.pairing != "nested" else [])
                         for r in run.regions],
        "scope_roles": dict(run.roles),
        "scope_stats": tables.scope_stats(intervals, run.scope, run.labels),
        "site_stats": tables.site_stats(trace) if run.record_shape == "site" and not run.window else [],
        "region_stats": tables.region_stats(run.regions, counts) if not run.window else [],
        "pipeline_summary": summary,
        "longest_bubbles": tables.longest_bubbles(run.cover, run.scope, run.labels, trace),
        "concurrency": tables.concurrency(run.cover, t_min, t_max),
    }


def run_of(result: Any, site_regions: Iterable[Any] | None = None,
           scope_roles: Mapping[str, str] | None = None) -> Run:
    """A :class:`Run` from what ``do_trace`` returned, or from a plain dict with the report format's keys.

    Raises TraceError ``[empty-result]`` for a result without a kernel (nothing matched), ``[bad-records]``
    and ``[bad-dimension]`` for malformed content, SiteError ``[bad-region]`` for bad regions and TraceError
    ``[bad-role]`` for roles of scopes that do not exist.
    """
    records = lookup(result, "records")
    # The row form may be expensive to make: it is asked for only where there is nothing better.
    rows = None if records is not None else lookup(result, "trace_results")
    if records is None and rows is None:
        raise TraceError("empty-result", "the result holds neither records nor trace_results",
                         "trace a kernel first: an empty result means that no launch matched")
    block = lookup(result, "analysis") or {}
    compiled = dict(lookup(result, "compile_results") or {})
    geometry = Geometry(triple(lookup(result, "grid_dim") or block.get("grid_dim"), "grid_dim"),
                        triple(lookup(result, "block_dim") or block.get("block_dim"), "block_dim"))
    sites = tuple(dict(site) for site in lookup(result, "sites") or block.get("sites") or ())
    warp_all = compiled.get("record_granularity") == "warp"
    shape = "site"
    regions = parse_regions(site_regions if site_regions is not None else block.get("site_regions"))
    if rows is None and not (isinstance(records, np.ndarray) and records.dtype.names):
        raise TraceError("bad-records", "records is no structured numpy array")
    if rows is None:
        trace = from_records(records, geometry, _warp_sites(records, sites, warp_all), _lost_after(result))
    elif is_scope_shape(rows, compiled):
        trace, regions, shape = *from_scopes(rows, geometry, warp_all), "scope"
    else:
        trace = from_rows(rows, geometry, warp_all)
    clock = str(lookup(result, "clock_type") or compiled.get("clock_type") or "gpu")
    if clock == "sm":
        trace = rebase_per_sm(trace)
    if "clock_type" in compiled:
        compiled["clock_type"] = clock
    evidence = {key: lookup(result, key, block.get(key)) for key in EVIDENCE}
    if evidence["dropped"] is None and len(trace) and bool((trace.sequence >= 0).all()):
        evidence["dropped"] = int(trace.rows.dropped.sum())
    roles = known_roles(scope_roles if scope_roles is not None else block.get("scope_roles"), regions)
    return Run(
        kernel=str(lookup(result, "kernel_prototype") or "?"), geometry=geometry, trace=trace, regions=regions,
        roles=roles, clock=clock, compile_results=compiled, evidence=evidence, sites=sites,
        warnings=tuple(str(w) for w in lookup(result, "warnings") or block.get("warnings") or ()),
        splice_results=lookup(result, "splice_results"), oe_results=dict(lookup(result, "oe_results") or {}),
        launch=dict(plain(lookup(result, "launch") or block.get("launch") or {})),
        listing=dict(plain(lookup(result, "listing") or {})), record_shape=shape)


def _warp_sites(records: Any, sites: Sequence[Mapping[str, Any]], warp_all: bool) -> list[int]:
    if warp_all:
        return [int(s) for s in np.unique(records["site"])]
    return [int(site.get("site_id", i)) for i, site in enumerate(sites) if site.get("warp_level")]


def _lost_after(result: Any) -> dict[tuple[int, int], int] | None:
    table = lookup(result, "lost_after")
    if table is None:
        return None
    return {(int(w), int(lane)): int(lost) for w, lane, lost in
            zip(table["warp"], table["lane"], table["lost"], strict=True)}


def known_roles(scope_roles: Mapping[str, str] | None, regions: Sequence[Region]) -> dict[str, str]:
    """Role per scope label, as text; TraceError ``[bad-role]`` for labels that no region has."""
    roles = {str(k): str(v) for k, v in (scope_roles or {}).items()}
    unknown = sorted(set(roles) - {region.label for region in regions})
    if unknown and regions:
        raise TraceError("bad-role", f"scope_roles names {', '.join(map(repr, unknown))}",
                         "the scopes are " + ", ".join(sorted({r.label for r in regions})))
    return roles
