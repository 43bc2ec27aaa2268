"""Kernel arguments: what is packed how, and what is refused."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
from fakes import FakeDriver

from gwatch.cuda.arguments import Arguments
from gwatch.errors import LaunchError


def pack(value: Any, size: int, driver: FakeDriver | None = None) -> bytes:
    packed = Arguments(driver or FakeDriver(), "k", [value], [size])  # type: ignore[arg-type]
    address = ctypes.c_uint64.from_address(packed.address).value
    return ctypes.string_at(address, size)


@pytest.mark.parametrize(
    ("value", "size", "raw"),
    [
        (5, 4, struct.pack("<i", 5)),
        (-1, 8, b"\xff" * 8),
        (2**32 - 1, 4, b"\xff" * 4),
        (True, 1, b"\x01"),
        (1.5, 4, struct.pack("<f", 1.5)),
        (1.5, 8, struct.pack("<d", 1.5)),
        (1.5, 2, struct.pack("<e", 1.5)),
        (None, 8, bytes(8)),
        (b"abcdef", 6, b"abcdef"),
        (np.int32(-3), 4, struct.pack("<i", -3)),
        (np.int64(7), 4, struct.pack("<i", 7)),
        (np.float64(0.5), 4, struct.pack("<f", 0.5)),
        (np.float16(0.5), 2, struct.pack("<e", 0.5)),
        (ctypes.c_uint16(513), 2, b"\x01\x02"),
    ],
)
def test_values_are_packed_as_the_parameter_wants(value: Any, size: int, raw: bytes) -> None:
    assert pack(value, size) == raw


class DeviceArray:
    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (4,),
            "typestr": "<f4",
            "version": 3,
        }


class Tensor:
    def __init__(self, address: int, is_cuda: bool = True) -> None:
        self.address, self.is_cuda = address, is_cuda

    def data_ptr(self) -> int:
        return self.address


def test_device_arrays_pass_their_address() -> None:
    assert pack(DeviceArray(0x7000), 8) == struct.pack("<Q", 0x7000)
    assert pack(Tensor(0x8000), 8) == struct.pack("<Q", 0x8000)


@pytest.mark.parametrize(
    ("value", "size", "code"),
    [
        (1 << 32, 4, "argument-range"),
        (-129, 1, "argument-range"),
        (b"abc", 4, "argument-range"),
        (1, 16, "argument-type"),
        (1.0, 1, "argument-type"),
        ("text", 8, "argument-type"),
        (Tensor(1, is_cuda=False), 8, "argument-type"),
        (np.zeros((4, 4))[:, ::2], 8, "argument-type"),
        (np.array([object()]), 8, "argument-type"),
        (DeviceArray(1), 4, "argument-type"),
    ],
)
def test_what_does_not_fit_is_refused(value: Any, size: int, code: str) -> None:
    driver = FakeDriver()
    with pytest.raises(LaunchError, match=rf"\[{code}\] argument 0 of k"):
        pack(value, size, driver)
    assert not driver.memory


def test_the_number_of_arguments_must_match() -> None:
    with pytest.raises(
        LaunchError, match=r"\[argument-count\] k takes 2 parameters of \[8, 4\] bytes, 1 were"
    ):
        Arguments(FakeDriver(), "k", [1], [8, 4])  # type: ignore[arg-type]


def test_numpy_arrays_travel_to_the_device_and_back() -> None:
    driver, array, fixed = FakeDriver(), np.arange(6, dtype=np.int32).reshape(2, 3), np.ones(2)
    fixed.flags.writeable = False
    packed = Arguments(driver, "k", [array, fixed], [8, 8])  # type: ignore[arg-type]
    first, second = driver.memory
    assert bytes(driver.memory[first]) == array.tobytes() and packed.copies
    driver.write(first, np.full(6, 9, np.int32).tobytes())
    driver.write(second, bytes(16))
    packed.finish()
    assert (array == 9).all() and (fixed == 1).all()
    assert not driver.memory


def test_device_copies_are_freed_when_a_later_argument_is_bad() -> None:
    driver = FakeDriver()
    with pytest.raises(LaunchError):
        Arguments(driver, "k", [np.ones(4), "text"], [8, 8])  # type: ignore[arg-type]
    assert not driver.memory
