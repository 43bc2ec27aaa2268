"""Input that no command can use: one line that says what, where and what to do, exit code 2, and nothing written."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gwatch._kinds import kind_of
from gwatch.cli.main import main
from gwatch.cuda.binary.elf import SHDR, Elf

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


# a cubin that is none
# -----------------------------------------------------------------------------------------------------

GOOD = MATMUL.read_bytes()
_ELF = Elf(GOOD)


def _section(prefix: str, field: int, value: int) -> bytes:
    """The cubin with a number in the header of the first section so named changed."""
    section = next(section for section in _ELF.sections if section.name.startswith(prefix))
    data = bytearray(GOOD)
    form = "<I" if field in (4, 40, 44) else "<Q"
    struct.pack_into(form, data, _ELF.header.shoff + SHDR.size * section.index + field, value)
    return bytes(data)


def _architecture(number: int) -> bytes:
    return GOOD[:49] + bytes([number]) + GOOD[50:]


CODE = next(section for section in _ELF.sections if section.name.startswith(".text."))
DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut in half": (lambda: GOOD[: len(GOOD) // 2], "elf-bounds"),
    "cut in its header": (lambda: GOOD[:40], "elf-truncated"),
    "sm_50": (lambda: _architecture(50), "arch-unknown"),
    "sm_200": (lambda: _architecture(200), "arch-unknown"),
    "attributes inside the code": (lambda: _section(".nv.info.matmul", 24, CODE.offset + 16), "elf-overlap"),
    "code inside the header": (lambda: _section(".text.", 24, 0), "elf-overlap"),
    "code without end": (lambda: _section(".text.", 32, 1 << 50), "elf-bounds"),
    "half an instruction": (lambda: _section(".text.", 32, CODE.size - 8), "text-size"),
    "no strings": (lambda: _section(".symtab", 40, 999), "elf-index"),
    "an alignment of 3": (lambda: _section(".text.", 48, 3), "elf-align"),
}
READERS = [
    ["inspect", "FILE"],
    ["inspect", "--sass", "FILE"],
    ["inspect", "--json", "FILE"],
    ["check", "FILE"],
    ["rewrite", "FILE", "--list"],
    ["rewrite", "FILE", "--site", "3", "-o", "OUT"],
    ["disasm", "FILE", "-o", "OUT"],
    ["diff", "FILE", str(MATMUL)],
    ["diff", str(MATMUL), "FILE", "--json"],
]


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_named_by_every_reader(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, code = DAMAGED[kind]
    bad = tmp_path / "bad.cubin"
    bad.write_bytes(make())
    for reader in READERS:
        arguments = [{"FILE": str(bad), "OUT": str(tmp_path / "out.cubin")}.get(word, word) for word in reader]
        said = refused(arguments, capsys)
        assert f"[{code}]" in said and str(bad) in said, (arguments, said)
    assert list(tmp_path.iterdir()) == [bad]


def test_a_damaged_member_is_named_and_others_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "x.whl"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("good.cubin", GOOD)
        archive.writestr("bad.cubin", GOOD[:5000])
    assert main(["inspect", str(package)]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "bad.cubin" in shown.out and "kernel matmul" in shown.out
    said = refused(["check", str(package)], capsys)
    assert f"[not-checked] [elf-bounds] {package}!bad.cubin" in said
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("bad.cubin", GOOD[:5000])
    assert f"[elf-bounds] {package}!bad.cubin" in refused(["inspect", str(package)], capsys)


def test_code_that_cannot_be_checked_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.cubin"
    bad.write_bytes(GOOD[: CODE.offset] + b"\xff" * CODE.size + GOOD[CODE.offset + CODE.size :])
    assert refused(["check", str(bad)], capsys).startswith(f"gwatch: [not-checked] {bad}: matmul: [word-unknown]")
    relocations = next(section for section in _ELF.sections if section.name == ".rela.debug_line")
    bad.write_bytes(GOOD[: relocations.offset + 8] + b"\xff" * 8 + GOOD[relocations.offset + 16 :])
    for arguments in (["check", str(bad)], ["rewrite", str(bad), "--site", "3", "-o", str(tmp_path / "out.cubin")]):
        assert f"[elf-relocation] {bad}: .rela.debug_line" in refused(arguments, capsys)


# another kind of file
# -----------------------------------------------------------------------------------------------------

KINDS: dict[str, bytes] = {
    "a cubin": GOOD,
    "a library or program": Path("/bin/sh").read_bytes()[:4096],
    "a fat binary": (ROOT / "tests/inspect/fixtures/two.fatbin").read_bytes(),
    "an archive": b"PK\x05\x06" + bytes(18),
    "a trace": TRACE.read_bytes()[:4096],
    "a report's page": b"<!doctype html>\n<html></html>",
    "a timeline for another viewer": b'{"displayTimeUnit":"ns","traceEvents":[]}',
    "a picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a ring file": b"GWRING1\n\x02\0\0\0{}",
    "a site map": b'{"version":1,"kernel":"k","arch":"sm_90","descriptor_symbol":"d"}',
    "facts from `gwatch inspect`": b'{"format": "gwatch-inspect"}',
    "a saved comparison": b'{\n "format": "gwatch-diff"}',
    "SASS text": b".target sm_90\n.kernel k\n",
    "PTX text": b"//\n// made by nvcc\n//\n\n.version 8.0\n.target sm_90\n",
}
ARTIFACTS = {"a cubin", "a library or program", "a fat binary", "an archive"}
TAKEN: list[tuple[list[str], set[str]]] = [
    (["inspect", "FILE"], ARTIFACTS),
    (["check", "FILE"], ARTIFACTS),
    (["diff", "FILE", str(MATMUL)], ARTIFACTS),
    (["rewrite", "FILE", "--list"], {"a cubin"}),
    (["disasm", "FILE"], {"a cubin"}),
    (["disasm", "--raw", "--arch", "sm_90", "FILE"], set()),
    (["check", str(MATMUL), "--original", "FILE"], {"a cubin"}),
    (["asm", "FILE"], {"SASS text"}),
    (["decode", "FILE", "--cubin", str(MATMUL)], {"a ring file"}),
    (["decode", str(ROOT / "README.md"), "--cubin", "FILE"], {"a cubin", "a site map"}),
    (["show", "FILE"], {"a trace"}),
    (["show", str(TRACE), "--diff", "FILE"], {"a trace"}),
]


@pytest.mark.parametrize(("command", "taken"), TAKEN, ids=[" ".join(command) for command, _ in TAKEN])
def test_another_kind_of_file_is_named_with_its_reader(
    command: list[str], taken: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    for kind in KINDS.keys() - taken:
        file.write_bytes(KINDS[kind])
        said = refused([str(file) if word == "FILE" else word for word in command], capsys)
        assert f"[wrong-kind] {file} is {kind}" in said and "; " in said, said


def test_a_perfetto_trace_is_no_report_and_texts_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(TRACE), "-o", str(tmp_path / "t.pftrace")]) == 0
    capsys.readouterr()
    file = tmp_path / "file"
    file.write_bytes((tmp_path / "t.pftrace").read_bytes())
    said = refused(["show", str(file)], capsys)
    assert f"[wrong-kind] {file} is a timeline for another viewer" in said and "; " in said
    # The protocol's smallest traces: one packet of one field; two packets.
    for data, kind in ((b"\n\x06\x08\x01\x10\x02\x18\x03", True), (b"\n\x02\x08\x01" * 3, True),
                       (b"\n\n  {}\n", False), (b"\n\x02\x08\x01\n\x02\x08\x01XXXXXXXX", False), (b"\n", False)):
        file.write_bytes(data)
        assert (kind_of(file) == "a timeline for another viewer") == kind, data


def test_an_input_is_never_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, text = tmp_path / "x.cubin", tmp_path / "x.sass"
    copy.write_bytes(GOOD)
    assert main(["disasm", str(copy), "-o", str(text)]) == 0
    before = text.read_bytes()
    for arguments in (
        ["disasm", str(copy)],
        ["inspect", str(copy)],
        ["rewrite", str(copy), "--site", "3"],
        ["asm", str(text), "--cubin", str(copy)],
    ):
        assert "[output-is-input]" in refused([*arguments, "-o", str(copy)], capsys)
    assert "[output-is-input]" in refused(["asm", str(text), "-o", str(text)], capsys)
    assert (copy.read_bytes(), text.read_bytes()) == (GOOD, before)
    report = tmp_path / "t.gwatch"
    report.write_bytes(TRACE.read_bytes())
    assert "[output-is-input]" in refused(["show", str(report), "-o", str(report), "--force"], capsys)
    assert report.read_bytes() == TRACE.read_bytes()


# arguments
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "FILE", "--jobs", "0"], "usage"),
        (["inspect", "FILE", "--require", "has"], "rule-syntax"),
        (["inspect", "FILE", "--forbid", "kernel:copy"], "rule-syntax"),
        (["inspect", "FILE", "--max-registers", "0"], "rule-syntax"),
        (["diff", "FILE", "FILE", "-U", "-1"], "usage"),
        (["disasm", "FILE", "--arch", "sm_80"], "usage"),
        (["decode", "README", "--cubin", "FILE", "-o", "out.foo"], "unknown-format"),
        (["trace", "--site", "op:", "--", "python", "-c", "0"], "site-syntax"),
        (["trace", "--site", "12,warm", "--", "python", "-c", "0"], "site-syntax"),
        (["trace", "--region", "a=1", "--", "python", "-c", "0"], "region-syntax"),
        (["trace", "--region", "a=1..zz", "--", "python", "-c", "0"], "site-syntax"),
        (["trace", "--scope", "1=a", "--scope", "1=b", "--", "python", "-c", "0"], "option-conflict"),
        (["trace", "--ring-bytes", "0", "--", "python", "-c", "0"], "option-range"),
        (["trace", "--timeout", "nan", "--", "python", "-c", "0"], "option-range"),
        (["trace", "--list", "-o", "x.html", "--", "python", "-c", "0"], "usage"),
        ([], "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_arguments_that_mean_nothing_are_refused_before_anything_runs(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"FILE": str(MATMUL), "README": str(ROOT / "README.md")}
    said = refused([paths.get(word, word) for word in arguments], capsys)
    assert said.startswith(f"gwatch: [{code}] ") and "; " in said
