// Scope markers for CUDA C++:
//
//   #include <gwatch/cuda/trace.hpp>        nvcc -I "$(python3 -c 'import gwatch; print(gwatch.get_include())')"
//
//   GWATCH_CUDA_KERNEL_SCOPE_START(1);
//   ...
//   GWATCH_CUDA_KERNEL_SCOPE_END(1);
//
// ID is a compile-time constant, 0 to 2047, one per region of the source. A marker is one instruction, which does
// nothing when nobody traces, and a fence for the compiler's scheduling: loads don't move across it. The _VALUE forms
// also hand over a 32-bit value (three more instructions); GWATCH_CUDA_KERNEL_SCOPE(ID) marks from there to the end of
// the C++ block. Host code sees nothing.
#pragma once

#if defined(__CUDA_ARCH__)

#define GWATCH_CUDA_MARK_(ID, END)                                                                        \
    do {                                                                                                  \
        static_assert((ID) >= 0 && (ID) <= 2047, "[scope-id] gwatch scope ids are 0 to 2047");            \
        asm volatile("pmevent.mask %0;" ::"n"(0xA000 | ((END) << 12) | ((ID) & 2047)) : "memory");        \
    } while (0)

#define GWATCH_CUDA_MARK_VALUE_(ID, END, VALUE)                                                           \
    do {                                                                                                  \
        static_assert((ID) >= 0 && (ID) <= 2047, "[scope-id] gwatch scope ids are 0 to 2047");            \
        static_assert(sizeof(VALUE) == 4, "[scope-payload] a gwatch payload has 32 bits");                \
        asm volatile("{ .reg .pred %%gwatch_p; .reg .b32 %%gwatch_n; mov.u32 %%gwatch_n, %%nctaid.x; "   \
                     "setp.eq.u32 %%gwatch_p, %%gwatch_n, 0; mov.u32 %%gwatch_n, 0; "                     \
                     "@%%gwatch_p st.shared.b32 [%%gwatch_n+423280], %1; "                                \
                     "pmevent.mask %0; }" ::"n"(0xA800 | ((END) << 12) | ((ID) & 2047)),                  \
                     "r"(VALUE)                                                                           \
                     : "memory");                                                                         \
    } while (0)

namespace gwatch {
template <int ID>
struct KernelScope {
    __device__ __forceinline__ KernelScope() { GWATCH_CUDA_MARK_(ID, 0); }
    __device__ __forceinline__ ~KernelScope() { GWATCH_CUDA_MARK_(ID, 1); }
};
}  // namespace gwatch

#define GWATCH_CUDA_JOIN_(A, B) A##B
#define GWATCH_CUDA_NAMED_(LINE, ID) ::gwatch::KernelScope<(ID)> GWATCH_CUDA_JOIN_(gwatch_scope_, LINE)
#define GWATCH_CUDA_KERNEL_SCOPE(ID) GWATCH_CUDA_NAMED_(__LINE__, ID)

#else

#define GWATCH_CUDA_MARK_(ID, END) \
    do {                           \
    } while (0)
#define GWATCH_CUDA_MARK_VALUE_(ID, END, VALUE) \
    do {                                        \
        (void)(VALUE);                          \
    } while (0)
#define GWATCH_CUDA_KERNEL_SCOPE(ID) GWATCH_CUDA_MARK_(ID, 0)

#endif

#define GWATCH_CUDA_KERNEL_SCOPE_START(ID) GWATCH_CUDA_MARK_(ID, 0)
#define GWATCH_CUDA_KERNEL_SCOPE_END(ID) GWATCH_CUDA_MARK_(ID, 1)
#define GWATCH_CUDA_KERNEL_SCOPE_START_VALUE(ID, VALUE) GWATCH_CUDA_MARK_VALUE_(ID, 0, VALUE)
#define GWATCH_CUDA_KERNEL_SCOPE_END_VALUE(ID, VALUE) GWATCH_CUDA_MARK_VALUE_(ID, 1, VALUE)
