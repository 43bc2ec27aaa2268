"""Register reads and writes of many words at once, as numpy columns.

A :class:`CodeView` answers for a whole section what :meth:`Isa.decode` answers for one word: which registers
each instruction reads and writes in which role, its opcode text, its guard, its control fields, and which
instructions touch a given register. Words that differ only in their control bits are decoded once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import DecodeError
from gwatch.sass.control import CONTROL_MASK, Control, control_fields
from gwatch.sass.isa.vector import FILE_CODES, Uses

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Words = npt.NDArray[np.uint64]
UNKNOWN = "?"
ADDEND = "addend"
_ADDING = frozenset({"IMAD", "UIMAD", "FFMA", "DFMA", "HFMA2", "IDP", "IDP4A"})
_WIDEST = 16
_NAMED = re.compile(r"\b(UR|UP|R|P|B)(\d+)")
_WHOLE = re.compile(r"\b(UP|P)R\b")
_PREDICATE = re.compile(r"!?U?P[0-9T]+$")
_REGISTER = re.compile(r"\b(U?R)(\d+)")
_CONTROL_HIGH = np.uint64(CONTROL_MASK >> 64)
_PLAIN = Control().to_bits()
_PLAIN_HIGH = np.uint64(_PLAIN >> 64)
_LIMIT = 1 << 18


@dataclass(frozen=True, slots=True)
class Use:
    """One access: registers ``first`` .. ``first + count - 1`` of ``file``, in ``role``, read or written."""

    file: str
    first: int
    count: int
    role: str
    write: bool

    def covers(self, register: int) -> bool:
        """Whether ``register`` is one of them."""
        return self.first <= register < self.first + self.count


@dataclass(frozen=True, slots=True)
class WordFacts:
    """What a word does, control bits and address aside. ``known`` is False for a word the tables can't read,
    ``complete`` False when they can't list all its reads and writes. ``kind`` is Effects.kind. ``guard`` is
    (index, negated), index 7 for none.
    """

    known: bool
    complete: bool
    mnemonic: str
    opcode: str
    kind: str
    guard: tuple[int, bool]
    uses: tuple[Use, ...]
    text: str

    def may_touch(self, file: str, register: int) -> bool:
        """Whether a word whose uses aren't all known may read or write ``register`` of ``file``."""
        wide = _WIDEST if file in ("R", "UR") else 1
        named = registers_in(self.text).get(file, ())
        return not self.known or any(0 <= register - first < wide for first in named)

    def writes(self) -> tuple[Use, ...]:
        """Only the writes."""
        return tuple(use for use in self.uses if use.write)

    def reads(self) -> tuple[Use, ...]:
        """Only the reads."""
        return tuple(use for use in self.uses if not use.write)


def registers_in(text: str) -> dict[str, set[int]]:
    """The registers that an instruction's text names, by file; a whole predicate file counts as all of it."""
    found: dict[str, set[int]] = {}
    for file, number in _NAMED.findall(text):
        found.setdefault(file, set()).add(int(number))
    for file in _WHOLE.findall(text):
        found.setdefault(file, set()).update(range(7))
    return found


_NOT_KNOWN = WordFacts(False, False, UNKNOWN, UNKNOWN, UNKNOWN, (7, False), (), "")


@lru_cache(maxsize=_LIMIT)
def word_facts(isa: Isa, word: int) -> WordFacts:
    """:class:`WordFacts` of a 128-bit ``word`` (pass it through :func:`plain` to share the cache)."""
    try:
        decoded = isa.decode(word)
    except DecodeError:
        return _NOT_KNOWN
    effects = decoded.effects
    reads = [Use(use.file, use.first, use.count, use.role, False) for use in effects.reads]
    if decoded.mnemonic in _ADDING:
        _mark_addend(reads, decoded.text)
    uses = (*reads, *(Use(use.file, use.first, use.count, use.role, True) for use in effects.writes))
    return WordFacts(
        True,
        effects.complete,
        decoded.mnemonic,
        decoded.opcode,
        effects.kind,
        decoded.guard,
        uses,
        decoded.text,
    )


