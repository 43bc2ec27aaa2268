"""Kernel arguments from Python values: numbers, arrays of any framework, raw bytes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from gwatch.cuda.driver import Driver
from gwatch.errors import LaunchError

_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


class Arguments:
    """The packed arguments of one launch. numpy arrays live in device copies until :meth:`finish`."""

    def __init__(self, driver: Driver, kernel: str, values: Sequence[Any], sizes: Sequence[int]) -> None:
        """``sizes``: bytes of each parameter, as the cubin states them.

        Raises LaunchError ``[argument-count]``, ``[argument-type]`` or ``[argument-range]``.
        """
        if len(values) != len(sizes):
            raise LaunchError(
                "argument-count",
                f"{kernel} takes {len(sizes)} parameters of {list(sizes)} bytes, {len(values)} were given",
                "pass one value per parameter of the kernel's signature",
            )
        self._driver = driver
        self._copies: list[tuple[np.ndarray[Any, Any], int]] = []
        self._held: list[ctypes.Array[ctypes.c_char]] = []
        try:
            for position, (value, size) in enumerate(zip(values, sizes, strict=True)):
                raw = self._pack(value, size, f"argument {position} of {kernel}")
                self._held.append(ctypes.create_string_buffer(raw, max(size, 1)))
        except BaseException:
            self.discard()
            raise
        self._pointers = (ctypes.c_void_p * max(len(self._held), 1))(*map(ctypes.addressof, self._held))

    @property
    def address(self) -> int:
        """Address of the array of argument addresses that the driver's launch calls take."""
        return ctypes.addressof(self._pointers)

    @property
    def copies(self) -> bool:
        """Whether some arguments are host arrays, so that the launch has to be waited for."""
        return bool(self._copies)

    def finish(self) -> None:
        """Copy numpy arrays back and free their device copies; the launch must have finished."""
        try:
            for array, address in self._copies:
                if array.flags.writeable:
                    data = np.frombuffer(self._driver.read(address, array.nbytes), array.dtype)
                    array[...] = data.reshape(array.shape)
        finally:
            self.discard()

    def discard(self) -> None:
        """Free device copies without reading them: the launch was not made."""
        copies, self._copies = self._copies, []
        for _, address in copies:
            self._driver.free(address)

    def _pack(self, value: Any, size: int, what: str) -> bytes:
        if isinstance(value, np.generic):
            value = value.tobytes() if value.dtype.itemsize == size else value.item()
        if isinstance(value, ctypes.Structure | ctypes.Array | ctypes._SimpleCData):
            value = bytes(value)
        if isinstance(value, bytes | bytearray):
            if len(value) != size:
                raise LaunchError("argument-range", f"{what} is {len(value)} bytes, the parameter {size}")
            return bytes(value)
        if isinstance(value, bool | int):
            return _integer(int(value), size, what)
        if isinstance(value, float):
            if size not in _FLOATS:
                raise LaunchError("argument-type", f"{what} is a float, the parameter has {size} bytes")
            return struct.pack(_FLOATS[size], value)
        pointer = 0 if value is None else self._pointer(value, what)
        if size != 8:
            raise LaunchError(
                "argument-type", f"{what} is {_kind(value)}, which takes an 8-byte pointer, not {size} bytes"
            )
        return struct.pack("<Q", pointer)

    def _pointer(self, value: Any, what: str) -> int:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous or value.dtype.hasobject:
                raise LaunchError(
                    "argument-type",
                    f"{what} is a numpy array that is not one block of plain numbers",
                    "pass numpy.ascontiguousarray(array)",
                )
            address = self._driver.allocate(value.nbytes)
            self._copies.append((value, address))
            self._driver.write(address, value.tobytes())
            return address
        address_of = getattr(value, "data_ptr", None)
        if callable(address_of):  # a torch tensor; __cuda_array_interface__ refuses bfloat16 and gradients
            if not getattr(value, "is_cuda", False):
                raise LaunchError(
                    "argument-type", f"{what} is a tensor in host memory", "move it with tensor.cuda()"
                )
            return int(address_of())
        interface = getattr(value, "__cuda_array_interface__", None)
        if isinstance(interface, dict):
            return int(interface["data"][0])
        raise LaunchError(
            "argument-type",
            f"{what} is {_kind(value)}, which is no kernel argument",
            "pass numbers, bytes, numpy, CuPy or CUDA torch arrays",
        )


def _integer(value: int, size: int, what: str) -> bytes:
    if size not in (1, 2, 4, 8):
        raise LaunchError("argument-type", f"{what} is an int, the parameter has {size} bytes", "pass bytes")
    if not -(1 << 8 * size - 1) <= value < 1 << 8 * size:
        raise LaunchError("argument-range", f"{what} is {value}, which {size} bytes cannot hold")
    return (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _kind(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"
