"""Register files: aligned groups around exclusions; launch bounds; the count that costs no occupancy."""

from pathlib import Path
from unittest import mock

import pytest

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.errors import RegisterPressureError, UnsupportedError
from gwatch.rewrite import Rewriter
from gwatch.rewrite.registers import Allocator, RegisterFile, check_launchable, parse_excluded
from gwatch.sass.arch import arch_by_name, free_ceiling, occupancy

SM90 = arch_by_name("sm_90")


def allocator(
    excluded: dict[str, list[int]] | None = None,
    predicates: frozenset[int] = frozenset(),
    uniforms: frozenset[int] = frozenset(),
) -> Allocator:
    return Allocator(SM90, "kern", uniforms, predicates, parse_excluded(excluded))


def test_a_file_hands_out_aligned_groups_around_what_is_taken() -> None:
    file = RegisterFile("R", 12, 20, frozenset({14}))
    assert [file.take(1), file.take(2), file.take(1), file.take(4)] == [12, 16, 13, None]
    assert file.used == {12, 13, 16, 17}


def test_excluded_registers_are_never_given_out() -> None:
    pool = allocator({"predicate": [6], "uniform_general": [60]})
    assert pool.take("P", 1, "p") == 5
    assert pool.take("UR", 2, "u") == 58
    assert pool.take("UR", 2, "v") == 56


def test_predicates_and_uniform_registers_can_run_out_by_name() -> None:
    with pytest.raises(RegisterPressureError, match=r"\[predicates\]"):
        allocator(predicates=frozenset(range(7))).take("P", 1, "p")
    assert allocator(predicates=frozenset(range(7))).take("P", 1, "p", entry=True) == 6
    with pytest.raises(RegisterPressureError, match=r"\[uniform-registers\]"):
        allocator(uniforms=frozenset(range(0, 63, 2))).take("UR", 2, "u")


@pytest.mark.parametrize(
    ("count", "ceiling"),
    [(4, 32), (32, 32), (33, 40), (40, 40), (80, 80), (81, 96), (97, 128), (129, 168), (169, 255), (255, 255)],
)
def test_the_free_ceiling_keeps_the_occupancy_of_every_launch(count: int, ceiling: int) -> None:
    assert free_ceiling(SM90, count) == ceiling
    for threads in (32, 96, 128, 256, 320, 512, 1024):
        now = occupancy(SM90, count, threads)
        assert not now or occupancy(SM90, ceiling, threads) == now, threads
    following = min(255, ceiling + 1)
    assert ceiling == 255 or any(
        occupancy(SM90, following, threads) < occupancy(SM90, count, threads) for threads in (32, 64, 128)
    )


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


@pytest.mark.parametrize("stated", [8, 24, 40])
def test_registers_that_a_called_function_names_are_not_free_however_low_the_stated_counts(stated: int) -> None:
    cubin = Cubin.from_file(Path(__file__).parent / "data" / "linked_sm90.cubin")
    around = Rewriter(cubin, "linked_kernel").surroundings
    named = [max(view.named("R", certain=True)) for view in (around.view, *around.function_views)]
    assert named == [21, 21]
    with (
        mock.patch.object(KernelDef, "register_count", stated),
        mock.patch.object(around.view, "named", return_value={3}),
    ):
        assert around.first_free == max(22, stated - 2)
