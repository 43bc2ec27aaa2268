"""What a kernel must declare because of what its code reads."""

from __future__ import annotations

from gwatch.cuda.binary.elf import Elf
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.nvinfo import Attr, Attribute, first, parse, serialize
from gwatch.errors import CubinError

_BARE = 1


def declare_ctaid_z(image: bytes, kernel: str) -> bytes:
    """``image`` with the attribute CTAIDZ_USED on ``kernel`` (mangled name), where compilers write it: behind the list
    of exits. Below sm_90 exactly the kernels that read SR_CTAID.Z carry it (6,722 of 6,722 in compiler output).

    Raises CubinError ``[info-missing]`` when the kernel has no attributes.
    """
    elf = Elf(image)
    section = elf.find(f".nv.info.{kernel}")
    if section is None:
        raise CubinError("info-missing", f"{kernel} has no .nv.info section", "start from what the compiler wrote")
    attributes = list(parse(elf.content(section), section.name))
    if first(attributes, Attr.CTAIDZ_USED) is not None:
        return image
    exits = first(attributes, Attr.EXIT_INSTR_OFFSETS)
    place = attributes.index(exits) + 1 if exits is not None else len(attributes)
    attributes.insert(place, Attribute(_BARE, int(Attr.CTAIDZ_USED), 0))
    editor = Editor(elf)
    editor.replace(section.index, serialize(attributes))
    return editor.write()
