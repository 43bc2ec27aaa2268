"""The instructions of a whole code section as columns: opcodes, guards, targets, text.

The one place that chooses how words are read: from the ISA tables where the architecture has one, through nvdisasm
where it has none (some fifty times slower) and for single words that the tables do not know. ``GWATCH_ENGINE=nvdisasm``
(the commands' ``--engine nvdisasm``) asks nvdisasm for everything, as a second opinion.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gwatch.errors import ToolError, UnsupportedError, UsageError
from gwatch.sass import nvdisasm
from gwatch.sass.arch import Arch
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.isa.pattern import Words
from gwatch.sass.isa.vector import Section

UNDECODED = "(undecoded)"
JUMPS = ("BRA", "JMP")
ENGINES = ("tables", "nvdisasm")
ENGINE_VARIABLE = "GWATCH_ENGINE"
_TEXT = re.compile(r"(?:@(!?)(U?)P([0-9T]+)\s+)?(\S+)\s*(.*)", re.S)
_TARGET = re.compile(r"(-?0x[0-9a-f]+)$")
_RELATIVE = re.compile("|".join(rf"{re.escape(name)}(?![A-Z0-9_])" for name in nvdisasm.RELATIVE))
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Code:
    """Words ``(n, 2)`` and what they say; ``addresses`` are their byte addresses, from 0 on if not given.

    ``isa`` None: nvdisasm reads them. ``engine`` is "tables" or "nvdisasm". Everything is worked out when first asked
    for.
    """

    def __init__(
        self,
        arch: Arch,
        words: Words,
        isa: Isa | None,
        addresses: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.arch = arch
        self.words = words
        self.addresses = (
            np.arange(len(words), dtype=np.int64) * arch.instruction_size if addresses is None else addresses
        )
        self.isa = isa
        self._masks: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}
        self.engine = "tables" if isa is not None else "nvdisasm"

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def section(self) -> Section | None:
        """What the ISA tables say of the words; None where nvdisasm reads them."""
        return None if self.isa is None else self.isa.section(self.words)

    @cached_property
    def _unknown(self) -> npt.NDArray[np.int64]:
        """Indices of the words that the tables cannot read."""
        return np.arange(len(self.words)) if self.section is None else np.flatnonzero(~self.section.known)

    @cached_property
    def _opcodes(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        codes: dict[str, int] = {}
        out = np.zeros(len(self.words), np.int64)
        if self.section is not None and len(self.words):
            found = self.section.opcodes
            rename = np.zeros(len(self.section.opcode_names), np.int64)
            for code in np.flatnonzero(np.bincount(found[found >= 0])).tolist():
                rename[code] = codes.setdefault(self.section.opcode_names[code], len(codes))
            out = np.where(found >= 0, rename[found] if len(rename) else 0, 0)
        for place, text in zip(self._unknown.tolist(), self.texts_at(self._unknown), strict=True):
            out[place] = codes.setdefault(opcode_of(text), len(codes))
        return list(codes), out

    @property
    def opcode_names(self) -> list[str]:
        """Opcodes with modifiers (``LDG.E.128``), each once."""
        return self._opcodes[0]

    @property
    def opcodes(self) -> npt.NDArray[np.int64]:
        """Per instruction: index into :attr:`opcode_names`."""
        return self._opcodes[1]

    @cached_property
    def mnemonics(self) -> list[str]:
        """Mnemonic of each of :attr:`opcode_names`."""
        return [name.split(".")[0] for name in self.opcode_names]

    def mask(self, *mnemonics: str) -> npt.NDArray[np.bool_]:
        """Per instruction: whether it has one of these mnemonics."""
        found = self._masks.get(mnemonics)
        if found is None:
            wanted = np.array([name in mnemonics for name in self.mnemonics] or [False], np.bool_)
            found = self._masks[mnemonics] = wanted[self.opcodes]
        return found

    def where(self, *mnemonics: str) -> npt.NDArray[np.int64]:
        """Indices of the instructions with one of these mnemonics, ascending."""
        return np.flatnonzero(self.mask(*mnemonics))

    @cached_property
    def guarded(self) -> npt.NDArray[np.bool_]:
        """Per instruction: whether a predicate other than PT guards it."""
        return np.asarray((self.words[:, 0] >> np.uint64(12) & np.uint64(15)) != 7, np.bool_)

    @cached_property
    def unpadded(self) -> int:
        """Instructions without the NOPs that fill the section up behind the last trap or branch: what is meant wherever
        instructions are counted. Listings show the padding too."""
        other = np.flatnonzero(~self.mask("NOP"))
        return int(other[-1]) + 1 if len(other) else 0

    @cached_property
    def targets(self) -> npt.NDArray[np.int64]:
        """Per instruction: the byte address that a pc-relative instruction names, else -1."""
        out = np.full(len(self.words), -1, np.int64)
        if self.section is not None:
            targets = self.section.offsets + self.addresses + self.arch.instruction_size
            out = np.where(self.section.relative, targets, -1)
        for index, text in zip(self._unknown.tolist(), self.texts_at(self._unknown), strict=True):
            if _RELATIVE.match(text.split(None, 1)[-1] if text.startswith("@") else text):
                match = _TARGET.search(text)
                if match:
                    out[index] = int(match[1], 16)
        return out

    @cached_property
    def conditional(self) -> npt.NDArray[np.bool_]:
        """Per jump (BRA, JMP): whether it may also not be taken, by its guard or by an operand. False elsewhere."""
        jumps = self.where(*JUMPS)
        out = np.zeros(len(self.words), np.bool_)
        out[jumps] = self.guarded[jumps]
        if self.section is not None and not len(self._unknown):
            several = self.section.facts(lambda template: "," in template.form.skeleton, np.bool_, True)
            out[jumps] |= several[jumps]
        else:
            for place, text in zip(jumps.tolist(), self.texts_at(jumps), strict=True):
                out[place] |= "," in split_text(text)[2]
        return out

    @cached_property
    def distinct(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """``(first, inverse)``: instructions that are printed alike share a number (inverse); ``first`` is the index
        of one of each. Equal words are printed alike unless they name a pc-relative target: then by address."""
        place = np.where(self.targets >= 0, self.addresses + 1, 0).astype(np.uint64)
        return group(self.words[:, 0], self.words[:, 1], place)

    @cached_property
    def distinct_texts(self) -> list[str]:
        """The text of one instruction of each number of :attr:`distinct`."""
        return self.texts_at(self.distinct[0])

    @cached_property
    def texts(self) -> list[str]:
        """nvdisasm's text of each instruction, targets absolute, no semicolon."""
        return self._read(np.arange(len(self.words)))

    def texts_at(self, places: npt.NDArray[np.int64]) -> list[str]:
        """:attr:`texts` of the instructions at these indices only."""
        if not len(places):
            return []
        if "texts" in self.__dict__:
            return [self.texts[place] for place in places.tolist()]
        if self.section is None and (len(places) < len(self.words) or bool(np.any(places[1:] < places[:-1]))):
            return [self.texts[place] for place in places.tolist()]  # a process costs more than the words
        return self._read(places)

    def _read(self, places: npt.NDArray[np.int64]) -> list[str]:
        if self.section is None:
            return self._disassembled(places)
        found = self.section.texts_at(places, self.addresses)
        if len(self._unknown) and None in found:
            unknown = [at for at, text in enumerate(found) if text is None]
            for at, text in zip(unknown, self._disassembled(places[unknown]), strict=True):
                found[at] = text
        return [str(text) for text in found]

    def _disassembled(self, places: npt.NDArray[np.int64]) -> list[str]:
        words, addresses = self.words[places], self.addresses[places].tolist()
        lines: list[str | None]
        try:
            lines = nvdisasm.disassemble_words(self.arch.name, words, base=0, pc=0)
        except ToolError as error:
            if error.code != "nvdisasm-missing" or engine() == "nvdisasm":
                raise
            if self.section is None:
                raise ToolError(error.code, f"{self.arch.name} has no instruction table to read its code with, and "
                                f"{error.message}", error.hint) from None
            lines = [None] * len(words)  # nobody knows these words
        return [
            undecoded(low | high << 64) if line is None else _moved(line, address)
            for address, line, (low, high) in zip(addresses, lines, words.tolist(), strict=True)
        ]

    def part(self, start: int, stop: int) -> CodePart:
        """Instructions ``start`` up to ``stop`` as a view that shares this object's work."""
        return CodePart(self, start, stop)


