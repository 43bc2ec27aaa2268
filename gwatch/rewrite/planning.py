"""Which physical registers inserted code gets: where there is room, where there is none, and what it costs.

In this order: registers that the kernel doesn't name, up to the count that costs no occupancy (nobody has to be asked
for them, and stores may read them at leisure); registers of the kernel that are dead where they are wanted; a higher
count, where the launch still fits; at a site, live registers saved to local memory and put back; values that no
register can keep from site to site kept in local memory (parked). Kernels with setmaxnreg keep their count: there every
register must fit the budget of the warps that come by.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gwatch.errors import RegisterPressureError, SiteError
from gwatch.rewrite.homes import Housing, Move, Points, bits, covered
from gwatch.rewrite.registers import SPARE, RegisterFile, check_launchable
from gwatch.sass.arch import allocated_registers, free_ceiling

if TYPE_CHECKING:
    from gwatch.rewrite.surroundings import Surroundings

_STACK = 1
_TRIED = 6
_WAIT_COST, _DRAIN_COST, _SAVE_COST = 30.0, 20.0, 40.0
SLOT_BYTES = 4
STACK = "#stack"
"""Scratch with the address of the top of the stack, at the entry, where R1 doesn't hold one yet."""


class Effort(enum.Enum):
    """What may be done to have general registers: nothing that costs occupancy; a higher count; saving some around the
    sites; that, and keeping values in local memory between them; anything, in that order.
    """

    FREE = "free"
    RAISE = "raise"
    SAVE = "save"
    PARK = "park"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Group:
    """``width`` aligned registers of one name; of a state's, the elements ``kept`` live from site to site."""

    name: str
    width: int
    kept: tuple[int, ...] = ()

    def value(self, element: int) -> str:
        """The name of the value that ``element`` holds."""
        return self.name if self.width == 1 else f"{self.name}+{element}"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the insertion ``owner`` before ``index`` (-1: at the entry) wants of the general registers.

    ``state`` are groups that every insertion shares, ``scratch`` its own; ``asked``: registers of the kernel that it
    reads (mask). ``savable``: whether registers may be saved around it (it runs through to its end). ``sets``: names of
    groups that it writes without needing what they held.
    """

    owner: int
    index: int
    state: tuple[Group, ...]
    scratch: tuple[Group, ...]
    asked: int
    savable: bool
    sets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Copy:
    """A value that a snippet needs in another register than its home: copied ``there`` first (``loaded``; not at the
    entry, where it has none yet), and back where the snippet writes it. ``slot``: the home is in local memory, so many
    bytes below the kernel's frame; ``base``: the register from which it is reached (-1: R1, the stack pointer).
    """

    value: str
    home: int
    there: int
    loaded: bool = True
    slot: int = 0
    base: int = -1


@dataclass(slots=True)
class Placement:
    """The general registers of one insertion.

    ``names``: name -> register of each element. ``borrowed``: registers of the kernel that it overwrites. ``saved``:
    those of them that must be put back, with the distance of their slot below the stack pointer. ``ways``: name -> how
    its registers were had. ``parked``: values that are kept in local memory, with the distance of their slots.
    """

    names: dict[str, list[int]] = field(default_factory=dict)
    borrowed: int = 0
    copies: list[Copy] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)
    ways: dict[str, str] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """Everything about general registers: placements by owner, the homes' moves, the registers that are nobody else's
    (``own``), the kernel's registers that hold values, per place of insertion (``held``, masks; -1: the entry), the
    highest register, the bytes of local memory that saving needs below the stack pointer (``frame``), and every
    value's homes and the one at the entry (``initial``).
    """

    placements: dict[int, Placement]
    moves: tuple[Move, ...]
    own: int
    held: dict[int, int]
    highest: int
    frame: int
    homes: dict[str, list[int]]
    initial: dict[str, int]
    around: Surroundings

    def boards(self, index: int, registers: int) -> int:
        """Scoreboards that the kernel waits for before it (or what it calls) overwrites any of ``registers``; all, if
        it never does.
        """
        mine = registers & (~self.own | self.around.exposed)
        if not mine:
            return 0x3F
        stops: dict[int, set[int]] = {}
        for move in self.moves:
            stops.setdefault(move.old, set()).add(move.index)
        return covered(
            self.around, index, mine, {old: frozenset(places) for old, places in stops.items()}
        )


class Planner:
    """Finds a :class:`Plan` for the ``wishes`` of one rewrite. ``excluded``: registers that nobody may use (mask);
    ``lost``: those that calls between the kernel's entry and its last site may change.

    Raises RegisterPressureError ``[registers]`` or ``[launch-bounds]`` naming what doesn't fit where.
    """

    def __init__(self, around: Surroundings, wishes: Sequence[Wish], excluded: int, lost: int = 0) -> None:
        self.around, self.excluded, self.lost = around, excluded, lost
        self.wishes = sorted(wishes, key=lambda wish: (wish.index, wish.owner))
        self.arch = around.isa.arch
        self.name = around.kernel.name
        self.count = around.kernel.register_count

    # which count ---------------------------------------------------------------------------------------------------

    def plan(self, effort: Effort = Effort.ANY) -> Plan:
        """The cheapest plan that works."""
        failure: RegisterPressureError | None = None
        for attempt in self._attempts(effort):
            try:
                return attempt()
            except RegisterPressureError as error:
                failure = failure or error
        if failure is None:
            failure = self._fail(self._groups()[0], "by another register count")
        raise failure

    def _attempts(self, effort: Effort) -> Iterator[Callable[[], Plan]]:
        counts = list(self._counts())
        for count in counts:
            allowed = Effort.FREE if count == counts[0] else Effort.RAISE
            if effort in (allowed, Effort.ANY):
                yield partial(self._above, count)
                yield partial(self._among, count, homes_first=False, saving=False)
                yield partial(self._among, count, homes_first=True, saving=False)
        if effort in (Effort.SAVE, Effort.ANY):
            yield partial(self._among, counts[0], homes_first=True, saving=True)
        if effort in (Effort.PARK, Effort.ANY) and self.around.parking:
            yield partial(self._among, counts[0], homes_first=True, saving=True, parking=True)

    def _counts(self) -> Iterator[int]:
        """Register counts to try: the one that costs nothing, then one step after the other."""
        if self.around.budgets.changes:
            yield self.count
            return
        ceiling = free_ceiling(self.arch, self.count)
        step = self.arch.register_step
        while ceiling > self.count and not self._launchable(ceiling):
            ceiling = max(self.count, (ceiling - 1) // step * step)
        yield ceiling
        room = sum(group.width + 1 for group in self._groups()) + 2 * step
        count = allocated_registers(self.arch, ceiling)
        while count < min(self.arch.max_registers, self.around.first_free + room):
            count = min(count + step, self.arch.max_registers)
            if not self._launchable(count):
                return
            yield count

    def _launchable(self, count: int) -> bool:
        try:
            check_launchable(self.arch, self.name, self.count, count, self.around.max_threads)
        except RegisterPressureError:
            return False
        return True

    def _groups(self) -> list[Group]:
        """All groups that sites use: state once each, and the widest set of scratch."""
        state = {group.name: group for wish in self.wishes for group in wish.state}
        most = max((wish.scratch for wish in self.wishes if wish.index >= 0), key=_total, default=())
        return [*state.values(), *most]

    def _spare(self, count: int) -> int:
        """Registers above the kernel's own that a kernel of ``count`` registers has."""
        first, end = self.around.first_free, count - SPARE
        if self.around.budgets.changes or end <= first:
            return 0
        return ((1 << end) - 1) & ~((1 << first) - 1) & ~self.excluded

    def _fail(self, group: Group, where: str) -> RegisterPressureError:
        return RegisterPressureError(
            "registers",
            f"{self.name}: {group.width} R register{'s' * (group.width > 1)} for %{group.name} {where}: the kernel "
            f"uses {self.count} of {self.arch.max_registers} registers and too few are free there",
            "choose a neighbouring instruction, exclude fewer registers, or record fewer values",
        )

    # everything above the kernel's own -----------------------------------------------------------------------------

    def _above(self, count: int) -> Plan:
        """All from registers that the kernel doesn't name."""
        spare = self._spare(count)
        pool = _pool(spare)
        way = "above the count"
        places: dict[str, int] = {}
        for group in self._groups_in_order():
            pool.barred = self._barred(group)
            start = pool.take(group.width)
            if start is None:
                raise self._fail(group, "throughout")
            places[group.name] = start
        pool.barred = frozenset()
        placements: dict[int, Placement] = {}
        shared: dict[tuple[int, int], int] = {}
        for wish in self.wishes:
            placement = placements[wish.owner] = Placement()
            for group in wish.state:
                start = places[group.name]
                placement.names[group.name] = list(range(start, start + group.width))
                placement.ways[group.name] = way
            if wish.index < 0:
                continue
            used: dict[int, int] = {}
            for group in _widest_first(wish.scratch):
                number = used.get(group.width, 0)
                used[group.width] = number + 1
                if (group.width, number) not in shared:
                    start = pool.take(group.width)
                    if start is None:
                        raise self._fail(group, f"at instruction {wish.index}")
                    shared[group.width, number] = start
                start = shared[group.width, number]
                placement.names[group.name] = list(range(start, start + group.width))
                placement.ways[group.name] = way
        own = sum(1 << register for register in pool.used)
        homes = {
            group.value(k): [places[group.name] + k] for group in self._groups_in_order() for k in group.kept
        }
        self._entries(placements, own, own, count > next(self._counts()))
        set_anew = self._set_anew()
        initial = {value: found[0] for value, found in homes.items() if value not in set_anew}
        highest = self._highest(placements, own)
        return Plan(placements, (), own, {}, highest, 0, homes, initial, self.around)

    def _set_anew(self) -> frozenset[str]:
        """Values that sites set, which the entry leaves nowhere."""
        return frozenset(name for wish in self.wishes for name in wish.sets)

    def _barred(self, group: Group) -> frozenset[int]:
        """Registers that can't keep what ``group`` keeps: calls change them."""
        return frozenset(bits(self.lost)) if group.kept else frozenset()

    def _groups_in_order(self) -> list[Group]:
        """State groups in the order of first use, the wide ones that sites store from first."""
        state = {group.name: group for wish in self.wishes for group in wish.state}
        return sorted(state.values(), key=lambda group: -group.width)

    # among the kernel's own ----------------------------------------------------------------------------------------

    def _among(self, count: int, homes_first: bool, saving: bool, parking: bool = False) -> Plan:
        attempt = _Attempt(self, count, saving, parking)
        return attempt.run(homes_first)

    # the entry -----------------------------------------------------------------------------------------------------

    def _entries(self, placements: dict[int, Placement], taken: int, own: int, costly: bool) -> None:
        """Scratch of code at the entry: anything that nothing else uses there, for nothing is live yet. R1 is left
        alone because it becomes the stack pointer. ``costly``: whether the count may come to cost occupancy.
        """
        ends = [self.count]
        if not self.around.budgets.changes:
            limit = max(self.count, own.bit_length() + SPARE)
            ends = [limit, min(self.arch.max_registers, free_ceiling(self.arch, limit))]
            if costly:
                ends.append(self.arch.max_registers)
        forbidden = taken | self.excluded | 1 << _STACK
        shared: dict[tuple[int, int], int] = {}
        for end in (end - SPARE for end in ends):
            pool = RegisterFile("R", 0, max(0, end), frozenset(bits(forbidden)))
            shared.clear()
            if self._enter(placements, pool, shared):
                return
        group = next(
            group for wish in self.wishes if wish.index < 0 for group in _widest_first(wish.scratch)
        )
        raise self._fail(group, "at the entry")

    def _enter(
        self, placements: dict[int, Placement], pool: RegisterFile, shared: dict[tuple[int, int], int]
    ) -> bool:
        chosen: list[tuple[Placement, dict[str, list[int]], list[Copy]]] = []
        for wish in self.wishes:
            if wish.index >= 0:
                continue
            used: dict[int, int] = {}
            placement = placements[wish.owner]
            names, copies = dict(placement.names), []
            parked = placement.parked
            away = {group.name for group in wish.state if any(group.value(k) in parked for k in group.kept)}
            lost = [
                group
                for group in wish.state
                if group.name in away or (group.width > 1 and -1 in names[group.name])
            ]
            stack = [Group(STACK, 1)] if away else []
            for group in _widest_first((*lost, *wish.scratch, *stack)):
                number = used.get(group.width, 0)
                used[group.width] = number + 1
                if (group.width, number) not in shared:
                    start = pool.take(group.width)
                    if start is None:
                        return False
                    shared[group.width, number] = start
                start = shared[group.width, number]
                if group in lost:
                    homes = names[group.name]
                    copies += [
                        Copy(value, homes[k], start + k, loaded=False, slot=parked.get(value, 0))
                        for k in group.kept
                        for value in (group.value(k),)
                    ]
                names[group.name] = list(range(start, start + group.width))
            base = names.get(STACK, [-1])[0]
            chosen.append((placement, names, [replace(item, base=base) if item.slot else item for item in copies]))
        for placement, names, copies in chosen:
            placement.names, placement.copies = names, copies
        return True

    def _highest(self, placements: Mapping[int, Placement], own: int) -> int:
        """The highest register that the rewritten kernel names beyond what it did."""
        named = [register for item in placements.values() for found in item.names.values() for register in found]
        return max([own.bit_length() - 1, *named])


