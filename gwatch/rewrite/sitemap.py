"""The site map: what each record of a patched kernel means.

It travels inside the patched cubin (a note section named :data:`NOTE_NAME`) and beside it as
``out.map.json``, so that a ring can be decoded with nothing but the cubin at hand.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from gwatch.errors import TraceError
from gwatch.rewrite.ring import RecordKind, RingFormat

NOTE_NAME = ".note.gwatch.sites"
MAP_VERSIONS = (1, 2, 3)
"""2: a site shares another one's record (``MappedSite.shared_with``), 3: whose words say its time
(``MappedSite.time_in``); readers of the versions before would not know."""

CLOCKS = ("gpu", "sm", "anchor")
"""``gpu``: ns timer, one axis for the whole GPU. ``sm``: the SM's cycle counter. ``anchor``: the cycle
counter mapped to the ns axis by clock pairs. A clock read is an issue time: it waits for nothing."""
TELLS_VISITS = {"gpu": False, "sm": True, "anchor": True}
"""Whether no two visits of a warp read one time: it issues one instruction a cycle; the ns timer moves in steps."""


@dataclass(frozen=True, slots=True)
class MappedSite:
    """One site of a patched kernel. ``index`` and ``pc`` are the original's, ``new_pc`` is where its code
    landed."""

    site_id: int
    index: int
    pc: int
    new_pc: int
    instruction: str
    file: str | None
    line: int | None
    value: str
    """``none``, ``R8``, ``R8:64``, ``UR4``, ``UR4:64``, ``smid``, or a special: ``activemask``, ``ns``,
    ``ns:64``."""
    warp_level: bool
    unconditional: bool
    pair: bool
    """The record's last word is the ns timer's low word, read right after the clock (x where the value is
    ``ns:64``)."""
    label: str | None = None
    shared_with: int | None = None
    """The site whose record says this one's time too. It is the last of all that share the record."""
    time_in: str = "time"
    """The word of the record that says this site's time: ``time``, or ``x`` or ``y`` where the time was read before,
    at the site, and held since. ``time`` of a shared record: nothing that takes time stands between the two."""

    @property
    def value_bits(self) -> int:
        """Bits of the value in the record: 0, 32 or 64 (``smid`` comes from the warp's header: 0)."""
        if self.value in ("none", "smid"):
            return 0
        return 64 if self.value.endswith(":64") else 32


