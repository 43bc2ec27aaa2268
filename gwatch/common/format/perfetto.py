"""Export to Perfetto's own trace form (``.pftrace``: TrackEvent packets), which ui.perfetto.dev opens.

The only module that imports ``perfetto`` (the extra ``perfetto`` of the package). Tracks: a process per run, in it
SMs, in them blocks, in them rows (and, where regions of a row overlap without nesting, further tracks of that
row). Slices are intervals, instants are records outside regions, flows lead from what ended to what another role's
wait was followed by. A time unit of the file is a nanosecond since the run's first record; for the per-SM cycle
counter it is a cycle, and the process's name says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gwatch.common.format.align import begins
from gwatch.common.format.chrome import tracks
from gwatch.common.format.losses import I64
from gwatch.common.format.payload import lonely_sites
from gwatch.common.format.run import Run
from gwatch.common.format.text import locator
from gwatch.common.format.waits import find_waits
from gwatch.errors import ToolError

BATCH = 4096
SEQUENCE = 1
"""Packets of one sequence share the interned names."""
UUIDS_PER_RUN = 1 << 40
FLOWS_PER_RUN = 1 << 32
ANNOTATIONS = ("value", "record")


def _protos() -> Any:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
    except ImportError as error:
        raise ToolError("perfetto-missing", f"the perfetto package does not import: {error}",
                        "pip install 'gwatch-sass[perfetto]', or write .chrome.json, which it opens too") from None
    return perfetto_trace_pb2


def pftrace_chunks(runs: list[Run]) -> Iterator[bytes]:
    """The trace's bytes in pieces; ToolError ``[perfetto-missing]`` without the package."""
    protos = _protos()
    names: dict[str, int] = {}
    for label in (name for run in runs for name in (*run.labels, *run.roles.values(), *_site_names(run))):
        names.setdefault(_text(label), len(names) + 1)
    yield _interned(protos, names)
    aligned = begins(runs)
    for number, run in enumerate(runs):
        yield from _run_chunks(protos, run, number, len(runs), names, aligned[0][number] if aligned else 0)


def _text(text: str) -> str:
    """Protobuf strings hold no lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _site_names(run: Run) -> list[str]:
    return [f"site {site}" for site in lonely_sites(run)]


def _interned(protos: Any, names: dict[str, int]) -> bytes:
    trace = protos.Trace()
    packet = trace.packet.add(trusted_packet_sequence_id=SEQUENCE, first_packet_on_sequence=True,
                              sequence_flags=protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
    for name, iid in names.items():
        packet.interned_data.event_names.add(iid=iid, name=name)
        packet.interned_data.event_categories.add(iid=iid, name=name)
    for iid, name in enumerate(ANNOTATIONS, 1):
        packet.interned_data.debug_annotation_names.add(iid=iid, name=name)
    result: bytes = trace.SerializeToString()
    return result


def _run_chunks(
    protos: Any, run: Run, number: int, total: int, names: dict[str, int], shift: int
) -> Iterator[bytes]:
    s = _slices(run, shift)
    track = tracks(s.row, s.start, s.length, s.depth)
    extra = np.zeros(len(run.trace.rows), np.int64)
    np.maximum.at(extra, s.row, track)
    first = np.cumsum(extra + 1) - extra
    base = (number + 1) * UUIDS_PER_RUN
    yield _descriptors(protos, run, base, extra, first, number, total)
    # Tracks one after another: within a track file order is time order, and ends precede what begins with them.
    order = np.lexsort((np.arange(len(s.row)), track, s.row))
    yield from _events(_Packets(protos, run, names), s, order, base + first[s.row] + track, _flows(run, number))


@dataclass(frozen=True, slots=True)
class _Slices:
    """Intervals and lonely records, ordered by (row, start, longest first); starts count from the run's first, or
    where the runs' clocks are known from the first run's."""

    row: I64
    start: I64
    length: I64
    depth: I64
    scope: I64
    opened: I64
    """Record at the start."""
    interval: I64
    """Index among the run's intervals; -1 for a record outside regions."""


def _slices(run: Run, shift: int) -> _Slices:
    iv, trace = run.intervals, run.trace
    sites = np.array(lonely_sites(run), np.int64)
    lonely = np.flatnonzero(np.isin(trace.site, sites))
    none = np.zeros(len(lonely), np.int64)
    columns = [(iv.row, trace.row[lonely]), (iv.start, trace.time[lonely]), (iv.end - iv.start, none), (iv.depth, none),
               (run.scope, np.searchsorted(sites, trace.site[lonely]) + len(run.labels)), (iv.opened, lonely),
               (np.arange(len(iv)), none - 1)]
    row, start, *rest = (np.concatenate(pair).astype(np.int64) for pair in columns)
    order = np.lexsort((-rest[0], start, row))
    return _Slices(row[order], start[order] - run.time_range[0] + shift, *(column[order] for column in rest))


