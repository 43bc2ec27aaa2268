"""A numba-cuda kernel."""

import sys

import numpy

numpy.row_stack = getattr(
    numpy, "row_stack", numpy.vstack
)  # older numba asks for it, newer numpy has it no more
from numba import cuda  # noqa: E402


@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]


x = cuda.to_device(numpy.arange(5000, dtype=numpy.float32))
y = cuda.to_device(numpy.ones(5000, dtype=numpy.float32))
for _ in range(4):
    saxpy[20, 256](numpy.float32(2), x, y)
cuda.synchronize()
sys.stdout.write(f"digest {float(y.copy_to_host().astype(numpy.float64).sum())}\n")
