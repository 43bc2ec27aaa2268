// A Hopper matrix product, C = A * B^T in bfloat16 with float accumulators: persistent CTAs, a producer warpgroup that
// issues TMA loads, two consumer warpgroups that issue wgmma, registers handed over with setmaxnreg. CTAs of a cluster
// of two share the tile of B: each loads half of it for both.
//
//   nvcc -cubin -arch=sm_90a -DMARKED=1 -I "$(python3 -c 'import gwatch; print(gwatch.get_include())')" hgmma_matmul.cu
//
// A is (M, K), B is (N, K), C is (M, N), all row-major; M, N and K are multiples of 256, 256 and 64. The tensor maps have
// boxes of 128 rows by 64 columns with the 128-byte swizzle. With MARKED the main loops carry scope markers: 1 and 2 in the
// producer, 3 and 4 in the consumers, one visit of each per step of K.
#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

#if MARKED
#include <gwatch/cuda/trace.hpp>
#define SCOPE_START(ID) GWATCH_CUDA_KERNEL_SCOPE_START(ID)
#define SCOPE_END(ID) GWATCH_CUDA_KERNEL_SCOPE_END(ID)
#else
#define SCOPE_START(ID)
#define SCOPE_END(ID)
#endif

#ifndef CLUSTER
#define CLUSTER 2
#endif

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, STAGES = 4;
constexpr int HALF_B = TILE_N / 2;
constexpr int BYTES_A = TILE_M * TILE_K * 2, BYTES_B = TILE_N * TILE_K * 2, BYTES_STAGE = BYTES_A + BYTES_B;
constexpr int WARPGROUP = 128, CONSUMERS = 2, THREADS = WARPGROUP * (1 + CONSUMERS);
constexpr int GROUP_M = 8;  // neighbouring row tiles that run together, so that they meet B's tiles in the L2 cache

enum Scope { WAIT_SLOT = 1, ISSUE_LOADS = 2, WAIT_DATA = 3, MULTIPLY = 4 };

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
}

__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void load_tile_for_all(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1))
        : "memory");
}

// K-major operand with the 128-byte swizzle: eight rows of 128 bytes are 1024 bytes.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0; "
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0; }"
        :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The tile of this CTA: clusters take pairs of row tiles, GROUP_M pairs at a time.
__device__ __forceinline__ void place(int number, int rows, int columns, int rank, int &row, int &column) {
    const int group = number / (GROUP_M * columns), first = group * GROUP_M;
    const int height = min(rows - first, GROUP_M), inside = number % (GROUP_M * columns);
    row = ((first + inside % height) * CLUSTER + rank) * TILE_M;
    column = inside / height * TILE_N;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        hgmma_matmul(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, __nv_bfloat16 *c,
                     int m, int n, int k) {
    extern __shared__ uint8_t dynamic[];
    __shared__ __align__(8) uint64_t full_barriers[STAGES], empty_barriers[STAGES];
    const uint32_t tiles = (shared_address(dynamic) + 1023) & ~1023u;
    const uint32_t full = shared_address(full_barriers), empty = shared_address(empty_barriers);
    const int group = threadIdx.x / WARPGROUP, lane = threadIdx.x % WARPGROUP;
    const int rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    const int rows = m / (TILE_M * CLUSTER), columns = n / TILE_N, steps = k / TILE_K;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, CONSUMERS * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (CLUSTER > 1)
        cluster_sync();
    else
        __syncthreads();

    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (lane == 0) {
            int stage = 0;
            uint32_t phase = 0;
            for (int number = first; number < rows * columns; number += step) {
                int row, column;
                place(number, rows, columns, rank, row, column);
#pragma unroll 1
                for (int at = 0; at < steps; at++) {
                    SCOPE_START(WAIT_SLOT);
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    SCOPE_END(WAIT_SLOT);
                    SCOPE_START(ISSUE_LOADS);
                    const uint32_t a = tiles + stage * BYTES_STAGE, b = a + BYTES_A, ready = full + 8 * stage;
                    barrier_expect(ready, BYTES_STAGE);
                    load_tile(a, &map_a, at * TILE_K, row, ready);
                    if (CLUSTER > 1) {
                        load_tile_for_all(b + rank * (BYTES_B / 2), &map_b, at * TILE_K, column + rank * HALF_B, ready);
                    } else {
                        load_tile(b, &map_b, at * TILE_K, column, ready);
                        load_tile(b + BYTES_B / 2, &map_b, at * TILE_K, column + HALF_B, ready);
                    }
                    SCOPE_END(ISSUE_LOADS);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float sum[128];
        int stage = 0, before = 0;
        uint32_t phase = 0;
        const int rows_of_group = 64 * (group - 1);
        for (int number = first; number < rows * columns; number += step) {
            int row, column;
            place(number, rows, columns, rank, row, column);
#pragma unroll 1
            for (int at = 0; at < steps; at++) {
                SCOPE_START(WAIT_DATA);
                barrier_wait(full + 8 * stage, phase);
                SCOPE_END(WAIT_DATA);
                SCOPE_START(MULTIPLY);
                const uint32_t tile = tiles + stage * BYTES_STAGE;
                const uint64_t a = operand(tile + rows_of_group * TILE_K * 2), b = operand(tile + BYTES_A);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int part = 0; part < TILE_K / 16; part++)  // 16 columns are 32 bytes, two units of 16
                    wgmma_m64n256k16(sum, a + 2 * part, b + 2 * part, at + part > 0);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                // One group stays in flight: what came before it is done with its slot.
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (at > 0 && lane < CLUSTER) barrier_arrive(empty + 8 * before, lane);
                SCOPE_END(MULTIPLY);
                before = stage;
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int i = 0; i < 128; i++) asm volatile("" : "+f"(sum[i])::"memory");  // no use of a sum before here
            if (lane < CLUSTER) barrier_arrive(empty + 8 * before, lane);

            const int top = row + rows_of_group + lane / 32 * 16 + lane % 32 / 4;
            __nv_bfloat16 *out = c + (size_t)top * n + column + lane % 4 * 2;
#pragma unroll
            for (int part = 0; part < TILE_N / 8; part++) {
                *reinterpret_cast<__nv_bfloat162 *>(out + 8 * part) =
                    __floats2bfloat162_rn(sum[4 * part], sum[4 * part + 1]);
                *reinterpret_cast<__nv_bfloat162 *>(out + 8 * (size_t)n + 8 * part) =
                    __floats2bfloat162_rn(sum[4 * part + 2], sum[4 * part + 3]);
            }
        }
    }
    // A CTA must not end while its neighbour still writes or arrives in its shared memory.
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync();
    }
}
