"""From a list of sites to a patched cubin that records them: :func:`plan_trace`."""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from gwatch.errors import HazardError, RegisterPressureError, SiteError, TraceError, UnsupportedError
from gwatch.rewrite.held import WORDS, Held, held_times
from gwatch.rewrite.ring import (
    DESCRIPTOR_BYTES,
    MAX_SITES,
    Dim3,
    Keep,
    RecordKind,
    RingFormat,
    RingLayout,
    checked_duration,
    round_depth,
    unarmed_descriptor,
)
from gwatch.rewrite.sitemap import CLOCKS, NOTE_NAME, TELLS_VISITS, MappedSite, SiteMap
from gwatch.sass.arch import INSTRUCTION_SIZE

if TYPE_CHECKING:
    from gwatch.cuda.binary.cubin import Cubin
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.rewrite import builtin
    from gwatch.rewrite.planning import Effort
    from gwatch.rewrite.result import PlacedSite, Rewritten
    from gwatch.rewrite.rewriter import Rewriter
    from gwatch.rewrite.surroundings import Surroundings
    from gwatch.sass.arch import Arch
    from gwatch.sass.uses import CodeView

SPECIALS = ("activemask", "ns", "ns:64")

LONG_NS = {"gpu": 2.0e9, "sm": 0.7e9, "anchor": 0.7e9}
"""Launches that took this long untraced get 64-bit times: 32 bits last 4.29 s of ns and at least 1.43 s of
cycles, and tracing slows a kernel down."""
PAIRS_NS = 1.0e6
"""``anchor`` launches that took this long get a clock pair in every record that has room."""
SHARED_CYCLES = 4
"""Sites that are issued no more than this apart may share a record; the fastest record takes 8 cycles."""
_NO_ROOM = ("registers", "launch-bounds", "uniform-registers")
"""Codes of plans for which another shape, or another effort, may have the registers."""
_TIMELESS = ("NOP", "PMTRIG")
ANCHOR_LIMIT_NS = 2.0e9
"""``anchor`` stops here: the timer's half of a pair has 32 bits."""


