#!/usr/bin/env python3
"""Compare what `gwatch inspect` finds in wheels with cuobjdump: every cubin, byte for byte, and its resources.

    python tools/check_wheels.py WHEEL … [--resources 200]

Each binary member is unpacked and given to `cuobjdump -xelf all`; the set of sha256 must equal ours, but for what
cuobjdump doesn't look for: relocatable images beside linked ones, and plain cubins in a library's data. Of each wheel,
the first ``--resources`` cubins are compared with `cuobjdump -res-usage`: registers, stack, shared and local memory and
constants of every kernel. cuobjdump refuses a whole file that has one entry for a removed architecture; such members
are counted as "refused by cuobjdump". Prints one line a wheel with the peak memory of this process (the wheels are
streamed). Exit codes: 0 all equal, 1 a difference, 2 cuobjdump missing.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import resource
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tools" / "bench"))

from inspect_speed import find_cuobjdump  # noqa: E402

from gwatch.cuda.binary.elf import ET_REL  # noqa: E402
from gwatch.errors import GWatchError  # noqa: E402
from gwatch.inspect.artifacts import Image, open_artifact  # noqa: E402
from gwatch.inspect.facts import resources_of  # noqa: E402
from gwatch.inspect.view import CubinView  # noqa: E402

USAGE = re.compile(
    r"Function (?P<name>.*):\n\s+REG:(?P<reg>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)"
    r"(?P<constants>(?: CONSTANT\[\d+\]:\d+)*)"
)


def theirs(program: Path, wheel: Path, folder: Path) -> tuple[set[str], set[str]]:
    """sha256 of every cubin cuobjdump extracts, and the members it refuses."""
    found: set[str] = set()
    refused: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if ".so" not in Path(member.filename).name:
                continue
            work = folder / "member"
            work.mkdir()
            source = work / Path(member.filename).name
            with archive.open(member) as stream, open(source, "wb") as target:
                while block := stream.read(1 << 20):
                    target.write(block)
            out = work / "out"
            out.mkdir()
            done = subprocess.run(
                [program, "-xelf", "all", source], cwd=out, capture_output=True, check=False
            )
            if done.returncode != 0 and b"does not contain device code" not in done.stderr + done.stdout:
                refused.add(member.filename)
            found.update(hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir())
            subprocess.run(["rm", "-rf", work], check=True)
    return found, refused


def compare_resources(program: Path, image: Image, folder: Path) -> tuple[int, list[str]]:
    """Kernels compared, and differences in words; cubins that either side can't read are passed over."""
    path = folder / "one.cubin"
    path.write_bytes(image.data)
    done = subprocess.run([program, "-res-usage", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:  # an architecture that was removed from the toolkit
        return 0, []
    text = done.stdout
    try:
        view = CubinView.of(image.data, image.path)
    except GWatchError:  # an architecture that gwatch only extracts
        return 0, []
    kernels = view.cubin.get_map_kernel_def()
    problems = []
    compared = 0
    for match in USAGE.finditer(text):
        kernel = kernels.get(match["name"])
        if kernel is None:
            continue
        ours = resources_of(view, kernel)
        banks = tuple(sorted((int(b), int(n)) for b, n in re.findall(r"\[(\d+)\]:(\d+)", match["constants"])))
        expected = (*(int(match[part]) for part in ("reg", "stack", "shared", "local")), banks)
        if (ours.registers, ours.stack, ours.shared, ours.local, ours.constants) != expected:
            problems.append(f"{image.path}: {kernel.name}: {ours} but cuobjdump says {expected}")
        compared += 1
    return compared, problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument(
        "--resources", type=int, default=200, help="cubins a wheel whose resources are compared"
    )
    args = parser.parse_args()
    program = find_cuobjdump()
    if program is None:
        print("cuobjdump is missing: pip install nvidia-cuda-cuobjdump", file=sys.stderr)
        return 2
    failed = False
    for wheel in args.wheels:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ours: set[str] = set()
            elsewhere: set[str] = set()
            kernels = images = 0
            problems: list[str] = []
            for item in open_artifact(wheel):
                if not isinstance(item, Image):
                    continue
                images += 1
                digest = hashlib.sha256(item.data).hexdigest()
                if digest not in ours and len(ours) < args.resources:
                    compared, found = compare_resources(program, item, folder)
                    kernels += compared
                    problems += found
                ours.add(digest)
                if item.kind == "embedded" or item.data[16:18] == ET_REL.to_bytes(2, "little"):
                    elsewhere.add(digest)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            expected, refused = theirs(program, wheel, folder)
        missing, beyond = len(expected - ours), ours - expected
        extra = len(beyond - elsewhere)
        bad = missing or problems or (extra and not refused)
        failed = failed or bool(bad)
        print(
            f"{wheel.name}: {wheel.stat().st_size / 1e6:.0f} MB, {images} cubins ({len(ours)} distinct), cuobjdump "
            f"{len(expected)}, missing {missing}, only ours {extra} "
            f"and {len(beyond & elsewhere)} relocatable or outside of fat binaries, members refused by cuobjdump "
            f"{len(refused)}; "
            f"{kernels} kernels' resources compared, {len(problems)} differ; peak memory {peak:.0f} MB",
            flush=True,
        )
        for line in problems[:5]:
            print(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
