#!/usr/bin/env python3
"""How fast is a rewrite? One site into a kernel of some 45,000 instructions, beside nvdisasm on the same file.

    python tools/bench/rewrite_speed.py [--cuassembler CHECKOUT] [--json]

The kernel is generated and compiled with nvcc. CPU seconds and peak memory are those of the child process (and its
children); the ratios are against nvdisasm listing the same cubin in the same run. With a CuAssembler checkout, its
instructions per second for disassembling and reassembling the smallest open cubin it can read are printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.sass import nvdisasm  # noqa: E402

STATEMENTS = 7_500


def source() -> str:
    """CUDA C++ of one long straight kernel: integer, floating-point, shared and global memory work, no loops."""
    lines = [
        'extern "C" __global__ void big(float *out, const float *in, int n) {',
        "  __shared__ float s[1024]; int t = threadIdx.x; float x = in[t]; unsigned u = n; s[t] = x; __syncthreads();",
    ]
    for i in range(STATEMENTS):
        lines.append(
            (
                f"  x = fmaf(x, x + {i}.5f, s[(t + {i}) & 1023]);",
                f"  u = u * 1664525u + {i}u; if (u & {1 << (i % 20)}) x += in[u & 255];",
                f"  u ^= __float_as_uint(x) >> {i % 13}; s[(t * {i % 31 + 1}) & 1023] = x;",
            )[i % 3]
        )
    return "\n".join([*lines, "  out[t] = x + u; }"])


def measured(command: list[str]) -> dict[str, float]:
    """CPU seconds (with children) and peak resident MB of a command."""
    before = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, f"{command[0]} failed"
    return {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "wall_s": round(time.perf_counter() - before, 3),
        "peak_MB": round(usage.ru_maxrss / 1024, 1),
    }


CUASSEMBLER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from CuAsm.CubinFile import CubinFile
from CuAsm.CuAsmParser import CuAsmParser
start = time.process_time()
CubinFile(sys.argv[2]).saveAsCuAsm(sys.argv[3])
parser = CuAsmParser()
parser.parse(sys.argv[3])
parser.saveAsCubin(sys.argv[3] + ".cubin")
print(time.process_time() - start)
"""


def cuassembler(checkout: Path, folder: Path) -> dict[str, Any]:
    """Instructions per CPU second of CuAssembler's round trip over the smallest open cubin that it can read."""
    from fetch_corpus import fetch

    files, problems = fetch(ROOT / ".corpus", ["sm_75", "sm_80", "sm_86"])
    assert not problems, problems
    failed: dict[str, str] = {}
    for path in sorted(files, key=lambda file: file.stat().st_size):
        command = [sys.executable, "-c", CUASSEMBLER, str(checkout), str(path), str(folder / "cuasm")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            kernels = Cubin.from_file(path).get_map_kernel_def().values()
            rate = sum(len(kernel.words) for kernel in kernels) / float(result.stdout.split()[-1])
            return {"file": path.name, "per_cpu_s": round(rate), "failed_before": failed}
        failed[path.name] = (result.stderr.strip().splitlines() or ["?"])[-1].strip()[:80]
    return {"failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of a rewrite.")
    parser.add_argument("--cuassembler", type=Path, help="a checkout of CuAssembler to compare with")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "big.cu").write_text(source())
        cubin = folder / "big.cubin"
        subprocess.run(
            [
                "nvcc",
                "-cubin",
                "-arch=sm_90",
                "-maxrregcount=128",
                "-Xptxas",
                "-O1",
                "-o",
                str(cubin),
                str(folder / "big.cu"),
            ],
            check=True,
        )
        count = len(Cubin.from_file(cubin).get_kerneldef_by_name("big").words)
        listing = measured([str(nvdisasm.find()), "-c", str(cubin)])
        rewrite = measured(
            [
                sys.executable,
                "-m",
                "gwatch.rewrite",
                str(cubin),
                "--kernel",
                "big",
                "--site",
                str(count // 2),
                "--clock",
                "sm",
                "-o",
                str(folder / "out.cubin"),
            ]
        )
        load = subprocess.run(
            [
                sys.executable,
                "-c",
                "import time; from gwatch.sass.isa import isa_for; t = time.perf_counter(); "
                "isa_for('sm_90a'); print((time.perf_counter() - t) * 1e3)",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        rows: dict[str, Any] = {
            "instructions": count,
            "nvdisasm -c": listing,
            "gwatch.rewrite, one site": rewrite,
            "ratio_cpu": round(rewrite["cpu_s"] / listing["cpu_s"], 2),
            "ratio_memory": round(rewrite["peak_MB"] / listing["peak_MB"], 2),
            "gwatch instructions per cpu_s": round(count / rewrite["cpu_s"]),
            "table_load_ms": round(float(load.stdout), 1),
        }
        if args.cuassembler:
            rows["CuAssembler"] = cuassembler(args.cuassembler, folder)
    if args.json:
        print(json.dumps(rows))
    else:
        for key, value in rows.items():
            print(f"{key}: {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
