"""Alignment of two sequences: a shortest edit script, and runs that only moved.

Exact (Myers' greedy algorithm, O((N + M) D)) while the difference is small; beyond that anchored at items that occur
once on both sides, so that two unrelated kernels don't take minutes.
"""

from __future__ import annotations

import difflib
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

LIMIT = 1000
"""Insertions plus deletions up to which the script is a shortest one."""
MIN_MOVE = 3
"""Shortest run of items that counts as moved even if it could stand elsewhere too; a shorter one must be unique."""

Pairs = list[tuple[int, int]]


def align(first: Sequence[Hashable], second: Sequence[Hashable], limit: int = LIMIT) -> Pairs:
    """Index pairs of equal items, ascending on both sides; everything else was deleted or inserted."""
    numbers: dict[Hashable, int] = {}
    a = [numbers.setdefault(item, len(numbers)) for item in first]
    b = [numbers.setdefault(item, len(numbers)) for item in second]
    return _segment(a, b, 0, len(a), 0, len(b), limit, True)


def _segment(
    a: list[int], b: list[int], a_start: int, a_end: int, b_start: int, b_end: int, limit: int, anchors: bool
) -> Pairs:
    head: Pairs = []
    while a_start < a_end and b_start < b_end and a[a_start] == b[b_start]:
        head.append((a_start, b_start))
        a_start, b_start = a_start + 1, b_start + 1
    tail: Pairs = []
    while a_start < a_end and b_start < b_end and a[a_end - 1] == b[b_end - 1]:
        a_end, b_end = a_end - 1, b_end - 1
        tail.append((a_end, b_end))
    middle: Pairs = []
    if a_start < a_end and b_start < b_end:
        found = _myers(a[a_start:a_end], b[b_start:b_end], limit)
        if found is not None:
            middle = [(x + a_start, y + b_start) for x, y in found]
        elif anchors and (unique := _anchors(a, b, a_start, a_end, b_start, b_end)):
            middle = _between(a, b, a_start, a_end, b_start, b_end, unique, limit)
        else:
            matcher = difflib.SequenceMatcher(None, a[a_start:a_end], b[b_start:b_end])
            for block in matcher.get_matching_blocks():
                middle += [(block.a + k + a_start, block.b + k + b_start) for k in range(block.size)]
    return head + middle + tail[::-1]


def _between(
    a: list[int], b: list[int], a_start: int, a_end: int, b_start: int, b_end: int, anchors: Pairs, limit: int
) -> Pairs:
    out: Pairs = []
    for x, y in [*anchors, (a_end, b_end)]:
        out += _segment(a, b, a_start, x, b_start, y, limit // 2, False)
        if x < a_end:
            out.append((x, y))
        a_start, b_start = x + 1, y + 1
    return out


def _anchors(a: list[int], b: list[int], a_start: int, a_end: int, b_start: int, b_end: int) -> Pairs:
    """A longest chain of items that occur exactly once on both sides, in the same order."""
    count_a, count_b = Counter(a[a_start:a_end]), Counter(b[b_start:b_end])
    place = {b[y]: y for y in range(b_start, b_end) if count_b[b[y]] == 1}
    pairs = [(x, place[a[x]]) for x in range(a_start, a_end) if count_a[a[x]] == 1 and a[x] in place]
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (_, y) in enumerate(pairs):
        at = bisect_left(tops, y)
        before.append(ends[at - 1] if at else -1)
        if at == len(tops):
            tops.append(y)
            ends.append(number)
        else:
            tops[at], ends[at] = y, number
    chain: Pairs = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _myers(a: list[int], b: list[int], limit: int) -> Pairs | None:
    """Pairs of a shortest edit script; None when it takes more than ``limit`` edits."""
    n, m = len(a), len(b)
    limit = min(limit, n + m)
    if abs(n - m) > limit:
        return None
    middle = limit + 1
    reach = array("q", bytes(8 * (2 * limit + 3)))  # furthest x on diagonal k, at index k + middle
    history: list[array[int]] = []
    for edits in range(limit + 1):
        # Only diagonals -edits .. edits can be looked at again; entry 0 of the copy is diagonal -edits - 1.
        history.append(reach[middle - edits - 1 : middle + edits + 2])
        for at in range(middle - edits, middle + edits + 1, 2):
            down = at == middle - edits or (at != middle + edits and reach[at - 1] < reach[at + 1])
            x = reach[at + 1] if down else reach[at - 1] + 1
            y = x - at + middle
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[at] = x
            if x >= n and y >= m:
                return _backtrack(history, n, m)
    return None


def _backtrack(history: list[array[int]], x: int, y: int) -> Pairs:
    pairs: Pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach, at = history[edits], x - y + edits + 1
        down = at == 1 or (at != 2 * edits + 1 and reach[at - 1] < reach[at + 1])
        before = at + 1 if down else at - 1
        before_x = reach[before] if edits else 0
        before_y = before_x - (before - edits - 1) if edits else 0
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs[::-1]


def moved_runs(
    first: Sequence[Hashable], second: Sequence[Hashable], deleted: Sequence[int], inserted: Sequence[int]
) -> list[tuple[int, int, int]]:
    """``(place in first, place in second, length)`` of runs that were deleted here and inserted there, longest
    first; items are used once. A run shorter than MIN_MOVE counts only if its items are unique on both sides."""
    here, there = set(deleted), set(inserted)
    by_item: dict[Hashable, list[int]] = defaultdict(list)
    for y in inserted:
        by_item[second[y]].append(y)
    count = Counter(first[x] for x in deleted)
    runs = []
    for x in deleted:
        for y in by_item.get(first[x], ()):
            if x - 1 in here and y - 1 in there and first[x - 1] == second[y - 1]:
                continue  # the run that starts one earlier holds this one
            length = 1
            while x + length in here and y + length in there and first[x + length] == second[y + length]:
                length += 1
            items = first[x : x + length]
            if length >= MIN_MOVE or all(count[i] == 1 and len(by_item[i]) == 1 for i in items):
                runs.append((length, x, y))
    out = []
    for length, x, y in sorted(runs, key=lambda run: (-run[0], run[1], run[2])):
        while length and not (x in here and y in there):
            x, y, length = x + 1, y + 1, length - 1
        taken = 0
        while taken < length and x + taken in here and y + taken in there:
            taken += 1
        if taken:
            out.append((x, y, taken))
            here.difference_update(range(x, x + taken))
            there.difference_update(range(y, y + taken))
    return out
