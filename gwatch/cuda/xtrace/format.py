"""The report section for traces, under the name that tracing code imports it by, and what a bare decoded ring
needs to become a run of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gwatch.common.format import Section_IntraKernelTrace

if TYPE_CHECKING:
    from gwatch.cuda.xtrace.decode import Decoded
    from gwatch.rewrite.ring import RingLayout
    from gwatch.rewrite.sitemap import SiteMap

__all__ = ["Section_IntraKernelTrace", "decoded_result"]


def decoded_result(decoded: Decoded, site_map: SiteMap, layout: RingLayout) -> dict[str, Any]:
    """What ``Section_IntraKernelTrace.add_run`` takes, for a ring that another loader armed and read back.

    Outputs and slowdown are unknown there, and the report says so.
    """
    from gwatch.cuda.xtrace.result import lost_after
    from gwatch.rewrite.ring import Keep

    every_warp = bool(site_map.sites) and all(site.warp_level for site in site_map.sites)
    return {
        "kernel_prototype": site_map.kernel,
        "compile_results": {
            "instrumentation_level": "sass",
            "clock_type": site_map.clock,
            "record_shape": "site",
            "record_granularity": "warp" if every_warp else "thread",
            "origin_reg_used [avg]": site_map.registers_before,
            "trace_reg_used [avg]": site_map.registers_after,
        },
        "grid_dim": layout.grid,
        "block_dim": layout.block,
        "oe_results": {},
        "records": decoded.records,
        "sites": site_map.described(),
        "clock_type": site_map.clock,
        "registers": {"before": site_map.registers_before, "after": site_map.registers_after},
        "dropped": decoded.dropped_total,
        "lost_after": lost_after(decoded) if layout.format.keep is Keep.FIRST else None,
        "outputs": "not checked: the ring was filled by another loader",
        "sampled": {"ctas": layout.cta_slots, "of": layout.ctas} if layout.sampled else None,
        "warnings": list(decoded.warnings),
    }
