"""The instructions of a whole code section as columns: opcodes, guards, targets, text.

The one place that chooses how words are read: from the ISA tables where the architecture has one, through
nvdisasm where it has none (some fifty times slower) and for single words that the tables do not know.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gwatch.errors import ToolError, UnsupportedError
from gwatch.inspect.templates import Words, WordTemplates, group, templates_for
from gwatch.sass import nvdisasm
from gwatch.sass.arch import Arch
from gwatch.sass.isa import isa_for

UNDECODED = "(undecoded)"
JUMPS = ("BRA", "JMP")
_TEXT = re.compile(r"(?:@(!?)(U?)P([0-9T]+)\s+)?(\S+)\s*(.*)", re.S)
_TARGET = re.compile(r"(-?0x[0-9a-f]+)$")
_RELATIVE = re.compile("|".join(rf"{re.escape(name)}(?![A-Z0-9_])" for name in nvdisasm.RELATIVE))


class Code:
    """Words ``(n, 2)`` and what they say; ``addresses`` are their byte addresses, from 0 on if not given.

    ``engine`` is "tables" or "nvdisasm". Everything is worked out when first asked for.
    """

    def __init__(
        self,
        arch: Arch,
        words: Words,
        templates: WordTemplates | None,
        addresses: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.arch = arch
        self.words = words
        self.addresses = (
            np.arange(len(words), dtype=np.int64) * arch.instruction_size if addresses is None else addresses
        )
        self._templates = templates
        self._masks: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}
        self.engine = "tables" if templates is not None else "nvdisasm"

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _keys(self) -> npt.NDArray[np.int64]:
        assert self._templates is not None
        return self._templates.keys(self.words)

    @cached_property
    def _known(self) -> npt.NDArray[np.bool_]:
        assert self._templates is not None
        return self._templates.known(self.words, self._keys)

    @cached_property
    def _opcodes(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        names: list[str] = []
        codes: dict[str, int] = {}
        if self._templates is not None:
            found, inverse = self._templates.opcodes(self.words, self._keys)
            if None not in found and bool(self._known.all()):
                rename = np.array([codes.setdefault(str(name), len(codes)) for name in found], np.int64)
                return list(codes), rename[inverse]
        out = np.zeros(len(self.words), np.int64)
        for index, text in enumerate(self.texts):
            name = opcode_of(text)
            out[index] = codes.setdefault(name, len(codes))
        names = list(codes)
        return names, out

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
    def targets(self) -> npt.NDArray[np.int64]:
        """Per instruction: the byte address that a pc-relative instruction names, else -1."""
        if self._templates is not None and bool(self._known.all()):
            return self._templates.targets(
                self.words, self._keys, self.addresses + self.arch.instruction_size
            )
        out = np.full(len(self.words), -1, np.int64)
        for index, text in enumerate(self.texts):
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
        if self._templates is not None and bool(self._known.all()):
            for template, members in self._templates.grouped(self.words[jumps], self._keys[jumps]):
                if template is None or any("," in piece for piece in template.pieces):
                    out[jumps[members]] = True
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
        if self._templates is None or not bool(self._known.all()):
            return self.texts_at(np.arange(len(self.words)))
        texts = self.distinct_texts
        return [texts[number] for number in self.distinct[1].tolist()]

    def texts_at(self, places: npt.NDArray[np.int64]) -> list[str]:
        """:attr:`texts` of the instructions at these indices only."""
        if not len(places):
            return []
        if "texts" in self.__dict__:
            return [self.texts[place] for place in places.tolist()]
        if self._templates is None:
            if len(places) < len(self.words) or bool(np.any(places[1:] < places[:-1])):
                return [self.texts[place] for place in places.tolist()]  # a process costs more than the words
            return self._disassembled(places)
        return self._from_tables(self._templates, places)

    def _from_tables(self, templates: WordTemplates, chosen: npt.NDArray[np.int64]) -> list[str]:
        size = self.arch.instruction_size
        out: dict[int, str] = {}
        missing = [chosen[~self._known[chosen]]]
        good = chosen[self._known[chosen]]
        filler = templates.filler(self.words[good], self.addresses[good] + size)
        for template, members in templates.grouped(self.words[good], self._keys[good]):
            if template is None:
                missing.append(good[members])
            else:
                out.update(zip(good[members].tolist(), filler.fill(template, members), strict=True))
        self._add_guards(templates, out, good[self.guarded[good]])
        unknown = np.concatenate(missing)
        if len(unknown):
            out.update(zip(unknown.tolist(), self._disassembled(unknown), strict=True))
        return [out[place] for place in chosen.tolist()]

    def _add_guards(
        self, templates: WordTemplates, texts: dict[int, str], guarded: npt.NDArray[np.int64]
    ) -> None:
        guards = (self.words[guarded, 0] >> np.uint64(12) & np.uint64(15)).tolist()
        uniform: dict[int, bool] = {}
        for number in np.flatnonzero(np.bincount(self._keys[guarded])).tolist():
            found = templates.isa.table.key(number)
            uniform[number] = found is not None and found.uniform_guard
        for place, guard, key in zip(guarded.tolist(), guards, self._keys[guarded].tolist(), strict=True):
            index = "T" if guard & 7 == 7 else str(guard & 7)
            texts[place] = f"@{'!' if guard & 8 else ''}{'U' if uniform[key] else ''}P{index} {texts[place]}"

    def _disassembled(self, places: npt.NDArray[np.int64]) -> list[str]:
        words, addresses = self.words[places], self.addresses[places].tolist()
        lines = nvdisasm.disassemble_words(self.arch.name, words, base=0, pc=0)
        return [
            f"{UNDECODED} 0x{high:016x}{low:016x}" if line is None else _moved(line, address)
            for address, line, (low, high) in zip(addresses, lines, words.tolist(), strict=True)
        ]

    def part(self, start: int, stop: int) -> CodePart:
        """Instructions ``start`` up to ``stop`` as a view that shares this object's work."""
        return CodePart(self, start, stop)


class CodePart(Code):
    """A range of another :class:`Code`; whatever one of them works out serves both."""

    def __init__(self, whole: Code, start: int, stop: int) -> None:
        super().__init__(whole.arch, whole.words[start:stop], whole._templates, whole.addresses[start:stop])
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


def code_of(arch: Arch, words: Words, addresses: npt.NDArray[np.int64] | None = None) -> Code:
    """The words' :class:`Code`, read by the best engine there is for ``arch``."""
    templates: WordTemplates | None
    try:
        templates = templates_for(isa_for(arch))
    except (ToolError, UnsupportedError):
        templates = None  # no table for this architecture: nvdisasm reads it
    return Code(arch, words, templates, addresses)
