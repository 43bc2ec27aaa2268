"""A kernel whose clusters of four CTAs read each other's shared memory, and one with a barrier over the whole grid."""

import sys

import torch
from cudadriver import compiled, launch

SOURCE = r"""
extern "C" __global__ void neighbours(int* out)
{
    __shared__ int mine;
    unsigned rank, at, other;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) mine = blockIdx.x * 100 + 7;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    at = (unsigned)__cvta_generic_to_shared(&mine);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(at), "r"((rank + 1) % 4));
    int value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(other) : "memory");
    out[blockIdx.x * blockDim.x + threadIdx.x] = value + threadIdx.x;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void grid_sum(const int* in, int* partial, int* arrived, int* out)
{
    int total = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = 16; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    if (threadIdx.x % 32 == 0) atomicAdd(&partial[blockIdx.x], total);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < (int)gridDim.x);
    }
    __syncthreads();
    int all = 0;
    for (int i = 0; i < (int)gridDim.x; i++) all += ((volatile int*)partial)[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
"""

neighbours = compiled(SOURCE, "clusters.cu", "neighbours")
grid_sum = compiled(SOURCE, "clusters.cu", "grid_sum")
result = torch.zeros(64 * 128, device="cuda", dtype=torch.int32)
for _ in range(4):
    launch(neighbours, (64, 1, 1), (128, 1, 1), result, cluster=(4, 1, 1))
numbers = torch.arange(64 * 128, device="cuda", dtype=torch.int32)
totals = torch.zeros_like(numbers)
for _ in range(4):
    partial = torch.zeros(64, device="cuda", dtype=torch.int32)
    arrived = torch.zeros(1, device="cuda", dtype=torch.int32)
    launch(grid_sum, (64, 1, 1), (128, 1, 1), numbers, partial, arrived, totals, cooperative=True)
torch.cuda.synchronize()
expected = (torch.arange(64) // 4 * 4 + (torch.arange(64) + 1) % 4) * 100 + 7
expected = (expected[:, None] + torch.arange(128)).reshape(-1).int()
good = bool((result.cpu() == expected).all()) and bool((totals == numbers.sum().int()).all())
sys.stdout.write(f"digest {good} {result.sum().item()} {totals.sum().item()}\n")
