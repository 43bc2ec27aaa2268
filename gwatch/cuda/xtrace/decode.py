"""Ring bytes to records.

The ring is read in blocks of warps small enough for the cache; inside a block everything is a handful of
numpy passes. Nothing is trusted: every slot's sequence must be the one its place demands, every header must
carry the canary and the lanes that the launch's geometry implies. What cannot be known (a sequence or a clock
that may have wrapped) is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.clocks import (
    CYCLE_WRAP_NS,
    FLAG_GAP_NS,
    FLAG_NS,
    TIMER_WRAP_NS,
    AnchorFit,
    AnchorReport,
)
from gwatch.cuda.xtrace.records import RingReader, SharedRecords
from gwatch.errors import TraceError
from gwatch.rewrite.ring import CANARY, HEADER_DTYPE, LANES, RecordKind, RingLayout, checked_duration
from gwatch.rewrite.sitemap import SiteMap

SHARED_DROPPED = "[dropped-shared] a record that several sites share counts once among the dropped"


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded ring.

    ``records``: (n,) RECORD_DTYPE, ordered by CTA slot and warp; inside a warp the thread-level records by
    lane and sequence, then the warp-level ones by time. ``visits`` and ``dropped``: (cta_slots,
    warps_per_cta, 32) int64 records made and lost per lane; a record that several sites share is one of each, but
    counts once where it is lost. ``written``: the same shape, what the kernel wrote of them. ``headers``:
    (cta_slots, warps_per_cta) HEADER_DTYPE. ``clock``: the anchor fit, else None. ``unit``: "ns" or "cycles".
    ``warnings``: ``[code] text`` lines about what could not be proved.
    """

    records: npt.NDArray[np.void]
    visits: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]
    written: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    clock: AnchorReport | None
    unit: str
    warnings: tuple[str, ...]

    @property
    def dropped_total(self) -> int:
        """Records lost over the launch."""
        return int(self.dropped.sum())


def decode_ring(
    data: bytes | bytearray | memoryview | npt.NDArray[Any],
    layout: RingLayout,
    site_map: SiteMap,
    duration_ns: float | None = None,
) -> Decoded:
    """Decodes ``layout.data_bytes`` of ring and headers.

    ``duration_ns`` is an upper bound of the launch's duration, used to prove that neither clocks nor
    sequences wrapped; without it the result carries warnings. Raises TraceError ``ring-size``,
    ``ring-format``, ``not-run`` (an untouched ring: the driver did not run the patched code),
    ``ring-incomplete``, ``ring-corrupt``, ``trace-too-long``, ``trace-duration``.
    """
    raw, headers, present, warnings = checked_ring(data, layout, site_map, duration_ns)
    decoder = RingReader(raw[: layout.ring_bytes], headers, layout, site_map, duration_ns)
    records = decoder.run(present)
    warnings += decoder.sequence_warnings(duration_ns)
    shape = (layout.cta_slots, layout.warps_per_cta, LANES)
    visits = written = decoder.visits.reshape(shape)
    dropped = np.maximum(visits - layout.format.depth, 0)
    if site_map.shares:
        records, more = _unshared(
            records, SharedRecords(site_map), headers.reshape(shape[:2])["cta"][:, 0], decoder
        )
        visits = visits + more.reshape(shape)
        if dropped.any():
            warnings.append(SHARED_DROPPED)
    report = None
    if site_map.clock == "anchor" and len(present):
        fit = decoder.fit()
        report = fit.report
        _times_to_ns(records, fit)
        if report.residual_p999_ns > FLAG_NS:
            warnings.append(
                f"[anchor-residual] 99.9 % of the clock pairs lie within {report.residual_p999_ns:.0f} ns of "
                f"the fit, more than {FLAG_NS:.0f}"
            )
        if report.gap_max_ns > FLAG_GAP_NS:
            warnings.append(
                f"[anchor-sparse] neighbouring clock pairs are up to {report.gap_max_ns / 1e6:.1f} ms apart; "
                "the SM clock is taken as steady between them"
            )
    return Decoded(
        records=records,
        visits=visits,
        dropped=dropped,
        written=written,
        headers=headers.reshape(shape[:2]),
        clock=report,
        unit="cycles" if site_map.clock == "sm" else "ns",
        warnings=tuple(warnings),
    )


