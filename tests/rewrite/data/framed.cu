// A kernel with a frame of its own: an array that is indexed by a value only known when it runs.
extern "C" __global__ void framed(int *out, const int *in, int n) {
    int t = threadIdx.x, seen[8] = {0};
    for (int i = 0; i < n; ++i) {
        int v = in[i * 32 + (t & 31)];
        seen[v & 7] += v;
        out[t * 8 + (seen[(v >> 3) & 7] & 7)] = i;
    }
    int sum = 0;
    for (int k = 0; k < 8; ++k) sum = sum * 3 + seen[k];
    out[t] = sum;
}
