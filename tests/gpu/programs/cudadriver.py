"""What the programs that use cuda-python share: compile a kernel, launch it."""

import ctypes

import torch
from cuda.bindings import driver, nvrtc


def call(name, *arguments, module=driver):
    """Result of a driver or compiler call that must work."""
    status, *results = getattr(module, name)(*arguments)
    assert int(status) == 0, (name, status)
    return results[0] if results else None


def compiled(source, file, kernel, *options):
    """CUfunction of a kernel compiled with line information for the GPU at hand."""
    torch.zeros(1, device="cuda")
    program = call("nvrtcCreateProgram", source.encode(), file.encode(), 0, [], [], module=nvrtc)
    arch = "-arch=sm_{}{}a".format(*torch.cuda.get_device_capability())
    flags = [arch.encode(), b"-lineinfo", *(option.encode() for option in options)]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]
    if int(status):
        log = b"\0" * call("nvrtcGetProgramLogSize", program, module=nvrtc)
        call("nvrtcGetProgramLog", program, log, module=nvrtc)
        raise RuntimeError(log.decode())
    image = b"\0" * call("nvrtcGetCUBINSize", program, module=nvrtc)
    call("nvrtcGetCUBIN", program, image, module=nvrtc)
    return call("cuModuleGetFunction", call("cuModuleLoadData", image), kernel.encode())


def launch(function, grid, block, *values, cluster=None, cooperative=False, shared=0):
    """Launch with tensors, ints and bytes (structures) as arguments; a cluster or grid barriers where asked for."""

    def argument(value):
        if isinstance(value, bytes):
            return ctypes.create_string_buffer(value, len(value))
        return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_int(value)

    held = list(map(argument, values))
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    at, stream = ctypes.addressof(pointers), torch.cuda.current_stream().cuda_stream
    if cooperative:
        call("cuLaunchCooperativeKernel", function, *grid, *block, shared, stream, at)
    elif cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.hStream, config.sharedMemBytes = driver.CUstream(stream), shared
        config.attrs, config.numAttrs = [attribute], 1
        call("cuLaunchKernelEx", config, function, at, 0)
    else:
        call("cuLaunchKernel", function, *grid, *block, shared, stream, at, 0)
