"""do_trace on launches of cuda-python, PyTorch, CuPy and Triton; state, graphs, threads and errors."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import Driver
from gwatch.cuda.xtrace import SassTraceSite, capture_kernel, do_trace
from gwatch.errors import KernelError

ENTRY = [SassTraceSite(0)]


def trace(fn: Any, pattern: str, sites: Any = None, **options: Any) -> Any:
    options.setdefault("passes", 2)
    return do_trace(
        fn=fn,
        kernel_name_pattern=pattern,
        instrumentation_tier="sass",
        sass_trace_sites=sites or ENTRY,
        **options,
    )


class Module:
    """A module loaded through cuModuleLoadData, launched with ints and addresses."""

    def __init__(self, gpu: Driver, image: bytes) -> None:
        self.gpu, self.module = gpu, int(gpu.call("cuModuleLoadData", image))

    def launch(self, name: str, grid: int, block: int, *values: Any, stream: int = 0) -> None:
        cuda = self.gpu._cuda
        function = self.gpu.call("cuModuleGetFunction", cuda.CUmodule(self.module), name.encode())
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.gpu.launch(int(function), (grid, 1, 1), (block, 1, 1), ctypes.addressof(pointers), stream=stream)
        self.gpu.synchronize(stream)


@pytest.fixture
def module(gpu: Driver, run_cubin: bytes) -> Any:
    hooks.acquire()
    try:
        yield Module(gpu, run_cubin)
    finally:
        hooks.release()


def test_every_thread_leaves_its_records(gpu: Driver, module: Module) -> None:
    x = gpu.allocate(4 * 96 * 5)
    result = trace(lambda: module.launch("second", 5, 96, ctypes.c_uint64(x), ctypes.c_int(450)), "second")
    records = result["records"]
    assert len(records) == 5 * 96 and result["dropped"] == 0 and result["outputs"] == "identical"
    assert len(np.unique(records["block"][:, 0] * 96 + records["thread"])) == 5 * 96
    assert result["slowdown"]["median"] > 0 and result.launch["code"] == "seen at load"


def test_a_constant_set_by_the_host_reaches_the_patched_code(gpu: Driver, module: Module) -> None:
    x = gpu.allocate(4 * 32)
    place = gpu.module_global(module.module, "gain")
    assert place is not None
    seen = []

    def fn() -> None:
        gpu.write(place[0], struct.pack("<f", 10.0 + len(seen)))
        module.launch("first", 1, 32, ctypes.c_uint64(x), ctypes.c_int(32))
        seen.append(struct.unpack("<2f", gpu.read(x, 8))[1])

    trace(fn, "first")
    assert seen == [11.0 + number for number in range(5)]


def test_device_variables_are_shared_with_the_patched_code(gpu: Driver, module: Module) -> None:
    out = gpu.allocate(4 * 32)
    seen = []

    def fn() -> None:
        module.launch("count", 1, 32, ctypes.c_uint64(out))
        seen.append(sorted(struct.unpack("<32i", gpu.read(out, 128))))

    trace(fn, "count")
    assert seen == [[5 + 32 * turn + lane for lane in range(32)] for turn in range(5)]


def test_launches_on_two_streams_are_kept_apart(gpu: Driver, module: Module) -> None:
    x, y = gpu.allocate(4 * 64), gpu.allocate(4 * 256)
    streams = [int(gpu.call("cuStreamCreate", 1)) for _ in range(2)]

    def fn() -> None:
        module.launch("second", 2, 32, ctypes.c_uint64(x), ctypes.c_int(64), stream=streams[0])
        module.launch("second", 4, 64, ctypes.c_uint64(y), ctypes.c_int(256), stream=streams[1])

    result = trace(fn, "second")
    assert [len(one["records"]) for one in result["launches"]] == [64, 256]


def test_an_exception_in_fn_leaves_the_process_clean(gpu: Driver, module: Module) -> None:
    x, turns = gpu.allocate(4 * 32), [0]

    def fn() -> None:
        module.launch("second", 1, 32, ctypes.c_uint64(x), ctypes.c_int(32))
        turns[0] += 1
        if turns[0] == 3:
            raise ZeroDivisionError("in the traced pass")

    with pytest.raises(ZeroDivisionError):
        trace(fn, "second")
    turns[0] = 100
    fn()
    assert len(trace(fn, "second")["records"]) == 32


def test_wrong_names_are_answered_with_near_ones(gpu: Driver, module: Module) -> None:
    x = gpu.allocate(4 * 32)
    with pytest.raises(KernelError, match=r"\[kernel-not-launched\].*second"):
        trace(lambda: module.launch("second", 1, 32, ctypes.c_uint64(x), ctypes.c_int(32)), "secnod")


def test_a_torch_kernel_used_before_is_found_on_disk(gpu: Driver) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(1000, device="cuda")
    torch.softmax(x.view(10, 100), -1)
    torch.cuda.synchronize()
    result = trace(lambda: torch.softmax(x.view(10, 100), -1), "softmax")
    grid, block = result["grid_dim"], result["block_dim"]
    assert len(result["records"]) == np.prod(grid) * np.prod(block)
    assert result["outputs"] == "identical"
    assert result.launch["code"] == "fat binary of a mapped library"


def test_a_triton_kernel_used_before_is_found_by_its_handle(gpu: Driver, tmp_path: Any) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("triton")
    import importlib.util

    source = tmp_path / "triton_add.py"
    source.write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def add_one(x, y, n, B: tl.constexpr):\n"
        "    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)\n"
    )
    spec = importlib.util.spec_from_file_location("triton_add", source)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)

    def fn() -> Any:
        loaded.add_one[(4,)](x, y, 1000, B=256)
        return y

    fn()
    result = trace(fn, "add_one")
    assert len(result["records"]) == 4 * result["block_dim"][0]
    assert result["outputs"] == "identical" and result.launch["code"] == "Triton's compiled kernel"
    assert torch.equal(y, x + 1)


def test_a_graph_captured_in_fn_is_traced_and_still_right_afterwards(gpu: Driver) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(64, device="cuda")
    stream, graphs = torch.cuda.Stream(), []

    def fn() -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            torch.add(x, 1, out=x)
        graph.replay()
        graphs.append(graph)
        return x

    fn()
    result = trace(fn, "CUDAFunctorOnSelf_add")
    assert result["slowdown"] is None and result.launch["graph"]
    assert len(result["records"]) == np.prod(result["grid_dim"]) * np.prod(result["block_dim"])
    before = x[0].item()
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    assert x[0].item() == before + len(graphs)


def test_the_captured_definition_is_the_loaded_code(gpu: Driver, module: Module, run_cubin: bytes) -> None:
    x = gpu.allocate(4 * 32)
    kernel = capture_kernel(
        lambda: module.launch("second", 1, 32, ctypes.c_uint64(x), ctypes.c_int(32)), "second"
    )
    expected = Cubin.from_bytes(run_cubin).get_kerneldef_by_name("second")
    assert kernel.words.tobytes() == expected.words.tobytes()
