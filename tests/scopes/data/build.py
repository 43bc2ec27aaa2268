#!/usr/bin/env python3
"""Make the files of this folder again.

build.py cuda      nvcc
build.py cute      nvidia-cutlass-dsl (no GPU needed)
build.py triton    triton 3.6 (no GPU needed)
build.py tilelang  tilelang and nvcc (no GPU needed)
build.py golden    nothing but gwatch
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ARCHS = ("75", "80", "86", "89", "90", "90a", "100a", "103a", "120", "121")
sys.path[:0] = [str(ROOT), str(ROOT / "examples/cuda/trace"), str(ROOT / "tests/gpu/programs")]


def nvcc(kind: str, arch: str, source: Path, target: Path, *more: str) -> None:
    """Compile to PTX or a cubin."""
    command = [
        "nvcc",
        f"-{kind}",
        f"-arch=sm_{arch}",
        f"-I{ROOT / 'gwatch/include'}",
        *more,
        "-o",
        target,
        source,
    ]
    subprocess.run(command, check=True, cwd=HERE)


def cuda() -> None:
    """markers.cu for every architecture, sentinels.cu, the Hopper product of the examples."""
    for arch in ARCHS:
        nvcc("cubin", arch, HERE / "markers.cu", HERE / f"markers_sm{arch}.cubin")
    for name in ("markers", "sentinels"):
        nvcc("ptx", "90a", HERE / f"{name}.cu", HERE / f"{name}.ptx")
    nvcc("cubin", "90a", HERE / "sentinels.cu", HERE / "sentinels_sm90a.cubin")
    product = ROOT / "examples/cuda/trace/hgmma_matmul.cu"
    nvcc("cubin", "90a", product, HERE / "hgmma_matmul.cubin", "-DMARKED=1")


def cute() -> None:
    """The example's matrix product, and the warp-specialised one that runs on a GPU of sm_90."""
    folder = tempfile.mkdtemp()
    os.environ.update(
        CUTE_DSL_ARCH="sm_90a", CUTE_DSL_KEEP_PTX="1", CUTE_DSL_KEEP_CUBIN="1", CUTE_DSL_DUMP_DIR=folder
    )
    import cutlass
    import trace_cute_matmul as example
    from cutlass import cute as dsl
    from cutlass.cute.runtime import make_fake_compact_tensor

    tensors = [make_fake_compact_tensor(cutlass.Float32, (256, 256), stride_order=(1, 0)) for _ in range(3)]
    dsl.compile(example.matmul, *tensors, 256, True)
    for path in Path(folder).iterdir():
        path.rename(HERE / f"cute_matmul{path.suffix}")
    import cute_hgmma as product

    halves = [
        make_fake_compact_tensor(cutlass.Float16, (8192, size), stride_order=(1, 0), assumed_align=16)
        for size in (4096, 4096, 8192)
    ]
    dsl.compile(product.hgmma, *halves, 132, True)
    (made,) = Path(folder).glob("*.cubin")
    (HERE / "cute_hgmma.cubin").write_bytes(made.read_bytes())


def triton() -> None:
    """The example's attention."""
    import trace_triton_attention as example
    import triton as dsl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {**dict.fromkeys(("q", "k", "v", "out"), "*fp16"), "length": "i32", "scale": "fp32"}
    constants = {"ROWS": 64, "COLUMNS": 64, "DEPTH": 64, "MARKED": True}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(5)}
    source = ASTSource(example.attention_kernel, types, constants, attrs=aligned)
    made = dsl.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
    text = made.asm["ptx"].replace(str(ROOT), "")
    (HERE / "triton_attention.ptx").write_text(text)
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # without the line tables, which name this machine's folders
        plain = Path(folder, "plain.ptx")
        plain.write_text("\n".join(line for line in text.splitlines() if not line.strip().startswith(".loc")))
        subprocess.run(["ptxas", "-arch=sm_90a", "-o", HERE / "triton_attention.cubin", plain], check=True)


def tilelang() -> None:
    """The example's matrix product: TileLang's CUDA C++, compiled by nvcc."""
    import tilelang as dsl
    import trace_tilelang_matmul as example
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    package = Path(dsl.__file__).parent
    options = [
        "-std=c++17",
        "--expt-relaxed-constexpr",
        f"-I{package / 'src'}",
        f"-I{package / '3rdparty/cutlass/include'}",
    ]
    with tempfile.TemporaryDirectory() as folder, target:
        path = Path(folder, "kernel.cu")
        for marked, name, kinds in ((True, "matmul", ("ptx", "cubin")), (False, "unmarked", ("cubin",))):
            path.write_text(dsl.lower(example.matmul(512, marked), target=target).kernel_source)
            for kind in kinds:
                nvcc(kind, "90a", path, HERE / f"tilelang_{name}.{kind}", *options)


def golden() -> None:
    """What the PTX tier writes for each PTX file here."""
    from gwatch.cuda.binary.ptx import PtxModule
    from gwatch.cuda.trace.ptxplan import choose_ptx_format, instrument, ptx_scopes

    for path in sorted(HERE.glob("*.ptx")):
        if ".traced" in path.suffixes:
            continue
        module = PtxModule(path.read_text(), path.name)
        for warp_level in (False, True):
            found = ptx_scopes(module, module.kernels[0], {}, warp_level)
            fmt = choose_ptx_format(found, "gpu", 32, "newest", None)
            text = instrument(found, "gpu", fmt, "gwatch_ring")
            target = HERE / f"{path.stem}.{'warp' if warp_level else 'thread'}.traced.ptx"
            target.write_text(changes(module.text, text))


def changes(before: str, after: str) -> str:
    """The lines that were put in, each run behind the line it follows."""
    import difflib

    return (
        "\n".join(
            difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", n=1, lineterm="")
        )
        + "\n"
    )


if __name__ == "__main__":
    {f.__name__: f for f in (cuda, cute, triton, tilelang, golden)}[sys.argv[1]]()
