// What does one record cost? The loops of record_cost.py: a chain of 64 dependent FMAs, independent FMAs at full issue
// rate, a copy near the memory's bandwidth; and recorders written by hand in CUDA C++, for comparison.
#include <cstdint>

constexpr int DEPTH = 32;

__device__ __forceinline__ uint32_t clock_low()
{
    uint32_t value;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(value)::"memory");
    return value;
}

__device__ __forceinline__ long long sm()
{
    uint32_t value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

struct none {
    __device__ none(uint2 *) {}
    __device__ void record(uint32_t) {}
};

// One 8-byte record a thread, the ring of a thread contiguous.
struct thread_major {
    uint2 *ring;
    __device__ thread_major(uint2 *base) : ring(base + (size_t)(blockIdx.x * blockDim.x + threadIdx.x) * DEPTH) {}
    __device__ void record(uint32_t i) { ring[i % DEPTH] = make_uint2(clock_low(), i); }
};

// One 8-byte record a thread, a warp's records of one slot contiguous.
struct slot_major {
    uint2 *ring;
    __device__ slot_major(uint2 *base)
        : ring(base + (size_t)((blockIdx.x * blockDim.x + threadIdx.x) / 32) * DEPTH * 32 + threadIdx.x % 32)
    {
    }
    __device__ void record(uint32_t i) { ring[(i % DEPTH) * 32] = make_uint2(clock_low(), i); }
};

// One 8-byte record a warp, by lane 0.
struct warp_level {
    uint2 *ring;
    bool leader;
    __device__ warp_level(uint2 *base)
        : ring(base + (size_t)((blockIdx.x * blockDim.x + threadIdx.x) / 32) * DEPTH), leader(threadIdx.x % 32 == 0)
    {
    }
    __device__ void record(uint32_t i)
    {
        const uint32_t now = clock_low();
        if (leader)
            ring[i % DEPTH] = make_uint2(now, i);
    }
};

// The measured loop; spans[warp] is its first and last cycle and the SM, by the warp's own clock.
template <class Recorder, int UNROLL = 64>
__device__ __forceinline__ void chain(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    Recorder recorder(ring);
    float sum = threadIdx.x;
    const long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
        recorder.record(i);
#pragma unroll UNROLL
        for (int k = 0; k < 64; ++k)
            sum = fmaf(sum, x, 1.0f);
    }
    const long long stop = clock64();
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    out[t] = sum;
    if (t % 32 == 0)
        spans[t / 32] = make_longlong4(start, stop, sm(), 0);
}

extern "C" {

__global__ void __launch_bounds__(1024) chain_plain(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    chain<none>(out, spans, ring, iterations, x);
}

// The same chain in a loop of its own, eight FMAs a trip: the issue slots are not all taken.
__global__ void __launch_bounds__(1024)
    chain_rolled(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    chain<none, 8>(out, spans, ring, iterations, x);
}

__global__ void __launch_bounds__(1024)
    chain_thread_major(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    chain<thread_major>(out, spans, ring, iterations, x);
}

__global__ void __launch_bounds__(1024)
    chain_slot_major(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    chain<slot_major>(out, spans, ring, iterations, x);
}

__global__ void __launch_bounds__(1024)
    chain_warp_level(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    chain<warp_level>(out, spans, ring, iterations, x);
}

// Eight independent chains: the FMA pipe is busy every cycle once four warps a scheduler run.
__global__ void __launch_bounds__(1024) issue_bound(float *out, longlong4 *spans, uint2 *ring, int iterations, float x)
{
    float s[8];
#pragma unroll
    for (int k = 0; k < 8; ++k)
        s[k] = threadIdx.x + k;
    const long long start = clock64();
#pragma unroll 1
    for (int i = 0; i < iterations; ++i)
#pragma unroll
        for (int k = 0; k < 64; ++k)
            s[k % 8] = fmaf(s[k % 8], x, 1.0f);
    const long long stop = clock64();
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    out[t] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    if (t % 32 == 0)
        spans[t / 32] = make_longlong4(start, stop, sm(), 0);
}

} // extern "C"

// A copy of 16-byte elements: a CTA moves one tile at a time, UNROLL elements in flight a thread. n is a whole number
// of tiles of the largest shape. STREAMING marks both sides evict-first: nothing is read twice.
template <int UNROLL, bool STREAMING>
__device__ __forceinline__ void copy_tiles(const uint4 *__restrict__ from, uint4 *__restrict__ to, long long n)
{
    const long long tile = (long long)blockDim.x * UNROLL;
#pragma unroll 1
    for (long long i = blockIdx.x * tile + threadIdx.x; i < n; i += gridDim.x * tile) {
        uint4 v[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            v[k] = STREAMING ? __ldcs(from + i + k * blockDim.x) : from[i + k * blockDim.x];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
            if (STREAMING)
                __stcs(to + i + k * blockDim.x, v[k]);
            else
                to[i + k * blockDim.x] = v[k];
    }
}

extern "C" {

__global__ void __launch_bounds__(1024) copy_1(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<1, false>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_2(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<2, false>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_4(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<4, false>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_8(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<8, false>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_streaming_1(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<1, true>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_streaming_2(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<2, true>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_streaming_4(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<4, true>(from, to, n);
}
__global__ void __launch_bounds__(1024) copy_streaming_8(const uint4 *from, uint4 *to, long long n)
{
    copy_tiles<8, true>(from, to, n);
}

} // extern "C"
