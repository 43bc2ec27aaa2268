"""Register reads and writes of many words at once, as numpy columns.

A :class:`CodeView` answers for a whole section what :meth:`Isa.decode` answers for one word: which registers
each instruction reads and writes in which role, its opcode text, its guard, its control fields, and which
instructions touch a given register. Words that differ only in their control bits are decoded once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gwatch.errors import DecodeError
from gwatch.sass.control import CONTROL_MASK, Control, control_fields
from gwatch.sass.isa.vector import FILE_CODES, KIND_NAMES, ROLE_CODES, Uses

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Words = npt.NDArray[np.uint64]
UNKNOWN = "?"
ADDEND = "addend"
# Of fixed latency: no compiler word seen takes a scoreboard for them, though some tables don't say so.
_PREDICATE_COPIES = frozenset({"P2R", "R2P", "UP2UR", "UR2UP"})
# No word of these writes a register (R, UR, P, UP), whatever its form: barriers, fences, pauses, stores, reductions,
# copies between memories, products whose result stays in tensor memory.
_NO_RESULT = frozenset({
    "ACQBULK", "BAR", "CGAERRBAR", "DEPBAR", "ERRBAR", "FENCE", "LDGDEPBAR", "LDGSTS", "MEMBAR", "NANOSLEEP", "NOP",
    "PMTRIG", "PREEXIT", "RED", "REDAS", "REDG", "ST", "STAS", "STG", "STL", "STS", "STSM", "STTM", "SURED", "SUST",
    "UBLKCP", "UBLKPF", "UBLKRED", "UGETNEXTWORKID", "UTCBAR", "UTCCP", "UTCHMMA", "UTCIMMA", "UTCOMMA", "UTCQMMA",
    "UTCSHIFT", "UTMACCTL", "UTMACMDFLUSH", "UTMALDG", "UTMAPF", "UTMAREDG", "UTMASTG", "WARPSYNC", "YIELD",
})  # fmt: skip
_ADDING = frozenset({"IMAD", "UIMAD", "FFMA", "DFMA", "HFMA2", "IDP", "IDP4A"})
_WIDEST = 16
_FILE_SIZES = {"R": 255, "UR": 255, "P": 7, "UP": 7}
_NAMED = re.compile(r"\b(UR|UP|R|P|B)(\d+)")
_WHOLE = re.compile(r"\b(UP|P)R\b")
_PREDICATE = re.compile(r"!?U?P[0-9T]+$")
_WHOLE_FILE = re.compile(r"^(?:@!?U?P\w+ )?(U?P2U?R|U?R2U?P)\S* .*?\bU?PR\b.*?(?:, (0x[0-9a-f]+))?$")
_REGISTER = re.compile(r"\b(U?R)(\d+)")
_CONTROL_HIGH = np.uint64(CONTROL_MASK >> 64)
_PLAIN = Control().to_bits()
_PLAIN_HIGH = np.uint64(_PLAIN >> 64)
_LIMIT = 1 << 18

Key = tuple[str, int]
"""A register: file and number."""

ALWAYS = (7, False)
"""The guard of an instruction that always runs."""


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

    def registers(self) -> list[Key]:
        """They, one by one: (file, number)."""
        return [(self.file, number) for number in range(self.first, self.first + self.count)]


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

    def may_write(self, file: str, register: int) -> bool:
        """Whether a word whose uses aren't all known may write ``register`` of ``file``."""
        return self.mnemonic not in _NO_RESULT and self.may_touch(file, register)

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


@dataclass(frozen=True, slots=True)
class Masks:
    """Per instruction: registers it may read, may write, and surely overwrites (bit n = register n)."""

    reads: list[int]
    writes: list[int]
    kills: list[int]