def _mark_addend(reads: list[Use], text: str) -> None:
    """Give the addend of a multiply-add its own role: it is read later than the factors."""
    operands = text.split(", ")
    sources = [item for item in operands[1:] if not _PREDICATE.match(item)]
    register = _REGISTER.search(sources[2]) if len(sources) > 2 else None
    if register is None:
        return
    for place in reversed(range(len(reads))):
        use = reads[place]
        if use.role == "data" and use.file == register[1] and use.first == int(register[2]):
            reads[place] = Use(use.file, use.first, use.count, ADDEND, False)
            return


def plain(word: int) -> int:
    """``word`` with the default control word: what it does, without when."""
    return word & ~CONTROL_MASK | _PLAIN


class CodeView:
    """The words of one section and, lazily, what they do.

    ``words`` is ``(n, 2) uint64``; ``control`` the ``(n,)`` control fields
    (:data:`gwatch.sass.control.CONTROL_DTYPE`).
    """

    def __init__(self, isa: Isa, words: Words) -> None:
        self.isa = isa
        self.words = words
        self.control = control_fields(words)
        self._facts: list[WordFacts | None] = [None] * len(words)

    def __len__(self) -> int:
        return len(self.words)

    def facts(self, index: int) -> WordFacts:
        """What instruction ``index`` does."""
        known = self._facts[index]
        if known is None:
            high = int(self.words[index, 1] & ~_CONTROL_HIGH | _PLAIN_HIGH)
            known = word_facts(self.isa, int(self.words[index, 0]) | high << 64)
            self._facts[index] = known
        return known

    def stall(self, index: int) -> int:
        """Issue cycles of instruction ``index`` (a stall of 0 counts as 1: nothing issues in the same
        cycle)."""
        return max(1, int(self.control["stall"][index]))

    @cached_property
    def _uses(self) -> Uses:
        return self.isa.uses(self.words)

    def named(self, file: str, certain: bool = False) -> set[int]:
        """All registers of ``file`` that some instruction of the section reads or writes.

        Where the tables can't list a word's uses, what its text names counts, with up to 16 registers each, unless
        only what is ``certain`` is asked for.
        """
        uses = self._uses
        chosen = uses.file == FILE_CODES[file]
        first, count = uses.first.astype(np.int64), uses.count.astype(np.int64)
        out: set[int] = set()
        for start, length in np.unique(np.stack((first[chosen], count[chosen]), axis=1), axis=0).tolist():
            out.update(range(start, start + length))
        for index in [] if certain else self.incomplete():
            wide = _WIDEST if file in ("R", "UR") else 1
            for start in registers_in(self.facts(index).text).get(file, ()):
                out.update(range(start, start + wide))
        return out

    def writers(self, file: str, register: int) -> npt.NDArray[np.int32]:
        """Indices of the instructions that write ``register`` of ``file``, sorted."""
        uses = self._uses
        chosen = (uses.file == FILE_CODES[file]) & uses.write
        chosen &= (uses.first <= register) & (register < uses.first + uses.count)
        return np.unique(uses.index[chosen])

    def incomplete(self) -> list[int]:
        """Indices of the words whose reads and writes the tables can't list completely."""
        found: list[int] = np.flatnonzero(~self._uses.complete).tolist()
        return found

    def predicate_masks(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Per instruction: predicates it reads (guard included), and those it surely overwrites (bit n = Pn)."""
        uses = self._uses
        chosen = uses.file == FILE_CODES["P"]
        index, write = uses.index, uses.write
        bits = (
            ((1 << uses.count[chosen].astype(np.int64)) - 1) << uses.first[chosen].astype(np.int64)
        ) & 0x7F
        reads, kills = np.zeros(len(self), np.uint8), np.zeros(len(self), np.uint8)
        written = write[chosen]
        np.bitwise_or.at(reads, index[chosen][~written], bits[~written].astype(np.uint8))
        np.bitwise_or.at(kills, index[chosen][written], bits[written].astype(np.uint8))
        for row in self.incomplete():
            reads[row] = sum(1 << number for number in registers_in(self.facts(row).text).get("P", ()))
            kills[row] = 0
        guarded = (self.words[:, 0] >> np.uint64(12) & np.uint64(15)) != np.uint64(7)
        kills[guarded] = 0
        return reads, kills