def _descriptors(protos: Any, run: Run, base: int, extra: I64, first: I64, number: int, total: int) -> bytes:
    """Track descriptors: the run's process, its SMs, blocks and rows. Row tracks have uuids base + 1, 2, …"""
    trace, rows = protos.Trace(), run.trace.rows
    kinds = protos.TrackDescriptor

    def track(uuid: int, parent: int, name: str, rank: int) -> Any:
        descriptor = trace.packet.add(trusted_packet_sequence_id=SEQUENCE).track_descriptor
        descriptor.uuid, descriptor.sibling_order_rank = uuid, rank
        descriptor.child_ordering = kinds.EXPLICIT
        # Tracks with equal names are different rows, not parts of one.
        descriptor.sibling_merge_behavior = kinds.SIBLING_MERGE_BEHAVIOR_NONE
        if parent:
            descriptor.parent_uuid, descriptor.name = parent, _text(name)
        return descriptor

    title = f"run {number}: " * (total > 1) + run.kernel + " (unit: cycles, each SM from 0)" * (run.unit != "ns")
    process = track(base, 0, "", number).process
    process.pid, process.process_name = number + 1, _text(title)
    n_tracks = int((extra + 1).sum())
    sm_ids, sm = np.unique(rows.smid, return_inverse=True)
    pairs, place = np.unique(np.stack([sm.reshape(-1), rows.block]), axis=1, return_inverse=True)
    for k, smid in enumerate(sm_ids.tolist()):
        track(base + 1 + n_tracks + k, base, f"SM {smid}" if smid >= 0 else "SM unknown", k)
    blocks = base + 1 + n_tracks + len(sm_ids)
    for k, (group, block) in enumerate(pairs.T.tolist()):
        track(blocks + k, base + 1 + n_tracks + group, f"block {block}", k)
    roles, role = run.row_roles
    for r, where in enumerate(place.reshape(-1).tolist()):
        suffix = f" {roles[role[r]]}" if role[r] >= 0 else ""
        for k in range(int(extra[r]) + 1):
            uuid = base + int(first[r]) + k
            track(uuid, blocks + where, locator(rows, r) + suffix + (f" ({k + 1})" if k else ""), uuid - base)
    result: bytes = trace.SerializeToString()
    return result


def _flows(run: Run, number: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Flow ids by the interval whose end they leave, and by the interval they reach."""
    waits, cover = find_waits(run), run.cover
    given = np.flatnonzero(waits.released_by >= 0)
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    if len(given) == 0:
        return sources, targets
    # What follows a wait opens the stretch of the row that begins at the wait's end.
    follows = dict(zip(zip(cover.row.tolist(), cover.start.tolist(), strict=True), cover.first.tolist(), strict=True))
    for i in given.tolist():
        flow = (number + 1) * FLOWS_PER_RUN + i
        sources.setdefault(int(waits.released_by[i]), []).append(flow)
        targets.setdefault(follows[int(waits.row[i]), int(waits.end[i])], []).append(flow)
    return sources, targets


class _Packets:
    """One packet per kind of event, filled in anew for each: making packets costs more than filling them."""

    def __init__(self, protos: Any, run: Run, names: dict[str, int]) -> None:
        event = protos.TrackEvent
        trace = run.trace
        self.value = trace.value if bool(trace.value.any()) else None
        self.record = trace.sequence if len(trace) and bool((trace.sequence >= 0).all()) else None
        self.end = protos.TracePacket(trusted_packet_sequence_id=SEQUENCE)
        self.end.track_event.type = event.TYPE_SLICE_END
        self.begins: list[Any] = []
        for label in (*run.labels, *_site_names(run)):
            packet = protos.TracePacket(trusted_packet_sequence_id=SEQUENCE)
            made = packet.track_event
            made.type = event.TYPE_SLICE_BEGIN if len(self.begins) < len(run.labels) else event.TYPE_INSTANT
            made.name_iid = names[_text(label)]
            if label in run.roles:
                made.category_iids.append(names[_text(run.roles[label])])
            for iid, column in enumerate((self.value, self.record), 1):
                if column is not None:
                    made.debug_annotations.add(name_iid=iid)
            self.begins.append(packet)

    def begin(self, scope: int, time: int, uuid: int, opened: int, flows: list[int] | None) -> bytes:
        packet = self.begins[scope]
        event = packet.track_event
        packet.timestamp, event.track_uuid = time, uuid
        columns = [column for column in (self.value, self.record) if column is not None]
        for annotation, column in zip(event.debug_annotations, columns, strict=True):
            annotation.uint_value = int(column[opened])
        return _with_flows(packet, event.terminating_flow_ids, flows)

    def finish(self, time: int, uuid: int, flows: list[int] | None) -> bytes:
        packet = self.end
        packet.timestamp, packet.track_event.track_uuid = time, uuid
        return _with_flows(packet, packet.track_event.flow_ids, flows)


def _with_flows(packet: Any, field: Any, flows: list[int] | None) -> bytes:
    """The packet framed as an element of the trace, carrying these flow ids."""
    if flows:
        field.extend(flows)
    body: bytes = packet.SerializeToString()
    if flows:
        del field[:]
    size = len(body)
    head = bytearray(b"\x0a")  # field 1 of Trace, length-delimited
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + body


def _events(packets: _Packets, s: _Slices, order: I64, uuids: I64,
            flows: tuple[dict[int, list[int]], dict[int, list[int]]]) -> Iterator[bytes]:
    sources, targets = flows
    columns = (s.start, s.start + s.length, s.scope, s.opened, s.interval, uuids)
    parts: list[bytes] = []
    open_: list[tuple[int, int, int]] = []  # (end, track, interval), innermost last
    for place in range(0, len(order), BATCH):
        batch = order[place:place + BATCH]
        for start, end, scope, opened, interval, uuid in zip(*(c[batch].tolist() for c in columns), strict=True):
            while open_ and (open_[-1][1] != uuid or open_[-1][0] <= start):
                time, track, which = open_.pop()
                parts.append(packets.finish(time, track, sources.get(which)))
            parts.append(packets.begin(scope, start, uuid, opened, targets.get(interval)))
            if interval >= 0:
                open_.append((end, uuid, interval))
        yield b"".join(parts)
        parts = []
    for time, track, which in reversed(open_):
        parts.append(packets.finish(time, track, sources.get(which)))
    yield b"".join(parts)
