"""gwatch diff: output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from gwatch.cli.main import main
from gwatch.cli.schema import schema_text

FIXTURES = Path(__file__).resolve().parent.parent / "inspect" / "fixtures"
ALIGNED, NARROW = str(FIXTURES / "triton/aligned.cubin"), str(FIXTURES / "triton/in_unaligned.cubin")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([ALIGNED, ALIGNED], 0),
        ([ALIGNED, ALIGNED, "--exit-code"], 0),
        ([ALIGNED, ALIGNED, "--fail-on", "any"], 0),
        ([ALIGNED, NARROW], 0),
        ([ALIGNED, NARROW, "--exit-code"], 1),
        ([ALIGNED, NARROW, "-q"], 1),
        ([ALIGNED, NARROW, "--fail-on", "any"], 1),
        ([ALIGNED, NARROW, "--fail-on", "vector-width"], 1),
        ([NARROW, ALIGNED, "--fail-on", "vector-width"], 0),
        ([ALIGNED, NARROW, "--fail-on", "registers", "--fail-on", "spill"], 0),
        ([ALIGNED, "/nowhere.cubin"], 2),
        ([ALIGNED, NARROW, "--kernel", "nothing"], 2),
        ([ALIGNED, NARROW, "--kernel", "("], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *arguments]) == code
    if "-q" in arguments:
        assert capsys.readouterr().out == ""


def test_identical_code_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", ALIGNED, ALIGNED])
    assert capsys.readouterr().out == "identical code in all 1 kernels\n"


def test_stat_and_listing(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", ALIGNED, NARROW, "--stat"])
    assert capsys.readouterr().out.splitlines()[0] == (
        "copy_kernel: changed (1 control, 1 target, 2 changed, 6 inserted); instructions 26 → 32, "
        "share of 128-bit global accesses 1.0 → 0.2"
    )
    main(["diff", ALIGNED, NARROW])
    out = capsys.readouterr().out
    assert "! 0x0110 0x0110  @!P0 LDG.E.128 R4, desc[UR4][R2.64]\n" in out
    assert "+        0x0120  @!P0 LDG.E R5, desc[UR4][R2.64+0x4]\n" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", ALIGNED, NARROW, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (data["format"], data["differs"]) == ("gwatch-diff", True)
    (kernel,) = data["kernels"]
    assert kernel["counts"] == {"same": 22, "control": 1, "target": 1, "changed": 2, "inserted": 6}
    assert {row["fate"] for row in kernel["instructions"]} == {"control", "target", "changed", "inserted"}


@pytest.mark.parametrize("second", [NARROW, ALIGNED, str(FIXTURES / "narrow_sm_90.cubin"), str(FIXTURES / "libtwo.so")])
def test_the_schema_holds_for_what_is_printed(second: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", ALIGNED, second, "--json"])
    jsonschema.validate(json.loads(capsys.readouterr().out), json.loads(schema_text("diff")))


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "gwatch.diff", ALIGNED, NARROW, "--fail-on", "vector-width", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "gwatch: vector-width: copy_kernel: changed\n"


def test_what_cannot_be_read_is_compared_by_its_bytes_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = bytearray(Path(ALIGNED).read_bytes())
    old = bytearray(image)
    old[49] = 35  # an architecture that gwatch does not know
    sides = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "k.cubin").write_bytes(image)
        (folder / "old.cubin").write_bytes(old)
        sides.append(folder)
    arguments = ["diff", *map(str, sides), "--exit-code"]
    assert main(arguments) == 0
    assert "not compared" in capsys.readouterr().out
    (sides[1] / "old.cubin").write_bytes(old + b"\0")
    assert main(arguments) == 1
    assert "has other bytes" in capsys.readouterr().out
    (sides[1] / "old.cubin").write_bytes(old)
    (sides[1] / "more.zip").write_bytes(b"PK\x03\x04 damaged")
    assert main(arguments) == 2
    assert "[not-compared]" in capsys.readouterr().err
    assert main(arguments[:-1]) == 0
