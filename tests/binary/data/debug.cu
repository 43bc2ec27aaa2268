// Compiled with -G: one section per function, location lists, call frames with advances.
__device__ __noinline__ float step(float x) {
    return x * 2.0f + 1.0f;
}

extern "C" __global__ void walk(float *p, int n) {
    float v = p[threadIdx.x];
    for (int i = 0; i < n; i++) {
        v = step(v);
    }
    p[threadIdx.x] = v;
}
