"""A CuTeDSL kernel that scales a vector."""

import sys

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def scale_kernel(source: cute.Tensor, target: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    size, _, _ = cute.arch.block_dim()
    at = block * size + thread
    target[at] = source[at] * factor


@cute.jit
def scale(source: cute.Tensor, target: cute.Tensor, factor: cutlass.Float32):
    scale_kernel(source, target, factor).launch(grid=(32, 1, 1), block=(128, 1, 1))


x = torch.arange(4096, device="cuda", dtype=torch.float32)
y = torch.zeros_like(x)
source, target = from_dlpack(x), from_dlpack(y)
run = cute.compile(scale, source, target, cutlass.Float32(0.5))
for _ in range(4):
    run(source, target, cutlass.Float32(0.5))
torch.cuda.synchronize()
sys.stdout.write(f"digest {bool((y == x * 0.5).all())} {float(y.double().sum())}\n")
