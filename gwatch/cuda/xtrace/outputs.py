"""Does the traced kernel still compute the same? Compare memory after plain and traced passes.

Compared are the arrays ``fn`` returned, those named by ``outputs=``, and the device allocations that the
kernel's pointer parameters point into. Bytes that differ between two plain passes prove nothing about
tracing: they are set aside and counted.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.driver import Driver

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory after one pass: bytes by name, and what was left out, with the reason."""

    data: dict[str, Bytes]
    skipped: tuple[str, ...]


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
    seen: set[tuple[int, int]] = set()
    for name, array in arrays:
        raw = _array_bytes(driver, array, room)
        if raw is None:
            skipped.append(f"{name}: no plain memory of at most {room} bytes")
            continue
        data[name] = raw
        room -= raw.size
    for name, address in pointers:
        block = driver.allocation(address)
        if block is None or block in seen:
            continue
        seen.add(block)
        if block[1] > room:
            skipped.append(f"{name}: its allocation of {block[1]} bytes is over the limit")
            continue
        data[f"memory of {name}"] = np.frombuffer(driver.read(*block), np.uint8)
        room -= block[1]
    return Snapshot(data, tuple(skipped))


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
