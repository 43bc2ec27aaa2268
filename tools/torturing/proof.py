"""Prove one case without a GPU, by roads that don't use the rewriter's own maps."""

from __future__ import annotations

from dataclasses import dataclass, field

from gwatch.check import KernelCheck, check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary import Cubin
from gwatch.errors import GWatchError
from gwatch.rewrite import Rewritten
from gwatch.rewrite.verify import verify
from torturing.cases import Case


@dataclass
class Outcome:
    """What became of a case: ``proved`` and ``refused`` insertions (by code), ``wrong``: sentences."""

    proved: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    rewrites: int = 0

    def add(self, other: Outcome) -> None:
        """Count another outcome in."""
        self.proved += other.proved
        self.rewrites += other.rewrites
        self.wrong += other.wrong
        for code, count in other.refused.items():
            self.refused[code] = self.refused.get(code, 0) + count
        self.reasons = other.reasons | self.reasons


def prove(case: Case) -> Outcome:
    """Build and prove; where the whole is refused, halves of it, so that one bad site doesn't hide the others."""
    outcome = Outcome()
    try:
        before, rewritten, after = case.build()
    except GWatchError as error:
        if len(case) == 1 or error.code == "hazard":
            outcome.refused[error.code] = len(case)
            outcome.reasons[error.code] = f"{case.kernel}: {error}"
            if error.code == "hazard":
                outcome.wrong.append(f"the rewriter's own checker refused: {error}")
            return outcome
        middle = len(case) // 2
        for part in (range(middle), range(middle, len(case))):
            outcome.add(prove(case.part(part)))
        return outcome
    except Exception as error:
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        return outcome
    outcome.rewrites = 1
    outcome.wrong += faults(case, before, rewritten, after)
    if not outcome.wrong:
        outcome.proved = len(case)
    return outcome


def faults(case: Case, before: bytes, rewritten: Rewritten, after: bytes) -> list[str]:
    """Everything the three roads find wrong."""
    wrong = []
    try:
        verify(case.cubin.data, rewritten)
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
