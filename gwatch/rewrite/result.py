"""What a rewrite hands back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlacedSite:
    """One insertion: before original instruction ``index`` (-1: at the entry), ``instruction`` its text; the
    inserted words are ``first`` .. ``first + count - 1`` of the new code, with ``texts``. ``registers`` maps
    the snippet's names to physical ones ("R40", "P6"); ``ways`` says how each general one was had ("above the count",
    "dead", "home", "saved"); ``saved`` names the registers of the kernel that are saved around the site.
    """

    index: int
    label: str
    instruction: str
    first: int
    count: int
    texts: tuple[str, ...]
    controls: tuple[tuple[int, int, int, int, int], ...]
    registers: dict[str, str]
    ways: dict[str, str] = field(default_factory=dict)
    saved: tuple[str, ...] = ()

    @property
    def cycles(self) -> int:
        """Issue cycles of its lines, waits aside."""
        return sum(control[0] for control in self.controls)

    @property
    def waits(self) -> int:
        """Lines that only wait: until a store has read registers that the kernel overwrites, or saved ones are back."""
        return sum(
            text == "NOP" and control[4] != 0 for text, control in zip(self.texts, self.controls, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ReuseEdit:
    """The ``.reuse`` bits cleared on original instruction ``index``: code now stands before what it keeps is used."""

    index: int
    bits: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A rewritten cubin and everything that changed.

    ``data``: the new image. ``target_map`` (n + 1,), ``place_map`` (n,): instruction indices, see
    :mod:`gwatch.sass.motion`. ``twin``: index of the untouched copy's first instruction, or None. ``words``
    ``(m, 2) uint64``: the new code, padding included. ``inserted`` (m,) marks inserted words. ``branches``
    and ``returns``: original indices whose target field or return-address immediate was re-encoded.
    ``moved``: kinds of address holders that the container moved, with how many. ``occupancy_*``: CTAs per SM
    for ``threads_per_cta`` threads and the static shared memory. ``scoreboards``: the ones inserted code takes (read,
    write). ``moves``: where values of inserted code change registers ("%off R8 -> R223 before 210"). ``local_bytes``:
    local memory a thread that saving registers takes. ``check``: the hazard checker's summary. ``origins``:
    instructions that load the place of an LEPC -> that LEPC.
    """

    data: bytes
    kernel: str
    words: npt.NDArray[np.uint64]
    target_map: Indices
    place_map: Indices
    twin: int | None
    inserted: npt.NDArray[np.bool_]
    sites: tuple[PlacedSite, ...]
    state: dict[str, str]
    registers_before: int
    registers_after: int
    threads_per_cta: int
    occupancy_before: int
    occupancy_after: int
    scoreboards: tuple[int, int]
    branches: tuple[int, ...]
    returns: tuple[int, ...]
    edits: tuple[ReuseEdit, ...]
    moves: tuple[str, ...]
    local_bytes: int
    moved: dict[str, int]
    check: str
    origins: dict[int, int] = field(default_factory=dict)

    @property
    def text_bytes(self) -> tuple[int, int]:
        """Bytes of the code section before and after."""
        return len(self.place_map) * 16, len(self.words) * 16
