"""A kernel whose consumer warps wait at a named barrier for a producer warp that leaves without arriving."""

import ctypes
import signal
import sys

import torch
from cuda.bindings import driver, nvrtc

SOURCE = b"""
extern "C" __global__ void pipeline(int* out, int rounds)
{
    if (threadIdx.x < 32) {
#pragma unroll 1
        for (int i = 0; i < rounds - 1; i++) {
            asm volatile("barrier.cta.arrive 1, 128;" ::: "memory");
            __nanosleep(100000);  // a warp that arrives twice before the others came would stand for one of them
        }
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
"""


def call(name, *arguments, module=driver):
    status, *results = getattr(module, name)(*arguments)
    assert int(status) == 0, (name, status)
    return results[0] if results else None


signal.alarm(200)  # whatever happens, the GPU is free again after that
torch.zeros(1, device="cuda")
program = call("nvrtcCreateProgram", SOURCE, b"pipeline.cu", 0, [], [], module=nvrtc)
call("nvrtcCompileProgram", program, 2, [b"-arch=sm_90", b"-lineinfo"], module=nvrtc)
image = b"\0" * call("nvrtcGetCUBINSize", program, module=nvrtc)
call("nvrtcGetCUBIN", program, image, module=nvrtc)
kernel = call("cuModuleGetFunction", call("cuModuleLoadData", image), b"pipeline")
out = torch.zeros(128, device="cuda", dtype=torch.int32)
values = (ctypes.c_void_p(out.data_ptr()), ctypes.c_int(5))
pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
call("cuLaunchKernel", kernel, 2, 1, 1, 128, 1, 1, 0, 0, ctypes.addressof(pointers), 0)
torch.cuda.synchronize()
sys.stdout.write(" ".join(map(str, ("ended",))) + "\n")
