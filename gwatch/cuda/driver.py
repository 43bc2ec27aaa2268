"""The CUDA driver, typed and thin: the only module that imports cuda-python.

Handles and addresses are plain ints here, so that no caller needs cuda-python's types. Every refusal of the
driver is a LaunchError that names the call and CUDA's own name for the error.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from gwatch.errors import LaunchError, ToolError

# CUfunction_attribute values (cuda.h).
MAX_THREADS, STATIC_SHARED, LOCAL_BYTES, NUM_REGS, BINARY_VERSION = 0, 1, 3, 4, 6
MAX_DYNAMIC_SHARED, SHARED_CARVEOUT, CLUSTER_MUST_BE_SET, NON_PORTABLE_CLUSTER, CLUSTER_SCHEDULING = (
    8,
    9,
    10,
    14,
    15,
)
# What a redirected launch must find on the patched kernel as it was on the original one.
_STREAM_NON_BLOCKING, _CAPTURE_RELAXED = 1, 2
_DEFAULT_STREAMS = (0, 1, 2)  # the context's own, by its two names, and the calling thread's
COPIED_ATTRIBUTES = (MAX_DYNAMIC_SHARED, SHARED_CARVEOUT, NON_PORTABLE_CLUSTER, CLUSTER_SCHEDULING)

_DEVICE_SMS, _DEVICE_MAJOR, _DEVICE_MINOR, _DEVICE_CLOCK_KHZ = 16, 75, 76, 13
_POINTER_CONTEXT, _POINTER_MEMORY_TYPE = 1, 2
_LAUNCH_COOPERATIVE, _LAUNCH_CLUSTER = 2, 4


def _load_bindings() -> Any:
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise ToolError(
            "cuda-python-missing",
            f"running a kernel needs cuda-python, which does not import ({error})",
            "pip install 'gwatch-sass[gpu]'",
        ) from error
    return bindings


@functools.lru_cache(maxsize=1)
def driver() -> Driver:
    """The initialised driver of this process.

    Raises ToolError ``[cuda-python-missing]``, ``[no-driver]`` or ``[no-gpu]``.
    """
    bindings = _load_bindings()
    try:
        status = bindings.cuInit(0)[0]
    except RuntimeError as error:
        raise ToolError(
            "no-driver",
            f"the CUDA driver library does not load ({error})",
            "everything up to the patched cubin works without it; running needs an NVIDIA driver",
        ) from error
    if int(status) == 100:
        raise ToolError(
            "no-gpu", "the CUDA driver reports no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    if int(status):
        raise ToolError(
            "no-driver",
            f"the CUDA driver does not initialise ({status.name})",
            "check nvidia-smi, or that the driver is at least as new as the toolkit",
        )
    found = Driver(bindings)
    if found.device_count() == 0:
        raise ToolError(
            "no-gpu", "the CUDA driver reports no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    return found


class Driver:
    """Calls into the driver; made by :func:`driver`."""

    def __init__(self, bindings: Any) -> None:
        self._cuda = bindings

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one driver function; returns its one result, a tuple of several, or None.

        Raises LaunchError ``[cuda-error]`` with the function's and the error's name.
        """
        status, *results = getattr(self._cuda, name)(*arguments)
        if int(status):
            raise LaunchError(
                "cuda-error",
                f"{name} failed with {status.name}",
                _HINTS.get(status.name, "an earlier launch may be the cause: errors are reported late"),
            )
        return results[0] if len(results) == 1 else tuple(results) or None

    def attempt(self, name: str, *arguments: Any) -> Any | None:
        """Like :meth:`call` for a function with a result, but None when the driver refuses."""
        status, *results = getattr(self._cuda, name)(*arguments)
        return None if int(status) else results[0] if len(results) == 1 else tuple(results)

    # devices and contexts

    def version(self) -> int:
        """CUDA version the driver supports (13000 = 13.0)."""
        return int(self.call("cuDriverGetVersion"))

    def device_count(self) -> int:
        """Number of visible GPUs."""
        return int(self.call("cuDeviceGetCount"))

    def device_name(self, device: int) -> str:
        """Marketing name of a GPU."""
        raw: bytes = self.call("cuDeviceGetName", 256, self.call("cuDeviceGet", device))
        return raw.split(b"\0")[0].decode()

    def device_capability(self, device: int) -> tuple[int, int]:
        """Compute capability, for example (9, 0)."""
        return self._device_attribute(device, _DEVICE_MAJOR), self._device_attribute(device, _DEVICE_MINOR)

    def device_sm_count(self, device: int) -> int:
        """Number of multiprocessors."""
        return self._device_attribute(device, _DEVICE_SMS)

    def device_clock_khz(self, device: int) -> int:
        """Nominal SM clock in kHz, as the driver states it."""
        return self._device_attribute(device, _DEVICE_CLOCK_KHZ)

    def _device_attribute(self, device: int, attribute: int) -> int:
        handle = self.call("cuDeviceGet", device)
        return int(self.call("cuDeviceGetAttribute", self._cuda.CUdevice_attribute(attribute), handle))

    def current_context(self) -> int:
        """Handle of the calling thread's context, 0 when it has none."""
        return int(self.call("cuCtxGetCurrent"))

    def current_device(self) -> int:
        """Ordinal of the device of the calling thread's context."""
        return int(self.call("cuCtxGetDevice"))

    def use_device(self, device: int = 0) -> int:
        """Make a device's primary context current (the one PyTorch and CuPy use); returns its handle."""
        context = self.call("cuDevicePrimaryCtxRetain", self.call("cuDeviceGet", device))
        self.call("cuCtxSetCurrent", context)
        return int(context)

    @contextlib.contextmanager
    def inside(self, context: int) -> Iterator[None]:
        """Make a context current for the calling thread while the block runs."""
        self.call("cuCtxPushCurrent", self._cuda.CUcontext(context))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for everything in the current context."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", self._cuda.CUstream(stream))

    def stream_context(self, stream: int) -> int | None:
        """Context that a stream was made in, which need not be the current one; None for the default streams, which
        every context has."""
        if stream in _DEFAULT_STREAMS:
            return None
        found = self.attempt("cuStreamGetCtx", self._cuda.CUstream(stream))
        return None if found is None else int(found)

    def is_capturing(self, stream: int) -> bool:
        """Whether launches into a stream are being recorded into a graph instead of run."""
        status = self.attempt("cuStreamIsCapturing", self._cuda.CUstream(stream))
        # The legacy stream answers with an error while another stream captures; a launch there would fail
        # anyway.
        return status is None or int(status) != 0

    # code

    def load_library(self, image: bytes) -> int:
        """Load a cubin, independent of contexts."""
        return int(self.call("cuLibraryLoadData", image, None, None, 0, None, None, 0))

    def unload_library(self, library: int) -> None:
        """Unload a library; no launch or graph may still name its kernels."""
        self.call("cuLibraryUnload", self._cuda.CUlibrary(library))

    def library_kernel(self, library: int, name: str) -> int:
        """CUkernel of a loaded library by mangled name."""
        return int(self.call("cuLibraryGetKernel", self._cuda.CUlibrary(library), name.encode()))

    def library_global(self, library: int, name: str) -> tuple[int, int] | None:
        """(address, size) of a module variable in the current context; None when it has no such name."""
        found = self.attempt("cuLibraryGetGlobal", self._cuda.CUlibrary(library), name.encode())
        return None if found is None else (int(found[0]), int(found[1]))

    def module_global(self, module: int, name: str) -> tuple[int, int] | None:
        """Like :meth:`library_global` for a CUmodule."""
        found = self.attempt("cuModuleGetGlobal", self._cuda.CUmodule(module), name.encode())
        return None if found is None else (int(found[0]), int(found[1]))

    def kernel_function(self, kernel: int) -> int:
        """The CUfunction of a CUkernel in the current context; makes the driver load its code there now."""
        return int(self.call("cuKernelGetFunction", self._cuda.CUkernel(kernel)))

    def handle_library(self, handle: int) -> int | None:
        """Library of a CUkernel; None when the handle is no CUkernel."""
        found = self.attempt("cuKernelGetLibrary", self._cuda.CUkernel(handle))
        return None if found is None else int(found)

    def handle_module(self, handle: int) -> int | None:
        """Module of a CUfunction; None when the handle is no CUfunction."""
        found = self.attempt("cuFuncGetModule", self._cuda.CUfunction(handle))
        return None if found is None else int(found)

    def handle_name(self, handle: int) -> str | None:
        """Mangled name of a CUkernel's or CUfunction's kernel."""
        name = self.attempt("cuKernelGetName", self._cuda.CUkernel(handle))
        if name is None:
            name = self.attempt("cuFuncGetName", self._cuda.CUfunction(handle))
        return None if name is None else bytes(name).decode(errors="replace")

    def parameters(self, handle: int, *, is_kernel: bool) -> list[tuple[int, int]] | None:
        """(offset, size) of each parameter of a CUkernel or CUfunction; None for drivers before CUDA 12.4."""
        name = "cuKernelGetParamInfo" if is_kernel else "cuFuncGetParamInfo"
        if not hasattr(self._cuda, name):
            return None
        typed = (self._cuda.CUkernel if is_kernel else self._cuda.CUfunction)(handle)
        layout: list[tuple[int, int]] = []
        while (found := self.attempt(name, typed, len(layout))) is not None:
            layout.append((int(found[0]), int(found[1])))
        start = layout[0][0] if layout else 0  # relative to the first parameter, as cubins state it
        return [(offset - start, size) for offset, size in layout]

    def kernel_attribute(self, kernel: int, attribute: int, device: int) -> int | None:
        """Attribute of a CUkernel on a device, None when refused."""
        found = self.attempt(
            "cuKernelGetAttribute",
            self._cuda.CUfunction_attribute(attribute),
            self._cuda.CUkernel(kernel),
            self.call("cuDeviceGet", device),
        )
        return None if found is None else int(found)

    def function_attribute(self, function: int, attribute: int) -> int | None:
        """Attribute of a CUfunction, None when refused."""
        found = self.attempt(
            "cuFuncGetAttribute", self._cuda.CUfunction_attribute(attribute), self._cuda.CUfunction(function)
        )
        return None if found is None else int(found)

    def set_kernel_attribute(self, kernel: int, attribute: int, value: int, device: int) -> None:
        """Set an attribute of a CUkernel on a device."""
        self.call(
            "cuKernelSetAttribute",
            self._cuda.CUfunction_attribute(attribute),
            value,
            self._cuda.CUkernel(kernel),
            self.call("cuDeviceGet", device),
        )

    # memory (plain device memory of the current context)

    def allocate(self, size: int) -> int:
        """Device memory of at least one byte; the driver aligns it to 256 bytes or more."""
        return int(self.call("cuMemAlloc", max(size, 1)))

    def free(self, address: int) -> None:
        """Give device memory back."""
        self.call("cuMemFree", self._cuda.CUdeviceptr(address))

    def free_memory(self) -> int:
        """Bytes of device memory free in the current context."""
        return int(self.call("cuMemGetInfo")[0])

    def zero(self, address: int, size: int, stream: int | None = None) -> None:
        """Fill device memory with zero bytes and wait: for the context, or for ``stream`` alone."""
        if stream is None:
            self.call("cuMemsetD8", self._cuda.CUdeviceptr(address), 0, size)
        else:
            self.call(
                "cuMemsetD8Async", self._cuda.CUdeviceptr(address), 0, size, self._cuda.CUstream(stream)
            )
        self.synchronize(stream)

    def write(self, address: int, data: bytes | memoryview, stream: int | None = None) -> None:
        """Copy host bytes to the device and wait; ``stream`` as for :meth:`zero`."""
        view = memoryview(data).cast("B")
        held = (ctypes.c_char * max(len(view), 1)).from_buffer_copy(view if len(view) else b"\0")
        place, source = self._cuda.CUdeviceptr(address), ctypes.addressof(held)
        if stream is None:
            self.call("cuMemcpyHtoD", place, source, len(view))
        else:
            self.call("cuMemcpyHtoDAsync", place, source, len(view), self._cuda.CUstream(stream))
            self.synchronize(stream)

    def read(self, address: int, size: int, stream: int | None = None) -> bytearray:
        """Copy device bytes to the host and wait; ``stream`` as for :meth:`zero`."""
        data = bytearray(size)
        if size:
            held = (ctypes.c_char * size).from_buffer(data)
            target, place = ctypes.addressof(held), self._cuda.CUdeviceptr(address)
            if stream is None:
                self.call("cuMemcpyDtoH", target, place, size)
            else:
                self.call("cuMemcpyDtoHAsync", target, place, size, self._cuda.CUstream(stream))
                self.synchronize(stream)
        return data

    def create_stream(self) -> int:
        """A stream of the current context that waits for no other, the default stream included."""
        return int(self.call("cuStreamCreate", _STREAM_NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Give a stream back once its work is done."""
        self.call("cuStreamDestroy", self._cuda.CUstream(stream))

    @contextlib.contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Let the calling thread allocate and load while some stream is being captured into a graph."""
        relaxed = self._cuda.CUstreamCaptureMode(_CAPTURE_RELAXED)
        before = self.call("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", before)

    def copy_async(self, target: int, source: int, size: int, stream: int) -> None:
        """Enqueue a device-to-device copy."""
        self.call(
            "cuMemcpyDtoDAsync",
            self._cuda.CUdeviceptr(target),
            self._cuda.CUdeviceptr(source),
            size,
            self._cuda.CUstream(stream),
        )

    def allocation(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the device allocation around an address; None when it is no device memory."""
        kind = self.attempt(
            "cuPointerGetAttribute", self._cuda.CUpointer_attribute(_POINTER_MEMORY_TYPE), address
        )
        if kind is None or int(kind) != 2:
            return None
        found = self.attempt("cuMemGetAddressRange", self._cuda.CUdeviceptr(address))
        return None if found is None else (int(found[0]), int(found[1]))

    # events

    def create_event(self) -> int:
        """A timing event of the current context."""
        return int(self.call("cuEventCreate", 0))

    def destroy_event(self, event: int) -> None:
        """Free an event."""
        self.call("cuEventDestroy", self._cuda.CUevent(event))

    def record_event(self, event: int, stream: int) -> None:
        """Enqueue an event."""
        self.call("cuEventRecord", self._cuda.CUevent(event), self._cuda.CUstream(stream))

    def elapsed_ms(self, start: int, end: int) -> float | None:
        """Milliseconds between two events that were reached, None when one was not."""
        found = self.attempt("cuEventElapsedTime", self._cuda.CUevent(start), self._cuda.CUevent(end))
        return None if found is None else float(found)

    def resident_ctas(self, function: int, threads: int, shared: int) -> int:
        """CTAs of a CUfunction that fit one multiprocessor at once."""
        return int(
            self.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                self._cuda.CUfunction(function),
                threads,
                shared,
            )
        )

    def event_reached(self, event: int) -> bool:
        """Whether everything in front of an event has finished; False also after an error."""
        return self.attempt("cuEventQuery", self._cuda.CUevent(event)) is not None

    # launches

    def repeat(self, name: str, arguments: Sequence[int]) -> None:
        """Call a launch function of the driver with the raw arguments of a call that the program makes.

        The program's own structures stay where they are: cuda-python would want to build them anew. Raises
        LaunchError ``[cuda-error]``.
        """
        function = getattr(ctypes.CDLL("libcuda.so.1"), name)
        # A 32-bit argument is the low half of the 64-bit word that the calling convention passes for it.
        status = function(*map(ctypes.c_uint64, arguments))
        if status:
            raise LaunchError("cuda-error", f"{name} failed with error {status} when gwatch repeated it")

    def launch(
        self,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: int,
        *,
        shared: int = 0,
        stream: int = 0,
        cluster: tuple[int, int, int] | None = None,
        cooperative: bool = False,
    ) -> None:
        """Launch a CUkernel or CUfunction; ``parameters`` is the address of an array of argument
        addresses.
        """
        cuda = self._cuda
        if cluster is None and not cooperative:
            self.call(
                "cuLaunchKernel",
                cuda.CUfunction(kernel),
                *grid,
                *block,
                shared,
                cuda.CUstream(stream),
                parameters,
                0,
            )
            return
        config = cuda.CUlaunchConfig()
        (config.gridDimX, config.gridDimY, config.gridDimZ), config.sharedMemBytes = grid, shared
        (config.blockDimX, config.blockDimY, config.blockDimZ), config.hStream = block, cuda.CUstream(stream)
        attributes = []
        if cooperative:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID(_LAUNCH_COOPERATIVE)
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if cluster is not None:
            attribute = cuda.CUlaunchAttribute()
            attribute.id = cuda.CUlaunchAttributeID(_LAUNCH_CLUSTER)
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
            attributes.append(attribute)
        config.attrs, config.numAttrs = attributes, len(attributes)
        self.call("cuLaunchKernelEx", config, cuda.CUfunction(kernel), parameters, 0)


_HINTS = {
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin's architecture is not this GPU's",
    "CUDA_ERROR_INVALID_IMAGE": "the driver does not accept this file as a cubin",
    "CUDA_ERROR_OUT_OF_MEMORY": "lower ring_bytes, or free device memory",
    "CUDA_ERROR_NOT_FOUND": "the loaded code has nothing of that name",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the block needs more registers or shared memory than a "
    "multiprocessor has",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "fewer blocks fit at once with the registers that the "
    "records need",
}
