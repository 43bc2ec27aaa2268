"""Fat binaries: the containers that hold cubins (and PTX) inside libraries and executables.

Layout, observed on public wheels and on nvcc 13.0 output: a container starts with the magic ``0xBA55ED50``, a u16
version, a u16 header size and a u64 payload size. Each entry starts with a u16 kind (1 PTX, 2 ELF), two bytes of
version, a u32 header size, a u64 stored size, a u32 compressed size, and further on the architecture (u32 at 28), a
u64 of flags at
40 (0x2000: LZ4 block, 0x8000: zstd) and the u64 decompressed size at 56.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gwatch.errors import CubinError, ToolError

MAGIC = 0xBA55ED50
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_KIND_PTX, _KIND_ELF = 1, 2
_FLAG_LZ4, _FLAG_ZSTD = 0x2000, 0x8000
MAX_IMAGE = 1 << 29
"""Bytes of a cubin, at most: more is taken for damage (the largest seen have some 100 MB)."""
_LZ4_RATIO = 255
"""What a byte of LZ4 can stand for, at most."""
_CONTAINER = struct.Struct("<IHHQ")
_CONTAINER_START = struct.pack("<IHH", MAGIC, 1, _CONTAINER.size)
_MEMBER_START = struct.Struct("<HHI")
_HEAD = 64
_LARGEST_KIND, _LARGEST_HEAD = 0x80, 1 << 12
"""Kinds and header sizes that compilers give members lie well below these."""


@dataclass(frozen=True, slots=True)
class FatbinEntry:
    """One member of a fat binary; ``data`` is still as stored, :meth:`image` gives the plain bytes."""

    kind: str  # "elf", "ptx" or "kind-N"
    sm: int
    flags: int
    offset: int  # of the entry's header in the scanned bytes
    decompressed_size: int
    data: bytes

    def image(self) -> bytes:
        """The decompressed member.

        Raises CubinError ``[fatbin-corrupt]`` when it does not decompress to the stated size and ToolError
        ``[decompressor-missing]`` when the LZ4 or zstd package is not installed.
        """
        if self.flags & _FLAG_LZ4:
            return self._checked(_decompress_lz4(self.data, self.decompressed_size, self.offset))
        if self.flags & _FLAG_ZSTD:
            return self._checked(_decompress_zstd(self.data, self.decompressed_size, self.offset))
        return self.data

    def _checked(self, plain: bytes) -> bytes:
        if len(plain) != self.decompressed_size:
            raise CubinError(
                "fatbin-corrupt",
                f"the member at offset {self.offset:#x} decompresses to {len(plain)} "
                f"bytes where its header says {self.decompressed_size}",
            )
        return plain


def _decompress_lz4(data: bytes, size: int, offset: int) -> bytes:
    try:
        import lz4.block
    except ImportError as error:
        raise ToolError(
            "decompressor-missing",
            f"the fat binary member at offset {offset:#x} is LZ4-compressed",
            "pip install 'gwatch-sass[fatbin]'",
        ) from error
    try:
        plain: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise CubinError(
            "fatbin-corrupt", f"the LZ4 member at offset {offset:#x} does not decompress"
        ) from error
    return plain


def _decompress_zstd(data: bytes, size: int, offset: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise ToolError(
            "decompressor-missing",
            f"the fat binary member at offset {offset:#x} is zstd-compressed",
            "pip install 'gwatch-sass[fatbin]'",
        ) from error
    try:
        # The frame's own claim, not max_output_size, decides how much memory is set aside.
        if zstandard.frame_content_size(data) not in (-1, size):
            raise zstandard.ZstdError("size of the frame")
        plain: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CubinError(
            "fatbin-corrupt", f"the zstd member at offset {offset:#x} does not decompress"
        ) from error
    return plain


def _entry(data: bytes, position: int, end: int) -> tuple[FatbinEntry, int]:
    if position + _HEAD > end:
        raise CubinError("fatbin-truncated", f"the entry at offset {position:#x} is cut off")
    (kind,) = struct.unpack_from("<H", data, position)
    header_size, stored, compressed = struct.unpack_from("<IQI", data, position + 4)
    (sm,) = struct.unpack_from("<I", data, position + 28)
    (flags,) = struct.unpack_from("<Q", data, position + 40)
    (plain_size,) = struct.unpack_from("<Q", data, position + 56)
    begin = position + header_size
    if header_size < _HEAD or begin + stored > end or compressed > stored:
        raise CubinError("fatbin-corrupt", f"the entry at offset {position:#x} points outside its container")
    packed = bool(flags & (_FLAG_LZ4 | _FLAG_ZSTD))
    # Checked before a decompressor sets that much memory aside.
    if packed and (plain_size > MAX_IMAGE or (flags & _FLAG_LZ4 and plain_size > _LZ4_RATIO * compressed + 16)):
        raise CubinError(
            "fatbin-corrupt",
            f"the entry at offset {position:#x} claims to unpack to {plain_size} bytes from {compressed}",
        )
    payload = data[begin : begin + (compressed if packed else stored)]
    name = {_KIND_PTX: "ptx", _KIND_ELF: "elf"}.get(kind, f"kind-{kind}")
    entry = FatbinEntry(name, sm, flags, position, plain_size if packed else len(payload), payload)
    return entry, begin + stored


def container(read: Callable[[int, int], bytes], offset: int, limit: int) -> tuple[int, int] | None:
    """``(first entry, end)`` of the container at ``offset``; None when the magic there is other data's.

    ``read(offset, count)`` gives bytes of the file of ``limit`` bytes. Off the 8-byte boundaries, where compilers put
    containers, only a container whose entries lie gaplessly in it counts (libraries that embed one as plain data).
    """
    head = read(offset, _CONTAINER.size)
    if len(head) < _CONTAINER.size:
        return None
    magic, version, header_size, size = _CONTAINER.unpack(head)
    first = offset + header_size
    end: int = first + size
    if magic != MAGIC or version != 1 or header_size < _CONTAINER.size or end > limit:
        return None
    if offset % 8:
        at = first
        while at < end:
            entry = read(at, 16)
            length = sum(struct.unpack_from("<IQ", entry, 4)) if len(entry) == 16 else 0
            if length < _HEAD or at + length > end:
                return None
            at += length
    return first, end


def is_cut_off(read: Callable[[int, int], bytes], offset: int, limit: int) -> bool:
    """Whether the magic at ``offset``, which no whole container follows (see :func:`container`), begins one that the
    end of the file cuts off."""
    head = read(offset, _CONTAINER.size + _MEMBER_START.size)
    if not head.startswith(_CONTAINER_START[: len(head)]):
        return False
    if len(head) < _CONTAINER.size + _MEMBER_START.size:
        return True
    kind, _, size = _MEMBER_START.unpack_from(head, _CONTAINER.size)
    past = offset + _CONTAINER.size + _CONTAINER.unpack_from(head)[3] > limit
    return bool(past and 0 < kind < _LARGEST_KIND and _HEAD <= size <= _LARGEST_HEAD)


def iter_fatbin_entries(data: bytes) -> Iterator[FatbinEntry]:
    """Every member of every fat binary container found in ``data`` (a library, an executable or a bare fatbin).

    Containers are searched by their magic, in file order (see :func:`container`). Raises CubinError
    ``[fatbin-truncated]`` or ``[fatbin-corrupt]`` when a plausible container is damaged; of one that ``data`` ends in,
    the whole members come first.
    """

    def read(at: int, count: int) -> bytes:
        return data[at : at + count]

    position = 0
    while (position := data.find(_MAGIC_BYTES, position)) >= 0:
        found = container(read, position, len(data))
        cut = found is None and is_cut_off(read, position, len(data))
        if cut:
            found = position + _CONTAINER.size, len(data)
        if found is None:
            position += 1
            continue
        cursor, end = found
        while cursor < end:
            try:
                entry, cursor = _entry(data, cursor, end)
            except CubinError:
                if cut:
                    break
                raise
            yield entry
        if cut:
            what = f"the fat binary at offset {position:#x} is cut off, or its header gives a wrong size"
            raise CubinError("fatbin-truncated", what)
        position = end


def iter_fatbin_images(data: bytes) -> Iterator[tuple[FatbinEntry, bytes]]:
    """``(entry, plain bytes)`` of every ELF member of ``data``, in file order."""
    for entry in iter_fatbin_entries(data):
        if entry.kind == "elf":
            yield entry, entry.image()
