// The first thing the kernel does is guarded: what its registers held before is nobody's value.
extern "C" __global__ void guarded(const unsigned *in, unsigned *out, int n)
{
    __shared__ unsigned bins[64];
    if (threadIdx.x < 64)
        bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        const unsigned v = in[(blockIdx.x * blockDim.x + threadIdx.x + i) & 0xffff];
        atomicAdd(&bins[v & 63], v >> 8);
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = bins[threadIdx.x & 63];
}
