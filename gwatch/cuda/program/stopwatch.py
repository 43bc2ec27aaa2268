"""Event pairs around launches, for the launch table; nothing here waits while the program runs.

The time of a short kernel includes what the host needs to enqueue it (6 µs for a 2 µs kernel on an idle
H200): these are upper bounds that rank kernels, not measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gwatch.cuda.driver import Driver
from gwatch.errors import GWatchError

_MOST_PAIRS = 512
Pair = tuple[int, int]


class Stopwatch:
    """``taken`` of each pair gets the nanoseconds once both events were reached. Threads may launch side by side: a
    pair has one owner at a time, and no driver call is made with the lock held, since one may be waiting for another
    thread that is in here."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: dict[int, list[Pair]] = {}
        self._made: dict[int, int] = {}
        self._open: dict[int, list[tuple[Pair, Callable[[float], None], str]]] = {}
        self._lock = threading.Lock()

    def start(self, context: int, stream: int) -> Pair | None:
        """Enqueue a first event; None when all pairs are waiting."""
        if not self._free.get(context):
            self.collect(context)
        with self._lock:
            free = self._free.setdefault(context, [])
            pair = free.pop() if free else None
            made = self._made.get(context, 0)
            if pair is None and made == _MOST_PAIRS:
                return None
            self._made[context] = made + (pair is None)
        if pair is None:
            pair = (self._driver.create_event(), self._driver.create_event())
        self._driver.record_event(pair[0], stream)
        return pair

    def stop(
        self, context: int, pair: Pair, stream: int, taken: Callable[[float], None], symbol: str
    ) -> None:
        """Enqueue the second event, behind a launch of kernel ``symbol``."""
        self._driver.record_event(pair[1], stream)
        with self._lock:
            self._open.setdefault(context, []).append((pair, taken, symbol))

    def running(self) -> list[tuple[int, Pair, str]]:
        """(context, pair, kernel) of the launches that have begun and not ended, as far as the events say."""
        found = []
        for context, waiting in list(self._open.items()):
            with self._driver.inside(context):
                for pair, _, symbol in list(waiting):
                    if self._driver.event_reached(pair[0]) and not self._driver.event_reached(pair[1]):
                        found.append((context, pair, symbol))
        return found

    def drop(self, context: int, pair: Pair) -> None:
        """The launch between failed."""
        with self._lock:
            self._free.setdefault(context, []).append(pair)

    def collect(self, context: int) -> None:
        """Take the times of the pairs that were reached, oldest first."""
        with self._lock:
            waiting = self._open.pop(context, [])
        times: list[float] = []
        try:
            for pair, _, _ in waiting:
                elapsed = self._driver.elapsed_ms(*pair)
                if elapsed is None:
                    break
                times.append(elapsed * 1e6)
        finally:
            with self._lock:
                for (pair, taken, _), ns in zip(waiting, times, strict=False):
                    taken(ns)
                    self._free.setdefault(context, []).append(pair)
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
