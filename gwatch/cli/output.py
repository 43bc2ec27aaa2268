"""Text of a command to standard output or to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def put(text: str, output: Path | None) -> None:
    """Print ``text`` (ASCII), or write it to ``output``, whole or not at all.

    Raises UsageError ``[output-folder]``, ``[write-failed]``.
    """
    if output is None:
        sys.stdout.write(text)
        return
    from gwatch._files import write_atomically

    write_atomically(output, text.encode("ascii"))


def say(text: object) -> None:
    """One line of the command's own on standard error; what a file's names hold is escaped."""
    from gwatch.errors import printable

    print(printable(f"gwatch: {text}"), file=sys.stderr)


def named_path(text: str) -> Path:
    """A path, as the type of an argument parser: the empty one, which pathlib takes for the current folder, is none."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names nothing; for the current folder write .")
    return Path(text)


def at_least(least: int) -> Callable[[str], int]:
    """A whole number from ``least`` on, as the type of an argument parser."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {least} or more")
        return int(text)

    return parse
