"""From a finished pass to a result: decode the ring, and put what is known about the launch beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import Any, Protocol

from gwatch.cuda.driver import STATIC_SHARED, Driver
from gwatch.cuda.launchview import Launch
from gwatch.cuda.xtrace.decode import Decoded, decode_ring
from gwatch.cuda.xtrace.listing import listing_of, with_callers
from gwatch.cuda.xtrace.outputs import Verdict
from gwatch.cuda.xtrace.passes import Slot
from gwatch.cuda.xtrace.prepare import Planned, Request, Target
from gwatch.cuda.xtrace.result import TraceResult, cost_per_record, cycles_per_ns, lost_after
from gwatch.cuda.xtrace.timing import Slowdown, slowdown
from gwatch.errors import TraceError
from gwatch.rewrite.ring import Keep
from gwatch.sass.arch import occupancy


class PassFacts(Protocol):
    """What is told about the launches of a traced pass."""

    @property
    def launches(self) -> Mapping[int, Launch]:
        """The traced launches by slot."""

    @property
    def captured(self) -> Set[int]:
        """Slots whose launch was recorded into a graph."""

    @property
    def unclaimed(self) -> Sequence[Launch]:
        """Launches of the kernel that ran without records."""


def build(
    driver: Driver,
    target: Target,
    planned: Planned,
    request: Request,
    verdict: Verdict,
    seen: PassFacts,
    slot: Slot,
    index: int,
    wall_ns: float | None,
) -> TraceResult:
    """The result of slot ``index`` of the last traced pass ``seen``, which took ``wall_ns`` (None: unknown).

    The shorter of ``wall_ns`` and the last of the slot's ``traced_ns`` bounds the launch's duration.

    Raises TraceError ``[no-records]`` and what ``decode_ring`` raises.
    """
    assert slot.ring is not None and slot.patched is not None
    site_map, layout, launch = planned.site_map, slot.ring.layout, seen.launches[index]
    with driver.inside(slot.context):
        data = slot.ring.read()
        resident = driver.resident_ctas(slot.patched.function, launch.threads, launch.shared_bytes)
    bounds = [*slot.traced_ns[-1:], *([] if wall_ns is None else [wall_ns])]
    decoded = decode_ring(data, layout, site_map, duration_ns=min(bounds, default=None))
    if len(decoded.records) == 0:
        raise TraceError(
            "no-records",
            f"{layout.warps} warps ran the patched code of {target.symbol}, and none came to a site",
            "the sites' code is not executed by this launch, or their guards are false: choose others",
        )
    slower = slowdown(slot.plain_ns, slot.traced_ns)
    ghz = cycles_per_ns(decoded) or driver.device_clock_khz(slot.seen.device) / 1e6
    granularity = "warp" if all(site.warp_level for site in site_map.sites) else "thread"
    registers = {"before": site_map.registers_before, "after": site_map.registers_after}
    static = _static_shared(driver, slot)
    return TraceResult(
        kernel_prototype=target.symbol,
        compile_results={
            "instrumentation_level": "sass",
            "clock_type": site_map.clock,
            "record_shape": "site",
            "record_granularity": granularity,
            "origin_reg_used [avg]": registers["before"],
            "trace_reg_used [avg]": registers["after"],
        },
        grid_dim=launch.grid,
        block_dim=launch.block,
        oe_results={},
        splice_results={
            "splice_mode": "plain",
            "schedule_mode": request.schedule_mode,
            "schedule_prune": request.schedule_prune,
            "sites": {site.site_id: {"spliced": "plain"} for site in site_map.sites},
        },
        records=decoded.records,
        sites=with_callers(target.kernel, site_map.described()),
        listing=listing_of(target.kernel, [site.index for site in site_map.sites]),
        clock_type=site_map.clock,
        launch=_launch(seen, slot, index, target),
        registers=registers,
        occupancy={
            name: occupancy(target.kernel.arch, count, launch.threads, static + launch.shared_bytes)
            for name, count in registers.items()
        }
        | {"needed": -(-prod(launch.grid) // driver.device_sm_count(slot.seen.device))},
        slowdown=None if slower is None else slower.to_json(),
        cost_per_record=_cost(decoded, slot, resident, slower, ghz),
        dropped=decoded.dropped_total,
        visits=decoded.visits,
        lost=decoded.dropped,
        lost_after=lost_after(decoded) if layout.format.keep is Keep.FIRST else None,
        outputs=verdict.status,
        outputs_detail=list(verdict.details),
        sampled={"ctas": layout.cta_slots, "of": layout.ctas} if layout.sampled else None,
        clock=decoded.clock,
        warnings=_warnings(decoded, slot, seen, request, target),
    )


def _static_shared(driver: Driver, slot: Slot) -> int:
    assert slot.patched is not None
    return driver.kernel_attribute(slot.patched.kernel, STATIC_SHARED, slot.seen.device) or 0


def _launch(seen: PassFacts, slot: Slot, index: int, target: Target) -> dict[str, Any]:
    launch = seen.launches[index]
    cluster = launch.cluster or target.kernel.cluster_dim
    return {
        "api": launch.api,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": None if cluster is None else list(cluster),
        "shared_bytes": launch.shared_bytes,
        "stream": launch.stream,
        "device": slot.seen.device,
        "arch": target.kernel.arch.name,
        "graph": index in seen.captured,
        "index": index,
        "launches": len(seen.launches) + len(seen.unclaimed),
        "code": target.image.origin,
    }


def _cost(decoded: Decoded, slot: Slot, resident: int, slower: Slowdown | None, ghz: float) -> float | None:
    if slower is None or slot.ring is None:
        return None
    extra = slower.traced_ns - slower.plain_ns
    return cost_per_record(decoded, slot.ring.layout, resident, extra, slower.noise * slower.plain_ns, ghz)


def _warnings(decoded: Decoded, slot: Slot, seen: PassFacts, request: Request, target: Target) -> list[str]:
    assert slot.ring is not None
    layout = slot.ring.layout
    notes = list(decoded.warnings)
    if layout.sampled:
        how = "those named" if request.cta is not None else "evenly spread over the grid"
        notes.append(f"[sampled] {layout.cta_slots} of {layout.ctas} CTAs are recorded, {how}")
    if decoded.dropped_total:
        notes.append(
            f"[dropped] {decoded.dropped_total} records did not fit {layout.format.depth} per lane; "
            "raise sass_per_thread_records to keep them"
        )
    extra = len(seen.unclaimed)
    if extra:
        notes.append(f"[untraced-launches] {extra} more launches of {target.symbol} ran without records")
    if request.schedule_mode != "first_feasible":
        notes.append("[schedule] records keep the order of their text; least_makespan searches nothing here")
    return notes
