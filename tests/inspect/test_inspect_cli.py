"""The command: text, JSON, GitHub lines, exit codes, the same output whatever the parallelism."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from inspect_support import COPY_CUBIN, COPY_NAME, FIXTURES, TRITON, WRAPPER, cuobjdump, fatbin, make_pt2

from gwatch.cli.main import main
from gwatch.cuda.binary import Cubin
from gwatch.inspect.demangle import demangle, short
from gwatch.inspect.report import load_schema
from gwatch.rewrite.trace import SassTraceSite, plan_trace

RULE = "kernel:copy.* has LDG.E.128 >= 2"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return make_pt2(tmp_path / "model.pt2", WRAPPER, {COPY_NAME: COPY_CUBIN})


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    wrapper = WRAPPER.replace("(0,): [['tt.divisibility', 16]], ", "")
    return make_pt2(tmp_path / "bad.pt2", wrapper, {COPY_NAME: (TRITON / "in_unaligned.cubin").read_bytes()})


def test_the_question_in_one_screen(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(good), "--vectorization", "--require", RULE]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 25
    assert "global loads and stores of copy_kernel: 4 warps (128 threads), B=1024, ALIGN=True" in out
    assert (
        "0x0110  LDG.E.128                @!P0   128    16  i *fp32               16  23: tl.store(o + off"
        in out
    )
    assert "4 of 4 are 128 bits wide or more" in out


def test_a_broken_rule_ends_with_1_and_says_why(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bad), "--require", RULE]) == 1
    out = capsys.readouterr().out
    assert f"FAIL [{RULE}] in kernel copy_kernel of {bad}!" in out
    assert "at 0x0110: @!P0 LDG.E R4, desc[UR4][R2.64]" in out
    assert "divisibility: i (*fp32) has no tt.divisibility" in out


def test_github_lines(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bad), "--require", RULE, "--format", "github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=")
    assert ",line=10,title=kernel%3Acopy.* has LDG.E.128 >= 2::copy_kernel: 0 × LDG.E.128" in line


def test_json_follows_its_schema(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "inspect",
        str(bad),
        str(FIXTURES / "libtwo.so"),
        "--json",
        "--vectorization",
        "--lines",
        "--sass",
    ]
    assert main([*arguments, "--require", RULE, "--require", "kernel:nothing has LDG"]) == 1
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, load_schema())
    assert [image["kind"] for image in data["images"]] == ["member", "fatbin", "fatbin"]
    assert data["images"][0]["violations"][0]["pc"] == 0x110
    assert data["unmatched_rules"][0]["message"] == "no kernel matches 'nothing'"
    kernel = data["images"][0]["kernels"][0]
    assert kernel["vectorization"]["accesses"][0]["cause"]["argument"] == "i"
    assert {row["line"] for row in kernel["lines"]} == {6, 7, 8, 9, 10, 11}
    assert (
        sum(row["instructions"] for row in kernel["lines"]) == kernel["code_bytes"] // 16
    )  # padding has a line too
    assert "Function : copy_kernel" in data["images"][0]["sass"]
    loose = {"const": "gwatch-inspect"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "format": loose}, load_schema())


def test_loops_have_nesting_and_source_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / "nested.cubin"), "--lines", "--json"]) == 0
    kernel = json.loads(capsys.readouterr().out)["images"][0]["kernels"][0]
    found = [(loop["depth"], loop["lines"]["first"], loop["lines"]["last"]) for loop in kernel["loops"]]
    assert found == [(1, 4, 9), (2, 7, 8)]
    assert main(["inspect", str(FIXTURES / "nested.cubin"), "--lines"]) == 0
    assert "depth 2, 7 instructions, loop.cu:7-8" in capsys.readouterr().out


def test_input_of_a_linker_is_told_from_what_a_driver_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(COPY_CUBIN)
    data[16] = 1  # ELF type REL
    for name, content, relocatable in (("whole.cubin", COPY_CUBIN, False), ("part.cubin", data, True)):
        path = tmp_path / name
        path.write_bytes(content)
        assert main(["inspect", "--json", str(path)]) == 0
        (image,) = json.loads(capsys.readouterr().out)["images"]
        assert image["relocatable"] is relocatable
        assert main(["inspect", str(path)]) == 0
        assert (", relocatable (linked before it runs)" in capsys.readouterr().out) is relocatable


def test_output_does_not_depend_on_the_number_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", str(TRITON), "--json", "--vectorization"]
    outputs = []
    for jobs in ("1", "2"):
        assert main([*arguments, "--jobs", jobs]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])["images"]) > 10


def test_an_output_file_and_listings(good: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    assert main(["inspect", str(good), "--sass", "-o", str(target)]) == 0
    assert target.read_text().startswith("\n\tcode for sm_90a\n")


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "none")]) == 2
    assert "[artifact-not-found]" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--kernel", "("]) == 2
    assert "[kernel-pattern]" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--executor", "slurm:x"]) == 2
    assert "[executor-spec]" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--require", "has LDG >= 1"]) == 1
    assert "there is no kernel" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--forbid", "STL"]) == 1
    assert "FAIL [forbid STL]: there is no kernel" in capsys.readouterr().out


@pytest.mark.parametrize("how", [[], ["--sass"], ["--resources"], ["--vectorization"], ["--json"]])
def test_a_kernel_that_is_not_there_is_named(how: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    cubin = str(FIXTURES / "vector_copy.cubin")
    assert main(["inspect", cubin, "--kernel", "copy_kernl", *how]) == 2
    said = "gwatch: [kernel-not-found] none of 1 kernels matches 'copy_kernl'; near it: copy_kernel\n"
    assert capsys.readouterr().err == said
    assert main(["inspect", cubin, "--kernel", "copy_kernl", "--fail-on", "narrow"]) == 1


def test_rules_that_hold_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["inspect", str(FIXTURES / "vector_copy.cubin"), "--forbid", "STL", "--max-registers", "64"])
        == 0
    )
    assert capsys.readouterr().out.endswith("2 rules held\n")


def test_a_table_of_many_kernels_shows_short_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURES / "libtwo.so")]) == 0
    out = capsys.readouterr().out
    assert "  scale<double>   " in out
    assert "2 cubins, 6 kernels, 1 other member\n" in out


def test_names() -> None:
    assert demangle("_Z5scaleIfEvPT_S0_") == "void scale<float>(float*, float)"
    assert short("_Z5scaleIfEvPT_S0_") == "scale<float>"
    assert demangle("copy_kernel") == "copy_kernel" == short("copy_kernel")
    assert short("_ZN12_GLOBAL__N_13addEi") == "{anonymous}::add"


def test_the_module_starts_without_slow_imports() -> None:
    code = "import sys, gwatch.cli.inspect; print([m for m in ('numpy', 'lark', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_listings_are_written_in_order_whatever_the_parallelism(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(TRITON / f"{name}.cubin") for name in ("mask", "aligned", "stride")]
    outputs = []
    for jobs in ("1", "2"):
        assert main(["inspect", "--sass", *files, "--jobs", jobs]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == "".join(cuobjdump("-sass", name) for name in files)


def test_rules_do_not_hold_of_what_could_not_be_read(
    tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = ["--forbid", "BRX"]
    assert main(["inspect", str(good), *rule]) == 0
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good.cubin").write_bytes(COPY_CUBIN)
    damaged = folder / "damaged.cubin"
    damaged.write_bytes(COPY_CUBIN[:300] + b"\xff" * 300 + COPY_CUBIN[600:])
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    assert main(["inspect", str(folder), *rule]) == 2
    assert "[not-checked]" in capsys.readouterr().err
    # An architecture that is none of ours is named and not fatal; a missing program is.
    old = bytearray(COPY_CUBIN)
    old[49] = 35
    damaged.write_bytes(old)
    assert main(["inspect", str(folder), *rule]) == 0
    assert "[arch-unknown]" in capsys.readouterr().out
    # Named itself, it is.
    assert main(["inspect", str(good), str(damaged)]) == 2
    said = capsys.readouterr()
    assert (
        said.err.startswith(f"gwatch: [arch-unknown] {damaged}: architecture 'sm_35'")
        and said.err.count("\n") == 1
    )
    assert "copy_kernel" in said.out
    packed = tmp_path / "packed.fatbin"
    packed.write_bytes(fatbin([(90, COPY_CUBIN, "lz4")]))
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    assert main(["inspect", str(packed), *rule, "--format", "github"]) == 2
    caught = capsys.readouterr()
    assert "::warning" in caught.out
    assert "[decompressor-missing]" in caught.err
    assert main(["inspect", str(packed), *rule, "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, load_schema())
    assert [item["unread"] for item in data["skipped"]] == [True]


@pytest.mark.parametrize("name", ["cut.fatbin", "cut.so"])
def test_rules_do_not_hold_of_what_was_cut_off(
    name: str, tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, one = (fatbin([(90, COPY_CUBIN, "zstd"), (80, COPY_CUBIN + b"\0", "zstd")][:count]) for count in (2, 1))
    data, length = (two, len(one) + 100) if name == "cut.fatbin" else ((FIXTURES / "libtwo.so").read_bytes(), 0)
    cut = tmp_path / name
    cut.write_bytes(data[: length or len(data) - 1])
    assert main(["inspect", str(cut), "--forbid", "BRX"]) == 2
    said = capsys.readouterr()
    assert "cut off" in said.out and said.err.startswith("gwatch: [not-checked]") and str(cut) in said.err
    assert main(["inspect", str(cut), "--require", "LDG >= 100000"]) == 1
    cut.write_bytes(data[:50])
    assert main(["inspect", str(good), str(cut), "--forbid", "BRX"]) == 2


def test_without_table_and_nvdisasm_the_resources_are_still_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gwatch.sass.isa.isa._isa", lambda arch: None)
    monkeypatch.setenv("GWATCH_NVDISASM", "/nonexistent")
    path = str(FIXTURES / "narrow_sm_90.cubin")
    assert main(["inspect", path, "--json"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"gwatch: [nvdisasm-missing] {path}: sm_90 has no instruction table")
    data = json.loads(said.out)
    jsonschema.validate(data, load_schema())
    (image,) = data["images"]
    assert "[nvdisasm-missing]" in image["problem"]
    assert {kernel["name"]: kernel["registers"] for kernel in image["kernels"]}["wide"] > 0
    assert all("opcodes" not in kernel for kernel in image["kernels"])
    assert main(["inspect", path]) == 2
    assert "  stride_rows " in capsys.readouterr().out
    assert main(["inspect", path, "--resources"]) == 0
    assert main(["inspect", path, "--max-registers", "255", "--forbid", "STL"]) == 2


def test_resources_alone(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FIXTURES / "libtwo.so")
    assert main(["inspect", path, "--resources", "--json", "--max-registers", "9"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, load_schema())
    assert [len(image["kernels"]) for image in data["images"]] == [3, 3]
    assert main(["inspect", path, "--resources", "--max-registers", "7"]) == 1
    for more in (["--sass"], ["--lines"], ["--vectorization"], ["--forbid", "STL"]):
        assert main(["inspect", path, "--resources", *more]) == 2


@pytest.mark.parametrize("more", [["--vectorization"], ["--lines"]])
def test_listings_come_with_what_else_is_asked_for(
    more: list[str], good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for arguments in (["--sass"], more, ["--sass", *more]):
        assert main(["inspect", str(good), *arguments]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[2] == outputs[0] + outputs[1]


def test_a_style_is_a_listing(capsys: pytest.CaptureFixture[str]) -> None:
    cubin = str(FIXTURES / "vector_copy.cubin")
    assert main(["inspect", cubin, "--sass-style", "nvdisasm"]) == 0
    assert "\t.elftype\t" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--format", "github", "--sass"],
        ["--format", "github", "--vectorization"],
        ["--format", "github", "--lines"],
        ["--format", "github", "--json"],
        ["--jobs", "2", "--executor", "dask:x"],
        ["--jobs", "1025"],
        ["--jobs", "2147483647"],
        ["--jobs", "9" * 4000],
        ["--resources", "--sass-style", "nvdisasm"],
    ],
)
def test_options_that_would_be_dropped_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(FIXTURES / "vector_copy.cubin"), *options]) == 2
    assert "[usage]" in capsys.readouterr().err


def test_a_patched_kernel_is_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = FIXTURES / "narrow_sm_90.cubin"
    plan = plan_trace(Cubin.from_file(original), "stride", [SassTraceSite(5)])
    patched = tmp_path / "patched.cubin"
    patched.write_bytes(plan.data)
    facts = {}
    for path in (original, patched):
        assert main(["inspect", str(path), "--json", "--lines", "--vectorization", "--sass"]) == 0
        data = json.loads(capsys.readouterr().out)
        jsonschema.validate(data, load_schema())
        (image,) = data["images"]
        facts[path] = {kernel["name"]: kernel for kernel in image["kernels"]}, image["sass"]
    before, after = facts[original][0]["stride"], facts[patched][0]["stride"]
    inserted = int(plan.rewritten.inserted.sum())
    assert plan.rewritten.twin is not None
    assert after["patched"] == (
        f"records 1 site (gwatch); the untouched copy of the code from {plan.rewritten.twin * 16:#x} on is left out"
    )
    assert before["patched"] == ""
    assert after["instructions"] == before["instructions"] + inserted
    assert after["opcodes"]["LDG.E.CONSTANT"] == before["opcodes"]["LDG.E.CONSTANT"] == 4
    loads = [a for a in after["vectorization"]["accesses"] if a["opcode"] == "LDG.E.CONSTANT"]
    assert len(loads) == 4
    assert {k: v for k, v in facts[original][0].items() if k != "stride"} == {
        k: v for k, v in facts[patched][0].items() if k != "stride"
    }
    # A listing shows all of it.
    assert facts[patched][1] == cuobjdump("-sass", patched)
    assert main(["inspect", str(patched)]) == 0
    assert f"  stride {after['patched']}\n" in capsys.readouterr().out
    assert main(["inspect", str(patched), "--require", "kernel:^stride$ has LDG.E.CONSTANT == 4"]) == 0


def test_a_site_map_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_trace(Cubin.from_file(FIXTURES / "narrow_sm_90.cubin"), "stride", [SassTraceSite(5)])
    patched = tmp_path / "patched.cubin"
    patched.write_bytes(plan.data.replace(b'"kernel"', b'"kernul"'))
    assert main(["inspect", str(patched), "--kernel", "^stride$"]) == 0
    out = capsys.readouterr().out
    assert "patched by gwatch; all code is counted, for what was patched can't be read: [site-map]" in out
