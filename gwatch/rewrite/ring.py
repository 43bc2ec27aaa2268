"""The ring: what a traced kernel writes into device memory, and where.

One value, :class:`RingFormat`, fixes the record (from which the snippets take their offsets, masks and steps)
and one, :class:`RingLayout`, places it for a launch (from which the loader takes sizes and the decoder
shapes): the code that writes and the code that reads cannot drift apart.

Memory is ``[warp][slot][lane]``: warp index = CTA slot x warps per CTA + (linear thread >> 5), so that a
warp's store is one contiguous line and stride and mask are constants of the patched code. Where one lane of a
warp records at a time it is ``[warp][lane][slot]`` (``by_lane``): that lane's records then share sectors of 32 bytes
instead of taking one of each line of the L2 cache. After the ring
comes one 64-byte header per warp, written by the prologue, and after the headers an optional table of CTA
slots.

A record's tag is ``sequence << shift | site + 1``; the sequence counts the records of the lane, so a tag of
zero is a slot that nobody wrote (the loader must hand over zeroed memory). By lane it is
``sequence * step + site + 1``, where the step is the bytes of a lane's slots and of one record: so the offset's low
bits are the slot's place in one instruction, and the high ones still count. :meth:`RingLayout.slots` makes either the
first.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gwatch.errors import TraceError

_BLOCK_WARPS = 1024

FORMAT_VERSIONS = (1, 2)
"""Versions of the memory layout and of its JSON form that exist: 2 is ``by_lane``. A reader refuses any other."""

LANES = 32
CANARY = 0x52545747
"""First thing the prologue leaves behind ("GWTR"): an untouched header means that the patched code did not
run."""

MAX_SITES = 255
"""Sites per trace: the tag has eight bits for ``site + 1``, and zero means empty."""

MAX_RING_BYTES = 1 << 32
"""Ring, headers and table share one high address word."""

NARROW_DTYPE = np.dtype([("time", "<u4"), ("tag", "<u4")])
WIDE_DTYPE = np.dtype([("time", "<u4"), ("tag", "<u4"), ("x", "<u4"), ("y", "<u4")])
LONG_DTYPE = np.dtype([("time", "<u8"), ("tag", "<u4"), ("x", "<u4")])

_HEADER_FIELDS = (
    ("clock_in", "<u8", 0),
    ("ns_in", "<u8", 8),
    ("canary", "<u4", 16),
    ("smid", "<u4", 20),
    ("lanes", "<u4", 24),
    ("cta", "<u4", 28),
    ("clock_out", "<u4", 32),
    ("ns_out", "<u4", 36),
    ("clock_out2", "<u4", 40),
    ("ns_out2", "<u4", 44),
    ("clock_in2", "<u4", 48),
    ("ns_in2", "<u4", 52),
)
HEADER_DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _HEADER_FIELDS],
        "formats": [kind for _, kind, _ in _HEADER_FIELDS],
        "offsets": [offset for _, _, offset in _HEADER_FIELDS],
        "itemsize": 64,
    }
)
"""Per warp: cycle counter and ns timer at entry (64 bits, read back to back), canary, SM, mask of the lanes
that started, linear CTA id. ``anchor`` adds the low words of a second pair read right after the first (an
instruction fetch may hold up one of them, never both) and of two pairs at the last EXIT that a lane of the
warp took."""

DESCRIPTOR_DTYPE = np.dtype(
    {
        "names": ["ring", "headers", "table", "cta_slots", "warps_per_cta", "version", "format"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 16, 24, 28, 32, 36],
        "itemsize": 64,
    }
)
"""The object in constant bank 3 that arms a patched kernel. ``ring`` 0 = unarmed; ``table`` 0 = CTA slot is
the linear CTA id; CTAs at or past ``cta_slots``, warps at or past ``warps_per_cta`` and CTAs whose table
entry is negative run the original code. ``version`` and ``format`` (a checksum of the record format) let a
loader check what it arms."""

HEADER_BYTES = HEADER_DTYPE.itemsize
DESCRIPTOR_BYTES = DESCRIPTOR_DTYPE.itemsize

Dim3 = tuple[int, int, int]


class RecordKind(enum.Enum):
    """The three record shapes."""

    NARROW = "narrow"
    """8 bytes: 32-bit time, tag."""
    WIDE = "wide"
    """16 bytes: 32-bit time, tag, x, y. A 32-bit value is x; a 64-bit one x and y; a free y may carry the ns
    timer."""
    LONG = "long"
    """16 bytes: 64-bit time, tag, x (a 32-bit value), for launches that outlive a 32-bit clock."""


class Keep(enum.Enum):
    """Which records survive when a lane makes more than ``depth``."""

    NEWEST = "newest"
    FIRST = "first"


_DTYPES = {RecordKind.NARROW: NARROW_DTYPE, RecordKind.WIDE: WIDE_DTYPE, RecordKind.LONG: LONG_DTYPE}


def round_depth(records: int) -> int:
    """``records`` rounded up to a power of two.

    Raises TraceError ``trace-depth`` below 1 or above 2**20 records per lane.
    """
    if not 1 <= records <= 1 << 20:
        raise TraceError("trace-depth", f"{records} records per thread asked", "give 1 to 1048576")
    return 1 << (records - 1).bit_length()


@dataclass(frozen=True, slots=True)
class RingFormat:
    """What the patched code fixes: record shape, records kept per lane (a power of two), which are kept, and whether
    a lane's slots lie side by side (``by_lane``; only where the newest are kept, and a lane's slots are no fewer bytes
    than there may be sites: :meth:`may_be_by_lane`)."""

    kind: RecordKind
    depth: int
    keep: Keep = Keep.NEWEST
    by_lane: bool = False

    def __post_init__(self) -> None:
        if self.depth != round_depth(self.depth):
            raise TraceError("trace-depth", f"depth {self.depth} is not a power of two", "use round_depth()")
        if self.by_lane and not self.may_be_by_lane:
            raise TraceError(
                "ring-format",
                f"{self.depth} {self.keep.value} records of a lane can't lie together",
                "use by_lane=False",
            )

    @property
    def may_be_by_lane(self) -> bool:
        """Whether ``by_lane`` is possible."""
        return self.keep is Keep.NEWEST and self.depth * self.record_bytes > MAX_SITES

    @property
    def version(self) -> int:
        """The version of the memory layout."""
        return FORMAT_VERSIONS[self.by_lane]

    @property
    def dtype(self) -> np.dtype[np.void]:
        """numpy dtype of one record."""
        return _DTYPES[self.kind]

    @property
    def record_bytes(self) -> int:
        """8 or 16."""
        return self.dtype.itemsize

    @property
    def step(self) -> int:
        """What a visit adds to the running offset. The bytes of 32 records: the distance from one slot of a lane to its
        next, whose low bits are free for the site. ``by_lane``: the bytes of all slots of a lane, and one more."""
        return self.lane_bytes + self.record_bytes if self.by_lane else LANES * self.record_bytes

    @property
    def lane_bytes(self) -> int:
        """Bytes from a lane's first slot to the next lane's."""
        return self.slots * self.record_bytes if self.by_lane else self.record_bytes

    @property
    def sequence_shift(self) -> int:
        """The tag is ``sequence << sequence_shift | site + 1`` (``by_lane``: once :meth:`RingLayout.slots` read it)."""
        return (LANES * self.record_bytes).bit_length() - 1

    @property
    def sequence_bits(self) -> int:
        """Bits of the sequence (24 or 23): it wraps at ``1 << sequence_bits`` records of one lane."""
        return 32 - self.sequence_shift

    @property
    def slots(self) -> int:
        """Slots per lane: ``depth``, and one more that takes everything after the first ``depth`` records."""
        return self.depth + (self.keep is Keep.FIRST)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one warp's part of the ring."""
        return self.slots * LANES * self.record_bytes

    @property
    def mask(self) -> int:
        """``offset & mask`` is the slot's place (``keep`` newest)."""
        return (self.depth - 1) * (self.record_bytes if self.by_lane else self.step)

    @property
    def limit(self) -> int:
        """``min(offset, limit)`` is the slot's place (``keep`` first)."""
        return self.depth * self.step

    @property
    def alignment(self) -> int:
        """Alignment of a warp's chunk: itself for ``keep`` newest, where the place is or-ed in; else one
        slot."""
        return self.chunk_bytes if self.keep is Keep.NEWEST else self.step

    @property
    def code(self) -> int:
        """A 32-bit number that names this format, kept in the descriptor."""
        kind = list(RecordKind).index(self.kind)
        return kind | (self.keep is Keep.FIRST) << 4 | self.by_lane << 5 | self.depth.bit_length() << 8

    def to_json(self) -> dict[str, Any]:
        """JSON form; :meth:`from_json` reads it back."""
        return {
            "version": self.version,
            "record": self.kind.value,
            "depth": self.depth,
            "keep": self.keep.value,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RingFormat:
        """Raises TraceError ``ring-format`` for another version or unknown names."""
        version = data.get("version") if isinstance(data, dict) else None
        if version not in FORMAT_VERSIONS or isinstance(version, bool):
            known = " and ".join(map(str, FORMAT_VERSIONS))
            raise TraceError("ring-format", f"ring format version {version!r}, this reader knows {known}")
        by_lane = bool(FORMAT_VERSIONS.index(version))
        try:
            return cls(RecordKind(data["record"]), int(data["depth"]), Keep(data["keep"]), by_lane)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise TraceError("ring-format", f"not a ring format: {error}") from None


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Device addresses of one armed ring."""

    ring: int
    headers: int
    table: int
    """0 when every CTA slot is the linear CTA id."""


@dataclass(frozen=True, slots=True)
class RingLayout:
    """A ring for one launch.

    ``grid`` and ``block`` are the launch's dimensions; ``cta_slots`` the number of CTAs recorded (all of
    them, or a sample chosen by a table). Raises TraceError ``ring-geometry`` for impossible launches and
    ``ring-too-large`` where ring, headers and table pass 4 GiB.
    """

    format: RingFormat
    grid: Dim3
    block: Dim3
    cta_slots: int

    def __post_init__(self) -> None:
        limits = (2**31 - 1, 65535, 65535, 1024, 1024, 1024)
        dims = (*self.grid, *self.block)
        if len(dims) != 6 or any(not 1 <= d <= m for d, m in zip(dims, limits, strict=True)):
            raise TraceError("ring-geometry", f"grid {self.grid}, block {self.block} is no launch")
        if prod(self.block) > 1024 or prod(self.grid) >= 2**31:
            raise TraceError(
                "ring-geometry", f"grid {self.grid}, block {self.block} has too many threads or CTAs"
            )
        if not 1 <= self.cta_slots <= prod(self.grid):
            raise TraceError("ring-geometry", f"{self.cta_slots} CTA slots for a grid of {prod(self.grid)}")
        if self.total_bytes > MAX_RING_BYTES:
            raise TraceError(
                "ring-too-large",
                f"{self.total_bytes} bytes for {self.warps} warps x {self.format.depth} records",
                "lower the depth or sample CTAs",
            )

    @classmethod
    def for_launch(cls, fmt: RingFormat, grid: Dim3, block: Dim3, budget: int | None = None) -> RingLayout:
        """The layout that records every CTA, or as many as ``budget`` bytes hold.

        Raises TraceError ``ring-too-large`` when not even one CTA fits.
        """
        ctas = prod(grid)
        if budget is not None:
            warps = (prod(block) + LANES - 1) // LANES
            # Per slot: chunks, headers and a table entry for every CTA of the grid.
            fixed = ctas * 4 + 256
            fit = (budget - fixed) // (warps * (fmt.chunk_bytes + HEADER_BYTES))
            if fit < 1:
                raise TraceError(
                    "ring-too-large",
                    f"one CTA needs {warps * (fmt.chunk_bytes + HEADER_BYTES) + fixed} bytes, "
                    f"the budget is {budget}",
                    "raise the budget or lower the depth",
                )
            ctas = min(ctas, fit)
        return cls(fmt, grid, block, ctas)

    @property
    def threads_per_cta(self) -> int:
        """Threads of one CTA."""
        return prod(self.block)

    @property
    def warps_per_cta(self) -> int:
        """Warps of one CTA, the last possibly partial."""
        return (self.threads_per_cta + LANES - 1) // LANES

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return prod(self.grid)

    @property
    def sampled(self) -> bool:
        """Whether a table must choose the CTAs recorded."""
        return self.cta_slots < self.ctas

    @property
    def warps(self) -> int:
        """Warps that have a place in the ring."""
        return self.cta_slots * self.warps_per_cta

    @property
    def ring_bytes(self) -> int:
        """Bytes of the records alone."""
        return self.warps * self.format.chunk_bytes

    def slots(self, data: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.void]]:
        """(warps, slots, 32) records of the ring whose bytes ``data`` begins with. ``by_lane`` makes copies of them,
        with tags that say ``sequence << shift | site + 1``.

        Raises TraceError ``ring-corrupt`` for a tag that no record in its slot can have.
        """
        fmt = self.format
        ring = data[: self.ring_bytes].view(fmt.dtype)
        if not fmt.by_lane:
            return ring.reshape(self.warps, fmt.slots, LANES)
        found = np.zeros((self.warps, fmt.slots, LANES), fmt.dtype)
        lanes = ring.reshape(self.warps, LANES, fmt.slots)
        for first in range(0, self.warps, _BLOCK_WARPS):
            block = slice(first, first + _BLOCK_WARPS)
            warp, lane, slot = np.nonzero(lanes["tag"][block])
            records = lanes[block][warp, lane, slot]
            records["tag"] = _plain_tags(fmt, records["tag"], slot, first + warp, lane)
            found[block][warp, slot, lane] = records
        return found

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers."""
        return self.warps * HEADER_BYTES

    @property
    def data_bytes(self) -> int:
        """Records and headers: what the decoder reads."""
        return self.ring_bytes + self.header_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of the CTA table (0 unless sampled)."""
        return 4 * self.ctas if self.sampled else 0

    @property
    def total_bytes(self) -> int:
        """Records, headers and table."""
        return self.data_bytes + self.table_bytes

    @property
    def allocation_bytes(self) -> int:
        """Bytes to allocate so that :meth:`place` finds room at any base address."""
        return 2 * (self.total_bytes + self.format.alignment)

    def place(self, address: int, size: int) -> RingPlace:
        """Addresses inside an allocation of ``size`` bytes at ``address``: aligned, and within one 4 GiB
        window.

        Raises TraceError ``ring-window`` when they don't fit; ``size`` of :attr:`allocation_bytes` always
        fits.
        """
        align = self.format.alignment
        start = -(-address // align) * align
        if start // MAX_RING_BYTES != (start + self.total_bytes - 1) // MAX_RING_BYTES:
            start = (start // MAX_RING_BYTES + 1) * MAX_RING_BYTES
        if start + self.total_bytes > address + size:
            raise TraceError(
                "ring-window",
                f"{self.total_bytes} bytes do not fit one 4 GiB window of {size} bytes at {address:#x}",
                f"allocate {self.allocation_bytes} bytes",
            )
        headers = start + self.ring_bytes
        return RingPlace(start, headers, headers + self.header_bytes if self.sampled else 0)

    def descriptor(self, place: RingPlace | None) -> bytes:
        """The 64 bytes that arm the ring at ``place`` (None: unarmed)."""
        if place is None:
            return unarmed_descriptor(self.format)
        if self.sampled and not place.table:
            raise TraceError(
                "ring-geometry", f"{self.cta_slots} of {self.ctas} CTAs recorded without a table"
            )
        value = np.zeros(1, DESCRIPTOR_DTYPE)
        value[0] = (
            place.ring,
            place.headers,
            place.table,
            self.cta_slots,
            self.warps_per_cta,
            self.format.version,
            self.format.code,
        )
        return value.tobytes()

    def table(self, ctas: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, np.dtype[np.int32]]:
        """(ctas,) int32 slot of every linear CTA id, -1 where unrecorded.

        ``ctas`` names the ``cta_slots`` recorded linear ids; by default they are spread evenly over the grid.
        Raises TraceError ``ring-geometry`` for ids outside the grid, repeated, or of another number.
        """
        if ctas is None:
            chosen = np.arange(self.cta_slots, dtype=np.int64) * self.ctas // self.cta_slots
        else:
            chosen = np.asarray(ctas, dtype=np.int64)
        inside = bool(((chosen >= 0) & (chosen < self.ctas)).all())
        if len(chosen) != self.cta_slots or not inside or len(np.unique(chosen)) != len(chosen):
            raise TraceError(
                "ring-geometry", f"{len(chosen)} CTA ids do not name {self.cta_slots} CTAs of the grid"
            )
        slots = np.full(self.ctas, -1, np.int32)
        slots[chosen] = np.arange(len(chosen), dtype=np.int32)
        return slots

    def to_json(self) -> dict[str, Any]:
        """JSON form; :meth:`from_json` reads it back."""
        return {
            "format": self.format.to_json(),
            "grid": list(self.grid),
            "block": list(self.block),
            "cta_slots": self.cta_slots,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RingLayout:
        """Raises TraceError ``ring-format`` or ``ring-geometry``."""
        try:
            grid = tuple(int(d) for d in data["grid"])
            block = tuple(int(d) for d in data["block"])
            slots = int(data["cta_slots"])
            fmt = RingFormat.from_json(data["format"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise TraceError("ring-format", f"not a ring layout: {error}") from None
        if len(grid) != 3 or len(block) != 3:
            raise TraceError("ring-geometry", f"grid {grid}, block {block} is no launch")
        return cls(fmt, grid, block, slots)


def not_its_own(slot: int, lane: int, warp: int) -> TraceError:
    """The error of a slot whose tag no record made in its turn can have."""
    return TraceError(
        "ring-corrupt",
        f"slot {slot} of lane {lane}, warp {warp} holds a record that is not its own",
        "two launches shared the ring, it was not zeroed, or the kernel wrote into it",
    )


def _plain_tags(
    fmt: RingFormat,
    tags: np.ndarray[Any, np.dtype[np.uint32]],
    slot: np.ndarray[Any, np.dtype[np.int64]],
    warp: np.ndarray[Any, np.dtype[np.int64]],
    lane: np.ndarray[Any, np.dtype[np.int64]],
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """(n,) tags of a ring by lane as those of any other; ``slot``, ``warp``, ``lane``: where each was found.

    The step is an odd number of records, so that the offset tells the sequence up to 2**29 (2**28) by the inverse
    modulo that; its low bits are the slot's place, which leaves the site.
    """
    size, bits = fmt.record_bytes, 32 - (fmt.record_bytes.bit_length() - 1)
    site = tags - slot.astype(np.uint32) * np.uint32(size) & np.uint32(fmt.lane_bytes - 1)
    records = (tags - site) // np.uint32(size)
    inverse = pow(fmt.step // size, -1, 1 << bits)
    sequence = records * np.uint32(inverse) & np.uint32((1 << bits) - 1)
    wrong = (site == 0) | (site > MAX_SITES) | (sequence & np.uint32(fmt.depth - 1) != slot)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise not_its_own(int(slot[at]), int(lane[at]), int(warp[at]))
    return np.asarray(sequence << np.uint32(fmt.sequence_shift) | site)


def checked_duration(duration_ns: float | None) -> float:
    """A launch's duration in ns as told by a caller, 0.0 for None.

    Raises TraceError ``trace-duration`` for what is negative or no finite number (no comparison with a limit would
    notice a NaN).
    """
    duration = duration_ns or 0.0
    if not 0.0 <= duration < math.inf:
        raise TraceError("trace-duration", f"a duration of {duration} ns", "give nanoseconds, 0 or more")
    return duration


def unarmed_descriptor(fmt: RingFormat) -> bytes:
    """The descriptor's initial bytes in a patched cubin: nothing armed, version and format told."""
    value = np.zeros(1, DESCRIPTOR_DTYPE)
    value["version"] = fmt.version
    value["format"] = fmt.code
    return value.tobytes()
