"""gwatch inside a traced program: counts its launches, sends the chosen ones to patched code, collects the
records at the end.

Where the patched code is loaded. A launch that comes only once would be missed by anything prepared between
launches, so the code is found, patched and loaded on the launching thread when the launch call is *entered*:
the driver has taken no lock of that call yet (instrumentation tools load their modules at the same place),
cuda-python gives up the GIL during each driver call, and every copy goes through a stream of its own that
waits for nothing the program does. Loads made inside *resource* callbacks, where the driver holds its locks,
remain forbidden. While a stream is being captured into a graph the thread is put into the relaxed capture mode
for these calls, so that the capture stays valid.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gwatch.cuda.capture import from_signal, hooks
from gwatch.cuda.driver import COPIED_ATTRIBUTES, NUM_REGS, Driver
from gwatch.cuda.latefind import HandleFacts
from gwatch.cuda.launchview import Launch, LaunchView, Replacement
from gwatch.cuda.program.callers import Caller, Callers, origin_of, profiling, unseen_autotuners
from gwatch.cuda.program.launches import KernelRow, Shape
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.prepared import Prepared, prepare
from gwatch.cuda.program.replay import SPIN_NS, replay
from gwatch.cuda.program.selection import Selector
from gwatch.cuda.program.stopwatch import Span, Stopwatch
from gwatch.cuda.xtrace.outputs import Verdict
from gwatch.cuda.xtrace.passes import Seen, Slot
from gwatch.cuda.xtrace.prepare import load_slots
from gwatch.cuda.xtrace.timing import LaunchTimer
from gwatch.errors import GWatchError, TraceError

LOOK_SECONDS = 0.25
ALL_TIMED, ONE_IN = 1000, 16
"""Launches of a kernel that are all timed, and how many of the later ones."""
PLAIN_TIMED = 32
"""Times of a traced kernel that say enough about its untraced launches."""
_OF_A_SHAPE = frozenset(
    {"block-too-large", "cooperative-too-large", "ring-too-large", "cta-outside", "constant-in-capture"}
)
"""Refusals that say nothing about the kernel's launches of other shapes, or outside a graph."""
_UNCHECKED = Verdict("not checked: outputs are compared with --verify")


@dataclass(slots=True)
class Traced:
    """One launch that ran patched code."""

    prepared: Prepared
    slot: Slot
    number: int  # among the kernel's launches outside autotuning
    ordinal: int  # among those of its shape, from 1
    failed: bool = False  # the launch call itself returned an error
    verdict: Verdict = _UNCHECKED
    span: Span | None = None  # around the launch, until its time was taken
    own_ns: float | None = None  # time of the program's own launch, the host's part included

    @property
    def launch(self) -> Launch:
        """The launch as the program made it."""
        return self.slot.seen.launch


@dataclass(slots=True)
class Kernel:
    """What the session knows about one kernel."""

    row: KernelRow
    wanted: bool
    seen: Seen | None = None  # its first launch, kept for the launch table
    prepared: Prepared | None = None
    module: tuple[int, int] | None = None  # handle that ``prepared`` is for, and how often it was handed out
    refused: GWatchError | None = None
    # Launches of these shapes alone cannot be traced (in a graph or not).
    unfit: dict[tuple[Shape, bool], GWatchError] = field(default_factory=dict)
    turn: threading.Lock = field(
        default_factory=threading.Lock
    )  # held while one of its launches is made ready
    traced: list[Traced] = field(default_factory=list)
    times: dict[Shape, list[float]] = field(default_factory=dict)


def _shape(view: LaunchView) -> Shape:
    launch = view.record(0)
    return launch.grid, launch.block, launch.cluster, launch.shared_bytes


