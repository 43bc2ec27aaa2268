"""Sites whose times wait in a register for the record of a later site: one store says what two or three would.

A store is what a record costs a busy kernel. Where one site always follows another, on every path and before anything
else records, the first only reads the clock; the record of the second has room for two such times.

At warp level the lanes that leave a site must be those that left the one before, or fewer: a warp that came to the
first in two groups and to the second in one would have made two records there. That can't be where the whole warp comes
to the first (:mod:`gwatch.sass.convergence`). Elsewhere nothing at which groups may join stands between the two:
measured on the H200, they join at WARPSYNC, and where they wait or sleep in one loop (an mbarrier's try_wait, YIELD,
NANOSLEEP), not where they merely meet at an instruction. Groups that part between the two each make a record; the
decoder tells by its time, a cycle in which a warp issues once, that the first site's is the same. The ns timer's steps
don't tell, so with it no branch may stand between two such sites, unless the whole warp comes to both.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gwatch.sass.cfg import Flow
from gwatch.sass.convergence import may_wait

if TYPE_CHECKING:
    from gwatch.rewrite.surroundings import Surroundings

WORDS = ("x", "y")
_GOES_ON = (Flow.NEXT, Flow.BRANCH, Flow.REFERENCE, Flow.SPLIT)
_SEARCHED = 2000


@dataclass(frozen=True, slots=True)
class Held:
    """The record of site ``holder`` says the time too, in its word ``word``."""

    holder: int
    word: str


def held_times(
    around: Surroundings,
    sites: Mapping[int, tuple[int, bool]],
    others: Sequence[int],
    words: Sequence[str],
    may_part: bool,
) -> dict[int, Held]:
    """Site number -> where its time is kept.

    ``sites``: number -> (instruction index, whether warp-level) of the sites that may take part, each alone at its
    index; ``others``: indices of all other records; ``words``: the words that a record has free, in the order of use;
    ``may_part``: whether groups of a warp may part between two sites (times tell visits apart).
    """
    if not words:
        return {}
    stops = sorted({index for index, _ in sites.values()} | set(others))
    number_of = {index: number for number, (index, _) in sites.items()}
    paths = _Paths(around, stops, may_part)
    following: dict[int, int] = {}
    for number, (index, by_warp) in sites.items():
        found = paths.next(index, by_warp)
        other = number_of.get(-1 if found is None else found)
        if other is not None and sites[other][1] == by_warp:
            following[number] = other
    held: dict[int, Held] = {}
    for first in sorted(sites.keys() - set(following.values())):
        chain = [first]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        for group in _parts(chain, len(words) + 1):
            held |= {number: Held(group[-1], word) for number, word in zip(group[:-1], words, strict=False)}
    return held


def _parts(chain: list[int], most: int) -> list[list[int]]:
    """``chain`` cut into as few parts as hold ``most`` each, of about one length."""
    count = -(-len(chain) // most)
    edges = [len(chain) * part // count for part in range(count + 1)]
    return [chain[a:b] for a, b in itertools.pairwise(edges)]


class _Paths:
    """What lies between sites, by blocks. ``stops``: indices of all records, ascending."""

    def __init__(self, around: Surroundings, stops: list[int], may_part: bool) -> None:
        self._around, self.cfg, self.stops, self.may_part = around, around.cfg, stops, may_part
        self._view = around.view
        self._starts = [block.start for block in self.cfg.blocks]
        self._leaves = [i for i, kind in enumerate(self.cfg.flow.kind.tolist()) if Flow(kind) not in _GOES_ON]
        self._entries = frozenset({0, *self.cfg.entries})

    def next(self, index: int, by_warp: bool) -> int | None:
        """The record that follows the one at ``index`` on every path, and that no path reaches without it; None where
        there is none, or where a warp's groups may join before it, or part and mayn't (``by_warp``)."""
        ranges = self._ahead(index)
        if ranges is None:
            return None
        found = {end for _, end in ranges if self._stops_at(end)}
        if len(found) != 1:
            return None
        (after,) = found
        if after == index or not self._only_from(after, index):
            return None
        if by_warp and (self._may_join(ranges) or (len(ranges) > 1 and not self.may_part)):
            together = self._around.convergence.together
            return after if together(index) and (self.may_part or together(after)) else None
        return after

    def _block(self, index: int) -> int:
        return bisect_right(self._starts, index) - 1

    def _stops_at(self, index: int) -> bool:
        place = bisect_left(self.stops, index)
        return place < len(self.stops) and self.stops[place] == index

    def _stop_in(self, start: int, end: int) -> int | None:
        """The first record before an instruction of [start, end)."""
        place = bisect_left(self.stops, start)
        return self.stops[place] if place < len(self.stops) and self.stops[place] < end else None

    def _ahead(self, index: int) -> list[tuple[int, int]] | None:
        """Ranges of instructions that run between the record at ``index`` and the next one; the last of each either is
        a block's, or stands before a record. None where control may leave."""
        ranges: list[tuple[int, int]] = []
        seen: set[int] = set()
        work = [index]
        while work:
            start = work.pop()
            end = self.cfg.blocks[self._block(start)].end
            stop = self._stop_in(start + (start == index and not ranges), end)
            ranges.append((start, end if stop is None else stop))
            first = bisect_left(self._leaves, start)
            if first < len(self._leaves) and self._leaves[first] < ranges[-1][1]:
                return None
            if stop is not None:
                continue
            following = self.cfg.successors(end - 1)
            if not following or len(seen) > _SEARCHED:
                return None
            work.extend(item for item in following if item not in seen)
            seen.update(following)
        return ranges

    def _only_from(self, index: int, origin: int) -> bool:
        """Whether every path to ``index`` comes by the record at ``origin``, with none between."""
        work, seen = [(self._block(index), index)], set[int]()
        while work:
            number, limit = work.pop()
            start = self.cfg.blocks[number].start
            place = bisect_left(self.stops, limit) - 1
            if place >= 0 and self.stops[place] >= start:
                if self.stops[place] != origin:
                    return False
                continue
            if start in self._entries:
                return False
            work += self._before(start, seen)
        return True

    def _before(self, start: int, seen: set[int]) -> list[tuple[int, int]]:
        """(block, its end) of the blocks, not yet ``seen``, that lead to the block at ``start``."""
        found = []
        for last in self.cfg.predecessors(start):
            number = self._block(last)
            if number not in seen:
                seen.add(number)
                found.append((number, last + 1))
        return found

    def _may_join(self, ranges: Sequence[tuple[int, int]]) -> bool:
        return any(may_wait(self._view.facts(index)) for start, end in ranges for index in range(start, end))