_NOT_KNOWN = WordFacts(False, False, UNKNOWN, UNKNOWN, UNKNOWN, ALWAYS, (), "")


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
    if decoded.mnemonic in _PREDICATE_COPIES:
        uses = (*uses, *_whole_file(decoded.text))
    return WordFacts(
        True,
        effects.complete,
        decoded.mnemonic,
        decoded.opcode,
        "fixed" if decoded.mnemonic in _PREDICATE_COPIES else effects.kind,
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


def _whole_file(text: str) -> list[Use]:
    """The predicates that ``P2R R0, PR, RZ, 0x7f`` reads and ``R2P PR, R0, 0x7f`` writes: the mask's, one by one.

    nvdisasm's life ranges, from which the tables' effects come, don't show them. Without an immediate mask: all.
    """
    match = _WHOLE_FILE.match(text)
    if match is None:
        return []
    mask = int(match[2], 16) if match[2] else 0x7F
    file = "UP" if match[1] in ("UP2UR", "UR2UP") else "P"
    write = match[1].endswith("P")
    found = [Use(file, number, 1, "predicate", write) for number in range(7) if mask >> number & 1]
    if write and not match[2]:
        # Which ones keep their value isn't known.
        found += [Use(file, number, 1, "predicate", False) for number in range(7)]
    return found


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
        self._masks: dict[str, Masks] = {}

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

    def text(self, index: int) -> str:
        """Instruction ``index`` as it reads where it stands (texts of facts have targets that count from 0)."""
        facts = self.facts(index)
        if not facts.known:
            return facts.text
        high = int(self.words[index, 1] & ~_CONTROL_HIGH | _PLAIN_HIGH)
        pc = index * self.isa.arch.instruction_size
        return self.isa.decode(int(self.words[index, 0]) | high << 64, pc=pc).text

    def stall(self, index: int) -> int:
        """Issue cycles of instruction ``index`` (a stall of 0 counts as 1: nothing issues in the same
        cycle)."""
        return max(1, int(self.control["stall"][index]))

    @cached_property
    def _uses(self) -> Uses:
        uses = self.isa.uses(self.words)
        copies = [uses.mnemonic_names.index(name) for name in _PREDICATE_COPIES if name in uses.mnemonic_names]
        rows = np.flatnonzero(np.isin(uses.mnemonic, copies)) if copies else np.zeros(0, np.int64)
        more = [(row, use) for row in rows.tolist() for use in _whole_file(self.facts(row).text)]
        if not more:
            return uses
        index = np.concatenate((uses.index, np.array([row for row, _ in more], uses.index.dtype)))
        order = np.argsort(index, kind="stable")

        def joined(column: npt.NDArray[Any], values: list[int]) -> npt.NDArray[Any]:
            return np.concatenate((column, np.array(values, column.dtype)))[order]

        return replace(
            uses,
            index=index[order],
            file=joined(uses.file, [FILE_CODES[use.file] for _, use in more]),
            first=joined(uses.first, [use.first for _, use in more]),
            count=joined(uses.count, [use.count for _, use in more]),
            role=joined(uses.role, [ROLE_CODES[use.role] for _, use in more]),
            write=joined(uses.write, [use.write for _, use in more]),
        )

    def kinds(self) -> tuple[list[str], list[str]]:
        """Per instruction: the mnemonic and :attr:`WordFacts.kind`, as :meth:`facts` says them."""
        uses = self._uses
        names = [*uses.mnemonic_names, UNKNOWN]
        mnemonics = [names[number] for number in np.where(uses.known, uses.mnemonic, -1).tolist()]
        kinds = [KIND_NAMES[code] for code in np.where(uses.known, uses.kind, KIND_NAMES.index("unknown")).tolist()]
        for row in self.incomplete():
            facts = self.facts(row)
            mnemonics[row], kinds[row] = facts.mnemonic, facts.kind
        copies = _PREDICATE_COPIES.intersection(names)
        if copies:
            kinds = ["fixed" if name in copies else kind for name, kind in zip(mnemonics, kinds, strict=True)]
        return mnemonics, kinds

    def named(self, file: str, certain: bool = False) -> set[int]:
        """All registers of ``file`` that some instruction of the section reads or writes.

        Where the tables can't list a word's uses, what its text names counts, with up to 16 registers each, unless
        only what is ``certain`` is asked for.
        """
        uses = self._uses
        chosen = uses.file == FILE_CODES[file]
        spans = uses.first[chosen].astype(np.int64) << 32 | uses.count[chosen].astype(np.int64)
        out: set[int] = set()
        for span in np.unique(spans).tolist():
            out.update(range(span >> 32, (span >> 32) + (span & 0xFFFFFFFF)))
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

    def masks(self, file: str) -> Masks:
        """Per instruction, as integers with bit n for register n of ``file``: what it may read (guard included), may
        write, and surely overwrites.

        A word whose uses the tables can't list reads and writes what its text names and the 15 registers behind each
        (only reads, where its mnemonic has no results); a word that they can't read at all, everything. The lists are
        shared: they must not be changed.
        """
        found = self._masks.get(file)
        if found is None:
            found = self._masks[file] = self._find_masks(file)
        return found

    def _of_some_lanes(self) -> npt.NDArray[np.bool_]:
        """Where a MOV writes some lanes of each four: its third operand says which."""
        uses = self._uses
        moves = np.isin(uses.mnemonic, [place for place, name in enumerate(uses.mnemonic_names) if name == "MOV"])
        return np.asarray(moves & ((self.words[:, 1] >> np.uint64(8) & np.uint64(15)) != np.uint64(15)))

    def _find_masks(self, file: str) -> Masks:
        uses = self._uses
        count = len(self)
        size = _FILE_SIZES[file]
        reads, writes = [0] * count, [0] * count
        chosen = uses.file == FILE_CODES[file]
        rows = zip(
            uses.index[chosen].tolist(),
            uses.first[chosen].tolist(),
            uses.count[chosen].tolist(),
            uses.write[chosen].tolist(),
            strict=True,
        )
        everything = (1 << size) - 1
        for index, first, number, write in rows:
            (writes if write else reads)[index] |= ((1 << number) - 1) << first & everything
        guarded = (self.words[:, 0] >> np.uint64(12) & np.uint64(15)) != np.uint64(7)
        if file == "R":
            guarded |= self._of_some_lanes()
        kills = [0 if item else mask for item, mask in zip(guarded.tolist(), writes, strict=True)]
        for row in self.incomplete():
            facts = self.facts(row)
            wide = (1 << (_WIDEST if file in ("R", "UR") else 1)) - 1
            mask = 0 if facts.known else everything
            for first in registers_in(facts.text).get(file, ()):
                mask |= wide << first & everything
            reads[row] |= mask
            writes[row] |= 0 if facts.mnemonic in _NO_RESULT else mask
            kills[row] = 0
        return Masks(reads, writes, kills)
