// Scopes 1 (with payloads), 2 (unrolled) and 3 (predicated) for the tests of markers; compiled by build.py.
#include <gwatch/cuda/trace.hpp>

__constant__ float weights[4];

extern "C" __global__ void marked(float *out, const float *in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    GWATCH_CUDA_KERNEL_SCOPE_START_VALUE(1, i);
    float value = in[i];
    GWATCH_CUDA_KERNEL_SCOPE_END_VALUE(1, __float_as_int(value));
#pragma unroll 4
    for (int step = 0; step < n; step++) {
        GWATCH_CUDA_KERNEL_SCOPE_START(2);
        value = value * value + weights[step % 4];
        GWATCH_CUDA_KERNEL_SCOPE_END(2);
    }
    if (value > 4.0f) {
        GWATCH_CUDA_KERNEL_SCOPE(3);
        value *= 0.5f;
    }
    out[i] = value;
}
