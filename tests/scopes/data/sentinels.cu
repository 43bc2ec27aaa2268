// The older form of markers, three moves of constants to one register: PTX keeps them, ptxas does not.
#define MARK(HEAD, ID)                                                                                  \
    do {                                                                                                \
        int gone;                                                                                       \
        asm volatile("mov.u32 %0, " #HEAD ";\n\tmov.u32 %0, " #ID ";\n\tmov.u32 %0, 0x47574348;" : "=r"(gone)); \
    } while (0)

extern "C" __global__ void old_markers(float *out, const float *in) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    MARK(0x53544757, 7);
    float value = in[i];
    MARK(0x45444757, 7);
    out[i] = value * 2.0f;
}
