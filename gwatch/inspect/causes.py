"""Why a global access is narrower than 16 bytes: one named cause each, or ``unknown`` with what was seen.

What could have been one access is told by arithmetic (:mod:`gwatch.inspect.linear`): places of one thread whose
addresses differ by a constant. What stood in the way is then the first of these that is there: ``volatile`` accesses;
a ``barrier``, or an access that may ``alias``, between them; a condition of its own for each (``mask``); an address
that is no multiple of the width for its ``stride`` or ``offset``, or that may ``wrap`` around; and if none of these is,
that the pointer isn't known to be a multiple (``divisibility``). Where nothing could have been merged: ``tail``,
``chase`` (the iteration before read the address), ``gather``, ``stride``, ``loop`` (neighbours come in other
iterations), ``dtype`` (a thread has fewer bytes there).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gwatch.inspect.linear import Form, Kind, signed
from gwatch.inspect.opcodes import Access
from gwatch.inspect.order import Obstacle, Order
from gwatch.inspect.sums import Sums
from gwatch.inspect.triton_source import Argument
from gwatch.inspect.values import Atom

FULL_BYTES = 16
_PLAIN = frozenset({"CONSTANT", "SYS"})
"""Modifiers of accesses that were asked for without any in the program."""
WIDTHS = (16, 8, 4, 2)
"""Bytes of one access that are more than one byte, widest first; there are no others."""


@dataclass(frozen=True, slots=True)
class Cause:
    """``name`` is one of the module's; ``argument`` the one to blame ("" when none is); ``text`` a sentence."""

    name: str
    argument: str
    text: str

    def to_json(self) -> dict[str, str]:
        """JSON data."""
        return {"name": self.name, "argument": self.argument, "text": self.text}


_CHASE = Cause("chase", "", "the address comes from what the iteration before read from memory: a pointer chase")