@dataclass(frozen=True, slots=True)
class SassTraceSite:
    """One place to record: before instruction ``insert_index`` (pc = index x 16). Its id is its place in the
    list.

    ``value_reg``: physical register to record as well; ``value_width_bits`` 32, or 64 for an aligned pair;
    ``value_is_uniform``: of the uniform file; ``value_is_smid``: the SM's id instead (it costs nothing).
    ``warp_level``: one record per visit of a warp, by one of its active lanes, elected anew each time.
    ``unconditional``: also where the instruction's guard is false (by default a visit counts only for lanes
    that execute the instruction). ``special``: record "activemask" (the lanes that record), "ns" or "ns:64"
    (the ns timer) instead of a register. ``label``: a name for reports.

    Raises SiteError ``[site-range]`` for a negative index, ``[site-value]`` for contradicting value fields,
    ``[site-register]`` for a register that doesn't exist or an odd one for 64 bits.
    """

    insert_index: int
    value_reg: int | None = None
    value_width_bits: int = 32
    value_is_uniform: bool = False
    value_is_smid: bool = False
    warp_level: bool = False
    unconditional: bool = False
    label: str | None = None
    special: str | None = None

    def __post_init__(self) -> None:
        for name in ("insert_index", "value_reg", "value_width_bits"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, self._integer(name, given))
        if self.insert_index < 0:
            raise SiteError(
                "site-range", f"instruction index {self.insert_index} is negative", "indices count from 0"
            )
        sources = (self.value_reg is not None) + bool(self.value_is_smid) + (self.special is not None)
        if sources > 1:
            raise SiteError(
                "site-value", f"site at {self.insert_index} asks for several values", "one per site"
            )
        if self.value_reg is None and (self.value_width_bits != 32 or self.value_is_uniform):
            raise SiteError(
                "site-value",
                f"site at {self.insert_index} has a width or file without a register",
                "set value_reg",
            )
        if self.special is not None and self.special not in SPECIALS:
            raise SiteError(
                "site-value",
                f"site at {self.insert_index}: special value {self.special!r}",
                " or ".join(SPECIALS),
            )
        if self.value_width_bits not in (32, 64):
            raise SiteError(
                "site-value",
                f"site at {self.insert_index}: {self.value_width_bits} bits",
                "values have 32 or 64 bits",
            )
        if self.value_reg is not None:
            self._check_register(self.value_reg)

    @staticmethod
    def _integer(name: str, given: object) -> int:
        try:
            if isinstance(given, bool):
                raise TypeError
            return operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            raise SiteError("site-value", f"{name} is {given!r}, not an integer", "give an integer") from None

    def _check_register(self, register: int) -> None:
        file, last = ("UR", 62) if self.value_is_uniform else ("R", 254)
        if not 0 <= register <= last:
            zero = " (the zero register)" if register == last + 1 else ""
            raise SiteError(
                "site-register", f"{file}{register}{zero} holds no value", f"{file}0 to {file}{last}"
            )
        if self.value_width_bits == 64 and register % 2:
            raise SiteError(
                "site-register",
                f"{file}{register} is odd: a 64-bit value is an even register and the next",
                f"give {file}{register - 1} or {file}{register + 1}",
            )

    @property
    def value(self) -> str:
        """The value as site maps spell it: "none", "smid", "R8", "UR4:64", "activemask", …"""
        if self.special is not None:
            return self.special
        if self.value_reg is None:
            return "smid" if self.value_is_smid else "none"
        file = "UR" if self.value_is_uniform else "R"
        return f"{file}{self.value_reg}" + (":64" if self.value_width_bits == 64 else "")

    @property
    def record_bits(self) -> int:
        """Bits of value in the record: 0, 32 or 64."""
        if self.value in ("none", "smid"):
            return 0
        return 64 if self.value.endswith(":64") else 32

    def carries_pair(self, kind: RecordKind) -> bool:
        """Whether a record of ``kind`` has room for the ns timer's low word, or holds it as its value
        anyway."""
        if kind is RecordKind.WIDE:
            return self.record_bits < 64 or self.special == "ns:64"
        return kind is RecordKind.LONG and (self.record_bits == 0 or self.special == "ns")


@dataclass(frozen=True, slots=True)
class TracePlan:
    """A patched cubin and all that is known about it. ``data`` carries ``site_map`` as a note."""

    data: bytes
    site_map: SiteMap
    rewritten: Rewritten

    def placed(self, site_id: int) -> PlacedSite:
        """The code that reads the time of a site, its own or that of the one whose record it shares."""
        first = self.site_map.sites[site_id].new_pc // INSTRUCTION_SIZE
        return next(placed for placed in self.rewritten.sites if placed.first == first)

    def layout(self, grid: Dim3, block: Dim3, budget: int | None = None) -> RingLayout:
        """The ring for a launch, sampling CTAs where ``budget`` bytes don't hold them all."""
        return RingLayout.for_launch(self.site_map.format, grid, block, budget)


