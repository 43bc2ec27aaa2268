"""Where a program's kernel is recorded: warp lifetimes, the user's sites and regions, or what ``--auto``
finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.xtrace.markers import find_markers
from gwatch.cuda.xtrace.scopes import Scopes, scope_sites
from gwatch.errors import SiteError
from gwatch.rewrite.ring import LANES
from gwatch.rewrite.sites import parse_site, resolve_with_notes
from gwatch.rewrite.trace import SassTraceSite

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.cuda.xtrace.result import TraceResult
    from gwatch.sass.cfg import Cfg

LIFETIME = "warp lifetime"
LIFETIME_DEPTH = 4
_BETWEEN = ".."


@dataclass(frozen=True, slots=True)
class Places:
    """Sites, regions ``(enter, leave, label)`` over their numbers, role by region label, and whether these
    are the warp lifetimes recorded by default. With ``scopes`` the sites are those of scope markers, and the regions
    count as they do after :func:`~gwatch.cuda.xtrace.scopes.merge`. ``notes``: what a reader must know about the
    guards of the user's own sites."""

    sites: tuple[SassTraceSite, ...]
    regions: tuple[tuple[int, int, str], ...] = ()
    roles: tuple[tuple[str, str], ...] = ()
    lifetime: bool = False
    scopes: Scopes | None = None
    notes: tuple[str, ...] = ()


def places_of(kernel: KernelDef, options: ProgramOptions) -> Places:
    """Where the user says; else the kernel's scope markers; else the lifetimes of its warps.

    Raises SiteError as :func:`~gwatch.rewrite.sites.resolve_site` and
    :func:`~gwatch.cuda.xtrace.markers.check_markers` do, and ``[region-syntax]``.
    """
    if not options.own_sites:
        if options.timeout is not None:
            return _telling(kernel)
        return _marked(kernel, dict(options.scopes)) if find_markers(kernel) else lifetimes(kernel)
    found = _Collected()
    if options.auto:
        from gwatch.cuda.program.roles import automatic

        found.add_all(automatic(kernel))
    for text in options.sites:
        found.site_ids(kernel, text)
    for text in options.regions:
        found.region(kernel, text)
    return Places(
        tuple(found.sites), tuple(found.regions), tuple(found.roles.items()), notes=tuple(found.notes.values())
    )


def _marked(kernel: KernelDef, names: dict[int, str]) -> Places:
    """The scopes that the kernel's author marked, per warp; ``names`` by number."""
    from gwatch.cuda.program.roles import roles_of

    sites, scopes = scope_sites(kernel, names, True)
    roles = roles_of(kernel)
    labels = dict(scopes.names)
    owners: dict[str, str] = {}
    for site, (scope, _) in zip(sites, scopes.boundaries, strict=True):
        for role in roles:
            if site.insert_index in role.body:
                owners.setdefault(labels[scope], role.name)
    return Places(sites, scopes.regions, tuple(owners.items()), scopes=scopes)


def _telling(kernel: KernelDef) -> Places:
    """For a kernel that may hang: where its warps wait, as far as it has such places."""
    from gwatch.cuda.program.roles import automatic

    try:
        return automatic(kernel)
    except SiteError:
        return lifetimes(kernel)


def lifetimes(kernel: KernelDef) -> Places:
    """Entry and every EXIT of a kernel, once per warp."""
    exits = [SassTraceSite(index, warp_level=True, label="exit") for index in exit_indices(kernel)]
    sites = (SassTraceSite(0, warp_level=True, label="entry"), *exits)
    # merge_exits makes site 1 of all exits.
    return Places(sites, ((0, 1, LIFETIME),) if exits else (), lifetime=True)


def exit_indices(kernel: KernelDef) -> list[int]:
    """Instruction indices of the EXIT instructions. Raises UnsupportedError ``[word-unknown]``."""
    from gwatch.sass.cfg import Flow

    return [int(index) for index in np.flatnonzero(graph_of(kernel).flow.kind == int(Flow.EXIT))]


def graph_of(kernel: KernelDef) -> Cfg:
    """The kernel's control flow by instruction index. Raises UnsupportedError ``[word-unknown]``."""
    kernel.parse_cfg()
    assert kernel.cfg is not None
    return kernel.cfg.graph


