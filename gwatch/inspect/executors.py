"""Where the work on cubins runs: here, in worker processes, or on a Dask cluster. The only importer of Dask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gwatch.errors import ParseError, ToolError

if TYPE_CHECKING:
    from concurrent.futures import Executor


@contextlib.contextmanager
def open_executor(jobs: int, spec: str = "") -> Iterator[tuple[Executor | None, int]]:
    """``(executor, workers)`` for ``jobs`` processes, or for ``spec`` ("dask:ADDRESS"); None to work here.

    Raises ParseError [executor-spec], ToolError [dask-missing] or [dask-unreachable].
    """
    if spec:
        with _dask(spec) as found:
            yield found
    elif jobs > 1:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        # Fresh processes: forking one that may already run threads is not safe.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            yield pool, jobs
    else:
        yield None, 1


@contextlib.contextmanager
def _dask(spec: str) -> Iterator[tuple[Executor, int]]:
    kind, _, address = spec.partition(":")
    if kind != "dask" or not address:
        raise ParseError("executor-spec", f"{spec!r} is no executor", "write it like dask:tcp://host:8786")
    try:
        from distributed import Client
    except ImportError:
        raise ToolError(
            "dask-missing", "dask.distributed is not installed", "pip install 'gwatch-sass[dask]'"
        ) from None
    try:
        client: Any = Client(address, timeout=30, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ToolError("dask-unreachable", f"no Dask scheduler at {address}: {error}") from None
    with client:
        # A worker that dies takes its tasks with it; the scheduler gives them to the others.
        workers = max(1, sum(client.nthreads().values()))
        yield client.get_executor(), workers
