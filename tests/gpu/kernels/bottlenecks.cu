// Kernels with a known bottleneck, chosen by their arguments. pmevent marks the places to record: it has no effect.

#define MARK(n) asm volatile("pmevent.mask " #n ";" ::: "memory")

constexpr int MOST_STAGES = 8, CONSUMERS = 3, WORDS = 2048;

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

// Work that takes a known time.
__device__ __forceinline__ void spin(int cycles)
{
    unsigned start, now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(start) :: "memory");
    do asm volatile("mov.u32 %0, %%clock;" : "=r"(now) :: "memory");
    while (now - start < (unsigned)cycles);
}

// Warp 0 produces, the others consume; an epilogue stores to shared memory with a stride.
extern "C" __global__ void __launch_bounds__(128)
pipeline(int* out, int rounds, int stages, int load, int math, int stores, int stride, int slow_block, int slow_warp,
         int hiccup)
{
    __shared__ __align__(8) unsigned long long full[MOST_STAGES], empty[MOST_STAGES];
    __shared__ int scratch[WORDS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int s = 0; s < stages; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(&empty[s])), "r"(CONSUMERS));
        }
    __syncthreads();
    int factor = (int)blockIdx.x == slow_block && slow_warp < 0 ? 3 : 1;
    if (warp == 0) {
#pragma unroll 1
        for (int i = 0; i < rounds; i++) {
            int stage = i % stages;
            wait(&empty[stage], (i / stages & 1) ^ 1);
            __syncwarp();
            MARK(1);
            spin(load * factor);
            MARK(2);
            if (lane == 0) arrive(&full[stage]);
            __syncwarp();
        }
        return;
    }
    if ((int)blockIdx.x == slow_block && warp == slow_warp) factor = 2;
#pragma unroll 1
    for (int i = 0; i < rounds; i++) {
        int stage = i % stages;
        wait(&full[stage], i / stages & 1);
        __syncwarp();
        MARK(3);
        spin(hiccup && (i + warp) % hiccup == hiccup - 1 ? math * 8 : math * factor);
        MARK(4);
        if (lane == 0) arrive(&empty[stage]);
        __syncwarp();
    }
    MARK(5);
#pragma unroll 1
    for (int i = 0; i < stores; i++)
        asm volatile("st.volatile.shared.u32 [%0], %1;"
                     :: "r"(at(&scratch[(lane * stride + i + warp) % WORDS])), "r"(i) : "memory");
    int sum = 0;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(sum) : "r"(at(&scratch[lane])) : "memory");
    if (sum == -1) out[0] = sum;
    MARK(6);
    out[blockIdx.x * 96 + threadIdx.x - 32] = 1;
}

// All warps copy and compute by turns; with ``ahead`` the next copy is on its way meanwhile.
extern "C" __global__ void __launch_bounds__(128)
tiles(const int4* in, int* out, int rounds, int math, int ahead)
{
    __shared__ int4 buffer[2][128];
    long long step = (long long)gridDim.x * 128, place = (long long)blockIdx.x * 128 + threadIdx.x;
    int sum = 0;
    if (ahead)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;"
                     :: "r"(at(&buffer[0][threadIdx.x])), "l"(in + place) : "memory");
#pragma unroll 1
    for (int i = 0; i < rounds; i++) {
        int next = i + ahead;
        if (next < rounds)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         :: "r"(at(&buffer[next % 2][threadIdx.x])), "l"(in + place + next * step) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        MARK(7);
        if (ahead) asm volatile("cp.async.wait_group 1;" ::: "memory");
        else asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        sum += *(volatile int*)&buffer[i % 2][threadIdx.x ^ 1].x;
        if (sum == -1) out[1] = sum;
        MARK(8);
        spin(math);
        MARK(9);
    }
    out[blockIdx.x * 128 + threadIdx.x] = sum;
}
