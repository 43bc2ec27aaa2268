"""The torture tool on a few kernels: rewrites are proved, and faults planted in them are all reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from torturing import offline  # noqa: E402
from torturing.cases import make_case, place_weights, random_snippet, rng_of  # noqa: E402
from torturing.generate import source  # noqa: E402
from torturing.mutations import KINDS, plant_all  # noqa: E402
from torturing.offline import Report, Tally, Task, do_task  # noqa: E402
from torturing.pool import Done  # noqa: E402
from torturing.proof import Outcome, prove  # noqa: E402

from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.cuda.program.places import Places  # noqa: E402
from gwatch.rewrite import Rewriter  # noqa: E402
from gwatch.rewrite.trace import SassTraceSite, _check_sites  # noqa: E402

CUBINS = [
    "binary/data/holders_sm90.cubin",
    "trace_command/pipeline.cubin",
    "inspect/fixtures/vector_copy.cubin",
]


def test_a_case_follows_from_its_seed() -> None:
    cubin = Cubin.from_file(ROOT / "tests" / CUBINS[0])
    kernel = next(iter(cubin.get_map_kernel_def().values()))
    one, two, other = (make_case(cubin, kernel, 4, "file", number) for number in (7, 7, 8))
    assert (one.sites, one.snippets, one.clock) == (two.sites, two.snippets, two.clock)
    assert (one.sites, one.snippets) != (other.sites, other.snippets)
    assert rng_of(1, "a", "b", 2).random() == rng_of(1, "a", "b", 2).random()
    assert random_snippet(rng_of(1, "a", "b", 3), 0).text == random_snippet(rng_of(1, "a", "b", 3), 0).text


def test_sites_fall_in_loops() -> None:
    cubin = Cubin.from_file(ROOT / "tests" / CUBINS[1])
    (kernel,) = cubin.get_map_kernel_def().values()
    around = Rewriter(cubin, kernel).surroundings
    weights = place_weights(around.cfg, around.padding)
    assert len(weights) == around.padding and min(weights) == 1.0 and max(weights) >= 4.0


@pytest.mark.parametrize("name", CUBINS)
def test_rewrites_are_proved_and_planted_faults_are_caught(name: str) -> None:
    cubin = Cubin.from_file(ROOT / "tests" / name)
    planted: Counter[str] = Counter()
    proved = 0
    kernel = min(cubin.get_map_kernel_def().values(), key=lambda item: len(item.words))
    for number in (1, 2, 3):
        case = make_case(cubin, kernel, 3, name, number)
        case = case.part(range(min(len(case), 6)))
        outcome = prove(case)
        assert outcome.wrong == []
        proved += outcome.proved
        if outcome.good:
            for kind, (seeds, caught, missed) in plant_all(case.part(outcome.good)).items():
                planted[kind] += seeds
                assert caught == seeds, missed
    assert proved >= 2
    assert {kind for kind, count in planted.items() if count} >= {"stall", "target", "original"}, planted
    assert planted.keys() == {*KINDS, "offset", "table"}


def test_generated_kernels_are_the_same_each_time() -> None:
    assert source(12) == source(12) != source(13)
    text = "\n".join(source(number) for number in range(12))
    for part in (
        "switch (",
        "__shfl_xor_sync",
        "__noinline__",
        "__syncthreads",
        "__launch_bounds__",
        "// TORTURE g",
    ):
        assert part in text


def test_the_command_prints_one_object() -> None:
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tools" / "torture.py",
            "--kernels",
            ROOT / "tests" / CUBINS[1],
            "--sites",
            "4",
            "--seed",
            "2",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == 0 and result["proved"] >= 1 and result["planted"] == result["caught"]


def test_a_survey_also_builds_what_trace_records_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "tests" / CUBINS[1]
    (kernel,) = Cubin.from_file(path).get_map_kernel_def()
    task = Task(path, kernel, 0, 5, plant=False, survey=True)
    found = do_task(task)
    assert found.outcome.own == [] and found.outcome.proved == 2 and found.outcome.rewrites >= 3
    tally = Tally()
    tally.count(Done(task, found), "sm_90a")
    assert tally.result()["kernels_refused"] == 0
    monkeypatch.setattr(offline, "lifetimes", lambda kernel: Places((SassTraceSite(10**6),)))
    bad = do_task(task)
    assert bad.outcome.own == ["site-range"]
    tally = Tally()
    tally.count(Done(task, bad), "sm_90a")
    assert tally.result()["kernels_refused"] == 1, "nobody asked for that site"


@pytest.mark.parametrize(("code", "refused"), [("site-reuse", 0), ("site-unreachable", 0), ("registers", 1)])
def test_one_site_s_refusal_is_not_the_kernel_s(code: str, refused: int) -> None:
    task = Task(Path("a.cubin"), "kernel", 0, 5, plant=False)
    tally = Tally()
    tally.count(Done(task, Report("sm_90", Outcome(refused={code: 1}))), "sm_90")
    assert tally.result()["kernels_refused"] == refused


@pytest.mark.parametrize("name", CUBINS)
def test_registers_that_are_asked_for_are_those_that_something_may_have_written(name: str) -> None:
    cubin = Cubin.from_file(ROOT / "tests" / name)
    for kernel in cubin.get_map_kernel_def().values():
        for number in range(4):
            case = make_case(cubin, kernel, 9, name, number, snippets=False)
            _check_sites(Rewriter(cubin, kernel), case.sites)
