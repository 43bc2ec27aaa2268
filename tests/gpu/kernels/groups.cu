// Groups of a warp: where they part, wait and join. A lane's row of out: masks of the lanes that were with it.
#include <cstdint>

constexpr int ROW = 4;

__device__ __forceinline__ unsigned mask() {
  unsigned m;
  asm volatile("activemask.b32 %0;" : "=r"(m));
  return m;
}

__device__ __forceinline__ unsigned cycles() {
  unsigned t;
  asm volatile("mov.u32 %0, %clock;" : "=r"(t));
  return t;
}

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void init(uint64_t* barrier) {
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(barrier)));
  __syncthreads();
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(address(barrier)) : "memory");
}

// Warp 0 waits for one phase in two groups, odd lanes 20,000 cycles later (where the code that joins them before is
// taken out); warp 1 completes it.
extern "C" __global__ void wait_kernel(unsigned* out, unsigned later, unsigned release) {
  __shared__ uint64_t barrier;
  init(&barrier);
  unsigned lane = threadIdx.x & 31, start = cycles();
  unsigned* row = out + lane * ROW;
  if (threadIdx.x >= 32) {
    while (cycles() - start < release) {}
    if (lane == 0) arrive(&barrier);
    return;
  }
  if (lane & 1) {
    while (cycles() - start < later) {}
    row[2] = mask();
  }
  row[0] = mask();  // SITE parted
  asm volatile(
      "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], 0, 0x989680; @p bra DONE; bra AGAIN; DONE: }" ::"r"(
          address(&barrier))
      : "memory");
  row[1] = mask();  // SITE joined
}

// The lanes that wait at a BSYNC for those that spin, by cycles alone or loading in each round.
extern "C" __global__ void region_kernel(unsigned* out, unsigned later) {
  unsigned lane = threadIdx.x & 31, start = cycles();
  if (lane & 1) {
    while (cycles() - start < later) {}
    out[lane * ROW + 1] = mask();
  }
  out[lane * ROW] = mask();
}

extern "C" __global__ void loading_region_kernel(unsigned* out, unsigned later, volatile unsigned* never) {
  unsigned lane = threadIdx.x & 31, start = cycles();
  if (lane & 1) {
    while (cycles() - start < later && !*never) {}
    out[lane * ROW + 1] = mask();
  }
  out[lane * ROW] = mask();
}

// counts: how often lanes of one instruction asked for a phase, got two answers, and got it. Warp 0 completes phases
// at random times, the others ask all the time.
template <bool TRY>
__device__ __forceinline__ unsigned answers(uint64_t* barrier, unsigned parity) {
  unsigned found;
  if (TRY) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
        : "=r"(found)
        : "r"(address(barrier)), "r"(parity)
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
        : "=r"(found)
        : "r"(address(barrier)), "r"(parity)
        : "memory");
  }
  return found;
}

template <bool TRY>
__device__ __forceinline__ void ask(unsigned long long* counts, unsigned rounds, uint64_t* barrier) {
  init(barrier);
  unsigned seed = blockIdx.x * 7919 + 1;
  unsigned long long asked = 0, divided = 0;
  for (unsigned i = 0; i < rounds; ++i) {
    if (threadIdx.x < 32) {
      seed = seed * 1664525 + 1013904223;
      unsigned start = cycles();
      while (cycles() - start < seed >> 22) {}
      if (threadIdx.x == 0) arrive(barrier);
    } else {
      unsigned found;
      do {
        found = answers<TRY>(barrier, i & 1);
        ++asked;
        divided += found != 0 && found != 0xffffffff;
      } while (found != 0xffffffff);
    }
    __syncthreads();
  }
  if (threadIdx.x >= 32 && (threadIdx.x & 31) == 0) {
    atomicAdd(counts, asked);
    atomicAdd(counts + 1, divided);
    atomicAdd(counts + 2, rounds);
  }
}

extern "C" __global__ void test_kernel(unsigned long long* counts, unsigned rounds) {
  __shared__ uint64_t barrier;
  ask<false>(counts, rounds, &barrier);
}

extern "C" __global__ void try_kernel(unsigned long long* counts, unsigned rounds) {
  __shared__ uint64_t barrier;
  ask<true>(counts, rounds, &barrier);
}
