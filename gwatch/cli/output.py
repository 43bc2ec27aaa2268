"""Text of a command to standard output or to a file."""

from __future__ import annotations

import sys
from pathlib import Path

from gwatch.errors import UsageError


def put(text: str, output: Path | None) -> None:
    """Print ``text`` (ASCII), or write it to ``output``, whole or not at all; missing folders are made.

    Raises UsageError ``[output-folder]``, CubinError ``[write-failed]``.
    """
    if output is None:
        sys.stdout.write(text)
        return
    from gwatch.cuda.binary.cubin import write_atomically
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("output-folder", f"cannot make {output.parent}: {error.strerror}") from None
    write_atomically(output, text.encode("ascii"))
