"""Scope markers on a GPU: PTX of captured fat binaries, both import paths, errors that need a launch."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gwatch
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import Driver
from gwatch.cuda.trace import do_trace
from gwatch.cuda.xtrace import do_trace as do_trace_by_the_newer_path
from gwatch.errors import SiteError, TraceError

KERNELS = Path(__file__).resolve().parent / "kernels"
GRID, BLOCK, TRIPS = 3, 96, 5


def compiled(folder: Path, *options: str) -> Path:
    target = folder / "scopes.fatbin"
    include = f"-I{gwatch.get_include()}"
    subprocess.run(["nvcc", "-DMARKED=1", include, *options, "-o", target, KERNELS / "scopes.cu"], check=True)
    return target


class Loaded:
    """A fat binary loaded while hooks are on, launched by its handle."""

    def __init__(self, gpu: Driver, image: bytes, kernel: str = "counted") -> None:
        self.gpu = gpu
        self.buffer = ctypes.create_string_buffer(image, len(image) + 1)
        self.module = int(gpu.call("cuModuleLoadData", ctypes.addressof(self.buffer)))
        cuda = gpu._cuda
        self.function = int(gpu.call("cuModuleGetFunction", cuda.CUmodule(self.module), kernel.encode()))
        self.x, self.out = (gpu.allocate(4 * GRID * BLOCK) for _ in range(2))
        gpu.write(self.x, np.arange(GRID * BLOCK, dtype=np.int32).tobytes())

    def launch(self) -> None:
        values = ctypes.c_uint64(self.out), ctypes.c_uint64(self.x), ctypes.c_int(TRIPS)
        pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
        self.gpu.launch(self.function, (GRID, 1, 1), (BLOCK, 1, 1), ctypes.addressof(pointers))
        self.gpu.synchronize()


@pytest.fixture(scope="module")
def fat_binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Machine code and PTX of scopes.cu."""
    code = [f"-gencode=arch=compute_90a,code={form}" for form in ("sm_90a", "compute_90a")]
    return compiled(tmp_path_factory.mktemp("scopes"), "-fatbin", *code).read_bytes()


@pytest.fixture
def loaded(gpu: Driver, fat_binary: bytes) -> Any:
    hooks.acquire()
    try:
        yield Loaded(gpu, fat_binary)
    finally:
        hooks.release()


def counts(result: Any) -> list[int]:
    return np.bincount(result["records"]["site"], minlength=6).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("trace", [do_trace, do_trace_by_the_newer_path])
def test_the_ptx_of_a_captured_fat_binary_is_found(loaded: Loaded, trace: Any) -> None:
    for tier in ("ptx", "sass"):
        result = trace(
            fn=loaded.launch,
            kernel_name_pattern="^counted$",
            dsl="",
            scope_name_map={1: "load", 2: "trip", 3: "odd"},
            instrumentation_tier=tier,
            sass_per_thread_records=32,
            passes=1,
        )
        rows = GRID * BLOCK
        assert counts(result) == [rows, rows, rows * TRIPS, rows * TRIPS, rows // 2, rows // 2]
        assert result["outputs"] == "identical"


def test_few_records_are_kept_and_the_dropped_ones_counted_on_both_tiers(loaded: Loaded) -> None:
    rows = GRID * BLOCK
    for tier in ("ptx", "sass"):
        for keep in ("newest", "first"):
            result = do_trace(
                loaded.launch,
                "^counted$",
                dsl="",
                instrumentation_tier=tier,
                sass_per_thread_records=4,
                keep=keep,
                passes=1,
            )
            # Sites whose records say the times of others too; one that is lost counts once.
            alone = [site["site_id"] for site in result["sites"] if "shared_with" not in site]
            visits = [rows, rows, rows * TRIPS, rows * TRIPS, rows // 2, rows // 2]
            kept = np.isin(result["records"]["site"], alone).sum()
            assert kept + result["dropped"] == sum(visits[site] for site in alone)
            first = result["records"]["sequence"].min()
            assert first == 0 if keep == "first" else first > 0


def test_ctas_are_sampled_on_both_tiers(loaded: Loaded) -> None:
    for tier in ("ptx", "sass"):
        result = do_trace(
            loaded.launch, "^counted$", dsl="", instrumentation_tier=tier, cta=[(1, 0, 0)], passes=1
        )
        assert set(result["records"]["block"][:, 0].tolist()) == {1}
        assert int((result["records"]["site"] == 0).sum()) == BLOCK


def test_refusals_leave_everything_as_it_was(loaded: Loaded) -> None:
    with pytest.raises(SiteError, match=r"\[scope-unknown\]"):
        do_trace(loaded.launch, "^counted$", instrumentation_tier="sass", scope_name_map={77: "x"})
    with pytest.raises(TraceError, match=r"\[ptx-missing\]"):
        do_trace(loaded.launch, "^counted$", instrumentation_tier="ptx", dsl="", ptx="/nowhere.ptx")
    loaded.launch()


def test_a_module_loaded_before_the_hooks_is_told_how_to_be_seen(gpu: Driver, tmp_path: Path) -> None:
    source, target = tmp_path / "early.cu", tmp_path / "early.cubin"
    source.write_text(
        'extern "C" __global__ void loaded_early(int *out, int *in, int n) { out[threadIdx.x] = n; }'
    )
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90a", "-o", target, source], check=True)
    early = Loaded(gpu, target.read_bytes(), "loaded_early")
    with pytest.raises(TraceError, match=r"\[image-not-found\].*init_cupti_hooks"):
        do_trace(early.launch, "^loaded_early$", instrumentation_tier="sass")
