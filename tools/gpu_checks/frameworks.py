"""Kernels of PyTorch, Triton and CuPy traced in place: bit-identical, complete; also captured into CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
import torch
import triton
import triton.language as tl

from gpu_checks.support import Facts, check, same, trace
from gwatch.cuda.xtrace import SassTraceSite, capture_kernel


def _threads(launch: Any) -> int:
    return int(np.prod(launch["grid_dim"]) * np.prod(launch["block_dim"]))


def _in_place(fn: Callable[[], Any], kernel: str, **options: Any) -> Facts:
    """Trace entry and every EXIT of a kernel that a framework launches."""
    definition = capture_kernel(fn, kernel)
    exits = [
        i
        for i, instruction in enumerate(definition.list_instructions)
        if "EXIT" in instruction.str(flatten=True).split()[:2]
    ]
    sites = [SassTraceSite(0), *(SassTraceSite(i) for i in exits)]
    before = fn()
    result = trace(fn, re.escape(definition.name), sites, clock_type="anchor", passes=2, **options)
    after = fn()
    for left, right in zip(_bytes(before), _bytes(after), strict=True):
        same("output", left, right)
    assert result["outputs"] == "identical", result["outputs"]
    for launch in result["launches"]:
        records = launch["records"]
        entered = int((records["site"] == 0).sum())
        left_by_exit = int((records["site"] > 0).sum())
        assert entered == _threads(launch), f"{entered} entries of {_threads(launch)} threads"
        assert left_by_exit == entered, f"{left_by_exit} exits for {entered} entries"
    return {
        "kernel": definition.name[:40],
        "exits": len(exits),
        "launches": len(result["launches"]),
        "records": len(result["records"]),
    }


def _bytes(value: Any) -> list[np.ndarray]:
    if isinstance(value, torch.Tensor):
        return [value.detach().contiguous().view(torch.uint8).cpu().numpy()]
    if isinstance(value, cupy.ndarray):
        return [value.get()]
    return [part for item in value for part in _bytes(item)]


@check("torch")
def elementwise() -> Facts:
    x = torch.randn(1 << 20, device="cuda", generator=torch.Generator("cuda").manual_seed(1))

    def run() -> torch.Tensor:
        y = torch.sin(x) * 2
        torch.cuda.synchronize()
        return y

    return _in_place(run, r"sin_kernel_cuda")


@check("torch")
def softmax() -> Facts:
    x = torch.randn(512, 1000, device="cuda", generator=torch.Generator("cuda").manual_seed(2))

    def run() -> torch.Tensor:
        y = torch.softmax(x, dim=-1)
        torch.cuda.synchronize()
        return y

    return _in_place(run, r"softmax|Softmax|SoftMax")


@check("torch")
def layer_norm() -> Facts:
    x = torch.randn(512, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(3))

    def run() -> torch.Tensor:
        y = torch.nn.functional.layer_norm(x, (1024,))
        torch.cuda.synchronize()
        return y

    return _in_place(run, r"layer_norm")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, size, BLOCK: tl.constexpr, DEPTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, DEPTH)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, size, DEPTH):
        a = tl.load(a_ptr + row[:, None] * size + (k + inner)[None, :])
        b = tl.load(b_ptr + (k + inner)[:, None] * size + column[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + row[:, None] * size + column[None, :], total)


def triton_sum(n: int) -> Callable[[], torch.Tensor]:
    """A Triton sum of two vectors, as a function to trace."""
    x, y = (torch.randn(n, device="cuda") for _ in range(2))
    out = torch.empty_like(x)

    def run() -> torch.Tensor:
        add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
        torch.cuda.synchronize()
        return out

    return run


@check("triton")
def triton_add() -> Facts:
    return _in_place(triton_sum(100_003), "add_kernel")


def triton_matmul(size: int) -> Callable[[], torch.Tensor]:
    """A Triton matrix product that uses the tensor cores, as a function to trace."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty(size, size, device="cuda", dtype=torch.float32)

    def run() -> torch.Tensor:
        matmul_kernel[(size // 128, size // 128)](
            a, b, c, size, BLOCK=128, DEPTH=64, num_warps=8, num_stages=3
        )
        torch.cuda.synchronize()
        return c

    return run


@check("triton")
def triton_tensor_core_matmul() -> Facts:
    return _in_place(triton_matmul(1024), "matmul_kernel")


@check("cupy")
def raw_kernel() -> Facts:
    kernel = cupy.RawKernel(
        r"""
extern "C" __global__ void axpy(const float *x, float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + 1.0f;
}""",
        "axpy",
    )
    x, y = cupy.arange(10_000, dtype=cupy.float32), cupy.zeros(10_000, cupy.float32)

    def run() -> cupy.ndarray:
        kernel((79,), (128,), (x, y, np.float32(3), np.int32(10_000)))
        cupy.cuda.Device().synchronize()
        return y

    return _in_place(run, "axpy")


@check("graphs")
def captured_and_replayed_afterwards() -> Facts:
    n = 4096
    x, y = (torch.randn(n, device="cuda") for _ in range(2))
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    graphs: list[torch.cuda.CUDAGraph] = []
    add_kernel[(4,)](x, y, out, n, BLOCK=1024)

    def run() -> torch.Tensor:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            add_kernel[(4,)](x, y, out, n, BLOCK=1024)
        graph.replay()
        torch.cuda.synchronize()
        graphs.append(graph)
        return out

    result = trace(run, "add_kernel", [SassTraceSite(0)])
    entries = len(result["records"])
    assert entries == _threads(result), f"{entries} records of {_threads(result)} threads"
    assert result["slowdown"] is None
    expected = (x + y).cpu().numpy()
    for graph in graphs:
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        same("replay after the trace", out.cpu().numpy(), expected)
    return {"graphs": len(graphs), "records": entries}
