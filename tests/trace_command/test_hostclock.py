"""How far a GPU's timer is from the host's clock, on a driver made of Python."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from fakes import FakeDriver

from gwatch.cuda.program.hostclock import TRIES, host_clock
from gwatch.errors import LaunchError

AHEAD = 5_000_000_000


def timer(driver: FakeDriver, ahead: int) -> None:
    """Launches write a clock that is ahead of the host's."""

    def launched(_kernel: int, _grid: Any, _block: Any, parameters: int) -> None:
        place = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(parameters).value).value
        driver.write(place, (time.time_ns() + ahead).to_bytes(8, "little"))

    driver.on_launch = launched


def test_the_offset_is_right_within_the_stated_error() -> None:
    driver = FakeDriver()
    timer(driver, AHEAD)
    found = host_clock(driver)  # type: ignore[arg-type]
    assert found is not None and abs(found["offset_ns"] - AHEAD) <= found["error_ns"] < 10**9
    assert found["host"] and len(driver.launched) == TRIES and not driver.memory


def test_a_gpu_that_cannot_be_asked_is_left_out() -> None:
    driver = FakeDriver()

    def refuse(image: bytes) -> int:
        raise LaunchError("cuda-error", "no PTX compiler")

    driver.load_library = refuse  # type: ignore[method-assign]
    assert host_clock(driver) is None  # type: ignore[arg-type]
    assert not driver.memory
