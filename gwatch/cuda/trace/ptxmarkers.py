"""Scope markers in PTX, in both their forms.

One is ``pmevent.mask`` (:mod:`gwatch.cuda.xtrace.markers`). The other is three moves of constants to one register:
head, id, tail. ptxas deletes those, so only this tier sees them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gwatch.cuda.binary.ptx import PtxFunction, PtxModule, PtxStatement
from gwatch.cuda.xtrace.markers import HEADER, MAX_ID, PAYLOAD_PLACE, check_ids, check_places, read_mask
from gwatch.errors import SiteError

HEAD_START, HEAD_END, TAIL = 0x53544757, 0x45444757, 0x47574348

_EVENT = re.compile(r"(?:@(!?[%\w$]+)\s+)?pmevent\.mask\s+(\w+)\s*;")
_STORE = re.compile(
    rf"@[%\w$]+ st\.shared\.b32 \[[%\w$]+\+(?:{PAYLOAD_PLACE}|{PAYLOAD_PLACE:#x})\], ([%\w$]+)\s*;"
)
_MOVE = re.compile(r"mov\.[busf]32\s+([%\w$]+),\s*(-?\w+)\s*;")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)(?:[^;]*?\binlined_at\s+(\d+)\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOOK_BACK = 3


@dataclass(frozen=True, slots=True)
class PtxMarker:
    """A marker of scope ``scope`` at ``start``..``end`` of the module's text, on ``line``. ``guard`` ("%p1", "!%p1",
    or "") is its predicate, ``payload`` the register with its value, ``sentinel`` whether it is the form of three
    moves."""

    scope: int
    end: bool
    start: int
    finish: int
    line: int
    guard: str = ""
    payload: str | None = None
    sentinel: bool = False

    @property
    def text(self) -> str:
        """What reports call it."""
        return f"scope_{'end' if self.end else 'start'}({self.scope}), PTX line {self.line}"


def find_ptx_markers(module: PtxModule, function: PtxFunction) -> list[PtxMarker]:
    """All markers of a function, in the order of the text.

    Raises SiteError ``[scope-id]`` for an id that a marker can't have, and ``[scope-payload]``.
    """
    found: list[PtxMarker] = []
    code = [statement for statement in function.statements if statement.kind == "instruction"]
    number = 0
    while number < len(code):
        marker = _event(module, code, number) or _sentinel(module, code, number)
        if marker is not None:
            found.append(marker)
        number += 3 if marker is not None and marker.sentinel else 1
    return found


def _event(module: PtxModule, code: Sequence[PtxStatement], number: int) -> PtxMarker | None:
    statement = code[number]
    match = _EVENT.fullmatch(statement.text)
    bits = _integer(match[2]) if match else None
    read = None if bits is None else read_mask(bits)
    if match is None or read is None:
        return None
    scope, end, has_payload = read
    line = module.line_of(statement.start)
    payload = None
    if has_payload:
        stores = (_STORE.fullmatch(code[i].text) for i in range(max(0, number - _LOOK_BACK), number))
        payload = next((store[1] for store in stores if store), None)
        if payload is None:
            raise SiteError(
                "scope-payload",
                f"{module.name}, line {line}: the marker of scope {scope} has lost its payload",
                "leave the payload out",
            )
    return PtxMarker(scope, end, statement.start, statement.end, line, match[1] or "", payload)


def _sentinel(module: PtxModule, code: Sequence[PtxStatement], number: int) -> PtxMarker | None:
    moves = [_MOVE.fullmatch(statement.text) for statement in code[number : number + 3]]
    if len(moves) < 3 or any(move is None for move in moves):
        return None
    registers = {move[1] for move in moves if move}
    head, scope, tail = (_integer(move[2]) if move else None for move in moves)
    if len(registers) != 1 or head not in (HEAD_START, HEAD_END) or tail != TAIL or scope is None:
        return None
    line = module.line_of(code[number].start)
    if not 0 <= scope <= MAX_ID:
        raise SiteError(
            "scope-id",
            f"{module.name}, line {line}: scope id {scope} is out of range",
            f"ids are 0 to {MAX_ID}",
        )
    return PtxMarker(scope, head == HEAD_END, code[number].start, code[number + 2].end, line, sentinel=True)


def _integer(text: str) -> int | None:
    digits = text.rstrip("U")
    try:
        return int(digits, 0) & 0xFFFFFFFF
    except ValueError:
        return None


def check_ptx_markers(
    module: PtxModule, function: PtxFunction, markers: Sequence[PtxMarker], names: Mapping[int, str]
) -> None:
    """Refuse what would give wrong intervals.

    Raises SiteError ``[no-markers]``, ``[marker-in-function]``, and those of
    :func:`~gwatch.cuda.xtrace.markers.check_markers`.
    """
    for other in module.functions:
        if not other.entry and find_ptx_markers(module, other):
            raise SiteError(
                "marker-in-function",
                f"{module.name}: the device function {other.name} has scope markers and is called, not inlined",
                "make it __forceinline__, or trace on the SASS tier: instrumentation_tier='sass'",
            )
    if not markers:
        raise SiteError(
            "no-markers",
            f"the PTX of {function.name} ({module.name}) has no scope marker",
            "put scope_start(id) and scope_end(id) of gwatch.cuda.trace.cute, .triton or .tilelang, or the macros of "
            "gwatch/cuda/trace.hpp, into the kernel and compile it anew",
        )
    starts = {marker.scope for marker in markers if not marker.end}
    check_ids(function.name, starts, {marker.scope for marker in markers if marker.end}, names)
    files = dict(_FILE.findall(module.text))
    rows = []
    for statement in function.statements:
        match = _LOC.match(statement.text) if statement.kind == "loc" else None
        if match is not None:
            # Of a C++ block: the constructor's own line, wherever the block is.
            file, line = (
                (match[3], match[4]) if files.get(match[1], "").endswith(HEADER) else (match[1], match[2])
            )
            rows.append((statement.start, files.get(file, f"file {file}"), int(line or 0)))
    at: dict[tuple[int, bool], set[tuple[str, int]]] = {}
    for marker in markers:
        before = [row for row in rows if row[0] < marker.start]
        if before and before[-1][2]:
            at.setdefault((marker.scope, marker.end), set()).add(before[-1][1:])
    check_places(function.name, at)