@dataclass(frozen=True, slots=True)
class SiteMap:
    """All that a decoder must know of a patched kernel besides the launch."""

    kernel: str
    arch: str
    clock: str
    format: RingFormat
    descriptor_symbol: str
    descriptor_offset: int
    sites: tuple[MappedSite, ...]
    registers_before: int
    registers_after: int
    pairs_at_exit: bool

    @property
    def recorded(self) -> tuple[MappedSite, ...]:
        """The sites that leave records of their own."""
        return tuple(site for site in self.sites if site.shared_with is None)

    @property
    def shares(self) -> bool:
        """Whether some sites share a record."""
        return any(site.shared_with is not None for site in self.sites)

    @property
    def holds(self) -> bool:
        """Whether the times of some sites are in words of later sites' records."""
        return any(site.time_in != "time" for site in self.sites)

    @property
    def values(self) -> bool:
        """Whether some sites record values."""
        return any(site.value != "none" for site in self.sites)

    @property
    def version(self) -> int:
        """The oldest version of site maps that says all."""
        return MAP_VERSIONS[self.shares + self.holds]

    def described(self) -> list[dict[str, Any]]:
        """The sites as reports name them: one dict of plain values per site."""
        return [
            {
                "site_id": site.site_id,
                "index": site.index,
                "pc": site.pc,
                "new_pc": site.new_pc,
                "instruction": site.instruction,
                "line": None if site.file is None else f"{site.file}:{site.line}",
                "warp_level": site.warp_level,
                "unconditional": site.unconditional,
                "label": site.label,
                "value_kind": site.value,
                **({} if site.shared_with is None else {"shared_with": site.shared_with}),
                **({} if site.time_in == "time" else {"time_in": site.time_in}),
            }
            for site in self.sites
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with a format version."""
        version = self.version
        data: dict[str, Any] = {"version": version}
        for field in fields(self):
            data[field.name] = getattr(self, field.name)
        data["format"] = self.format.to_json()
        data["sites"] = [asdict(site) for site in self.sites]
        for name, since in _SINCE.items():
            if version < since:
                for site in data["sites"]:
                    del site[name]
        return data

    def to_bytes(self) -> bytes:
        """UTF-8 JSON, the note's payload."""
        return json.dumps(self.to_json(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: Any) -> SiteMap:
        """Raises TraceError ``site-map`` for another version, or damaged or missing entries."""
        version = data.get("version") if isinstance(data, dict) else None
        if version not in MAP_VERSIONS or isinstance(version, bool):
            known = " and ".join(map(str, MAP_VERSIONS))
            raise TraceError("site-map", f"site map version {version!r}, this reader knows {known}")
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            values["format"] = RingFormat.from_json(data["format"])
            values["sites"] = tuple(_site(site) for site in data["sites"])
        except (KeyError, TypeError, AttributeError) as error:
            raise TraceError("site-map", f"the site map is damaged: {error}") from None
        result = cls(**values)
        _check_types(result, _MAP_TYPES)
        if result.clock not in CLOCKS or any(s.site_id != i for i, s in enumerate(result.sites)):
            raise TraceError("site-map", "the site map is damaged: unknown clock or unordered sites")
        _check_sharing(result, data)
        return result

    @classmethod
    def from_bytes(cls, data: bytes) -> SiteMap:
        """Raises TraceError ``site-map``."""
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TraceError("site-map", f"the site map is not JSON: {error}") from None
        return cls.from_json(parsed)


def _check_sharing(found: SiteMap, data: dict[str, Any]) -> None:
    """Refuse shared records that no plan makes: of none, of sites that differ, or in a map of the version before."""
    alone = {site.site_id: site for site in found.recorded}
    if any(
        (name in site) != (data["version"] >= since)
        for site in data["sites"]
        for name, since in _SINCE.items()
    ):
        raise TraceError("site-map", "the site map is damaged: what sites share is not of its version")
    read_at: dict[tuple[int | None, str], int] = {}
    for site in found.sites:
        if site.shared_with is None and site.time_in == "time":
            continue
        other = alone.get(-1 if site.shared_with is None else site.shared_with)
        words = ["time"]
        if other is not None and found.format.kind is RecordKind.WIDE:
            words += ["x"] if other.pair else ["x", "y"]
        unlike = other is None or other.warp_level != site.warp_level or {site.value, other.value} != {"none"}
        # A word says one time: sites that name it share the code that reads the clock.
        place = read_at.setdefault((site.shared_with, site.time_in), site.new_pc)
        if unlike or site.time_in not in words or (site.time_in != "time" and place != site.new_pc):
            raise TraceError(
                "site-map",
                f"the site map is damaged: site {site.site_id} can't share the record of {site.shared_with}",
            )


_SINCE = {"shared_with": 2, "time_in": 3}
"""The version of site maps since which sites say so."""
_SITE_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("site_id", "index", "pc", "new_pc"), (int,)),
    **dict.fromkeys(("instruction", "value", "time_in"), (str,)),
    **dict.fromkeys(("file", "label"), (str, type(None))),
    **dict.fromkeys(("line", "shared_with"), (int, type(None))),
    **dict.fromkeys(("warp_level", "unconditional", "pair"), (bool,)),
}
_MAP_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kernel", "arch", "clock", "descriptor_symbol"), (str,)),
    **dict.fromkeys(("descriptor_offset", "registers_before", "registers_after"), (int,)),
    "pairs_at_exit": (bool,),
}
_VALUE = re.compile(r"none|smid|activemask|ns(:64)?|U?R\d{1,3}(:64)?")


def _site(data: Any) -> MappedSite:
    site = MappedSite(**data)
    _check_types(site, _SITE_TYPES)
    if not _VALUE.fullmatch(site.value):
        raise TraceError("site-map", f"the site map is damaged: value {site.value!r}")
    return site


def _check_types(value: object, types: dict[str, tuple[type, ...]]) -> None:
    for name, allowed in types.items():
        given = getattr(value, name)
        if not isinstance(given, allowed) or (isinstance(given, bool) and bool not in allowed):
            raise TraceError("site-map", f"the site map is damaged: {name} is {given!r}")
