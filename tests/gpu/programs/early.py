"""A kernel that is loaded through libcuda before any package that gwatch looks out for; argument: a cubin."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
with open(sys.argv[1], "rb") as file:
    call("cuModuleLoadData", ctypes.byref(module), file.read())
call("cuModuleGetFunction", ctypes.byref(function), module, sys.argv[2].encode())

import torch  # noqa: E402

out = torch.zeros(256, device="cuda", dtype=torch.int32)
value = ctypes.c_void_p(out.data_ptr())
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
call("cuLaunchKernel", function, 2, 1, 1, 128, 1, 1, 0, None, arguments, None)
torch.cuda.synchronize()
sys.stdout.write(f"digest {out.sum().item()}\n")
