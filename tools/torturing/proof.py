"""Prove one case without a GPU, by roads that don't use the rewriter's own maps."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest import mock

from gwatch.check import KernelCheck, check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary import Cubin
from gwatch.errors import GWatchError
from gwatch.rewrite import Rewritten
from gwatch.rewrite import verify as verify_module
from torturing.cases import Case

_list = verify_module._section
Built = tuple[bytes, Rewritten, bytes]
"""Image before, rewrite, image after: see Case.build."""


@lru_cache(maxsize=8)
def _section(image: bytes, kernel: str) -> Any:
    """nvdisasm's listing, kept for the next case of the same kernel."""
    return _list(image, kernel)


@dataclass
class Outcome:
    """What became of a case: ``proved`` and ``refused`` insertions (by code), ``wrong``: sentences."""

    proved: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    rewrites: int = 0
    good: list[int] = field(default_factory=list)
    """Insertions of the last rewrite that was proved, by their place in the case."""
    own: list[str] = field(default_factory=list)
    """Codes with which a trace was refused whose sites gwatch chose itself."""

    def add(self, other: Outcome) -> None:
        """Count another outcome in."""
        self.proved += other.proved
        self.rewrites += other.rewrites
        self.wrong += other.wrong
        for code, count in other.refused.items():
            self.refused[code] = self.refused.get(code, 0) + count
        self.reasons = other.reasons | self.reasons


def prove(case: Case) -> Outcome:
    """Build and prove. Insertions that are refused are found by halving and left out, so that one bad site doesn't
    hide the others.

    Raises ToolError when nvdisasm can't list the kernel as it was: an older one doesn't know every architecture.
    """
    _section(case.cubin.data, case.kernel)
    outcome = Outcome()
    groups = buildable(case, list(range(len(case))), outcome)
    if len(groups) > 1:
        together = [index for group, _ in groups for index in group]
        built = _build(case.part(together), Outcome())
        if built is not None:
            groups = [(together, built)]
    for group, built in groups:
        part = case.part(group)
        outcome.rewrites += 1
        wrong = faults(part, *built)
        outcome.wrong += wrong
        if not wrong:
            outcome.proved += len(part)
            outcome.good = group
    return outcome


def _build(case: Case, outcome: Outcome) -> Built | None:
    """The case built; what isn't a refusal counts as wrong, a refusal is noted for single insertions."""
    try:
        return case.build()
    except GWatchError as error:
        if error.code == "hazard":
            outcome.wrong.append(f"the rewriter's own checker refused: {error}")
        if len(case) == 1:
            outcome.refused[error.code] = outcome.refused.get(error.code, 0) + 1
            outcome.reasons[error.code] = f"{case.kernel}: {error}"
    except Exception as error:
        outcome.wrong.append(f"{type(error).__name__}: {error}")
    return None


def buildable(case: Case, chosen: list[int], outcome: Outcome) -> list[tuple[list[int], Built]]:
    """The insertions in groups that can be built, and each group built."""
    built = _build(case.part(chosen), outcome)
    if built is not None:
        return [(chosen, built)]
    if len(chosen) == 1:
        return []
    middle = len(chosen) // 2
    return buildable(case, chosen[:middle], outcome) + buildable(case, chosen[middle:], outcome)


def faults(case: Case, before: bytes, rewritten: Rewritten, after: bytes) -> list[str]:
    """Everything the three roads find wrong."""
    wrong = []
    try:
        with mock.patch.object(verify_module, "_section", _section):
            verify_module.verify(case.cubin.data, rewritten)
    except GWatchError as error:
        wrong.append(f"nvdisasm's listings: {error}")
    patched = Cubin.from_bytes(after, "patched")
    wrong += check_faults(Cubin.from_bytes(before, "original"), patched, case.kernel)
    count = patched.get_kerneldef_by_name(case.kernel).register_count
    if count != rewritten.registers_after:
        wrong.append(f"the image says {count} registers, the rewrite {rewritten.registers_after}")
    return wrong


def check_faults(original: Cubin, patched: Cubin, kernel: str) -> list[str]:
    """What ``gwatch check --original`` finds in one kernel."""
    check: KernelCheck = check_kernel(patched, patched.get_kerneldef_by_name(kernel))
    check_against(original, patched, check)
    wrong = [
        f"{item.kind} at instruction {item.index} ({item.instruction}): {item.cause}"
        for item in check.findings
    ]
    if check.refused:
        wrong.append(f"the checker could not check: {check.refused}")
    return wrong
