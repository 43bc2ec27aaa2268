"""Check a patched cubin against the one it was made from, knowing nothing of how it was made.

The original instructions are found in the new code by their words; what is left over was inserted. Then every
original must be unchanged, every code position must lead where it led, and inserted code may disturb nothing: the same
replay as before a rewrite is emitted (:mod:`gwatch.sass.hazards`), with what the rewriter claims replaced by what the
two files show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.check.findings import Finding, KernelCheck
from gwatch.cuda.binary.elf import Relocation
from gwatch.cuda.binary.nvinfo import OFFSET_SHAPES, Attr, code_offsets, entries
from gwatch.cuda.binary.stack import stack_bytes
from gwatch.errors import GWatchError, KernelError
from gwatch.rewrite.surroundings import Surroundings
from gwatch.sass.cfg import Cfg, Flow, Words, build_cfg
from gwatch.sass.hazards import RewriteChecker
from gwatch.sass.integrity import Rewrite
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import latency_for
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView, Key

if TYPE_CHECKING:
    from gwatch.cuda.binary import Cubin, KernelDef
    from gwatch.sass.isa import Isa

STACK_POINTER = 1
_OPCODE_LOW = np.uint64(0xFFFF)
_CONTROL_HIGH = np.uint64(((1 << 17) - 1) << (105 - 64))
_REUSE_HIGH = np.uint64(15 << (122 - 64))
_ALL = np.uint64(2**64 - 1)
_IMMEDIATE = np.uint64(0xFFFFFFFF << 32)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where original instruction i stands in the new code (``place`` (n,)), and where an untouched copy of all of
    them starts, if there is one."""

    place: npt.NDArray[np.int64]
    twin: int | None


def align(old: Words, new: Words, masks: Words, copied: bool) -> Alignment | None:
    """Find ``old`` (n, 2) in ``new`` (m, 2) in order, comparing the bits of ``masks`` (n, 2); None when it isn't there.

    Inserted code stands before an original; of two words that would do, the later one is the original. ``copied``:
    ``new`` ends with an untouched copy of ``old`` (:func:`ends_with_copy`).
    """
    twin = len(new) - len(old) if copied else None
    body = new[:twin]
    count = len(old)
    place = np.full(count, -1, np.int64)
    wanted = (old & masks).tolist()
    mask_rows, rows = masks.tolist(), body.tolist()
    at = len(rows) - 1
    # Padding repeats the last original: of equal last words the first is the original.
    while at > 0 and rows[at - 1] == rows[at] and rows[at] == old[-1].tolist():
        at -= 1
    trailing = 0
    while trailing + 1 < count and old[count - 2 - trailing].tolist() == old[-1].tolist():
        trailing += 1
    at = min(len(rows) - 1, at + trailing)
    for index in range(count - 1, -1, -1):
        low, high = mask_rows[index]
        while at >= 0 and [rows[at][0] & low, rows[at][1] & high] != wanted[index]:
            at -= 1
        if at < 0:
            return None
        place[index] = at
        at -= 1
    return Alignment(place, twin)


def ends_with_copy(old: Words, new: Words, isa: Isa) -> bool:
    """Whether ``new`` ends with an untouched copy of ``old`` (n, 2). Code before it branches there: a short kernel
    behind as much inserted code would look like a copy, too.
    """
    start = len(new) - len(old)
    if start < len(old) or not np.array_equal(new[start:], old):
        return False
    return bool((build_cfg(isa, new, (0,)).flow.target[:start] == start).any())


def compared_bits(words: Words, cfg: Cfg, positions: list[int], loads: Iterable[int]) -> Words:
    """Per original instruction the bits that a rewrite leaves alone: all but reuse, code positions (``positions``: the
    instructions that have one as an immediate), and the places of tables that hold such.
    """
    masks = np.full((len(words), 2), _ALL)
    masks[:, 1] &= ~_REUSE_HIGH
    moving = np.zeros(len(words), bool)
    moving[cfg.flow.relative()] = True
    moving |= np.isin(cfg.flow.kind, (Flow.INDIRECT, Flow.CALL_INDIRECT))
    moving[list(loads)] = True
    masks[moving] = _OPCODE_LOW, _CONTROL_HIGH
    masks[positions, 0] &= ~_IMMEDIATE
    return masks


