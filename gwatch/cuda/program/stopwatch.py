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
        self._open: dict[int, list[tuple[Pair, Callable[[float], None]]]] = {}

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

    def stop(self, context: int, pair: Pair, stream: int, taken: Callable[[float], None]) -> None:
        """Enqueue the second event."""
        self._driver.record_event(pair[1], stream)
        self._open.setdefault(context, []).append((pair, taken))

    def drop(self, context: int, pair: Pair) -> None:
        """The launch between failed."""
        self._free.setdefault(context, []).append(pair)

    def collect(self, context: int) -> None:
        """Take the times of the pairs that were reached, oldest first."""
        waiting = self._open.get(context, [])
        done = 0
        for pair, taken in waiting:
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
