"""Launcher against a fake driver: what is loaded, armed, launched and freed."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeDriver

from gwatch.cuda import launcher as module
from gwatch.cuda.binary.constants import add_constant3, add_note
from gwatch.cuda.launcher import Launcher, dim3, ring_layout
from gwatch.errors import LaunchError, TraceError
from gwatch.rewrite.ring import DESCRIPTOR_BYTES, RecordKind, RingFormat
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_sm90.cubin"
FORMAT = RingFormat(RecordKind.NARROW, 8)
ARGUMENTS = [np.ones(4, np.float32), np.ones(4, np.float32), np.zeros(4, np.float32), 2]


def marked() -> bytes:
    """The example with a descriptor and an (empty) site map, as a rewrite leaves them; the code is untouched."""
    image, offset = add_constant3(EXAMPLE.read_bytes(), "gwatch_ring_k", DESCRIPTOR_BYTES)
    sites = SiteMap("matmul", "90", "sm", FORMAT, "gwatch_ring_k", offset, (), 32, 40, False)
    return add_note(image, NOTE_NAME, sites.to_bytes())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()

    def load(image: bytes) -> int:
        library = FakeDriver.load_library(driver, image)
        address = driver.allocate(64)
        driver.zero(address, 64)
        driver.globals[library, "gwatch_ring_k"] = (address, 64)
        return library

    monkeypatch.setattr(driver, "load_library", load)
    monkeypatch.setattr(module, "driver", lambda: driver)
    return driver


def test_a_plain_cubin_just_runs(fake: FakeDriver) -> None:
    def on_launch(kernel: int, grid: Any, block: Any, parameters: int) -> None:
        third = ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(parameters + 16).value).value
        fake.write(third, struct.pack("<4f", 1, 2, 3, 4))

    fake.on_launch = on_launch
    output = np.zeros(4, np.float32)
    with Launcher(EXAMPLE) as launcher:
        launcher.launch((2, 2), (16, 16), [*ARGUMENTS[:2], output, 2], shared=64, stream=3)
        assert launcher.duration_ms() == 0.01
        with pytest.raises(TraceError, match=r"\[not-armed\]"):
            launcher.collect()
    assert output.tolist() == [1, 2, 3, 4]
    (launch,) = fake.launched
    assert (launch["grid"], launch["block"], launch["shared"], launch["stream"]) == (
        (2, 2, 1),
        (16, 16, 1),
        64,
        3,
    )


def test_a_patched_cubin_is_armed_for_the_launch_and_left_unarmed(fake: FakeDriver) -> None:
    seen: list[bytes] = []
    with Launcher(marked()) as launcher:
        (descriptor, _) = next(iter(fake.globals.values()))
        fake.on_launch = lambda *_: seen.append(bytes(fake.read(descriptor, 64)))
        launcher.launch((4, 1), (64, 1), ARGUMENTS)
        launcher.launch((4, 1), (64, 1), ARGUMENTS, trace=False)
        ring, headers, table, slots, warps = struct.unpack_from("<3Q2I", seen[0])
        assert (slots, warps, table) == (4, 2, 0) and headers == ring + 8 * FORMAT.chunk_bytes
        assert seen[1][:8] == bytes(8)
        with pytest.raises(TraceError, match=r"\[not-armed\]"):
            launcher.collect()
        launcher.launch((4, 1), (64, 1), ARGUMENTS, cta=[(2,)])
        _, _, table, slots, _ = struct.unpack_from("<3Q2I", seen[2])
        assert slots == 1 and np.frombuffer(fake.read(table, 16), "<i4").tolist() == [-1, -1, 0, -1]
        with pytest.raises(TraceError, match=r"\[not-run\]"):
            launcher.collect()
    assert fake.read(descriptor, 8) == bytes(8)
    assert set(fake.memory) == {address for address, _ in fake.globals.values()}


def test_a_refused_launch_frees_its_copies(fake: FakeDriver) -> None:
    def refuse(*_: Any) -> None:
        raise LaunchError("cuda-error", "cuLaunchKernel failed with CUDA_ERROR_INVALID_VALUE")

    fake.on_launch = refuse
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE"), Launcher(marked()) as launcher:
        launcher.launch(1, 32, ARGUMENTS)
    assert set(fake.memory) == {address for address, _ in fake.globals.values()}


def test_sizes() -> None:
    assert (dim3(5), dim3([5, 6]), dim3((5, 6, 7))) == ((5, 1, 1), (5, 6, 1), (5, 6, 7))
    assert dim3((np.int64(5), np.int32(2))) == (5, 2, 1)
    for bad in (0, (), (1, -1), (1, 2, 3, 4), (1.5,)):
        with pytest.raises(LaunchError, match=r"\[launch-geometry\]"):
            dim3(bad)  # type: ignore[arg-type]


def test_the_ring_of_named_ctas() -> None:
    sites = SiteMap("k", "90", "sm", FORMAT, "s", 0, (), 32, 40, False)
    layout, chosen = ring_layout(sites, (4, 3, 2), (32, 1, 1), 1 << 20, [(1, 2, 1), (0, 0, 0), (1, 2, 1)])
    assert layout.cta_slots == 2 and chosen is not None and chosen.tolist() == [0, 21]
    with pytest.raises(TraceError, match=r"\[cta-outside\]"):
        ring_layout(sites, (4, 3, 2), (32, 1, 1), 1 << 20, [(4, 0, 0)])
    with pytest.raises(TraceError, match=r"\[ring-too-large\]"):
        ring_layout(sites, (4, 3, 2), (32, 1, 1), 1 << 10, [(0, 0, 0)])
    with pytest.raises(TraceError, match=r"\[cta-outside\]"):
        ring_layout(sites, (4, 3, 2), (32, 1, 1), 1 << 20, [])
