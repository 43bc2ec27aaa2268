"""Ask nvdisasm about bare instruction words, once per word."""

from __future__ import annotations

import re
from collections.abc import Iterable

from isa_learning.cache import Answers

from gwatch.sass.isa.lex import DESCRIPTOR, POLICY
from gwatch.sass.isa.model import key_of
from gwatch.sass.nvdisasm import RELATIVE, probe_words, version

CONTROL_MASK = ((1 << 21) - 1) << 105
PROBE_CONTROL = 0x7F1 << 105
GUARD = 7 << 12
_GLOBAL = re.compile(r" (\[R(?:\d+|Z)\.64(?:\+-?0x[0-9a-f]+)?\])")
_LAST_HEX = re.compile(r"(-?0x[0-9a-f]+)$")
_RELATIVE = re.compile(r"(?:@!?U?P[0-9T]+ +)?(" + "|".join(map(re.escape, RELATIVE)) + r")\b")


def probing_word(word: int) -> int:
    """``word`` with guard PT and the control word under which every opcode decodes."""
    return word & ~CONTROL_MASK & ~(0xF << 12) | PROBE_CONTROL | GUARD


class Prober:
    """nvdisasm over words, remembered in memory and on disk; ``count`` words were asked, in ``runs`` processes.

    Texts come with pc-relative targets written as signed offsets from the next instruction. What nvdisasm hides is put
    back: for the opcode keys in ``hidden`` the uniform register at this bit is the descriptor of ``[R.64]``.
    """

    def __init__(self, arch: str, remember: bool = True) -> None:
        self.arch = arch
        self.disk = Answers(f"{arch}-{version()}") if remember else None
        self.cache: dict[int, str | None] = {}
        self.hidden: dict[int, int] = {}
        self.count = 0
        self.runs = 0

    def texts(self, words: Iterable[int], mostly_valid: bool = False) -> list[str | None]:
        """Text per word; None for words that are no instruction, print nothing or print an undefined enumerator."""
        wanted = list(words)
        todo = sorted({w for w in wanted if w not in self.cache})
        if todo and self.disk is not None:
            for word, text in self.disk.get(todo).items():
                self.cache[word] = self._whole(word, text)
            todo = [w for w in todo if w not in self.cache]
        if todo:
            # However often an opcode stops nvdisasm: which words were left out would depend on what is asked together.
            probe = probe_words(self.arch, todo, pc=-16, mostly_valid=mostly_valid)
            self.runs += probe.runs
            self.count += len(todo)
            answers = [(word, _clean(text)) for word, text in zip(todo, probe.texts, strict=True)]
            if self.disk is not None:
                self.disk.put(answers)
            for word, text in answers:
                self.cache[word] = self._whole(word, text)
        return [self.cache[w] for w in wanted]

    def show(self, hidden: dict[int, int]) -> None:
        """From now on put the descriptors of these opcode keys into their texts, also into those already known."""
        self.hidden = hidden
        for word, text in self.cache.items():
            self.cache[word] = self._whole(word, text)

    def _whole(self, word: int, text: str | None) -> str | None:
        low = self.hidden.get(key_of(word))
        if low is None or text is None:
            return text
        return with_descriptor(text, word >> low & 63)


def with_descriptor(text: str, number: int) -> str:
    """``text`` with the descriptor register shown before its ``[R.64]`` address, if it has one.

    Where nvdisasm prints ``desc[..]`` itself, bit 101 is set: the access has a cache policy of its own.
    """
    name = "URZ" if number == 63 else f"UR{number}"
    shown = text.replace(f" {DESCRIPTOR}", f" {POLICY}")
    return _GLOBAL.sub(lambda m: f" {DESCRIPTOR}{name}]{m[1]}", shown, count=1) if shown == text else shown


def has_hidden_descriptor(text: str) -> bool:
    """Whether ``text`` has a 64-bit address before which no descriptor is printed."""
    return _GLOBAL.search(text) is not None


def is_relative(text: str) -> bool:
    """Whether ``text`` is an instruction whose last number is a pc-relative target."""
    return _RELATIVE.match(text) is not None


def _clean(text: str | None) -> str | None:
    if not text or "INVALID" in text or "???" in text:
        return None
    text = text.rstrip(" ;")
    if is_relative(text):
        match = _LAST_HEX.search(text)
        if match:
            value = int(match[1], 16) & (1 << 64) - 1
            if value >> 63:
                value -= 1 << 64
            return f"{text[:match.start()]}{value:#x}"
    return text
