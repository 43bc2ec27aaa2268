"""Which registers still matter at each instruction: backward dataflow over the blocks of a section.

Masks are Python integers, bit n = register n of the file.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.uses import CodeView

_SIZES = {"R": 255, "UR": 255, "P": 7, "UP": 7}


class Liveness:
    """Live registers of ``file`` before and after every instruction.

    A guarded write doesn't end a life (the old value survives where the guard is false). ``outside`` says which
    registers the code that a call out of the section reaches may read (index of the call -> mask); calls that it
    doesn't name read nothing. ``asked``: further reads that inserted code makes right before an instruction.
    Where control goes on to an unknown place everything is live. When some word can't be read at all
    (``known`` is False) every register counts as live everywhere.
    """

    def __init__(
        self,
        cfg: Cfg,
        view: CodeView,
        file: str,
        outside: Mapping[int, int] | None = None,
        asked: Mapping[int, int] | None = None,
    ) -> None:
        self.cfg, self.view, self.file = cfg, view, file
        self.everything = (1 << _SIZES[file]) - 1
        self.known = all(view.facts(index).known for index in view.incomplete())
        masks = view.masks(file)
        self.reads, self.writes, self.kills = list(masks.reads), masks.writes, masks.kills
        for more in (outside, asked):
            for index, mask in (more or {}).items():
                self.reads[index] |= mask
        self._starts = [block.start for block in cfg.blocks]
        self._block_out = self._solve()
        self._cache: dict[int, list[int]] = {}
        self._outs: list[int] | None = None

    def _solve(self) -> list[int]:
        """Live-out mask per block."""
        blocks = self.cfg.blocks
        number_of = {block.start: number for number, block in enumerate(blocks)}
        kind = self.cfg.flow.kind
        gen, keep, successors, unknown = [], [], [], []
        for block in blocks:
            used, left = 0, self.everything
            for index in range(block.end - 1, block.start - 1, -1):
                used = used & ~self.kills[index] | self.reads[index]
                left &= ~self.kills[index]
            gen.append(used)
            keep.append(left)
            last = block.end - 1
            following = self.cfg.successors(last)
            successors.append([number_of[item] for item in following])
            leaves = kind[last] in (Flow.RETURN, Flow.INDIRECT) and not set(following) - {last + 1}
            unknown.append(self.everything if leaves else 0)
        before: list[list[int]] = [[] for _ in blocks]
        for number, following in enumerate(successors):
            for item in following:
                before[item].append(number)
        live_in = [0] * len(blocks)
        live_out = [0] * len(blocks)
        work = list(range(len(blocks)))
        while work:
            number = work.pop()
            out = unknown[number]
            for item in successors[number]:
                out |= live_in[item]
            new = gen[number] | out & keep[number]
            live_out[number] = out
            if new != live_in[number]:
                live_in[number] = new
                work.extend(before[number])
        return live_out

    def outs(self) -> list[int]:
        """:meth:`live_out` of every instruction. The list is shared: it must not be changed."""
        if self._outs is None:
            self._outs = self._find_outs()
        return self._outs

    def _find_outs(self) -> list[int]:
        if not self.known:
            return [self.everything] * len(self.view)
        out = [0] * len(self.view)
        for block, live in zip(self.cfg.blocks, self._block_out, strict=True):
            for at in range(block.end - 1, block.start - 1, -1):
                out[at] = live
                live = live & ~self.kills[at] | self.reads[at]
        return out

    def _block(self, index: int) -> tuple[int, list[int]]:
        """(first instruction of the block of ``index``, live-in of each of its instructions and live-out)."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        block = self.cfg.blocks[number]
        found = self._cache.get(number)
        if found is None:
            live = self._block_out[number]
            found = [live]
            for at in range(block.end - 1, block.start - 1, -1):
                live = live & ~self.kills[at] | self.reads[at]
                found.append(live)
            found.reverse()
            self._cache[number] = found
        return block.start, found

    def live_in(self, index: int) -> int:
        """Registers whose value at ``index`` may still be read by it (or by code inserted before it) or later."""
        if not self.known:
            return self.everything
        start, masks = self._block(index)
        return masks[index - start]

    def live_out(self, index: int) -> int:
        """Registers whose value behind ``index`` may still be read."""
        if not self.known:
            return self.everything
        start, masks = self._block(index)
        return masks[index - start + 1]
