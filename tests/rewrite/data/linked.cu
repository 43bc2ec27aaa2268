// Compiled to an object and linked (see README.md): a table's index carries 0x8000, functions have sections of their own.
#include <cstdint>

__device__ __noinline__ uint32_t half(uint32_t a)
{
    return a < 3 ? a : half(a / 2) + 1;
}

extern "C" __global__ void linked_kernel(const uint32_t *__restrict__ ops, uint32_t n, uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t;
#pragma unroll 1
    for (uint32_t i = 0; i < n; ++i)
        switch (ops[(i + t) & 63]) {
        case 0: a = a * 3 + i; break;
        case 1: a = __brev(a) ^ i; break;
        case 2: a = __popc(a) + half(i); break;
        case 3: for (uint32_t k = 0; k < (a & 7); ++k) a = a * 5 + k; break;
        case 4: a = a / (i | 1); break;
        case 5: while (a & 0x70) a = (a >> 1) ^ i; break;
        case 6: a = __clz(a) * i; break;
        default: a ^= t; break;
        }
    out[t] = a;
}
