"""A kernel launched into a stream of one context while another context is current; its code belongs to neither."""

import ctypes
import sys

import torch
from cuda.bindings import driver, nvrtc
from cudadriver import call

SOURCE = b'extern "C" __global__ void fill(int* x, int v) { x[blockIdx.x * blockDim.x + threadIdx.x] = v; }'

torch.zeros(1, device="cuda")
first = call("cuCtxGetCurrent")
program = call("nvrtcCreateProgram", SOURCE, b"fill.cu", 0, [], [], module=nvrtc)
arch = "-arch=sm_{}{}".format(*torch.cuda.get_device_capability()).encode()
call("nvrtcCompileProgram", program, 1, [arch], module=nvrtc)
image = b"\0" * call("nvrtcGetCUBINSize", program, module=nvrtc)
call("nvrtcGetCUBIN", program, image, module=nvrtc)
kernel = call("cuLibraryGetKernel", call("cuLibraryLoadData", image, [], [], 0, [], [], 0), b"fill")
try:
    second = call("cuCtxCreate", None, 0, 0)
except TypeError:  # before CUDA 13
    second = call("cuCtxCreate", 0, 0)
stream, x = call("cuStreamCreate", 1), call("cuMemAlloc", 4 * 256)
call("cuCtxSetCurrent", first)
refused = 0
for number in range(4):
    values = (ctypes.c_void_p(int(x)), ctypes.c_int(number))
    pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    function, at = driver.CUfunction(int(kernel)), ctypes.addressof(pointers)
    refused |= int(driver.cuLaunchKernel(function, 2, 1, 1, 128, 1, 1, 0, stream, at, 0)[0])
if refused:
    sys.stdout.write(f"digest refused {refused}\n")
    sys.exit(0)
call("cuStreamSynchronize", stream)
call("cuCtxSetCurrent", second)
host = bytearray(4 * 256)
call("cuMemcpyDtoH", (ctypes.c_char * len(host)).from_buffer(host), x, len(host))
call("cuCtxSetCurrent", first)
sys.stdout.write(f"digest {sum(memoryview(host).cast('i'))}\n")