@dataclass(frozen=True, slots=True)
class Place:
    """One access as the code shows it. ``form``: its address, ``offset`` the constant in it; ``base``: the atom in it
    that is the pointer (None: none can be told). ``argument`` and the entries of ``scalars``, ``conditions`` and
    ``products`` are argument ordinals: numbers in the address, in the guard, and factors in the address with whether
    the other factor differs from thread to thread. Equal ``guard_key``: the same condition, apart from the branches in
    front. ``gathered``: memory was read for the address; ``chased``: with itself, in the iteration before. ``kept``:
    its condition was kept in a register for a while, and may be another's."""

    index: int
    block: int
    text: str
    access: Access
    guard: str
    guard_key: str
    form: Form
    offset: int
    base: int | None
    argument: int | None
    scalars: tuple[int, ...]
    conditions: tuple[int, ...]
    products: tuple[tuple[int, bool], ...]
    gathered: bool
    chased: bool = False
    kept: bool = False

    @property
    def bytes(self) -> int:
        return self.access.bits // 8

    @property
    def is_strong(self) -> bool:
        """Whether it is volatile or atomic: compilers merge none of these."""
        return not {"STRONG", "MMIO"}.isdisjoint(self.access.modifiers)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a kernel's places are judged by. ``numbers``: constant bank offsets -> ordinals of the arguments there that
    are no pointers. ``described``: the arguments' divisibility is what was promised to the compiler (else unknown).
    ``debug``: the code was made for a debugger, access by access as it was written."""

    arguments: list[Argument]
    described: bool
    sums: Sums
    order: Order
    numbers: Callable[[frozenset[int]], tuple[int, ...]]
    debug: bool = False

    def factors(self, part: Atom) -> tuple[int, ...]:
        """Ordinals of the arguments that a part of an address was multiplied with."""
        return self.numbers(part.parameters) if part.kind is Kind.PRODUCT else ()


def explain(places: list[Place], around: Surroundings) -> dict[int, Cause]:
    """Instruction index -> cause, for every access below 16 bytes."""
    groups: dict[tuple[str, object], list[Place]] = defaultdict(list)
    for place in places:
        # Without a known base, accesses through different registers have nothing to do with each other.
        base: object = place.form.terms if place.argument is None else place.argument
        groups[place.access.action, base].append(place)
    causes: dict[int, Cause] = {}
    for members in groups.values():
        group = _Group(members, around)
        for place in members:
            if place.bytes < FULL_BYTES:
                causes[place.index] = group.cause(place)
    return causes


@dataclass(frozen=True, slots=True)
class _Merge:
    """``members`` that would be one access of ``width`` bytes; ``level``: 0 under one condition with nothing between
    them, 1 with something between them, 2 in several blocks, 3 under several conditions."""

    width: int
    members: tuple[Place, ...]
    level: int


class _Group:
    """Accesses of one kind through one argument."""

    def __init__(self, members: list[Place], around: Surroundings) -> None:
        self.members, self.around = members, around
        first = members[0].argument
        self.pointer = around.arguments[first] if first is not None else None
        self.wide = [place for place in members if place.bytes >= FULL_BYTES]
        self.by_address: dict[object, list[Place]] = defaultdict(list)
        for place in members:
            self.by_address[place.form.terms].append(place)
        for found in self.by_address.values():
            found.sort(key=lambda place: (place.offset, place.index))

    def cause(self, place: Place) -> Cause:
        """The cause of one of the narrow accesses."""
        if self.around.debug:
            return Cause("unknown", self._name, "the code was compiled for a debugger (-G), which merges nothing")
        merge = self._merge(place, self._neighbours(place))
        if place.is_strong and merge is not None:
            return Cause(
                "volatile", self._name,
                f"{self._could(merge)}, but volatile, atomic and .cg accesses ({place.access.opcode}) are never merged",
            )  # fmt: skip
        if self.around.described:
            promised = self._promised(place)
            if promised is not None:
                return promised
        shifted = self._shifted(place, merge.width if merge is not None else place.bytes)
        if shifted is not None:
            return shifted
        if merge is not None:
            return self._hindered(place, merge)
        return self._wrapped(place) or self._alone(place)

    # What a package promised

    def _promised(self, place: Place) -> Cause | None:
        pointer = self.pointer
        if place.chased:
            return _CHASE
        if place.gathered:
            return Cause(
                "gather", "", "the address comes from a loaded value: elements need not be neighbours"
            )
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
        for number, threads in place.products:
            if threads:
                return self._strided(number)
        for number in place.scalars:
            argument = self.around.arguments[number]
            if argument.divisibility is None:
                return Cause(
                    "divisibility", argument.name,
                    f"{argument.name} ({argument.type}) is part of the address and has no tt.divisibility",
                )  # fmt: skip
        run = self._run(place)
        if run[0].offset % min(FULL_BYTES, 1 << (_together(run).bit_length() - 1)):
            return self._offset(run[0])
        for number in place.conditions:
            argument = self.around.arguments[number]
            if argument.divisibility is None:
                return Cause(
                    "mask", argument.name,
                    f"the mask depends on {argument.name} ({argument.type}), which has no tt.divisibility: "
                    "elements of one access could differ in their mask",
                )  # fmt: skip
        return None

    # What could have been merged

    def _neighbours(self, place: Place) -> list[Place]:
        """Accesses at a constant distance, by offset; those that the same index was extended for."""
        same = self.by_address[place.form.terms]
        return [other for other in same if other.form.indexed == place.form.indexed]

    def _merge(self, place: Place, neighbours: list[Place]) -> _Merge | None:
        """The widest access that could hold ``place`` and its neighbours, wherever these stand."""
        known = self._zeros(place)
        for width in WIDTHS:
            if width <= place.bytes:
                return None
            if 1 << known >= width:
                starts = [place.offset - place.offset % width]
            else:  # counted from where the row starts; a rest at its end with what is in front of it
                first = self._run(place)[0].offset
                starts = [place.offset - (place.offset - first) % width]
                starts += range(place.offset + place.bytes - width, place.offset + 1)
            found = [m for start in starts if (m := self._window(place, neighbours, start, width)) is not None]
            if found:
                return min(found, key=lambda merge: merge.level)  # the first of the best
        return None

    def _window(self, place: Place, neighbours: list[Place], start: int, width: int) -> _Merge | None:
        """The accesses that fill ``width`` bytes from offset ``start`` on; of several, those most like ``place``."""
        best: dict[int, Place] = {place.offset: place}
        for other in neighbours:
            fits = start <= other.offset and other.offset + other.bytes <= start + width and other.bytes < width
            if fits and self._preferred(place, other, best.get(other.offset)):
                best[other.offset] = other
        at, members = start, []
        while at < start + width:
            if at not in best:
                return None
            members.append(best[at])
            at += best[at].bytes
        if at != start + width or all(member is not place for member in members):
            return None
        return _Merge(width, tuple(members), self._level(members))

    def _preferred(self, place: Place, other: Place, before: Place | None) -> bool:
        if before is None:
            return True
        return before is not place and self._distance(place, other) < self._distance(place, before)

    def _distance(self, one: Place, other: Place) -> tuple[int, int]:
        apart = 0 if self._alike(one, other) else 1 if self._together(one, other) else 2
        return apart, abs(one.index - other.index)

    def _alike(self, one: Place, other: Place) -> bool:
        return one.block == other.block and one.guard_key == other.guard_key

    def _together(self, one: Place, other: Place) -> bool:
        return one.guard_key == other.guard_key and self.around.order.together(one, other)

    def _level(self, members: Sequence[Place]) -> int:
        first = members[0]
        if not all(self._together(first, other) for other in members):
            return 3
        if self.around.order.obstacle(_ordered(members)) is not None:
            return 1
        return 0 if all(other.block == first.block for other in members) else 2

    def _zeros(self, place: Place) -> int:
        """Low bits of the address that are zero if those of the pointer are, its constant left out."""
        terms = tuple(term for term in place.form.terms if term[0] != place.base)
        return self.around.sums.zeros(Form(terms))

    # What stood in the way

    def _hindered(self, place: Place, merge: _Merge) -> Cause:
        could = self._could(merge)
        if merge.level == 3 and any(member.kept for member in merge.members):
            return Cause("unknown", self._name, f"{could}: whether under one condition can't be told")
        if merge.level == 3:
            return Cause("mask", self._name, f"{could}, but each has a condition of its own")
        if merge.level == 1:
            return self._apart(merge, could)
        if 1 << self._zeros(place) < merge.width:
            return self._unaligned(place, merge, could)
        if merge.level == 2:
            return Cause("unknown", self._name, f"{could}, but they stand in different blocks")
        if self.around.described:
            return Cause("unknown", self._name, f"{could}: alignment and order don't show why they are not")
        base = self.around.sums.atoms.get(place.base) if place.base is not None else None
        if base is None:
            return Cause("unknown", "", f"{could}, but nothing is known of the address")
        hints = set(place.access.modifiers) - _PLAIN
        if hints:
            return Cause(
                "unknown", self._name,
                f"{could}: the pointer may not be known to be a multiple of {merge.width}, or the program asks for "
                f"each by itself, as cache hints ({', '.join(sorted(hints))}) mostly do",
            )  # fmt: skip
        for wide in self.wide:
            if self._alike(wide, place) and wide.base == place.base:
                return Cause(
                    "unknown", self._name,
                    f"{could}, and {wide.access.opcode} at {self._pc(wide)} shows that the pointer is aligned",
                )  # fmt: skip
        if place.access.action == "copy to shared":
            return Cause(
                "unknown", self._name, f"{could}, but compilers leave asynchronous copies as they are written"
            )
        stop = self.around.order.stop(_ordered(merge.members))
        if stop is not None:
            found, between = stop
            where = "stands between them" if between else "may have stood between them before the code was scheduled"
            return Cause(
                "unknown", self._name,
                f"{could}: the pointer may not be known to be a multiple of {merge.width}, or {self._told(found)}, "
                f"which {where}, kept them apart",
            )  # fmt: skip
        if "CONSTANT" in place.access.modifiers and self.around.order.is_ordered(place.block):
            return Cause(
                "unknown", self._name,
                f"{could}: the pointer may not be known to be a multiple of {merge.width}, or barriers, atomic or "
                "volatile accesses stood between them before the code was scheduled",
            )  # fmt: skip
        whose = "the pointer, which was read from memory," if base.loaded else "the pointer"
        return Cause(
            "divisibility", self._name,
            f"{could}, but the compiler can't know that {whose} is a multiple of {merge.width}",
        )  # fmt: skip

    def _apart(self, merge: _Merge, could: str) -> Cause:
        found = self.around.order.obstacle(_ordered(merge.members))
        assert found is not None
        where = self._told(found)
        if found.fence:
            return Cause("barrier", self._name, f"{could}, but {where} stands between them")
        stores = merge.members[0].access.action == "store"
        return Cause(
            "alias", self._name,
            f"{could}, but {where} stands between them and may {'read or write' if stores else 'write'} the same "
            "memory (are the pointers __restrict__?)",
        )  # fmt: skip

    def _unaligned(self, place: Place, merge: _Merge, could: str) -> Cause:
        """The address is no multiple of the width whatever the pointer is."""
        atoms = self.around.sums.atoms
        atom, factor = min(  # of several the one that shows in neighbouring threads
            (term for term in place.form.terms if term[0] != place.base),
            key=lambda term: (self.around.sums.zeros(Form((term,))), not atoms[term[0]].across),
        )
        part, step = atoms[atom], self._step(atom, factor)
        numbers = self.around.numbers(part.parameters)
        factors = self.around.factors(part)
        if place.chased:
            return Cause("chase", "", f"{could}, but {_CHASE.text}")
        if part.kind is Kind.LOADED or part.loaded:
            return Cause("gather", "", f"{could}, but they start at a place that was read from memory")
        if numbers and part.kind is Kind.PARAMETER:
            name = self.around.arguments[numbers[0]].name
            return Cause(
                "divisibility", name, f"{could}, but {name} is part of the address, and any number"
            )
        if factors:
            name = self.around.arguments[factors[0]].name
            return Cause(
                "stride", name,
                f"{could}, but they start at a multiple of {name}, which is known at run time only",
            )  # fmt: skip
        if part.kind in (Kind.SPECIAL, Kind.STEP) or (part.kind is Kind.PRODUCT and not factors):
            total = _together(self._run(place))
            whose = "iterations" if part.iterates else "neighbouring threads" if part.per_thread else "blocks"
            # A product's other factor, mostly the size of a block, isn't known.
            apart = f"at multiples of {step} bytes" if part.kind is Kind.PRODUCT else f"{step} bytes apart"
            one = f"one of {merge.width * 8} bits must start at a multiple of {merge.width}"
            needed = f"{whose} start {apart}, and {one}"
            if total < FULL_BYTES and step <= total:
                return Cause(
                    "dtype", self._name,
                    f"a thread has only {self._unit(total)} in a row there: {could}, but {needed}",
                )  # fmt: skip
            return Cause("stride", self._name, f"{could}, but {needed}")
        return Cause("unknown", self._name, f"{could}, but part of the address is computed in a way not followed")

    def _shifted(self, place: Place, least: int) -> Cause | None:
        """A run of places that starts at a constant that no access wider than ``least`` bytes can."""
        run = self._run(place)
        for width in WIDTHS:
            wide = least < width <= _together(run) and run[0].offset % width
            if wide and 1 << self._zeros(place) >= width and self._level(run) == 0:
                return self._offset(run[0])
        return None

    def _offset(self, first: Place) -> Cause:
        return Cause(
            "offset", "",
            f"the places start {first.offset:#x} bytes behind the base, no multiple of {FULL_BYTES}",
        )  # fmt: skip

    def _wrapped(self, place: Place) -> Cause | None:
        """Neighbours that are some only if an index of 32 bits doesn't wrap around."""
        merge = self._merge(place, self.by_address[place.form.terms])
        if merge is None or merge.level == 3:
            return None
        if 1 << self._zeros(place) < merge.width:
            unaligned = self._unaligned(place, merge, self._could(merge))
            if unaligned.name in ("dtype", "stride"):  # whether it wraps around or not
                return unaligned
        return Cause(
            "wrap", self._name,
            f"{self._could(merge)} if the unsigned 32-bit index doesn't wrap around, which the compiler can't know",
        )  # fmt: skip

    # Nothing could have been merged

    def _alone(self, place: Place) -> Cause:
        varying = [part for part, _ in self._parts(place) if part.per_thread or part.iterates]
        run = self._run(place)
        if any(other.bytes >= FULL_BYTES for other in run):
            return Cause("tail", self._name, "the rest of a row beside 16-byte accesses of the same address")
        if _together(run) > FULL_BYTES and any(other.index in self._bodies for other in run):
            return Cause("tail", self._name, f"the rest of a row of {_together(run)} bytes")
        if place.chased:
            return _CHASE
        order = self.around.order
        maybe_none = bool(place.guard_key) or not order.is_always_run(place)  # as a rest must be
        if varying and maybe_none and any(not self._together(place, other) for other in self.wide):
            return Cause("tail", self._name, "the rest beside 16-byte accesses of the same argument")
        if self._is_gathered(place):
            return self._goes_on(place, run) or Cause(
                "gather", "", "the address comes from a loaded value: elements need not be neighbours"
            )
        if any(part.iterates for part in varying) and self._has_body(place):
            return Cause("tail", self._name, "the rest beside an unrolled loop over the same argument")
        return self._strides(place, run) or self._small(place, run)

    def _goes_on(self, place: Place, run: list[Place]) -> Cause | None:
        """A row at a place from memory whose elements an innermost loop takes one by one."""
        inner = max((part.loop for part, _ in self._parts(place)), default=-1)
        if any(part.iterates and part.kind is not Kind.STEP for part, _ in self._parts(place)):
            return None
        steps = [self._step(atom, factor) for atom, factor in self._regular(place, threads=False)]
        if inner < 0 or not any(step <= _together(run) for step in steps):
            return None
        return Cause(
            "loop", self._name,
            f"each iteration takes the {self._unit(_together(run))} behind the last one's, from a place on that "
            "was read from memory: the loop isn't unrolled",
        )  # fmt: skip

    def _is_gathered(self, place: Place) -> bool:
        base = self.around.sums.atoms.get(place.base) if place.base is not None else None
        parts = [part for part, _ in self._parts(place)] + ([base] if base is not None else [])
        return any(part.loaded and (part.per_thread or part.iterates) for part in parts)

    @cached_property
    def _bodies(self) -> dict[int, Place]:
        """Places that could have been merged with others, by index."""
        return {
            place.index: place for place in self.members
            if place.bytes < FULL_BYTES and self._merge(place, self._neighbours(place)) is not None
        }  # fmt: skip

    def _has_body(self, place: Place) -> bool:
        return any(not self._together(place, other) for other in self._bodies.values())

    def _strides(self, place: Place, run: list[Place]) -> Cause | None:
        around, total = self.around, _together(run)
        for other in self._kinds(place):  # places of one thread that an argument's value sets apart
            apart = (other.form - place.form).terms
            for atom, _ in apart:
                part = around.sums.atoms[atom]
                numbers = around.numbers(part.parameters) if part.kind is Kind.PARAMETER else around.factors(part)
                if numbers and len(apart) == 1:
                    return self._strided(numbers[0], "the thread's places there")
                if numbers:
                    name = around.arguments[numbers[0]].name
                    return Cause("stride", name, f"how far the thread's places there are apart depends on {name}")
        runtime = [(part, numbers) for part, _ in self._parts(place) if (numbers := around.factors(part))]
        inner = max((part.loop for part, _ in self._parts(place)), default=-1)
        for part, numbers in runtime:
            if part.iterates and part.loop == inner:
                return self._strided(numbers[0], "elements of successive iterations")
        starts = self._starts(place)
        if len(starts) > 1:
            least = min(second - first for first, second in itertools.pairwise(starts))
            return Cause(
                "stride", self._name,
                f"the thread's {len(starts)} places there are {least:#x} bytes apart, each {self._unit(total)}",
            )  # fmt: skip
        steps = [self._step(atom, factor) for atom, factor in self._regular(place, threads=True)]
        rounds = [self._step(atom, factor) for atom, factor in self._regular(place, threads=False)]
        if any(step <= total for step in steps):
            return None
        for part, numbers in runtime:
            if part.per_thread:
                return self._strided(numbers[0])
        if any(step <= total for step in rounds):
            return Cause(
                "loop", self._name,
                f"each iteration takes the {self._unit(total)} behind the last one's: the loop isn't unrolled",
            )  # fmt: skip
        if steps:
            return Cause(
                "stride", self._name,
                f"elements of neighbouring threads are {min(steps):#x} bytes apart, each {self._unit(total)}",
            )  # fmt: skip
        if rounds:
            return Cause(
                "stride", self._name,
                f"elements of successive iterations are {min(rounds):#x} bytes apart, each {self._unit(total)}",
            )  # fmt: skip
        return None

    def _starts(self, place: Place) -> list[int]:
        """Where the thread's places at a constant distance start, those behind one another counted as one."""
        starts, end = [], None
        for other in self._neighbours(place):
            if other.block == place.block:
                if end is None or other.offset > end:
                    starts.append(other.offset)
                end = max(end or other.offset, other.offset + other.bytes)
        return starts

    def _small(self, place: Place, run: list[Place]) -> Cause:
        total = _together(run)
        others = (
            other for (_, _, terms), other in self._firsts.items() if terms != place.form.terms and not other.chased
        )
        if any(self.around.order.on_one_way(place, other) and self._is_unrelated(place, other) for other in others):
            return Cause(
                "unknown", self._name,
                f"a thread has only {self._unit(total)} in a row there, but its other places may be anywhere",
            )  # fmt: skip
        parts = list(self._parts(place))
        steps = [self._step(atom, factor) for atom, factor in self._regular(place, threads=True)]
        if not parts or steps or not any(part.kind in (Kind.OTHER, Kind.LOADED) for part, _ in parts):
            known = place.base is not None or bool(steps) or self.pointer is not None
            if known and total < FULL_BYTES:
                varying = any(part.per_thread or part.iterates for part, _ in parts)
                shared = "" if varying else ", the same for all threads"
                return Cause(
                    "dtype", self._name, f"a thread has only {self._unit(total)} in a row there{shared}"
                )
        return Cause("unknown", self._name, "neither arguments nor address arithmetic show why")

    @cached_property
    def _firsts(self) -> dict[tuple[int, str, tuple[tuple[int, int], ...]], Place]:
        """One place for each block, condition and sum: those that differ in a constant alone are all alike."""
        firsts: dict[tuple[int, str, tuple[tuple[int, int], ...]], Place] = {}
        for place in self.members:
            firsts.setdefault((place.block, place.guard_key, place.form.terms), place)
        return firsts

    def _kinds(self, place: Place) -> list[Place]:
        """Places under the same condition that are at no constant distance, one of each kind."""
        return [
            other for (block, key, terms), other in self._firsts.items()
            if (block, key) == (place.block, place.guard_key) and terms != place.form.terms
        ]  # fmt: skip

    def _is_unrelated(self, place: Place, other: Place) -> bool:
        """Whether nothing is known of the distance between two places: they may be neighbours."""
        apart = (other.form - place.form).terms
        return any(self.around.sums.atoms[atom].kind in (Kind.OTHER, Kind.LOADED) for atom, _ in apart)

    # Parts of an address

    def _parts(self, place: Place) -> Iterator[tuple[Atom, int]]:
        for atom, factor in place.form.terms:
            if atom != place.base:
                yield self.around.sums.atoms[atom], factor

    def _regular(self, place: Place, threads: bool) -> Iterator[tuple[int, int]]:
        """Terms that grow by a constant from thread to thread, or from iteration to iteration."""
        parts = [(self.around.sums.atoms[atom], atom, factor) for atom, factor in place.form.terms]
        across = any(part.across for part, _, _ in parts)  # then what is the same for neighbours doesn't count
        inner = max((part.loop for part, _, _ in parts), default=-1)
        for part, atom, factor in parts:
            if atom == place.base or part.loaded or (part.kind is Kind.PRODUCT and threads):
                continue
            if (part.across if across else part.per_thread) if threads else (
                part.kind is Kind.STEP and part.loop == inner
            ):
                yield atom, factor

    def _step(self, atom: int, factor: int) -> int:
        return abs(signed(factor << self.around.sums.atoms[atom].zeros))

    def _run(self, place: Place) -> list[Place]:
        """The gapless places around this one under its own condition, each offset once."""
        alike: dict[int, Place] = {}
        for other in self._neighbours(place):
            if self._alike(place, other):
                alike.setdefault(other.offset, other)
        alike[place.offset] = place
        offsets = sorted(alike)
        first = last = offsets.index(place.offset)
        while first > 0 and offsets[first - 1] + alike[offsets[first - 1]].bytes == offsets[first]:
            first -= 1
        while last + 1 < len(offsets) and offsets[last] + alike[offsets[last]].bytes == offsets[last + 1]:
            last += 1
        return [alike[offset] for offset in offsets[first : last + 1]]

    # Words

    @property
    def _name(self) -> str:
        return self.pointer.name if self.pointer is not None else ""

    def _unit(self, total: int) -> str:
        size = self.pointer.element_bytes if self.pointer is not None else None
        count, unit = (f"{total // size} × ", size) if size and total % size == 0 else ("", total)
        return f"{count}{unit} byte{'s' * (unit != 1)}"

    def _at(self, index: int) -> str:
        return f"{index * self.around.order.code.arch.instruction_size:#06x}"

    def _told(self, found: Obstacle) -> str:
        """An instruction in the way: its opcode, all of it where it has a guard."""
        return f"{found.text.split(None, 1)[0] if found.text[0] != '@' else found.text} at {self._at(found.index)}"

    def _pc(self, place: Place) -> str:
        return self._at(place.index)

    def _could(self, merge: _Merge) -> str:
        first, last = merge.members[0].offset, merge.members[-1].offset
        return (
            f"{len(merge.members)} accesses at {first:#x} to {last:#x} of the same address could be one of "
            f"{merge.width * 8} bits"
        )

    def _strided(self, number: int, what: str = "elements of neighbouring threads") -> Cause:
        name = self.around.arguments[number].name
        return Cause("stride", name, f"{what} are {name} elements apart")


def _ordered(members: Sequence[Place]) -> list[Place]:
    return sorted(members, key=lambda place: place.index)


def _together(run: Sequence[Place]) -> int:
    return sum(place.bytes for place in run)
