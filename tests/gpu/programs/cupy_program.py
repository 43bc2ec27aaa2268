"""A CuPy raw kernel and an elementwise one."""

import sys

import cupy

scale = cupy.RawKernel(
    'extern "C" __global__ void scale(float* x, float f, int n)'
    "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= f; }",
    "scale",
)
x = cupy.arange(4096, dtype=cupy.float32)
for _ in range(4):
    scale((16,), (256,), (x, cupy.float32(0.5), cupy.int32(4096)))
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                float((x + 1).sum()),
            ),
        )
    )
    + "\n"
)
