"""How many general registers a warp owns at each instruction of a kernel that moves registers between its warps.

A kernel with ``USETMAXREG`` starts with its declared count; ``DEALLOC n`` leaves n registers, ``TRY_ALLOC UPk, n`` n
registers where it sets UPk, and nothing changed where it doesn't (compilers branch back and try again). Of n registers
R0 .. R(n-3) may be named, as everywhere.
"""

from __future__ import annotations

import re

import numpy as np

from gwatch.errors import UnsupportedError
from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.uses import ALWAYS, CodeView

SPARE = 2
_SET = re.compile(r"USETMAXREG(\S*)\s+(?:(UP\d|UPT|!UPT),\s*)?(0x[0-9a-f]+)\s*$")


class Budgets:
    """``count[i]``: registers that every warp owns right before instruction i, whichever way it came there.

    ``changes`` tells whether the section sets budgets at all; ``roles`` lists the different counts. Raises
    UnsupportedError ``[setmaxnreg]`` for a USETMAXREG that isn't understood.
    """

    def __init__(self, cfg: Cfg, view: CodeView, launched: int) -> None:
        self.cfg, self.view, self.launched = cfg, view, launched
        self.changes = "USETMAXREG" in cfg.flow.mnemonics
        self.count = np.full(len(view), launched, np.int64)
        if self.changes:
            self._solve()

    def _solve(self) -> None:
        count = len(self.view)
        setters: dict[int, tuple[bool, int]] = {}
        for index in range(count):
            facts = self.view.facts(index)
            if facts.mnemonic != "USETMAXREG":
                continue
            match = _SET.search(re.sub(r"^@!?U?P\w+ ", "", facts.text))
            parts = match[1].split(".") if match else []
            if match is None or not ({"DEALLOC", "TRY_ALLOC"} & set(parts)) or facts.guard != ALWAYS:
                raise UnsupportedError(
                    "setmaxnreg",
                    f"instruction {index} ({facts.text}) changes the number of registers in a way that isn't known",
                )
            setters[index] = ("TRY_ALLOC" in parts, int(match[3], 16))
        grants = {index: self._granted(index) for index, (tried, _) in setters.items() if tried}
        edges = {edge: setters[index][1] for index, edge in grants.items() if edge is not None}
        unset = 1 << 30
        found = [unset] * count
        work = [(entry, self.launched) for entry in {0, *self.cfg.entries}]
        while work:
            index, budget = work.pop()
            budget = min(budget, found[index])
            if budget == found[index]:
                continue
            found[index] = budget
            tried, number = setters.get(index, (True, budget))
            # Without the way back that shows where it succeeded, a try may have failed.
            left = min(budget, number) if tried else number
            for item in self.cfg.successors(index):
                work.append((item, edges.get((index, item), left)))
        self.count = np.array([self.launched if item == unset else item for item in found], np.int64)

    def _granted(self, index: int) -> tuple[int, int] | None:
        """The edge on which the try at ``index`` has succeeded: past the branch that leads back to it."""
        for at in range(index + 1, min(index + 9, len(self.view))):
            kind, target = self.cfg.flow.kind[at], int(self.cfg.flow.target[at])
            if kind == Flow.BRANCH and self.cfg.flow.conditional[at]:
                if index - 8 <= target <= index and all(
                    self.cfg.flow.kind[item] == Flow.NEXT for item in range(target, index)
                ):
                    return at, at + 1
                return None
            if kind != Flow.NEXT or len(self.cfg.predecessors(at)) > 1:
                return None
        return None

    @property
    def roles(self) -> list[int]:
        """The different counts, ascending."""
        return sorted(set(self.count.tolist()))

    def mask(self, index: int) -> int:
        """The registers that may be named right before instruction ``index``."""
        return (1 << max(0, int(self.count[index]) - SPARE)) - 1
