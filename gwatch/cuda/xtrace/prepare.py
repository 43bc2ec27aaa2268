"""Between the capture pass and the first traced one: which code, patched how, loaded where, with which
rings.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gwatch.cuda.arming import PatchedKernel, Ring
from gwatch.cuda.binary.constants import CONSTANT3, ModuleObject, bind_globals, globals_reached
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.elf import STT_FUNC
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.driver import MAX_DYNAMIC_SHARED, MAX_THREADS, Driver
from gwatch.cuda.images import ImageStore
from gwatch.cuda.latefind import FoundImage, HandleFacts, find_image
from gwatch.cuda.launcher import ring_layout
from gwatch.cuda.xtrace.passes import Scout, Seen, Slot
from gwatch.errors import KernelError, TraceError, UnsupportedError
from gwatch.rewrite.sitemap import SiteMap
from gwatch.rewrite.trace import SassTraceSite, TracePlan, plan_trace

_BANK_3 = "c[0x3]"
_LISTED = 8


class Planned(Protocol):
    """A patched image of either tier."""

    @property
    def data(self) -> bytes:
        """The cubin."""

    @property
    def site_map(self) -> SiteMap:
        """What its records mean."""


@dataclass(frozen=True, slots=True)
class Request:
    """What do_trace was asked for, checked."""

    sites: tuple[SassTraceSite, ...]
    clock: str
    depth: int
    keep: str
    excluded: dict[str, tuple[int, ...]]
    ring_bytes: int
    cta: tuple[tuple[int, ...], ...] | None
    schedule_mode: str
    schedule_prune: bool
    ctas: int | None = None
    """Record this many CTAs, evenly spread, however much memory there is."""
    hold: bool = True
    """Whether times may wait in registers for later records: not where the ring is read while the kernel runs."""


@dataclass(frozen=True, slots=True)
class Target:
    """The kernel to trace: its code, and the launches that ran it in the capture pass."""

    image: FoundImage
    cubin: Cubin
    kernel: KernelDef
    seen: tuple[Seen, ...]
    reached: tuple[ModuleObject, ...]

    @property
    def symbol(self) -> str:
        """Mangled name."""
        return self.kernel.name

    @property
    def parameters(self) -> list[tuple[int, int]]:
        """(offset, size) of each parameter."""
        return [(parameter.offset, parameter.size) for parameter in self.kernel.params]


def choose(scout: Scout, store: ImageStore, pattern: str, arch: str | None) -> Target:
    """The one kernel that the matching launches ran.

    Raises KernelError ``[kernel-not-launched]`` or ``[kernel-ambiguous]``, UnsupportedError
    ``[arch-mismatch]``, TraceError ``[image-not-found]`` or ``[image-ambiguous]``.
    """
    if not scout.seen:
        raise not_launched(scout, pattern)
    symbols = list(dict.fromkeys(seen.launch.symbol for seen in scout.seen))
    if len(symbols) > 1:
        listed = ", ".join(symbols[:_LISTED]) + (" …" if len(symbols) > _LISTED else "")
        raise KernelError(
            "kernel-ambiguous",
            f"{pattern!r} matches launches of {len(symbols)} kernels: {listed}",
            "give a pattern that only one of them matches",
        )
    images = {seen.facts.handle: find_image(symbols[0], seen.facts, store) for seen in scout.seen}
    cubins = {handle: Cubin.from_bytes(image.data, symbols[0]) for handle, image in images.items()}
    code = {
        handle: cubin.get_kerneldef_by_name(symbols[0]).words.tobytes() for handle, cubin in cubins.items()
    }
    if len(set(code.values())) > 1:
        shapes = dict.fromkeys(
            f"grid {seen.launch.grid} block {seen.launch.block} shared {seen.launch.shared_bytes}"
            for seen in scout.seen
        )
        raise KernelError(
            "kernel-ambiguous",
            f"{len(set(code.values()))} different kernels are named {symbols[0]}: {', '.join(shapes)}",
            "choose with launch_filter=lambda launch: launch.grid == (x, y, z)",
        )
    first = scout.seen[0].facts.handle
    cubin = cubins[first]
    if arch is not None and cubin.arch.name.removeprefix("sm_") != arch.removeprefix("sm_"):
        raise UnsupportedError(
            "arch-mismatch", f"{symbols[0]} ran as {cubin.arch.name} code, sass_arch asks for {arch}"
        )
    return _target(images[first], cubin, symbols[0], tuple(scout.seen))


def target_of(seen: Seen, store: ImageStore) -> Target:
    """The kernel that one launch runs. Raises TraceError ``[image-not-found]`` or ``[image-ambiguous]``."""
    symbol = seen.launch.symbol
    image = find_image(symbol, seen.facts, store)
    return _target(image, Cubin.from_bytes(image.data, symbol), symbol, (seen,))


def _target(image: FoundImage, cubin: Cubin, symbol: str, seen: tuple[Seen, ...]) -> Target:
    kernel = cubin.get_kerneldef_by_name(symbol)
    return Target(image, cubin, kernel, seen, _reached(cubin, kernel))


def _reached(cubin: Cubin, kernel: KernelDef) -> tuple[ModuleObject, ...]:
    """Module variables that the kernel shares with host or other kernels; compiler-made constants are not."""
    objects = [item for item in globals_reached(cubin, kernel) if item.mutable]
    if not any(item.section == CONSTANT3 for item in objects):
        return tuple(objects)
    # Bank 3 is the module's, and its accesses leave no relocation: the code has to be asked.
    calls = any(
        cubin.elf.symbols[entry.symbol].kind == STT_FUNC
        for table in cubin.elf.relocation_sections(kernel.section_index)
        for entry in cubin.elf.relocations(table)
    )
    if calls or any(_BANK_3 in text for text in kernel.texts):
        return tuple(objects)
    return tuple(item for item in objects if item.section != CONSTANT3)


def not_launched(scout: Scout, pattern: str) -> KernelError:
    """The error that no launch matched, with the nearest names seen."""
    names = list(scout.names)
    if not names:
        return KernelError(
            "kernel-not-launched",
            "fn made no kernel launch",
            "a replayed graph makes none: capture it inside fn",
        )
    near = difflib.get_close_matches(pattern, names, 5, cutoff=0.0) or names[:5]
    return KernelError(
        "kernel-not-launched",
        f"no launch matches {pattern!r} (and the launch filter) among {len(names)} kernels seen",
        f"nearest: {', '.join(near)}",
    )


def slots_for(target: Target, store: ImageStore, most: int) -> list[Slot]:
    """A slot for each of the first ``most`` launches."""
    return [
        Slot(seen, target.image.data, bool(target.reached), store.loads(seen.facts.owner))
        for seen in target.seen[:most]
    ]


def plan(target: Target, request: Request, duration_ns: float) -> TracePlan:
    """The patched image; ``duration_ns``: how long the launch takes untraced, at most."""
    return plan_trace(
        target.cubin,
        target.kernel,
        request.sites,
        clock=request.clock,
        depth=request.depth,
        keep=request.keep,
        duration_ns=duration_ns,
        excluded_registers=request.excluded or None,
        hold=request.hold,
    )


def load_slots(
    driver: Driver,
    store: ImageStore,
    target: Target,
    planned: Planned,
    slots: Sequence[Slot],
    request: Request,
) -> None:
    """Load the patched code once per slot, bound to the original module's variables, and give each a ring.

    Separate copies, so that launches that run at the same time can be kept apart. Raises TraceError
    ``[variable-hidden]``, ``[block-too-large]``, ``[cooperative-too-large]``, ``[ring-too-large]`` and
    LaunchError from the driver.
    """
    budget = request.ring_bytes // len(slots)
    for slot in slots:
        launch, facts = slot.seen.launch, slot.seen.facts
        with driver.inside(slot.context):
            image = bind_globals(planned.data, _addresses(driver, target, facts))
            store.own(image)
            patched = PatchedKernel(driver, image, planned.site_map)
            _copy_attributes(driver, patched, slot)
            _check_fits(driver, patched, slot)
            layout, chosen = ring_layout(planned.site_map, launch.grid, launch.block, budget, request.cta)
            if request.ctas is not None and request.ctas < layout.cta_slots:
                layout = replace(layout, cta_slots=request.ctas)
            slot.constants = _constants(driver, target, facts, patched)
            slot.ring = Ring(driver, layout, chosen)
            slot.patched = patched


def _addresses(driver: Driver, target: Target, facts: HandleFacts) -> dict[str, int]:
    return {name: address for name, (address, _) in variables(driver, target, facts).items()}


def variables(driver: Driver, target: Target, facts: HandleFacts) -> dict[str, tuple[int, int]]:
    """(device address, bytes) of the original module's variables that the kernel reaches, constants aside.

    Raises TraceError ``[variable-hidden]``.
    """
    found = {}
    for item in target.reached:
        if item.section == CONSTANT3:
            continue
        place = _global(driver, facts, item.name)
        if place is None:
            raise TraceError(
                "variable-hidden",
                f"{target.symbol} uses the variable {item.name} of its module, whose address the driver "
                "does not tell",
                "the patched code would get a copy of its own; give the variable external linkage",
            )
        found[item.name] = place
    return found


def _global(driver: Driver, facts: HandleFacts, name: str) -> tuple[int, int] | None:
    if facts.is_kernel:
        return driver.library_global(facts.owner, name)
    return driver.module_global(facts.owner, name)


def _constants(
    driver: Driver, target: Target, facts: HandleFacts, patched: PatchedKernel
) -> tuple[int, int, int] | None:
    """(patched bank, original bank, bytes) to copy before each launch; None without user constants."""
    constants = [item for item in target.reached if item.section == CONSTANT3]
    for item in constants:
        place = _global(driver, facts, item.name)
        if place is not None:
            end = max(other.offset + other.size for other in constants)
            return patched.constant_bank, place[0] - item.offset, end
    if constants:
        raise TraceError(
            "variable-hidden",
            f"{target.symbol} reads the __constant__ variable {constants[0].name}, whose address the driver "
            "does not tell",
            "give it external linkage",
        )
    return None


def _copy_attributes(driver: Driver, patched: PatchedKernel, slot: Slot) -> None:
    for attribute, value in slot.seen.facts.attributes:
        if attribute == MAX_DYNAMIC_SHARED:
            value = max(value, slot.seen.launch.shared_bytes)
        if driver.kernel_attribute(patched.kernel, attribute, slot.seen.device) != value:
            driver.set_kernel_attribute(patched.kernel, attribute, value, slot.seen.device)


def _check_fits(driver: Driver, patched: PatchedKernel, slot: Slot) -> None:
    launch = slot.seen.launch
    limit = driver.kernel_attribute(patched.kernel, MAX_THREADS, slot.seen.device)
    if limit is not None and launch.threads > limit:
        raise TraceError(
            "block-too-large",
            f"with the registers of the records a block of {launch.symbol} may have {limit} threads, "
            f"the launch has {launch.threads}",
            "trace fewer sites, or without values",
        )
    if "Cooperative" in launch.api or 2 in launch.attributes:
        resident = driver.resident_ctas(patched.function, launch.threads, launch.shared_bytes)
        room = resident * driver.device_sm_count(slot.seen.device)
        if launch.ctas > room:
            raise TraceError(
                "cooperative-too-large",
                f"{launch.symbol} is a cooperative launch of {launch.ctas} CTAs, of which {room} fit at once "
                "with the registers of the records",
                "trace fewer sites, or without values",
            )
