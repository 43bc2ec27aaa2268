"""gwatch diff: output and exit codes."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from gwatch.cli.main import main
from gwatch.cli.schema import schema_text
from gwatch.cuda.binary import Cubin, nvinfo
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.sass.isa import isa_for

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
    assert capsys.readouterr().out == "identical code in the kernel\n"


def test_stat_and_listing(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", ALIGNED, NARROW, "--stat"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{ALIGNED} (sm_90a) → {NARROW} (sm_90a)"
    assert lines[1] == (
        "  copy_kernel: changed (1 control, 1 target, 2 changed, 6 inserted); instructions 26 → 32, "
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


def changed(tmp_path: Path, index: int, bits: int) -> str:
    """The aligned copy with some bits of one instruction's upper half flipped."""
    cubin = Cubin.from_file(ALIGNED)
    (kernel,) = cubin.get_map_kernel_def().values()
    data = bytearray(cubin.data)
    at = kernel.section.offset + 16 * index + 8
    data[at : at + 8] = (int.from_bytes(data[at : at + 8], "little") ^ bits).to_bytes(8, "little")
    path = tmp_path / "changed.cubin"
    path.write_bytes(data)
    return str(path)


def test_a_control_word_that_differs_has_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = changed(tmp_path, 4, 1 << 41)  # the lowest bit of the stall count
    assert main(["diff", ALIGNED, other, "--exit-code"]) == 1
    out = capsys.readouterr().out
    assert "same instructions, other control words" in out
    (row,) = [line for line in out.splitlines() if line.startswith("c ")]
    assert row.startswith("c 0x0040 0x0040  ")
    (change,) = [line for line in out.splitlines() if "stall" in line]
    assert main(["diff", ALIGNED, other, "--json"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["kernels"][0]["instructions"]
    (control,) = step["control"]
    assert (step["fate"], step["first_index"], control["name"]) == ("control", 4, "stall")
    assert change.split() == ["stall", str(control["before"]), "→", str(control["after"])]
    assert abs(control["before"] - control["after"]) == 1


def test_an_operand_that_listings_hide_is_a_difference(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cubin = Cubin.from_file(FIXTURES / "narrow_sm_80.cubin")
    kernel = cubin.get_kerneldef_by_name("wide")
    index = next(i for i, text in enumerate(kernel.texts) if "STG" in text)
    data = bytearray(cubin.data)
    data[kernel.section.offset + 16 * index + 8] ^= 2  # the descriptor's register, bits 64 to 69
    other = tmp_path / "other.cubin"
    other.write_bytes(data)
    assert main(["diff", str(FIXTURES / "narrow_sm_80.cubin"), str(other), "--kernel", "^wide$", "--exit-code"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if "(word 0x" in line]
    assert len(rows) == 2
    assert rows[0].startswith(f"! {index * 16:#06x} {index * 16:#06x}  STG")


def test_bits_of_a_branch_that_listings_hide_are_a_difference(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = FIXTURES / "narrow_sm_90.cubin"
    cubin = Cubin.from_file(path)
    kernel = cubin.get_kerneldef_by_name("tail")
    index = next(i for i, text in enumerate(kernel.texts) if "BRA" in text)
    place = kernel.section.offset + 16 * index
    word = int.from_bytes(cubin.data[place : place + 16], "little")
    isa = isa_for(cubin.arch)
    hidden = next(
        bit for bit in range(64, 105)
        if isa.decode(word ^ 1 << bit).canonical == isa.decode(word).canonical
    )  # fmt: skip
    data = bytearray(cubin.data)
    data[place : place + 16] = (word ^ 1 << hidden).to_bytes(16, "little")
    other = tmp_path / "other.cubin"
    other.write_bytes(data)
    assert main(["diff", str(path), str(other), "--kernel", "^tail$", "--exit-code"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if "(word 0x" in line]
    assert len(rows) == 2 and "BRA" in rows[0]


def test_quiet_means_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ALIGNED, NARROW, "-q", "--json"]) == 1
    assert capsys.readouterr().out == ""


def test_stat_says_where_and_for_which_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    library = str(FIXTURES / "libtwo.so")
    assert main(["diff", library, ALIGNED, "--stat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith("  ")]
    assert [head.rsplit(" ", 1)[1] for head in heads[:-1]] == ["(sm_80)", "(sm_90)", "(sm_90a)"]
    assert all(head.startswith(library) for head in heads[:2])
    assert heads[2] == f"{ALIGNED} (sm_90a)"


def renumbered(data: bytes, one: str, other: str) -> bytes:
    """The cubin with the places of two symbols in its table exchanged, and all that goes by their numbers."""
    elf, out = Cubin.from_bytes(data).elf, bytearray(data)
    table = elf.find(".symtab")
    assert table is not None
    i, j = (next(s.index for s in elf.symbols if s.name == name) for name in (one, other))
    number = {i: j, j: i}
    for a, b in number.items():
        there, here = table.offset + 24 * b, table.offset + 24 * a
        out[there : there + 24] = data[here : here + 24]
    for section in elf.sections:
        if section.name.startswith((".rel.", ".rela.")):
            for at in range(section.offset, section.offset + section.size, section.entry_size):
                (symbol,) = struct.unpack_from("<I", data, at + 12)
                struct.pack_into("<I", out, at + 12, number.get(symbol, symbol))
        elif section.name.startswith(".nv.info."):
            made = [
                record.with_words([number.get(record.words[0], record.words[0]), *record.words[1:]])
                if record.code == Attr.PARAM_CBANK
                else record.with_words(number.get(word, word) for word in record.words)
                if record.code == Attr.EXTERNS
                else record
                for record in nvinfo.parse(elf.content(section))
            ]
            out[section.offset : section.offset + section.size] = nvinfo.serialize(made)
    assert out != data
    return bytes(out)


@pytest.mark.parametrize(
    ("one", "other"),
    [("malloc", "free"), ("malloc", "vprintf"), (".nv.constant0.malloc_kernel", ".nv.constant0.printf_kernel")],
)
def test_numbers_in_the_symbol_table_are_no_difference(
    one: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FIXTURES.parent.parent / "rewrite" / "data" / "control_sm90.cubin"
    second = tmp_path / "second.cubin"
    second.write_bytes(renumbered(path.read_bytes(), one, other))
    assert main(["diff", str(path), str(second), "--exit-code"]) == 0
    assert capsys.readouterr().out.startswith("identical code in all ")


def test_another_symbol_or_another_place_of_the_parameters_is_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FIXTURES.parent.parent / "rewrite" / "data" / "control_sm90.cubin"
    data, cubin, said = path.read_bytes(), Cubin.from_file(path), {}
    names = {symbol.index: symbol.name for symbol in cubin.elf.symbols}
    section = next(s for s in cubin.elf.sections if s.name == ".nv.info.malloc_kernel")
    records = nvinfo.parse(cubin.elf.content(section))
    for code, word, value in (
        (Attr.EXTERNS, 0, next(n for n, name in names.items() if name == "vprintf")),
        (Attr.EXTERNS, 1, 0xFFFFFF),
        (Attr.PARAM_CBANK, 0, next(n for n, name in names.items() if name == ".nv.constant0.printf_kernel")),
        (Attr.PARAM_CBANK, 1, 0x80218),
    ):
        record = next(r for r in records if r.code == code)
        words = [*record.words[:word], value, *record.words[word + 1 :]]
        made = nvinfo.serialize([r.with_words(words) if r is record else r for r in records])
        second = tmp_path / "second.cubin"
        second.write_bytes(data[: section.offset] + made + data[section.offset + section.size :])
        assert main(["diff", str(path), str(second), "--json", "--exit-code"]) == 1
        found = [k for k in json.loads(capsys.readouterr().out)["kernels"] if k["attributes"]]
        assert [(k["name"], [a["name"] for a in k["attributes"]]) for k in found] == [("malloc_kernel", [code.name])]
        said[code, word] = found[0]["attributes"][0]["before"], found[0]["attributes"][0]["after"]
    assert said[Attr.EXTERNS, 0] == ("free malloc", "free vprintf")
    assert said[Attr.EXTERNS, 1] == ("free malloc", "malloc symbol 16777215")
    before = said[Attr.PARAM_CBANK, 0][0]
    assert before.startswith(".nv.constant0 of the kernel 0x")
    place = before.rsplit(" ", 1)[1]
    assert said[Attr.PARAM_CBANK, 0] == (before, f".nv.constant0.printf_kernel {place}")
    assert said[Attr.PARAM_CBANK, 1] == (before, ".nv.constant0 of the kernel 0x80218")
