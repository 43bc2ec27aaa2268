"""Helpers of the container tests: fixture cubins and edits that insert NOPs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.relayout import Moved, TextEdit, apply_edit

DATA = Path(__file__).resolve().parent / "data"
NOP = [0x7918, 0x000FC00000000000]
"""NOP, the same word on sm_75 to sm_121."""
HOLDERS = ("holders_sm75.cubin", "holders_sm90.cubin", "holders_sm120.cubin")


def with_dependent_mercury() -> bytes:
    """A cubin whose second form of the code can't be left out: a section stands behind it."""
    editor = Editor(load("holders_sm120.cubin").elf)
    editor.append_section(".note.other", b"note", kind=7, flags=0, align=4)
    return editor.write()


def load(name: str) -> Cubin:
    """A fixture cubin, parsed."""
    return Cubin.from_file(DATA / name)


@dataclass
class Edited:
    """An edited kernel beside the original. ``place``: per copy, old index -> new index; ``target``: old
    -> new."""

    before: KernelDef
    after: KernelDef
    cubin: Cubin
    target: list[int]
    place: list[list[int]]
    moved: dict[str, int]


def insert(
    cubin: Cubin, name: str, sites: set[int], count: int = 3, twin: bool = False, registers: int | None = None
) -> Edited:
    """Insert ``count`` NOPs before each site; optionally append a twin."""
    kernel = cubin.get_kerneldef_by_name(name)
    words = kernel.words.tolist()
    filler = NOP
    new: list[list[int]] = []
    target, place = [], []
    for index, word in enumerate(words):
        target.append(len(new))
        if index in sites:
            new += [filler] * count
        place.append(len(new))
        new.append(word)
    target.append(len(new))
    places = [place]
    if twin:
        places.append([len(new) + i for i in range(len(words))])
        new += words
    new += [filler] * (-len(new) % 8)
    edit = TextEdit(
        kernel.section_index, np.array(new, dtype="<u8").tobytes(), np.array(target, np.int64),
        [np.array(p, np.int64) for p in places], registers,
    )  # fmt: skip
    moved = Moved()
    result = Cubin.from_bytes(apply_edit(cubin.data, edit, moved))
    return Edited(kernel, result.get_kerneldef_by_name(name), result, target, places, moved.counts)
