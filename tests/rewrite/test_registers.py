"""Choosing physical registers: from R(n-2) up, aligned, around exclusions, within launch bounds."""

import pytest

from gwatch.errors import RegisterPressureError, UnsupportedError
from gwatch.rewrite.registers import Allocator, check_launchable, parse_excluded
from gwatch.sass.arch import arch_by_name

SM90 = arch_by_name("sm_90")


def allocator(
    count: int,
    excluded: dict[str, list[int]] | None = None,
    predicates: frozenset[int] = frozenset(),
    uniforms: frozenset[int] = frozenset(),
) -> Allocator:
    return Allocator(SM90, "kern", count, uniforms, predicates, parse_excluded(excluded), count - 2)


def test_registers_start_above_the_last_one_named_and_the_count_is_highest_plus_three() -> None:
    pool = allocator(14)
    assert pool.take("R", 1, "a") == 12
    assert pool.new_count == 15
    assert pool.take("R", 2, "t") == 14
    assert pool.take("R", 1, "b") == 13
    assert pool.new_count == 18


def test_excluded_registers_are_never_given_out() -> None:
    pool = allocator(14, {"general": [12, 14], "predicate": [6], "uniform_general": [60]})
    assert [pool.take("R", 1, "a"), pool.take("R", 2, "t"), pool.take("R", 1, "b")] == [13, 16, 15]
    assert pool.take("P", 1, "p") == 5
    assert pool.take("UR", 2, "u") == 58
    assert pool.take("UR", 2, "v") == 56


def test_every_kind_of_register_can_run_out_by_name() -> None:
    with pytest.raises(
        RegisterPressureError, match=r"\[registers\] kern: 1 R register for %a: the kernel uses 255"
    ):
        allocator(255).take("R", 1, "a")
    with pytest.raises(RegisterPressureError, match=r"\[predicates\]"):
        allocator(14, predicates=frozenset(range(7))).take("P", 1, "p")
    with pytest.raises(RegisterPressureError, match=r"\[uniform-registers\]"):
        allocator(14, uniforms=frozenset(range(0, 63, 2))).take("UR", 2, "u")


def test_the_last_usable_register_is_r252() -> None:
    pool = allocator(254)
    assert pool.take("R", 1, "a") == 252
    assert pool.new_count == 255
    with pytest.raises(RegisterPressureError):
        pool.take("R", 1, "b")


@pytest.mark.parametrize(
    ("before", "after", "threads", "fits"),
    [
        (64, 72, 1024, False),
        (60, 64, 1024, True),
        (64, 72, 896, True),
        (120, 130, 512, False),
        (64, 72, None, True),
        (72, 80, 1024, True),
    ],
)
def test_launch_bounds(before: int, after: int, threads: int | None, fits: bool) -> None:
    if fits:
        check_launchable(SM90, "kern", before, after, threads)
        return
    with pytest.raises(RegisterPressureError) as caught:
        check_launchable(SM90, "kern", before, after, threads)
    assert caught.value.code == "launch-bounds" and "kern" in str(caught.value)


@pytest.mark.parametrize(
    "excluded", [{"special": [1]}, {"general": [255]}, {"predicate": [7]}, {"general": [True]}]
)
def test_odd_exclusions_are_refused(excluded: dict[str, list[int]]) -> None:
    with pytest.raises(UnsupportedError, match="excluded-registers"):
        parse_excluded(excluded)
