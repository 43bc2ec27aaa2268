"""The code images a process was seen to load, by handle and by kernel name."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable
from hashlib import sha256

from gwatch.cuda.binary.fatbin import iter_fatbin_images
from gwatch.errors import GWatchError

_ELF64_HEADER, _SECTION_ENTRY, _PROGRAM_ENTRY, _NOBITS = 64, 64, 56, 8


def elf_extent(address: int) -> int:
    """Bytes that the ELF64 image at a host address occupies; 0 when no ELF image starts there.

    Loads hand over a bare pointer, so the size has to come from the image's own headers.
    """
    if not address or ctypes.string_at(address, 4) != b"\x7fELF":
        return 0
    header = ctypes.string_at(address, _ELF64_HEADER)
    if header[4] != 2:
        return 0
    program_at, section_at = struct.unpack_from("<QQ", header, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", header, 54)
    if (section_count and section_size != _SECTION_ENTRY) or (
        program_count and program_size != _PROGRAM_ENTRY
    ):
        return 0
    end = max(
        _ELF64_HEADER, section_at + section_size * section_count, program_at + program_size * program_count
    )
    table = ctypes.string_at(address + section_at, section_size * section_count)
    for at in range(0, len(table), _SECTION_ENTRY):
        (kind,) = struct.unpack_from("<I", table, at + 4)
        offset, size = struct.unpack_from("<QQ", table, at + 24)
        if kind != _NOBITS:
            end = max(end, offset + size)
    return int(end)


_FATBIN_MAGIC, _WRAPPER_MAGIC = b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"
_PTX_STARTS = (b"//", b".v", b"/*")


WHOLE_BYTES = 1 << 22
"""Fat binaries up to this size are kept with their machine code. The driver may load it when a kernel is first used,
long after the load call, and then says no more which handle it belongs to."""


def container_at(address: int) -> bytes | None:
    """What a load call was given at a host address: PTX text, or a fat binary (its wrapper is followed), of which only
    the PTX members are kept where it has more than :data:`WHOLE_BYTES`; None where there is neither.
    """
    if not address:
        return None
    head = ctypes.string_at(address, 4)
    if head == _WRAPPER_MAGIC:
        (address,) = struct.unpack_from("<Q", ctypes.string_at(address, 16), 8)
        head = ctypes.string_at(address, 4) if address else b""
    if head == _FATBIN_MAGIC:
        header_bytes, size = struct.unpack_from("<HQ", ctypes.string_at(address, 16), 6)
        if size <= WHOLE_BYTES:
            return ctypes.string_at(address, header_bytes + size)
        members = _ptx_members(address + header_bytes, size)
        header = struct.pack("<IHHQ", int.from_bytes(_FATBIN_MAGIC, "little"), 1, 16, len(members))
        return header + members if members else None
    start = address
    while ctypes.string_at(start, 1).isspace():
        start += 1
    if ctypes.string_at(start, 2) in _PTX_STARTS:
        return ctypes.string_at(address)  # the driver takes it as text that ends in a zero byte
    return None


def _ptx_members(address: int, size: int) -> bytes:
    """The PTX members (kind 1) of a fat binary whose members lie in ``size`` bytes at ``address``."""
    found, end = [], address + size
    while address + 64 <= end:
        kind, header_bytes, stored = struct.unpack_from("<H2xIQ", ctypes.string_at(address, 16))
        if header_bytes < 64 or address + header_bytes + stored > end:
            break
        if kind == 1:
            found.append(ctypes.string_at(address, header_bytes + stored))
        address += header_bytes + stored
    return b"".join(found)


def has_kernel(image: bytes, name: str) -> bool:
    """Whether an ELF image has a text section for the kernel; a plain byte search, so that it stays cheap."""
    return b".text." + name.encode() + b"\0" in image


class ImageStore:
    """Images seen so far. Methods called from callbacks only append, look up and pop."""

    def __init__(self) -> None:
        self._seen: dict[bytes, None] = {}  # each once: a program may load the same image for ever
        self._by_handle: dict[int, bytes] = {}
        self._containers: dict[int, bytes] = {}
        self._addresses: dict[int, int] = {}
        self._loads: Counter[int] = Counter()
        self._swapped: dict[int, bytes] = {}
        self._own: set[bytes] = set()
        self._found: dict[tuple[int, int, str], tuple[bytes, str]] = {}
        self._swaps: list[tuple[bytes, ctypes.Array[ctypes.c_char]]] = []
        self.refresh: Callable[[], None] = lambda: None
        """Brings what the driver loaded meanwhile."""

    # called from callbacks

    def seen(self, image: bytes) -> None:
        """The driver loaded this image somewhere."""
        self._seen.setdefault(image)

    def loaded(self, handle: int, image: bytes | None, *, swapped: bool = False, address: int = 0) -> None:
        """A load call returned ``handle`` (a CUmodule or CUlibrary) for ``image``; ``address``: the host address that
        the caller handed over."""
        self.forget(handle)  # modules also go with their context, which no unload call tells
        self._loads[handle] += 1
        self._addresses[handle] = address
        if image is not None:
            self._by_handle[handle] = image
            if swapped:
                self._swapped[handle] = image

    def contained(self, handle: int, container: bytes) -> None:
        """``handle`` was loaded from this fat binary or PTX text."""
        self._containers[handle] = container

    def forget(self, handle: int) -> None:
        """A module or library is being unloaded."""
        self._by_handle.pop(handle, None)
        self._containers.pop(handle, None)
        self._addresses.pop(handle, None)
        self._swapped.pop(handle, None)

    def replacement(self, image: bytes) -> int | None:
        """Host address of the image to load instead, if one was registered by :meth:`swap`."""
        for original, patched in self._swaps:
            if len(original) == len(image) and original == image:
                return ctypes.addressof(patched)
        return None

    # called outside

    def swap(self, original: bytes, patched: bytes) -> None:
        """From now on, a load of ``original`` loads ``patched`` instead."""
        self._swaps.append((original, ctypes.create_string_buffer(patched, len(patched))))

    def stop_swapping(self) -> dict[int, bytes]:
        """Load originals again; returns the handles (still loaded) that got a patched image."""
        self._swaps.clear()
        swapped, self._swapped = self._swapped, {}
        return swapped

    def loads(self, handle: int) -> int:
        """How often a load returned this handle: handles of unloaded modules are used again."""
        return self._loads[handle]

    def by_handle(self, handle: int) -> bytes | None:
        """Image of a CUmodule or CUlibrary whose load was seen."""
        return self._by_handle.get(handle)

    def images(self, handle: int) -> list[bytes]:
        """Images that a CUmodule or CUlibrary may have been loaded from: the one that was seen, or those of its fat
        binary, as far as they can be read."""
        image = self._by_handle.get(handle)
        return [image] if image is not None else self._members(handle)[0]

    def problem(self, handle: int) -> str:
        """Why not all members of its fat binary could be read: damage, or nothing here decompresses them; "" if all
        could."""
        return "" if handle in self._by_handle else self._members(handle)[1]

    def _members(self, handle: int) -> tuple[list[bytes], str]:
        data = self._containers.get(handle, b"")
        found: list[bytes] = []
        if data[:4] == _FATBIN_MAGIC:
            try:
                found.extend(image for _, image in iter_fatbin_images(data))
            except GWatchError as error:
                return found, str(error)
        return found, ""

    def holds(self, handle: int, image: bytes) -> bool:
        """Whether ``image`` is among :meth:`images`; fat binaries pad theirs with zeros."""
        plain = image.rstrip(b"\0")
        return any(other.rstrip(b"\0") == plain for other in self.images(handle))

    def container(self, handle: int) -> bytes | None:
        """The fat binary or PTX text that a CUmodule or CUlibrary was loaded from, if its load was seen."""
        return self._containers.get(handle)

    def address(self, handle: int) -> int:
        """Host address that a CUmodule or CUlibrary was loaded from; 0 where that was not seen."""
        return self._addresses.get(handle, 0)

    def own(self, image: bytes) -> None:
        """gwatch itself is about to load this image: it is nobody's original."""
        self._own.add(sha256(image).digest())

    def remember(self, handle: int, name: str, image: bytes, origin: str) -> None:
        """The image with kernel ``name`` of a module was found with some effort; ``origin`` says where."""
        self._found[handle, self.loads(handle), name] = (image, origin)

    def remembered(self, handle: int, name: str) -> tuple[bytes, str] | None:
        """What :meth:`remember` was told about this module, unless the handle was handed out again."""
        return self._found.get((handle, self.loads(handle), name))

    def with_kernel(self, name: str) -> list[bytes]:
        """Distinct images seen that hold a kernel of this mangled name and belong to no known handle."""
        self.refresh()
        known = set(self._by_handle.values())
        pool = [image for image in self._seen if has_kernel(image, name)]
        return [image for image in pool if image not in known and sha256(image).digest() not in self._own]
