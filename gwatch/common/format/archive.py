"""The archive: a report in one binary file, for traces too large to be text.

Layout: 8 bytes magic, 8 bytes little-endian length of the header, the header (msgpack), then the columns. The
header is the JSON report's structure in which each column of ``records`` is replaced by a map ``{"~": [type,
count, place, size]}``: ``size`` bytes at ``place`` behind the header, zlib over byte planes (all low bytes,
then all next ones, …), signed columns as zigzag numbers. Row forms are not kept.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from gwatch.common.format.jsonout import record_columns
from gwatch.common.format.run import Run, plain
from gwatch.errors import TraceError

if TYPE_CHECKING:
    from gwatch.common.format.file import File

MAGIC = b"GWATCH\x01\n"
LEVEL = 1
"""Deflate level: already the byte planes shrink well, and higher levels are several times slower."""
REFERENCE = "~"
TYPES: dict[str, np.dtype[Any]] = {f"u{size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
BYTES_PER_BIT = 1100
"""Deflate cannot grow data by more than about 1,032 times: a column that claims more is refused unread."""


def _shrunk(values: NDArray[Any]) -> tuple[str, NDArray[Any], bool]:
    """(type name, values in the smallest unsigned type, were they zigzagged)."""
    zigzag = values.dtype.kind == "i" and len(values) > 0 and int(values.min()) < 0
    if zigzag:
        wide = values.astype(np.int64)
        values = ((wide << 1) ^ (wide >> 63)).view(np.uint64)
    top = int(values.max()) if len(values) else 0
    name = next(name for name, kind in TYPES.items() if top <= np.iinfo(kind).max)
    return name, values.astype(TYPES[name]), zigzag


class _Writer:
    """Collects deflated columns and hands out references to them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def reference(self, values: NDArray[Any]) -> dict[str, Any]:
        name, small, zigzag = _shrunk(values)
        planes = small.view(np.uint8).reshape(len(small), small.itemsize).T
        raw = zlib.compress(planes.tobytes(), LEVEL)
        place = self.size
        self.parts.append(raw)
        self.size += len(raw)
        return {REFERENCE: [name, len(small), place, len(raw)] + ([True] if zigzag else [])}

    def run(self, run: Run) -> dict[str, Any]:
        block: dict[str, Any] = {
            "kernel_prototype": run.kernel, "compile_results": plain(run.compile_results),
            "oe_results": plain(run.oe_results), "analysis": plain(run.analysis)}
        if run.listing:
            block["listing"] = plain(run.listing)
        if run.splice_results is not None:
            block["splice_results"] = plain(run.splice_results)
        block["records"] = self._references(record_columns(run.trace))
        return block

    def _references(self, block: dict[str, Any]) -> dict[str, Any]:
        return {name: self.reference(value) if isinstance(value, np.ndarray)
                else self._references(value) if isinstance(value, dict) else value
                for name, value in block.items()}


def archive_chunks(report: File) -> Iterator[bytes]:
    """The archive's bytes in pieces."""
    from gwatch.common.format.file import Section_IntraKernelTrace
    writer = _Writer()
    sections = []
    for section in [report.overview(), *report.sections]:
        data: Any
        if isinstance(section, Section_IntraKernelTrace):
            data = {"runs": [writer.run(run) for run in section.runs]}
        else:
            data = json.loads("".join(section.json_chunks()))
        sections.append({"title": section.title, "type": section.type, "data": data})
    try:
        header: bytes = msgpack.packb({"title": report.title, "sections": sections}, unicode_errors="surrogatepass")
    except OverflowError:
        raise TraceError("bad-number", "a number of the report does not fit 64 bits", "write it as .json, or say less "
                         "in the result's statements") from None
    yield MAGIC + len(header).to_bytes(8, "little") + header
    yield from writer.parts


def read_archive(raw: bytes, where: str) -> dict[str, Any]:
    """The report's structure as from JSON, with integer arrays for the columns.

    Raises TraceError ``[bad-archive]`` for anything that is damaged.
    """
    size = int.from_bytes(raw[8:16], "little")
    if len(raw) < 16 or size > len(raw) - 16:
        raise TraceError("bad-archive", f"{where} is cut off")
    try:
        header = msgpack.unpackb(raw[16:16 + size], strict_map_key=True, unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise TraceError("bad-archive", f"{where} has a damaged header: {error}") from None
    if not isinstance(header, dict):
        raise TraceError("bad-archive", f"{where} has a header of another form")
    body = memoryview(raw)[16 + size:]
    ends = [0]
    for section in header.get("sections") or ():
        data = section.get("data") if isinstance(section, Mapping) else None
        runs = data.get("runs") if isinstance(data, dict) else None
        for run in runs if isinstance(runs, list) else ():
            if isinstance(run, dict) and isinstance(run.get("records"), dict):
                run["records"] = _resolve(run["records"], body, ends, where)
    if max(ends) != len(body):
        raise TraceError("bad-archive", f"{where} has {len(body) - max(ends)} bytes behind its end")
    return header


def _resolve(block: dict[Any, Any], body: memoryview, ends: list[int], where: str) -> dict[Any, Any]:
    """``block`` with its columns in place; where each ends is added to ``ends``."""
    found: dict[Any, Any] = {}
    for name, value in block.items():
        if isinstance(value, dict) and REFERENCE in value:
            found[name] = _column(value[REFERENCE], body, f"{where}: column {name}")
            ends.append(value[REFERENCE][2] + value[REFERENCE][3])
        else:
            found[name] = _resolve(value, body, ends, where) if isinstance(value, dict) else value
    return found


def _column(reference: Any, body: memoryview, where: str) -> NDArray[Any]:
    kind, count, place, size, zigzag = TYPES["u1"], 0, 0, 0, False
    try:
        name, count, place, size = reference[:4]
        zigzag = len(reference) > 4 and bool(reference[4])
        kind = TYPES[name]
        whole = all(type(v) is int and v >= 0 for v in (count, place, size))
    except (TypeError, ValueError, KeyError):
        whole = False
    if not whole or place + size > len(body) or count * kind.itemsize > size * BYTES_PER_BIT:
        raise TraceError("bad-archive", f"{where} lies outside the file")
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(body[place:place + size], count * kind.itemsize + 1)
    except zlib.error as error:
        raise TraceError("bad-archive", f"{where} is damaged: {error}") from None
    if len(raw) != count * kind.itemsize or not (unpacker.eof or count == 0):
        raise TraceError("bad-archive", f"{where} has another length than said")
    planes = np.frombuffer(raw, np.uint8).reshape(kind.itemsize, count)
    values: NDArray[Any] = np.ascontiguousarray(planes.T).reshape(-1).view(kind)
    if zigzag:
        wide = values.astype(np.uint64)
        values = (wide >> np.uint64(1)).astype(np.int64) ^ -(wide & np.uint64(1)).astype(np.int64)
    return values
