"""do_trace: find the launch that a function makes, trace it at sites or scope markers, and say what tracing changed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gwatch._files import write_atomically
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import driver
from gwatch.cuda.launcher import DEFAULT_RING_BYTES
from gwatch.cuda.launchview import Launch
from gwatch.cuda.xtrace import options
from gwatch.cuda.xtrace.outputs import Snapshot, arrays_in, compare, pointers_in, take
from gwatch.cuda.xtrace.passes import LaunchFilter, PassObserver, Scout, Slot
from gwatch.cuda.xtrace.prepare import Request, Target, choose, load_slots, not_launched, slots_for
from gwatch.cuda.xtrace.report import build
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.cuda.xtrace.scopes import checked_names
from gwatch.cuda.xtrace.tiers import Work, check_ptx_arguments, ptx_work, sass_work
from gwatch.cuda.xtrace.timing import LaunchTimer
from gwatch.errors import GWatchError, TraceError
from gwatch.rewrite.trace import SassTraceSite

DEFAULT_PASSES = 5
DEFAULT_OUTPUT_BYTES = 1 << 28
DEFAULT_MAX_LAUNCHES = 8
KEEP_VARIABLE = "GWATCH_TRACE_KEEP_CUBIN"


def do_trace(
    fn: Callable[[], Any],
    kernel_name_pattern: str = "",
    dsl: str = "triton",
    per_thread_counts: Mapping[tuple[str, str], int] | None = None,
    scope_name_map: Mapping[int, str] | None = None,
    instrumentation_tier: str = "ptx",
    clock_type: str = "gpu",
    sass_trace_sites: Sequence[SassTraceSite] | None = None,
    sass_per_thread_records: int | None = None,
    sass_arch: str | None = None,
    sass_splice_mode: str = "auto",
    sass_schedule_mode: str = "first_feasible",
    sass_schedule_prune: bool = True,
    sass_excluded_registers: Mapping[str, Sequence[int]] | None = None,
    ptx_warp_level: bool = False,
    ptx_site_pass: Callable[[Any], Any] | None = None,
    profile_context: Any = None,
    profile_stream: Any = 0,
    *,
    passes: int = DEFAULT_PASSES,
    keep: str = "newest",
    ring_bytes: int = DEFAULT_RING_BYTES,
    cta: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Any] = (),
    output_bytes: int = DEFAULT_OUTPUT_BYTES,
    launch_filter: LaunchFilter | None = None,
    max_launches: int = DEFAULT_MAX_LAUNCHES,
    warp_level: bool = False,
    ptx: str | os.PathLike[str] | bytes | None = None,
) -> TraceResult:
    """Trace the launch of a kernel that ``fn`` makes.

    ``fn`` runs ``1 + 2 * passes`` times: once to see what it launches, then plain and traced by turns; the
    records are those of the last traced pass. It must launch the same kernels every time. It is waited for
    after every pass; a function that updates its data in place sees its own earlier passes.

    ``kernel_name_pattern`` is searched in mangled names; all matching launches must be of one kernel
    (``launch_filter``, called with a :class:`~gwatch.cuda.launchview.Launch`, tells equal names apart). Up to
    ``max_launches`` of them are traced in a pass, each with a ring of its own; the result is the first one's,
    ``result.launches`` holds all.

    ``instrumentation_tier`` "sass" records in the machine code: at ``sass_trace_sites`` (a site's id is its place in
    the list), or, without them, at the kernel's scope markers. "ptx" records at the markers in the kernel's PTX and
    compiles it anew; ``dsl`` ("cute", "triton", "tilelang" or "") says where its PTX is found, ``ptx`` names it
    (a path, or the text). ``scope_name_map``: label by scope id; ``warp_level`` (or ``ptx_warp_level``): one record per
    warp at a marker instead of one per thread; ``per_thread_counts``: ring depth as a sum of budgets.

    ``clock_type``: "gpu" (ns), "sm"
    (cycles of the SM, not comparable between SMs) or "anchor" (SM cycles mapped to ns; SASS tier only).
    ``sass_per_thread_records``: ring depth per lane (default 32; at markers 32 for each, up to 1024), rounded
    up to a power of two; ``keep``
    "newest" or "first" says which records survive. ``sass_excluded_registers``: registers no record may
    use, ``{"general": [...], "uniform_general": [...]}``. ``sass_arch`` ("90a"): refuse any other code.
    ``ring_bytes``: device memory for all rings; a launch that needs more is sampled by whole CTAs,
    evenly, or those named by ``cta``. ``outputs``: arrays to compare besides ``fn``'s return value and
    what the kernel's pointers reach, up to ``output_bytes``. ``profile_stream``: waited for after each
    pass together with the contexts of the launches.

    ``sass_splice_mode`` "auto" and "plain" are the same here, ``sass_schedule_mode`` and
    ``sass_schedule_prune`` are accepted: records are stored in place, in the order of their text.
    ``ptx_site_pass`` and ``profile_context`` are refused by name.

    Raises KernelError ``[kernel-pattern]``, ``[kernel-not-launched]`` (nearest names seen),
    ``[kernel-ambiguous]``; SiteError, RegisterPressureError, HazardError, UnsupportedError from the rewrite
    and from the markers (:mod:`gwatch.cuda.xtrace.markers`, :mod:`gwatch.cuda.trace.ptxfind`);
    ToolError when driver or CUPTI are missing or held; TraceError ``[no-records]``, ``[launch-changed]`` and
    others; and whatever ``fn`` raises. Hooks and records are off again in every case.
    """
    options.check_tier(
        instrumentation_tier, {"ptx_site_pass": ptx_site_pass, "profile_context": profile_context}
    )
    if instrumentation_tier == "ptx":
        check_ptx_arguments(sass_trace_sites, sass_excluded_registers)
    kept = options.check_choices(
        clock_type, sass_splice_mode, sass_schedule_mode, keep, passes, ring_bytes, max_launches
    )
    pattern = options.kernel_pattern(kernel_name_pattern)
    names = checked_names(scope_name_map)
    budget = options.scope_depth(per_thread_counts)
    depth = budget if sass_per_thread_records is None else options.depth(sass_per_thread_records)
    warps = warp_level or ptx_warp_level
    request = Request(
        (),
        clock_type,
        options.DEFAULT_DEPTH,
        kept.value,
        options.excluded_registers(sass_excluded_registers),
        ring_bytes,
        None if cta is None else tuple(tuple(at) for at in cta),
        sass_schedule_mode,
        sass_schedule_prune,
    )
    with _Session(fn, options.stream_handle(profile_stream), launch_filter) as session:
        scout = session.scout(Scout(session.driver, pattern, launch_filter))
        target = choose(scout, hooks.images, kernel_name_pattern, sass_arch)
        work: Work
        if instrumentation_tier == "ptx":
            work = ptx_work(target, request, hooks.images, dsl, ptx, names, depth, warp_level=warps)
        else:
            work = sass_work(target, request, sass_trace_sites, names, depth, warp_level=warps)
        request = work.request
        session.slots = slots_for(target, hooks.images, max_launches)
        shots = []
        if passes == 1:  # with more, the first pass is left out: it may still compile and set up
            first = {index: slot.seen.launch for index, slot in enumerate(session.slots)}
            shots.append(session.snapshot(target, first, outputs, output_bytes))
        plain = session.run(target, redirect=False)
        planned = work.plan(session.longest_ns())
        _keep_image(planned.data)
        with hooks.quiet():
            load_slots(session.driver, hooks.images, target, planned, session.slots, request)
        shots.append(session.snapshot(target, plain.launches, outputs, output_bytes))
        traced = session.run(target, redirect=True)
        for number in range(1, passes):
            plain = session.run(target, redirect=False)
            if number == 1:
                shots.append(session.snapshot(target, plain.launches, outputs, output_bytes))
            traced = session.run(target, redirect=True)
        verdict = compare(shots, session.snapshot(target, traced.launches, outputs, output_bytes))
        results = [
            build(session.driver, target, planned, request, verdict, traced, slot, index, session.wall_ns)
            for index, slot in enumerate(session.slots)
        ]
    for result in results:
        work.finish(result)
        result["launches"] = results
    return results[0]


def do_trace_kernel_launch_sequence(
    fn: Callable[[], Any], kernel_name_pattern: str = "", **options_given: Any
) -> list[TraceResult]:
    """Trace every launch of every kernel that ``fn`` makes and the pattern matches, in the order of the launches.

    One :func:`do_trace` per kernel, with its arguments; times of different kernels come from different passes. A
    result's ``launch["sequence"]`` is its place among all launches that matched. Raises what :func:`do_trace` raises.
    """
    pattern = options.kernel_pattern(kernel_name_pattern)
    keep: LaunchFilter | None = options_given.get("launch_filter")
    with _Session(fn, options.stream_handle(options_given.get("profile_stream", 0)), keep) as session:
        scout = session.scout(Scout(session.driver, pattern, keep))
    places: dict[str, list[int]] = {}
    for number, seen in enumerate(scout.seen):
        places.setdefault(seen.launch.symbol, []).append(number)
    if not places:
        raise not_launched(scout, kernel_name_pattern)
    found: list[tuple[int, TraceResult]] = []
    for symbol, numbers in places.items():
        result = do_trace(fn, f"^{re.escape(symbol)}$", **options_given)
        for number, launch in zip(numbers, result["launches"], strict=False):
            launch["launch"]["sequence"] = number
            found.append((number, launch))
    return [result for _, result in sorted(found, key=lambda item: item[0])]


def capture_cubin(
    fn: Callable[[], Any],
    kernel_name_pattern: str,
    sass_arch: str | None = None,
    launch_filter: LaunchFilter | None = None,
) -> tuple[Cubin, KernelDef]:
    """Run ``fn`` once, untouched, and return the code of the kernel it launches: its cubin and its definition.

    This is how sites are found in a kernel that a framework compiled or loaded: ``cubin.data`` are its bytes.
    Arguments and errors as for :func:`do_trace`.
    """
    pattern = options.kernel_pattern(kernel_name_pattern)
    with _Session(fn, 0, launch_filter) as session:
        scout = session.scout(Scout(session.driver, pattern, launch_filter))
        target = choose(scout, hooks.images, kernel_name_pattern, sass_arch)
    return target.cubin, target.kernel


def capture_kernel(
    fn: Callable[[], Any],
    kernel_name_pattern: str,
    sass_arch: str | None = None,
    launch_filter: LaunchFilter | None = None,
) -> KernelDef:
    """The definition part of :func:`capture_cubin`."""
    return capture_cubin(fn, kernel_name_pattern, sass_arch, launch_filter)[1]


def _keep_image(image: bytes) -> None:
    wanted = os.environ.get(KEEP_VARIABLE)
    if wanted:
        write_atomically(Path(wanted), image)


class _Session:
    """The passes of one trace; on leaving, hooks and records are off whatever happened."""

    def __init__(self, fn: Callable[[], Any], stream: int, keep: LaunchFilter | None) -> None:
        self.driver = driver()
        self.slots: list[Slot] = []
        self.wall_ns = 0.0  # of the last pass, until everything had finished
        self._fn, self._stream, self._keep = fn, stream, keep
        self._timer = LaunchTimer(self.driver)
        self._value: Any = None

    def __enter__(self) -> _Session:
        hooks.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._disarm(free=True)
            for context in {slot.context for slot in self.slots}:
                with self.driver.inside(context):
                    self._timer.close(context)
        except GWatchError:
            if error is None:
                raise  # otherwise the first failure says more than the clean-up of a broken context
        finally:
            hooks.release()

    def scout(self, scout: Scout) -> Scout:
        """The capture pass."""
        self._pass(scout, lambda: {seen.launch.context for seen in scout.seen})
        return scout

    def run(self, target: Target, *, redirect: bool) -> PassObserver:
        """A plain or a traced pass, over when everything it launched has finished."""
        for context in {slot.context for slot in self.slots}:
            with hooks.quiet(), self.driver.inside(context):
                self._timer.prepare(context, sum(slot.context == context for slot in self.slots))
        if redirect:
            self._arm()
        observer = PassObserver(
            self.driver,
            hooks.images,
            self.slots,
            self._timer,
            target.parameters,
            self._keep,
            redirect=redirect,
        )
        self._pass(observer, lambda: {slot.context for slot in self.slots})
        if redirect:
            self._disarm()
        for index, pair in observer.times.items():
            slot = self.slots[index]
            with self.driver.inside(slot.context):
                elapsed = self._timer.take(slot.context, pair)
            if elapsed is not None:
                (slot.traced_ns if redirect else slot.plain_ns).append(elapsed)
        missing = [index for index in range(len(self.slots)) if index not in observer.launches]
        if missing:
            launch = self.slots[missing[0]].seen.launch
            raise TraceError(
                "launch-changed",
                f"launch {missing[0]} of {launch.symbol} (grid {launch.grid}, block {launch.block}) "
                "of the first "
                "pass did not happen again",
                "fn must launch the same kernels every time; a graph must be captured inside fn, since its "
                "replays make no launch calls",
            )
        return observer

    def _pass(self, observer: Scout | PassObserver, contexts: Callable[[], set[int]]) -> None:
        started = time.perf_counter_ns()
        with hooks.observe(observer):
            self._value = self._fn()
            if self._stream:
                self.driver.synchronize(self._stream)
            for context in contexts():
                with self.driver.inside(context):
                    self.driver.synchronize()
        self.wall_ns = float(time.perf_counter_ns() - started)

    def longest_ns(self) -> float:
        """How long a launch took in the plain pass, at most: its events say, else the pass's wall time."""
        times = [max(slot.plain_ns) for slot in self.slots if slot.plain_ns]
        return max(times) if len(times) == len(self.slots) else self.wall_ns

    def snapshot(
        self, target: Target, launches: Mapping[int, Launch], arrays: Sequence[Any], limit: int
    ) -> Snapshot:
        """The memory to compare, as the last pass left it; ``launches`` of that pass by slot."""
        named = [*arrays_in(self._value, "result"), *arrays_in(list(arrays), "outputs")]
        pointers: list[tuple[str, int]] = []
        for index in sorted(launches):
            prefix = f"launch {index} " if len(self.slots) > 1 else ""
            found = pointers_in(launches[index].parameters, target.parameters)
            pointers += [(prefix + name, address) for name, address in found]
        with self.driver.inside(self.slots[0].context):
            return take(self.driver, named, pointers, limit)

    def _arm(self) -> None:
        for slot in self.slots:
            if slot.patched is not None and slot.ring is not None:
                with self.driver.inside(slot.context):
                    slot.ring.clear()
                    slot.patched.arm(slot.ring)

    def _disarm(self, *, free: bool = False) -> None:
        for slot in self.slots:
            if slot.patched is None:
                continue
            with self.driver.inside(slot.context):
                slot.patched.disarm()
                if free and slot.ring is not None:
                    self.driver.synchronize()
                    slot.ring.free()
