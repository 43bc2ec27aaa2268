"""Export, package, run, check and inspect a Triton copy kernel; then trace it inside the loaded package.

    python examples/aoti/inspect_vector_copy.py [--output DIR] [--break-alignment]

1. A model whose only operator is a Triton copy kernel is exported and packaged with AOTInductor (``model.pt2``).
2. The package is loaded and run; input and output must agree bit for bit.
3. ``gwatch.inspect`` opens the package and answers whether the kernel's loads and stores are 128 bits wide, on which
   line of the Triton source, and if not, which argument lacks which alignment. The rule
   ``kernel:copy.* has LDG.E.128 >= 2`` decides the exit code.
4. The same kernel is traced inside the loaded package: a record in front of every global load and store.

``--break-alignment`` passes a view that starts one element into its buffer and drops the hint on the offsets, so that
Triton can't promise 16-byte alignment: the rule then fails and names the argument. Needs PyTorch with CUDA, Triton and
one GPU. Exit codes: 0 done, 1 the rule is broken, 2 bits differ.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import torch
import torch._inductor
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gwatch.inspect import text
from gwatch.inspect.report import Report
from gwatch.inspect.rules import parse_require
from gwatch.inspect.run import Request, inspect

BLOCK = 1024
SHAPE = (1024, 1024)
RULES = ("kernel:copy.* has LDG.E.128 >= 2", "kernel:copy.* has STG.E.128 >= 2")


@triton.jit
def copy_kernel(in_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr, ALIGNED: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    if ALIGNED:
        offsets = tl.multiple_of(offsets, 16)
    tl.store(out_ptr + offsets, tl.load(in_ptr + offsets, mask=mask), mask=mask)


def _copy(x: torch.Tensor, aligned: bool) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    count = x.numel()
    wrap_triton(copy_kernel)[(triton.cdiv(count, BLOCK),)](x, out, count, BLOCK_SIZE=BLOCK, ALIGNED=aligned)
    return out


@triton_op("gwatch_example::copy", mutates_args=())
def copy(x: torch.Tensor) -> torch.Tensor:
    """A copy of a contiguous tensor whose storage is aligned."""
    return _copy(x, True)


@triton_op("gwatch_example::copy_shifted", mutates_args=())
def copy_shifted(x: torch.Tensor) -> torch.Tensor:
    """A copy of all but the first element: the source starts 4 bytes into its buffer."""
    return _copy(x.reshape(-1)[1:], False)


class Copy(torch.nn.Module):
    """The whole model."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy_shifted(x) if self.shifted else copy(x)


def package(folder: Path, shifted: bool) -> Path:
    """Export and package the model; the path of the package."""
    model = Copy(shifted).cuda().eval()
    exported = torch.export.export(model, args=(torch.randn(SHAPE, device="cuda"),), strict=True)
    target = folder / ("shifted.pt2" if shifted else "model.pt2")
    return Path(
        torch._inductor.aoti_compile_and_package(exported.run_decompositions(), package_path=str(target))
    )


def same_bits(runner: object, shifted: bool) -> bool:
    """Run the package and compare input and output bit for bit."""
    x = torch.randn(SHAPE, device="cuda")
    y = runner(x)  # type: ignore[operator]
    expected = x.reshape(-1)[1:] if shifted else x
    return bool(torch.equal(expected.contiguous().view(torch.int32), y.view(torch.int32)))


def look(path: Path) -> Report:
    """Inspect the package with the rules."""
    rules = tuple(parse_require(rule) for rule in RULES)
    return inspect([path], Request(kernels="copy", rules=rules, vectorization=True))


def trace(runner: object, report: Report) -> None:
    """Trace the kernel's global accesses inside the loaded package."""
    from gwatch.cuda.xtrace import SassTraceSite, do_trace

    kernel = report.images[0].kernels[0]
    assert kernel.vectorization is not None
    sites = [
        SassTraceSite(access.pc // 16, label=f"{access.action} {access.argument}", warp_level=True)
        for access in kernel.vectorization.accesses
    ]
    x = torch.randn(SHAPE, device="cuda")
    result = do_trace(
        lambda: runner(x),  # type: ignore[operator]
        f"^{re.escape(kernel.facts.name)}$",
        instrumentation_tier="sass",
        sass_trace_sites=sites,
        sass_per_thread_records=16,
    )
    records = result["records"]
    print(
        f"traced {len(records)} records at {len(sites)} sites inside the package, {result['dropped']} dropped"
    )
    for number, site in enumerate(sites):
        print(f"  site {number} ({site.label}): {int((records['site'] == number).sum())} records")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="keep the package there (default: a temporary folder)")
    parser.add_argument("--break-alignment", action="store_true", help="copy from an unaligned address")
    parser.add_argument("--no-trace", action="store_true", help="stop after the inspection")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this example needs a CUDA device", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = package(folder, args.break_alignment)
        print(f"packaged {path} ({path.stat().st_size} bytes)")
        runner = torch._inductor.aoti_load_package(str(path))
        if not same_bits(runner, args.break_alignment):
            print("input and output differ", file=sys.stderr)
            return 2
        print("input and output agree bit for bit")
        report = look(path)
        print(text.render(report), end="")
        if not args.no_trace and report.images:
            trace(runner, report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
