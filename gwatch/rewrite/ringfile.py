"""Ring files: a dumped ring that says how its kernel was launched."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

from gwatch.errors import TraceError
from gwatch.rewrite.ring import RingLayout
from gwatch.rewrite.sitemap import SiteMap

MAGIC = b"GWRING1\n"
"""A ring file is this magic, a little-endian u32 length, that many bytes of JSON, then records and
headers."""


def ring_file_prefix(
    layout: RingLayout, duration_ns: float | None = None, site_map: SiteMap | None = None
) -> bytes:
    """What to write before the dumped bytes to make a self-describing ring file.

    ``duration_ns`` is an upper bound of the launch's duration; with it the reader can prove that no clock
    wrapped. ``site_map``: of the cubin that ran; with it the reader takes no other.
    """
    meta: dict[str, Any] = {"layout": layout.to_json(), "duration_ns": duration_ns}
    if site_map is not None:
        meta["map"] = _digest(site_map)
    text = json.dumps(meta, separators=(",", ":")).encode()
    return MAGIC + struct.pack("<I", len(text)) + text


def _digest(site_map: SiteMap) -> str:
    return hashlib.sha256(site_map.to_bytes()).hexdigest()


def split_ring_file(
    data: bytes, site_map: SiteMap | None = None
) -> tuple[RingLayout | None, float | None, memoryview]:
    """(layout, duration_ns, dumped bytes) of a ring file; (None, None, data) for a bare dump.

    Raises TraceError ``ring-file`` when the prefix is damaged, or says that a cubin with another map than ``site_map``
    ran.
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
        ran = meta.get("map")
        if site_map is not None and ran is not None and ran != _digest(site_map):
            raise TraceError(
                "ring-file",
                f"another cubin filled this ring than the one whose map records sites of {site_map.kernel}",
                "give the cubin that ran",
            )
        return layout, None if duration is None else float(duration), view[head + 4 + length :]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error) as error:
        raise TraceError("ring-file", f"the ring file's description is damaged: {error}") from None