class _Attempt:
    """One try at placing everything among the kernel's registers and the spare ones."""

    def __init__(self, planner: Planner, count: int, saving: bool, parking: bool = False) -> None:
        self.planner, self.count, self.saving, self.parking = planner, count, saving, parking
        self.parked: dict[str, int] = {}
        around = planner.around
        self.spare = planner._spare(count)
        asked: dict[int, int] = {}
        for wish in planner.wishes:
            if wish.index >= 0:
                asked[wish.index] = asked.get(wish.index, 0) | wish.asked
        forbidden = planner.excluded | (1 << _STACK if saving else 0)
        if saving and around.stack_pointer is None:
            raise planner._fail(planner._groups()[0], "(and the stack pointer isn't known, so none can be saved)")
        self.points = Points(around, asked, around.collective, forbidden, self.spare)
        self.housing = Housing(self.points)
        self.pool = _pool(self.spare)
        self.asked = asked
        self.shared: dict[str, int] = {}
        self.placements = {wish.owner: Placement() for wish in planner.wishes}
        self.frame = 0
        self.sites = [wish for wish in planner.wishes if wish.index >= 0]
        self.groups = planner._groups_in_order()
        self.used: dict[int, int] = {}
        self.lent = 0

    def run(self, homes_first: bool) -> Plan:
        """The plan. Raises RegisterPressureError."""
        self._shared_groups()
        if homes_first:
            self._homes()
            self._all_scratch()
        else:
            self._paired_homes()
            self._all_scratch()
            self._homes()
        self._values()
        housing = self.housing
        moves = tuple(
            sorted((move for home in housing.homes.values() for move in home.moves), key=lambda item: item.index)
        )
        own = sum(1 << register for register in self.pool.used) | self.lent
        set_anew = self.planner._set_anew()
        initial = {
            value: housing.entry(value)
            for value in housing.homes
            if value not in set_anew and housing.entry(value) >= 0
        }
        entry = own
        for register in initial.values():
            entry |= 1 << register
        self.planner._entries(
            self.placements, entry, own, self.saving or self.count > next(self.planner._counts())
        )
        held: dict[int, int] = {}
        for index in {wish.index for wish in self.sites} | {move.index for move in moves}:
            held[index] = housing.held(index) & ~own
        held[-1] = entry & ~own
        homes = {
            value: sorted({r for r in home.registers.tolist() if r >= 0}) for value, home in housing.homes.items()
        } | {value: [] for value in self.parked}
        highest = self.planner._highest(self.placements, own)
        return Plan(self.placements, moves, own, held, highest, self.frame, homes, initial, self.planner.around)

    def _shared_groups(self) -> None:
        """Spare registers go first to the groups that stores read: the kernel never wants those back."""
        for group in sorted(self.groups, key=lambda group: (not group.kept, -group.width)):
            if group.width == 1:
                continue
            self.pool.barred = self.planner._barred(group)
            start = self.pool.take(group.width)
            self.pool.barred = frozenset()
            if start is not None:
                self.shared[group.name] = start
                for element in group.kept:
                    self.housing.fixed(group.value(element), start + element)

    def _sites_of(self, name: str) -> list[int]:
        return [wish.index for wish in self.sites if any(group.name == name for group in wish.state)]

    def _paired_homes(self) -> None:
        """Homes of values that sites want beside scratch registers."""
        for group in self.groups:
            if group.width > 1 and group.name not in self.shared:
                self._house(group)

    def _homes(self) -> None:
        for group in self.groups:
            housed = not group.kept or group.value(group.kept[0]) in self.housing.homes
            if group.name not in self.shared and not housed:
                self._house(group)

    def _house(self, group: Group) -> None:
        left = self.spare & ~sum(1 << register for register in self.pool.used)
        sites = self._sites_of(group.name)
        sets = frozenset(wish.index for wish in self.sites if group.name in wish.sets)
        for element in group.kept:
            prefer = self._pairing(group, element, sites) if group.width > 1 else self._quiet(sets)
            value = group.value(element)
            if not self.housing.place(value, sites, left, prefer, sets):
                if not self.parking:
                    raise self.planner._fail(Group(value, 1), "from the entry to its last use")
                self._park(value)
                continue
            for register in {r for r in self.housing.homes[value].registers.tolist() if r >= 0}:
                if left >> register & 1:
                    self.pool.used.add(register)

    def _quiet(self, sets: Iterable[int]) -> dict[int, float]:
        """Penalty of registers that something in flight uses where they would be written."""
        flights = [self.points.around.flights.at(index) for index in sets]
        registers = range(self.planner.arch.max_registers) if flights else ()
        return {
            register: float(sum(bool(flight.covering(1 << register)) for flight in flights)) for register in registers
        }

    def _park(self, value: str) -> None:
        """Keep ``value`` in local memory. Its slot comes before those of registers that sites save."""
        self.frame += SLOT_BYTES
        self.parked[value] = self.frame
        for placement in self.placements.values():
            placement.parked = self.parked

    def _pairing(self, group: Group, element: int, sites: list[int]) -> dict[int, float]:
        """Penalty of registers beside which the group's other elements don't fit at the sites."""
        free = [self._free(index) for index in sites]
        penalty: dict[int, float] = {}
        for register in range(self.planner.arch.max_registers):
            base = register - element
            others = _mask(base, group.width) & ~(1 << register) if base >= 0 else 0
            fits = sum(others & ~mask == 0 for mask in free) if base >= 0 and base % group.width == 0 else 0
            penalty[register] = float(len(sites) - fits)
        return penalty

    # scratch -------------------------------------------------------------------------------------------------------

    def _free(self, index: int) -> int:
        """Registers that a site may use for itself, as far as homes are known."""
        taken = self.housing.held(index) | sum(1 << register for register in self.pool.used)
        return self.points.scratch(index) & ~taken

    def _all_scratch(self) -> None:
        for index in sorted({wish.index for wish in self.sites}):
            for wish in (wish for wish in self.sites if wish.index == index):
                self._scratch(wish)

    def _scratch(self, wish: Wish) -> None:
        placement = self.placements[wish.owner]
        taken = 0
        state = [
            group
            for group in wish.state
            if group.width > 1 or not group.kept or group.value(group.kept[0]) in self.parked
        ]
        away = any(group.value(k) in self.parked for group in wish.state for k in group.kept)
        stack = [Group(STACK, 1)] if away and not self._has_stack(wish.index) else []
        for group in _widest_first((*state, *wish.scratch, *stack)):
            if group in state and group.name in self.shared:
                start, way = self.shared[group.name], "above the count"
            else:
                start, way = self._choose(wish, group, taken)
                placement.borrowed |= _mask(start, group.width) & ~self.spare & ~self.housing.held(wish.index)
                self.lent |= _mask(start, group.width) & self.spare
            taken |= _mask(start, group.width)
            placement.names[group.name] = list(range(start, start + group.width))
            placement.ways[group.name] = way
        self.housing.block(wish.index, taken & ~sum(1 << r for r in self.pool.used))

    def _has_stack(self, index: int) -> bool:
        """Whether R1 is the stack pointer before instruction ``index`` (or can be made to hold what it will)."""
        around = self.planner.around
        last = around.stack_pointer
        return around.stack_reload is not None or (last is not None and index > last)

    def _choose(self, wish: Wish, group: Group, taken: int) -> tuple[int, str]:
        index = wish.index
        placed = self._in_place(wish, group, taken)
        if placed is not None:
            return placed, "dead"
        free = self._free(index) & ~taken
        starts = [
            start
            for start in range(0, self.planner.arch.max_registers - group.width + 1, group.width)
            if _mask(start, group.width) & ~free == 0
        ]
        if starts:
            return self._cheapest(index, starts, group.width), "dead"
        if self.saving and wish.savable and self._has_stack(index):
            return self._save(wish, group, taken), "saved"
        raise self.planner._fail(group, f"at instruction {index}")

    def _in_place(self, wish: Wish, group: Group, taken: int) -> int | None:
        """Around the home of its kept element, where that has room."""
        if len(group.kept) != 1 or group.value(group.kept[0]) not in self.housing.homes:
            return None
        home = self.housing.at(group.value(group.kept[0]), wish.index)
        start = home - group.kept[0]
        others = _mask(start, group.width) & ~(1 << home) if start >= 0 else 0
        free = self._free(wish.index) & ~taken
        return start if start >= 0 and start % group.width == 0 and not others & ~free else None

    def _cheapest(self, index: int, starts: list[int], width: int) -> int:
        """The group that nothing in flight holds up, and that the kernel overwrites only behind a wait."""
        flight = self.points.around.flights.at(index)
        spare = self.spare

        def first(start: int) -> tuple[bool, bool, int]:
            mask = _mask(start, width)
            return bool(flight.covering(mask)), not mask & spare, -self.used.get(start, 0)

        best, cost = starts[0], float("inf")
        for start in sorted(starts, key=lambda start: (first(start), start))[:_TRIED]:
            mask = _mask(start, width)
            mine = _WAIT_COST * bool(flight.covering(mask))
            if mask & ~spare and not self.points.covered(index, mask & ~spare):
                mine += _DRAIN_COST
            if mine < cost:
                best, cost = start, mine
            if not cost:
                break
        self.used[best] = self.used.get(best, 0) + 1
        return best

    def _save(self, wish: Wish, group: Group, taken: int) -> int:
        """Live registers to be saved around the site: as few as possible, and none that something in flight uses."""
        index, points = wish.index, self.points
        flight = points.around.flights.at(index)
        free = self._free(index) & ~taken
        usable = points.budget[index] & ~points.forbidden & ~flight.never & ~taken & ~self.asked.get(index, 0)
        usable &= ~self.housing.held(index) & ~sum(1 << register for register in self.pool.used)
        starts = [
            start
            for start in range(0, self.planner.arch.max_registers - group.width + 1, group.width)
            if _mask(start, group.width) & ~usable == 0
        ]
        if not starts:
            raise self.planner._fail(group, f"at instruction {index}, not even by saving some")

        def cost(start: int) -> tuple[float, int]:
            mask = _mask(start, group.width)
            saved = (mask & ~free).bit_count()
            return saved * _SAVE_COST + _WAIT_COST * bool(flight.covering(mask)), start

        start = min(starts, key=cost)
        placement = self.placements[wish.owner]
        for register in bits(_mask(start, group.width) & ~free):
            slot = SLOT_BYTES * (len(self.parked) + len(placement.saved) + 1)
            placement.saved.append((register, slot))
            self.frame = max(self.frame, slot)
        return start

    # values --------------------------------------------------------------------------------------------------------

    def _values(self) -> None:
        """Names of kept elements: at sites where their homes are (or copied into their group), at the entry each by
        itself.
        """
        for wish in self.planner.wishes:
            placement = self.placements[wish.owner]
            for group in wish.state:
                if wish.index < 0:
                    start = self.shared.get(group.name)
                    if start is not None:
                        placement.names[group.name] = list(range(start, start + group.width))
                        continue
                    registers = [-1] * group.width
                    for element in group.kept:
                        if group.value(element) not in self.parked:
                            registers[element] = self.housing.entry(group.value(element))
                    placement.names[group.name] = registers
                    continue
                if len(group.kept) == group.width == 1 and group.name not in self.parked:
                    home = self._home(group.name, wish.index)
                    if group.name in wish.sets:
                        placement.borrowed |= 1 << home & ~self.spare
                    placement.names[group.name] = [home]
                    placement.ways[group.name] = "above the count" if self.spare >> home & 1 else "home"
                    continue
                registers = placement.names[group.name]
                for element in group.kept:
                    value = group.value(element)
                    if value in self.parked:
                        base = placement.names.get(STACK, [-1])[0]
                        placement.copies.append(
                            Copy(value, -1, registers[element], slot=self.parked[value], base=base)
                        )
                        placement.ways[group.name] = "parked"
                        continue
                    home = self._home(value, wish.index)
                    if home != registers[element]:
                        placement.copies.append(Copy(value, home, registers[element]))

    def _home(self, value: str, index: int) -> int:
        home = self.housing.at(value, index)
        if home < 0:
            raise SiteError(
                "site-unreachable",
                f"{self.points.around.kernel.name}: no path from the entry leads to instruction {index}",
                "choose an instruction that can run",
            )
        return home


def _mask(start: int, width: int) -> int:
    return ((1 << width) - 1) << start


def _pool(mask: int) -> RegisterFile:
    """A file that hands out the registers of ``mask``, lowest first."""
    end = mask.bit_length()
    return RegisterFile("R", 0, end, frozenset(number for number in range(end) if not mask >> number & 1))


def _widest_first(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: -group.width)


def _total(groups: Sequence[Group]) -> int:
    return sum(group.width for group in groups)

