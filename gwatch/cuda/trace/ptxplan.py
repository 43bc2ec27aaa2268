"""The PTX tier's plan: records written into the PTX of a kernel, compiled anew."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gwatch.cuda.binary.constants import add_note
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.binary.ptx import PtxFunction, PtxModule
from gwatch.cuda.trace import ptxrecords
from gwatch.cuda.trace.ptxas import compile_ptx
from gwatch.cuda.trace.ptxmarkers import PtxMarker, check_ptx_markers, find_ptx_markers
from gwatch.cuda.xtrace.scopes import Scopes
from gwatch.errors import TraceError, UnsupportedError
from gwatch.rewrite.ring import (
    Keep,
    RecordKind,
    RingFormat,
    RingLayout,
    checked_duration,
    round_depth,
)
from gwatch.rewrite.sitemap import NOTE_NAME, MappedSite, SiteMap
from gwatch.rewrite.trace import LONG_NS

CONSTANT3 = ".nv.constant3"
_OTHER_CONSTANT = re.compile(r"(?<![\w.])\.const\s")


@dataclass(frozen=True, slots=True)
class PtxPlan:
    """A kernel compiled from PTX with records: ``data`` is the cubin (with ``site_map`` as a note), ``text`` its
    PTX, ``compiler`` who made it."""

    data: bytes
    site_map: SiteMap
    text: str
    compiler: str

    def layout(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], budget: int | None = None
    ) -> RingLayout:
        """The ring for a launch, sampling CTAs where ``budget`` bytes don't hold them all."""
        return RingLayout.for_launch(self.site_map.format, grid, block, budget)


@dataclass(frozen=True, slots=True)
class PtxScopes:
    """The markers of a kernel in its PTX, checked."""

    module: PtxModule
    function: PtxFunction
    markers: tuple[PtxMarker, ...]
    scopes: Scopes


def ptx_scopes(module: PtxModule, kernel: str, names: Mapping[int, str], warp_level: bool) -> PtxScopes:
    """Find and check the markers of ``kernel``.

    Raises KernelError ``[kernel-missing]``, SiteError as
    :func:`~gwatch.cuda.trace.ptxmarkers.check_ptx_markers`, and ``[scope-copies]``.
    """
    function = module.kernel(kernel)
    markers = find_ptx_markers(module, function)
    check_ptx_markers(module, function, markers, names)
    scopes = Scopes.of(kernel, [(marker.scope, marker.end) for marker in markers], names, warp_level)
    return PtxScopes(module, function, tuple(markers), scopes)


def choose_ptx_format(
    found: PtxScopes, clock: str, depth: int, keep: str, duration_ns: float | None
) -> RingFormat:
    """The ring's format for the markers found. Raises UnsupportedError ``[ptx-clock]``."""
    if clock not in ptxrecords.CLOCKS:
        raise UnsupportedError(
            "ptx-clock",
            f"the PTX tier has no clock {clock!r}",
            "use clock_type='gpu' or 'sm', or trace on the SASS tier",
        )
    payload = any(marker.payload for marker in found.markers)
    kind = RecordKind.WIDE if payload else RecordKind.NARROW
    if checked_duration(duration_ns) >= LONG_NS[clock]:
        kind = RecordKind.LONG
    fmt = RingFormat(kind, round_depth(depth), Keep(keep))
    return replace(fmt, by_lane=found.scopes.warp_level and fmt.may_be_by_lane)


def instrument(found: PtxScopes, clock: str, fmt: RingFormat, symbol: str) -> str:
    """The module's text with a record at every marker (in the place of one of three moves, behind a ``pmevent``)."""
    module, function = found.module, found.function
    alone = _OTHER_CONSTANT.search(module.text) is None
    edits = [(function.code, function.code, ptxrecords.prologue(symbol, fmt))]
    for number, marker in enumerate(found.markers):
        text = ptxrecords.record(
            fmt,
            clock,
            number + 1,
            number,
            warp_level=found.scopes.warp_level,
            guard=marker.guard,
            payload=marker.payload,
        )
        edits.append((marker.start if marker.sentinel else marker.finish, marker.finish, f"\n{text}\n"))
    edits.append((function.start, function.start, f"\n{ptxrecords.descriptor(symbol, fmt, alone=alone)}\n"))
    text = module.text
    for start, finish, insertion in sorted(edits, reverse=True):
        text = text[:start] + insertion + text[finish:]
    return text


def plan_ptx(
    found: PtxScopes,
    cubin: Cubin,
    kernel: KernelDef,
    *,
    constants: bool = False,
    clock: str = "gpu",
    depth: int = 32,
    keep: str = "newest",
    duration_ns: float | None = None,
) -> PtxPlan:
    """Compile ``found``'s PTX with records, as a replacement of ``kernel`` of ``cubin``; ``constants``: it reads
    ``__constant__`` variables, which will be copied from that module.

    Raises UnsupportedError ``[ptx-clock]``, ``[ptx-too-new]``, ToolError ``[ptxas-missing]``, ``[ptxas-failed]``,
    TraceError ``[ptx-constants]``.
    """
    fmt = choose_ptx_format(found, clock, depth, keep, duration_ns)
    symbol = "gwatch_ring_" + hashlib.sha256(kernel.name.encode()).hexdigest()[:16]
    text = instrument(found, clock, fmt, symbol)
    data, tool = compile_ptx(text, cubin.arch.name, found.module.name)
    compiled = Cubin.from_bytes(data, found.module.name)
    traced = compiled.get_kerneldef_by_name(kernel.name)
    offset = _descriptor_offset(cubin if constants else None, compiled, symbol)
    labels = dict(found.scopes.names)
    sites = tuple(
        MappedSite(
            site_id=number,
            index=number,
            pc=0,
            new_pc=0,
            instruction=marker.text,
            file=found.module.name,
            line=marker.line,
            value="R0" if marker.payload else "none",
            warp_level=found.scopes.warp_level,
            unconditional=False,
            pair=False,
            label=f"{labels[marker.scope]} {'end' if marker.end else 'start'}",
        )
        for number, marker in enumerate(found.markers)
    )
    site_map = SiteMap(
        kernel=kernel.name,
        arch=cubin.arch.name,
        clock=clock,
        format=fmt,
        descriptor_symbol=symbol,
        descriptor_offset=offset,
        sites=sites,
        registers_before=kernel.register_count,
        registers_after=traced.register_count,
        pairs_at_exit=False,
    )
    return PtxPlan(
        add_note(data, NOTE_NAME, site_map.to_bytes()), site_map, text, f"ptxas {tool.release} ({tool.path})"
    )


def _constants(cubin: Cubin) -> dict[str, int]:
    """Offset in constant bank 3 of each of the module's own constants."""
    section = next((s.index for s in cubin.elf.sections if s.name == CONSTANT3), None)
    return {
        symbol.name: symbol.value
        for symbol in cubin.elf.symbols
        if section is not None and symbol.section == section and symbol.name and symbol.size
    }


def _descriptor_offset(original: Cubin | None, compiled: Cubin, symbol: str) -> int:
    """The descriptor's offset in constant bank 3; everything else there must lie where it lay, since the bank is
    copied as a whole."""
    before, after = {} if original is None else _constants(original), _constants(compiled)
    moved = [name for name, offset in before.items() if after.get(name) != offset]
    if moved:
        raise TraceError(
            "ptx-constants",
            f"compiled anew, the __constant__ variable {moved[0]} lies elsewhere than in the module that is running",
            "trace on the SASS tier: instrumentation_tier='sass' keeps the module's layout",
        )
    return after[symbol]
