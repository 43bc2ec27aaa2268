"""Why a global access is narrower than 16 bytes: one named cause per group of accesses.

A group is everything a kernel loads (or stores) through one argument. Causes, most specific first: ``gather``
(the address was loaded), ``divisibility`` (an argument's alignment isn't promised), ``stride`` (neighbouring
elements of a thread lie apart), ``mask`` (elements have conditions of their own), ``offset`` (the
places don't start at a multiple of the width), ``tail`` (the rest beside wide accesses), ``dtype`` (a thread has
fewer than 16 bytes there), ``unknown``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

from gwatch.inspect.opcodes import Access
from gwatch.inspect.triton_source import Argument

FULL_BYTES = 16


@dataclass(frozen=True, slots=True)
class Cause:
    """``name`` is one of the module's; ``argument`` the one to blame ("" when none is); ``text`` a sentence."""

    name: str
    argument: str
    text: str

    def to_json(self) -> dict[str, str]:
        """JSON data."""
        return {"name": self.name, "argument": self.argument, "text": self.text}


@dataclass(frozen=True, slots=True)
class Place:
    """One access as the code shows it. ``argument`` and the entries of ``scalars``, ``conditions`` and
    ``products`` are argument ordinals: numbers in the address, in the guard, and factors in the address with
    whether the other factor differs from thread to thread. Equal ``address_key`` / ``guard_key``: the same
    registers with the same contents."""

    index: int
    block: int
    text: str
    access: Access
    guard: str
    guard_key: str
    address_key: str
    offset: int
    argument: int | None
    scalars: tuple[int, ...]
    conditions: tuple[int, ...]
    products: tuple[tuple[int, bool], ...]
    gathered: bool

    @property
    def bytes(self) -> int:
        return self.access.bits // 8


def explain(places: list[Place], arguments: list[Argument], described: bool) -> dict[int, Cause]:
    """Instruction index -> cause, for every access below 16 bytes.

    ``described``: the arguments' divisibility is what was promised to the compiler (else it isn't known).
    """
    groups: dict[tuple[str, int | str], list[Place]] = defaultdict(list)
    for place in places:
        # Without a known base, accesses through different registers have nothing to do with each other.
        base: int | str = place.address_key if place.argument is None else place.argument
        groups[place.access.action, base].append(place)
    causes: dict[int, Cause] = {}
    for members in groups.values():
        narrow = [place for place in members if place.bytes < FULL_BYTES]
        wide = [place for place in members if place.bytes >= FULL_BYTES]
        if narrow:
            group = _Group(narrow, wide, arguments, described)
            for place in narrow:
                causes[place.index] = group.cause(place)
    return causes


