"""Helpers of the inspect tests: fixtures, hand-made containers, cuobjdump as the oracle."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import lz4.block
import pytest
import zstandard

from gwatch.cuda.binary.fatbin import MAGIC

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TRITON = FIXTURES / "triton"
WRAPPER = (FIXTURES / "vector_copy.wrapper.cpp").read_text()
COPY_CUBIN = (FIXTURES / "vector_copy.cubin").read_bytes()
# The file name under which the wrapper loads its kernel.
COPY_NAME = "cpmm3ngs2mgkcf2ixdlj6rk7w6r6gcul7ytvyu4xnsonzr6ro2ii.cubin"
FOLDER = "copy/data/aotinductor/model"
DIVISIBLE = (
    "{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}"
)


def cuobjdump(*arguments: str | Path, folder: Path | None = None) -> str:
    """Standard output of NVIDIA's cuobjdump, run in ``folder``."""
    found = [path for entry in sys.path for path in Path(entry or ".").glob("nvidia/*/bin/cuobjdump")]
    if not found:
        pytest.fail("cuobjdump is missing: pip install nvidia-cuda-cuobjdump (in the dev extra)")
    command = [found[0], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_pt2(path: Path, wrapper: str, members: dict[str, bytes]) -> Path:
    """A package like AOTInductor's: the cubins before the wrapper, as torch writes them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(f"{FOLDER}/{name}", data)
        archive.writestr(f"{FOLDER}/model.wrapper.cpp", wrapper)
        archive.writestr("copy/archive_format", "pt2")
    return path


def host_elf(content: bytes, pad: int = 0x2345) -> bytes:
    """An x86-64 ELF file with ``content`` somewhere in it, on a multiple of 8."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    # An ELF magic that starts nothing, as in a linker's own strings.
    front = header + b"\x7fELF\x02\x01 not an image" + bytes(pad)
    return front + bytes(-len(front) % 8) + content + bytes(100)


def fatbin(members: list[tuple[int, bytes, str]]) -> bytes:
    """A fat binary of ``(sm, image, "" | "lz4" | "zstd")`` members."""
    body = b""
    for sm, image, packing in members:
        flags, stored = 0, image
        if packing == "lz4":
            flags, stored = 0x2000, lz4.block.compress(image, store_size=False)
        elif packing == "zstd":
            flags, stored = 0x8000, zstandard.ZstdCompressor().compress(image)
        size = len(stored)
        padded = stored + bytes(-size % 8)
        head = struct.pack("<HHIQI", 2, 0x0101, 64, len(padded), size if packing else 0)
        head = head.ljust(28, b"\0") + struct.pack("<I", sm)
        head = head.ljust(40, b"\0") + struct.pack("<Q", flags)
        head = head.ljust(56, b"\0") + struct.pack("<Q", len(image) if packing else 0)
        body += head + padded
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


RESOURCES = re.compile(
    r"Function (?P<name>.*):\n\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) "
    r"LOCAL:(?P<local>\d+)(?P<constants>(?: CONSTANT\[\d+\]:\d+)*)"
)
