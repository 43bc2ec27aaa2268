// Kernels whose registers are scarce: all 255 in use, and budgets that differ by warp role. Compile with -arch=sm_90a.
#include <cstdint>

// Two hundred live accumulators, all read and written in every trip. out[thread] depends on each of them.
extern "C" __global__ void __launch_bounds__(128, 1) full_kernel(const float *in, float *out, int trips) {
    constexpr int N = 242;
    float acc[N];
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
    for (int k = 0; k < N; ++k) acc[k] = in[(t + k) & 1023];
#pragma unroll 1
    for (int i = 0; i < trips; ++i) {
        const float x = in[(t * 7 + i) & 1023];  // SITE full_load
        const float first = acc[0];
#pragma unroll
        for (int k = 0; k < N - 1; ++k) acc[k] = acc[k + 1] * x + acc[k];
        acc[N - 1] = first * x + acc[N - 1];  // SITE full_last
    }
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) sum = sum * 0.5f + acc[k];
    out[t] = sum;
}

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n}\n" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One producer warpgroup (24 registers) feeds tiles by bulk copies; two consumer warpgroups (240) multiply them with
// wgmma and add up. Two stages; `tiles` trips in every role.
constexpr int STAGES = 2, TILE_BYTES = 16384;

__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
    // No swizzle; core matrices 128 bytes apart along K, 256 along M and N.
    return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(8) << 16 | uint64_t(16) << 32;
}

extern "C" __global__ void __launch_bounds__(384, 1)
roles_kernel(const unsigned char *tiles, float *out, unsigned *produced, int count) {
    __shared__ alignas(1024) unsigned char stage[STAGES][TILE_BYTES];
    __shared__ alignas(8) uint64_t full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128, t = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 256;" ::"r"(shared_address(&empty[s])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (t == 0) {
            unsigned made = 0;
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                const int s = i % STAGES;
                if (i >= STAGES) wait(shared_address(&empty[s]), (i / STAGES - 1) & 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[s])),
                             "r"(TILE_BYTES) : "memory");
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                        shared_address(stage[s])),
                    "l"(tiles + size_t(i) * TILE_BYTES), "r"(TILE_BYTES), "r"(shared_address(&full[s]))
                    : "memory");  // SITE produce
                made += i;
            }
            produced[blockIdx.x] = made;
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        float acc[64];
#pragma unroll
        for (int k = 0; k < 64; ++k) acc[k] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const int s = i % STAGES;
            wait(shared_address(&full[s]), (i / STAGES) & 1);  // SITE consume
            const uint64_t a = descriptor(shared_address(stage[s]) + (group - 1) * 2048);
            const uint64_t b = descriptor(shared_address(stage[s]) + 8192);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            asm volatile(
                "{\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
                "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
                "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                "%62, %63}, %64, %65, 1, 1, 1, 0, 0;\n}\n"
                : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]),
                  "+f"(acc[7]), "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), "+f"(acc[12]),
                  "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15]), "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]),
                  "+f"(acc[19]), "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23]), "+f"(acc[24]),
                  "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27]), "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[30]),
                  "+f"(acc[31]), "+f"(acc[32]), "+f"(acc[33]), "+f"(acc[34]), "+f"(acc[35]), "+f"(acc[36]),
                  "+f"(acc[37]), "+f"(acc[38]), "+f"(acc[39]), "+f"(acc[40]), "+f"(acc[41]), "+f"(acc[42]),
                  "+f"(acc[43]), "+f"(acc[44]), "+f"(acc[45]), "+f"(acc[46]), "+f"(acc[47]), "+f"(acc[48]),
                  "+f"(acc[49]), "+f"(acc[50]), "+f"(acc[51]), "+f"(acc[52]), "+f"(acc[53]), "+f"(acc[54]),
                  "+f"(acc[55]), "+f"(acc[56]), "+f"(acc[57]), "+f"(acc[58]), "+f"(acc[59]), "+f"(acc[60]),
                  "+f"(acc[61]), "+f"(acc[62]), "+f"(acc[63])
                : "l"(a), "l"(b));  // SITE multiply
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            arrive(shared_address(&empty[s]));  // SITE consumed
        }
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 64; ++k) sum = sum * 0.5f + acc[k];
        out[blockIdx.x * 256 + (group - 1) * 128 + t] = sum;
    }
}
