"""What a check found, and how much it looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of ``kernel``: at instruction ``index`` (None: of the kernel as a whole) with its ``instruction`` text.

    ``kind`` is stable; ``cause`` says in a sentence what is wrong.
    """

    kernel: str
    index: int | None
    pc: int | None
    instruction: str
    kind: str
    cause: str

    def to_json(self) -> dict[str, Any]:
        """The fields, by name."""
        return {
            name: getattr(self, name) for name in ("kernel", "index", "pc", "instruction", "kind", "cause")
        }


@dataclass(slots=True)
class KernelCheck:
    """The check of one kernel or device function.

    ``instructions`` of its section, padding aside, ``pairs`` of dependent instructions whose distance was compared,
    ``holders`` of code offsets that were followed, ``unread`` words that the tables don't know (looked through, not
    at). ``refused``: why its code could not be checked at all ("" when it was).
    """

    kernel: str
    arch: str
    instructions: int
    findings: list[Finding] = field(default_factory=list)
    pairs: int = 0
    holders: int = 0
    unread: int = 0
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields, by name."""
        names = ("kernel", "arch", "instructions", "pairs", "holders", "unread", "refused")
        return {name: getattr(self, name) for name in names} | {
            "findings": [item.to_json() for item in self.findings]
        }
