"""``gwatch disasm`` and ``gwatch asm`` as commands: files in and out, what is refused, and no nvdisasm anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gwatch.cli.main import main
from gwatch.cuda.binary import Cubin
from gwatch.errors import UnsupportedError

ROOT = Path(__file__).resolve().parent
CUBIN = ROOT / "inspect" / "fixtures" / "vector_copy.cubin"
NAME = "copy_kernel"


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    path = tmp_path / "code.sass"
    assert main(["disasm", str(CUBIN), "--kernel", NAME, "-o", str(path)]) == 0
    return path


def test_a_cubin_goes_through_text_unchanged(listing: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.cubin"
    assert main(["asm", str(listing), "--cubin", str(CUBIN), "-o", str(out)]) == 0
    assert out.read_bytes() == CUBIN.read_bytes()


def test_bare_words_go_through_text_unchanged(listing: Path, tmp_path: Path) -> None:
    words, text, again = tmp_path / "w.bin", tmp_path / "w.sass", tmp_path / "w2.bin"
    assert main(["asm", str(listing), "-o", str(words)]) == 0
    assert words.read_bytes() == Cubin.from_file(CUBIN).get_kerneldef_by_name(NAME).words.tobytes()
    assert main(["disasm", "--raw", "--arch", "sm_90", str(words), "--words", "-o", str(text)]) == 0
    assert main(["asm", str(text), "--raw", "-o", str(again)]) == 0
    assert again.read_bytes() == words.read_bytes()


def test_json_of_both(listing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["disasm", str(CUBIN), "--kernel", NAME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert main(["asm", str(listing), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert told["target"] == made["target"] == "sm_90a"
    assert [row["word"] for row in told["kernels"][0]["instructions"]] == made["kernels"][0]["words"]
    first = told["kernels"][0]["instructions"][0]
    assert first["text"] == "LDC R1, c[0x0][0x28]" and first["control"]["stall"] >= 1


def test_changed_code_is_put_into_the_cubin(listing: Path, tmp_path: Path) -> None:
    text = listing.read_text()
    assert "LDG.E.128 R4, desc[UR4][R8.64] ;" in text
    listing.write_text(text.replace("LDG.E.128 R4, desc[UR4][R8.64] ;", "LDG.E.EF.128 R4, desc[UR4][R8.64] ;"))
    out = tmp_path / "out.cubin"
    assert main(["asm", str(listing), "--cubin", str(CUBIN), "-o", str(out)]) == 0
    before, after = (Cubin.from_file(path).get_kerneldef_by_name(NAME).texts for path in (CUBIN, out))
    (changed,) = [index for index in range(len(before)) if before[index] != after[index]]
    assert after[changed] == "@!P0 LDG.E.EF.128 R4, desc[UR4][R8.64]"


@pytest.mark.parametrize(("old", "new", "code"), [
    ("LDG.E.128 R4, desc[UR4][R8.64] ;", "LDG.E.128 R248, desc[UR4][R8.64] ;", "asm-registers"),
    ("LDG.E.128 R4, desc[UR4][R8.64] ;", "EXIT ;", "control-illegal"),
    ("CS2R R14, SRZ ;", "EXIT ;", "asm-attribute"),
])
def test_code_that_the_rest_of_the_cubin_contradicts_is_refused(
    listing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, code: str
) -> None:
    listing.write_text(listing.read_text().replace(old, new))
    out = tmp_path / "out.cubin"
    assert main(["asm", str(listing), "--cubin", str(CUBIN), "-o", str(out)]) == 2
    assert f"[{code}]" in capsys.readouterr().err and not out.exists()


def test_a_line_without_control_word_does_not_go_into_a_cubin(
    listing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = listing.read_text()
    listing.write_text(text.replace("{stall 1}", "", 1))
    assert main(["asm", str(listing), "-o", str(tmp_path / "words.bin")]) == 0
    assert main(["asm", str(listing), "--cubin", str(CUBIN), "-o", str(tmp_path / "x")]) == 2
    assert "[asm-control]" in capsys.readouterr().err


def test_another_length_is_refused(listing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing.write_text(listing.read_text() + "NOP ; {stall 1}\n")
    assert main(["asm", str(listing), "--cubin", str(CUBIN), "-o", str(tmp_path / "x")]) == 2
    assert "[asm-length]" in capsys.readouterr().err


def test_every_bad_line_is_one_line_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.sass"
    path.write_text(".target sm_90a\nNOPE ;\nNOP ; {stall 99}\n")
    assert main(["asm", str(path), "--json"]) == 2
    shown = capsys.readouterr()
    assert [line.split(" ")[5] for line in shown.err.splitlines()] == ["1:", "14:"]
    assert [problem["code"] for problem in json.loads(shown.out)["problems"]] == ["mnemonic-unknown", "control-range"]


def test_code_without_a_table_is_listed_through_nvdisasm_with_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(arch: object) -> None:
        raise UnsupportedError("isa-missing", "no table")

    monkeypatch.setattr("gwatch.sass.code.isa_for", missing)
    monkeypatch.setattr("gwatch.sass.asm.isa_for", missing)
    assert main(["disasm", str(CUBIN), "--kernel", NAME]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("/*")]
    assert "LDC R1, c[0x0][0x28] ;" in lines[0] and all(" = 0x" in line for line in lines)


@pytest.mark.parametrize(("arguments", "code"), [
    (["disasm", "nothing.cubin"], "cubin-not-found"), (["disasm", "--raw", str(CUBIN)], "arch-needed"),
    (["disasm", "--raw", "--arch", "sm_90a", "nothing.bin"], "words-file"),
    (["disasm", "--raw", "--arch", "sm_90a", str(Path(__file__).parent.parent / "LICENSE")], "words-file"),
    (["disasm", str(CUBIN), "--kernel", "nosuch"], "kernel-not-found"), (["asm", "nothing.sass"], "asm-file"),
    (["disasm", str(CUBIN), "--kernel", "("], "kernel-pattern"),
])
def test_bad_input_is_one_coded_line(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"gwatch: [{code}] ") and shown.err.count("\n") == 1 and not shown.out


@pytest.mark.parametrize("arguments", [
    ["disasm", str(CUBIN), "--plain"], ["inspect", str(CUBIN), "--sass"],
    ["rewrite", str(CUBIN), "--kernel", NAME, "--list"],
], ids=" ".join)
def test_both_engines_say_the_same(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for engine in ("tables", "nvdisasm"):
        assert main([*arguments, "--engine", engine]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and "LDG.E.128" in told[0]
