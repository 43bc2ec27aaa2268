"""Launcher: arguments of every kind, and patched cubins armed and not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda import Launcher
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.driver import Driver
from gwatch.errors import KernelError, LaunchError, TraceError
from gwatch.rewrite.trace import SassTraceSite, plan_trace

TRIPS, BLOCK = 6, 64


def expected(start: np.ndarray, trips: int) -> np.ndarray:
    values = start.copy()
    for _ in range(trips):
        values = (values.astype(np.float64) * 2.0 + 0.5).astype(np.float32)
    return values


def loop_site(image: bytes) -> int:
    """The multiply-add of the loop, which every thread passes once a trip."""
    kernel = Cubin.from_bytes(image).get_kerneldef_by_name("loop")
    texts = [instruction.str(flatten=True) for instruction in kernel.list_instructions]
    return next(i for i, text in enumerate(texts) if text.split()[0] == "FFMA")


@pytest.mark.parametrize("patched", [False, True])
def test_numpy_arguments_are_copied_in_and_out(gpu: Driver, run_cubin: bytes, patched: bool) -> None:
    image = run_cubin
    if patched:
        image = plan_trace(Cubin.from_bytes(run_cubin), "loop", [SassTraceSite(loop_site(run_cubin))]).data
    x, scale = np.arange(4 * BLOCK, dtype=np.float32), np.array([2.0], np.float32)
    start = x.copy()
    with Launcher(image, "loop") as launcher:
        launcher.launch(4, BLOCK, [x, scale, TRIPS, 0.5], shared=4 * BLOCK)
        assert np.array_equal(x, expected(start, TRIPS))
        if not patched:
            with pytest.raises(TraceError, match=r"\[not-armed\]"):
                launcher.collect()
            return
        decoded = launcher.collect()
        assert len(decoded.records) == 4 * BLOCK * TRIPS and decoded.dropped_total == 0
        assert (decoded.visits.reshape(-1) == TRIPS).all()
        x[:] = start
        launcher.launch(4, BLOCK, [x, scale, TRIPS, 0.5], shared=4 * BLOCK, trace=False)
        assert np.array_equal(x, expected(start, TRIPS))


def test_framework_arrays_are_used_in_place(gpu: Driver, run_cubin: bytes) -> None:
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    x = torch.arange(BLOCK, dtype=torch.float32, device="cuda")
    scale = cupy.array([2.0], cupy.float32)
    start = x.cpu().numpy()
    with Launcher(run_cubin, "loop") as launcher:
        launcher.launch(1, BLOCK, [x, scale, np.int32(TRIPS), np.float32(0.5)], shared=4 * BLOCK)
        gpu.synchronize()
    assert np.array_equal(x.cpu().numpy(), expected(start, TRIPS))


def test_named_ctas_and_budget(gpu: Driver, run_cubin: bytes) -> None:
    image = plan_trace(Cubin.from_bytes(run_cubin), "loop", [SassTraceSite(loop_site(run_cubin))]).data
    x, scale = np.zeros(12 * BLOCK, np.float32), np.array([2.0], np.float32)
    with Launcher(image) as launcher:
        launcher.launch((12, 1, 1), BLOCK, [x, scale, TRIPS, 0.5], shared=4 * BLOCK, cta=[(3, 0, 0), (7,)])
        blocks = launcher.collect().records["block"][:, 0]
        assert sorted(set(blocks.tolist())) == [3, 7] and len(blocks) == 2 * BLOCK * TRIPS
    with Launcher(image, ring_bytes=100_000) as launcher:
        launcher.launch((12, 1, 1), BLOCK, [x, scale, TRIPS, 0.5], shared=4 * BLOCK)
        decoded = launcher.collect()
        assert len(set(decoded.records["block"][:, 0].tolist())) == decoded.visits.shape[0] < 12


def test_refusals_name_what_is_wrong(gpu: Driver, run_cubin: bytes, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"\[kernel-ambiguous\]"):
        Launcher(run_cubin)
    with Launcher(run_cubin, "loop") as launcher:
        with pytest.raises(LaunchError, match=r"\[argument-count\]"):
            launcher.launch(1, 32, [1])
        with pytest.raises(LaunchError, match=r"\[cuda-error\] cuLaunchKernel"):
            launcher.launch(1, 4096, [0, 0, 0, 0.0])
        with pytest.raises(LaunchError, match=r"\[launch-geometry\]"):
            launcher.launch(0, 32, [0, 0, 0, 0.0])
