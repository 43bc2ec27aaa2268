"""One instruction of a kernel, as the seed API shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gwatch.sass.control import Control

INSTRUCTION_SIZE = 16
"""Bytes per instruction on every architecture gwatch reads (sm_75 and later)."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction word at its place. ``pc`` is the byte offset from the start of the kernel's section."""

    index: int
    word: int
    _text: Callable[[int], str] = field(repr=False, compare=False)

    @property
    def pc(self) -> int:
        return self.index * INSTRUCTION_SIZE

    @property
    def bytes(self) -> bytes:
        """The 16 bytes as they stand in the file."""
        return self.word.to_bytes(INSTRUCTION_SIZE, "little")

    @property
    def control(self) -> Control:
        """Scheduling fields (stall, scoreboards, wait mask, reuse)."""
        return Control.from_word(self.word)

    def str(self, flatten: bool = True) -> str:
        """nvdisasm's text with absolute branch targets, without the closing semicolon.

        ``flatten=False`` adds address, encoding and scheduling fields on lines of their own.
        """
        text = self._text(self.index)
        if flatten:
            return text
        high, low = divmod(self.word, 1 << 64)
        return f"/*{self.pc:04x}*/ {text}\n/* {low:#018x} {high:#018x} */\n{self.control}"

    __str__ = str
