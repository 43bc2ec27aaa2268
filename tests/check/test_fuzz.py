"""Broken cubins through parsing, checking and rewriting: coded refusals only. The tool runs many more of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from fuzz import SEEDS, STAGES, mutate, run, seeds

from gwatch.errors import HazardError

COUNTS = {"parse": 1500, "check": 60, "rewrite": 60}


def test_a_mutation_follows_from_its_number() -> None:
    first = [mutate(3, number, seeds()) for number in range(60)]
    assert first == [mutate(3, number, seeds()) for number in range(60)]
    assert len({data for _, data in first}) > 55
    assert {name for name, _ in first} == set(SEEDS)
    originals = {seed.data for seed in seeds()}
    assert sum(data in originals for _, data in first) <= 6, "a mutation changes something"


def test_every_kind_of_field_is_known() -> None:
    kinds = {kind for seed in seeds() for kind in seed.fields}
    assert kinds == {
        "header",
        "sections",
        "segments",
        "symbols",
        "relocations",
        "attributes",
        "code",
        "tables",
        "debug",
    }


@pytest.mark.parametrize("stage", STAGES)
def test_only_coded_refusals_come_out(stage: str) -> None:
    result = run(0, COUNTS[stage], stage, seed=20)
    assert result.faults == []
    assert sum(result.outcomes.values()) == COUNTS[stage]
    assert len(result.outcomes) >= 5, result.outcomes


def test_a_rewrite_that_its_own_replay_refuses_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(data: bytes, rng: object) -> None:
        raise HazardError("hazard", "new instruction 3: clobber")

    monkeypatch.setitem(STAGES, "rewrite", refuse)
    result = run(4, 1, "rewrite", seed=20, keep=tmp_path)
    (fault,) = result.faults
    assert fault["number"] == 4 and str(fault["error"]).startswith("[hazard] new instruction 3: clobber")
    assert (tmp_path / "rewrite-20-4.cubin").read_bytes() == mutate(20, 4, seeds())[1]
