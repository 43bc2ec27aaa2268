// Small kernels whose compiled code holds dependent pairs that libraries rarely have: clocks stored, added and
// compared, elected stores, atomics without a result. Extra input of tools/learn_latency.py,
// which compiles it for each table.

#include <cstdint>

__device__ __forceinline__ uint64_t ns() {
  uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ bool elected() {
  uint32_t chosen;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
  return chosen != 0;
}
#endif

#define STORES(name, type, expression)                                   \
  extern "C" __global__ void name(type *out, int step, uint64_t base) {  \
    int at = blockIdx.x * blockDim.x + threadIdx.x;                      \
    out[at] = (type)(expression);                                        \
    out[at + step] = (type)(expression);                                 \
    __syncwarp();                                                        \
    out[at + 2 * step] = (type)(expression);                             \
  }

STORES(store_clock, uint64_t, clock64())
STORES(store_ns, uint64_t, ns())
STORES(store_clock_low, uint32_t, clock64())
STORES(store_ns_low, uint32_t, ns())
STORES(add_clock, uint64_t, clock64() + base)
STORES(add_clock_low, uint32_t, (uint32_t)clock64() + (uint32_t)base)
STORES(sub_ns, uint32_t, (uint32_t)ns() - (uint32_t)base)
STORES(shift_clock, uint32_t, clock64() >> 8)
STORES(or_clock, uint32_t, ((uint32_t)clock64() << 8) | step)
STORES(xor_ns, uint32_t, ns() ^ base)
STORES(mul_clock, uint32_t, (uint32_t)clock64() * step)
STORES(mad_clock, uint32_t, step * step + (uint32_t)clock64())
STORES(wide_clock, uint64_t, (uint64_t)(uint32_t)clock64() * (uint32_t)step)
STORES(less_clock, uint32_t, clock64() < base ? step : at)
STORES(less_clock_low, uint32_t, (uint32_t)clock64() < (uint32_t)base ? step : at)
STORES(float_clock, float, (float)(uint32_t)clock64())
STORES(min_clock, uint32_t, min((uint32_t)clock64(), (uint32_t)base))
STORES(pop_clock, uint32_t, __popc((uint32_t)clock64()))
STORES(select_clock, uint32_t, step > 3 ? (uint32_t)clock64() : at)

extern "C" __global__ void shared_clock(uint64_t *out) {
  __shared__ uint64_t kept[64];
  kept[threadIdx.x] = clock64();
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x ^ 1];
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void elected_store(uint32_t *out, uint32_t value) {
  if (elected()) out[threadIdx.x] = value;
  __syncwarp();
  if (elected()) out[threadIdx.x + 64] = (uint32_t)clock64();
}

// A loop each: side by side, the elections would be made long before their stores.
#define ELECTED(name, type, expression)                                  \
  extern "C" __global__ void name(type *out, int count) {                \
    type *at = out + threadIdx.x;                                        \
    _Pragma("unroll 1") for (int i = 0; i < count; ++i, at += 32)        \
      if (elected()) *at = (type)(expression);                           \
  }

ELECTED(elected_byte, uint8_t, clock64())
ELECTED(elected_half, uint16_t, clock64())
ELECTED(elected_clock, uint32_t, clock64())
ELECTED(elected_wide, uint64_t, clock64())
ELECTED(elected_sum, uint32_t, clock64() + count)
ELECTED(elected_mix, uint32_t, clock64() ^ i)
ELECTED(elected_shift, uint32_t, clock64() >> 4)
ELECTED(elected_float, float, (uint32_t)clock64())

extern "C" __global__ void elected_add(uint32_t *out, uint32_t value) {
  uint32_t sum = 0;
  for (int i = 0; i < 9; ++i) {
    __syncwarp();
    if (elected()) sum += value + i;
  }
  out[threadIdx.x] = sum;
}
#endif

extern "C" __global__ void count_visits(uint32_t *counter, int step) {
  atomicAdd(counter, 1u);
  for (int i = 0; i < step; ++i)
    if (threadIdx.x & i) atomicAdd(counter + i, 2u * i);
}

extern "C" __global__ void guarded(uint32_t *out, const uint32_t *in, uint32_t limit) {
  uint32_t a = in[threadIdx.x], b = in[threadIdx.x + 32];
  if (a < limit) out[threadIdx.x] = b;
  if ((a ^ b) < limit) out[threadIdx.x + 32] = a;
  if ((a | b) > limit) atomicAdd(out, 1u);
  if (a == b) out[threadIdx.x + 64] = (uint32_t)clock64();
}
