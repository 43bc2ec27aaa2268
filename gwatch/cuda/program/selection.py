"""Which launches of a program are traced; knows nothing of a driver, so recorded launch lists can test it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from gwatch.cuda.program.options import STEADY, ProgramOptions

MOST_KERNELS = 64
MOST_SHAPES = 8
MOST_LAUNCHES = 64


@dataclass(slots=True)
class _Kernel:
    launches: int = 0
    shapes: Counter[Hashable] = field(default_factory=Counter)
    early: set[Hashable] = field(default_factory=set)  # shapes that are traced before they are steady
    done: bool = False
    traced: int = 0


class Selector:
    """Decides launch by launch. A launch that an autotuner makes is never chosen and never counted.

    By default the first launches of each shape of a kernel are traced until one shape was launched for the
    third time; :meth:`best` then names that one, or the last when no shape came that far. That way a kernel
    that is launched once is not missed. Of a chosen launch that cannot be traced :meth:`took` is not told, and
    a later one of its shape stands for it.
    """

    def __init__(self, options: ProgramOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.kernel)
        self._kernels: dict[str, _Kernel] = {}
        self._best: dict[str, tuple[bool, Hashable]] = {}
        self.left_alone: Counter[str] = Counter()
        self.over_limit: set[str] = set()
        self.cut_off: Counter[str] = Counter()
        """Launches that were asked for by number and not traced, being too many."""

    def wants(self, mangled: str, demangled: str) -> bool:
        """Whether the kernel's name is asked for at all."""
        return any(self._pattern.search(name) is not None for name in (mangled, demangled))

    def choose(self, symbol: str, shape: Hashable, tuning: bool) -> int:
        """Whether to trace this launch: if so, how many launches of its shape there were by now, else 0."""
        if tuning:
            self.left_alone[symbol] += 1
            return 0
        kernel = self._kernels.get(symbol)
        if kernel is None:
            unlimited = self._options.kernel or self._options.all_kernels
            if len(self._kernels) >= MOST_KERNELS and not unlimited:
                self.over_limit.add(symbol)
                return 0
            kernel = self._kernels[symbol] = _Kernel()
        number = kernel.launches
        kernel.launches += 1
        kernel.shapes[shape] += 1
        if len(kernel.early) < MOST_SHAPES:
            kernel.early.add(shape)
        if self._explicit():
            chosen = self._in_range(number)
            if chosen and kernel.traced >= MOST_LAUNCHES:
                self.cut_off[symbol] += 1
                chosen = False
        else:
            chosen = not kernel.done and (shape in kernel.early or kernel.shapes[shape] >= STEADY)
        return kernel.shapes[shape] if chosen else 0

    def took(self, symbol: str, ordinal: int, token: Hashable) -> None:
        """A chosen launch, the ``ordinal``-th of its shape, is traced; ``token`` identifies it in :meth:`best`."""
        kernel = self._kernels[symbol]
        kernel.traced += 1
        steady = self._explicit() or ordinal >= STEADY
        kernel.done = kernel.done or steady
        if steady or symbol not in self._best or not self._best[symbol][0]:
            self._best[symbol] = (steady, token)

    def best(self, symbol: str) -> tuple[bool, Hashable] | None:
        """(steady, token) of the launch to report, None when none was traced."""
        return self._best.get(symbol)

    def why(self, symbol: str, ordinal: int) -> str:
        """Why the launch to report, the ``ordinal``-th of its shape, is that one."""
        if self._explicit():
            return "as asked for"
        if ordinal == STEADY:
            return "the third of its shape"
        if ordinal > STEADY:
            return f"number {ordinal} of its shape, the first from the third on that was traced"
        shapes = self._kernels[symbol].shapes
        if max(shapes.values()) >= STEADY:
            return "the last that could be traced"
        if len(shapes) > MOST_SHAPES:
            return (
                f"the last of the first {MOST_SHAPES} shapes: none of {len(shapes)} was launched three times"
            )
        return "the last seen: no shape was launched three times"

    def settled(self, symbol: str) -> bool:
        """Whether no further launch of the kernel will be chosen."""
        if symbol in self.over_limit:
            return True
        kernel = self._kernels.get(symbol)
        if kernel is None:
            return False
        return kernel.traced >= MOST_LAUNCHES if self._explicit() else kernel.done

    @property
    def explicit(self) -> bool:
        """Whether the user numbered the launches: then all of them are reported."""
        return self._explicit()

    def launches(self, symbol: str) -> int:
        """Launches of a kernel outside autotuning."""
        kernel = self._kernels.get(symbol)
        return 0 if kernel is None else kernel.launches

    def _explicit(self) -> bool:
        options = self._options
        return options.launch is not None or options.skip is not None or options.count is not None

    def _in_range(self, number: int) -> bool:
        options = self._options
        if options.launch is not None:
            return number == options.launch
        start = options.skip or 0
        return number >= start and (options.count is None or number < start + options.count)
