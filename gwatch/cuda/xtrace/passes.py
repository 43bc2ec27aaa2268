"""What do_trace does inside driver calls: note the matching launches, time them, send them to patched code.

Everything a pass needs (patched code, rings, events) exists before it starts; the methods here only look up,
enqueue and swap a handle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gwatch.cuda.arming import PatchedKernel, Ring
from gwatch.cuda.driver import COPIED_ATTRIBUTES, Driver
from gwatch.cuda.images import ImageStore
from gwatch.cuda.latefind import HandleFacts
from gwatch.cuda.launchview import Dim3, Launch, LaunchView, Replacement
from gwatch.cuda.xtrace.timing import LaunchTimer
from gwatch.errors import TraceError

LaunchFilter = Callable[[Launch], bool]
Signature = tuple[int, Dim3, Dim3, "Dim3 | None", int]


def signature(launch: Launch) -> Signature:
    """What two launches must share so that one ring fits both."""
    return launch.context, launch.grid, launch.block, launch.cluster, launch.shared_bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A matching launch of the capture pass."""

    launch: Launch
    facts: HandleFacts
    device: int
    captured: bool  # recorded into a graph instead of run


class Scout:
    """Observer of the capture pass: changes nothing."""

    def __init__(self, driver: Driver, pattern: re.Pattern[str], keep: LaunchFilter | None) -> None:
        self._driver, self._pattern, self._keep = driver, pattern, keep
        self.names: dict[str, None] = {}
        self.seen: list[Seen] = []

    def wants(self, symbol: str) -> bool:
        """Whether the pattern is found in the mangled name."""
        self.names[symbol] = None
        return self._pattern.search(symbol) is not None

    def enter(self, view: LaunchView) -> None:
        """Record the launch."""
        if not view.symbol:  # graph-node calls carry no name
            view.symbol = self._driver.handle_name(view.handle) or ""
            if not self.wants(view.symbol):
                return
        launch = view.record(len(self.seen))
        if self._keep is not None and not self._keep(launch):
            return
        device = self._driver.current_device()
        facts = HandleFacts.read(self._driver, launch.handle, device, COPIED_ATTRIBUTES)
        layout = self._driver.parameters(launch.handle, is_kernel=facts.is_kernel)
        launch = view.record(len(self.seen), layout)
        captured = launch.graph_node or self._driver.is_capturing(launch.stream)
        self.seen.append(Seen(launch, facts, device, captured))

    def leave(self, view: LaunchView, status: int) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class Slot:
    """One launch of the pass that is traced, with code and a ring of its own."""

    seen: Seen
    image: bytes
    stateful: bool  # the kernel reaches module variables: only the very same module will do
    loads: int = 0  # how often the module's handle had been handed out when its addresses were taken
    patched: PatchedKernel | None = None
    ring: Ring | None = None
    constants: tuple[int, int, int] | None = None  # (patched bank, original bank, bytes)
    plain_ns: list[float] = field(default_factory=list)
    traced_ns: list[float] = field(default_factory=list)

    @property
    def context(self) -> int:
        """Context that the launch runs in."""
        return self.seen.launch.context


class PassObserver:
    """Observer of a plain pass (``redirect`` false) or a traced one."""

    def __init__(
        self,
        driver: Driver,
        store: ImageStore,
        slots: Sequence[Slot],
        timer: LaunchTimer | None,
        parameters: Sequence[tuple[int, int]],
        keep: LaunchFilter | None,
        *,
        redirect: bool,
    ) -> None:
        self._driver, self._store, self._timer, self._keep = driver, store, timer, keep
        self._parameters, self._redirect = parameters, redirect
        self._kernel = slots[0].seen.launch.symbol
        self._waiting: dict[Signature, list[int]] = {}
        for index, slot in enumerate(slots):
            self._waiting.setdefault(signature(slot.seen.launch), []).append(index)
        self._slots = slots
        self._pairs: dict[int, tuple[LaunchView, tuple[int, int], int]] = {}
        self.launches: dict[int, Launch] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.captured: set[int] = set()
        self.unclaimed: list[Launch] = []

    def wants(self, symbol: str) -> bool:
        """Whether it is the traced kernel's name."""
        return symbol == self._kernel

    def enter(self, view: LaunchView) -> None:
        """Time the launch and, in a traced pass, redirect it."""
        if not view.symbol:
            view.symbol = self._driver.handle_name(view.handle) or ""
            if not self.wants(view.symbol):
                return
        launch = view.record(len(self.launches), self._parameters)
        if self._keep is not None and not self._keep(launch):
            return
        waiting = self._waiting.get(signature(launch))
        if not waiting:
            self.unclaimed.append(launch)
            return
        index = waiting.pop(0)
        slot = self._slots[index]
        self._check_same_code(slot, launch)
        self.launches[index] = launch
        if launch.graph_node or self._driver.is_capturing(launch.stream):
            self.captured.add(index)
        if self._redirect:
            self._send(slot, view, launch, index)
        if self._timer is not None and index not in self.captured:
            pair = self._timer.before(launch.context, launch.stream)
            if pair is not None:
                self._pairs[id(view)] = (view, pair, index)

    def leave(self, view: LaunchView, status: int) -> None:
        """Close the time span."""
        found = self._pairs.pop(id(view), None)
        if found is not None and self._timer is not None:
            _, pair, index = found
            self._timer.after(pair, self.launches[index].stream)
            self.times[index] = pair

    def _check_same_code(self, slot: Slot, launch: Launch) -> None:
        owner = slot.seen.facts.owner
        same = launch.handle == slot.seen.launch.handle
        if same and self._store.loads(owner) == slot.loads:
            return
        facts = HandleFacts.read(self._driver, launch.handle, slot.seen.device, ())
        if facts.owner == owner and self._store.loads(owner) == slot.loads:
            return
        if slot.stateful:
            raise TraceError(
                "module-changed",
                f"fn loads the module of {launch.symbol} anew in every pass, and the kernel uses its variables",
                "load the module once, outside fn",
            )
        if not self._store.holds(facts.owner, slot.image):
            raise TraceError(
                "launch-changed",
                f"another kernel named {launch.symbol} with the same launch dimensions ran in this pass",
                "make fn launch the same kernels every time, or tell them apart with launch_filter",
            )

    def _send(self, slot: Slot, view: LaunchView, launch: Launch, index: int) -> None:
        patched = slot.patched
        assert patched is not None
        if slot.constants is not None:
            if index in self.captured:
                raise TraceError(
                    "constant-in-capture",
                    f"{launch.symbol} reads __constant__ variables, which are not copied while a "
                    "graph is captured",
                    "trace the launch outside the graph",
                )
            target, source, size = slot.constants
            self._driver.copy_async(target, source, size, launch.stream)
        view.redirect(Replacement(patched.kernel, patched.function))
