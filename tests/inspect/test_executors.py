"""A Dask cluster as the executor: same report, and nothing lost when a worker dies in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import distributed
import pytest
from inspect_support import FIXTURES

from gwatch.errors import ParseError, ToolError
from gwatch.inspect.executors import open_executor
from gwatch.inspect.run import Request, inspect


def test_one_process_needs_no_executor() -> None:
    with open_executor(1) as (executor, workers):
        assert executor is None
        assert workers == 1


def test_specs_and_addresses_are_checked() -> None:
    with pytest.raises(ParseError, match="executor-spec"), open_executor(1, "dask:"):
        pass
    with pytest.raises(ToolError, match="dask-unreachable"), open_executor(1, "dask:nonsense://x"):
        pass


class _Dying(Executor):
    """Workers that die at every task."""

    def submit(self, *_: object, **__: object) -> Future[object]:  # type: ignore[override]
        future: Future[object] = Future()
        future.set_exception(BrokenProcessPool("a process in the process pool was terminated abruptly"))
        return future


def test_workers_that_keep_dying_are_an_error_by_name() -> None:
    with pytest.raises(ToolError, match=r"\[worker-died\]"):
        inspect([FIXTURES / "vector_copy.cubin"], executor=_Dying(), workers=2)


def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    image = (FIXTURES / "vector_copy.cubin").read_bytes()
    for number in range(40):
        # Distinct bytes: a trailing note behind the section headers changes the hash, not the code.
        (folder / f"{number:02}.cubin").write_bytes(image + number.to_bytes(4, "little"))
    expected = inspect([folder], Request(vectorization=True)).to_json()
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        killed = threading.Event()

        def kill_one() -> None:
            worker = next(iter(cluster.workers.values()))
            os.kill(worker.process.pid, signal.SIGKILL)
            killed.set()

        def progress(count: int, path: str) -> None:
            if count == 6 and not killed.is_set():
                kill_one()
                time.sleep(0.2)

        with open_executor(1, f"dask:{cluster.scheduler_address}") as (executor, workers):
            assert workers == 2
            report = inspect(
                [folder], Request(vectorization=True), executor=executor, workers=workers, progress=progress
            )
    assert killed.is_set()
    assert report.to_json() == expected
    assert len(expected["images"]) == 40
