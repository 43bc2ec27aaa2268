#!/usr/bin/env python3
"""Export, package, run, check and inspect a Triton copy kernel; then trace it inside the loaded package.

    python examples/aoti/inspect_vector_copy.py [--output DIR] [--break-alignment | --embed | --all]

1. A model whose only operator is a Triton copy kernel is exported and packaged with AOTInductor (``model.pt2``).
2. The package is loaded and run by the first loader that works here (``package_loaders.py`` tries each in a process of
   its own and names those that crash); input and output must agree bit for bit.
3. ``gwatch.inspect`` opens the package and answers whether the kernel's loads and stores are 128 bits wide, on which
   line of the Triton source, and if not, which argument lacks which alignment. The rules
   ``kernel:copy.* has LDG.E.128 >= 2`` and the same for STG decide the exit code.
4. The same kernel is traced inside the loaded package: a record in front of every global load and store.

``--break-alignment`` passes a view that starts one element into its buffer and drops the hint on the offsets, so that
Triton can't promise 16-byte alignment: the rule for loads then fails and names the argument. ``--embed`` puts the cubin
inside the wrapper library instead of beside it. ``--all`` makes all three packages and checks that each shows what it
should. Needs PyTorch with CUDA, Triton, a C++ compiler and one GPU; a package takes 20 to 40 s, most of it imports and
the C++ compiler. Exit codes: 0 done, 1 the rule is broken (``--all``: something isn't as it should be), 2 bits differ
or nothing loads the package.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._inductor
import triton
import triton.language as tl
from package_loaders import LOADERS, working_loader
from torch.library import triton_op, wrap_triton

from gwatch.inspect import text
from gwatch.inspect.report import Report
from gwatch.inspect.rules import parse_require
from gwatch.inspect.run import Request, inspect

BLOCK = 1024
SHAPE = (1024, 1024)
RULES = ("kernel:copy.* has LDG.E.128 >= 2", "kernel:copy.* has STG.E.128 >= 2")
# What makes the C++ part of a package quick to compile: a header compiled in advance pays from the third package on.
QUICK = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}


@dataclass(frozen=True)
class Variant:
    """A package: whether the kernel reads from an unaligned address, and whether the library embeds its cubin."""

    name: str
    shifted: bool = False
    embedded: bool = False


ALIGNED, SHIFTED, EMBEDDED = Variant("model"), Variant("shifted", shifted=True), Variant("embedded", embedded=True)


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
    """A copy that starts 4 bytes into its buffer; the number of elements stays a multiple of 16."""
    return _copy(shift(x), False)


def shift(x: torch.Tensor) -> torch.Tensor:
    """All elements but the first one and the last 15."""
    return x.reshape(-1)[1:-15]


class Copy(torch.nn.Module):
    """The whole model."""

    def __init__(self, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return copy_shifted(x) if self.shifted else copy(x)


def package(folder: Path, variant: Variant) -> Path:
    """Export and package the model; the path of the package."""
    model = Copy(variant.shifted).cuda().eval()
    exported = torch.export.export(model, args=(torch.randn(SHAPE, device="cuda"),), strict=True)
    return Path(
        torch._inductor.aoti_compile_and_package(
            exported.run_decompositions(),
            package_path=str(folder / f"{variant.name}.pt2"),
            inductor_configs={**QUICK, "aot_inductor.embed_kernel_binary": variant.embedded},
        )
    )


def same_bits(runner: object, shifted: bool) -> bool:
    """Run the package and compare input and output bit for bit."""
    x = torch.randn(SHAPE, device="cuda")
    y = runner(x)  # type: ignore[operator]
    expected = shift(x) if shifted else x
    return bool(torch.equal(expected.contiguous().view(torch.int32), y.view(torch.int32)))


def look(path: Path) -> Report:
    """Inspect the package with the rules."""
    rules = tuple(parse_require(rule) for rule in RULES)
    return inspect([path], Request(kernels="copy", rules=rules, vectorization=True))


def trace(runner: object, report: Report) -> list[int]:
    """Trace the kernel's global accesses inside the loaded package; records at each."""
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
    counts = [int((records["site"] == number).sum()) for number in range(len(sites))]
    print(f"traced {len(records)} records at {len(sites)} sites inside the package, {result['dropped']} dropped")
    for number, site in enumerate(sites):
        print(f"  site {number} ({site.label}): {counts[number]} records")
    return counts


def problems(variant: Variant, report: Report, counts: list[int] | None) -> list[str]:
    """What is not as this variant must be."""
    found = []
    kernels = [kernel for image in report.images for kernel in image.kernels]
    if len(kernels) != 1 or (report.images[0].kind == "embedded") != variant.embedded:
        found.append(f"{len(kernels)} kernels in {[image.kind for image in report.images]}")
    elif kernels[0].vectorization is None or not kernels[0].vectorization.described:
        found.append("the wrapper's description of the kernel was not found")
    causes = [violation.cause for _, violation in report.violations]
    if not variant.shifted and causes:
        found.append(f"broken rules: {causes}")
    if variant.shifted and not any("divisibility: in_ptr" in cause for cause in causes):
        found.append(f"in_ptr is not named: {causes}")
    if counts is not None and not variant.shifted and counts != [SHAPE[0] * SHAPE[1] // BLOCK * 4] * 4:
        found.append(f"records at the sites: {counts}")
    if counts is not None and variant.shifted and (not counts or min(counts) == 0):
        found.append(f"records at the sites: {counts}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="keep the packages there (default: a temporary folder)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--break-alignment", action="store_true", help="copy from an unaligned address")
    which.add_argument("--embed", action="store_true", help="put the cubin inside the wrapper library")
    which.add_argument("--all", action="store_true", help="make and check all three packages")
    parser.add_argument("--no-trace", action="store_true", help="stop after the inspection")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this example needs a CUDA device", file=sys.stderr)
        return 2
    chosen = [SHIFTED if args.break_alignment else EMBEDDED if args.embed else ALIGNED]
    wrong: list[str] = []
    broken = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for variant in (ALIGNED, SHIFTED, EMBEDDED) if args.all else chosen:
            begin = time.perf_counter()
            path = package(folder, variant)
            seconds = time.perf_counter() - begin
            print(f"packaged {path} ({path.stat().st_size} bytes) in {seconds:.1f} s", flush=True)
            try:
                loader, failed = working_loader(path, SHAPE, variant.shifted)
            except RuntimeError as error:
                print(f"nothing loads the package: {error}", file=sys.stderr)
                return 2
            for tried in failed:
                print(f"{tried.loader}: {tried.problem}; the next one is tried")
            print(f"loaded by {loader}", flush=True)
            runner = LOADERS[loader](path, variant.shifted)
            if not same_bits(runner, variant.shifted):
                print("input and output differ", file=sys.stderr)
                return 2
            print("input and output agree bit for bit")
            report = look(path)
            print(text.render(report), end="", flush=True)
            counts = trace(runner, report) if report.images and not args.no_trace else None
            broken = broken or bool(report.violations)
            wrong += [f"{variant.name}: {problem}" for problem in problems(variant, report, counts)]
    if args.all:
        print("\n".join(wrong) or "all three packages show what they should")
        return 1 if wrong else 0
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
