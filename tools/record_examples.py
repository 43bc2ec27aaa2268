#!/usr/bin/env python3
"""Record the small traces that the documentation shows: run on an H200, then commit the archives.

    python tools/record_examples.py [FOLDER]

Writes matmul.gwatch, attention.gwatch and hopper_product.gwatch into FOLDER (default: here), source files named from
the top of the repository on.
Needs nvcc, torch, triton, cupy and cuda-python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gwatch.common.format import File  # noqa: E402

PROGRAMS = ROOT / "tests/gpu/programs"
MATMUL = """
import cupy, numpy as np
kernel = cupy.RawModule(path={cubin!r}).get_function("matmul")
a, b = (cupy.asarray(np.random.default_rng(1).standard_normal((256, 256), np.float32)) for _ in range(2))
c = cupy.zeros((256, 256), np.float32)
for _ in range(4):
    kernel((16, 16), (16, 16), (a, b, c, np.int32(256)))
cupy.cuda.Device().synchronize()
"""


def portable(archive: Path, title: str) -> None:
    """Give the report a title, and its source files paths that mean something elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "report.json"
        report = File.load(archive)
        report.title = title
        report.render(text)
        text.write_text(text.read_text().replace(f"{ROOT}/", ""))
        File.load(text).render(archive)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="an existing folder (default: here)")
    folder = parser.parse_args().folder.resolve(strict=True)
    source, cubin = ROOT / "examples/cuda/trace/matmul.cu", folder / "matmul.cubin"
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-lineinfo", "-o", cubin, source], check=True)
    programs = {
        "matmul": ("^matmul$", 16, ["-c", MATMUL.format(cubin=str(cubin))]),
        "attention": ("^attention$", 16, [str(PROGRAMS / "attention.py")]),
        "hopper_product": ("hgmma", 8, [str(PROGRAMS / "hopper_product.py")]),
    }
    failed = 0
    for name, (kernel, ctas, program) in programs.items():
        options = ["--kernel", kernel, "--auto", "--verify", "--ctas", str(ctas), "--force"]
        archive = folder / f"{name}.gwatch"
        command = [sys.executable, "-m", "gwatch", "trace", *options, "-o", archive, "--"]
        code = subprocess.run([*command, sys.executable, *program], cwd=ROOT, check=False).returncode
        failed += code != 0
        if code == 0:
            portable(archive, f"Trace of {name}")
    cubin.unlink()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
