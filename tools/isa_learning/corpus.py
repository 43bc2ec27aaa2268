"""Instruction words of cubins: every text section of every file of an architecture."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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


def _texts(data: bytes) -> Iterator[tuple[str, int, int]]:
    """(mangled name, file offset, size) of the text sections; the section table is read in one go: a batch of small
    kernels has hundreds."""
    start, (count, names) = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<HH", data, 0x3C)
    table = np.frombuffer(data, _SECTION, count, start)
    first = int(table[names]["offset"])
    for row in table:
        name = first + int(row["name"])
        if data.startswith(b".text", name):
            yield (data[name + len(".text."):data.index(0, name)].decode("latin-1"), int(row["offset"]),
                   int(row["size"]))


def text_names(data: bytes) -> list[str]:
    """The mangled names of a cubin's kernels and functions."""
    return [name for name, _, _ in _texts(data)]


def text_sections(data: bytes) -> npt.NDArray[np.uint64]:
    """The same of a cubin's bytes."""
    parts = [np.frombuffer(data, "<u8", size // 16 * 2, offset).reshape(-1, 2) for _, offset, size in _texts(data)]
    return np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.uint64)


def text_words(path: Path) -> Iterable[int]:
    """The same words as integers."""
    return (low | high << 64 for low, high in text_array(path).tolist())


def project_of(library: str) -> str:
    """The project of a wheel's name, without its version and CUDA's: ``cupy`` of ``cupy_cuda13x 14.2.0``."""
    return re.sub(r"_(?:cu(?:da)?\d+x?|gpu|genai|plugin|kernels)(?=_|$)", "", library.partition(" ")[0])


def corpus_words(folders: Sequence[Path], number: int, exclude: Sequence[str] = ()) -> dict[str, set[int]]:
    """Distinct words (control bits cleared) by project; the library stands second in a cubin's name."""
    words: dict[str, set[int]] = defaultdict(set)
    for path in cubins(folders, number, exclude):
        words[project_of(path.name.split("-")[1])].update(w & ~CONTROL_MASK for w in text_words(path))
    return words


def listed_words(path: Path, number: int, exclude: Sequence[str] = ()) -> dict[str, set[int]]:
    """The words of SM ``number`` (any suffix), control bits included, in a file of tools/harvest_words.py, by project.

    Libraries whose name contains one of ``exclude`` are left out.
    """
    words: dict[str, set[int]] = defaultdict(set)
    library = None
    for line in path.read_text(encoding="utf-8").splitlines():
        if " " not in line:
            if library is not None:
                words[project_of(library)].add(int(line, 16))
            continue
        target, _, name = line.partition(" ")
        library = name if target.rstrip("af") == f"sm_{number}" and not any(e in name for e in exclude) else None
    return words
