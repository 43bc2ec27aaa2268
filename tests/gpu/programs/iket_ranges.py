"""A CuTeDSL kernel with an IKET range around each turn of a loop, every turn longer than the one before.

With CUTE_DSL_COMPILER_OPT=iket the ranges are in the code: run-iket turns them into stores, and without it they stay
timer reads at the same places.
"""

import cutlass
import torch
from cutlass import cute
from cutlass.cute.experimental import iket
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def busy_kernel(source: cute.Tensor, target: cute.Tensor, steps: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 128 + thread
    value = source[at]
    for turn in cutlass.range(8, unroll=1):
        iket.range_push("work")
        for _ in cutlass.range(steps * (turn + 1), unroll=1):
            value = value * cutlass.Float32(1.0001) + cutlass.Float32(0.5)
        target[at] = value
        iket.range_pop()


@cute.jit
def busy(source: cute.Tensor, target: cute.Tensor, steps: cutlass.Int32):
    busy_kernel(source, target, steps).launch(grid=(8, 1, 1), block=(128, 1, 1))


x = torch.ones(1024, device="cuda")
y = torch.zeros_like(x)
source, target = from_dlpack(x), from_dlpack(y)
run = cute.compile(busy, source, target, cutlass.Int32(200))
for _ in range(3):
    run(source, target, cutlass.Int32(200))
    torch.cuda.synchronize()
