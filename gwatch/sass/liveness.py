"""Which registers of a small file (predicates) still matter at each instruction: backward dataflow over the blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gwatch.sass.cfg import Cfg
from gwatch.sass.uses import CodeView

Masks = npt.NDArray[np.uint8]


class PredicateLiveness:
    """Live-in predicates of every instruction as 7-bit masks (bit n = Pn).

    A guarded write doesn't end a life (the old value survives where the guard is false). Code that a call outside
    the section reaches is taken to neither read nor write predicates of its caller. When some word can't be read
    at all (``known`` is False) every predicate counts as live.
    """

    def __init__(self, cfg: Cfg, view: CodeView) -> None:
        self.cfg, self.view = cfg, view
        self.known = all(view.facts(index).known for index in view.incomplete())
        self._reads, self._kills = view.predicate_masks()
        self._out = self._solve()

    def _solve(self) -> dict[int, int]:
        """Live-out mask per block start."""
        blocks = self.cfg.blocks
        start_of = {block.start: number for number, block in enumerate(blocks)}
        reads, kills = self._reads.tolist(), self._kills.tolist()
        gen, keep, successors = [], [], []
        for block in blocks:
            used, left = 0, 0x7F
            for index in range(block.end - 1, block.start - 1, -1):
                used = used & ~kills[index] | reads[index]
                left &= ~kills[index]
            gen.append(used)
            keep.append(left)
            successors.append([start_of[item] for item in self.cfg.successors(block.end - 1)])
        before: list[list[int]] = [[] for _ in blocks]
        for number, following in enumerate(successors):
            for item in following:
                before[item].append(number)
        live_in = [0] * len(blocks)
        live_out = [0] * len(blocks)
        work = list(range(len(blocks)))
        while work:
            number = work.pop()
            out = 0
            for item in successors[number]:
                out |= live_in[item]
            new = gen[number] | out & keep[number]
            live_out[number] = out
            if new != live_in[number]:
                live_in[number] = new
                work.extend(before[number])
        return {block.start: live_out[number] for number, block in enumerate(blocks)}

    def live_in(self, index: int) -> int:
        """Mask of the predicates whose value at ``index`` may still be read by it or later."""
        if not self.known:
            return 0x7F
        starts = np.flatnonzero(self.cfg.leaders[: index + 1])
        start = int(starts[-1])
        end = start + 1
        leaders = self.cfg.leaders
        while end < len(leaders) and not leaders[end]:
            end += 1
        live = self._out[start]
        for at in range(end - 1, index - 1, -1):
            live = live & ~int(self._kills[at]) | int(self._reads[at])
        return live
