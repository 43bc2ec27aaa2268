"""A bulk-copy pipeline whose producer waits for a consumer warp that has left: one arrive is never sent."""

import sys

import torch
from cudadriver import compiled, launch

SOURCE = r"""
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void wait(unsigned long long* barrier, unsigned phase)
{
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "\t@done bra over;\n\tbra again;\nover:\n\t}" :: "r"(at(barrier)), "r"(phase) : "memory");
}

__device__ __forceinline__ void arrive(unsigned long long* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(barrier)) : "memory");
}

extern "C" __global__ void pipeline(const int* in, int* out, int rounds)
{
    __shared__ __align__(128) int buffer[2][256];
    __shared__ __align__(8) unsigned long long full[2], empty[2];
    if (threadIdx.x == 0)
        for (int s = 0; s < 2; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" :: "r"(at(&empty[s])));
        }
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        if (lane == 0)
#pragma unroll 1
            for (int i = 0; i < rounds; i++) {
                wait(&empty[i % 2], (i / 2 & 1) ^ 1);  // PRODUCER
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(at(&full[i % 2])));
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                             :: "r"(at(buffer[i % 2])), "l"(in + 256 * i), "r"(at(&full[i % 2])) : "memory");
            }
        return;
    }
    int sum = 0, mine = warp == 3 ? rounds / 2 : rounds;
#pragma unroll 1
    for (int i = 0; i < mine; i++) {
        wait(&full[i % 2], i / 2 & 1);  // CONSUMER
        sum += buffer[i % 2][(warp - 1) * 32 + lane];
        __syncwarp();
        if (lane == 0) arrive(&empty[i % 2]);
    }
    out[blockIdx.x * 96 + (warp - 1) * 32 + lane] = sum;
}
"""

if __name__ == "__main__":
    pipeline = compiled(SOURCE, "pipeline.cu", "pipeline")
    rounds = 8
    numbers = torch.arange(256 * rounds, device="cuda", dtype=torch.int32)
    out = torch.zeros(2 * 96, device="cuda", dtype=torch.int32)
    launch(pipeline, (2, 1, 1), (128, 1, 1), numbers, out, rounds)
    torch.cuda.synchronize()
    sys.stdout.write("ended\n")
