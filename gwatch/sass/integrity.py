"""What a rewrite may not change: every original instruction in its place, every code position still leading there.

Only moved code positions (targets, return addresses) and cleared reuse bits may differ; the padding and the untouched
copy must be what they claim to be; and the registers given to inserted code must be nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.sass.cfg import Cfg, Flow, Words, opcode_keys, word_at
from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.indirect import Tables, displacement, table_place
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView, Key

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

_REUSE_HIGH = np.uint64(15 << (122 - 64))
_YIELD_HIGH = np.uint64(1 << (109 - 64))
_IMMEDIATE_LOW = np.uint64(0xFFFFFFFF << 32)
_CONTROL_HIGH = np.uint64(CONTROL_MASK >> 64)
_REUSE_BITS = 15 << 122
_PRODUCT = "MMA"


class Kept:
    """Which operands a section's instructions keep for later ones.

    An operand is kept, in compiler code, until another register is read in its operand place or the block ends, across
    any instruction that reads none there. A sparse product that keeps its metadata keeps it for the next product.
    """

    def __init__(self, isa: Isa, view: CodeView, cfg: Cfg) -> None:
        self.isa, self.view = isa, view
        self._starts = np.flatnonzero(cfg.leaders)
        # With bit 109 at 0 the reuse bits mean something else.
        self._places = np.where(view.control["yield_flag"] != 0, view.control["reuse"], 0)
        self._marked = np.zeros(len(view), bool)
        keys = opcode_keys(view.words)
        for key in np.unique(keys):
            places = np.flatnonzero(keys == key)
            if view.facts(int(places[0])).mnemonic.endswith(_PRODUCT):
                # Texts of facts show no control bits: the mark is one of the instruction itself.
                self._marked[places] = [".reuse" in view.facts(index).text for index in places.tolist()]

    def before(self, index: int) -> list[int]:
        """The instructions before ``index`` whose kept operands are still there, ascending."""
        start = int(self._starts[np.searchsorted(self._starts, index) - 1]) if index else 0
        pending = int(np.bitwise_or.reduce(self._places[start:index], initial=0))
        marked = bool(self._marked[start:index].any())
        found = []
        for at in range(index - 1, start - 1, -1):
            if not (pending or marked):
                break
            product = marked and self.view.facts(at).mnemonic.endswith(_PRODUCT)
            if int(self._places[at]) & pending or (product and self._marked[at]):
                found.append(at)
            marked = marked and not product
            word = word_at(self.view.words, at)
            for place, low in enumerate(self.isa.reuse_places(word)):
                if low >= 0 and word >> low & 0xFF != self.isa.arch.register_zero:
                    pending &= ~(1 << place)
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Report:
    """One disagreement: instruction ``index`` of the new code, a stable ``kind`` and a sentence."""

    index: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Callee:
    """General registers (bit n = Rn) that code behind a call may read, may use for itself (``uses``), and may leave
    changed when it comes back (``touches``). ``returns``: whether it may come back at all.
    """

    reads: int
    uses: int
    touches: int
    returns: bool = True


@dataclass(slots=True)
class Rewrite:
    """The finished code and what it claims to be.

    ``view``/``cfg``/``waits``: the original section. ``words`` ``(m, 2)``: new code, then padding, then the
    twin if there is one (``twin`` is its first index). ``inserted`` (m,): which words are new. ``entry``: how
    many of the words before the first original run only at function entry. ``own``: the registers given to
    inserted code; ``entry_only``: further ones that the entry's words may use. ``returns``: original
    instructions that load a return address, with the address. ``count``: words before padding. ``tables``: the loads
    from tables of code offsets; the moved tables stand ``stride`` bytes behind the old ones. ``survivors``: where code
    outside the cubin may run and come back, the registers that it leaves alone; None where none runs. ``kept``: the
    registers that inserted code keeps from one place to the next. ``origins``: instructions that load the place of an
    LEPC -> that LEPC. ``claims``: per inserted word, what the registers of inserted code that it names stand for (None:
    not known, so its values can't be told apart). ``calls``: by original index, what code behind a call out of the
    section may do to general registers. ``initial``: where the values of inserted code are when the kernel is entered.
    ``frame``: bytes by which the kernel's stack grew.
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
    tables: Tables = field(default_factory=Tables)
    stride: int = 0
    survivors: frozenset[Key] | None = None
    kept: frozenset[Key] = frozenset()
    origins: dict[int, int] = field(default_factory=dict)
    claims: Mapping[int, Mapping[Key, str]] | None = None
    calls: Mapping[int, Callee] = field(default_factory=dict)
    initial: Mapping[Key, str] = field(default_factory=dict)
    frame: int = 0

    def places(self) -> npt.NDArray[np.int64]:
        """Index in the new code of each original instruction."""
        return np.flatnonzero(~self.inserted[: self.count])

    def reached(self, places: npt.NDArray[np.int64], target: int, plain: bool = False) -> int:
        """Where something that reaches original instruction ``target`` must now lead: the first word inserted before
        it, behind those that run only when the function is entered (unless ``plain``). ``places``: :meth:`places`.
        """
        place = int(places[target]) if target < len(places) else self.count
        while place > 0 and self.inserted[place - 1]:
            place -= 1
        return place + self.entry if target == 0 and not plain else place

    def jumps(self) -> dict[int, list[int]]:
        """The targets of indirect branches and calls in the new code, by new index."""
        places = self.places()
        listed = {target for targets in self.cfg.jumps.values() for target in targets}
        moved = {target: self.reached(places, target) for target in listed}
        return {
            int(places[index]): [moved[target] for target in targets]
            for index, targets in self.cfg.jumps.items()
            if index < len(places)
        }


class OriginalsChecker:
    """Compares the original words with the new ones; ``view`` and ``cfg`` are those of the new code."""

    def __init__(
        self, isa: Isa, rewrite: Rewrite, view: CodeView, cfg: Cfg, report: Callable[[int, str, str], None]
    ) -> None:
        self.isa, self.old, self.view, self.cfg, self._report = isa, rewrite, view, cfg, report
        self.size = isa.arch.instruction_size
        self.inserted = rewrite.inserted[: rewrite.count]
        self.place = rewrite.places()

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
        for file, number in sorted(self.old.kept - self.old.survivors if self.old.survivors is not None else ()):
            self._report(0, "survive", f"{file}{number} must outlive calls that need not leave it alone")
        for file in ("R", "UR", "P"):
            named = self.old.view.named(file, certain=True)
            shared = sorted(number for kind, number in self.old.own if kind == file and number in named)
            if shared:
                self._report(
                    0, "shared", f"{file}{shared[0]} was given to inserted code, but the kernel uses it"
                )

    def _reached(self, target: int, plain: bool) -> int:
        return self.old.reached(self.place, target, plain)

    def _originals(self) -> None:
        old, new = self.old.view.words, self.view.words[self.place]
        differs = old ^ new
        followed = np.zeros(len(old), bool)
        kept = Kept(self.isa, self.old.view, self.old.cfg)
        for index in np.flatnonzero(self.inserted[self.place - 1]).tolist():
            followed[kept.before(index)] = True
        self._reuse(old, new, differs, followed)
        relative = set(self.old.cfg.flow.relative().tolist())
        for index in np.flatnonzero((differs != 0).any(axis=1)).tolist():
            if index in self.old.returns or index in self.old.origins:
                differs[index, 0] &= ~_IMMEDIATE_LOW
            indirect = index in self.old.tables.branches or (self.old.stride and index in self.old.tables.loads)
            if index not in relative and not indirect and differs[index].any():
                self._report(int(self.place[index]), "changed", f"original instruction {index} was changed")
        self._targets(relative)
        self._tables(old, new)
        for index, address in self.old.returns.items():
            value = int(new[index, 0] >> np.uint64(32))
            wanted = self._reached(address // self.size, plain=False) * self.size
            if value != wanted:
                self._report(
                    int(self.place[index]),
                    "return-address",
                    f"instruction {index} loads return address {value:#x}, not {wanted:#x}",
                )

        for index, lepc in self.old.origins.items():
            value = int(new[index, 0] >> np.uint64(32))
            if value != int(self.place[lepc]) * self.size:
                self._report(
                    int(self.place[index]),
                    "return-address",
                    f"instruction {index} says that instruction {lepc} stands at {value:#x}",
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
            plain = before.kind[index] in (Flow.RETURN, Flow.CALL_INDIRECT)
            wanted = self._reached(int(before.target[index]), plain)
            if target != wanted or before.kind[index] != after.kind[place]:
                self._report(
                    place,
                    "target",
                    f"instruction {index} ({self.view.text(place)}) leads to new "
                    f"instruction {target}, not {wanted}",
                )
                continue
            # The target field is all that may differ: put the old target back and compare.
            word = int(self.view.words[place, 0]) | int(self.view.words[place, 1]) << 64
            back = self.isa.with_target(word, index * self.size, int(before.target[index]) * self.size)
            original = int(self.old.view.words[index, 0]) | int(self.old.view.words[index, 1]) << 64
            if back != original and (back ^ original) & ~_REUSE_BITS:
                self._report(place, "changed", f"original instruction {index} was changed beyond its target")

    def _tables(self, old: Words, new: Words) -> None:
        """Indirect branches still count from the section's start; loads read the moved tables."""
        tables, size = self.old.tables, self.size
        for index in (*tables.branches, *(tables.loads if self.old.stride else ())):
            place = int(self.place[index])
            before, after = self.old.view.facts(index).text, self.view.facts(place).text
            same_control = not (old[index, 1] ^ new[index, 1]) & _CONTROL_HIGH & ~_REUSE_HIGH
            if index in tables.branches:
                (was, start), (now, end) = displacement(before), displacement(after)
                right = was == now and start + (index + 1) * size == 0 == end + (place + 1) * size
            else:
                was_at, now_at = table_place(before), table_place(after)
                right = was_at is not None and now_at == (was_at[0], was_at[1] + self.old.stride)
            if not right or not same_control:
                self._report(place, "table", f"instruction {index} ({before}) became {after}")

    def _tail(self) -> None:
        old = self.old
        stop = len(old.words) if old.twin is None else old.twin
        behind = old.words[old.count : stop]
        if old.view.facts(len(old.view.words) - 1).mnemonic == "NOP":
            same = not (behind != old.view.words[-1]).any()
        else:
            same = all(self.isa.decode(int(low) | int(high) << 64).text == "NOP" for low, high in behind)
        if stop % 8 or not same:
            self._report(
                old.count, "padding", "the code is not padded to 128 bytes with the NOPs that the kernel ended with"
            )
        if old.twin is not None and not np.array_equal(old.words[old.twin :], old.view.words):
            self._report(old.twin, "twin", "the copy behind the code is not the original")
