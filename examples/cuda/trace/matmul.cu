// A tiled single-precision matrix product, C = A * B, for square matrices whose size is a multiple of TILE.
// trace_cuda_matmul_sass.py compiles it when nvcc is there; matmul_sm90.cubin was made by `make -C examples/cuda/trace`.
// Line 29 is the inner product: the example's --source-line default.

constexpr int TILE = 16;

extern "C" __global__ void __launch_bounds__(TILE *TILE)
matmul(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int n)
{
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];

    const int column = blockIdx.x * TILE + threadIdx.x;
    const int row = blockIdx.y * TILE + threadIdx.y;
    float sum = 0.0f;

    // One trip a tile; not unrolled, so that a site in the body fires n / TILE times.
#pragma unroll 1
    for (int step = 0; step < n; step += TILE) {
        // Every thread brings one element of each tile.
        tile_a[threadIdx.y][threadIdx.x] = a[row * n + step + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(step + threadIdx.y) * n + column];
        __syncthreads();

        // Unrolled by the compiler: TILE copies of the statement below,
        // one for each k.
#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];

        __syncthreads();
    }
    c[row * n + column] = sum;
}
