"""gwatch doctor: what it finds, what it says when things are missing, and that nothing can make it crash."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gwatch.cli import doctor
from gwatch.errors import ToolError

ROOT = Path(__file__).resolve().parents[2]


def by_name() -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine()}


def test_every_part_is_reported_with_a_place() -> None:
    found = by_name()
    for name in (
        "python",
        "gwatch",
        "numpy",
        "lark",
        "nvdisasm",
        "ISA tables",
        "ptxas",
        "driver",
        "cuda-python",
        "CUPTI 13",
        "CUPTI 12",
        "torch",
        "triton",
        "cupy",
        "cutlass (CuTeDSL)",
        "tilelang",
    ):
        assert found[name].where, name
    assert found["numpy"].version == importlib.metadata.version("numpy")
    assert found["nvdisasm"].state == "ok" and Path(found["nvdisasm"].where).is_file()
    assert "sm_90" in found["ISA tables"].version


def test_json_holds_the_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    code = doctor.run(parser.parse_args(["--json"]))
    report = json.loads(capsys.readouterr().out)
    assert report["reads_cubins"] is True
    printed = report["findings"]
    assert [entry["name"] for entry in printed] == [finding.name for finding in doctor.examine()]
    assert code == 0


def test_a_foreign_gwatch_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "0.0.35" if name == "gwatch" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    finding = by_name()["foreign gwatch"]
    assert (finding.state, finding.version) == ("problem", "0.0.35")
    assert "pip uninstall gwatch" in finding.advice
    import argparse

    assert doctor.run(argparse.Namespace(json=False, gpu=False)) == 2
    assert "pip uninstall gwatch" in capsys.readouterr().out


def test_the_exit_code_says_what_works_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gwatch.cli.main import main

    lack = [doctor.Finding("driver", "missing", "", "nowhere", "running kernels", "install it")]
    for findings, plain, gpu in (([], 0, 0), (lack, 0, 2), ([doctor.Finding("numpy", "missing", "", "", "")], 2, 2)):
        monkeypatch.setattr(doctor, "examine", lambda findings=findings: [doctor._python(), *findings])
        assert main(["doctor"]) == plain
        shown = capsys.readouterr()
        assert ("reading and changing cubins: yes" in shown.out) == (plain == 0)
        assert shown.err.startswith("gwatch: [not-ready] ") == (plain == 2)
        assert main(["doctor", "--gpu", "--json"]) == gpu
        report = json.loads(capsys.readouterr().out)
        assert (report["reads_cubins"], report["runs_kernels"]) == (plain == 0, gpu == 0)


def test_a_missing_nvdisasm_is_said_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from gwatch.sass import nvdisasm

    def absent() -> Path:
        raise ToolError("nvdisasm-missing", "nvdisasm is nowhere; looked in A, B", "pip install it")

    monkeypatch.setattr(nvdisasm, "find", absent)
    finding = by_name()["nvdisasm"]
    assert (finding.state, finding.advice) == (
        "absent",
        "pip install it",
    ) and "looked in A, B" in finding.where
    assert "nvdisasm" not in doctor._REQUIRED


def test_a_check_that_breaks_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[doctor.Finding]:
        raise OSError("unreadable")

    monkeypatch.setattr(doctor, "_ptxas", broken)
    found = by_name()
    assert any(finding.state == "problem" and finding.where == "unreadable" for finding in found.values())
    assert "driver" in found and "torch" in found


def test_it_runs_with_nothing_installed() -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "gwatch", "doctor"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "missing  numpy" in done.stdout and "pip install numpy" in done.stdout


def test_cupti_places_name_their_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gwatch.cuda import cupti

    library = tmp_path / "extras/CUPTI/lib64/libcupti.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("GWATCH_CUPTI", "/nowhere/libcupti.so.13")
    monkeypatch.setattr(cupti, "mapped_files", lambda: ["/loaded/libcupti.so.12", "/loaded/other.so"])
    places = cupti.candidates()
    assert [place.origin for place in places[:2]] == ["already loaded", "GWATCH_CUPTI"]
    assert any(
        place.path == str(library) and place.found and place.origin == "CUDA toolkit" for place in places
    )
    monkeypatch.setattr(cupti, "candidates", list)
    monkeypatch.setattr(cupti, "_SONAMES", ("libnosuch.so.13",))
    with pytest.raises(ToolError, match=r"\[cupti-missing\]"):
        cupti.load()
