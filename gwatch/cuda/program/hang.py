"""``--timeout``: what the warps of a kernel that does not end were last seen doing.

The ring is copied through a stream of gwatch's own while the kernel spins. Records are complete when they
are seen (one store each), so the newest one of every warp says how far that warp came.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE
from gwatch.cuda.program.roles import Role
from gwatch.rewrite.ring import CANARY, HEADER_DTYPE, Keep, RecordKind, RingFormat, RingLayout
from gwatch.rewrite.sitemap import MappedSite, SiteMap

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef

_SHOWN_WARPS = 6


@dataclass(frozen=True, slots=True)
class LastSeen:
    """Where a warp was last: ``site`` -1 = it started and came to no site, ``visits`` of that site kept in the
    ring."""

    cta: int
    warp: int
    site: int
    visits: int


def last_seen(data: npt.NDArray[np.uint8], layout: RingLayout) -> list[LastSeen]:
    """The last record of every warp that started; ``data`` is the ring as copied while the kernel ran."""
    fmt = layout.format
    headers = data[layout.ring_bytes :].view(HEADER_DTYPE)
    ring = layout.slots(data)
    found = []
    for warp in np.flatnonzero(headers["canary"] == CANARY).tolist():
        records = ring[warp]
        cta, inside = int(headers["cta"][warp]), warp % layout.warps_per_cta
        if not records["tag"].any():
            found.append(LastSeen(cta, inside, -1, 0))
            continue
        mask = (1 << fmt.sequence_shift) - 1
        site = (int(_newest(records, fmt)["tag"]) & mask) - 1
        found.append(LastSeen(cta, inside, site, int(np.count_nonzero((records["tag"] & mask) == site + 1))))
    return found


def _newest(records: npt.NDArray[np.void], fmt: RingFormat) -> Any:
    """The newest record of a warp, of its (slots, lanes) records: of each lane's newest, which the sequence tells
    however far apart in time they are, the one with the latest time."""
    written = records["tag"] != 0
    if fmt.keep is Keep.FIRST:  # in the order of the slots; the one behind them takes all later ones
        order = np.broadcast_to(np.arange(fmt.slots)[:, None], written.shape)
    else:
        order = (records["tag"] >> fmt.sequence_shift).astype(np.int64)
        half = 1 << (fmt.sequence_bits - 1)  # a lane has far fewer slots: where they span more, the count wrapped
        low, high = np.where(written, order, half).min(axis=0), np.where(written, order, 0).max(axis=0)
        order = order + np.where((high - low > half // 2) & (order < half), 2 * half, 0)
    lanes = np.flatnonzero(written.any(axis=0))
    newest = records[np.argmax(np.where(written, order, -1), axis=0)[lanes], lanes]
    times = newest["time"].astype(np.int64)
    if fmt.kind is not RecordKind.LONG and int(times.max() - times.min()) > 1 << 31:
        times = (times - int(times[times > 1 << 31].min())) % (1 << 32)  # low words of a clock, across one wrap
    return newest[int(np.argmax(times))]


def hang_lines(
    seen: list[LastSeen],
    layout: RingLayout,
    site_map: SiteMap,
    roles: list[Role],
    kernel: KernelDef | None = None,
) -> list[str]:
    """The report: warps grouped by role and last site. ``kernel`` tells where inlined code was called from."""
    by_site = {site.site_id: site for site in site_map.sites}
    role_of = _roles(seen, by_site, roles)
    groups: dict[tuple[str, int], list[LastSeen]] = defaultdict(list)
    for item in seen:
        groups[role_of.get((item.cta, item.warp), ""), item.site].append(item)
    lines = []
    for (role, number), members in sorted(groups.items(), key=lambda entry: (entry[0][0], -len(entry[1]))):
        site = by_site.get(number)
        lines.append(f"{role + ': ' if role else ''}{len(members)} warps last seen {_place(site, kernel)}")
        visits = sorted({item.visits for item in members})
        shown = ", ".join(f"CTA {item.cta} warp {item.warp}" for item in members[:_SHOWN_WARPS])
        more = f" and {len(members) - _SHOWN_WARPS} more" if len(members) > _SHOWN_WARPS else ""
        span = str(visits[0]) if len(visits) == 1 else f"{visits[0]} to {visits[-1]}"
        lines.append(f"    visit {span} of it that the ring holds; {shown}{more}")
    missing = layout.warps - len(seen)
    if missing:
        lines.append(f"{missing} of {layout.warps} warps have not started: the CTAs before them do not leave")
    return lines


def _place(site: MappedSite | None, kernel: KernelDef | None) -> str:
    if site is None:
        return "at the entry, before any site"
    where = f", {site.file}:{site.line}" if site.file is not None else ""
    calls = () if kernel is None else kernel.inlined_at.get(site.index * INSTRUCTION_SIZE, ())
    if calls:  # the line of the source that asked for it, which tells two waits apart that share a helper
        where = f", {calls[-1].file}:{calls[-1].line}, inlined from {site.file}:{site.line}"
    name, text = site.label or f"site {site.site_id}", site.instruction.rstrip(" ;")
    return f"at {name} (instruction {site.index}: {text}{where})"


def _roles(
    seen: list[LastSeen], by_site: dict[int, MappedSite], roles: list[Role]
) -> dict[tuple[int, int], str]:
    found = {}
    for item in seen:
        site: Any = by_site.get(item.site)
        for role in roles:
            if site is not None and site.index in role.body:
                found[item.cta, item.warp] = role.name
    return found