class _Collected:
    def __init__(self) -> None:
        self.sites: list[SassTraceSite] = []
        self.regions: list[tuple[int, int, str]] = []
        self.roles: dict[str, str] = {}
        self.notes: dict[int, str] = {}

    def add_all(self, places: Places) -> None:
        self.sites += places.sites
        self.regions += places.regions
        self.roles.update(places.roles)

    def site_ids(self, kernel: KernelDef, text: str) -> list[int]:
        """Numbers of the sites that ``text`` describes; a place named twice is recorded once."""
        ids = []
        for site, note in _resolve(kernel, text):
            if site not in self.sites:
                self.sites.append(site)
            number = self.sites.index(site)
            ids.append(number)
            if note:
                self.notes[number] = f"[site-guard] site {number} {note}"
        return ids

    def region(self, kernel: KernelDef, text: str) -> None:
        name, start, end = _region(text)
        enters = self.site_ids(kernel, start)
        leaves = self.site_ids(kernel, end)
        if enters == leaves:
            raise SiteError(
                "region-syntax", f"region {text!r} begins and ends at the same place", "name two different sites"
            )
        self.regions += [(a, b, name) for a in enters for b in leaves if a != b]


def check_syntax(options: ProgramOptions) -> None:
    """Read sites and regions without a kernel. Raises SiteError ``[site-syntax]``, ``[region-syntax]``."""
    for text in (*options.sites, *(site for region in options.regions for site in _region(region)[1:])):
        parse_site(_without_thread(text)[0])


def _region(text: str) -> tuple[str, str, str]:
    """Name and two sites of a region."""
    name, equals, rest = text.partition("=")
    start, between, end = rest.partition(_BETWEEN)
    found = name.strip(), start.strip(), end.strip()
    if not (equals and between and all(found)):
        raise SiteError(
            "region-syntax",
            f"region {text!r} is not NAME=SITE..SITE",
            "for example --region 'main loop=op:BAR.SYNC@first..op:BAR.SYNC@last'",
        )
    return found


def _without_thread(text: str) -> tuple[str, bool]:
    """A site's text without the option ``thread``, and whether it was there."""
    parts = text.split(",")
    kept = [parts[0], *(part for part in parts[1:] if part.strip() != "thread")]
    return ",".join(kept), len(kept) < len(parts)


def _resolve(kernel: KernelDef, text: str) -> list[tuple[SassTraceSite, str]]:
    """Sites and notes on them; sites are warp-level unless the option ``thread`` is given."""
    kept, per_thread = _without_thread(text)
    found = resolve_with_notes(kernel, kept)
    return found if per_thread else [(replace(site, warp_level=True), note) for site, note in found]


def merge_exits(result: TraceResult) -> None:
    """Make one "exit" of the many: site 1, and only the last one of each warp, whose lanes may leave apart.

    A predicated EXIT may also be passed. Records that are left out leave no hole in the sequence of their lane.
    """
    records = result["records"]
    sites: Sequence[dict[str, Any]] = result["sites"]
    leaving = records["site"] > 0
    block = records["block"].astype(np.int64)
    grid = result["grid_dim"]
    cta = block[:, 0] + grid[0] * (block[:, 1] + grid[1] * block[:, 2])
    warps = -(-int(np.prod(result["block_dim"])) // 32)
    warp = cta * warps + records["warp"]
    order = np.lexsort((records["time"], warp))
    order = order[leaving[order]]
    last = order[np.append(np.diff(warp[order]) != 0, True)] if len(order) else order
    keep = ~leaving
    keep[last] = True
    lane = records["lane"].astype(np.int64)
    by_lane = np.lexsort((records["sequence"], lane, warp))
    gone = np.cumsum(~keep[by_lane])
    same = np.append(False, np.diff(warp[by_lane] * LANES + lane[by_lane]) == 0)
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(by_lane))))
    before = gone - (gone - ~keep[by_lane])[first] if len(by_lane) else gone
    records = records.copy()
    records["sequence"][by_lane] -= before.astype(np.uint32)
    merged = records[keep]
    merged["site"][merged["site"] > 0] = 1
    result["records"] = merged
    if len(sites) > 2:
        last_exit = {**sites[1], "label": f"exit (any of {len(sites) - 1})"}
        result["sites"] = [sites[0], last_exit]
