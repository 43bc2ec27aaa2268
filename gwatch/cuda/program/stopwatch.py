"""Event pairs around launches, for the launch table and for ``--timeout``; nothing here waits while the program runs.

The time of a short kernel includes what the host needs to enqueue it (6 µs for a 2 µs kernel on an idle
H200): these are upper bounds that rank kernels, not measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gwatch.cuda.driver import Driver
from gwatch.errors import GWatchError

_MOST_PAIRS = 512


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """One launch of kernel ``symbol`` between two events; the events are used again by later launches."""

    context: int
    events: tuple[int, int]
    symbol: str


class Stopwatch:
    """``taken`` of each span gets the nanoseconds once both events were reached. Threads may launch side by side: a
    pair of events has one owner at a time, and no driver call is made with the lock held, since one may be waiting for
    another thread that is in here."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: dict[int, list[tuple[int, int]]] = {}
        self._made: dict[int, int] = {}
        self._launching: dict[Span, None] = {}
        self._open: dict[int, list[tuple[Span, Callable[[float], None]]]] = {}
        self._lock = threading.Lock()

    def start(self, context: int, stream: int, symbol: str, always: bool = False) -> Span | None:
        """Enqueue a first event; None when all pairs are waiting, unless this launch must ``always`` have one."""
        if not self._free.get(context):
            self.collect(context)
        with self._lock:
            free = self._free.setdefault(context, [])
            events = free.pop() if free else None
            made = self._made.get(context, 0)
            if events is None and made >= _MOST_PAIRS and not always:
                return None
            self._made[context] = made + (events is None)
        if events is None:
            events = (self._driver.create_event(), self._driver.create_event())
        self._driver.record_event(events[0], stream)
        span = Span(context, events, symbol)
        self._launching[span] = None
        return span

    def stop(self, span: Span, stream: int, taken: Callable[[float], None]) -> None:
        """Enqueue the second event, behind the launch."""
        try:
            self._driver.record_event(span.events[1], stream)
        finally:
            del self._launching[span]
        with self._lock:
            self._open.setdefault(span.context, []).append((span, taken))

    def running(self) -> list[Span]:
        """The launches that have begun and not ended, as far as the events say. A launch call that has not come back
        is one of them, too: it may wait for its kernel (CUDA_LAUNCH_BLOCKING)."""
        launching = list(self._launching)
        with self._lock:
            waiting = [span for spans in self._open.values() for span, _ in spans]
        found = []
        for span in (*launching, *waiting):
            begin, end = span.events
            with self._driver.inside(span.context):
                if self._driver.event_reached(begin) and (
                    span in self._launching or not self._driver.event_reached(end)
                ):
                    found.append(span)
        return found

    def drop(self, span: Span) -> None:
        """The launch between failed."""
        del self._launching[span]
        with self._lock:
            self._free.setdefault(span.context, []).append(span.events)

    def collect(self, context: int) -> None:
        """Take the times of the spans that ended, oldest first."""
        with self._lock:
            waiting = self._open.pop(context, [])
        times: list[float] = []
        try:
            for span, _ in waiting:
                elapsed = self._driver.elapsed_ms(*span.events)
                if elapsed is None:
                    break
                times.append(elapsed * 1e6)
        finally:
            with self._lock:
                for (span, taken), ns in zip(waiting, times, strict=False):
                    taken(ns)
                    self._free.setdefault(context, []).append(span.events)
                self._open[context] = waiting[len(times) :] + self._open.get(context, [])

    def finish(self) -> None:
        """Wait for everything, take the last times and free the events."""
        for context in list(self._made):
            try:
                with self._driver.inside(context):
                    self._driver.synchronize()
                    self.collect(context)
                    for pair in self._free.pop(context, []):
                        for event in pair:
                            self._driver.destroy_event(event)
            except GWatchError:
                continue  # the context is broken or gone, and its events with it
        self._made.clear()
