"""Many tasks in worker processes that can harm neither each other nor the whole.

A worker has a limit of memory and is replaced once it has grown past half of it; a task has a limit of time, after
which its worker is killed and replaced. Tasks go to whichever worker is free, in their order.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_CONTEXT = get_context("fork")
_TICK = 0.5


@dataclass(frozen=True)
class Done(Generic[T, R]):
    """What became of a task: its result, or why there is none. ``unfinished``: it was ended since the time was up."""

    task: T
    result: R | None
    lost: str = ""
    unfinished: bool = False


def peak_mib() -> int:
    """The most memory that this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def children_seconds() -> float:
    """Processor time of all processes that this one has started and that have ended, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(used.ru_utime + used.ru_stime, 1)


def _serve(pipe: Connection, work: Callable[[T], R], memory_mib: int) -> None:
    """A worker: tasks in, results out, until it is told to stop or has grown too large."""
    parent = os.getppid()
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit = memory_mib << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        while not pipe.poll(2 * _TICK):
            # Other workers hold this pipe open too, so that its end doesn't tell.
            if os.getppid() != parent:
                return
        message = pipe.recv()
        if message is None:
            return
        try:
            answer: tuple[R | None, str] = work(message[0]), ""
        except MemoryError:
            answer = None, f"more than {memory_mib} MiB of memory"
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            answer = None, f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        grown = peak_mib() > memory_mib // 2
        pipe.send((*answer, grown))
        if grown:
            return


class _Worker(Generic[T, R]):
    """One process, the pipe to it and the task that it is at."""

    def __init__(self, work: Callable[[T], R], memory_mib: int) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, work, memory_mib), daemon=True)
        self.process.start()
        theirs.close()
        self.task: T | None = None
        self.since = 0.0

    def give(self, task: T) -> None:
        """Start a task."""
        self.task, self.since = task, time.monotonic()
        self.pipe.send((task,))

    def end(self, kill: bool) -> None:
        """Tell it to stop, or end it with everything it has started."""
        if kill and self.process.pid is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
        else:
            with contextlib.suppress(OSError):
                self.pipe.send(None)
        self.process.join()
        self.pipe.close()


def spread(
    work: Callable[[T], R],
    tasks: Iterable[T],
    jobs: int,
    *,
    each: float,
    memory_mib: int = 4096,
    seconds: float = 0,
    grace: float = 15,
    tick: Callable[[], None] | None = None,
) -> Iterator[Done[T, R]]:
    """Do ``work`` on all ``tasks`` in ``jobs`` processes; results come as they are ready.

    ``each``: seconds a task may take. ``seconds``: no task is begun later than this (0: no limit), and what is not
    ready ``grace`` seconds after that is ended as unfinished. ``tick`` is called about twice a second.
    """
    begin = time.monotonic()
    queue = iter(tasks)
    workers: list[_Worker[T, R]] = []
    more = True
    try:
        while True:
            now = time.monotonic()
            late = bool(seconds) and now - begin > seconds
            idle = [item for item in workers if item.task is None]
            while more and not late and (idle or len(workers) < jobs):
                try:
                    task = next(queue)
                except StopIteration:
                    more = False
                    break
                worker = idle.pop() if idle else _Worker[T, R](work, memory_mib)
                if worker not in workers:
                    workers.append(worker)
                worker.give(task)
            busy = {item.pipe: item for item in workers if item.task is not None}
            if not busy:
                return
            for pipe in wait(list(busy), _TICK):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.task is not None
                task = worker.task
                try:
                    result, lost, grown = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.end(kill=True)
                    workers.remove(worker)
                    yield Done(task, None, f"the process ended with status {worker.process.exitcode}")
                    continue
                worker.task = None
                if grown:
                    worker.end(kill=False)
                    workers.remove(worker)
                yield Done(task, result, lost)
            now = time.monotonic()
            over = bool(seconds) and now - begin > seconds + grace
            for worker in [item for item in workers if item.task is not None]:
                if over or now - worker.since > each:
                    assert worker.task is not None
                    task = worker.task
                    worker.end(kill=True)
                    workers.remove(worker)
                    if now - worker.since > each:
                        yield Done(task, None, f"over {each:.0f} s")
                    else:
                        yield Done(task, None, unfinished=True)
            if tick is not None:
                tick()
    finally:
        for worker in workers:
            worker.end(kill=worker.task is not None)
