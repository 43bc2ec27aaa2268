"""Scope markers: exact counts, payloads and labels on both tiers, outputs like those of the unmarked kernel, and what
markers and records cost, a warp-specialised Hopper product included.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gwatch
from gpu_checks.pairs import against, interleave
from gpu_checks.support import ROOT, Facts, check
from gwatch.common.format import Section_IntraKernelTrace
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.ptx import PtxModule
from gwatch.cuda.launcher import Launcher
from gwatch.cuda.trace.ptxplan import plan_ptx, ptx_scopes
from gwatch.cuda.xtrace import do_trace
from gwatch.cuda.xtrace.scopes import scope_sites
from gwatch.errors import GWatchError
from gwatch.rewrite.trace import plan_trace

SOURCE = ROOT / "tests/gpu/kernels/scopes.cu"
EXAMPLES = ROOT / "examples/cuda/trace"
TILELANG = ROOT / "tests/scopes/data/tilelang_matmul"
sys.path.insert(0, str(EXAMPLES))
TIERS = ("sass", "ptx")
ROUNDS = 200
GEMM = (8448, 8192, 8192)
TORCH_TYPES = {"int32": torch.int32, "float32": torch.float32}


@cache
def built(marked: bool, kind: str = "cubin") -> Path:
    """scopes.cu compiled for the H200."""
    path = Path(tempfile.mkdtemp(prefix="gwatch-scopes-")) / f"scopes{int(marked)}.{kind}"
    command = [
        "nvcc",
        f"-{kind}",
        "-arch=sm_90a",
        "-lineinfo",
        f"-DMARKED={int(marked)}",
        f"-I{gwatch.get_include()}",
    ]
    subprocess.run([*command, "-o", path, SOURCE], check=True)
    return path


def traced(fn: Any, kernel: str, tier: str, **options: Any) -> Any:
    """``do_trace`` at the markers of a CUDA C++ kernel launched by a Launcher."""
    options.setdefault("passes", 1)
    if tier == "ptx":
        options.setdefault("ptx", built(True, "ptx"))
    return do_trace(fn=fn, kernel_name_pattern=f"^{kernel}$", dsl="", instrumentation_tier=tier, **options)


@check("scopes")
def every_thread_and_warp_leaves_its_records() -> Facts:
    grid, block, trips = 7, 160, 10
    n = grid * block
    x = torch.randint(-1000, 1000, (n,), device="cuda", dtype=torch.int32)
    plain, out = torch.zeros_like(x), torch.zeros_like(x)
    with Launcher(built(False), "counted") as launcher:
        launcher.launch(grid, block, (plain, x, np.int32(trips)))
        torch.cuda.synchronize()
    facts: Facts = {}
    with Launcher(built(True), "counted") as launcher:
        for tier in TIERS:
            for warp in (False, True):
                out.zero_()
                result = traced(
                    lambda: launcher.launch(grid, block, (out, x, np.int32(trips))),
                    "counted",
                    tier,
                    scope_name_map={1: "load", 2: "trip", 3: "odd"},
                    warp_level=warp,
                    sass_per_thread_records=64,
                    outputs=[out],
                )
                name = f"{tier} {'warp' if warp else 'thread'}"
                assert torch.equal(out, plain), f"{name}: outputs differ from the unmarked kernel's"
                assert result["outputs"] == "identical", f"{name}: {result['outputs']}"
                rows = n // 32 if warp else n
                odd = rows if warp else n // 2
                counts = np.bincount(result["records"]["site"], minlength=6).tolist()
                assert counts == [rows, rows, rows * trips, rows * trips, odd, odd], f"{name}: {counts}"
                assert result["scopes"] == {1: "load", 2: "trip", 3: "odd"} and result["dropped"] == 0
                _check_payload(result, block, name)
                facts[name] = len(result["records"])
    return facts


def _check_payload(result: Any, block: int, name: str) -> None:
    """Scope 1 starts with the thread's number."""
    first = result["records"][result["records"]["site"] == 0]
    cta = first["block"][:, 0].astype(np.int64)
    if name.endswith("warp"):
        wanted = cta * block + 32 * first["warp"] + first["lane"]
    else:
        wanted = cta * block + first["thread"]
    assert (first["value"].astype(np.int64) == wanted).all(), f"{name}: a payload is not its thread's number"
    others = result["records"][result["records"]["site"] != 0]
    assert not others["value"].any(), f"{name}: a value where none was given"