def choose_format(
    sites: Sequence[SassTraceSite], clock: str, depth: int, keep: str, duration_ns: float | None
) -> tuple[RingFormat, bool]:
    """(record format, whether records carry clock pairs) for sites, clock and the launch's expected duration.

    Raises TraceError ``[trace-clock]``, ``[trace-keep]``, ``[trace-depth]``, ``[trace-duration]``,
    and ``[trace-too-long]`` where no record holds both the value and a time that stays exact.
    """
    if clock not in CLOCKS:
        raise TraceError("trace-clock", f"clock {clock!r}", " or ".join(CLOCKS))
    if keep not in [item.value for item in Keep]:
        raise TraceError("trace-keep", f"keep {keep!r}", "newest or first")
    bits = max(site.record_bits for site in sites)
    duration = checked_duration(duration_ns)
    pairs = clock == "anchor" and duration >= PAIRS_NS
    kind = RecordKind.WIDE if bits or pairs else RecordKind.NARROW
    seconds = f"the kernel takes {duration / 1e9:.3g} s"
    if duration >= LONG_NS[clock]:
        if bits == 64:
            raise TraceError(
                "trace-too-long",
                f"{seconds}: a record with a 64-bit value has no room for a 64-bit time",
                "record a 32-bit value",
            )
        kind = RecordKind.LONG
    if clock == "anchor" and duration >= ANCHOR_LIMIT_NS:
        raise TraceError("trace-too-long", f"{seconds}: too long for the anchor clock", "use the gpu clock")
    if pairs and not any(site.carries_pair(kind) for site in sites):
        raise TraceError(
            "trace-too-long",
            f"{seconds}: no record has room for the clock pairs that the anchor clock needs then",
            "add a site without a value, or use the gpu clock",
        )
    fmt = RingFormat(kind, round_depth(depth), Keep(keep))
    only_warps = all(site.warp_level for site in sites)
    return replace(fmt, by_lane=only_warps and fmt.may_be_by_lane), pairs


def plan_trace(
    cubin: Cubin,
    kernel: str | KernelDef,
    sites: Sequence[SassTraceSite],
    *,
    clock: str = "gpu",
    depth: int = 32,
    keep: str = "newest",
    duration_ns: float | None = None,
    excluded_registers: Mapping[str, Iterable[int]] | None = None,
    hold: bool = True,
) -> TracePlan:
    """Patch ``kernel`` of ``cubin`` so that it records ``sites``; the original is not touched.

    ``kernel`` is its mangled name or definition. ``depth``: records kept per thread (rounded up to a power of
    two). ``keep``: "newest" or "first". ``duration_ns``: how long the launch takes untraced, which decides
    how wide times are (None: shorter than a millisecond). ``excluded_registers``: as for
    :class:`~gwatch.rewrite.rewriter.Rewriter`. ``hold``: whether the times of sites that others always follow may wait
    in registers for the records of these (:mod:`gwatch.rewrite.held`), which costs fewer stores; a kernel that never
    comes to the other site leaves no record of the first then.

    Sites at one index run in list order. Sites without values that nothing but markers lies between (the end of one
    scope and the start of the next) share a record, whose time is theirs: see :func:`shared_records`.

    Raises SiteError, TraceError, RegisterPressureError, UnsupportedError, EncodeError or HazardError before anything
    is made.
    """
    from gwatch.cuda.binary.constants import add_constant3, add_note, read_note, set_constant3
    from gwatch.cuda.binary.cubin import Cubin as CubinType
    from gwatch.rewrite import builtin
    from gwatch.rewrite.rewriter import ENTRY, Rewriter

    if not sites:
        raise SiteError("no-site", "no site given", "give at least one SassTraceSite(instruction_index)")
    if len(sites) > MAX_SITES:
        raise SiteError("site-count", f"{len(sites)} sites", f"at most {MAX_SITES} per trace")
    fmt, pairs = choose_format(sites, clock, depth, keep, duration_ns)
    arch = cubin.arch
    name = kernel if isinstance(kernel, str) else kernel.name
    cubin.get_kerneldef_by_name(name)
    if read_note(cubin.data, NOTE_NAME) is not None:
        raise UnsupportedError(
            "already-patched",
            f"{cubin.name} already records sites of a kernel",
            "start from the original cubin",
        )

    symbol = "gwatch_ring_" + hashlib.sha256(name.encode()).hexdigest()[:16]
    image, offset = add_constant3(cubin.data, symbol, DESCRIPTOR_BYTES, unarmed_descriptor(fmt))
    rewriter = Rewriter(CubinType.from_bytes(image, cubin.name), name, excluded_registers)
    _check_sites(rewriter, sites)
    shared = shared_records(rewriter.surroundings, sites)

    def attempt(
        recorder: builtin.Recorder, effort: Effort, held: Mapping[int, Held] = MappingProxyType({})
    ) -> Rewritten:
        attempted = rewriter.another()
        for item in recorder.state_registers():
            attempted.reserve(item.name, item.width, item.file, item.kept)
        attempted.insert(ENTRY, builtin.prologue(recorder, offset))
        view = rewriter.surroundings.view
        for number, site in enumerate(sites):
            if number in shared:
                continue
            label = site.label or f"site {number}"
            if number in held:
                attempted.insert(site.insert_index, builtin.hold(recorder, held[number].word), label=label)
                continue
            guard = _guard_of(view, site)
            paired = pairs and site.carries_pair(recorder.fmt.kind)
            words = [item.word for item in held.values() if item.holder == number]
            snippet = builtin.record(recorder, site.value, paired, site.warp_level, guard, words)
            attempted.insert(site.insert_index, snippet, {"site": number + 1}, label)
        if recorder.head:
            for index in _exits(rewriter):
                guarded = _guard(view.facts(index).text).strip("!")[:1] == "P"
                attempted.insert(index, builtin.exit_pair(recorder, guarded))
        return attempted.apply(twin=True, effort=effort)

    found = None
    for held in _held(rewriter.surroundings, sites, shared, fmt, pairs, clock) if hold else ():
        found = _without_moves(partial(attempt, held=held), _recorders(arch, fmt, clock, held))
        if found is not None:
            break
    else:
        held = {}
    recorder, rewritten = found or _first_that_fits(attempt, _recorders(arch, fmt, clock))
    data = set_constant3(rewritten.data, offset, unarmed_descriptor(recorder.fmt))
    site_map = _site_map(rewriter, sites, shared, held, rewritten, clock, recorder.fmt, pairs, symbol, offset)
    return TracePlan(add_note(data, NOTE_NAME, site_map.to_bytes()), site_map, rewritten)


