"""Which blocks lie on every way, against the definition itself."""

from __future__ import annotations

from hypothesis import given, strategies

from gwatch.inspect.order import _Tree

COUNT = 8


def reached(after: list[list[int]], roots: list[int], without: int | None) -> set[int]:
    met: set[int] = set()
    work = [root for root in roots if root != without]
    while work:
        block = work.pop()
        if block not in met:
            met.add(block)
            work += [other for other in after[block] if other != without]
    return met


@given(
    strategies.lists(strategies.lists(strategies.integers(0, COUNT - 1), max_size=2), min_size=COUNT, max_size=COUNT),
    strategies.lists(strategies.integers(0, COUNT - 1), min_size=1, max_size=2, unique=True),
)
def test_a_block_is_over_another_if_nothing_comes_there_without_it(
    after: list[list[int]], roots: list[int]
) -> None:
    before = [[block for block in range(COUNT) if other in after[block]] for other in range(COUNT)]
    tree = _Tree(before, after, roots)
    everywhere = reached(after, roots, None)
    for block in everywhere:
        left = reached(after, roots, block)
        for other in everywhere:
            assert tree.over(block, other) == (other not in left)
