"""Inserting and deleting single instructions: words, everything that holds an address, and the section's
padding.

No register or scoreboard is looked after here: the caller's words run as they are. :mod:`gwatch.rewrite` does
that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary.elf import Elf
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.binary.relayout import TEXT_ALIGN, TextEdit, apply_edit, check_supported
from gwatch.errors import SiteError
from gwatch.sass.cfg import build_cfg
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.motion import move_words

_LOW = (1 << 64) - 1
_STEP = TEXT_ALIGN // INSTRUCTION_SIZE


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
            raise SiteError(
                "site-range",
                f"{kernel.name}: index {index} is outside its {count} instructions",
                f"give an index from 0 to {count - 1}, or {count} to insert at the end",
            )
    check_supported(Elf(image), kernel.section_index)
    isa = isa_for(kernel.arch)
    relocated = frozenset(entry.offset // INSTRUCTION_SIZE for entry in kernel.relocations)
    spare, nop = _padding(isa, kernel)
    moved = move_words(
        isa,
        kernel.words,
        inserted,
        deleted | spare,
        kernel.entry_indices,
        relocated,
        kernel.indirect_targets,
        kernel.pointer_callees,
        kernel.table_bytes(),
    )
    tail = np.tile(nop, (-len(moved.words) % _STEP, 1))
    text = np.ascontiguousarray(np.concatenate((moved.words, tail)), dtype="<u8").tobytes()
    target = moved.layout.target_map.copy()
    target[-1] = len(text) // INSTRUCTION_SIZE
    return apply_edit(image, TextEdit(kernel.section_index, text, target, [moved.layout.place_map]))


def _padding(isa: Isa, kernel: KernelDef) -> tuple[frozenset[int], npt.NDArray[np.uint64]]:
    """The NOPs at the section's end that only fill it up, and the word to fill up with.

    They are laid anew, so that what is inserted and deleted again leaves no trace. Compilers fill to 128 bytes and,
    from sm_80 on, put 128 bytes of NOPs more (all 1,600 kernels looked at); those stay.
    """
    words = kernel.words
    count = len(words)
    last = words[-1:]
    if isa.decode(int(last[0, 1]) << 64 | int(last[0, 0])).mnemonic != "NOP":
        word = isa.encode("NOP")
        return frozenset(), np.array([[word & _LOW, word >> 64]], np.uint64)
    other = np.flatnonzero(np.any(words != last, axis=1))
    first = int(other[-1]) + 1 if len(other) else 0
    first += _STEP if count - first >= _STEP else 0
    reached = build_cfg(isa, words, kernel.entry_indices).flow.target
    return frozenset(range(first, count) if not np.any(reached >= first) else ()), last


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
                "word-size",
                f"an instruction has {INSTRUCTION_SIZE} bytes, not {len(instruction)}",
                "give 16 bytes, a 128-bit integer, or SASS text",
            )
        return int.from_bytes(instruction, "little")
    if not 0 <= instruction < 1 << 8 * INSTRUCTION_SIZE:
        raise SiteError(
            "word-size",
            f"{instruction:#x} is no 128-bit instruction word",
            "give 16 bytes, a 128-bit integer, or SASS text",
        )
    return instruction
