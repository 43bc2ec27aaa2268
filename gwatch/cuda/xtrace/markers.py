"""Scope markers in machine code: what they look like, and where a kernel has them.

A marker is one PTX instruction, ``pmevent.mask imm16``, which every ptxas turns into one SASS instruction,
``PMTRIG imm16`` (seen on sm_75 to sm_121). Its sixteen bits say that it is one of ours, whether a scope starts or
ends there, whether a payload comes with it, and the scope's id. A payload is the source of a store that never
happens: its guard asks for a grid of zero CTAs, and its address names it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gwatch.errors import SiteError

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef

TAG, TAG_MASK = 0xA000, 0xE000
END, PAYLOAD = 0x1000, 0x0800
MAX_ID = 0x7FF
HEADER = "gwatch/cuda/trace.hpp"
"""Where the constructors of markers for C++ blocks are."""
PAYLOAD_PLACE = 0x67570
"""Shared-memory offset in the store that carries a payload; far outside shared memory, where nothing else stores."""

_OPCODE_MASK, _OPCODE = 0xFFF, 0x801
_IMMEDIATE_SHIFT = 32
_STORE = re.compile(rf"@!?U?P\d+ STS(?:\.U)? \[[^\]]*{PAYLOAD_PLACE:#x}\], (R\d+|RZ)\b")
_LOOK_BACK = 8


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker at instruction ``index``: of scope ``scope``, its end or its start; ``value_reg`` is the general
    register with its payload (None: no payload, or the constant zero)."""

    index: int
    scope: int
    end: bool
    payload: bool = False
    value_reg: int | None = None


def checked_id(scope: object) -> int:
    """``scope`` as an int. Raises SiteError ``[scope-id]`` for what is no integer in 0..2047."""
    try:
        if isinstance(scope, bool):
            raise TypeError
        number = operator.index(scope)  # type: ignore[arg-type]
    except TypeError:
        raise SiteError(
            "scope-id",
            f"scope id {scope!r} is no compile-time integer",
            f"give a literal 0 to {MAX_ID}, or a constexpr",
        ) from None
    if not 0 <= number <= MAX_ID:
        raise SiteError("scope-id", f"scope id {number} is out of range", f"ids are 0 to {MAX_ID}")
    return number


def mask_of(scope: object, *, end: bool, payload: bool = False) -> int:
    """The sixteen bits of a marker. Raises SiteError ``[scope-id]``."""
    return TAG | checked_id(scope) | (END if end else 0) | (PAYLOAD if payload else 0)


def read_mask(mask: int) -> tuple[int, bool, bool] | None:
    """(scope id, end, payload) of a marker's bits; None for a ``pmevent`` of someone else."""
    if mask & TAG_MASK != TAG:
        return None
    return mask & MAX_ID, bool(mask & END), bool(mask & PAYLOAD)


def marker_ptx(scope: object, *, end: bool) -> str:
    """The PTX of a marker without payload."""
    return f"pmevent.mask {mask_of(scope, end=end):#06x};"


def payload_ptx(scope: object, operand: str, *, end: bool) -> str:
    """The PTX of a marker with the 32-bit register ``operand`` as its payload.

    No grid has zero CTAs, but ptxas doesn't know it: the store stays, and with it the register at that place.
    """
    return (
        "{ .reg .pred %gwatch_p; .reg .b32 %gwatch_n; mov.u32 %gwatch_n, %nctaid.x; "
        "setp.eq.u32 %gwatch_p, %gwatch_n, 0; mov.u32 %gwatch_n, 0; "
        f"@%gwatch_p st.shared.b32 [%gwatch_n+{PAYLOAD_PLACE}], {operand}; "
        f"pmevent.mask {mask_of(scope, end=end, payload=True):#06x}; }}"
    )


def find_markers(kernel: KernelDef) -> list[Marker]:
    """Every marker of a kernel, copies made by unrolling and inlining included, in address order.

    Needs no instruction tables, so it answers for every architecture. Raises SiteError ``[scope-payload]`` where a
    payload's register can't be told.
    """
    low = kernel.words[:, 0]
    places = np.flatnonzero((low & np.uint64(_OPCODE_MASK)) == np.uint64(_OPCODE))
    found = []
    for index in places.tolist():
        read = read_mask(int(low[index]) >> _IMMEDIATE_SHIFT & 0xFFFF)
        if read is None:
            continue
        scope, end, payload = read
        register = _payload_register(kernel, index) if payload else None
        found.append(Marker(index, scope, end, payload, register))
    return found


