// Kernels for the checks of scope markers; MARKED=0 compiles them without.
#if MARKED
#include <gwatch/cuda/trace.hpp>
#define START(ID) GWATCH_CUDA_KERNEL_SCOPE_START(ID)
#define END(ID) GWATCH_CUDA_KERNEL_SCOPE_END(ID)
#define START_VALUE(ID, VALUE) GWATCH_CUDA_KERNEL_SCOPE_START_VALUE(ID, VALUE)
#else
#define START(ID)
#define END(ID)
#define START_VALUE(ID, VALUE)
#endif

// Scope 1 is entered once by every thread (its payload is the thread's number), 2 once a trip, 3 by odd threads only.
extern "C" __global__ void counted(int *out, const int *in, int trips) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    START_VALUE(1, i);
    int value = in[i];
    END(1);
#pragma unroll 4
    for (int trip = 0; trip < trips; trip++) {
        START(2);
        value = value * 3 + in[(i + trip) % (gridDim.x * blockDim.x)];
        END(2);
    }
    if (i & 1) {
        START(3);
        value ^= in[value & 127];
        END(3);
    }
    out[i] = value;
}

// Scope 4 is a chain of dependent operations: its duration is known, and both tiers must agree on it.
extern "C" __global__ void timed(float *out, float x, int trips) {
    float value = threadIdx.x;
    for (int trip = 0; trip < trips; trip++) {
        START(4);
#pragma unroll
        for (int i = 0; i < 64; i++) value = value * x + 1.0f;
        END(4);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// Scope 5 is around every load of a batch of eight, which the compiler would issue together.
extern "C" __global__ void batched(float *out, const float *in, int trips) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    float sum = 0;
    for (int trip = 0; trip < trips; trip++) {
#pragma unroll
        for (int load = 0; load < 8; load++) {
            START(5);
            sum += in[(size_t)(trip * 8 + load) * threads + i];
            END(5);
        }
    }
    out[i] = sum;
}
