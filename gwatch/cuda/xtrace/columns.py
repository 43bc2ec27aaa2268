"""Ring bytes straight to columns, for traces too large to be made into records.

The order is the ring's own, [warp][slot][lane], empty slots left out. Times are those of the device: ns for ``gpu``,
SM cycles for ``sm`` and ``anchor``. Everything is checked as :func:`~gwatch.cuda.xtrace.decode.decode_ring` does, which
also maps ``anchor`` times to ns and sorts records by lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.clocks import extend32
from gwatch.cuda.xtrace.decode import Decoded, checked_ring, decode_ring
from gwatch.cuda.xtrace.records import RingReader
from gwatch.rewrite.ring import LANES, Keep, RecordKind, RingLayout
from gwatch.rewrite.sitemap import SiteMap

_BLOCK_SLOTS = 1 << 14
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """(n,) arrays; ``value`` is None where no site records one. Whose record each is: :meth:`warp`, :meth:`lane`."""

    site: npt.NDArray[np.uint8]
    sequence: npt.NDArray[np.uint32]
    time: npt.NDArray[np.int64]
    value: npt.NDArray[np.uint64] | None
    data: npt.NDArray[np.uint8]
    layout: RingLayout
    site_map: SiteMap
    masks: tuple[tuple[int, _Mask | None], ...]
    """(warps, which of their slots hold a record; None: all) of consecutive blocks."""

    def __len__(self) -> int:
        return len(self.site)

    def warp(self) -> npt.NDArray[np.int32]:
        """CTA slot x warps per CTA + warp in its CTA, of each record."""
        width = self.layout.format.slots * LANES
        counts = [np.full(size, width) if mask is None else mask.sum(axis=1) for size, mask in self.masks]
        return np.repeat(np.arange(self.layout.warps, dtype=np.int32), np.concatenate(counts))

    def lane(self) -> npt.NDArray[np.uint8]:
        """Lane of each record; of warp-level ones the lane that was elected."""
        lanes = np.tile(np.arange(LANES, dtype=np.uint8), self.layout.format.slots)
        parts = [
            np.tile(lanes, size) if mask is None else np.broadcast_to(lanes, mask.shape)[mask]
            for size, mask in self.masks
        ]
        return np.concatenate(parts)

    def decoded(self, duration_ns: float | None = None) -> Decoded:
        """The structured records, made now; as :func:`~gwatch.cuda.xtrace.decode.decode_ring`."""
        return decode_ring(self.data, self.layout, self.site_map, duration_ns)


def ring_columns(
    data: bytes | bytearray | memoryview | npt.NDArray[Any],
    layout: RingLayout,
    site_map: SiteMap,
    duration_ns: float | None = None,
) -> Columns:
    """Columns of a ring; arguments and errors as of :func:`~gwatch.cuda.xtrace.decode.decode_ring`."""
    raw, headers, _, _ = checked_ring(data, layout, site_map, duration_ns)
    reader = _Reader(raw[: layout.ring_bytes], headers, layout, site_map)
    return reader.columns(raw, site_map)


class _Reader(RingReader):
    """Reads blocks of warps into columns. Lanes that record in step, as converged code does, cost no index arrays."""

    def columns(self, raw: npt.NDArray[np.uint8], site_map: SiteMap) -> Columns:
        warps, width = self.layout.warps, self.fmt.slots * LANES
        site, sequence = np.empty(warps * width, np.uint8), np.empty(warps * width, np.uint32)
        time = np.empty(warps * width, np.int64)
        value = np.empty(warps * width, np.uint64) if self.any_value else None
        size = max(1, _BLOCK_SLOTS // width)
        scratch = np.empty((size, width), np.uint32)
        masks: list[tuple[int, _Mask | None]] = []
        at = 0
        for first in range(0, warps, size):
            mine = np.arange(first, min(first + size, warps))
            block = self.ring[first : first + len(mine)].reshape(len(mine), width)
            shape = (len(mine), width)
            whole = slice(at, at + len(mine) * width)
            mask = None
            if self._in_step(block, sequence[whole].reshape(shape), site[whole].reshape(shape), scratch[: len(mine)]):
                self._times_in_step(block, mine, scratch[: len(mine)], time[whole].reshape(shape))
                kept, here = block.reshape(-1), whole
            else:
                mask = self._written(mine)
                kept = block[mask]
                here = slice(at, at + len(kept))
                sequence[here] = kept["tag"] >> self.fmt.sequence_shift
                site[here] = (kept["tag"] & 0xFF) - 1
                time[here] = self._times_of(kept, mine[np.nonzero(mask)[0]])
            if value is not None:
                row = np.repeat(mine, width) if mask is None else mine[np.nonzero(mask)[0]]
                value[here] = self._values(kept, kept["tag"] & 0xFF, self.headers["smid"][row].astype(np.int32))
            masks.append((len(mine), mask))
            at = here.stop
        return Columns(
            site[:at],
            sequence[:at],
            time[:at],
            None if value is None else value[:at],
            raw,
            self.layout,
            site_map,
            tuple(masks),
        )

    def _in_step(
        self,
        block: npt.NDArray[np.void],
        sequence: npt.NDArray[np.uint32],
        site: npt.NDArray[np.uint8],
        scratch: npt.NDArray[np.uint32],
    ) -> bool:
        """Fill in ``sequence`` and ``site``; False where not every slot is written by lanes that made the same number
        of records."""
        if self.fmt.keep is not Keep.NEWEST:
            return False
        np.right_shift(block["tag"], self.fmt.sequence_shift, out=sequence)
        by_slot = sequence.reshape(len(block), self.fmt.slots, LANES)
        lane = by_slot[0, :, 0].astype(np.int64)
        depth = self.fmt.depth
        lap = lane >> (depth.bit_length() - 1)
        visits = int(lap[0]) * depth + int((lap == lap[0]).sum())
        slot = np.arange(depth)
        expected = visits - 1 - ((visits - 1 - slot) & (depth - 1))
        if visits < depth or not (lane == expected).all() or not (by_slot == by_slot[0, :, :1]).all():
            return False
        np.bitwise_and(block["tag"], 0xFF, out=scratch)
        np.subtract(scratch, 1, out=site, casting="unsafe")  # an empty slot's 0 becomes 255
        return int(site.max()) < self.site_count

    def _times_of(
        self, kept: npt.NDArray[np.void], warps: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Times of records picked out; ``warps``: whose each one is."""
        if self.fmt.kind is RecordKind.LONG:
            return np.asarray(kept["time"].astype(np.int64))
        start = self.headers["ns_in" if self.clock == "gpu" else "clock_in"][warps].astype(np.int64)
        return np.asarray(extend32(kept["time"], start))

    def _times_in_step(
        self,
        block: npt.NDArray[np.void],
        warps: npt.NDArray[np.int64],
        scratch: npt.NDArray[np.uint32],
        out: npt.NDArray[np.int64],
    ) -> None:
        if self.fmt.kind is RecordKind.LONG:
            out[...] = block["time"].astype(np.int64)
            return
        start = self.headers["ns_in" if self.clock == "gpu" else "clock_in"][warps].astype(np.int64)
        np.subtract(block["time"], start.astype(np.uint32)[:, None], out=scratch)
        np.add(scratch, start[:, None], out=out)

    def _written(self, warps: npt.NDArray[np.int64]) -> _Mask:
        """Slots that hold a record that counts, all of them checked; the last slot of "first" holds none."""
        self._count(warps)
        mask: _Mask = (self.ring["tag"][warps[0] : warps[-1] + 1] & 0xFF) != 0
        if self.fmt.keep is Keep.FIRST:
            mask[:, self.fmt.depth, :] = False
        return mask.reshape(len(warps), -1)
