"""Every refusal gwatch makes: one exception family with stable codes.

A :class:`GWatchError` carries a kebab-case ``code`` that scripts may rely on, one line that says what is wrong and
where, and (usually) a hint that says what to do. ``str(error)`` is ``[code] message; hint``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

UNNAMED = "cubin"
"""What an image is called in messages that has no name of its own: bytes in memory."""

_REPORT = "the report is damaged, or another program changed it: write it anew with File.render"
_RING = "give what `gwatch rewrite` wrote, and the ring as it was copied back, with the launch's grid and block"
_OPTION = "`gwatch trace --help` and do_trace's documentation list what can be asked for"
_CURES = {
    **dict.fromkeys(("bad-archive", "bad-report", "bad-iket", "bad-records", "bad-dimension"), _REPORT),
    **dict.fromkeys(("no-run", "no-rows", "bad-range"), "widen --block, --warp, --tid, --stime or --etime"),
    "bad-token": "copy the selection anew from the page",
    **dict.fromkeys(("ring-format", "ring-geometry", "ring-file", "ring-corrupt", "site-map"), _RING),
    **dict.fromkeys(
        ("cubin-unreadable", "artifact-unreadable", "extract-folder"), "check the path and your permission to it"
    ),
    **dict.fromkeys(("not-checked", "not-compared"), "make readable what was not, or leave it out"),
    "ring-window": "record fewer CTAs, or keep fewer records per thread",
    "cta-outside": "blocks are counted from 0 in each direction",
    **dict.fromkeys(("option-conflict", "option-range", "option-unknown", "tier-unknown", "clock-unknown"), _OPTION),
    **dict.fromkeys(("kernel-pattern", "rule-syntax"), "put a backslash before characters that are meant literally"),
    "rule-file": "the README of gwatch.inspect shows a file of rules",
    "snippet-file": "give a text file of SASS lines",
    **dict.fromkeys(("snippet-empty", "snippet-name"), "gwatch/rewrite/README.md shows a snippet"),
    **dict.fromkeys(("argument-range", "argument-type"), "pass a value that fits the parameter's size"),
    "arch-mismatch": "leave sass_arch out, or give the architecture that ran",
    "handle-unknown": "launch through the driver or runtime API while gwatch watches",
    "excluded-registers": "exclude registers that the architecture has",
    "ptx-syntax": "give PTX as nvcc -ptx or Triton writes it",
    **dict.fromkeys(("asm-target", "asm-kernel"), "write .target once and .kernel NAME before each kernel's lines"),
    **dict.fromkeys(("anchor-no-pairs", "internal", "word-size"), "this is gwatch's fault: report it with the cubin"),
}
"""What to do about errors of a code, wherever they are raised without saying so."""


_UNPRINTABLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    # Line separators, and marks that reverse what a terminal shows.
    code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_UNPRINTABLE[ord("\t")] = " "


def printable(text: str) -> str:
    """One line of ``text`` without characters that a terminal or a CI log would obey: names come from the input."""
    return text.translate(_UNPRINTABLE)


class GWatchError(Exception):
    """Base class of all errors gwatch raises on purpose. What names from the input hold is escaped in its texts.

    ``code`` is stable across releases; ``message`` says what is wrong and where; ``hint`` says what to do;
    ``candidates`` are values that would have been accepted, nearest first, where there are any. An error that gives no
    hint of its own has its code's, or its class's ``cure``.
    """

    cure: ClassVar[str] = ""

    def __init__(self, code: str, message: str, hint: str = "", candidates: Iterable[str] = ()) -> None:
        self.code = code
        self.message = printable(" ".join(message.split()))
        self.hint = printable(" ".join((hint or _CURES.get(code) or self.cure).split()))
        self.candidates = tuple(candidates)
        super().__init__(str(self))

    def __str__(self) -> str:
        tail = f"; {self.hint}" if self.hint else ""
        return f"[{self.code}] {self.message}{tail}"

    def as_dict(self) -> dict[str, object]:
        """``{code, message, hint, candidates}``: what ``--json`` prints of an error."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "candidates": list(self.candidates)}

    def __reduce__(self) -> tuple[type[GWatchError], tuple[str, str, str, tuple[str, ...]]]:
        # The default would replay the one-string form and lose the code when an error crosses a process.
        return (type(self), (self.code, self.message, self.hint, self.candidates))


class UsageError(GWatchError):
    """A command's arguments don't go together, are missing or malformed."""


class CubinError(GWatchError):
    """A container (ELF, fatbin, attribute, relocation) is malformed, truncated or of a kind gwatch refuses."""

    cure = "the file is damaged or of a kind that gwatch does not take: make or fetch it anew"


class CubinNotFound(CubinError, FileNotFoundError):
    """The named file does not exist."""


class ParseError(GWatchError):
    """Text is not an instruction, a listing or a site description."""

    cure = "write it as `gwatch disasm` prints it"


class EncodeError(GWatchError):
    """A well-formed line has no exact instruction word (overflow, unknown form, hidden operand).

    ``token`` is the part of the line that is at fault, "" where it is the line as a whole.
    """

    cure = "write it as `gwatch disasm` prints such an instruction"

    def __init__(
        self, code: str, message: str, hint: str = "", candidates: Iterable[str] = (), token: str = ""
    ) -> None:
        super().__init__(code, message, hint, candidates)
        self.token = token


class DecodeError(GWatchError):
    """An instruction word means nothing that the tables know."""

    cure = "`gwatch disasm --engine nvdisasm` shows whether NVIDIA's disassembler knows it"


class KernelError(GWatchError, LookupError):
    """A kernel name or pattern matches nothing, or more than one kernel."""

    cure = "`gwatch inspect` lists the kernels of a file"


class SiteError(GWatchError, ValueError):
    """A site is out of range, ambiguous, inside padding, or asks for something that cannot be recorded."""


class RegisterPressureError(GWatchError):
    """A snippet's registers cannot be had without breaking the kernel."""

    cure = "ask for fewer or warp-level sites, or for a 32-bit value"


class HazardError(GWatchError):
    """The hazard checker does not agree with a rewritten kernel."""

    cure = "nothing was written; this is gwatch's fault: report it with the cubin"


class UnsupportedError(GWatchError):
    """A kernel has a feature that gwatch does not rewrite, by name."""

    cure = "choose another kernel: this one can be inspected, not changed safely"


class ToolError(GWatchError):
    """An outside program or library (nvdisasm, driver, CUPTI) is missing or failed."""

    cure = "`gwatch doctor` says what was looked for, and where"


class LaunchError(GWatchError):
    """The driver refused a load, a launch or a copy, or the launch cannot be intercepted."""

    cure = "see whether the launch works without gwatch; compute-sanitizer names a faulty access"


class TraceError(GWatchError):
    """A trace cannot be taken, read or trusted."""


@contextmanager
def naming(path: object, *kinds: type[GWatchError]) -> Iterator[None]:
    """Have what is said about a file's contents inside name the file.

    ``kinds``: of which errors; if not given, of those about code and containers, and of tools that could not read them.
    """
    wanted = kinds or (CubinError, DecodeError, UnsupportedError, ToolError)
    try:
        yield
    except wanted as error:
        name = str(path)
        if name not in error.message:
            error.message = f"{name}: {error.message.removeprefix(f'{UNNAMED}: ')}"
        raise
