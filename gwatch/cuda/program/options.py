"""What ``gwatch trace`` was asked for, as it travels from the command to the processes of the program."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from gwatch.errors import KernelError, TraceError

VARIABLE = "GWATCH_TRACE"
DEFAULT_RING_BYTES = 64 << 20
STEADY = 3
"""The launch of a shape that is traced by default: the first ones load, compile and warm up."""


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """``folder``: where each process leaves its results. ``kernel``: regular expression, "" for any kernel.
    ``launch``: number of one launch among a kernel's launches outside autotuning, from 0; ``skip`` and
    ``count`` likewise name a range. ``regions``: ``NAME=SITE..SITE``. ``scopes``: names of scope
    markers by their number. ``passes``: turns of the replays that ``verify`` makes. ``timeout``: seconds after which a
    traced launch that has not ended is reported as hanging. Raises KernelError ``[kernel-pattern]``."""

    folder: str
    list_only: bool = False
    kernel: str = ""
    all_kernels: bool = False
    launch: int | None = None
    skip: int | None = None
    count: int | None = None
    cta: tuple[tuple[int, int, int], ...] = ()
    ctas: int | None = None
    sites: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    scopes: tuple[tuple[int, str], ...] = ()
    auto: bool = False
    clock: str = "anchor"
    depth: int | None = None
    keep: str = "newest"
    verify: bool = False
    passes: int | None = None
    timeout: float | None = None
    ring_bytes: int = DEFAULT_RING_BYTES
    untested_arch: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.kernel)
        except re.error as error:
            raise KernelError(
                "kernel-pattern",
                f"--kernel {self.kernel!r} is no regular expression: {error}",
                "escape parentheses and brackets of a literal name with a backslash",
            ) from None
        if self.launch is not None and (self.skip is not None or self.count is not None):
            raise TraceError(
                "option-conflict", "--launch names one launch, --launch-skip and --launch-count a range"
            )
        for name, number, least in (
            ("--launch", self.launch, 0),
            ("--launch-skip", self.skip, 0),
            ("--launch-count", self.count, 1),
            ("--ctas", self.ctas, 1),
            ("--depth", self.depth, 1),
            ("--passes", self.passes, 1),
            ("--ring-bytes", self.ring_bytes, 1),
            ("--timeout", self.timeout, 0.1),
        ):
            if number is not None and not number >= least:  # not a number is none either
                raise TraceError("option-range", f"{name} is {number}, at least {least} is needed")
        if self.verify and self.timeout is not None:
            raise TraceError(
                "option-conflict",
                "--verify waits for its replays to end, --timeout is for kernels that may not",
                "find out with --timeout first; where the kernel ends, ask for --verify without it",
            )
        if len({number for number, _ in self.scopes}) < len(self.scopes):
            raise TraceError("option-conflict", "--scope names one number twice")
        if self.cta and self.ctas is not None:
            raise TraceError("option-conflict", "--cta names the CTAs recorded, --ctas only how many")

    @property
    def own_sites(self) -> bool:
        """Whether the user said where to record; otherwise warp lifetimes are."""
        return bool(self.sites or self.regions or self.auto)

    def to_text(self) -> str:
        """The value of the environment variable ``GWATCH_TRACE``."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ProgramOptions:
        """Undo :meth:`to_text`. Raises TraceError ``[option-text]``."""
        try:
            data: dict[str, Any] = json.loads(text)
            data["cta"] = tuple((int(x), int(y), int(z)) for x, y, z in data["cta"])
            data["sites"], data["regions"] = tuple(data["sites"]), tuple(data["regions"])
            data["scopes"] = tuple((int(number), str(name)) for number, name in data["scopes"])
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(
                "option-text",
                f"{VARIABLE} does not hold what this gwatch writes there: {error}",
                "the program's interpreter finds another version of gwatch; install the same one",
            ) from None
