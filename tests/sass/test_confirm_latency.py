"""The experiments that hold the latency table against hardware, without the hardware: the checker reads their code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import confirm_latency
from confirm_latency import LINE, LONGEST, assemble, dry, pairs, table_says


def test_the_checker_reports_each_run_below_a_limit_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = list(pairs())[::4]
    assert dry(chosen) == 0
    assert f"{len(chosen)} pairs assembled, 0" in capsys.readouterr().out


def test_every_distance_is_there_and_its_pair_in_one_cache_line() -> None:
    chosen = list(pairs())
    assert len(chosen) >= 150 and len({pair.name for pair in chosen}) == len(chosen)
    for pair in chosen[::20]:
        _, places = assemble(pair, "sm_90")
        assert sorted(places) == list(range(1, LONGEST + 1))
        for distance, consumer in places.items():
            producer = consumer - 1 - (distance > 11)
            assert producer // LINE == consumer // LINE and producer % LINE >= 3
        assert table_says(pair, "sm_90")[0] <= LONGEST


def test_the_host_kernel_has_room() -> None:
    words, _ = assemble(next(pairs()), "sm_90")
    assert len(words) < 900, "its 1,536 multiplications are overwritten"
    assert confirm_latency.LANES == 32
