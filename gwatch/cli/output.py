"""Text of a command to standard output or to a file."""

from __future__ import annotations

import sys
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