@check("scopes")
def both_tiers_agree_on_a_duration() -> Facts:
    out = torch.zeros(132 * 128, device="cuda")
    facts: Facts = {}
    with Launcher(built(True), "timed") as launcher:
        for warp in (False, True):
            medians = {}
            for tier in TIERS:
                result = traced(
                    lambda: launcher.launch(132, 128, (out, np.float32(0.999), np.int32(32))),
                    "timed",
                    tier,
                    clock_type="sm",
                    warp_level=warp,
                    sass_per_thread_records=64,
                )
                section = Section_IntraKernelTrace()
                section.add_run(result)
                (stats,) = section.runs[0].analysis["scope_stats"]
                assert stats["count"] == 32 * 132 * (4 if warp else 128), stats
                medians[tier] = stats["p50"]
            level = "warp" if warp else "thread"
            facts[level] = medians
            # 64 dependent FMAs of 4 cycles; a record's own instructions are part of the span it opens.
            assert 256 <= medians["sass"] <= 256 + 60, f"{level}: {medians}"
            assert abs(medians["sass"] - medians["ptx"]) <= 80, f"{level}: {medians}"
    return facts


@check("scopes")
def triton_attention() -> Facts:
    import trace_triton_attention as example

    heads, length = 4, 512
    q, k, v = (
        torch.randn(heads, length, example.DEPTH, device="cuda", dtype=torch.float16) for _ in range(3)
    )
    plain, out = torch.zeros_like(q), torch.zeros_like(q)
    example.run(q, k, v, plain, marked=False)
    torch.cuda.synchronize()
    steps, threads = length // example.COLUMNS, heads * (length // example.ROWS) * 128
    facts: Facts = {}
    for tier in TIERS:
        for warp in (False, True):
            out.zero_()
            result = do_trace(
                fn=lambda: example.run(q, k, v, out),
                kernel_name_pattern="^attention_kernel$",
                dsl="triton",
                instrumentation_tier=tier,
                scope_name_map=example.NAMES,
                warp_level=warp,
                sass_per_thread_records=6 * steps,
                passes=2,
            )
            name = f"{tier} {'warp' if warp else 'thread'}"
            assert torch.equal(out, plain), f"{name}: outputs differ from the unmarked kernel's"
            rows = threads // 32 if warp else threads
            counts = np.bincount(result["records"]["site"], minlength=6).tolist()
            assert counts == [rows * steps] * 6, f"{name}: {counts} for {rows} rows of {steps} steps"
            assert list(result["scopes"].values()) == list(example.NAMES.values())
            slower = result["slowdown"]
            facts[name] = (
                f"registers {list(result['registers'].values())} x{slower['median'] if slower else 0:.2f}"
            )
    return facts


@check("scopes")
def tilelang_export() -> Facts:
    """The code and the PTX that TileLang exported, without TileLang."""
    size = 512
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    c, plain = torch.zeros_like(a), torch.zeros_like(a)
    facts: Facts = {}
    with Launcher(TILELANG.with_name("tilelang_unmarked.cubin")) as launcher:
        launcher.launch((8, 8), 128, (a, b, plain), shared=16384)
        torch.cuda.synchronize()
    assert torch.allclose(plain, a @ b, atol=0.5, rtol=1e-2), "the unmarked product is wrong"
    with Launcher(TILELANG.with_suffix(".cubin")) as launcher:
        for tier in TIERS:
            c.zero_()
            result = traced(
                lambda: launcher.launch((8, 8), 128, (a, b, c), shared=16384),
                "matmul_tiles_kernel",
                tier,
                ptx=TILELANG.with_suffix(".ptx") if tier == "ptx" else None,
                scope_name_map={1: "load tiles", 2: "multiply"},
                sass_per_thread_records=64,
            )
            assert result["outputs"] == "identical", result["outputs"]
            assert torch.equal(c, plain), f"{tier}: outputs differ from the unmarked kernel's"
            counts = np.bincount(result["records"]["site"], minlength=4).tolist()
            assert counts == [64 * 128 * 16] * 4, f"{tier}: {counts}"
            facts[tier] = len(result["records"])
    return facts


