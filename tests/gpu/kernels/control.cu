// Control flow that a rewriter finds hard: jump tables, recursion, calls through pointers, functions of the driver.
// Each path that is counted holds one xor with a constant of its own, by which the checks find its instruction.
#include <cassert>
#include <cstdint>
#include <cstdio>

#define MARK(a, number) asm volatile("xor.b32 %0, %0, " #number ";" : "+r"(a))

// A dense switch whose cases differ too much to become selects: a jump table.
__device__ __forceinline__ uint32_t step(uint32_t op, uint32_t a, uint32_t b)
{
    switch (op) {
    case 0: MARK(a, 0x5a00); return a + b;
    case 1: MARK(a, 0x5a01); return a * b + 1;
    case 2: MARK(a, 0x5a02); for (uint32_t i = 0; i < (b & 7); ++i) a = a * 3 + i; return a;
    case 3: MARK(a, 0x5a03); return __popc(a) + b;
    case 4: MARK(a, 0x5a04); return a / (b | 1);
    case 5: MARK(a, 0x5a05); return __brev(a) ^ b;
    case 6: MARK(a, 0x5a06); return __float_as_uint(__sinf((float)(a & 255)) + (float)b);
    case 7: MARK(a, 0x5a07); return __clz(a) * b;
    case 8: MARK(a, 0x5a08); while (a & 0xff) a = (a >> 1) & ~(b & 0x7f); return a;
    case 9: MARK(a, 0x5a09); return a % (b | 3);
    case 10: MARK(a, 0x5a0a); return __mulhi(a, b);
    default: MARK(a, 0x5a0b); return a + 77;
    }
}

extern "C" __global__ void switch_kernel(const uint32_t *__restrict__ ops, uint32_t n, uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t * 2654435761u;
#pragma unroll 1
    for (uint32_t i = 0; i < n; ++i)
        a = step(ops[(i + t) & 63], a, i + t);
    out[t] = a;
}

__device__ __noinline__ uint32_t fib(uint32_t n)
{
    uint32_t a = n;
    MARK(a, 0x5b00);
    a ^= 0x5b00;
    return a < 2 ? a : fib(a - 1) + fib(a - 2);
}

extern "C" __global__ void recursion_kernel(uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    out[t] = fib(t % 10);
}

typedef uint32_t (*Op)(uint32_t, uint32_t);
__device__ __noinline__ uint32_t op_add(uint32_t a, uint32_t b) { MARK(a, 0x5c00); return a + b; }
__device__ __noinline__ uint32_t op_mul(uint32_t a, uint32_t b) { MARK(a, 0x5c01); return a * b + 1; }
__device__ __noinline__ uint32_t op_mix(uint32_t a, uint32_t b)
{
    MARK(a, 0x5c02);
    for (uint32_t i = 0; i < (b & 3); ++i)
        a = (a << 5) ^ (a >> 3) ^ i;
    return a;
}
__device__ __noinline__ uint32_t op_div(uint32_t a, uint32_t b) { MARK(a, 0x5c03); return a / (b | 1); }
__device__ Op functions[4] = {op_add, op_mul, op_mix, op_div};

extern "C" __global__ void pointer_kernel(const uint32_t *__restrict__ ops, uint32_t n, uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t * 7u;
#pragma unroll 1
    for (uint32_t i = 0; i < n; ++i)
        a = functions[ops[(i + t) & 63] & 3](a, i + t);
    out[t] = a;
}

struct Shape {
    uint32_t scale;
    __device__ virtual uint32_t area(uint32_t x) const = 0;
};
struct Square : Shape {
    __device__ uint32_t area(uint32_t x) const override { MARK(x, 0x5d00); return x * x * scale; }
};
struct Round : Shape {
    __device__ uint32_t area(uint32_t x) const override
    {
        MARK(x, 0x5d01);
        for (uint32_t i = 0; i < scale; ++i)
            x = x * 3 + 1;
        return x;
    }
};

extern "C" __global__ void virtual_kernel(uint32_t n, uint32_t *__restrict__ out)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = 0;
    Square square;
    Round round;
    square.scale = n;
    round.scale = n & 7;
    Shape *shapes[2] = {&square, &round};
#pragma unroll 1
    for (uint32_t i = 0; i < n; ++i)
        a += shapes[(i ^ t) & 1]->area(a + i + t);
    out[t] = a;
}

// Prints nothing, but calls the driver to do it.
extern "C" __global__ void printf_kernel(uint32_t *__restrict__ out, uint32_t every, const char *nothing)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t;
#pragma unroll 1
    for (uint32_t i = 0; i < 8; ++i) {
        a = a * 1664525u + 1013904223u;
        MARK(a, 0x5e00);
        if ((t + i) % every == 0)
            a += printf("%s", nothing);
        MARK(a, 0x5e01);
    }
    out[t] = a;
}

extern "C" __global__ void malloc_kernel(uint32_t *__restrict__ out, uint32_t n)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = 0;
#pragma unroll 1
    for (uint32_t round = 0; round < 3; ++round) {
        uint32_t *mine = (uint32_t *)malloc(n * sizeof(uint32_t));
        MARK(a, 0x5f00);
        if (mine) {
            for (uint32_t i = 0; i < n; ++i)
                mine[i] = i * t + round;
            for (uint32_t i = 0; i < n; ++i)
                a += mine[(i * 7) % n];
            free(mine);
            MARK(a, 0x5f01);
        }
    }
    out[t] = a;
}

extern "C" __global__ void assert_kernel(uint32_t *__restrict__ out, uint32_t limit)
{
    const uint32_t t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a = t;
#pragma unroll 1
    for (uint32_t i = 0; i < 8; ++i) {
        a = a * 5 + i;
        assert(t < limit);
        MARK(a, 0x6000);
    }
    out[t] = a;
}