def _held(
    around: Surroundings,
    sites: Sequence[SassTraceSite],
    shared: Mapping[int, int],
    fmt: RingFormat,
    pairs: bool,
    clock: str,
) -> Iterator[dict[int, Held]]:
    """Site number -> the later record that says its time: as many as records have room for, then fewer, which fewer
    registers hold."""
    # A store of all lanes costs by its bytes: measured on the H200, records of 16 cost more than twice as many of 8.
    growing = fmt.kind is RecordKind.NARROW and not all(site.warp_level for site in sites)
    if growing or fmt.kind is RecordKind.LONG:
        return
    recorded = {number: site for number, site in enumerate(sites) if number not in shared}
    at = Counter(site.insert_index for site in recorded.values())
    able = {
        number: (site.insert_index, site.warp_level)
        for number, site in recorded.items()
        if site.value == "none" and at[site.insert_index] == 1 and not _guard_of(around.view, site)
    }
    others = [site.insert_index for number, site in recorded.items() if number not in able]
    for words in ((WORDS[:1],) if pairs else (WORDS, WORDS[:1])):
        if held := held_times(around, able, others, words, TELLS_VISITS[clock]):
            yield held


def _without_moves(
    attempt: Callable[[builtin.Recorder, Effort], Rewritten], recorders: Sequence[builtin.Recorder]
) -> tuple[builtin.Recorder, Rewritten] | None:
    """The cheapest way to record with held times that needs no register which would cost occupancy, and moves none of
    these from one register to another; None where there is none."""
    from gwatch.rewrite.planning import Effort

    for recorder in recorders:
        try:
            rewritten = attempt(recorder, Effort.FREE)
        except HazardError:
            return None
        except RegisterPressureError as error:
            if error.code not in _NO_ROOM:
                raise
            continue
        if not any(move.startswith("%held_") for move in rewritten.moves):
            return recorder, rewritten
    return None