def _cute(program: str) -> Facts:
    """What a CuTeDSL program found; a process of its own, since the order of its imports matters."""
    if importlib.util.find_spec("cutlass") is None:
        raise AssertionError("nvidia-cutlass-dsl is not installed here, so CuTeDSL kernels were not checked")
    command = [sys.executable, str(ROOT / "tests/gpu/programs" / program)]
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, (done.stderr or done.stdout)[-1500:]
    found: Facts = json.loads(done.stdout.splitlines()[-1])
    return found


@check("scopes")
def cute_program() -> Facts:
    """The documentation's program and the example's product."""
    return _cute("cute_scopes.py")


@check("scopes")
def cute_warp_specialised_product() -> Facts:
    """Records as many as loop trips in every role; SASS records at most 1 % slower."""
    found = _cute("cute_hgmma.py")
    assert found["sass"]["slower"] <= 1.01, str(found)
    return found


@check("scopes")
def cost_of_markers_where_loads_are_batched() -> Facts:
    grid, block, trips = 264, 512, 16
    threads = grid * block
    x = torch.randn(threads * trips * 8, device="cuda")
    out, plain = torch.zeros(threads, device="cuda"), torch.zeros(threads, device="cuda")
    with (
        Launcher(built(False), "batched") as unmarked,
        Launcher(built(True), "batched") as marked,
    ):

        def run(launcher: Launcher, to: torch.Tensor) -> float:
            launcher.launch(grid, block, (to, x, np.int32(trips)))
            return launcher.duration_ms() or 0.0

        times = interleave(
            {
                "unmarked": lambda: run(unmarked, plain),
                "unmarked again": lambda: run(unmarked, plain),
                "marked": lambda: run(marked, out),
            },
            ROUNDS,
        )
    assert torch.equal(out, plain), "outputs differ from the unmarked kernel's"
    return {
        "marked_untraced": against(times, "unmarked", "marked"),
        "a_a": against(times, "unmarked", "unmarked again"),
    }


@cache
def gemm_files() -> tuple[Path, Path, Path]:
    """The Hopper product without markers, with them, and its PTX; compiled side by side."""
    import trace_cuda_hgmma_matmul as example

    folder = Path(tempfile.mkdtemp(prefix="gwatch-hgmma-"))
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(example.build, folder, marked, kind)
            for marked, kind in ((False, "cubin"), (True, "cubin"), (True, "ptx"))
        ]
        unmarked, with_markers, ptx = (job.result() for job in jobs)
    return unmarked, with_markers, ptx


