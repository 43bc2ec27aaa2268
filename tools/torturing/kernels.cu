// Kernels for the torture on a GPU: each holds something that a rewriter can get wrong. All take the same arguments
// (64 Ki input words, as many output words) and write the same output whenever they run. The comment in front of each
// says how it is launched; "spins" marks kernels whose visit counts depend on time.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

#define KERNEL(name) extern "C" __global__ void name(const uint32_t *__restrict__ in, uint32_t *__restrict__ out, int n)

__device__ __forceinline__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ uint32_t mix(uint32_t a, uint32_t b) { return (a ^ b) * 2654435761u + (a >> 13); }

// TORTURE switch_table grid=13 block=96
KERNEL(switch_table)
{
    uint32_t a = in[place()], b = place();
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        switch ((a + i) % 13) {
        case 0: a = a * 3 + b; break;
        case 1: b ^= a >> 3; break;
        case 2: a -= b * 7; break;
        case 3: b = __brev(a); break;
        case 4: a = __popc(b) + a; break;
        case 5: b += in[(a + b) & 0xffff]; break;
        case 6: a = (a << 5) | (a >> 27); break;
        case 7: b = b * b + 1; break;
        case 8: a ^= 0x5bd1e995u; break;
        case 9: b = min(a, b) + 3; break;
        case 10: a = a / (b % 29 + 1); break;
        case 11: b -= i; break;
        default: a += __clz(b); break;
        }
    }
    out[place()] = mix(a, b);
}

__device__ __noinline__ uint32_t climb(uint32_t x, int depth)
{
    if (depth == 0 || (x & 15) == 0)
        return x + depth;
    return climb(x * 5 + 1, depth - 1) ^ climb(x >> 1, depth - 1);
}

// TORTURE recursion grid=5 block=64
KERNEL(recursion) { out[place()] = climb(in[place()], 6); }

__device__ __noinline__ uint32_t stir(uint32_t a, uint32_t b)
{
    for (int i = 0; i < (int)(a & 7); ++i)
        b = mix(b, a + i);
    return b;
}
__device__ __noinline__ uint32_t twice(uint32_t a) { return stir(a, a + 1) + stir(a + 2, a); }

// TORTURE calls grid=9 block=80
KERNEL(calls)
{
    uint32_t a = in[place()];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        if (a & 1)
            a = stir(a, i);
        else if (a & 2)
            a = twice(a);
        else
            a = mix(a, i);
    }
    out[place()] = a;
}

// TORTURE many_registers grid=4 block=128
extern "C" __global__ void __launch_bounds__(128, 1)
    many_registers(const uint32_t *__restrict__ in, uint32_t *__restrict__ out, int n)
{
    float v[216];
#pragma unroll
    for (int i = 0; i < 216; ++i)
        v[i] = (float)(in[(place() + i * 37) & 0xffff] & 1023);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
        const float f = (float)(in[(place() + k) & 0xffff] & 7);
#pragma unroll
        for (int i = 0; i < 216; ++i)
            v[i] = v[(i + 1) % 216] * 0.5f + f;
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < 216; ++i)
        s += v[i];
    out[place()] = __float_as_uint(s);
}

// TORTURE tight_bounds grid=4 block=1024
extern "C" __global__ void __launch_bounds__(1024, 2)
    tight_bounds(const uint32_t *__restrict__ in, uint32_t *__restrict__ out, int n)
{
    uint32_t a = in[place()], b = a >> 7, c = a * 3, d = place();
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
        a = mix(a, d), b = mix(b, a), c = mix(c, b), d = mix(d, c);
        if (a % 5 == 0)
            b += in[c & 0xffff];
    }
    out[place()] = a ^ b ^ c ^ d;
}

// TORTURE shared_reduce grid=7 block=256
KERNEL(shared_reduce)
{
    __shared__ uint32_t part[8];
    uint32_t sum = 0;
    for (int i = threadIdx.x; i < 1024 + n; i += blockDim.x)
        sum += in[(i * 3 + blockIdx.x) & 0xffff];
    for (int k = 16; k; k >>= 1)
        sum += __shfl_xor_sync(~0u, sum, k);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < 8 ? part[threadIdx.x] : 0;
        for (int k = 4; k; k >>= 1)
            sum += __shfl_down_sync(~0u, sum, k);
        if (threadIdx.x == 0)
            part[0] = sum;
    }
    __syncthreads();
    out[place()] = part[0] + threadIdx.x;
}

// TORTURE atomics grid=6 block=128
KERNEL(atomics)
{
    // Sums and exclusive ors apart: mixed in one place, their order would tell.
    __shared__ uint32_t bins[64], masks[64];
    if (threadIdx.x < 64)
        bins[threadIdx.x] = masks[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        const uint32_t v = in[(place() * 5 + i) & 0xffff];
        atomicAdd(&bins[v & 63], v >> 8);
        atomicXor(&masks[(v >> 6) & 63], v);
        atomicMax(out + 0x8000 + (v & 255), v);
    }
    __syncthreads();
    out[place()] = bins[threadIdx.x & 63] + masks[threadIdx.x & 63];
}

