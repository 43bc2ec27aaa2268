// Kernels of the launch tests: module state of every kind, something to redirect to, something to wait for.

__constant__ float gain = 2.0f;
static __constant__ float offset = 1.0f;
__device__ int counter;
static __device__ int hidden = 5;

extern "C" {

__global__ void first(float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = gain * i + offset;
}

__global__ void second(float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = -1.0f;
}

__global__ void count(int *out)
{
    int before = atomicAdd(&counter, 1);
    out[blockIdx.x * blockDim.x + threadIdx.x] = before + hidden;
}

__global__ void loop(float *x, const float *scale, int trips, float step)
{
    extern __shared__ float staged[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = x[i];
#pragma unroll 1
    for (int k = 0; k < trips; ++k)
        staged[threadIdx.x] = staged[threadIdx.x] * scale[0] + step;
    x[i] = staged[threadIdx.x];
}

}
