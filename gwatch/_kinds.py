"""What a named file is, by its first bytes, so that a command given another kind can say which command reads it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gwatch.errors import UsageError

CUBIN, HOST, FATBIN, ARCHIVE = "a cubin", "a library or program", "a fat binary", "an archive"
TRACE, PAGE, TIMELINE = "a trace", "a report's page", "a timeline for another viewer"
PICTURE = "a picture"
RING, SITE_MAP, FACTS, DIFFERENCES = "a ring file", "a site map", "facts from `gwatch inspect`", "a saved comparison"
SASS, PTX = "SASS text", "PTX text"
ARTIFACTS = (CUBIN, HOST, FATBIN, ARCHIVE)
_EXTRACT = "`gwatch inspect {} --extract DIR` writes its cubins"
_READERS = {
    CUBIN: "`gwatch inspect {}` tells what is in it; rewrite, check, disasm and diff read it too",
    HOST: _EXTRACT,
    FATBIN: _EXTRACT,
    ARCHIVE: _EXTRACT,
    TRACE: "`gwatch show {}` reads it",
    PAGE: "open it in a browser; `gwatch show` reads the same report as .json or .gwatch",
    TIMELINE: "open it in chrome://tracing or Perfetto; `gwatch show` reads the same report as .json or .gwatch",
    PICTURE: "look at it in a viewer; `gwatch show` reads reports as .json or .gwatch",
    RING: "`gwatch decode {} --cubin PATCHED.cubin` reads it",
    SITE_MAP: "`gwatch decode RING --cubin {}` reads it",
    FACTS: "give the cubin, library or package itself",
    DIFFERENCES: "give the two cubins, libraries or packages themselves",
    SASS: "`gwatch asm {}` reads it",
    PTX: "compile it: ptxas -arch=sm_90 -o FILE.cubin {}",
}
_HEAD = 4096
_CUDA = 190  # e_machine; the reader of containers would bring numpy along
_MAGIC = (
    (b"PK\x03\x04", ARCHIVE),
    (b"PK\x05\x06", ARCHIVE),
    (b"\x50\xed\x55\xba", FATBIN),
    (b"MZ", HOST),
    (b"!<arch>\n", HOST),
    (b"GWATCH\x01", TRACE),
    (b"\x89PNG\r\n", PICTURE),
    (b"\xff\xd8\xff", PICTURE),
    (b"GWRING1\n", RING),
)
_TEXT = (
    (rb'\{\s*"version":\s*\d+,\s*"kernel":.*"descriptor_symbol"', SITE_MAP),
    (rb'\{\s*"format":\s*"gwatch-inspect"', FACTS),
    (rb'\{\s*"format":\s*"gwatch-diff"', DIFFERENCES),
    (rb'\{.*"traceEvents"', TIMELINE),
    (rb'\{.*"sections":', TRACE),
    (rb"<!doctype html", PAGE),
    (rb"\.target\s+sm_\d", SASS),
    (rb"(//[^\n]*\n|\s)*\.version\s+\d", PTX),
)


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """One of this module's names; None for what it doesn't know or can't read."""
    file = Path(path)
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return None
    if head[:4] == b"\x7fELF":
        return CUBIN if int.from_bytes(head[18:20], "little") == _CUDA else HOST
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if _is_packets(head, file.stat().st_size):
        return TIMELINE
    text = head.lstrip()
    return next((kind for pattern, kind in _TEXT if re.match(pattern, text, re.S | re.I)), None)


def _is_packets(head: bytes, size: int) -> bool:
    """Whether a file begins as Perfetto's traces do: with packets end to end, each a tag, its length and fields."""
    at, found = 0, 0
    while at < len(head) - 6:
        length, shift, place = 0, 0, at + 1
        while head[place] >= 128 and shift < 28:
            length |= (head[place] & 127) << shift
            place, shift = place + 1, shift + 7
        length |= (head[place] & 127) << shift
        first = head[place + 1]
        if head[at] != 10 or length == 0 or first < 8 or first & 7 not in (0, 1, 2, 5):
            return False
        at, found = place + 1 + length, found + 1
    # A text that begins with an empty line has no such bytes.
    return found > 0 and at <= size and any(byte < 9 or 13 < byte < 32 for byte in head)


def expect(path: str | os.PathLike[str], *wanted: str) -> None:
    """Refuse a file that is known to be something else; any other is left to its reader.

    Raises UsageError ``[wrong-kind]``.
    """
    kind = kind_of(path)
    if kind is not None and kind not in wanted:
        name = os.fspath(path)
        other = f", not {' or '.join(wanted)}" if wanted else ""
        raise UsageError("wrong-kind", f"{name} is {kind}{other}", _READERS[kind].format(name))
