#!/usr/bin/env python3
"""Trace a warp-specialised Hopper matrix product in CUDA C++ (hgmma_matmul.cu) by scope markers.

    python3 trace_cuda_hgmma_matmul.py [--tier sass|ptx] [--report trace.html]

One record per warp. Producer and consumers get roles of their own in the report. Needs an H200 (or another sm_90 GPU),
nvcc, torch and cuda-python.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gwatch
from gwatch.common.format import File
from gwatch.cuda.launcher import Launcher
from gwatch.cuda.trace import do_trace
from gwatch.cuda.trace.format import Section_IntraKernelTrace
from gwatch.errors import GWatchError

SOURCE = Path(__file__).resolve().parent / "hgmma_matmul.cu"
KERNEL = "hgmma_matmul"
NAMES = {1: "wait for slot", 2: "issue loads", 3: "wait for data", 4: "multiply"}
ROLES = {
    "wait for slot": "Producer",
    "issue loads": "Producer",
    "wait for data": "Consumer",
    "multiply": "Consumer",
}
TILE_M, TILE_N, TILE_K, CLUSTER = 128, 256, 64, 2
THREADS, SHARED_BYTES = 384, 4 * (TILE_M + TILE_N) * TILE_K * 2 + 1024
BOX_ROWS = 128


def build(folder: Path, marked: bool = True, kind: str = "cubin") -> Path:
    """The kernel compiled to a cubin, or to PTX (``kind``)."""
    path = folder / f"hgmma_matmul_{int(marked)}.{kind}"
    include = gwatch.get_include()
    subprocess.run(
        [
            "nvcc",
            f"-{kind}",
            "-arch=sm_90a",
            "-lineinfo",
            f"-DMARKED={int(marked)}",
            f"-I{include}",
            "-o",
            path,
            SOURCE,
        ],
        check=True,
    )
    return path


def tensor_map(array: Any) -> bytes:
    """The 128 bytes that tell the TMA unit of a row-major (rows, columns) bfloat16 torch tensor."""
    from cuda.bindings import driver as cuda

    rows, columns = array.shape
    one = cuda.cuuint32_t
    status, found = cuda.cuTensorMapEncodeTiled(
        cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        array.data_ptr(),
        [cuda.cuuint64_t(columns), cuda.cuuint64_t(rows)],
        [cuda.cuuint64_t(columns * 2)],
        [one(TILE_K), one(BOX_ROWS)],
        [one(1), one(1)],
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != cuda.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"cuTensorMapEncodeTiled: {status.name}")
    return ctypes.string_at(found.getPtr(), 128)


class Product:
    """C = A * B^T for bfloat16 torch tensors (m, k) and (n, k)."""

    def __init__(self, m: int, n: int, k: int) -> None:
        import torch

        if m % (TILE_M * CLUSTER) or n % TILE_N or k % TILE_K:
            raise SystemExit("m and n must be multiples of 256, k of 64")
        torch.manual_seed(1)
        self.a, self.b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        self.c = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
        self.shape = m, n, k
        clusters = torch.cuda.get_device_properties(0).multi_processor_count // CLUSTER
        self.tiles = m // (TILE_M * CLUSTER) * (n // TILE_N)
        self.grid = CLUSTER * min(clusters, self.tiles)
        self._maps = tensor_map(self.a), tensor_map(self.b)

    @property
    def flops(self) -> float:
        """Floating-point operations of one product."""
        m, n, k = self.shape
        return 2.0 * m * n * k

    def steps(self, cta: int) -> int:
        """Main-loop iterations of each role in a CTA."""
        clusters = self.grid // CLUSTER
        mine = -(-(self.tiles - cta // CLUSTER) // clusters)
        return mine * (self.shape[2] // TILE_K)

    def launch(self, launcher: Launcher, **options: Any) -> None:
        """One launch, not waited for."""
        args = (*self._maps, self.c, *(ctypes.c_int(size) for size in self.shape))
        launcher.launch(self.grid, THREADS, args, shared=SHARED_BYTES, **options)


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=("sass", "ptx"), default="sass")
    parser.add_argument("--size", type=int, nargs=3, metavar=("M", "N", "K"), default=(2048, 2048, 2048))
    parser.add_argument(
        "--report", default="trace.html", help="an .html or .json report (default trace.html)"
    )
    args = parser.parse_args()
    product = Product(*args.size)
    with tempfile.TemporaryDirectory() as folder:
        cubin = build(Path(folder))
        with Launcher(cubin) as launcher:
            result = do_trace(
                fn=lambda: product.launch(launcher),
                kernel_name_pattern=f"^{KERNEL}$",
                dsl="",
                scope_name_map=NAMES,
                instrumentation_tier=args.tier,
                ptx=build(Path(folder), kind="ptx") if args.tier == "ptx" else None,
                warp_level=True,
                sass_per_thread_records=1024,
                outputs=[product.c],
            )
    if not torch.allclose(product.c, product.a @ product.b.T, rtol=1e-2, atol=0.5):
        raise SystemExit("the product is wrong")
    section = Section_IntraKernelTrace()
    section.add_run(result, scope_roles=ROLES)
    report = File(title="Warp-specialised matrix product")
    report.add_section(section)
    report.render(args.report)
    print(f"wrote {args.report}: {result!r}")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except GWatchError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