def check_against(before: Cubin, after: Cubin, check: KernelCheck) -> None:
    """Add to ``check`` (a kernel of ``after``) what differs from ``before`` in more than insertions.

    What can't be compared is said in ``check.refused``. A kernel that ``before`` doesn't have is a finding.
    """
    try:
        old = before.get_kerneldef_by_name(check.kernel)
        new = after.get_kerneldef_by_name(check.kernel)
    except KernelError as error:
        check.findings.append(Finding(check.kernel, None, None, "", "missing", error.message))
        return
    if np.array_equal(old.words, new.words):
        return
    try:
        _Against(before, old, after, new, check).run()
    except GWatchError as error:
        check.refused = check.refused or str(error)


class _Against:
    def __init__(
        self, before: Cubin, old: KernelDef, after: Cubin, new: KernelDef, check: KernelCheck
    ) -> None:
        self.before, self.old, self.after, self.new, self.check = before, old, after, new, check
        self.isa = isa_for(before.arch.name)
        self.size = before.arch.instruction_size
        around = Surroundings(before, old, self.isa)
        self.view, self.cfg, self.tables = around.view, around.cfg, around.tables
        self.returns, self.stride, self.callees = around.returns, around.stride, around.callees
        self.origins = around.computed.origins

    def report(self, index: int | None, kind: str, cause: str) -> None:
        text = "" if index is None else CodeView(self.isa, self.new.words).text(index)
        pc = None if index is None else index * self.size
        finding = Finding(self.check.kernel, index, pc, text, kind, cause)
        if finding not in self.check.findings:
            self.check.findings.append(finding)

    def run(self) -> None:
        masks = compared_bits(self.old.words, self.cfg, [*self.returns, *self.origins], self.tables.loads)
        copied = ends_with_copy(self.old.words, self.new.words, self.isa)
        found = align(self.old.words, self.new.words, masks, copied)
        if found is None:
            self.report(
                None, "changed", "the original instructions are not all there, in order and unchanged"
            )
            return
        self._settle(found.place, masks)
        rewrite = self._rewrite(found)
        checker = RewriteChecker(self.isa, latency_for(self.before.arch.latency), rewrite)
        for item in checker.run():
            self.report(item.index, item.kind, item.message)
        self._holders(found, rewrite)

    def _settle(self, place: npt.NDArray[np.int64], masks: Words) -> None:
        """Of equal words the one that an attribute points at is the original that it pointed at before: inserted code
        may end with a NOP like that which stood there.
        """
        old, new = self._pointed(self.old), self._pointed(self.new)
        for index in sorted(old):
            first = int(place[index - 1]) + 1 if index else 0
            wanted = self.old.words[index] & masks[index]
            equal = [
                at
                for at in range(first, int(place[index]) + 1)
                if at in new and np.array_equal(self.new.words[at] & masks[index], wanted)
            ]
            if equal:
                place[index] = equal[-1]

    def _pointed(self, kernel: KernelDef) -> set[int]:
        """The instructions that attributes of ``kernel`` point at."""
        places = (offset // self.size for item in kernel.attributes for offset in code_offsets(item))
        return {place for place in places if place < len(kernel.words)}

    def _rewrite(self, found: Alignment) -> Rewrite:
        count = int(found.place[-1]) + 1
        inserted = np.ones(len(self.new.words), bool)
        inserted[found.place] = False
        inserted[count:] = False
        entry = int(found.place[0])
        new_view = CodeView(self.isa, self.new.words[:count])
        if (self.cfg.flow.target == 0).any():
            # Loops back to the start skip what runs only at the entry.
            cfg = build_cfg(self.isa, new_view.words, (0,))
            looping = np.flatnonzero((self.cfg.flow.target == 0) & (self.cfg.flow.kind != Flow.RETURN))
            entry = min([entry, *(int(cfg.flow.target[found.place[index]]) for index in looping.tolist())])
        named = {(file, n) for file in ("R", "UR", "P", "UP") for n in self.view.named(file, certain=True)}
        written: list[set[Key]] = [set(), set()]
        for index in np.flatnonzero(inserted[:count]).tolist():
            for use in new_view.facts(index).uses:
                # A register that is only read and that nobody else names is inserted code's, too: filling of a record.
                keys = {(use.file, n) for n in range(use.first, use.first + use.count)}
                written[index >= entry] |= keys if use.write else keys - named
        own = frozenset((written[0] | written[1]) - named)
        # When a kernel is entered its registers hold nothing yet, the stack pointer aside.
        entry_only = frozenset(written[0] & named - {("R", STACK_POINTER)})
        return Rewrite(
            view=self.view,
            cfg=self.cfg,
            waits=Waits(self.view),
            words=self.new.words,
            inserted=inserted,
            count=count,
            entry=entry,
            own=own,
            entry_only=entry_only,
            returns=self.returns,
            origins=self.origins,
            twin=found.twin,
            tables=self.tables,
            stride=0 if found.twin is None else self.stride,
            calls=self.callees,
            frame=stack_bytes(self.after.elf, self.new.symbol.index)
            - stack_bytes(self.before.elf, self.old.symbol.index),
        )

    # what points into the code
    # ---------------------------------------------------------------------------------------------

    def _holders(self, found: Alignment, rewrite: Rewrite) -> None:
        place = found.place
        copies = [place] if found.twin is None else [place, np.arange(len(place)) + found.twin]
        reached = self._reached(place, rewrite)
        self._attributes(copies)
        self._jumps(found, reached)
        starts = {symbol.name: symbol.value // self.size for symbol in self.old.inner_functions}
        for symbol in self.new.inner_functions:
            if symbol.name in starts and symbol.value // self.size != reached[starts[symbol.name]]:
                self.report(
                    symbol.value // self.size, "symbol", f"{symbol.name} starts here, not where its code went"
                )
        names = [
            Counter(
                (entry.type, cubin.elf.symbols[entry.symbol].name, at)
                for entry, at in self._relocations(kernel, maps)
            )
            for cubin, kernel, maps in ((self.before, self.old, copies), (self.after, self.new, None))
        ]
        for kind, name, at in names[0] - names[1]:
            self.report(int(at), "relocation", f"relocation {kind} of {name} is not here any more")

    def _jumps(self, found: Alignment, reached: list[int]) -> None:
        """Every indirect branch is listed with the targets it had, in the new code and in the copy."""
        listed = self.new.indirect_targets
        for index, targets in self.old.indirect_targets.items():
            wanted = [(int(found.place[index]), [reached[target] for target in targets])]
            if found.twin is not None:
                wanted.append((found.twin + index, [found.twin + target for target in targets]))
            for at, expected in wanted:
                if list(listed.get(at, ())) != expected:
                    self.report(at, "jump-table", f"leads to {list(listed.get(at, ()))}, not to {expected}")

    def _relocations(
        self, kernel: KernelDef, maps: list[npt.NDArray[np.int64]] | None
    ) -> Iterator[tuple[Relocation, int]]:
        for entry in kernel.relocations:
            index = entry.offset // self.size
            for places in [None] if maps is None else maps:
                yield entry, index if places is None else int(places[index])

    def _reached(self, place: npt.NDArray[np.int64], rewrite: Rewrite) -> list[int]:
        """Where a jump to original instruction i must arrive: at the first word inserted before it."""
        out = []
        for number, at in enumerate(place.tolist()):
            while at > 0 and rewrite.inserted[at - 1]:
                at -= 1
            out.append(at + rewrite.entry if number == 0 else at)
        return out

    def _attributes(self, copies: list[npt.NDArray[np.int64]]) -> None:
        for before in self.old.attributes:
            shape = OFFSET_SHAPES.get(before.code)
            if shape is None:
                continue
            wanted: Counter[tuple[int, ...]] = Counter()
            for places in copies:
                for entry in entries(before):
                    index = entry[shape.column] // self.size
                    wanted[shape.replaced(entry, int(places[index]) * self.size)] += 1
            for after in self.new.attributes:
                if after.code == before.code:
                    wanted.subtract(entries(after))
            name = Attr(before.code).name
            for record, surplus in wanted.items():
                if surplus:
                    index = min(record[shape.column] // self.size, len(self.new.words) - 1)
                    self.report(
                        index,
                        "offset",
                        f"{name} {'points here no more' if surplus > 0 else 'points here by mistake'}",
                    )
