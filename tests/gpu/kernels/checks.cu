// Kernels whose every record the host can predict. A line that ends in "// SITE name" is looked up by the checks,
// which take the instruction of that line they need. Compiled with -lineinfo.
#include <cstdint>

extern "C" {

// Thread t makes trips[t] trips; the counter, the thread index and the load's address are all predictable.
__global__ void trips_kernel(const int *__restrict__ trips, const uint32_t *__restrict__ table, uint32_t *__restrict__ out)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    const int n = trips[t];
    uint32_t sum = t;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        uint32_t v = __ldcv(table + ((i * 37 + t) & 1023)); // SITE load
        sum = sum * 1664525u + v;                          // SITE body
    }
    out[t] = sum; // SITE store
}

// Lanes split three ways and then again; each branch records the mask of the lanes that are in it together.
__global__ void divergent_kernel(uint32_t *__restrict__ out, int rounds)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t acc = 0;
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
        const int path = (t * 7 + i) % 3;
        if (path == 0) {
            const uint32_t mask = __activemask();
            asm volatile("add.u32 %0, %0, %1;" : "+r"(acc) : "r"(mask)); // SITE path0
        } else if (path == 1) {
            const uint32_t mask = __activemask();
            asm volatile("xor.b32 %0, %0, %1;" : "+r"(acc) : "r"(mask)); // SITE path1
#pragma unroll 1
            for (int k = 0; k < (t & 3); ++k)
                acc = acc * 3 + 1;
        } else {
            const uint32_t mask = __activemask();
            asm volatile("sub.u32 %0, %0, %1;" : "+r"(acc) : "r"(mask)); // SITE path2
        }
        __syncwarp(); // SITE joined
    }
    out[t] = acc;
}

// Early exits, partial warps, predicated-off lanes: only threads below `limit` work, every third of them stores.
__global__ void ragged_kernel(uint32_t *__restrict__ out, int limit)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= limit)
        return;
    uint32_t v = t * 2654435761u;
    if (t % 3 == 0)
        out[t] = v; // SITE guarded
}

// Three-dimensional grids and blocks, dynamic shared memory.
__global__ void solid_kernel(uint32_t *__restrict__ out)
{
    extern __shared__ uint32_t shared[];
    const int local = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int size = blockDim.x * blockDim.y * blockDim.z;
    shared[local] = local * 3 + block;
    __syncthreads();
    out[block * size + local] = shared[(local + 1) % size]; // SITE solid
}

__constant__ uint32_t host_constant[4];
__device__ uint32_t shared_counter;
__device__ uint32_t grid_flag;

// Reads a constant that the host set.
__global__ void constant_kernel(uint32_t *__restrict__ out)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    out[t] = host_constant[t & 3] + t; // SITE constant
}

// Two kernels, one counter.
__global__ void count_up_kernel(uint32_t *__restrict__ out)
{
    out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(&shared_counter, 1u); // SITE countup
}

__global__ void count_read_kernel(uint32_t *__restrict__ out)
{
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[0] = shared_counter;
}

// A grid-wide barrier over a flag in module memory; every CTA must be resident.
__global__ void barrier_kernel(uint32_t *__restrict__ out, int rounds)
{
    uint32_t sum = 0;
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&grid_flag, 1u);
            const uint32_t goal = (i + 1) * gridDim.x;
            while (*(volatile uint32_t *)&grid_flag < goal) {
            }
        }
        __syncthreads();
        sum += i; // SITE released
        asm volatile("" : "+r"(sum));
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) {
        __threadfence();
        // The last CTA to leave resets the flag, so that the kernel can be launched again.
        if (atomicAdd(&grid_flag, 1u) == (rounds + 1) * gridDim.x - 1)
            grid_flag = 0;
    }
}

// Spins for `ns` nanoseconds of the global timer, passing the site every `step` cycles or so; records the ns timer.
__global__ void spin_kernel(uint64_t *__restrict__ out, uint64_t ns, int step)
{
    uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    uint32_t visits = 0;
    do {
        const long long until = clock64() + step;
        while (clock64() < until) {
        }
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        visits += 1; // SITE spin
        asm volatile("" : "+r"(visits));
    } while (now - start < ns);
    out[blockIdx.x * blockDim.x + threadIdx.x] = visits;
}

// Reads and writes in place: a second run sees the first one's output.
__global__ void in_place_kernel(uint32_t *data)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    data[t] = data[t] * 3 + 1; // SITE inplace
}

} // extern "C"
