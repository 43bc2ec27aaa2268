// Consumer warps wait at a named barrier once more than the producer warp arrives there.
// Compiled with: nvcc -cubin -arch=sm_90 pipeline.cu
extern "C" __global__ void pipeline(int* out, int rounds)
{
    if (threadIdx.x < 32) {
#pragma unroll 1
        for (int i = 0; i < rounds - 1; i++)
            asm volatile("barrier.cta.arrive 1, 128;" ::: "memory");
        return;
    }
    int sum = 0;
#pragma unroll 1
    for (int i = 0; i < rounds; i++) {
        asm volatile("barrier.cta.sync 1, 128;" ::: "memory");
        sum += clock();
    }
    out[threadIdx.x] = sum;
}
