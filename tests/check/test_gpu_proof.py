"""The runner of everything that needs a GPU: what fails, hangs or is left out is named, and the rest goes on."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_proof", ROOT / "tools" / "gpu_proof.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_step_names_a_program_and_modules_that_exist(proof: ModuleType) -> None:
    names = [step.name for step in proof.STEPS]
    assert len(set(names)) == len(names)
    for step in proof.STEPS:
        (script,) = [part for part in step.command if part.endswith(".py")]
        assert (ROOT / script).is_file(), step.name
        if "--modules" in step.command:
            for module in step.command[-1].split(","):
                assert (ROOT / "tools" / "gpu_checks" / f"{module}.py").is_file(), module


def test_no_check_and_no_test_file_is_forgotten(proof: ModuleType) -> None:
    commands = [step.command for step in proof.STEPS]
    modules = {name for command in commands if "--modules" in command for name in command[-1].split(",")}
    checks = {path.stem for path in (ROOT / "tools" / "gpu_checks").glob("*.py")}
    assert modules == checks - {"__init__", "support", "pairs"}
    files = {Path(part).name for command in commands for part in command if part.startswith("tests/gpu/")}
    assert files == {path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py")}


def test_failures_hangs_and_what_is_left_out_are_named(proof: ModuleType, tmp_path: Path) -> None:
    steps = [
        proof.Step("good", ("-c", "print('all well')"), 50),
        proof.Step("bad", ("-c", "print('FAIL here'); raise SystemExit(1)"), 50),
        proof.Step("hangs", ("-c", "import time; print('begun', flush=True); time.sleep(600)"), 1.5),
        proof.Step("last", ("-c", "print('measured')"), 50, True),
    ]
    outcomes = proof.prove(steps, 600.0, 2, tmp_path)
    outcomes += proof.prove([proof.Step("too late", ("-c", "print('never')"), 50)], 1.0, 2, tmp_path)
    assert [(o.name, o.verdict) for o in outcomes] == [
        ("good", "ok"), ("bad", "FAIL"), ("hangs", "TIMEOUT"), ("last", "ok"), ("too late", "left out"),
    ]  # fmt: skip
    assert [o.last for o in outcomes[:2]] == ["all well", "FAIL here\nFAIL here"]
    assert outcomes[2].last == "begun"
    proof.write(outcomes, "a GPU", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert [step["verdict"] for step in facts["steps"]] == [o.verdict for o in outcomes]
    assert "| bad | FAIL |" in (tmp_path / "out" / "proof.md").read_text()
    with tarfile.open(tmp_path / "out" / "logs.tar.gz") as archive:
        assert archive.extractfile("hangs.log").read() == b"begun\n"