class CodePart(Code):
    """A range of another :class:`Code`; whatever one of them works out serves both."""

    def __init__(self, whole: Code, start: int, stop: int) -> None:
        super().__init__(whole.arch, whole.words[start:stop], whole.isa, whole.addresses[start:stop])
        self.whole, self.start, self.stop = whole, start, stop

    @cached_property
    def _opcodes(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        names, codes = self.whole._opcodes
        return names, codes[self.start : self.stop]

    @property
    def mnemonics(self) -> list[str]:
        return self.whole.mnemonics

    def mask(self, *mnemonics: str) -> npt.NDArray[np.bool_]:
        return self.whole.mask(*mnemonics)[self.start : self.stop]

    @cached_property
    def guarded(self) -> npt.NDArray[np.bool_]:
        return self.whole.guarded[self.start : self.stop]

    @cached_property
    def conditional(self) -> npt.NDArray[np.bool_]:
        return self.whole.conditional[self.start : self.stop]

    @cached_property
    def targets(self) -> npt.NDArray[np.int64]:
        return self.whole.targets[self.start : self.stop]

    @cached_property
    def texts(self) -> list[str]:
        return self.whole.texts[self.start : self.stop]

    def texts_at(self, places: npt.NDArray[np.int64]) -> list[str]:
        return self.whole.texts_at(places + self.start) if len(places) else []


def undecoded(word: int) -> str:
    """How a word is shown that nothing decodes."""
    return f"{UNDECODED} {word:#034x}"


def _moved(text: str, address: int) -> str:
    """Text of a pc-relative word printed as if it stood at 0, for ``address``."""
    body = text.split(None, 1)[-1] if text.startswith("@") else text
    match = _TARGET.search(text) if _RELATIVE.match(body) else None
    return text if match is None else f"{text[: match.start()]}{int(match[1], 16) + address:#x}"


def opcode_of(text: str) -> str:
    """The opcode with modifiers of one instruction's text."""
    match = _TEXT.match(text)
    return match[4] if match else text


def split_text(text: str) -> tuple[str, str, str]:
    """``(guard, opcode, operands)``: ``("@!P0", "LDG.E", "R4, desc[UR4][R2.64]")``; "" where there is none."""
    match = _TEXT.match(text)
    if match is None:
        return "", text, ""
    guard = f"@{match[1]}{match[2]}P{match[3]}" if match[3] else ""
    return guard, match[4], match[5]


def group(*columns: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """``(first, inverse)`` of rows that agree in all columns: index of one member per group, group of each row."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * _MIX
        mixed ^= mixed >> np.uint64(29)
    # numpy.unique would do, but importing numpy.ma for it costs a short command a tenth of its time.
    order = np.argsort(mixed, kind="stable")
    sorted_ = mixed[order]
    starts = np.flatnonzero(
        np.concatenate((np.ones(min(1, len(mixed)), np.bool_), sorted_[1:] != sorted_[:-1]))
    )
    first = order[starts]
    inverse = np.empty(len(mixed), np.int64)
    inverse[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(mixed))))
    if not all(np.array_equal(column[first][inverse], column) for column in columns):
        rows = np.stack(columns, axis=1)  # different rows with one mixed value: group by the rows themselves
        _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def engine() -> str:
    """How words are to be read: "tables" (the default) or "nvdisasm". Raises UsageError ``[engine-unknown]``."""
    chosen = os.environ.get(ENGINE_VARIABLE) or ENGINES[0]
    if chosen not in ENGINES:
        raise UsageError("engine-unknown", f"{ENGINE_VARIABLE}={chosen} names no engine",
                         "one of: " + ", ".join(ENGINES), candidates=ENGINES)
    return chosen


def code_of(arch: Arch, words: Words, addresses: npt.NDArray[np.int64] | None = None) -> Code:
    """The words' :class:`Code`, read by the engine asked for, or the best one there is for ``arch``."""
    isa: Isa | None = None
    if engine() == "tables":
        with suppress(ToolError, UnsupportedError):  # no table for this architecture: nvdisasm reads it
            isa = isa_for(arch)
    return Code(arch, words, isa, addresses)
