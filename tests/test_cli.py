"""The command line as a whole: what is wrong with the arguments is one coded line, whatever the command."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gwatch import errors
from gwatch.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
BAD = [
    ["rewrite"],
    ["rewrite", "x.cubin", "--depth", "x"],
    ["rewrite", "x.cubin", "--clock", "utc"],
    ["decode", "ring.bin", "--cubin", "x.cubin", "--grid", "a,b"],
    ["decode", "ring.bin", "--cubin", "x.cubin", "--region", "1"],
    *([name, "--no-such-option"] for name in COMMANDS),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_arguments_are_one_coded_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("gwatch: [usage] ") and shown.err.count("\n") == 1
    assert f"gwatch {arguments[0]} --help" in shown.err
    assert " value: " not in shown.err or "int value" in shown.err  # no internal function's name


@pytest.mark.parametrize("module", ["gwatch.rewrite", "gwatch.diff"])
def test_modules_refuse_like_their_commands(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("gwatch: [usage] ") and done.stderr.count("\n") == 1
    assert f"python -m {module} --help" in done.stderr


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command.replace("gwatch", f"{sys.executable} -m gwatch", 1)], cwd=ROOT,
                          env={**os.environ, **environment}, capture_output=True, check=False)


TRACE = "examples/cuda/trace/hopper_product_h200.gwatch"
CUBIN = "examples/cuda/trace/matmul_sm90.cubin"


@pytest.mark.parametrize("arguments", [f"show {TRACE}", "skill", "schema trace", "--help", "--version", "doctor --json",
                                       f"inspect {CUBIN}", f"disasm {CUBIN}", ""])
def test_a_closed_standard_output_is_one_coded_line(arguments: str) -> None:
    done = shell(f"gwatch {arguments} >&-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"gwatch: [no-output] ") and done.stderr.count(b"\n") == 1


def test_a_closed_standard_error_leaves_the_output_alone() -> None:
    done = shell("gwatch show none.json --json 2>&-")
    assert done.returncode == 2 and json.loads(done.stdout)["code"] == "no-file" and done.stderr == b""


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii:strict"},
                                         {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize("arguments", [f"show {TRACE} --human", f"show {TRACE} --diff {TRACE} --human",
                                       f"show {TRACE} --json", "--help", "show --help", f"inspect {CUBIN}",
                                       f"rewrite {CUBIN} --list", f"diff {CUBIN} {CUBIN}"])
def test_what_an_output_cannot_encode_is_told_otherwise(arguments: str, environment: dict[str, str]) -> None:
    done = shell(f"gwatch {arguments}", **environment)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.decode("latin-1" if "latin-1" in environment.values() else "ascii")
    assert b"\\u2588" not in done.stdout and b"Traceback" not in done.stdout


def test_every_command_counts_instructions_without_the_padding(capsys: pytest.CaptureFixture[str]) -> None:
    cubin = str(Path(__file__).resolve().parents[1] / "examples/cuda/trace/matmul_sm90.cubin")

    def said(*arguments: str) -> str:
        main([arguments[0], cubin, *arguments[1:]])
        shown = capsys.readouterr()
        return shown.out + shown.err

    assert json.loads(said("inspect", "--json"))["images"][0]["kernels"][0]["instructions"] == 84
    assert json.loads(said("check", "--json"))["totals"]["instructions"] == 84
    assert "84 instructions and 12 NOPs of padding" in said("rewrite", "--list")
    assert "instructions 0..83 (" in said("rewrite", "--site", "99", "-o", "out.cubin")
    assert len(json.loads(said("disasm", "--json"))["kernels"][0]["instructions"]) == 84 + 12


def test_every_error_says_what_to_do() -> None:
    """Each place that makes an error gives a hint, or its code or class has one."""
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    silent = []
    for path in (Path(errors.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2):
                continue
            kind, code = classes.get(node.func.id), node.args[0]
            if kind is None or not issubclass(kind, errors.GWatchError) or any(k.arg == "hint" for k in node.keywords):
                continue
            text = code.value if isinstance(code, ast.Constant) else ""
            if not kind(str(text), "").hint:
                silent.append(f"{path.name}:{node.lineno} {text}")
    assert silent == []


@pytest.mark.parametrize(("given", "meanwhile"), [(None, "1"), ("3", "3")])
def test_commands_start_no_threads_of_numpys_blas(
    given: str | None, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "OPENBLAS_NUM_THREADS"
    monkeypatch.delenv(variable, raising=False)
    if given is not None:
        monkeypatch.setenv(variable, given)
    seen: dict[str, str | None] = {}
    for name, module in (("inspect", "gwatch.cli.inspect"), ("trace", "gwatch.cli.trace")):
        monkeypatch.setattr(f"{module}.run", lambda args, name=name: seen.update({name: os.environ.get(variable)}) or 0)
    assert main(["inspect", "x.cubin"]) == 0
    assert main(["trace", "--list", "--", "x.py"]) == 0
    assert seen == {"inspect": meanwhile, "trace": given}, "a program that is traced keeps its own"
    assert os.environ.get(variable) == given
