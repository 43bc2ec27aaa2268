"""Ring files: a dumped ring that says how its kernel was launched."""

from __future__ import annotations

import json
import struct

from gwatch.errors import TraceError
from gwatch.rewrite.ring import RingLayout

MAGIC = b"GWRING1\n"
"""A ring file is this magic, a little-endian u32 length, that many bytes of JSON, then records and
headers."""


def ring_file_prefix(layout: RingLayout, duration_ns: float | None = None) -> bytes:
    """What to write before the dumped bytes to make a self-describing ring file.

    ``duration_ns`` is an upper bound of the launch's duration; with it the reader can prove that no clock
    wrapped.
    """
    meta = {"layout": layout.to_json(), "duration_ns": duration_ns}
    text = json.dumps(meta, separators=(",", ":")).encode()
    return MAGIC + struct.pack("<I", len(text)) + text


def split_ring_file(data: bytes) -> tuple[RingLayout | None, float | None, memoryview]:
    """(layout, duration_ns, dumped bytes) of a ring file; (None, None, data) for a bare dump.

    Raises TraceError ``ring-file`` when the prefix is damaged.
    """
    view = memoryview(data)
    head = len(MAGIC)
    if bytes(view[:head]) != MAGIC:
        return None, None, view
    try:
        (length,) = struct.unpack_from("<I", view, head)
        text = bytes(view[head + 4 : head + 4 + length])
        if len(text) != length:
            raise ValueError("the file ends inside it")
        meta = json.loads(text)
        duration = meta["duration_ns"]
        layout = RingLayout.from_json(meta["layout"])
        return layout, None if duration is None else float(duration), view[head + 4 + length :]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise TraceError("ring-file", f"the ring file's description is damaged: {error}") from None
