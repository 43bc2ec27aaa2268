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
    FLAG_NS,
    MAX_CLOCK_HZ,
    TIMER_WRAP_NS,
    AnchorFit,
    AnchorReport,
    extend32,
    extend_near,
    fit_anchor,
)
from gwatch.errors import TraceError
from gwatch.rewrite.ring import CANARY, HEADER_DTYPE, LANES, Keep, RecordKind, RingLayout
from gwatch.rewrite.sitemap import SiteMap

RECORD_DTYPE = np.dtype(
    [
        ("time", "<i8"),
        ("value", "<u8"),
        ("sequence", "<u4"),
        ("block", "<i4", (3,)),
        ("thread", "<i4"),
        ("warp", "<i4"),
        ("smid", "<i4"),
        ("site", "<i2"),
        ("lane", "u1"),
        ("warp_level", "?"),
    ]
)
"""One record. ``block`` is (x, y, z); ``time`` in ns (``gpu``, ``anchor``) or SM cycles (``sm``); ``thread``
linear in its CTA, -1 for a warp-level record (``lane`` then is the lane that was elected); ``warp`` is
``linear thread >> 5``; ``sequence`` counts all records of the lane; ``value`` is 0 at sites without one."""

MIN_VISIT_CYCLES = 8
"""No lane makes records faster: the record's own instructions take longer to issue."""

_BLOCK_SLOTS = 1 << 16
_MAX_PAIRS = 1 << 22


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded ring.

    ``records``: (n,) RECORD_DTYPE, ordered by CTA slot and warp; inside a warp the thread-level records by
    lane and sequence, then the warp-level ones by time. ``visits`` and ``dropped``: (cta_slots,
    warps_per_cta, 32) int64 records made and lost per lane. ``headers``: (cta_slots, warps_per_cta)
    HEADER_DTYPE. ``clock``: the anchor fit, else None. ``unit``: "ns" or "cycles". ``warnings``: ``[code]
    text`` lines about what could not be proved.
    """

    records: npt.NDArray[np.void]
    visits: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]
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
    ``ring-incomplete``, ``ring-corrupt``, ``trace-too-long``.
    """
    raw = np.frombuffer(data, np.uint8)
    if raw.size != layout.data_bytes:
        raise TraceError(
            "ring-size",
            f"{raw.size} bytes, but the launch's ring and headers are {layout.data_bytes}",
            "give the grid and block of the traced launch",
        )
    if layout.format != site_map.format:
        raise TraceError(
            "ring-format", "the ring was laid out for another record format than the cubin's site map"
        )
    headers = raw[layout.ring_bytes :].view(HEADER_DTYPE)
    present = _check_headers(headers, layout)
    warnings = _check_duration(headers[present], site_map, duration_ns)
    decoder = _Decoder(raw[: layout.ring_bytes], headers, layout, site_map)
    records = decoder.run(present)
    warnings += decoder.sequence_warnings(duration_ns)
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
    shape = (layout.cta_slots, layout.warps_per_cta, LANES)
    visits = decoder.visits.reshape(shape)
    return Decoded(
        records=records,
        visits=visits,
        dropped=np.maximum(visits - layout.format.depth, 0),
        headers=headers.reshape(shape[:2]),
        clock=report,
        unit="cycles" if site_map.clock == "sm" else "ns",
        warnings=tuple(warnings),
    )


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
    if site_map.format.kind is RecordKind.LONG:
        return []
    paired = site_map.clock == "anchor" and all(site.pair for site in site_map.sites)
    limit = TIMER_WRAP_NS if site_map.clock == "gpu" or paired else CYCLE_WRAP_NS
    # The warps' entry times alone bound the duration from below, whatever the caller said.
    seen = float(int(headers["ns_in"].max()) - int(headers["ns_in"].min())) if len(headers) else 0.0
    longest = max(seen, duration_ns or 0.0)
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