def _recorders(
    arch: Arch, fmt: RingFormat, clock: str, held: Mapping[int, Held] = MappingProxyType({})
) -> list[builtin.Recorder]:
    """Ways to record in ``fmt``, or with words for ``held`` times, the cheapest first. The leanest can't be by lane,
    which held times don't make up for."""
    from gwatch.rewrite import builtin

    fmt = replace(fmt, kind=RecordKind.WIDE) if held else fmt
    words = tuple(word for word in WORDS if any(item.word == word for item in held.values()))
    plain = replace(fmt, by_lane=False)
    found = [builtin.Recorder(arch, fmt, clock, shape, words) for shape in builtin.shapes(fmt, arch, clock)]
    have = {recorder.shape for recorder in found}
    lean = () if held else builtin.shapes(plain, arch, clock)
    return found + [builtin.Recorder(arch, plain, clock, shape) for shape in lean if shape not in have]


def _first_that_fits(
    attempt: Callable[[builtin.Recorder, Effort], Rewritten], recorders: Sequence[builtin.Recorder]
) -> tuple[builtin.Recorder, Rewritten]:
    """The cheapest way to record that needs no register which would cost occupancy; else the cheapest with more
    registers; else the leanest with registers saved around the sites; else the leanest whose values are kept in local
    memory. A plan that the rewriter's own proof refuses is
    left for the next one; where none is proved, that refusal is what the caller gets.
    """
    from gwatch.rewrite.planning import Effort

    tries = [(recorder, Effort.FREE) for recorder in recorders]
    tries += [(recorders[0], Effort.RAISE)]
    tries += [(recorder, Effort.SAVE) for recorder in recorders]
    tries += [(recorder, Effort.PARK) for recorder in reversed(recorders)]
    failure: RegisterPressureError | None = None
    unproved: HazardError | None = None
    for recorder, effort in tries:
        try:
            return recorder, attempt(recorder, effort)
        except HazardError as error:
            unproved = unproved or error
        except RegisterPressureError as error:
            if error.code not in _NO_ROOM:
                raise
            if effort is not Effort.RAISE or failure is None:
                failure = error
    if unproved is not None:
        raise unproved
    assert failure is not None
    raise failure


def shared_records(around: Surroundings, sites: Sequence[SassTraceSite]) -> dict[int, int]:
    """Site number -> number of the site whose record says its time too.

    Such sites follow each other with only markers or NOPs between them, which wait for nothing and take no more than
    :data:`SHARED_CYCLES` (less than a record would take there), are reached on the same ways and by the same lanes,
    and have no values. The last one keeps its record.
    """
    view, cfg = around.view, around.cfg
    order = sorted(range(len(sites)), key=lambda number: (sites[number].insert_index, number))
    starts = {block.start for block in cfg.blocks}
    chains: list[list[int]] = []

    def alike(first: SassTraceSite, second: SassTraceSite) -> bool:
        return (
            first.value == second.value == "none"
            and first.warp_level == second.warp_level
            and _guard_of(view, first) == _guard_of(view, second)
        )

    def at_once(begin: int, end: int) -> bool:
        between = range(begin, end)
        return (
            all(view.facts(i).mnemonic in _TIMELESS and not view.control["wait_mask"][i] for i in between)
            and not any(i in starts for i in range(begin + 1, end + 1))
            and sum(int(view.control["stall"][i]) for i in between) <= SHARED_CYCLES
        )

    for number in order:
        first = sites[chains[-1][0]] if chains else None
        site = sites[number]
        if first is not None and alike(first, site) and at_once(first.insert_index, site.insert_index):
            chains[-1].append(number)
        else:
            chains.append([number])
    return {number: chain[-1] for chain in chains for number in chain[:-1]}


def _guard_of(view: CodeView, site: SassTraceSite) -> str:
    """The guard of the lanes that record: of the site's instruction, or none."""
    return "" if site.unconditional else _guard(view.facts(site.insert_index).text)


def _guard(text: str) -> str:
    """The guard of an instruction: "P0", "!UP1", or "" for none."""
    return text.split(None, 1)[0].removeprefix("@") if text.startswith("@") else ""