def _payload_register(kernel: KernelDef, index: int) -> int | None:
    """The register that the store before a marker would have stored, still holding that value at the marker."""
    for place in range(index - 1, max(index - _LOOK_BACK, -1), -1):
        match = _STORE.match(kernel.text(place))
        if match is None:
            continue
        if match[1] == "RZ":
            return None
        between = [kernel.text(i) for i in range(place + 1, index)]
        if not any(_writes(text, match[1]) or _leaves(text) for text in between):
            return int(match[1][1:])
        break
    raise SiteError(
        "scope-payload",
        f"{kernel.name}: the register with the payload of the marker at instruction {index} cannot be told",
        "leave the payload out, or record the register with a SassTraceSite(value_reg=...)",
    )


def _writes(text: str, register: str) -> bool:
    """Whether an instruction may write the register: its first operand, or the second where a predicate comes first,
    with the neighbours of a wide result; stores write none."""
    body = text.split(None, 1)[1] if text.startswith("@") and " " in text else text
    opcode, _, operands = body.partition(" ")
    if opcode.startswith(("ST", "RED", "PMTRIG")):
        return False
    number = int(register[1:])
    parts = [part.strip() for part in operands.split(",")[:2]]
    named = [re.fullmatch(r"R(\d+)(\.\w+)*", part) for part in parts]
    result = named[0] if named and named[0] is not None else named[-1] if named else None
    return result is not None and 0 <= number - int(result[1]) < 4


def _leaves(text: str) -> bool:
    return re.search(r"\b(BRA|BRX|JMP|CALL|RET|EXIT|BSYNC)\b", text) is not None


def check_markers(kernel: KernelDef, markers: Sequence[Marker], names: Mapping[int, str]) -> None:
    """Refuse what would give wrong intervals.

    Raises SiteError ``[no-markers]``, ``[scope-unended]``, ``[scope-unstarted]``, ``[scope-id-twice]`` (line
    information shows starts of one id at different source places) and ``[scope-unknown]`` (a name for an id that
    has no marker).
    """
    if not markers:
        raise SiteError(
            "no-markers",
            f"{kernel.name} has no scope marker in its machine code",
            "put scope_start(id) and scope_end(id) of gwatch.cuda.trace.cute, .triton or .tilelang, or the macros of "
            "gwatch/cuda/trace.hpp, into the kernel and compile it anew (markers that are three moves of constants do "
            "not survive ptxas: trace those with instrumentation_tier='ptx'); or give sass_trace_sites",
        )
    starts = {marker.scope for marker in markers if not marker.end}
    ends = {marker.scope for marker in markers if marker.end}
    check_ids(kernel.name, starts, ends, names)
    lines = kernel.map_address_to_line
    size = kernel.arch.instruction_size
    at: dict[tuple[int, bool], set[tuple[str, int]]] = {}
    for marker in markers:
        place = lines.get(marker.index * size)
        if place is not None and place[0].endswith(HEADER):
            # Of a C++ block: the constructor's own line, wherever the block is.
            caller = next(iter(kernel.inlined_at.get(marker.index * size, ())), None)
            place = None if caller is None else (caller.file, caller.line)
        if place is not None:
            at.setdefault((marker.scope, marker.end), set()).add(place)
    check_places(kernel.name, at)


def check_ids(kernel: str, starts: set[int], ends: set[int], names: Mapping[int, str]) -> None:
    """Starts and ends go together, names belong to ids there are. Raises SiteError as :func:`check_markers`."""
    for missing, code, there, absent in (
        (starts - ends, "scope-unended", "scope_start", "scope_end"),
        (ends - starts, "scope-unstarted", "scope_end", "scope_start"),
    ):
        if missing:
            number = min(missing)
            raise SiteError(
                code,
                f"{kernel}: scope {number} has a {there}({number}) and no {absent}({number}) that the compiler kept",
                f"put {absent}({number}) where every path that passes {there}({number}) comes by",
            )
    unknown = set(names) - starts
    if unknown:
        raise SiteError(
            "scope-unknown",
            f"scope_name_map names scope {min(unknown)}, which {kernel} does not have",
            f"its scopes are {', '.join(map(str, sorted(starts)))}",
        )


def check_places(kernel: str, at: Mapping[tuple[int, bool], set[tuple[str, int]]]) -> None:
    """One source place per scope start. Raises SiteError ``[scope-id-twice]``."""
    for (scope, end), places in sorted(at.items()):
        if not end and len(places) > 1:
            shown = ", ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in sorted(places))
            raise SiteError(
                "scope-id-twice",
                f"{kernel}: scope {scope} starts at {len(places)} source lines: {shown}",
                "give each region an id of its own (several ids may have the same name in scope_name_map)",
            )
