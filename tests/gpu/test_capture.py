"""CUPTI on a real driver: every kind of launch is seen and redirected, images are swapped, threads survive."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import Driver
from gwatch.cuda.launchview import Launch, LaunchView, Replacement
from gwatch.errors import ToolError


class Watcher:
    def __init__(self, name: str, to: Replacement | None = None) -> None:
        self.name, self.to = name, to
        self.launches: list[Launch] = []
        self.statuses: list[int] = []

    def wants(self, symbol: str) -> bool:
        return symbol == self.name

    def enter(self, view: LaunchView) -> None:
        self.launches.append(view.record(len(self.launches), [(0, 8), (8, 4)]))
        if self.to is not None:
            view.redirect(self.to)

    def leave(self, view: LaunchView, status: int) -> None:
        self.statuses.append(status)


class Bench:
    """Two kernels of a library and of a module, and a buffer that tells which of them ran."""

    def __init__(self, gpu: Driver, image: bytes) -> None:
        self.gpu, self.library = gpu, gpu.load_library(image)
        self.kernel = gpu.library_kernel(self.library, "first")
        self.function = gpu.kernel_function(self.kernel)
        second = gpu.library_kernel(self.library, "second")
        self.other = Replacement(second, gpu.kernel_function(second))
        self.buffer = gpu.allocate(256)
        self._values = (ctypes.c_uint64(self.buffer), ctypes.c_int(64))
        self._pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, self._values))

    @property
    def parameters(self) -> int:
        return ctypes.addressof(self._pointers)

    def values(self) -> tuple[float, ...]:
        self.gpu.synchronize()
        return struct.unpack("<3f", self.gpu.read(self.buffer, 12))

    def run(self, handle: int, **options: Any) -> tuple[float, ...]:
        self.gpu.zero(self.buffer, 256)
        self.gpu.launch(handle, (1, 1, 1), (64, 1, 1), self.parameters, **options)
        return self.values()


FIRST, SECOND = (1.0, 3.0, 5.0), (-1.0, -1.0, -1.0)


@pytest.fixture
def bench(gpu: Driver, run_cubin: bytes) -> Bench:
    return Bench(gpu, run_cubin)


@pytest.mark.parametrize("options", [{}, {"cooperative": True}, {"cluster": (1, 1, 1)}, {"shared": 1024}])
@pytest.mark.parametrize("kind", ["kernel", "function"])
def test_every_launch_call_is_redirected_and_restored(
    bench: Bench, kind: str, options: dict[str, Any]
) -> None:
    handle = getattr(bench, kind)
    assert bench.run(handle, **options) == FIRST
    watcher = Watcher("first", bench.other)
    with hooks.observe(watcher):
        assert bench.run(handle, **options) == SECOND
    assert bench.run(handle, **options) == FIRST
    (launch,) = watcher.launches
    assert launch.handle == handle and launch.block == (64, 1, 1)
    assert launch.shared_bytes == options.get("shared", 0) and launch.cluster == options.get("cluster")
    assert launch.parameters == struct.pack("<Qi", bench.buffer, 64)
    assert watcher.statuses == [0]


def test_a_failing_launch_reports_its_status(bench: Bench) -> None:
    watcher = Watcher("first")
    with hooks.observe(watcher):
        status = bench.gpu._cuda.cuLaunchKernel(bench.kernel, 1, 1, 1, 4096, 1, 1, 0, 0, bench.parameters, 0)
    assert int(status[0]) != 0 and watcher.statuses == [int(status[0])]


def test_graph_nodes_are_redirected(bench: Bench) -> None:
    cuda = bench.gpu._cuda
    described = cuda.CUDA_KERNEL_NODE_PARAMS()
    described.func = cuda.CUfunction(bench.function)
    described.gridDimX = described.gridDimY = described.gridDimZ = 1
    described.blockDimX, described.blockDimY, described.blockDimZ = 64, 1, 1
    described.kernelParams = bench.parameters

    class Nodes(Watcher):
        def enter(self, view: LaunchView) -> None:
            assert bench.gpu.handle_name(view.handle) == "first"
            super().enter(view)

    graph = bench.gpu.call("cuGraphCreate", 0)
    with hooks.observe(Nodes("", bench.other)):
        node = bench.gpu.call("cuGraphAddKernelNode", graph, None, 0, described)
    ready = bench.gpu.call("cuGraphInstantiate", graph, 0)

    def replay() -> tuple[float, ...]:
        bench.gpu.zero(bench.buffer, 256)
        bench.gpu.call("cuGraphLaunch", ready, cuda.CUstream(0))
        return bench.values()

    assert replay() == SECOND
    bench.gpu.call("cuGraphExecKernelNodeSetParams", ready, node, described)
    assert replay() == FIRST
    with hooks.observe(Nodes("", bench.other)):
        bench.gpu.call("cuGraphExecKernelNodeSetParams", ready, node, described)
    assert replay() == SECOND


def test_a_load_is_seen_and_can_be_swapped(gpu: Driver, bench: Bench, run_cubin: bytes) -> None:
    patched = run_cubin.replace(struct.pack("<f", 2.0), struct.pack("<f", 4.0))
    assert patched != run_cubin
    hooks.acquire()
    try:
        library = gpu.load_library(run_cubin)
        assert hooks.images.by_handle(library) == run_cubin
        hooks.images.swap(run_cubin, patched)
        swapped = gpu.load_library(run_cubin)
        module = int(gpu.call("cuModuleLoadData", run_cubin))
        assert set(hooks.images.stop_swapping()) == {swapped, module}
        assert bench.run(gpu.library_kernel(library, "first"))[1] == 3.0
        assert gpu.library_kernel(swapped, "second")
    finally:
        hooks.release()


def test_the_subscription_names_itself_and_excludes_a_second_one(gpu: Driver) -> None:
    from gwatch.cuda import cupti

    hooks.acquire()
    try:
        other = cupti.Cupti(cupti.load().path)
        with pytest.raises(ToolError, match=r"\[cupti-held\].*gwatch"):
            other.subscribe(lambda *_: None)
    finally:
        hooks.release()


def test_a_process_that_leaves_the_hooks_on_ends_cleanly(gpu: Driver) -> None:
    script = "import gwatch.libpygwatch as g; g.init_cupti_hooks(); print('end')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_threads_that_launch_while_hooks_come_and_go(gpu: Driver, bench: Bench) -> None:
    stop, failures = threading.Event(), []
    context = gpu.current_context()

    def launch() -> None:
        try:
            with gpu.inside(context):
                stream = int(gpu.call("cuStreamCreate", 1))
                while not stop.is_set():
                    for _ in range(20):
                        gpu.launch(bench.kernel, (1, 1, 1), (64, 1, 1), bench.parameters, stream=stream)
                    gpu.synchronize(stream)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen, end = 0, time.monotonic() + 5
    while time.monotonic() < end:
        watcher = Watcher("first")
        with hooks.observe(watcher):
            time.sleep(0.05)
        seen += len(watcher.launches)
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not failures and seen > 1000