def _exits(rewriter: Rewriter) -> list[int]:
    """Indices of all EXIT instructions before the padding."""
    around = rewriter.surroundings
    return [i for i in range(around.padding) if around.view.facts(i).mnemonic == "EXIT"]


def _check_sites(rewriter: Rewriter, sites: Sequence[SassTraceSite]) -> None:
    """Refuse places and registers that the kernel doesn't have. Raises SiteError."""
    around, kernel = rewriter.surroundings, rewriter.kernel
    count = len(kernel.words)
    for number, site in enumerate(sites):
        where = f"site {number} (instruction {site.insert_index})"
        if site.insert_index >= count:
            raise SiteError(
                "site-range",
                f"{where}: {kernel.name} has instructions 0..{around.padding - 1}",
                "choose one of these",
            )
        if site.insert_index >= around.padding:
            raise SiteError(
                "site-padding",
                f"{where} is padding behind the code",
                f"the last instruction is {around.padding - 1}",
            )
        if site.value_reg is None:
            continue
        file = "UR" if site.value_is_uniform else "R"
        wanted = range(site.value_reg, site.value_reg + site.value_width_bits // 32)
        if file == "R" and wanted[-1] > kernel.register_count - 3:
            raise SiteError(
                "site-register",
                f"{where}: {kernel.name} has R0 to R{kernel.register_count - 3}, not R{wanted[-1]}",
                "choose a register that the kernel has written by then",
            )
        for register in wanted:
            if not _may_be_written(around, file, register, site.insert_index):
                raise SiteError(
                    "site-register",
                    f"{where}: nothing has written {file}{register} by then",
                    "choose a later site",
                )


def _may_be_written(around: Surroundings, file: str, register: int, index: int) -> bool:
    """Whether some path to ``index`` writes the register, or enters where it may hold an argument or
    result."""
    cfg = around.cfg
    sources = [*around.view.writers(file, register).tolist(), *around.leaves]
    starts = [after for source in sources for after in cfg.successors(source)]
    starts += [entry for entry in cfg.entries if entry]
    return bool(cfg.reachable(starts)[index])


def _site_map(
    rewriter: Rewriter,
    sites: Sequence[SassTraceSite],
    shared: Mapping[int, int],
    held: Mapping[int, Held],
    rewritten: Rewritten,
    clock: str,
    fmt: RingFormat,
    pairs: bool,
    symbol: str,
    offset: int,
) -> SiteMap:
    size = rewriter.cubin.arch.instruction_size
    lines = rewriter.kernel.map_address_to_line
    mapped = []
    recorded = [number for number in range(len(sites)) if number not in shared]
    # The first insertion is the prologue, the exits come after the sites.
    code = dict(zip(recorded, rewritten.sites[1:], strict=False))
    for number, site in enumerate(sites):
        own = shared.get(number, number)
        placed, later = code[own], held.get(own)
        pc = site.insert_index * size
        file, line = lines.get(pc, (None, None))
        mapped.append(
            MappedSite(
                site_id=number,
                index=site.insert_index,
                pc=pc,
                new_pc=placed.first * size,
                instruction=rewriter.surroundings.view.text(site.insert_index),
                file=file,
                line=line,
                value=site.value,
                warp_level=site.warp_level,
                unconditional=site.unconditional,
                pair=pairs and later is None and site.carries_pair(fmt.kind),
                label=site.label,
                shared_with=shared.get(number) if later is None else later.holder,
                time_in="time" if later is None else later.word,
            )
        )
    return SiteMap(
        kernel=rewriter.kernel.name,
        arch=rewriter.cubin.arch.name,
        clock=clock,
        format=fmt,
        descriptor_symbol=symbol,
        descriptor_offset=offset,
        sites=tuple(mapped),
        registers_before=rewritten.registers_before,
        registers_after=rewritten.registers_after,
        pairs_at_exit=clock == "anchor",
    )
