"""The command line as a whole: what is wrong with the arguments is one coded line, whatever the command."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
