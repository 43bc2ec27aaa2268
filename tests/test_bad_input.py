"""Input that no command can use: one line that says what, where and what to do, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from gwatch.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
MATMUL = ROOT / "examples/cuda/trace/matmul_sm90.cubin"
TRACE = ROOT / "examples/cuda/trace/matmul_h200.gwatch"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that has to refuse; its line."""
    code = main(arguments)
    shown = capsys.readouterr()
    assert code == 2, (arguments, shown)
    assert shown.err.startswith("gwatch: [") and shown.err.count("\n") == 1, (arguments, shown.err)
    return shown.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["rewrite", str(MATMUL), "--site", "3", "-o"],
        ["disasm", str(MATMUL), "-o"],
        ["inspect", str(MATMUL), "-o"],
        ["inspect", str(MATMUL), "--extract"],
        ["show", str(TRACE), "-o"],
        ["trace", "-o"],
    ],
    ids=lambda arguments: " ".join(arguments[::2]),
)
def test_no_folder_is_made_for_an_output(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "mistyped" / "out.html"
    more = ["--", "python", "-c", "0"] if arguments[0] == "trace" else []
    said = refused([*arguments, str(output), *more], capsys)
    assert f"[output-folder] cannot write {output}: {output.parent} does not exist" in said
    assert list(tmp_path.iterdir()) == []
