#!/usr/bin/env python3
"""Fetch the open corpus: cubins inside public PyPI wheels, pinned by sha256, into a folder that git ignores.

    python tools/fetch_corpus.py [--dest .corpus] [--target sm_90 --target sm_90a] [--list]
    python tools/fetch_corpus.py --wide DIR [--sm 90]     # every cubin of the same wheels, for learning and soaking

Each wheel is downloaded with ``pip download --no-deps``, the listed members are searched for ELF images and each image
is accepted only if its sha256 is the pinned one. Files already there with the right hash are kept. Exit codes: 0 all
there, 2 something could not be had (each named on stderr).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gwatch.cuda.binary.fatbin import iter_fatbin_images  # noqa: E402
from gwatch.errors import GWatchError  # noqa: E402

PINS = Path(__file__).resolve().with_name("open_corpus.json")
# The pinned members come from CPython 3.11 wheels; the Python that runs this tool does not matter.
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_31_x86_64",
    "linux_x86_64",
)


@dataclass(frozen=True)
class Pin:
    """One cubin of the corpus: where it is and what its bytes hash to."""

    wheel: str
    version: str
    member: str
    index: int
    target: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        return f"{self.target}-{self.wheel}-{self.sha256[:12]}.cubin"


def read_pins(targets: list[str] | None = None) -> list[Pin]:
    """The pinned cubins, all or only those of the named targets ("sm_90a")."""
    pins = [
        Pin(c["wheel"], c["version"], c["member"], c["index"], c["target"], c["sha256"], c["bytes"])
        for c in json.loads(PINS.read_text())["cubins"]
    ]
    return [pin for pin in pins if not targets or pin.target in targets]


def _has(path: Path, pin: Pin) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == pin.sha256


def _write(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as handle:
        handle.write(data)
    os.replace(handle.name, path)


def _download(wheel: str, version: str, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.11",
        "--implementation",
        "cp",
        "--abi",
        "cp311",
        "--abi",
        "abi3",
        "--abi",
        "none",
        *(part for name in PLATFORMS for part in ("--platform", name)),
        "--dest",
        str(folder),
        f"{wheel}=={version}",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.whl"))
    if result.returncode or not found:
        raise GWatchError(
            "corpus-download", f"{wheel}=={version} could not be downloaded: {result.stderr.strip()[-300:]}"
        )
    return found[0]


def fetch(dest: Path, targets: list[str] | None = None, log: bool = True) -> tuple[list[Path], list[str]]:
    """Make every pinned cubin of ``targets`` present in ``dest``; returns (files, problems)."""
    dest.mkdir(parents=True, exist_ok=True)
    pins = read_pins(targets)
    files = [dest / pin.file_name for pin in pins]
    problems: list[str] = []
    missing: dict[tuple[str, str], list[Pin]] = defaultdict(list)
    for pin, path in zip(pins, files, strict=True):
        if not _has(path, pin):
            missing[pin.wheel, pin.version].append(pin)
    for number, ((wheel, version), wanted) in enumerate(sorted(missing.items()), 1):
        if log:
            print(
                f"[{number}/{len(missing)}] {wheel} {version}: {len(wanted)} cubins",
                file=sys.stderr,
                flush=True,
            )
        with tempfile.TemporaryDirectory() as folder:
            try:
                problems += _extract(_download(wheel, version, Path(folder)), wanted, dest)
            except GWatchError as error:
                problems.append(str(error))
    return [path for path in files if path.is_file()], problems


def _extract(wheel: Path, pins: list[Pin], dest: Path) -> list[str]:
    open_pins = {pin.sha256: pin for pin in pins}
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted({pin.member for pin in pins}):
            for _, image in iter_fatbin_images(archive.read(member)):
                pin = open_pins.pop(hashlib.sha256(image).hexdigest(), None)
                if pin is not None:
                    _write(dest / pin.file_name, image)
    return [
        f"[corpus-missing] {pin.wheel}=={pin.version} {pin.member} #{pin.index}: no image with sha256 {pin.sha256}"
        for pin in open_pins.values()
    ]


def fetch_wide(dest: Path, sm: int | None) -> int:
    """Write every ELF image of the pinned wheels (all targets or only ``sm``) to ``dest``; says how many."""
    dest.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for wheel, version in sorted({(pin.wheel, pin.version) for pin in read_pins()}):
        with (
            tempfile.TemporaryDirectory() as folder,
            zipfile.ZipFile(_download(wheel, version, Path(folder))) as archive,
        ):
            for member in archive.namelist():
                if ".so" not in Path(member).name:
                    continue
                for entry, image in iter_fatbin_images(archive.read(member)):
                    digest = hashlib.sha256(image).hexdigest()
                    if digest in seen or (sm is not None and entry.sm != sm):
                        continue
                    seen.add(digest)
                    _write(dest / f"sm{entry.sm}-{wheel}-{digest[:12]}.cubin", image)
        print(f"{wheel} {version}: {len(seen)} cubins so far", file=sys.stderr, flush=True)
    return len(seen)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the pinned open corpus of cubins.")
    parser.add_argument("--dest", type=Path, default=ROOT / ".corpus")
    parser.add_argument("--target", action="append", help="only this target, e.g. sm_90a (repeatable)")
    parser.add_argument("--list", action="store_true", help="print the pinned cubins and stop")
    parser.add_argument(
        "--wide", type=Path, help="extract every cubin of the pinned wheels into this folder instead"
    )
    parser.add_argument("--sm", type=int, help="with --wide: only this SM number, e.g. 90")
    args = parser.parse_args()
    if args.wide:
        print(f"{fetch_wide(args.wide, args.sm)} cubins in {args.wide}")
        return 0
    if args.list:
        for pin in read_pins(args.target):
            print(f"{pin.target:8} {pin.size:9,} {pin.wheel}=={pin.version} {pin.member} #{pin.index}")
        return 0
    files, problems = fetch(args.dest, args.target)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(files)} cubins in {args.dest}")
    return 2 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
