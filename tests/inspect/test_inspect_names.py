"""Names from the input are shown without what a terminal would obey; paths are taken at their word."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from inspect_support import COPY_CUBIN, FIXTURES

from gwatch.cli.main import main
from gwatch.cuda.program.launches import table_lines
from gwatch.cuda.program.names import demangled
from gwatch.errors import KernelError
from gwatch.inspect.demangle import demangle, short

# As long as the name in the fixture, so that nothing moves.
NAME = b"c\x1b[31m\nk\x07\x9b."
SHOWN = r"c\x1b[31m\x0ak\x07"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    path = tmp_path / "hostile.cubin"
    path.write_bytes(COPY_CUBIN.replace(b"copy_kernel", NAME[:9] + b"rr"))
    return str(path)


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "{}"],
        ["inspect", "{}", "{}", str(FIXTURES / "libtwo.so")],
        ["inspect", "{}", "--vectorization"],
        ["inspect", "{}", "--sass"],
        ["inspect", "{}", "--sass-style", "nvdisasm"],
        ["inspect", "{}", "--sass-style", "nvdisasm-sections"],
        ["inspect", "{}", "--json"],
        ["inspect", "{}", "--forbid", "LDG"],
        ["inspect", "{}", "--forbid", "LDG", "--format", "github"],
        ["inspect", "{}", "--kernel", "nothing"],
        ["diff", "{}", str(FIXTURES / "libtwo.so")],
        ["diff", "{}", str(FIXTURES / "libtwo.so"), "--stat"],
        ["diff", "{}", str(FIXTURES / "vector_copy.cubin")],
        ["check", "{}"],
        ["disasm", "{}"],
        ["disasm", "{}", "--kernel", "nothing"],
        ["rewrite", "{}", "--list"],
        ["rewrite", "{}", "--kernel", "nothing", "--list"],
    ],
)
def test_no_command_prints_what_a_terminal_obeys(
    command: list[str], hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([hostile if word == "{}" else word for word in command])
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "31m\nk" not in text
    assert said.out + said.err


def test_names_are_shown_escaped(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", hostile]) == 0
    assert f"  kernel {SHOWN}rr\n" in capsys.readouterr().out
    name = NAME.decode("latin-1")
    assert demangle(name) == short(name) == demangled(name) == r"c\x1b[31m\x0ak\x07\x9b."
    row = {
        "kernel": name, "demangled": demangled(name), "launches": 1, "autotuning": 0,
        "estimated_ns": 1, "timed": 1, "captured": 0,
        "shapes": [], "registers": 8, "origin": "Triton", "traceable": "yes",
    }  # fmt: skip
    assert not any(character in line for line in table_lines([row]) for character in "\x1b\x07\n")
    error = KernelError("kernel-not-found", f"no kernel {name}", f"near it: {name}", [name])
    assert not any(character in str(error) for character in "\x1b\x07\n")


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", ""],
        ["inspect", "{}", "--extract", ""],
        ["inspect", "{}", "-o", ""],
        ["inspect", "{}", "--rules", ""],
        ["diff", "", "{}"],
        ["diff", "{}", ""],
        ["check", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    command: list[str], hostile: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(hostile).parent)
    assert main([hostile if word == "{}" else word for word in command]) == 2
    assert "an empty path names no" in capsys.readouterr().err
    assert [path.name for path in Path(hostile).parent.iterdir()] == ["hostile.cubin"]


def test_a_folder_that_may_not_be_read_is_named_and_the_rest_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "z.cubin").write_bytes(COPY_CUBIN)
    scandir = os.scandir

    def refuses(path: str) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuses)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [Path(image["path"]).name for image in data["images"]] == ["z.cubin"]
    assert [(Path(item["path"]).name, item["unread"]) for item in data["skipped"]] == [("a", True)]
    assert "Permission denied; check the path and your permission to it" in data["skipped"][0]["reason"]
    assert main(["inspect", str(tmp_path), "--forbid", "BRX"]) == 2
    assert "[not-checked]" in capsys.readouterr().err
    # Named itself, it is an error.
    assert main(["inspect", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "[artifact-unreadable]" in said
    assert "damaged" not in said


@pytest.mark.parametrize("command", ["inspect", "diff", "check", "disasm", "rewrite"])
def test_permission_is_not_called_damage(
    command: str, hostile: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins
    import io

    plain = io.open

    def refuses(file: object, *args: object, **kwargs: object) -> object:
        if str(file) == hostile:
            raise PermissionError(13, "Permission denied", hostile)
        return plain(file, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", refuses)
    monkeypatch.setattr(io, "open", refuses)
    arguments = [command, hostile] + ([str(FIXTURES / "vector_copy.cubin")] if command == "diff" else [])
    assert main(arguments + (["--list"] if command == "rewrite" else [])) == 2
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "damaged" not in said
