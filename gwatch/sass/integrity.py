"""What a rewrite may not change: every original instruction in its place, every code position still leading there.

Only moved code positions (targets, return addresses) and cleared reuse bits may differ; the padding and the untouched
copy must be what they claim to be; and the registers given to inserted code must be nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.sass.cfg import Cfg, Flow, Words
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Key = tuple[str, int]
_REUSE_HIGH = np.uint64(15 << (122 - 64))
_YIELD_HIGH = np.uint64(1 << (109 - 64))
_IMMEDIATE_LOW = np.uint64(0xFFFFFFFF << 32)
_REUSE_BITS = 15 << 122


@dataclass(frozen=True, slots=True)
class Report:
    """One disagreement: instruction ``index`` of the new code, a stable ``kind`` and a sentence."""

    index: int
    kind: str
    message: str


@dataclass(slots=True)
class Rewrite:
    """The finished code and what it claims to be.

    ``view``/``cfg``/``waits``: the original section. ``words`` ``(m, 2)``: new code, then padding, then the
    twin if there is one (``twin`` is its first index). ``inserted`` (m,): which words are new. ``entry``: how
    many of the words before the first original run only at function entry. ``own``: the registers given to
    inserted code; ``entry_only``: further ones that the entry's words may use. ``returns``: original
    instructions that load a return address, with the address. ``count``: words before padding.
    """

    view: CodeView
    cfg: Cfg
    waits: Waits
    words: Words
    inserted: npt.NDArray[np.bool_]
    count: int
    entry: int
    own: frozenset[Key]
    entry_only: frozenset[Key]
    returns: dict[int, int]
    twin: int | None


class OriginalsChecker:
    """Compares the original words with the new ones; ``view`` and ``cfg`` are those of the new code."""

    def __init__(
        self, isa: Isa, rewrite: Rewrite, view: CodeView, cfg: Cfg, report: Callable[[int, str, str], None]
    ) -> None:
        self.isa, self.old, self.view, self.cfg, self._report = isa, rewrite, view, cfg, report
        self.size = isa.arch.instruction_size
        self.inserted = rewrite.inserted[: rewrite.count]
        self.place = np.flatnonzero(~self.inserted)

    def run(self) -> bool:
        """Report every difference; False when instructions are missing, so that nothing else can be compared."""
        if len(self.place) != len(self.old.view):
            found = f"{len(self.place)} original instructions are there, not {len(self.old.view)}"
            self._report(0, "missing", found)
            return False
        self._originals()
        self._tail()
        self._registers()
        return True

    def _registers(self) -> None:
        for file in ("R", "UR", "P"):
            named = self.old.view.named(file, certain=True)
            shared = sorted(number for kind, number in self.old.own if kind == file and number in named)
            if shared:
                self._report(
                    0, "shared", f"{file}{shared[0]} was given to inserted code, but the kernel uses it"
                )

    def _reached(self, target: int, plain: bool) -> int:
        """Where something that reaches original instruction ``target`` must now lead."""
        place = int(self.place[target]) if target < len(self.place) else self.old.count
        while place > 0 and self.inserted[place - 1]:
            place -= 1
        return place + self.old.entry if target == 0 and not plain else place

    def _originals(self) -> None:
        old, new = self.old.view.words, self.view.words[self.place]
        differs = old ^ new
        followed = np.zeros(len(old), bool)
        behind = self.place + 1
        inside = behind < self.old.count
        followed[inside] = self.inserted[behind[inside]]
        self._reuse(old, new, differs, followed)
        relative = set(self.old.cfg.flow.relative().tolist())
        for index in np.flatnonzero((differs != 0).any(axis=1)).tolist():
            if index in self.old.returns:
                differs[index, 0] &= ~_IMMEDIATE_LOW
            if index not in relative and differs[index].any():
                self._report(int(self.place[index]), "changed", f"original instruction {index} was changed")
        self._targets(relative)
        for index, address in self.old.returns.items():
            value = int(new[index, 0] >> np.uint64(32))
            wanted = self._reached(address // self.size, plain=False) * self.size
            if value != wanted:
                self._report(
                    int(self.place[index]),
                    "return-address",
                    f"instruction {index} loads return address {value:#x}, not {wanted:#x}",
                )

    def _reuse(self, old: Words, new: Words, differs: Words, followed: npt.NDArray[np.bool_]) -> None:
        held = ((new[:, 1] & _REUSE_HIGH) != 0) & ((new[:, 1] & _YIELD_HIGH) != 0) & followed
        for index in np.flatnonzero(held).tolist():
            self._report(
                int(self.place[index]),
                "reuse",
                f"instruction {index} keeps operands for an instruction that no longer follows it",
            )
        cleared = followed & ((new[:, 1] & _REUSE_HIGH) == 0)
        differs[cleared, 1] &= ~_REUSE_HIGH

    def _targets(self, relative: set[int]) -> None:
        before, after = self.old.cfg.flow, self.cfg.flow
        for index in relative:
            place = int(self.place[index])
            target = int(after.target[place])
            wanted = self._reached(int(before.target[index]), before.kind[index] == Flow.RETURN)
            if target != wanted or before.kind[index] != after.kind[place]:
                self._report(
                    place,
                    "target",
                    f"instruction {index} ({self.view.facts(place).text}) leads to new "
                    f"instruction {target}, not {wanted}",
                )
                continue
            # The target field is all that may differ: put the old target back and compare.
            word = int(self.view.words[place, 0]) | int(self.view.words[place, 1]) << 64
            back = self.isa.with_target(word, index * self.size, int(before.target[index]) * self.size)
            original = int(self.old.view.words[index, 0]) | int(self.old.view.words[index, 1]) << 64
            if back != original and (back ^ original) & ~_REUSE_BITS:
                self._report(place, "changed", f"original instruction {index} was changed beyond its target")

    def _tail(self) -> None:
        old = self.old
        stop = len(old.words) if old.twin is None else old.twin
        if stop % 8 or (old.words[old.count : stop] != old.view.words[-1]).any():
            self._report(
                old.count, "padding", "the code is not padded to 128 bytes with what the kernel ended with"
            )
        if old.twin is not None and not np.array_equal(old.words[old.twin :], old.view.words):
            self._report(old.twin, "twin", "the copy behind the code is not the original")