class _Decoder:
    """State of one decoding: lookup tables of sites and warps, growing results, clock pairs."""

    def __init__(
        self,
        ring: npt.NDArray[np.uint8],
        headers: npt.NDArray[np.void],
        layout: RingLayout,
        site_map: SiteMap,
    ) -> None:
        fmt = layout.format
        self.fmt = fmt
        self.layout = layout
        self.clock = site_map.clock
        self.headers = headers
        self.ring = ring.view(fmt.dtype).reshape(layout.warps, fmt.slots, LANES)
        self.visits = np.zeros((layout.warps, LANES), np.int64)
        self.full_lanes = 0
        self.certainly_wrapped = 0
        self.exit_pairs = site_map.pairs_at_exit
        count = len(site_map.sites) + 1
        self.site_count = len(site_map.sites)
        self.warp_level = np.zeros(count, bool)
        self.pair = np.zeros(count, bool)
        self.smid_value = np.zeros(count, bool)
        self.low_mask = np.zeros(count, np.uint64)
        self.high_mask = np.zeros(count, np.uint64)
        for site in site_map.sites:
            i = site.site_id + 1
            self.warp_level[i] = site.warp_level
            self.pair[i] = site.pair
            self.smid_value[i] = site.value == "smid"
            self.low_mask[i] = 0xFFFFFFFF if site.value_bits else 0
            self.high_mask[i] = 0xFFFFFFFF if site.value_bits == 64 else 0
        self.any_value = bool(self.low_mask.any()) or bool(self.smid_value.any())
        self.pair_cycles: list[npt.NDArray[np.int64]] = []
        self.pair_ns: list[npt.NDArray[np.int64]] = []
        self.pair_sm: list[npt.NDArray[np.int64]] = []
        slots_total = max(1, layout.warps * fmt.depth)
        self.pair_stride = max(1, slots_total // _MAX_PAIRS)
        self.rate = self._rate_hint() if self.pair.any() else 0.0

    def _rate_hint(self) -> float:
        """Cycles per ns, roughly, from the longest-lived warp whose exit pair is on record; 1.7 GHz without
        one."""
        out = self.headers[self.headers["ns_out"] != 0]
        if len(out) == 0:
            return 1.7
        ns = (out["ns_out"] - out["ns_in"].astype(np.uint32)).astype(np.float64)
        cycles = (out["clock_out"] - out["clock_in"].astype(np.uint32)).astype(np.float64)
        good = (ns > 1000) & (ns < 1e9)
        return float(np.median(cycles[good] / ns[good])) if good.any() else 1.7

    def run(self, warps: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """All records of ``warps``; fills ``visits`` and the clock pairs on the way."""
        size = max(1, _BLOCK_SLOTS // (self.fmt.slots * LANES))
        first = [self._count(warps[i : i + size]) for i in range(0, len(warps), size)]
        out = np.zeros(sum(first), RECORD_DTYPE)
        at = 0
        for number, i in enumerate(range(0, len(warps), size)):
            if first[number]:
                self._fill(warps[i : i + size], out[at : at + first[number]])
                at += first[number]
        return out

    def _count(self, warps: npt.NDArray[np.int64]) -> int:
        """Visits of each lane of ``warps``, every slot checked against them; returns the number of records
        kept."""
        fmt = self.fmt
        tag = self.ring["tag"][warps[0] : warps[-1] + 1]
        valid = (tag & 0xFF) != 0
        sequence = (tag >> fmt.sequence_shift).astype(np.int64)
        slot = np.arange(fmt.slots, dtype=np.int64)[None, :, None]
        period = 1 << fmt.sequence_bits
        if fmt.keep is Keep.NEWEST:
            # Slot 0 is the first that each lap writes: its lap is the newest, and the head ends that lap.
            lap = sequence >> (fmt.depth.bit_length() - 1)
            newest = lap[:, 0, :]
            head = (valid & (lap == newest[:, None, :])).sum(axis=1)
            visits = np.where(valid[:, 0, :], newest * fmt.depth + head, 0)
            last = fmt.depth - 1
            wrapped = (newest == 0) & valid[:, last, :] & (lap[:, last, :] != 0) & valid[:, 0, :]
            visits = visits + wrapped * period
            expected = visits[:, None, :] - 1 - ((visits[:, None, :] - 1 - slot) & (fmt.depth - 1))
            written = expected >= 0
            full = visits > fmt.depth
        else:
            trash = valid[:, fmt.depth, :]
            tail = sequence[:, fmt.depth, :]
            wrapped = trash & (tail < fmt.depth)
            visits = np.where(trash, tail + 1 + wrapped * period, valid[:, : fmt.depth, :].sum(axis=1))
            expected = np.broadcast_to(slot, sequence.shape).copy()
            expected[:, fmt.depth, :] = visits - 1
            written = (slot < visits[:, None, :]) & ((slot < fmt.depth) | trash[:, None, :])
            full = trash
        right = np.where(written, valid & (sequence == (expected & (period - 1))), ~valid)
        if not right.all():
            w, s, lane = (int(v[0]) for v in np.nonzero(~right))
            raise TraceError(
                "ring-corrupt",
                f"slot {s} of lane {lane}, warp {int(warps[0]) + w} holds a record that is not its own",
                "two launches shared the ring, it was not zeroed, or the kernel wrote into it",
            )
        if valid.any() and int((tag & 0xFF).max()) > self.site_count:
            raise TraceError(
                "ring-corrupt", f"a record names site {int((tag & 0xFF).max()) - 1}", "wrong site map?"
            )
        self.visits[warps] = visits
        self.full_lanes += int(full.sum())
        self.certainly_wrapped += int(wrapped.sum())
        return int(np.minimum(visits, fmt.depth).sum())

    def _fill(self, warps: npt.NDArray[np.int64], out: npt.NDArray[np.void]) -> None:
        """Writes the records of ``warps`` to ``out`` (times still cycles for ``anchor``)."""
        fmt = self.fmt
        visits = self.visits[warps].reshape(-1)
        kept = np.minimum(visits, fmt.depth)
        row = np.repeat(np.arange(len(kept)), kept)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(kept) - kept, kept)
        if fmt.keep is Keep.NEWEST:
            nth_of_lane = nth + np.repeat(visits - kept, kept)
            slot = nth_of_lane & (fmt.depth - 1)
        else:
            nth_of_lane = slot = nth
        local_warp, lane = row >> 5, row & 31
        block = self.ring[warps[0] : warps[-1] + 1].reshape(-1)
        got = block[(local_warp * fmt.slots + slot) * LANES + lane]
        site = (got["tag"] & 0xFF).astype(np.intp)

        header = self.headers[warps]
        smid = header["smid"].astype(np.int32)[local_warp]
        out["sequence"] = nth_of_lane
        out["site"] = site - 1
        out["lane"] = lane
        out["smid"] = smid
        self._fill_place(warps, local_warp, lane, site, out)
        out["time"] = self._times(got, header, local_warp, site, smid)
        if self.any_value:
            self._fill_values(got, site, smid, out)
        if self.warp_level.any():
            self._merge_warp_level(local_warp, out)

    def _fill_place(
        self,
        warps: npt.NDArray[np.int64],
        local_warp: npt.NDArray[np.int64],
        lane: npt.NDArray[np.int64],
        site: npt.NDArray[np.intp],
        out: npt.NDArray[np.void],
    ) -> None:
        gx, gy, _ = self.layout.grid
        cta = self.headers["cta"][warps].astype(np.int32)
        warp = (warps % self.layout.warps_per_cta).astype(np.int32)
        place = np.stack([cta % gx, cta // gx % gy, cta // gx // gy], axis=1)
        out["block"] = place[local_warp]
        of_record = warp[local_warp]
        out["warp"] = of_record
        thread = of_record * LANES + lane
        if self.warp_level.any():
            level = self.warp_level[site]
            out["warp_level"] = level
            thread[level] = -1
        out["thread"] = thread

    def _times(
        self,
        got: npt.NDArray[np.void],
        header: npt.NDArray[np.void],
        local_warp: npt.NDArray[np.int64],
        site: npt.NDArray[np.intp],
        smid: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int64]:
        """64-bit times, cycles for ``sm`` and ``anchor``; collects clock pairs."""
        if self.fmt.kind is RecordKind.LONG:
            times: npt.NDArray[np.int64] = got["time"].astype(np.int64)
            return times
        start = header["ns_in" if self.clock == "gpu" else "clock_in"].astype(np.int64)[local_warp]
        low = got["time"]
        cycles = extend32(low, start)
        paired = self.pair[site]
        if self.clock != "anchor" or not paired.any():
            return cycles
        ns_start = header["ns_in"].astype(np.int64)[local_warp]
        ns = extend32(got["y"], ns_start)
        # The ns reading of the same record says how often the cycle counter wrapped.
        near = start + (ns - ns_start) * self.rate
        cycles[paired] = extend_near(low[paired], near[paired])
        chosen = np.flatnonzero(paired)[:: self.pair_stride]
        self.pair_cycles.append(cycles[chosen])
        self.pair_ns.append(ns[chosen])
        self.pair_sm.append(smid[chosen].astype(np.int64))
        return cycles

    def _fill_values(
        self,
        got: npt.NDArray[np.void],
        site: npt.NDArray[np.intp],
        smid: npt.NDArray[np.int32],
        out: npt.NDArray[np.void],
    ) -> None:
        value = np.zeros(len(got), np.uint64)
        if self.fmt.kind is not RecordKind.NARROW:
            value = got["x"].astype(np.uint64) & self.low_mask[site]
        if self.fmt.kind is RecordKind.WIDE and self.high_mask.any():
            value |= (got["y"].astype(np.uint64) & self.high_mask[site]) << np.uint64(32)
        if self.smid_value.any():
            of_smid = self.smid_value[site]
            value[of_smid] = smid[of_smid].astype(np.uint64)
        out["value"] = value

    def _merge_warp_level(self, local_warp: npt.NDArray[np.int64], out: npt.NDArray[np.void]) -> None:
        """Inside each warp thread-level records stay first; warp-level ones of all lanes go by time."""
        level = out["warp_level"]
        key = local_warp * 2 + level
        steps = np.diff(key)
        ties = steps == 0
        if (steps >= 0).all() and (~ties | ~level[1:] | (np.diff(out["time"]) >= 0)).all():
            return
        time = np.where(level, out["time"], 0)
        out[:] = out[np.lexsort((time, key))]

    def sequence_warnings(self, duration_ns: float | None) -> list[str]:
        """What the sequences cannot prove."""
        period = 1 << self.fmt.sequence_bits
        if self.certainly_wrapped:
            return [
                f"[sequence-wrapped] {self.certainly_wrapped} threads made more than {period} records: their "
                "dropped counts are lower bounds"
            ]
        fastest_ns = period * MIN_VISIT_CYCLES / MAX_CLOCK_HZ * 1e9
        if self.full_lanes and (duration_ns is None or duration_ns >= fastest_ns):
            return [f"[sequence-unproved] dropped counts are exact unless a thread passed {period} records"]
        return []

    def fit(self) -> AnchorFit:
        """The anchor curves from header pairs and in-record pairs."""
        header = self.headers[self.headers["canary"] == CANARY]
        clock_in, ns_in = header["clock_in"].astype(np.int64), header["ns_in"].astype(np.int64)
        smid = header["smid"].astype(np.int64)
        cycles, ns, sm = [clock_in, *self.pair_cycles], [ns_in, *self.pair_ns], [smid, *self.pair_sm]
        if self.exit_pairs:
            left = (header["ns_out"] != 0) | (header["clock_out"] != 0)
            ns_out = extend32(header["ns_out"], ns_in)
            near = clock_in + (ns_out - ns_in) * (self.rate or self._rate_hint())
            short = ns_out - ns_in < CYCLE_WRAP_NS
            clock_out = np.where(
                short, extend32(header["clock_out"], clock_in), extend_near(header["clock_out"], near)
            )
            cycles.append(clock_out[left])
            ns.append(ns_out[left])
            sm.append(smid[left])
        return fit_anchor(np.concatenate(cycles), np.concatenate(ns), np.concatenate(sm))


def _times_to_ns(records: npt.NDArray[np.void], fit: AnchorFit) -> None:
    """Maps the cycle times of ``records`` to ns in place."""
    size = 1 << 18
    for i in range(0, len(records), size):
        part = records[i : i + size]
        part["time"] = fit.to_ns(part["time"], part["smid"])
