"""Instruction words of cubins: every text section of every file of an architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile
from isa_learning.probe import CONTROL_MASK


def cubins(folders: Sequence[Path], number: int, exclude: Sequence[str] = (),
           include: Sequence[str] = ()) -> list[Path]:
    """Cubins of SM ``number`` (any suffix) in ``folders``; the architecture leads the file name (``sm_90a-…``)."""
    pattern = re.compile(rf"sm_?{number}[af]?-")
    found = [p for folder in folders for p in sorted(folder.glob("*.cubin")) if pattern.match(p.name)]
    return [p for p in found if not any(e in p.name for e in exclude)
            and (not include or any(i in p.name for i in include))]


def text_words(path: Path) -> Iterable[int]:
    """All 128-bit words of a cubin's text sections, in order."""
    with path.open("rb") as handle:
        for section in ELFFile(handle).iter_sections():
            if section.name.startswith(".text"):
                data = section.data()
                for start in range(0, len(data) - 15, 16):
                    yield int.from_bytes(data[start:start + 16], "little")


def corpus_words(folders: Sequence[Path], number: int, exclude: Sequence[str] = (),
                 include: Sequence[str] = ()) -> list[int]:
    """Distinct words (control bits cleared), sorted."""
    words: set[int] = set()
    for path in cubins(folders, number, exclude, include):
        words.update(w & ~CONTROL_MASK for w in text_words(path))
    return sorted(words)
