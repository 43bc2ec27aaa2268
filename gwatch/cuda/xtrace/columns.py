"""Ring bytes straight to columns, for traces too large to be made into records.

The order is the ring's own, [warp][slot][lane], empty slots left out. Times are those of the device: ns for ``gpu``,
SM cycles for ``sm`` and ``anchor``. Everything but the order of a lane's times is checked as
:func:`~gwatch.cuda.xtrace.decode.decode_ring` does, which also maps ``anchor`` times to ns and sorts records by lane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.xtrace.clocks import extend32
from gwatch.cuda.xtrace.decode import Decoded, checked_ring, decode_ring
from gwatch.cuda.xtrace.records import RingReader, SharedRecords
from gwatch.rewrite.ring import LANES, Keep, RecordKind, RingLayout
from gwatch.rewrite.sitemap import SiteMap

_BLOCK_SLOTS = 1 << 15
_LOW = (1 << 32) - 1
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
    source: npt.NDArray[np.int64] | None = None
    """Where sites share records: which record of the ring each one comes from."""

    def __len__(self) -> int:
        return len(self.site)

    def warp(self) -> npt.NDArray[np.int32]:
        """CTA slot x warps per CTA + warp in its CTA, of each record."""
        width = self.layout.format.slots * LANES
        counts = [np.full(size, width) if mask is None else mask.sum(axis=1) for size, mask in self.masks]
        found = np.repeat(np.arange(self.layout.warps, dtype=np.int32), np.concatenate(counts))
        return found if self.source is None else found[self.source]

    def lane(self) -> npt.NDArray[np.uint8]:
        """Lane of each record; of warp-level ones the lane that was elected."""
        lanes = np.tile(np.arange(LANES, dtype=np.uint8), self.layout.format.slots)
        parts = [
            np.tile(lanes, size) if mask is None else np.broadcast_to(lanes, mask.shape)[mask]
            for size, mask in self.masks
        ]
        found = np.concatenate(parts)
        return found if self.source is None else found[self.source]

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
    reader = _Reader(raw[: layout.ring_bytes], headers, layout, site_map, duration_ns)
    columns = reader.columns(raw, site_map)
    return _unshared(columns, SharedRecords(site_map), reader) if site_map.shares else columns


def _unshared(columns: Columns, shared: SharedRecords, reader: RingReader) -> Columns:
    """One record of each site that shares one."""
    row = columns.warp().astype(np.int64) * LANES + columns.lane()
    starts = reader.starts(np.arange(reader.layout.warps))
    copies = shared.expand(
        columns.site, columns.time, columns.value, columns.sequence.astype(np.int64), row, starts
    )
    return replace(
        columns,
        site=copies.site.astype(np.uint8),
        sequence=copies.sequence,
        time=copies.time,
        value=copies.value if columns.site_map.values else None,
        source=copies.source,
    )


class _Reader(RingReader):
    """Reads blocks of warps into columns. Lanes that record in step, as converged code does, cost no index arrays."""

    def columns(self, raw: npt.NDArray[np.uint8], site_map: SiteMap) -> Columns:
        warps, width = self.layout.warps, self.fmt.slots * LANES
        site, sequence = np.empty(warps * width, np.uint8), np.empty(warps * width, np.uint32)
        time = np.empty(warps * width, np.int64)
        value = np.empty(warps * width, np.uint64) if self.any_value else None
        size = max(1, _BLOCK_SLOTS // width)
        scratch = np.empty((size, width), np.uint64)
        self.buffers = [np.empty((size, width), np.uint32) for _ in range(3)]
        self.row_visits = -1
        self.row_sequence = np.zeros(width, np.int64)
        self.row_demand = np.zeros(width, np.uint64)
        masks: list[tuple[int, _Mask | None]] = []
        at = 0
        for first in range(0, warps, size):
            mine = np.arange(first, min(first + size, warps))
            block = self.ring[first : first + len(mine)].reshape(len(mine), width)
            shape = (len(mine), width)
            whole = slice(at, at + len(mine) * width)
            mask = None
            words = scratch[: len(mine)]
            ragged = None
            if self._in_step(block, words):
                sequence[whole].reshape(shape)[...] = self.row_sequence
                self._block_times(block, mine, words, time[whole].reshape(shape))
                _sites_in_step(words, site[whole].reshape(shape))
                here = whole
            elif (ragged := self._ragged(block)) is not None:
                mask, numbers, sites = ragged
                here = slice(at, at + int(np.count_nonzero(mask)))
                sequence[here], site[here] = numbers[mask], sites[mask]
                np.copyto(words, block.view(np.uint64).reshape(*shape, -1)[:, :, 0])
                times = words.view(np.int64)
                self._block_times(block, mine, words, times, mask)
                time[here] = times[mask]
            else:
                mask = self._written(mine)
                kept = block[mask]
                here = slice(at, at + len(kept))
                sequence[here] = kept["tag"] >> self.fmt.sequence_shift
                site[here] = (kept["tag"] & 0xFF) - 1
                time[here] = self._times_of(kept, mine[np.nonzero(mask)[0]])
            if here.stop > here.start:
                starts = self.starts(mine)
                self.check_span(time[here], starts.min(), starts.max())
            if value is not None:
                kept = block.reshape(-1) if mask is None else block[mask]
                row = np.repeat(mine, width) if mask is None else mine[np.nonzero(mask)[0]]
                value[here] = self._values(
                    kept, kept["tag"] & 0xFF, self.headers["smid"][row].astype(np.int32)
                )
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

    def _in_step(self, block: npt.NDArray[np.void], words: npt.NDArray[np.uint64]) -> bool:
        """Whether every slot of ``block`` (rows, slots x lanes) is written, by lanes that all made the same number of
        records. Then ``row_sequence`` holds the sequences of a row, ``words`` (the shape of ``block``) ``site + 1`` in
        its upper halves and, of records with a 32-bit time, that time in the lower ones."""
        if self.fmt.keep is not Keep.NEWEST:
            return False
        # Blocks mostly repeat: what the last one demanded is tried first.
        if self.row_visits > 0 and self._demanded(block, words):
            return True
        return self._demand_of(block[0]) and self._demanded(block, words)

    def _ragged(
        self, block: npt.NDArray[np.void]
    ) -> tuple[_Mask, npt.NDArray[np.uint32], npt.NDArray[np.uint8]] | None:
        """(which slots hold a record, sequences, sites), each of the shape of ``block``, where every lane's records
        are the newest of as many as its largest sequence says; None where they aren't, or may be otherwise."""
        if self.fmt.keep is not Keep.NEWEST:
            return None
        depth = self.fmt.depth
        tag, sequence, site = (
            buffer[: len(block)].reshape(len(block), depth, LANES) for buffer in self.buffers
        )
        tag[...] = block["tag"].reshape(tag.shape)
        largest = tag.max(axis=1)
        last = largest >> np.uint32(self.fmt.sequence_shift)
        slot = np.repeat(np.arange(depth, dtype=np.uint32), LANES).reshape(depth, LANES)
        np.subtract(last[:, None, :], slot, out=sequence)
        np.bitwise_and(sequence, np.uint32(depth - 1), out=sequence)
        np.subtract(last[:, None, :], sequence, out=sequence)
        np.left_shift(sequence, np.uint32(self.fmt.sequence_shift), out=site)
        np.bitwise_xor(site, tag, out=site)
        np.subtract(site, np.uint32(1), out=site)
        # An empty slot's site is no site: its tag's lower bits are 0. No lane can have more right records than this.
        right = site < self.site_count
        kept = int(np.where(largest > 0, np.minimum(last, depth - 1) + 1, 0).sum())
        if not np.count_nonzero(right) == np.count_nonzero(tag) == kept:
            return None
        return (
            right.reshape(block.shape),
            sequence.reshape(block.shape),
            site.astype(np.uint8).reshape(block.shape),
        )

    def _demand_of(self, row: npt.NDArray[np.void]) -> bool:
        """Take from ``row`` what its block has to hold; False where it has to hold nothing new, or holds less."""
        depth = self.fmt.depth
        first = row["tag"][::LANES] >> self.fmt.sequence_shift
        lap = first >> (depth.bit_length() - 1)
        visits = int(lap[0]) * depth + int((lap == lap[0]).sum())
        if visits < depth or visits == self.row_visits:
            return False
        self.row_visits = visits
        self.row_sequence = np.repeat(visits - 1 - ((visits - 1 - np.arange(depth)) & (depth - 1)), LANES)
        self.row_demand = self.row_sequence.astype(np.uint64) << np.uint64(32 + self.fmt.sequence_shift)
        return True

    def _demanded(self, block: npt.NDArray[np.void], words: npt.NDArray[np.uint64]) -> bool:
        halves = block.view(np.uint64).reshape(*block.shape, -1)
        if self.fmt.kind is RecordKind.LONG:
            np.left_shift(halves[:, :, 1], np.uint64(32), out=words)
            np.bitwise_xor(words, self.row_demand, out=words)
        else:
            np.bitwise_xor(halves[:, :, 0], self.row_demand, out=words)
        # A wrong sequence, an empty slot and a site that is none all lie outside these bounds.
        return int(words.max()) < (self.site_count + 1) << 32 and int(words.min()) >= 1 << 32

    def _times_of(self, kept: npt.NDArray[np.void], warps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Times of records picked out; ``warps``: whose each one is."""
        if self.fmt.kind is RecordKind.LONG:
            return np.asarray(kept["time"].astype(np.int64))
        return np.asarray(extend32(kept["time"], self.starts(warps)))

    def _block_times(
        self,
        block: npt.NDArray[np.void],
        warps: npt.NDArray[np.int64],
        words: npt.NDArray[np.uint64],
        out: npt.NDArray[np.int64],
        mask: _Mask | None = None,
    ) -> None:
        """Times of a block's records (``mask``: there are others, of no meaning); ``words`` holds 32-bit ones in its
        lower halves and may be ``out`` itself."""
        if self.fmt.kind is RecordKind.LONG:
            out[...] = block["time"]
            return
        start = self.starts(warps)
        # The upper half is the start's, or one more where the lower half has wrapped since.
        np.bitwise_and(words, np.uint64(_LOW), out=out.view(np.uint64))
        high = start & ~_LOW
        np.bitwise_or(out, high[0] if (high == high[0]).all() else high[:, None], out=out)
        behind = out < start[:, None]
        if mask is not None:
            behind &= mask
        if behind.any():
            out[behind] += 1 << 32

    def _written(self, warps: npt.NDArray[np.int64]) -> _Mask:
        """Slots that hold a record that counts, all of them checked; the last slot of "first" holds none."""
        self._count(warps)
        mask: _Mask = (self.ring["tag"][warps[0] : warps[-1] + 1] & 0xFF) != 0
        if self.fmt.keep is Keep.FIRST:
            mask[:, self.fmt.depth, :] = False
        return mask.reshape(len(warps), -1)


def _sites_in_step(words: npt.NDArray[np.uint64], out: npt.NDArray[np.uint8]) -> None:
    """Sites of ``words`` as the check of a block leaves them; overwrites ``words``."""
    np.right_shift(words, np.uint64(32), out=words)
    np.copyto(out, words, casting="unsafe")
    np.subtract(out, np.uint8(1), out=out)
