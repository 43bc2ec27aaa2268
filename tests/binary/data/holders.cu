// Small kernels whose cubins hold every kind of code address that gwatch moves. See README.md for how they are built.
#include <cstdio>
#include <cuda_fp16.h>

__constant__ int limits[4];
__device__ int counter;
__device__ int table[4] = {1, 2, 3, 4};

__device__ __noinline__ float series(float x, int n) {
    for (int i = 0; i < n; i++) x = __sinf(x) * 1.5f + n;
    return x;
}

__device__ __forceinline__ float square(float x) {
    return x * x + 1.0f;
}

__device__ __forceinline__ float twice(float x) {
    return square(x) + square(x + 2.0f);
}

// EXIT, INT_WARP_WIDE (warp-aggregated atomics), an inner function, inlined code two levels deep, module variables.
extern "C" __global__ void reach(float *p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = twice(p[i]);
    v = series(v, n);
    p[i] = v + table[i & 3] + limits[n & 3];
    atomicAdd(&counter, 1);
}

// SYSCALL, an external function, code-address relocations in constant bank 4.
extern "C" __global__ void speak(float *p, int n) {
    p[threadIdx.x] = series(p[threadIdx.x], n);
    if (p[0] > 3.0f) printf("hello %d\n", n);
}

// COOP_GROUP offsets with their masks, a barrier, shared memory.
extern "C" __global__ void swap(float *p) {
    __shared__ float s[64];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    float v = s[63 - threadIdx.x];
    v += __shfl_xor_sync(~0u, v, 1);
    v += __shfl_down_sync(0xffffu, v, 2);
    p[threadIdx.x] = v;
}

// ATOM16_EMUL: 16-bit atomics on shared memory are emulated.
extern "C" __global__ void halves(unsigned short *p) {
    __shared__ unsigned short s[32];
    s[threadIdx.x] = 0;
    __syncthreads();
    atomicCAS(&s[threadIdx.x & 3], (unsigned short)0, (unsigned short)threadIdx.x);
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x];
}

// A jump table.
extern "C" __global__ void choose(float *p, int n) {
    float v = p[threadIdx.x];
    switch (n) {
    case 0: p[0] = 1; break;
    case 1: p[1] = sinf(v); break;
    case 2: p[2] = cosf(v); break;
    case 3: p[7] = v * 4; break;
    case 4: p[3] = sqrtf(v); break;
    case 5: p[3] = v / n; break;
    case 6: p[9] = v * v * v; break;
    }
}