class ProgramSession:
    """Observer of all launches of this process; see :class:`~gwatch.cuda.capture.Observer`."""

    def __init__(
        self, options: ProgramOptions, driver: Callable[[], Driver], demangle: Callable[[str], str]
    ) -> None:
        """``driver`` is asked at the first launch: initialising CUDA earlier would fix the visible devices and
        make later forks unusable, which the program alone should decide."""
        self.options, self._find_driver, self._demangle = options, driver, demangle
        self.selector = Selector(options)
        self.kernels: dict[str, Kernel] = {}
        self._found: tuple[Driver, Stopwatch] | None = None
        self._open: dict[int, tuple[LaunchView, Callable[[int], None]]] = {}
        self._streams: dict[int, int] = {}
        self._callers = Callers()
        self._replay_timer: LaunchTimer | None = None
        self._lock = threading.Lock()
        self._watchdog: threading.Thread | None = None
        self._stopped = threading.Event()
        self.profiled = False
        self.host_clocks: dict[int, dict[str, Any] | None] = {}  # by context
        self.unseen_autotuners: dict[str, None] = {}
        self.on_first_launch: Callable[[], None] = lambda: None
        self.on_hang: Callable[[ProgramSession, Kernel, Traced | None], None] = lambda *_: None
        self._stack = contextlib.ExitStack()
        self.process = os.getpid()

    def begin(self) -> None:
        """Take CUPTI and watch. Raises ToolError ``[cupti-missing]``, ``[cupti-held]``, ``[cupti-failed]``."""
        self._stack.enter_context(hooks.observe(self))

    def inherit(self, parent: ProgramSession) -> None:
        """Take the place of ``parent``, in a child forked off its process: callbacks come here from now on."""
        self._stack = parent._stack.pop_all()
        hooks.replace_observer(parent, self)

    def stop_watching(self) -> BaseException | None:
        """Give CUPTI back, end the time limit's watch; returns what went wrong inside a callback, if anything did."""
        self._stopped.set()
        try:
            self._stack.close()
        except BaseException as error:
            if error not in hooks.errors:
                raise
            return error
        return None

    @property
    def driver(self) -> Driver:
        """The driver, found when first needed."""
        return self._tools()[0]

    @property
    def used(self) -> bool:
        """Whether any launch was seen."""
        return self._found is not None

    def _tools(self) -> tuple[Driver, Stopwatch]:
        if self._found is None:
            driver = self._find_driver()
            with self._lock:
                first = self._found is None  # several threads may launch at once
                self._found = found = self._found or (driver, Stopwatch(driver))
            if first:
                self.on_first_launch()
            return found
        return self._found

    # called inside driver calls

    def wants(self, symbol: str) -> bool:
        """Whether launches of the kernel are counted: all of them for a list, else those asked for."""
        return self._kernel(symbol).row.counted

    def enter(self, view: LaunchView) -> None:
        """Count the launch, and time or trace it."""
        symbol = view.symbol or self.driver.handle_name(view.handle) or ""
        view.symbol = symbol
        kernel = self._kernel(symbol)
        if not kernel.row.counted:
            return
        caller = self._callers.ask(symbol)
        self.profiled = self.profiled or profiling()
        with self._lock:
            row = kernel.row
            row.count += 1
            row.tuning += caller.tuning
            number = self.selector.launches(symbol)
            if caller.tuning or self.options.list_only:
                ordinal = 0
                self.selector.left_alone[symbol] += caller.tuning
            else:
                ordinal = self.selector.choose(symbol, _shape(view), False)
        # An autotuner measures: not even an event of ours beside its launches.
        untouched = caller.tuning or (not ordinal and self._enough(kernel))
        if untouched and row.origin:
            return
        stream = view.stream
        with self._where_it_runs(view, stream):
            if not row.origin:
                self._describe(kernel, view, caller)
            if untouched:
                return
            shape = _shape(view)
            captured = view.api.startswith("cuGraph") or self.driver.is_capturing(stream)
            with self._lock:
                row.captured += captured
                row.shapes[shape] += 1
                row.streams.add(stream)
            traced = self._trace(kernel, view, number, ordinal, captured) if ordinal else None
            always = traced is not None or self.options.timeout is not None
            timed = not captured and (always or row.count <= ALL_TIMED or row.count % ONE_IN == 0)
            span = self._tools()[1].start(view.context, stream, symbol, always) if timed else None
            if traced is not None:
                traced.span = span
            if traced is not None or span is not None:
                self._open[id(view)] = (view, self._leaver(kernel, view, shape, span, traced))
            if span is not None:
                self._watch_over()

    @contextlib.contextmanager
    def _where_it_runs(self, view: LaunchView, stream: int) -> Iterator[None]:
        """Make the context of the launch's stream current: the program may have left another one current."""
        context = self.driver.stream_context(stream)
        if context in (None, view.context):
            yield
            return
        view.context = context
        with self.driver.inside(context):
            yield

    def _enough(self, kernel: Kernel) -> bool:
        """Whether nothing more is to be learnt from the kernel's launches than their number."""
        if self.options.list_only or self.options.timeout is not None:
            return False
        settled = kernel.refused is not None or self.selector.settled(kernel.row.symbol)
        return settled and kernel.row.timed >= PLAIN_TIMED

    def leave(self, view: LaunchView, status: int) -> None:
        """The launch call returned."""
        found = self._open.pop(id(view), None)
        if found is not None:
            found[1](status)

    def _kernel(self, symbol: str) -> Kernel:
        kernel = self.kernels.get(symbol)
        if kernel is None:
            name = self._demangle(symbol)
            wanted = self.selector.wants(symbol, name)
            row = KernelRow(symbol, name, "", counted=wanted or self.options.list_only)
            # Several threads may meet a kernel at once, and all must count in one row.
            kernel = self.kernels.setdefault(symbol, Kernel(row, wanted))
        return kernel

    def _describe(self, kernel: Kernel, view: LaunchView, caller: Caller) -> None:
        """Fill in the row of a kernel seen for the first time."""
        launch, row = view.record(0), kernel.row
        row.device = self.driver.current_device()
        row.registers = self._registers(launch.handle, row.device)
        if self.options.list_only:
            captured = launch.graph_node or self.driver.is_capturing(launch.stream)
            facts = HandleFacts.read(self.driver, launch.handle, row.device, COPIED_ATTRIBUTES)
            kernel.seen = Seen(launch, facts, row.device, captured)
        row.origin = origin_of(caller.modules, row.symbol)
        self.unseen_autotuners.update(dict.fromkeys(unseen_autotuners()))

    def _registers(self, handle: int, device: int) -> int | None:
        if self.driver.handle_library(handle) is not None:
            return self.driver.kernel_attribute(handle, NUM_REGS, device)
        return self.driver.function_attribute(handle, NUM_REGS)

    def _leaver(
        self, kernel: Kernel, view: LaunchView, shape: Shape, span: Span | None, traced: Traced | None
    ) -> Callable[[int], None]:
        stream = view.stream

        def taken(ns: float) -> None:
            kernel.row.timed += 1
            kernel.row.total_ns += ns
            if traced is None:
                kernel.times.setdefault(shape, []).append(ns)
            else:
                traced.own_ns = ns
                traced.span = None

        def leave(status: int) -> None:
            if traced is not None and status != 0:
                traced.failed = True
            if span is None:
                return
            if status != 0:
                self._tools()[1].drop(span)
            else:
                self._tools()[1].stop(span, stream, taken)

        return leave

    def _trace(
        self, kernel: Kernel, view: LaunchView, number: int, ordinal: int, captured: bool
    ) -> Traced | None:
        """Send the launch to patched code; None when that is refused, and then the launch stays as it is."""
        place = _shape(view), captured
        with kernel.turn:  # the driver holds no lock here, so that another thread's launch can be waited for
            settled = self.selector.settled(kernel.row.symbol) and not self.selector.explicit
            if kernel.refused is not None or place in kernel.unfit or settled:
                return None
            try:
                traced = self._redirect(kernel, view, number, ordinal, captured)
                with self._lock:
                    self.selector.took(kernel.row.symbol, ordinal, (number,))
                return traced
            except GWatchError as error:
                if error.code in _OF_A_SHAPE:
                    kernel.unfit[place] = error
                else:
                    kernel.refused = error
            except Exception as error:  # the program's launch must go on as it is
                if from_signal(error):
                    raise
                name = type(error).__name__
                kernel.refused = TraceError(
                    "internal", f"{kernel.row.symbol} could not be patched: {name}: {error}"
                )
        return None

    def _redirect(
        self, kernel: Kernel, view: LaunchView, number: int, ordinal: int, captured: bool
    ) -> Traced:
        driver = self.driver
        launch = view.record(number)
        device = driver.current_device()
        facts = HandleFacts.read(driver, launch.handle, device, COPIED_ATTRIBUTES)
        with hooks.quiet(), driver.relaxed_capture():
            prepared = kernel.prepared
            module = facts.owner, hooks.images.loads(facts.owner)
            if prepared is None or kernel.module != module:
                kernel.module = module
                known = max((max(times) for times in kernel.times.values()), default=None)
                seen = Seen(launch, facts, device, captured)
                prepared = kernel.prepared = prepare(seen, hooks.images, self.options, known)
            launch = view.record(number, prepared.target.parameters)
            seen = Seen(launch, facts, device, captured)
            target = prepared.target
            slot = Slot(seen, target.image.data, bool(target.reached), hooks.images.loads(facts.owner))
            traced = Traced(prepared, slot, number, ordinal)
            try:
                load_slots(driver, hooks.images, target, prepared.planned, [slot], prepared.request)
                self._arm(slot)
                if self.options.verify:
                    side = self.side_stream(slot.context)
                    with hooks.alone():
                        traced.verdict = replay(
                            driver, view, slot, target, side, self._timer(driver), self.options.passes
                        )
                self._copy_constants(slot, captured)
            except BaseException:
                self._give_back(slot, launched=False)
                raise
        kernel.traced.append(traced)
        assert slot.patched is not None
        view.redirect(Replacement(slot.patched.kernel, slot.patched.function))
        return traced

    def _timer(self, driver: Driver) -> LaunchTimer:
        if self._replay_timer is None:
            self._replay_timer = LaunchTimer(driver, SPIN_NS)
        return self._replay_timer

    def _watch_over(self) -> None:
        """Start the thread that looks after launches, once, if a time limit was given."""
        if self.options.timeout is not None and self._watchdog is None:
            self._watchdog = threading.Thread(target=self._look, name="gwatch timeout", daemon=True)
            self._watchdog.start()

    def _look(self) -> None:
        limit = self.options.timeout
        assert limit is not None
        since: dict[Span, float] = {}
        while not self._stopped.wait(min(limit / 4, LOOK_SECONDS)):
            with hooks.quiet():
                running = self._tools()[1].running()
            now = time.monotonic()
            # A launch counts from when it was first seen running: before that it may have waited in its stream.
            since = {span: since.get(span, now) for span in running}
            for span in running:
                if now - since[span] >= limit:
                    kernel = self.kernels[span.symbol]
                    traced = [item for item in kernel.traced if item.span is span]
                    with hooks.quiet():
                        self.on_hang(self, kernel, traced[0] if traced else None)
                    return

    def _arm(self, slot: Slot) -> None:
        stream = self.side_stream(slot.context)
        assert slot.ring is not None and slot.patched is not None
        slot.ring.clear(stream)
        slot.patched.arm(slot.ring, stream)

    def _copy_constants(self, slot: Slot, captured: bool) -> None:
        if slot.constants is None:
            return
        launch = slot.seen.launch
        if captured:
            raise TraceError(
                "constant-in-capture",
                f"{launch.symbol} reads __constant__ variables, which are not copied while a graph is captured",
                "trace the launch outside the graph",
            )
        target, source, size = slot.constants
        self.driver.copy_async(target, source, size, launch.stream)

    def side_stream(self, context: int) -> int:
        """gwatch's own stream in a context (which must be current); it waits for no other stream."""
        stream = self._streams.get(context)
        if stream is None:
            stream = self._streams[context] = self.driver.create_stream()
        return stream

    # called at the end

    def finish_times(self) -> None:
        """Wait for the program's launches and complete the launch table."""
        if self._found is not None:
            self._found[1].finish()

    def reported(self) -> Sequence[tuple[Kernel, list[Traced]]]:
        """Kernels with the launches to report: all of them when launches were numbered, else the steady one.

        The kernel that took longest comes first.
        """
        found = []
        for symbol, kernel in self.kernels.items():
            best = self.selector.best(symbol)
            if not kernel.traced or best is None:
                continue
            chosen = kernel.traced
            if not self.selector.explicit:
                chosen = [item for item in chosen if not item.failed] or chosen
                chosen = [item for item in chosen if (item.number,) == best[1]] or chosen[-1:]
            found.append((kernel, list(chosen)))
        return sorted(found, key=lambda entry: -entry[0].row.estimated_ns)

    def release(self) -> None:
        """Disarm and free everything; contexts that are gone took it with them."""
        for kernel in self.kernels.values():
            for traced in kernel.traced:
                self._give_back(traced.slot, launched=True)
        for context, stream in self._streams.items():
            with contextlib.suppress(GWatchError), self.driver.inside(context):
                self.driver.destroy_stream(stream)
        self._streams.clear()

    def _give_back(self, slot: Slot, launched: bool) -> None:
        """Free a slot's ring, once its code, if it was ``launched``, is disarmed and has ended."""
        with contextlib.suppress(GWatchError), self.driver.inside(slot.context):
            if slot.patched is not None:
                # Not launched, it may have been meant for a graph that is being captured now.
                slot.patched.disarm(None if launched else self.side_stream(slot.context))
            if launched:
                self.driver.synchronize()
            if slot.ring is not None:
                slot.ring.free()
