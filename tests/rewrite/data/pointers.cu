// One kernel alone in its module: function pointers are code offsets, kept in ordinary memory.
#include <cstdint>

typedef uint32_t (*Op)(uint32_t, uint32_t);
__device__ __noinline__ uint32_t op_add(uint32_t a, uint32_t b) { return a + b; }
__device__ __noinline__ uint32_t op_div(uint32_t a, uint32_t b) { return a / (b | 1); }
__device__ Op functions[2] = {op_add, op_div};

extern "C" __global__ void alone_kernel(const uint32_t *__restrict__ ops, uint32_t n, uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t;
#pragma unroll 1
    for (uint32_t i = 0; i < n; ++i)
        a = functions[ops[(i + t) & 63] & 1](a, i);
    out[t] = a;
}
