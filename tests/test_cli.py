"""The command line as a whole: what is wrong with the arguments is one coded line, whatever the command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gwatch import errors
from gwatch.cli.main import COMMANDS, main

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
