"""How often each site is visited, counted by another snippet than the records', and what records must say then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import add_constant3
from gwatch.rewrite import Rewriter, Snippet
from gwatch.rewrite.trace import SassTraceSite

COUNTS = "torture_counts"
"""The constant that holds the address of the counters."""
FIRST = 16
"""Byte of the first counter."""
COUNT = Snippet(
    """
    LDC.64 %address, c[0x3][{offset}]
    ULDC.64 %memory, c[0x0][0x208]
    IMAD.MOV.U32 %one, RZ, RZ, 0x1
    IADD3 %address, %address, {place}, RZ         // the counters lie in one page
    @%guard REDG.E.ADD.STRONG.GPU desc[%memory][%address.64], %one
    """,
    registers={"address": 2, "one": 1},
    uniforms={"memory": 2},
    name="count",
)
COUNT_ALL = replace(COUNT, inherit_guard=False)
COUNT_GROUPS = Snippet(
    """
    VOTE.ANY %one, PT, %guard
    S2R %lower, SR_LTMASK
    LOP3.LUT %one, %one, %lower, RZ, 0xc0, !PT
    ISETP.EQ.U32.AND %first, PT, %one, RZ, %guard // no lane below counts
    LDC.64 %address, c[0x3][{offset}]
    ULDC.64 %memory, c[0x0][0x208]
    IMAD.MOV.U32 %one, RZ, RZ, 0x1
    IADD3 %address, %address, {place}, RZ
    @%first REDG.E.ADD.STRONG.GPU desc[%memory][%address.64], %one
    """,
    registers={"address": 2, "one": 1, "lower": 1},
    uniforms={"memory": 2},
    predicates=("first",),
    name="count groups",
)
COUNT_ALL_GROUPS = replace(COUNT_GROUPS, inherit_guard=False)


def counting_image(cubin: Cubin, kernel: str, sites: Sequence[SassTraceSite]) -> bytes:
    """``kernel`` with a counter of 32 bits per site: lanes that a record there would be about, and of warp-level
    records that don't name theirs, groups of lanes. The counters stand from byte :data:`FIRST` on at the address that
    :data:`COUNTS` holds. Raises what the rewriter refuses with.
    """
    image, offset = add_constant3(cubin.data, COUNTS, 8, bytes(8))
    rewriter = Rewriter(Cubin.from_bytes(image), kernel)
    for number, site in enumerate(sites):
        if site.warp_level and site.special != "activemask":
            snippet = COUNT_ALL_GROUPS if site.unconditional else COUNT_GROUPS
        else:
            snippet = COUNT_ALL if site.unconditional else COUNT
        rewriter.insert(site.insert_index, snippet, {"offset": offset, "place": FIRST + 4 * number})
    return rewriter.apply().data


def countable(sites: Sequence[SassTraceSite]) -> tuple[SassTraceSite, ...]:
    """The sites with the values of warp-level records replaced by their lanes, so that these can be counted."""
    return tuple(
        replace(
            site,
            special="activemask",
            value_reg=None,
            value_is_smid=False,
            value_width_bits=32,
            value_is_uniform=False,
        )
        if site.warp_level and site.value != "none"
        else site
        for site in sites
    )


def agreed(
    sites: Sequence[SassTraceSite],
    counted: Sequence[int],
    records: Any,
    dropped: int,
    made: int,
    shared: bool = False,
) -> int:
    """How many sites' records were compared with the visits ``counted``, site by site.

    ``records``: fields ``site`` and ``value``; ``made`` of them were made and ``dropped`` lost; ``shared``: some sites
    share a record. Raises AssertionError where they differ. With losses only the sum can be compared, and only where a
    record is one lane's and one site's.
    """
    if dropped == 0:
        for number, site in enumerate(sites):
            mine = records[records["site"] == number]
            seen = len(mine)
            if site.warp_level and site.special == "activemask":
                seen = sum(int(mask).bit_count() for mask in mine["value"].tolist())
            if seen != counted[number]:
                raise AssertionError(
                    f"site {number} (instruction {site.insert_index}): {seen} visits recorded, "
                    f"{counted[number]} counted"
                )
        return len(sites)
    if not shared and not any(site.warp_level for site in sites) and made != sum(counted):
        raise AssertionError(f"{made} records made, {sum(counted)} visits counted")
    return 0


def not_executed(counted: Sequence[int] | None) -> str:
    """Why a launch left no record at all, given the visits ``counted`` of its sites (None: they couldn't be).

    Raises AssertionError where sites were visited.
    """
    if counted is None:
        return "launch without records, visits not counted"
    if any(counted):
        raise AssertionError(f"no records, but the sites were visited {list(counted)} times")
    return "launch without records, no visit counted"
