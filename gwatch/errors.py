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


class GWatchError(Exception):
    """Base class of all errors gwatch raises on purpose.

    ``code`` is stable across releases; ``message`` says what is wrong and where; ``hint`` says what to do;
    ``candidates`` are values that would have been accepted, nearest first, where there are any. ``cure`` is the hint
    of a class's errors that give none of their own.
    """

    cure: ClassVar[str] = ""

    def __init__(self, code: str, message: str, hint: str = "", candidates: Iterable[str] = ()) -> None:
        self.code = code
        self.message = " ".join(message.split())
        self.hint = " ".join((hint or self.cure).split())
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


class EncodeError(GWatchError):
    """A well-formed line has no exact instruction word (overflow, unknown form, hidden operand).

    ``token`` is the part of the line that is at fault, "" where it is the line as a whole.
    """

    def __init__(
        self, code: str, message: str, hint: str = "", candidates: Iterable[str] = (), token: str = ""
    ) -> None:
        super().__init__(code, message, hint, candidates)
        self.token = token


class DecodeError(GWatchError):
    """An instruction word means nothing that the tables know."""


class KernelError(GWatchError, LookupError):
    """A kernel name or pattern matches nothing, or more than one kernel."""


class SiteError(GWatchError, ValueError):
    """A site is out of range, ambiguous, inside padding, or asks for something that cannot be recorded."""


class RegisterPressureError(GWatchError):
    """A snippet's registers cannot be had without breaking the kernel."""


class HazardError(GWatchError):
    """The hazard checker does not agree with a rewritten kernel."""


class UnsupportedError(GWatchError):
    """A kernel has a feature that gwatch does not rewrite, by name."""


class ToolError(GWatchError):
    """An outside program or library (nvdisasm, driver, CUPTI) is missing or failed."""


class LaunchError(GWatchError):
    """The driver refused a load, a launch or a copy, or the launch cannot be intercepted."""


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
