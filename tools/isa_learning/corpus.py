"""Instruction words of cubins: every text section of every file of an architecture."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from isa_learning.probe import CONTROL_MASK

WORDS = Path(__file__).resolve().with_name("words")


def cubins(folders: Sequence[Path], number: int, exclude: Sequence[str] = (),
           include: Sequence[str] = ()) -> list[Path]:
    """Cubins of SM ``number`` (any suffix) in ``folders``; the architecture leads the file name (``sm_90a-…``)."""
    pattern = re.compile(rf"sm_?{number}[af]?-")
    found = [p for folder in folders for p in sorted(folder.glob("*.cubin")) if pattern.match(p.name)]
    return [p for p in found if not any(e in p.name for e in exclude)
            and (not include or any(i in p.name for i in include))]


_SECTION = np.dtype([("name", "<u4"), ("kind", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"),
                     ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8")])


def text_array(path: Path) -> npt.NDArray[np.uint64]:
    """All 128-bit words of a cubin's text sections, in order, as (n, 2) low and high halves."""
    return text_sections(path.read_bytes())


def text_sections(data: bytes, leave: Callable[[str], bool] | None = None) -> npt.NDArray[np.uint64]:
    """The same of a cubin's bytes, without the kernels and functions whose mangled names ``leave`` says yes to.

    The section table is read in one go: a batch of small kernels has hundreds.
    """
    start, (count, names) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3C)
    table = np.frombuffer(data, _SECTION, count, start)
    first = int(table[names]["offset"])
    parts = []
    for row in table:
        name = first + int(row["name"])
        if data.startswith(b".text", name) and not (
                leave is not None and leave(data[name + len(".text."):data.index(0, name)].decode("latin-1"))):
            parts.append(np.frombuffer(data, "<u8", int(row["size"]) // 16 * 2, int(row["offset"])).reshape(-1, 2))
    return np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.uint64)


def text_words(path: Path) -> Iterable[int]:
    """The same words as integers."""
    return (low | high << 64 for low, high in text_array(path).tolist())


def corpus_words(folders: Sequence[Path], number: int, exclude: Sequence[str] = (),
                 include: Sequence[str] = ()) -> list[int]:
    """Distinct words (control bits cleared), sorted."""
    words: set[int] = set()
    for path in cubins(folders, number, exclude, include):
        words.update(w & ~CONTROL_MASK for w in text_words(path))
    return sorted(words)


def listed_words(path: Path, number: int, exclude: Sequence[str] = ()) -> set[int]:
    """The words of SM ``number`` (any suffix), control bits included, in a file of tools/harvest_words.py.

    Libraries whose name contains one of ``exclude`` are left out.
    """
    words: set[int] = set()
    wanted = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if " " not in line:
            if wanted:
                words.add(int(line, 16))
            continue
        target, _, library = line.partition(" ")
        wanted = target.rstrip("af") == f"sm_{number}" and not any(e in library for e in exclude)
    return words
