"""Other words in a kernel of the same length: nothing moves, so everything around the code must still hold.

The code of a kernel is described elsewhere in the image: how many registers it has, where its exits, barriers and
other special instructions are, which words the loader completes. New words that contradict any of it are refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.binary.mercury import without_mercury
from gwatch.cuda.binary.nvinfo import Attr, code_offsets
from gwatch.errors import UnsupportedError
from gwatch.sass.isa import FILE_NAMES, isa_for
from gwatch.sass.isa.vector import Section

_GENERAL = FILE_NAMES.index("R")


def patch_words(cubin: Cubin, kernel: str, words: npt.NDArray[np.uint64]) -> bytes:
    """The image with the code of ``kernel`` replaced by ``words`` ``(n, 2)``, as many as it has now.

    On sm_100 and later a second form of the code, which would no longer be the same, is left out.

    Raises KernelError, and UnsupportedError ``[asm-length]``, ``[asm-registers]``, ``[asm-attribute]``,
    ``[asm-relocation]``, ``[mercury]`` for what does not fit the rest of the image.
    """
    old = cubin.get_kerneldef_by_name(kernel)
    if len(words) != len(old.words):
        raise UnsupportedError(
            "asm-length", f"{kernel} has {len(old.words)} instructions, the text {len(words)}",
            "fill up with NOP; Cubin.insert_instruction and gwatch rewrite move what follows",
        )  # fmt: skip
    changed = np.flatnonzero(np.any(words != old.words, axis=1))
    if not len(changed):
        return cubin.data
    isa = isa_for(cubin.arch)
    before, after = isa.section(old.words), isa.section(words)
    _check_registers(old, before, after)
    _check_attributes(old, before, after)
    _check_relocations(old, changed)
    image = bytearray(without_mercury(cubin.data))
    start = Cubin.from_bytes(bytes(image), cubin.name).get_kerneldef_by_name(kernel).section.offset
    image[start : start + len(words) * INSTRUCTION_SIZE] = np.ascontiguousarray(words, "<u8").tobytes()
    return bytes(image)


def _highest(section: Section) -> int:
    uses = section.uses
    mine = uses.file == _GENERAL
    return int((uses.first[mine] + uses.count[mine] - 1).max(initial=-1))


def _check_registers(kernel: KernelDef, before: Section, after: Section) -> None:
    highest = _highest(after)
    if highest <= _highest(before) or not kernel.is_entry:
        return
    if highest >= kernel.register_count:
        raise UnsupportedError(
            "asm-registers", f"{kernel.name} is launched with {kernel.register_count} registers a thread, the text "
            f"uses R{highest}", "use lower registers; gwatch rewrite raises the count",
        )  # fmt: skip


def _mnemonics(section: Section) -> list[str]:
    names = [name.split(".")[0] for name in section.opcode_names]
    return [names[code] if code >= 0 else "" for code in section.opcodes.tolist()]


def _check_attributes(kernel: KernelDef, before: Section, after: Section) -> None:
    old, new = _mnemonics(before), _mnemonics(after)
    for attribute in kernel.attributes:
        for offset in code_offsets(attribute):
            index = kernel.index_of(offset)
            if old[index] != new[index]:
                raise UnsupportedError(
                    "asm-attribute", f"{kernel.name}: instruction {index} ({old[index]}) is listed in "
                    f"{attribute.name}, the text has {new[index] or 'data'} there", "leave it as it is",
                )  # fmt: skip
    exits = {index for index, name in enumerate(new) if name == "EXIT"}
    for index in sorted(exits - {index for index, name in enumerate(old) if name == "EXIT"}):
        raise UnsupportedError(
            "asm-attribute", f"{kernel.name}: instruction {index} becomes an EXIT, which "
            f"{Attr.EXIT_INSTR_OFFSETS.name} does not list", "branch to an EXIT that is there",
        )  # fmt: skip


def _check_relocations(kernel: KernelDef, changed: npt.NDArray[np.intp]) -> None:
    places = {entry.offset // INSTRUCTION_SIZE for entry in kernel.relocations}
    for index in changed.tolist():
        if index in places:
            raise UnsupportedError(
                "asm-relocation", f"{kernel.name}: the loader completes instruction {index} "
                f"({kernel.text(index)}); another one can't stand there", "leave it as it is",
            )  # fmt: skip
