"""Does the traced kernel still compute the same? Compare memory after plain and traced passes.

Compared are the arrays ``fn`` returned, those named by ``outputs=``, and the device allocations that the
kernel's pointer parameters point into. Bytes that differ between two plain passes prove nothing about
tracing: they are set aside and counted. An allocation inside which the arrays or parameters lay elsewhere in some pass
(a caching allocator hands out parts of larger blocks) is not compared: its bytes stand for other things then.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.driver import Driver

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory after one pass: bytes by name, and what was left out, with the reason. ``places``: where the pointers
    and arrays lie in an allocation that was read whole (byte offsets), by its name in ``data``.
    """

    data: dict[str, Bytes]
    skipped: tuple[str, ...]
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def arrays_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Arrays inside a return value, through tuples, lists and mappings, each with a name."""
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return
    if (
        isinstance(value, np.ndarray)
        or hasattr(value, "__cuda_array_interface__")
        or hasattr(value, "data_ptr")
    ):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from arrays_in(item, f"{name}[{key!r}]")
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from arrays_in(item, f"{name}[{index}]")


def pointers_in(parameters: bytes | None, layout: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """(name, value) of every 8-byte-aligned word of the parameters that could be an address."""
    if parameters is None:
        return
    for index, (offset, size) in enumerate(layout):
        for at in range(0, size - 7, 8):
            value = struct.unpack_from("<Q", parameters, offset + at)[0]
            if value > 0xFFFF:
                yield f"parameter {index}" + (f"+{at}" if size > 8 else ""), value


def take(
    driver: Driver,
    arrays: Iterable[tuple[str, Any]],
    pointers: Iterable[tuple[str, int]],
    limit: int,
) -> Snapshot:
    """Copy what is to be compared to the host, at most ``limit`` bytes; everything must have finished.

    Allocations are read whole: a framework's allocator hands out parts of larger blocks, and the rest of the
    block is compared too.
    """
    data: dict[str, Bytes] = {}
    skipped: list[str] = []
    room = limit
    places: dict[tuple[int, int], list[int]] = {}
    blocks: dict[str, tuple[int, int]] = {}
    addresses: list[int] = []
    for name, array in arrays:
        raw = _array_bytes(driver, array, room)
        if raw is None:
            skipped.append(f"{name}: no plain memory of at most {room} bytes")
            continue
        data[name] = raw
        room -= raw.size
        addresses.append(_device_address(array))
    for name, address in pointers:
        block = driver.allocation(address)
        if block is None:
            continue
        first = block not in places
        places.setdefault(block, []).append(address - block[0])
        if not first:
            continue
        if block[1] > room:
            skipped.append(f"{name}: its allocation of {block[1]} bytes is over the limit")
            continue
        data[f"memory of {name}"] = np.frombuffer(driver.read(*block), np.uint8)
        blocks[f"memory of {name}"] = block
        room -= block[1]
    for (start, size), offsets in places.items():
        offsets += [address - start for address in addresses if start <= address < start + size]
    return Snapshot(data, tuple(skipped), {name: tuple(places[block]) for name, block in blocks.items()})


def _device_address(array: Any) -> int:
    """Where the array begins on the device; 0 for arrays on the host."""
    if isinstance(array, np.ndarray):
        return 0
    if callable(getattr(array, "data_ptr", None)):
        return int(array.data_ptr()) if array.is_cuda else 0
    return int(array.__cuda_array_interface__["data"][0])


def _array_bytes(driver: Driver, array: Any, room: int) -> Bytes | None:
    """The array's bytes, None for layouts and sizes that are not read."""
    if isinstance(array, np.ndarray):
        ok = not array.dtype.hasobject and array.nbytes <= room
        return np.frombuffer(array.tobytes(), np.uint8) if ok else None
    if callable(getattr(array, "data_ptr", None)):
        size = int(array.numel()) * int(array.element_size())
        if not array.is_contiguous() or size > room:
            return None
        if not array.is_cuda:
            return np.frombuffer(ctypes.string_at(int(array.data_ptr()), size), np.uint8)
        return np.frombuffer(driver.read(int(array.data_ptr()), size), np.uint8)
    interface = array.__cuda_array_interface__
    if interface.get("strides") is not None:
        return None
    size = int(np.prod(interface["shape"], dtype=np.int64)) * np.dtype(interface["typestr"]).itemsize
    return np.frombuffer(driver.read(int(interface["data"][0]), size), np.uint8) if size <= room else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status``: "identical", "differ", "nondeterministic" or "not checked: why"; ``details`` name the
    rest.
    """

    status: str
    details: tuple[str, ...] = ()


def compare(plain: Sequence[Snapshot], traced: Snapshot) -> Verdict:
    """Hold a traced pass against two or more plain ones."""
    if len(plain) < 2:
        return Verdict("not checked: it takes two plain passes to know what is deterministic")
    names = [
        name
        for name, value in traced.data.items()
        if all(name in other.data and other.data[name].size == value.size for other in plain)
    ]
    details = list(dict.fromkeys(note for shot in (*plain, traced) for note in shot.skipped))
    details += [
        f"{name}: not there, or of another size, in some pass" for name in traced.data if name not in names
    ]
    moved = [
        name
        for name in names
        if any(other.places.get(name, ()) != traced.places.get(name, ()) for other in plain)
    ]
    names = [name for name in names if name not in moved]
    details += [f"{name}: what is used there lay elsewhere in some pass, not compared" for name in moved]
    if not names:
        why = details[0] if details else "the launch reaches no device memory and fn returned no array"
        return Verdict(f"not checked: {why}", tuple(details))
    differ = unstable = checked = 0
    for name in names:
        reference = plain[0].data[name]
        stable = np.ones(reference.size, bool)
        for other in plain[1:]:
            stable &= other.data[name] == reference
        wrong = int(np.count_nonzero(stable & (traced.data[name] != reference)))
        loose = int(stable.size - np.count_nonzero(stable))
        checked += stable.size - loose
        if wrong:
            details.append(f"{name}: {wrong} of {stable.size} bytes differ from both plain passes")
        if loose:
            details.append(f"{name}: {loose} of {stable.size} bytes differ between plain passes")
        differ, unstable = differ + wrong, unstable + loose
    if differ:
        return Verdict("differ", tuple(details))
    if unstable:
        return Verdict("nondeterministic", (*details, f"{checked} other bytes are identical"))
    return Verdict("identical", (*details, f"{checked} bytes compared"))
