"""Event pairs around launches, for the launch table; nothing here waits while the program runs.

The time of a short kernel includes what the host needs to enqueue it (6 µs for a 2 µs kernel on an idle
H200): these are upper bounds that rank kernels, not measurements.
"""

from __future__ import annotations

from collections.abc import Callable

from gwatch.cuda.driver import Driver
from gwatch.errors import GWatchError

_MOST_PAIRS = 512
Pair = tuple[int, int]


class Stopwatch:
    """``taken`` of each pair gets the nanoseconds once both events were reached."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: dict[int, list[Pair]] = {}
        self._made: dict[int, int] = {}
        self._open: dict[int, list[tuple[Pair, Callable[[float], None], str]]] = {}

    def start(self, context: int, stream: int) -> Pair | None:
        """Enqueue a first event; None when all pairs are waiting."""
        free = self._free.setdefault(context, [])
        if not free:
            self.collect(context)
        if free:
            pair = free.pop()
        elif self._made.get(context, 0) < _MOST_PAIRS:
            self._made[context] = self._made.get(context, 0) + 1
            pair = (self._driver.create_event(), self._driver.create_event())
        else:
            return None
        self._driver.record_event(pair[0], stream)
        return pair

    def stop(
        self, context: int, pair: Pair, stream: int, taken: Callable[[float], None], symbol: str
    ) -> None:
        """Enqueue the second event, behind a launch of kernel ``symbol``."""
        self._driver.record_event(pair[1], stream)
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
        self._free.setdefault(context, []).append(pair)

    def collect(self, context: int) -> None:
        """Take the times of the pairs that were reached, oldest first."""
        waiting = self._open.get(context, [])
        done = 0
        for pair, taken, _ in waiting:
            elapsed = self._driver.elapsed_ms(*pair)
            if elapsed is None:
                break
            taken(elapsed * 1e6)
            self._free.setdefault(context, []).append(pair)
            done += 1
        del waiting[:done]

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