// TORTURE async_copies grid=6 block=128
KERNEL(async_copies)
{
    __shared__ uint32_t stage[2][128];
    uint32_t sum = 0;
    __pipeline_memcpy_async(&stage[0][threadIdx.x], in + place(), 4);
    __pipeline_commit();
    for (int i = 0; i < n; ++i) {
        __pipeline_memcpy_async(&stage[(i + 1) & 1][threadIdx.x], in + ((place() + i * 131) & 0xffff), 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum = mix(sum, stage[i & 1][threadIdx.x ^ 5]);
        __syncthreads();
    }
    __pipeline_wait_prior(0);
    out[place()] = sum;
}

// TORTURE cluster_shared grid=8 block=64 cluster=4 spins
KERNEL(cluster_shared)
{
    __shared__ uint32_t mine[64];
    cg::cluster_group cluster = cg::this_cluster();
    mine[threadIdx.x] = in[place()];
    cluster.sync();
    uint32_t sum = 0;
    for (int r = 0; r < (int)cluster.num_blocks(); ++r)
        for (int i = 0; i < 8; ++i)
            sum = mix(sum, cluster.map_shared_rank(mine, r)[(threadIdx.x + i * 7) & 63]);
    cluster.sync();
    out[place()] = sum;
}

// TORTURE whole_grid grid=16 block=64 cooperative spins
KERNEL(whole_grid)
{
    cg::grid_group grid = cg::this_grid();
    out[0x8000 + place()] = in[place()];
    grid.sync();
    uint32_t a = 0;
    for (int i = 0; i < n; ++i)
        a = mix(a, out[0x8000 + (place() * 7 + i * 64) % (16 * 64)]);
    grid.sync();
    out[place()] = a;
}

// TORTURE divide grid=7 block=96
KERNEL(divide)
{
    double d = (double)in[place()] + 0.5;
    uint64_t w = ((uint64_t)in[place()] << 21) + place();
    for (int i = 1; i <= n; ++i) {
        d = d / (double)(i * 3 + (in[(place() + i) & 0xffff] & 7)) + sqrt(d);
        w = w / (uint64_t)(i + 3) + w % 1000003u + i;
        if (d < 1e-3)
            d = 1.0 / (d + 1e-9);
    }
    out[place()] = (uint32_t)__double_as_longlong(d) ^ (uint32_t)w;
}

// TORTURE doubles grid=5 block=64
KERNEL(doubles)
{
    double a = in[place()] * 1e-6, b = 1.25, c = 0;
    for (int i = 0; i < n; ++i) {
        c = fma(a, b, c);
        b = c > 1e6 ? b * 0.5 : b + a;
        a = fmin(a * 1.0001, 3.0);
        c = c == b ? c + 1 : c;
    }
    out[place()] = (uint32_t)(__double_as_longlong(c + b) >> 9);
}

// TORTURE halves grid=5 block=64
KERNEL(halves)
{
    __half2 a = __float2half2_rn((float)(in[place()] & 15)), b = __float2half2_rn(0.75f);
    for (int i = 0; i < n; ++i) {
        a = __hfma2(a, b, __float2half2_rn((float)(i & 3)));
        b = __hlt(__low2half(a), __float2half(4.f)) ? __hadd2(b, b) : __hmul2(b, __float2half2_rn(0.5f));
    }
    out[place()] = *reinterpret_cast<uint32_t *>(&a);
}

// TORTURE matrix grid=4 block=128
KERNEL(matrix)
{
    float d[4] = {0, 0, 0, 0};
    uint32_t a[4], b[2];
    for (int k = 0; k < n; ++k) {
        for (int i = 0; i < 4; ++i)
            a[i] = in[(place() * 4 + i + k * 64) & 0xffff] & 0x3bff3bffu;
        for (int i = 0; i < 2; ++i)
            b[i] = in[(place() * 2 + i + k * 32) & 0xffff] & 0x3bff3bffu;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    out[place()] = __float_as_uint(d[0] + d[1] * 2 + d[2] * 4 + d[3] * 8);
}

// TORTURE ragged grid=11 block=77
KERNEL(ragged)
{
    if (place() % 7 == 3 || place() > 11 * 77 - 20)
        return;
    uint32_t a = in[place()];
    while (a & 31) {
        a = a * 1103515245u + 12345u;
        if ((a >> 16) % 11 == 0)
            break;
    }
    if (a % 3)
        out[place()] = a;
}

// TORTURE votes grid=6 block=96
KERNEL(votes)
{
    uint32_t a = in[place()], sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += __ballot_sync(~0u, a & (1u << (i & 31)));
        if (a % (i + 2)) {
            const uint32_t together = __match_any_sync(__activemask(), a & 3);
            sum ^= together + __popc(together);
        }
        __syncwarp();
        a = __shfl_sync(~0u, mix(a, sum), (threadIdx.x + i) & 31);
    }
    out[place()] = sum + a;
}

// TORTURE local_arrays grid=5 block=64
KERNEL(local_arrays)
{
    uint32_t v[24];
    for (int i = 0; i < 24; ++i)
        v[i] = in[(place() + i * 101) & 0xffff];
    for (int i = 0; i < n; ++i)
        v[(v[i % 24] + i) % 24] += v[(i * 7 + place()) % 24] ^ i;
    uint32_t s = 0;
    for (int i = 0; i < 24; ++i)
        s = mix(s, v[i]);
    out[place()] = s;
}

__constant__ uint32_t table[64] = {1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225, 256};

// TORTURE constants grid=5 block=64
KERNEL(constants)
{
    uint32_t a = in[place()];
    for (int i = 0; i < n; ++i)
        a = mix(a, table[(a + i) & 63]);
    out[place()] = a;
}

// TORTURE solid grid=3,2,2 block=8,4,3 shared=1024
KERNEL(solid)
{
    extern __shared__ uint32_t heap[];
    const int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int c = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    heap[t] = in[c * 96 + t];
    __syncthreads();
    uint32_t a = 0;
    for (int i = 0; i < n; ++i)
        a = mix(a, heap[(t + i * 5) % 96]);
    out[c * 96 + t] = a;
}

// TORTURE unrolled grid=4 block=128
KERNEL(unrolled)
{
    uint32_t a = in[place()], b = a ^ 77, c = place();
#pragma unroll 1
    for (int k = 0; k < n; k += 8)
#pragma unroll
        for (int i = 0; i < 700; ++i) {
            a = mix(a, b), b = a + (c << (i & 7)), c ^= b >> 3;
            if (i % 50 == 7 && (a & 1))
                c += in[(b + i) & 0xffff];
        }
    out[place()] = a ^ b ^ c;
}

// A warp-specialised kernel: a producer group with few registers feeds two consumer groups with many through bulk
// copies and mbarriers; the products are of whatever bits arrive, which is all that a bit-by-bit comparison needs.
// TORTURE specialised grid=4 block=384 shared=65536 spins
extern "C" __global__ void __launch_bounds__(384, 1)
    specialised(const uint32_t *__restrict__ in, uint32_t *__restrict__ out, int n)
{
    extern __shared__ __align__(1024) uint8_t heap_bytes[];
    __shared__ __align__(8) uint64_t full[4], empty[4];
    constexpr int BYTES = 12288;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(heap_bytes);
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0)
        for (int i = 0; i < 4; ++i) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(full + i)));
            asm volatile("mbarrier.init.shared.b64 [%0], 256;" ::"r"((uint32_t)__cvta_generic_to_shared(empty + i)));
        }
    asm volatile("fence.mbarrier_init.release.cluster;");
    __syncthreads();
    const auto wait = [](uint64_t *bar, int phase) {
        asm volatile("{\n .reg .pred p;\n again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n @!p bra again;\n}" ::
                         "r"((uint32_t)__cvta_generic_to_shared(bar)), "r"(phase) : "memory");
    };
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
#pragma unroll 1
            for (int k = 0; k < n; ++k) {
                const int s = k & 3;
                if (k >= 4)
                    wait(empty + s, ((k >> 2) - 1) & 1);
                const uint32_t bar = (uint32_t)__cvta_generic_to_shared(full + s);
                asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(BYTES) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                                 "r"(base + s * 16384), "l"(in + ((k * 512 + blockIdx.x * 256) & 0x7fff)), "r"(BYTES),
                             "r"(bar) : "memory");
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        float d[32];
#pragma unroll
        for (int i = 0; i < 32; ++i)
            d[i] = 0;
#pragma unroll 1
        for (int k = 0; k < n; ++k) {
            const int s = k & 3;
            wait(full + s, (k >> 2) & 1);
            const uint64_t at = base + s * 16384;
            // No swizzle, 128 bytes between core matrices both ways.
            const uint64_t da = ((at + (group - 1) * 2048) >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
            const uint64_t db = ((at + 4096) >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                         "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
                         "%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                           "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                           "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                           "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                           "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                         : "l"(da), "l"(db));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"((uint32_t)__cvta_generic_to_shared(empty + s))
                         : "memory");
        }
        uint32_t s = 0;
#pragma unroll
        for (int i = 0; i < 32; ++i)
            s = s * 31 + __float_as_uint(d[i]);
        out[blockIdx.x * 256 + (group - 1) * 128 + threadIdx.x % 128] = s;
    }
}