class Gemm:
    """The Hopper product with and without markers, and with records on either tier."""

    def __init__(self, shape: tuple[int, int, int], depth: int, clock: str = "sm") -> None:
        import trace_cuda_hgmma_matmul as example

        self.product = example.Product(*shape)
        self.refused: dict[str, str] = {}
        unmarked, marked, ptx = gemm_files()
        cubin = Cubin.from_file(marked)
        kernel = cubin.get_kerneldef_by_name(example.KERNEL)
        sites, self.scopes = scope_sites(kernel, example.NAMES, True)
        self.images: dict[str, Any] = {"unmarked": unmarked, "unmarked again": unmarked, "marked": marked}
        self.registers = {
            "unmarked": Cubin.from_file(unmarked).get_kerneldef_by_name(example.KERNEL).register_count
        }
        module = PtxModule(ptx.read_text(), "hgmma_matmul.ptx")
        found = ptx_scopes(module, example.KERNEL, example.NAMES, True)
        for tier, plan in (
            ("sass", lambda: plan_trace(cubin, kernel, sites, clock=clock, depth=depth)),
            ("ptx", lambda: plan_ptx(found, cubin, kernel, clock=clock, depth=depth)),
        ):
            try:
                planned: Any = plan()
            except GWatchError as error:
                self.refused[tier] = str(error)  # the others are measured all the same
                continue
            self.images[tier] = planned.data
            self.registers[tier] = planned.site_map.registers_after
        self.launchers = {name: Launcher(image, example.KERNEL) for name, image in self.images.items()}

    def run(self, name: str) -> float:
        """Milliseconds of one launch."""
        launcher = self.launchers[name]
        self.product.launch(launcher)
        return launcher.duration_ms() or 0.0

    def close(self) -> None:
        for launcher in self.launchers.values():
            launcher.close()


@check("scopes")
def warp_specialised_product_counts() -> Facts:
    """Every role's records equal its loop trips; the product is that of the unmarked kernel, bit by bit."""
    gemm = Gemm((2048, 2048, 1024), depth=256)
    product = gemm.product
    try:
        gemm.run("unmarked")
        wanted = product.c.clone()
        reference = product.a @ product.b.T
        assert torch.allclose(wanted, reference, rtol=2e-2, atol=0.5), "the unmarked product is wrong"
        facts: Facts = {}
        for name in ("marked", *(tier for tier in TIERS if tier in gemm.images)):
            product.c.zero_()
            gemm.run(name)
            torch.cuda.synchronize()
            assert torch.equal(product.c, wanted), f"{name}: outputs differ from the unmarked kernel's"
            if name == "marked":
                continue
            decoded = gemm.launchers[name].collect()
            per_warp = decoded.visits.sum(axis=2)
            expected = np.zeros_like(per_warp)
            for cta in range(product.grid):
                expected[cta, [0, *range(4, 12)]] = 4 * product.steps(cta)
            assert (per_warp == expected).all(), (
                f"{name}: {per_warp[0].tolist()} records, not {expected[0].tolist()}"
            )
            assert decoded.dropped_total == 0, f"{name}: {decoded.dropped_total} dropped"
            facts[name] = int(per_warp.sum())
        assert not gemm.refused, f"{gemm.refused} {facts}"
        return facts
    finally:
        gemm.close()


@check("scopes")
def warp_specialised_product_cost() -> Facts:
    """TFLOP/s; markers at most 0.5 %, SASS records at most 1 % slower than the kernel without either, over interleaved
    pairs; and what the records alone cost the marked kernel."""
    gemm = Gemm(GEMM, depth=64)
    try:
        times = interleave({name: (lambda name=name: gemm.run(name)) for name in gemm.launchers}, ROUNDS)
        fastest = min(times["unmarked"])
        median = sorted(times["unmarked"])[ROUNDS // 2]
        facts: Facts = {
            "TFLOPs_median": round(gemm.product.flops / median / 1e9, 1),
            "TFLOPs_best": round(gemm.product.flops / fastest / 1e9, 1),
            "a_a": against(times, "unmarked", "unmarked again"),
            "marked_untraced": against(times, "unmarked", "marked"),
            **{tier: against(times, "unmarked", tier) for tier in TIERS if tier in times},
            **{f"{tier}_records": against(times, "marked", tier) for tier in TIERS if tier in times},
            "registers": gemm.registers,
            "pairs": ROUNDS,
        }
        told = "  ".join(f"{name}={value}" for name, value in facts.items())
        assert not gemm.refused, f"{gemm.refused} {told}"
        assert facts["marked_untraced"].percent <= 0.5 and facts["sass"].percent <= 1.0, told
        return facts
    finally:
        gemm.close()
