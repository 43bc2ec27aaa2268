"""A driver without a GPU: device memory is a dict, launches are noted, everything else answers plausibly."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from gwatch.errors import LaunchError


class FakeDriver:
    """Stands in for gwatch.cuda.driver.Driver. Addresses are handed out from 1 MiB up, 256-byte aligned."""

    def __init__(self) -> None:
        self.memory: dict[int, bytearray] = {}
        self.freed: list[int] = []
        self.launched: list[dict[str, Any]] = []
        self.libraries: dict[int, bytes] = {}
        self.globals: dict[tuple[int, str], tuple[int, int]] = {}
        self.attributes: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int]] = []
        self.capturing: set[int] = set()
        self.handles: dict[int, tuple[bool, int, str]] = {}  # handle -> is CUkernel, owner, name
        self.context = 0x77
        self.stream_contexts: dict[int, int] = {}
        self.on_launch: Any = None
        self.layout: list[tuple[int, int]] | None = None
        self._next = 1 << 20
        self._number = 1000

    def number(self) -> int:
        self._number += 16
        return self._number

    def block(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, data in self.memory.items():
            if start <= address and address + size <= start + len(data):
                return data, address - start
        raise LaunchError("cuda-error", f"illegal address {address:#x}+{size}")

    def use_device(self, device: int = 0) -> int:
        return self.context

    def current_device(self) -> int:
        return 0

    @contextlib.contextmanager
    def inside(self, context: int) -> Iterator[None]:
        assert context == self.context
        yield

    def synchronize(self, stream: int | None = None) -> None:
        pass

    def stream_context(self, stream: int) -> int | None:
        return self.stream_contexts.get(stream)

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def device_sm_count(self, device: int) -> int:
        return 132

    def device_clock_khz(self, device: int) -> int:
        return 1_980_000

    def resident_ctas(self, function: int, threads: int, shared: int) -> int:
        return 2

    def load_library(self, image: bytes) -> int:
        library = self.number()
        self.libraries[library] = image
        return library

    def library_kernel(self, library: int, name: str) -> int:
        kernel = self.number()
        self.handles[kernel] = (True, library, name)
        return kernel

    def library_global(self, library: int, name: str) -> tuple[int, int] | None:
        return self.globals.get((library, name))

    module_global = library_global

    def kernel_function(self, kernel: int) -> int:
        return kernel + 1

    def handle_library(self, handle: int) -> int | None:
        is_kernel, owner, _ = self.handles.get(handle, (False, 0, ""))
        return owner if is_kernel else None

    def handle_module(self, handle: int) -> int | None:
        is_kernel, owner, _ = self.handles.get(handle, (True, 0, ""))
        return None if is_kernel else owner

    def handle_name(self, handle: int) -> str | None:
        return self.handles[handle][2] if handle in self.handles else None

    def parameters(self, handle: int, *, is_kernel: bool) -> list[tuple[int, int]] | None:
        return self.layout

    def kernel_attribute(self, kernel: int, attribute: int, device: int) -> int | None:
        return self.attributes.get((kernel, attribute))

    def function_attribute(self, function: int, attribute: int) -> int | None:
        return self.attributes.get((function, attribute))

    def set_kernel_attribute(self, kernel: int, attribute: int, value: int, device: int) -> None:
        self.attributes[kernel, attribute] = value

    def allocate(self, size: int) -> int:
        address = self._next
        self._next += -(-max(size, 1) // 256) * 256
        self.memory[address] = bytearray(b"\xee" * max(size, 1))
        return address

    def free(self, address: int) -> None:
        del self.memory[address]
        self.freed.append(address)

    def zero(self, address: int, size: int, stream: int | None = None) -> None:
        data, at = self.block(address, size)
        data[at : at + size] = bytes(size)

    def write(self, address: int, data: bytes, stream: int | None = None) -> None:
        block, at = self.block(address, len(data))
        block[at : at + len(data)] = data

    def read(self, address: int, size: int, stream: int | None = None) -> bytearray:
        block, at = self.block(address, size)
        return block[at : at + size]

    def copy_async(self, target: int, source: int, size: int, stream: int) -> None:
        self.write(target, bytes(self.read(source, size)))

    def create_stream(self) -> int:
        return self.number()

    def destroy_stream(self, stream: int) -> None:
        pass

    @contextlib.contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        yield

    def event_reached(self, event: int) -> bool:
        return True

    def allocation(self, address: int) -> tuple[int, int] | None:
        for start, data in self.memory.items():
            if start <= address < start + len(data):
                return start, len(data)
        return None

    def create_event(self) -> int:
        return self.number()

    def destroy_event(self, event: int) -> None:
        pass

    def record_event(self, event: int, stream: int) -> None:
        self.events.append((event, stream))

    def elapsed_ms(self, start: int, end: int) -> float | None:
        return 0.01

    def launch(self, kernel: int, grid: Any, block: Any, parameters: int, **options: Any) -> None:
        self.launched.append({"kernel": kernel, "grid": grid, "block": block, **options})
        if self.on_launch is not None:
            self.on_launch(kernel, grid, block, parameters)


def packed(*values: Any) -> ctypes.Array[ctypes.c_void_p]:
    """An array of argument addresses that keeps its ctypes values alive."""
    array = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    array.held = values  # type: ignore[attr-defined]
    return array
