#!/usr/bin/env python3
"""Trace a CUDA C++ matrix product at SASS sites, without touching its source.

    python3 trace_cuda_matmul_sass.py --source-line 29 --clock gpu [--report trace.html]

Line 29 of matmul.cu is the inner product. Its first instruction opens the region "inner product", the barrier behind
its last one closes it; the tile loop's first instruction is recorded once a warp, and the two global loads record the
address they read. Needs an H200 (or another sm_90 GPU); nvcc is used when it is there, else the committed cubin.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import gwatch.cuda.binary as gw_binary
from gwatch.cli.main import run_command
from gwatch.common.format import File
from gwatch.cuda.launcher import Launcher
from gwatch.cuda.xtrace import SassTraceSite, TraceResult, do_trace
from gwatch.cuda.xtrace.format import Section_IntraKernelTrace
from gwatch.errors import GWatchError

HERE = Path(__file__).resolve().parent
TILE = 16


def build(folder: Path) -> Path:
    """The kernel's cubin with line information: compiled now, or the committed one."""
    if shutil.which("nvcc") is None:
        return HERE / "matmul_sm90.cubin"
    path = folder / "matmul.cubin"
    subprocess.run(
        ["nvcc", "-cubin", "-arch=sm_90", "-lineinfo", "-o", str(path), str(HERE / "matmul.cu")], check=True
    )
    return path


def choose_sites(path: Path, line: int, warp: bool) -> tuple[list[SassTraceSite], list[tuple[int, int, str]]]:
    """Sites for a source line, read off the cubin with no GPU; and the regions they bound."""
    cubin = gw_binary.Cubin()
    cubin.fill(str(path))
    cubin.parse()
    kernel_def = cubin.get_kerneldef_by_name("matmul")
    kernel_def.parse_cfg()
    isize = kernel_def.cfg.instruction_size
    candidates = [
        index
        for index in range(len(kernel_def.list_instructions))
        if (kernel_def.map_address_to_line.get(index * isize) or (None, None))[1] == line
    ]
    if not candidates:
        raise SystemExit(f"no instruction comes from line {line} of matmul.cu")
    texts = [instruction.str(flatten=True) for instruction in kernel_def.list_instructions]
    after = next(i for i in range(candidates[-1] + 1, len(texts)) if i not in candidates)
    sites = [
        SassTraceSite(candidates[0], warp_level=warp, label=f"line {line}"),
        SassTraceSite(after, warp_level=warp, label=f"after line {line}"),
    ]
    loop = next((i for i, text in enumerate(texts) if re.match(r"UIADD3 UR(\d+), UR\1, 0x10", text)), None)
    if loop is not None:
        sites.append(SassTraceSite(loop, warp_level=True, label="tile"))
    for index, text in enumerate(texts):
        if match := re.match(r"LDG\.E\S* R\d+, desc\[UR\d+\]\[R(\d+)\.64\]", text):
            address = int(match[1])
            sites.append(
                SassTraceSite(index, value_reg=address, value_width_bits=64, warp_level=warp, label="load")
            )
    return sites, [(0, 1, "inner product")]


def trace(path: Path, sites: list[SassTraceSite], clock: str, size: int) -> TraceResult:
    """Run the product under trace and check it against numpy."""
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    c = np.zeros((size, size), np.float32)
    with Launcher(path) as launcher:
        result = do_trace(
            fn=lambda: launcher.launch((size // TILE, size // TILE), (TILE, TILE), (a, b, c, np.int32(size))),
            kernel_name_pattern=r"^matmul$",
            instrumentation_tier="sass",
            sass_trace_sites=sites,
            clock_type=clock,
            sass_per_thread_records=len(sites) * size // TILE,
            outputs=[c],
        )
    if not np.allclose(c, a @ b, atol=1e-2):
        raise SystemExit("the product is wrong")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source-line", type=int, default=29)
    parser.add_argument("--clock", choices=("gpu", "sm", "anchor"), default="gpu")
    parser.add_argument("--size", type=int, default=256, help="matrix size, a multiple of 16 (default 256)")
    parser.add_argument("--warp", action="store_true", help="one record a warp everywhere, not one a thread")
    parser.add_argument("--report", help="write an .html or .json report instead of printing")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder))
        sites, regions = choose_sites(path, args.source_line, args.warp)
        result = trace(path, sites, args.clock, args.size)
        section = Section_IntraKernelTrace()
        section.add_run(result, site_regions=regions, scope_roles={"inner product": "Math Warp"})
        report = File(title=f"matmul, line {args.source_line}")
        report.add_section(section)
        if args.report:
            report.render(args.report)
            print(f"wrote {args.report}")
            return 0
        shown = Path(folder) / "trace.json"
        report.render(str(shown))
        return run_command("show", [str(shown)])


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except GWatchError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
