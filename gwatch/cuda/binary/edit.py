"""Inserting and deleting single instructions: words, everything that holds an address, and the section's
padding.

No register or scoreboard is looked after here: the caller's words run as they are. :mod:`gwatch.rewrite` does
that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gwatch.cuda.binary.elf import Elf
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.binary.relayout import TEXT_ALIGN, TextEdit, apply_edit, check_supported
from gwatch.errors import SiteError
from gwatch.sass.isa import isa_for
from gwatch.sass.motion import move_words

_LOW = (1 << 64) - 1


def edit_instructions(
    image: bytes,
    kernel: KernelDef,
    inserted: Mapping[int, Sequence[int]],
    deleted: frozenset[int] = frozenset(),
) -> bytes:
    """The image with 128-bit words inserted before, and instructions deleted at, indices of one kernel.

    Raises SiteError [site-range], and by name whatever can't be moved (UnsupportedError).
    """
    count = len(kernel.words)
    for index in [*inserted, *deleted]:
        if not 0 <= index <= count - (index in deleted):
            raise SiteError("site-range", f"{kernel.name}: index {index} is outside its {count} instructions")
    check_supported(Elf(image), kernel.section_index)
    isa = isa_for(kernel.arch)
    relocated = frozenset(entry.offset // INSTRUCTION_SIZE for entry in kernel.relocations)
    moved = move_words(isa, kernel.words, inserted, deleted, kernel.entry_indices, relocated)
    room = -len(moved.words) % (TEXT_ALIGN // INSTRUCTION_SIZE)
    nop = isa.encode("NOP")
    padding = np.tile(np.array([[nop & _LOW, nop >> 64]], np.uint64), (room, 1))
    text = np.ascontiguousarray(np.concatenate((moved.words, padding)), dtype="<u8").tobytes()
    layout = moved.layout
    return apply_edit(image, TextEdit(kernel.section_index, text, layout.target_map, [layout.place_map]))


def word_of(kernel: KernelDef, instruction: int | bytes | str, index: int) -> int:
    """An instruction given as word, 16 bytes or SASS text, as the word to stand at ``index``.

    Text is encoded with the default control word (stall 1, no scoreboard). Raises SiteError [word-size],
    EncodeError.
    """
    if isinstance(instruction, str):
        return isa_for(kernel.arch).encode(instruction, pc=index * INSTRUCTION_SIZE)
    if isinstance(instruction, bytes):
        if len(instruction) != INSTRUCTION_SIZE:
            raise SiteError(
                "word-size", f"an instruction has {INSTRUCTION_SIZE} bytes, not {len(instruction)}"
            )
        return int.from_bytes(instruction, "little")
    if not 0 <= instruction < 1 << 8 * INSTRUCTION_SIZE:
        raise SiteError("word-size", f"{instruction:#x} is no 128-bit instruction word")
    return instruction
