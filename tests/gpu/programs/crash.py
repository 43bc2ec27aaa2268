"""A kernel that writes outside of every allocation."""

import cupy

wild = cupy.RawKernel(
    'extern "C" __global__ void wild(long long at) { *(volatile int*)(at + threadIdx.x * 4) = 1; }', "wild"
)
wild((1,), (32,), (cupy.int64(16),))  # the null page is never mapped
cupy.cuda.runtime.deviceSynchronize()
