"""Alignment: shortest scripts, moved runs."""

from __future__ import annotations

import difflib
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.diff.align import align, moved_runs

short_lists = st.lists(st.integers(0, 5), max_size=24)


def lcs_length(a: list[int], b: list[int]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], previous + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@given(short_lists, short_lists)
@settings(max_examples=400, deadline=None)
def test_pairs_are_equal_ascending_and_as_many_as_a_longest_common_subsequence_has(
    a: list[int], b: list[int]
) -> None:
    pairs = align(a, b)
    assert all(a[x] == b[y] for x, y in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in itertools.pairwise(pairs))
    assert len(pairs) == lcs_length(a, b)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_sequences_too_different_for_a_shortest_script_still_align_at_their_unique_items(seed: int) -> None:
    chance = random.Random(seed)
    common = [f"only{i}" for i in range(40)]
    a: list[str] = []
    b: list[str] = []
    for item in common:
        a += [item, *(f"a{chance.randrange(1000)}" for _ in range(3))]
        b += [item, *(f"b{chance.randrange(1000)}" for _ in range(4))]
    pairs = align(a, b, limit=20)
    assert [a[x] for x, _ in pairs] == common == [b[y] for _, y in pairs]


def test_a_thousand_scattered_insertions_are_found_exactly() -> None:
    chance = random.Random(7)
    a = [chance.randrange(30) for _ in range(6000)]
    b: list[int] = []
    places = set(chance.sample(range(6000), 900))
    for x, item in enumerate(a):
        if x in places:
            b.append(1000 + x)
        b.append(item)
    pairs = align(a, b)
    assert len(pairs) == len(a)
    assert set(range(len(b))) - {y for _, y in pairs} == {y for y, item in enumerate(b) if item >= 1000}


def test_align_agrees_with_difflib_where_both_are_exact() -> None:
    a, b = list("abcdefghij"), list("abXcdefYghj")
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    expected = [(m.a + k, m.b + k) for m in blocks for k in range(m.size)]
    assert align(a, b) == expected


def test_a_run_that_stands_elsewhere_is_moved() -> None:
    a = list("0123456789")
    b = list("0156782349")
    pairs = align(a, b)
    gone = [x for x in range(10) if x not in {p for p, _ in pairs}]
    fresh = [y for y in range(10) if y not in {q for _, q in pairs}]
    assert moved_runs(a, b, gone, fresh) in ([(2, 6, 3)], [(5, 2, 4)])


def test_one_item_that_could_stand_in_two_places_is_not_called_moved() -> None:
    a = ["x", "n", "y"]
    b = ["n", "x", "y", "n"]
    assert moved_runs(a, b, [1], [0, 3]) == []


def test_a_unique_single_item_is_moved() -> None:
    assert moved_runs(["q", "a"], ["a", "q"], [0], [1]) == [(0, 1, 1)]