class _Group:
    """Narrow accesses through one argument, with the wide ones beside them."""

    def __init__(
        self, narrow: list[Place], wide: list[Place], arguments: list[Argument], described: bool
    ) -> None:
        self.narrow, self.wide, self.arguments, self.described = narrow, wide, arguments, described
        self.runs = _runs(narrow)
        self.pointer = arguments[narrow[0].argument] if narrow[0].argument is not None else None

    def cause(self, place: Place) -> Cause:
        """The cause of one of the narrow accesses."""
        run = next(run for run in self.runs if place in run)
        if place.gathered:
            return Cause(
                "gather", "", "the address comes from a loaded value: elements need not be neighbours"
            )
        return self._promised(place, run) if self.described else self._from_code(place, run)

    def _promised(self, place: Place, run: list[Place]) -> Cause:
        pointer = self.pointer
        if pointer is not None and pointer.divisibility is None:
            return Cause(
                "divisibility", pointer.name,
                f"{pointer.name} ({pointer.type}) has no tt.divisibility: it isn't known to be a multiple of 16",
            )  # fmt: skip
        if pointer is not None and pointer.divisibility is not None and pointer.divisibility < FULL_BYTES:
            return Cause(
                "divisibility", pointer.name,
                f"{pointer.name} ({pointer.type}) is only known to be a multiple of {pointer.divisibility}",
            )  # fmt: skip
        stride = self._stride(place)
        if stride is not None:
            return stride
        for number in place.scalars:
            argument = self.arguments[number]
            if argument.divisibility is None:
                return Cause(
                    "divisibility", argument.name,
                    f"{argument.name} ({argument.type}) is part of the address and has no tt.divisibility",
                )  # fmt: skip
        if _misplaced(run):
            return _offset(run)
        for number in place.conditions:
            argument = self.arguments[number]
            if argument.divisibility is None:
                return Cause(
                    "mask", argument.name,
                    f"the mask depends on {argument.name} ({argument.type}), which has no tt.divisibility: "
                    "elements of one access could differ in their mask",
                )  # fmt: skip
        return self._small(place, run)

    def _from_code(self, place: Place, run: list[Place]) -> Cause:
        stride = self._stride(place)
        if stride is not None and len(run) == 1:
            return stride
        if self.wide and (len(run) == 1 or all(place.block != other.block for other in self.wide)):
            return Cause("tail", self._name(), "the rest beside 16-byte accesses of the same argument")
        if len(run) > 1:
            if len({other.guard_key for other in run}) > 1 or len({other.block for other in run}) > 1:
                return Cause(
                    "mask", self._name(),
                    f"{_merged(run)}, but each has a condition of its own",
                )  # fmt: skip
            if _misplaced(run):
                return _offset(run)
            return Cause(
                "divisibility", self._name(),
                f"{_merged(run)}, but the compiler can't know that the address is a multiple of {_together(run)}",
            )  # fmt: skip
        return self._small(place, run)

    def _stride(self, place: Place) -> Cause | None:
        for number, threads in place.products:
            if threads:
                name = self.arguments[number].name
                return Cause("stride", name, f"elements of neighbouring threads are {name} elements apart")
        return None

    def _small(self, place: Place, run: list[Place]) -> Cause:
        total = sum(other.bytes for other in run)
        if total < FULL_BYTES:
            size = self.pointer.element_bytes if self.pointer is not None else None
            unit = f"{total // size} × {size}" if size and total % size == 0 else f"{total}"
            same = [other for other in self.runs if other[0].address_key == place.address_key]
            if len(same) > 1 and not self.described:
                apart = min(b[0].offset - a[0].offset for a, b in itertools.pairwise(same))
                text = f"the thread's {len(same)} places there are {apart:#x} bytes apart, each {unit} bytes"
                return Cause("stride", self._name(), text)
            return Cause("dtype", self._name(), f"a thread has only {unit} bytes in a row there")
        return Cause("unknown", self._name(), "neither arguments nor address arithmetic show why")

    def _name(self) -> str:
        return self.pointer.name if self.pointer is not None else ""


def _runs(places: list[Place]) -> list[list[Place]]:
    """Accesses through the same registers at gapless offsets, each run in order of offset."""
    by_address: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        by_address[place.address_key].append(place)
    runs = []
    for members in by_address.values():
        members.sort(key=lambda place: (place.offset, place.index))
        run = [members[0]]
        for place in members[1:]:
            if place.offset == run[-1].offset + run[-1].bytes and _together(run) + place.bytes <= FULL_BYTES:
                run.append(place)
            else:
                runs.append(run)
                run = [place]
        runs.append(run)
    return runs


def _together(run: list[Place]) -> int:
    return sum(place.bytes for place in run)


def _misplaced(run: list[Place]) -> bool:
    """Whether the run starts at a constant offset that no 16-byte access could have."""
    return run[0].offset % min(FULL_BYTES, 1 << (_together(run).bit_length() - 1)) != 0


def _offset(run: list[Place]) -> Cause:
    return Cause(
        "offset", "",
        f"the places start {run[0].offset:#x} bytes behind the base, no multiple of {FULL_BYTES}",
    )  # fmt: skip


def _merged(run: list[Place]) -> str:
    places = f"{run[0].offset:#x} to {run[-1].offset:#x}"
    return f"{len(run)} accesses at {places} of the same address could be one of {_together(run) * 8} bits"
