"""The two address maps of a rewritten code section, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary.elf import STT_SECTION, Elf, Section
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.errors import CubinError, UnsupportedError

Indices = npt.NDArray[np.int64]

TEXT_ALIGN = 128
"""Code sections are padded to this many bytes by every compiler seen; the caller pads."""


@dataclass(frozen=True, slots=True)
class TextEdit:
    """New code for one section of n old instructions.

    ``text``: new section bytes, a multiple of 128. ``target_map``: (n+1,), entry n = end of the first copy.
    ``place_maps``: one (n,) array per copy of the code, the instrumented copy first; -1 = deleted.
    ``register_count``: new registers per thread, or None to leave it.
    """

    section_index: int
    text: bytes
    target_map: Indices
    place_maps: list[Indices]
    register_count: int | None = None


@dataclass(slots=True)
class Moved:
    """How many holders of each kind were rewritten."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, count: int = 1) -> None:
        """Count ``count`` more holders of a kind."""
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count


class CodeMap:
    """Old byte offsets of one code section -> new ones, by kind of holder."""

    def __init__(self, elf: Elf, edit: TextEdit) -> None:
        """Raises CubinError [code-section], [text-size], [edit-text] or [edit-maps] for an impossible
        edit."""
        self.elf = elf
        self.section: Section = elf.section(edit.section_index)
        self.name = self.section.name.removeprefix(".text.")
        self.old_size = self.section.size
        self.count = self.old_size // INSTRUCTION_SIZE
        self.new_size = len(edit.text)
        self._check(edit)
        self.copies = len(edit.place_maps)
        self._target: list[int] = edit.target_map.tolist()
        self._places: list[list[int]] = [places.tolist() for places in edit.place_maps]

    def _check(self, edit: TextEdit) -> None:
        count = self.count
        if not count or self.old_size % INSTRUCTION_SIZE:
            raise CubinError("text-size", f"code section {self.section.name} has {self.old_size} bytes")
        new_count, rest = divmod(self.new_size, INSTRUCTION_SIZE)
        if rest or self.new_size % TEXT_ALIGN:
            raise CubinError(
                "edit-text", f"{self.name}: new code of {self.new_size} bytes is no multiple of {TEXT_ALIGN}"
            )
        if edit.target_map.shape != (count + 1,) or not edit.place_maps:
            raise CubinError(
                "edit-maps", f"{self.name}: target map of {edit.target_map.shape} for {count} instructions"
            )
        low = 0
        for number, places in enumerate(edit.place_maps):
            kept = places[places >= 0]
            if places.shape != (count,) or not kept.size or np.any(np.diff(kept) <= 0) or int(kept[0]) < low:
                raise CubinError(
                    "edit-maps", f"{self.name}: place map {number} does not ascend over {count} instructions"
                )
            low = int(kept[-1]) + 1
        # target[i] lies behind every kept instruction before i and not behind instruction i.
        first, target = edit.place_maps[0], edit.target_map
        behind = np.maximum.accumulate(np.concatenate(([0], first + 1)))
        kept_rows = first >= 0
        ordered = (
            int(target[0]) == 0
            and bool(np.all(target >= behind))
            and bool(np.all(np.diff(target) >= 0))
            and bool(np.all(target[:-1][kept_rows] <= first[kept_rows]))
        )
        if not ordered or low > new_count or int(target[-1]) > new_count:
            raise CubinError("edit-maps", f"{self.name}: target map and place map contradict each other")

    def _index(self, offset: int, holder: str) -> int:
        index, rest = divmod(offset, INSTRUCTION_SIZE)
        if rest or not 0 <= index < self.count:
            raise CubinError(
                "code-offset",
                f"{holder} of {self.name} names byte {offset:#x}, no instruction of {self.count}",
            )
        return index

    def target_of(self, offset: int, copy: int = 0, holder: str = "a code address") -> int:
        """New byte offset of a control-flow target; the section's end maps to the copy's end."""
        if offset == self.old_size:
            return self.end_of(copy)
        if copy:
            return self.place_of(offset, copy, holder)
        return INSTRUCTION_SIZE * self._target[self._index(offset, holder)]

    def end_of(self, copy: int) -> int:
        """New byte offset behind a copy of the code."""
        return INSTRUCTION_SIZE * (max(self._places[copy]) + 1 if copy else self._target[self.count])

    def place_of(self, offset: int, copy: int, holder: str) -> int:
        """New byte offset of an instruction itself. Raises UnsupportedError [deleted-instruction]."""
        place = self._places[copy][self._index(offset, holder)]
        if place < 0:
            raise UnsupportedError(
                "deleted-instruction", f"{holder} names the deleted instruction at {offset:#x} of {self.name}"
            )
        return INSTRUCTION_SIZE * place

    def row_of(self, offset: int, copy: int, holder: str) -> int:
        """New byte offset of a line row: its instruction, or what follows where that was deleted."""
        if copy == 0 and self._places[0][self._index(offset, holder)] < 0:
            return self.target_of(offset, holder=holder)
        return self.place_of(offset, copy, holder)

    def span_end(self, start: int, end: int) -> int:
        """New end of a range [start, end): a range over the whole section stays one."""
        return self.new_size if start == 0 and end == self.old_size else self.target_of(end)

    def new_value(self, symbol: int) -> int:
        """New value of a symbol of this section (by index)."""
        found = self.elf.symbols[symbol]
        return (
            found.value
            if found.kind == STT_SECTION
            else self.target_of(found.value, holder=f"symbol {found.name}")
        )

    def owns(self, start: tuple[int, int] | None) -> bool:
        """Whether a (symbol index, addend) address lies in this section."""
        return start is not None and self.elf.symbols[start[0]].section == self.section.index
