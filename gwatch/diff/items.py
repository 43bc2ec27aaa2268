"""A kernel's instructions as things to compare: what they do, apart from where they stand and when they issue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gwatch.cuda.binary import KernelDef
from gwatch.errors import DecodeError, EncodeError
from gwatch.inspect.view import CubinView
from gwatch.sass.code import Code
from gwatch.sass.control import CONTROL_DTYPE, CONTROL_MASK, control_fields

_REGISTER = re.compile(r"\b(U?[RP]|B)([0-9]+)\b(?!\[)")
_REUSE = re.compile(r"\.reuse\b")
_LAST_NUMBER = re.compile(r"-?0x[0-9a-f]+$")


@dataclass(frozen=True, slots=True)
class Item:
    """One instruction. ``text`` as listed; ``body`` without ``.reuse`` and with the target cut out; ``shape`` is the
    body with register numbers cut out, ``registers`` those numbers in order; ``target`` an instruction index (-1 none);
    ``symbol`` what a relocation puts there; ``control`` the control fields and reuse marks; ``word`` all other bits but
    those of a target, 0 for a relocation and where the target's bits aren't known: listings don't show every operand.
    """

    text: str
    body: str
    shape: str
    registers: tuple[str, ...]
    target: int
    symbol: str
    control: tuple[int, ...]
    word: int = 0


CONTROL_FIELDS = tuple(name.replace("_", " ") for name in CONTROL_DTYPE.names or ())


def control_changes(one: Item, other: Item) -> list[tuple[str, int, int]]:
    """Control fields that differ: name, before, after."""
    found = zip(CONTROL_FIELDS, one.control, other.control, strict=True)
    return [(name, before, after) for name, before, after in found if before != after]


def _without_target(code: Code, word: int) -> int:
    """A pc-relative word as it names the next instruction, wherever it stands."""
    if code.isa is None:
        return 0
    try:
        return code.isa.with_target(word, 0, code.arch.instruction_size)
    except (DecodeError, EncodeError):
        return 0


def items_of(view: CubinView, kernel: KernelDef) -> list[Item]:
    """The kernel's instructions without the padding behind the last one. Raises CubinError."""
    code = view.code(kernel)
    size = view.arch.instruction_size
    symbols: dict[int, str] = {}
    elf = view.cubin.elf
    for entry in kernel.relocations:
        name = elf.symbols[entry.symbol].name
        symbols[entry.offset // size] = (
            f"{symbols.get(entry.offset // size, '')}{name}+{entry.addend or 0:#x};"
        )
    controls = control_fields(code.words).tolist()
    out = []
    for index, (text, target, control, (low, high)) in enumerate(
        zip(code.texts, code.targets.tolist(), controls, code.words.tolist(), strict=True)
    ):
        body = _REUSE.sub("", text)
        if target >= 0:
            body = _LAST_NUMBER.sub("→", body)
        symbol = symbols.get(index, "")
        registers = tuple([f"{file}{number}" for file, number in _REGISTER.findall(body)])
        shape = _REGISTER.sub(r"\1", body) + symbol
        place = target // size if target >= 0 else -1
        word = 0 if symbol else (low | high << 64) & ~CONTROL_MASK
        if word and target >= 0:
            word = _without_target(code, word)
        out.append(Item(text, body + symbol, shape, registers, place, symbol, control, word))
    while out and out[-1].body == "NOP":
        out.pop()
    return out