def _unshared(
    records: npt.NDArray[np.void], shared: SharedRecords, ctas: npt.NDArray[Any], reader: RingReader
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    """(one record of each site that shares one, how many more that makes per lane); ``ctas``: the CTA of each slot."""
    layout = reader.layout
    gx, gy, _ = layout.grid
    x, y, z = records["block"].astype(np.int64).T
    slot = np.zeros(layout.ctas, np.int64)
    slot[ctas] = np.arange(len(ctas))
    row = (slot[x + gx * (y + gy * z)] * layout.warps_per_cta + records["warp"]) * LANES + records["lane"]
    copies = shared.expand(
        records["site"],
        records["time"],
        records["value"],
        records["sequence"].astype(np.int64),
        row,
        reader.starts(np.arange(layout.warps)),
    )
    out = records[copies.source]
    out["site"], out["time"], out["sequence"] = copies.site, copies.time, copies.sequence
    out["value"] = copies.value
    if shared.holds:
        reader.merge_warp_level(out)
    lanes = layout.warps * LANES
    return out, np.bincount(row[copies.source], minlength=lanes) - np.bincount(row, minlength=lanes)


def checked_ring(
    data: bytes | bytearray | memoryview | npt.NDArray[Any],
    layout: RingLayout,
    site_map: SiteMap,
    duration_ns: float | None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.void], npt.NDArray[np.int64], list[str]]:
    """(bytes, headers, indices of the warps that ran, warnings); raises as :func:`decode_ring` does."""
    checked_duration(duration_ns)
    raw = np.frombuffer(data, np.uint8)
    if layout.format != site_map.format:
        raise TraceError(
            "ring-format",
            "the ring was laid out for another record format than the cubin's site map",
            "give the cubin that ran",
        )
    if raw.size != layout.data_bytes:
        raise TraceError(
            "ring-size",
            f"{raw.size} bytes, but the launch's ring and headers are {layout.data_bytes}",
            "give the grid and block of the traced launch",
        )
    headers = raw[layout.ring_bytes :].view(HEADER_DTYPE)
    present = _check_headers(headers, layout)
    return raw, headers, present, _check_duration(headers[present], site_map, duration_ns)


def _check_headers(headers: npt.NDArray[np.void], layout: RingLayout) -> npt.NDArray[np.int64]:
    """Indices of the warps that ran, after checking that every expected one did and says what the launch
    implies."""
    canary = headers["canary"]
    if not canary.any():
        raise TraceError(
            "not-run",
            "the ring is untouched: the driver did not run the patched code",
            "check that the patched cubin was loaded and its descriptor armed before the launch",
        )
    good = canary == CANARY
    missing = int((~good).sum())
    if missing:
        raise TraceError(
            "ring-incomplete",
            f"{missing} of {layout.warps} warps left no valid header",
            "the launch was smaller than told, did not finish, or something overwrote the ring",
        )
    lanes = np.full(layout.warps_per_cta, 0xFFFFFFFF, np.uint32)
    partial = layout.threads_per_cta % LANES
    if partial:
        lanes[-1] = (1 << partial) - 1
    grid = headers.reshape(layout.cta_slots, layout.warps_per_cta)
    if not (grid["lanes"] == lanes).all():
        raise TraceError("ring-corrupt", f"warps started with other lanes than a block of {layout.block} has")
    ctas = grid["cta"]
    if not (ctas == ctas[:, :1]).all() or int(ctas.max()) >= layout.ctas:
        raise TraceError("ring-corrupt", f"CTA ids in the headers do not fit a grid of {layout.grid}")
    if not layout.sampled and not (ctas[:, 0] == np.arange(layout.cta_slots)).all():
        raise TraceError("ring-corrupt", "CTA ids in the headers are out of order")
    return np.arange(layout.warps, dtype=np.int64)


def _check_duration(headers: npt.NDArray[np.void], site_map: SiteMap, duration_ns: float | None) -> list[str]:
    """Refuses launches whose 32-bit readings may have wrapped twice; says so where the duration is
    unknown."""
    long = site_map.format.kind is RecordKind.LONG
    if long and site_map.clock != "anchor":
        return []
    limit = TIMER_WRAP_NS if site_map.clock == "gpu" or long else CYCLE_WRAP_NS
    # The warps' entry times alone bound the duration from below, whatever the caller said.
    seen = float(int(headers["ns_in"].max()) - int(headers["ns_in"].min())) if len(headers) else 0.0
    longest = max(seen, checked_duration(duration_ns))
    if longest >= limit:
        raise TraceError(
            "trace-too-long",
            f"the launch took {longest / 1e9:.2f} s, 32-bit {site_map.clock} times are exact up to "
            f"{limit / 1e9:.2f} s",
            "plan the trace with the launch's duration, so that records carry longer times",
        )
    if duration_ns is None:
        return [
            f"[duration-unknown] times are right if the launch took less than {limit / 1e9:.2f} s; "
            "give its duration to prove it"
        ]
    return []


def _times_to_ns(records: npt.NDArray[np.void], fit: AnchorFit) -> None:
    """Maps the cycle times of ``records`` to ns in place."""
    size = 1 << 18
    for i in range(0, len(records), size):
        part = records[i : i + size]
        part["time"] = fit.to_ns(part["time"], part["smid"])
