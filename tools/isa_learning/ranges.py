"""Reads and writes per instruction, from nvdisasm's register life ranges (``-plr``).

The option works on cubins only, so the words in question are put into the text of a cubin compiled for the purpose.
A row marks each register it reads (``v``), writes (``^``) or both (``x``).
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from isa_learning.probe import CONTROL_MASK

from gwatch.errors import ToolError
from gwatch.sass.nvdisasm import disassemble_cubin

COPIES = 3000
FILES = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
_ROW = re.compile(r"^\s+/\*([0-9a-f]+)\*/")
_CONTROL = 0x7F1 << 105
Marks = dict[tuple[str, int], str]


class Holder:
    """A cubin of one architecture with room for ``size`` instruction words in one straight kernel."""

    def __init__(self, arch: str, exit_word: int, nop_word: int) -> None:
        ptxas = shutil.which("ptxas")
        if ptxas is None:
            raise ToolError("ptxas-missing", "reads and writes are learned with a cubin made by ptxas, which is not "
                            "in PATH", "install the CUDA toolkit, or learn with --no-effects")
        body = "mov.u32 %r1, %clock; xor.b32 %r2, %r2, %r1;\n" * COPIES
        source = (f".version 9.0\n.target {arch}\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n"
                  ".reg .b32 %r<3>; .reg .b64 %rd<3>;\nld.param.u64 %rd1,[p]; mov.u32 %r2, 0;\n"
                  f"{body}st.global.u32 [%rd1], %r2;\nret; }}\n")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "holder.ptx"
            path.write_text(source, encoding="utf-8")
            out = Path(folder) / "holder.cubin"
            subprocess.run([ptxas, f"-arch={arch}", "-O1", str(path), "-o", str(out)], check=True, capture_output=True)
            self.image = out.read_bytes()
        text = next(s for s in ELFFile(io.BytesIO(self.image)).iter_sections() if s.name.startswith(".text"))
        self.offset = text["sh_offset"]
        self.size = text["sh_size"] // 16
        self.exit_word = exit_word & ~CONTROL_MASK | _CONTROL
        self.nop_word = nop_word & ~CONTROL_MASK | _CONTROL
        self.runs = 0

    def marks(self, words: Sequence[int]) -> list[Marks | None]:
        """Per word: {(file, register): "v", "^" or "x"}; None where no row was printed.

        Words behind one that ends the kernel are out of reach and have no rows: they are asked again without it.
        """
        out: list[Marks | None] = []
        room = self.size - 8
        while len(out) < len(words):
            found = self._batch(words[len(out):len(out) + room])
            out += found[:next((n for n, marks in enumerate(found) if n and marks is None), len(found))]
        return out

    def attributes(self, words: Sequence[int]) -> list[dict[str, str] | None]:
        """What ``-json`` says about each word besides its text, e.g. {"control-flow": "True"}; None for words with
        which it fails (a branch to where no instruction is)."""
        out: list[dict[str, str] | None] = []
        room = self.size - 8
        for start in range(0, len(words), room):
            out += self._attributes(words[start:start + room])
        return out

    def _attributes(self, words: Sequence[int]) -> list[dict[str, str] | None]:
        try:
            data = json.loads(disassemble_cubin(self._filled(words), "-json"))
        except ToolError:
            if len(words) == 1:
                return [None]
            half = len(words) // 2
            return self._attributes(words[:half]) + self._attributes(words[half:])
        lines = next(found for found in _instructions(data))
        return [line.get("other-attributes", {}) for line in lines[:len(words)]]

    def _filled(self, words: Sequence[int]) -> bytes:
        image = bytearray(self.image)
        filled = [*words, self.exit_word]
        filled += [self.nop_word] * (self.size - 1 - len(filled)) + [self.exit_word]
        image[self.offset:self.offset + 16 * self.size] = b"".join(w.to_bytes(16, "little") for w in filled)
        return bytes(image)

    def _batch(self, words: Sequence[int]) -> list[Marks | None]:
        self.runs += 1
        try:
            listing = disassemble_cubin(self._filled(words), "-plr")
        except ToolError:
            if len(words) == 1:
                return [None]
            half = len(words) // 2
            return self._batch(words[:half]) + self._batch(words[half:])
        marks = parse_marks(listing)
        return [marks.get(index) for index in range(len(words))]


def _instructions(data: Any) -> Iterator[list[dict[str, Any]]]:
    """The instruction lists inside ``-json`` output."""
    if isinstance(data, dict):
        if "sass-instructions" in data:
            yield data["sass-instructions"]
        data = list(data.values())
    if isinstance(data, list):
        for part in data:
            yield from _instructions(part)


def parse_marks(listing: str) -> dict[int, Marks]:
    """Marks per instruction index of a ``-plr`` listing with one kernel."""
    found: dict[int, Marks] = {}
    columns: list[tuple[str, int, int, int]] = []
    names: list[tuple[int, str]] = []
    edges: list[int] = []
    for line in listing.splitlines():
        at = line.find("// |")
        if at < 0:
            continue
        table = line[at + 3:]
        if "GPR" in table or "PRED" in table:
            names = [(m.start(), m[0]) for m in re.finditer(r"[A-Z]+", table)]
            edges = [m.start() for m in re.finditer(r"\|", table)]
            continue
        if "#" in table and ":" not in table and not columns:
            columns = _columns(table, names, edges)
            continue
        match = _ROW.match(line)
        if match and columns:
            found[int(match[1], 16) // 16] = _marks(table, columns)
    return found


def _columns(table: str, names: list[tuple[int, str]], edges: list[int]) -> list[tuple[str, int, int, int]]:
    columns = []
    for left, right in pairwise(edges):
        name = next((n for at, n in names if left < at < right), None)
        if name not in FILES:
            continue
        sharp = table.index("#", left)
        previous = sharp + 1
        for match in re.finditer(r"\d+", table[sharp:right]):
            end = sharp + match.end()
            columns.append((FILES[name], int(match[0]), previous, end))
            previous = end
    return columns


def column_places(header: Sequence[str]) -> dict[int, tuple[str, int]]:
    """Text column -> (file, register), from the rows that head a table of life ranges."""
    names: list[tuple[int, str]] = []
    edges: list[int] = []
    for table in header:
        if "GPR" in table or "PRED" in table:
            names = [(m.start(), m[0]) for m in re.finditer(r"[A-Z]+", table)]
            edges = [m.start() for m in re.finditer(r"\|", table)]
    columns = _columns(header[-1], names, edges)
    return {at: (file, register) for file, register, start, end in columns for at in range(start, end)}


def _marks(table: str, columns: list[tuple[str, int, int, int]]) -> Marks:
    marks = {}
    for name, register, start, end in columns:
        cell = table[start:end].strip()
        if cell and cell in "v^x":
            marks[name, register] = cell
    return marks
