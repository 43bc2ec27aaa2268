"""Nothing that has an ISA table needs nvdisasm: the whole road from a cubin to a patched one without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gwatch.cli.main import main
from gwatch.cuda.binary import Cubin
from gwatch.sass import nvdisasm

ROOT = Path(__file__).resolve().parent
CUBIN = ROOT / "inspect" / "fixtures" / "vector_copy.cubin"
MATMUL = ROOT.parent / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"


@pytest.fixture(autouse=True)
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """No nvdisasm for this process and its children; starting one all the same is an error."""
    monkeypatch.setenv("GWATCH_NVDISASM", "/nowhere")

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"nvdisasm was started: {arguments}")

    monkeypatch.setattr(nvdisasm, "_run", refuse)
    assert not nvdisasm.present()


def test_a_kernel_is_listed_rewritten_compared_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.cubin"
    assert main(["rewrite", str(MATMUL), "--kernel", "matmul", "--list", "--only", "FFMA"]) == 0
    assert "FFMA" in capsys.readouterr().out
    assert main(["rewrite", str(MATMUL), "--kernel", "matmul", "--site", "op:FFMA@first", "--clock", "sm",
                 "-o", str(out)]) == 0
    assert main(["inspect", str(out), "--sass"]) == 0
    assert "CS2R" in capsys.readouterr().out
    assert main(["diff", str(MATMUL), str(out), "--stat"]) == 0
    Cubin.from_file(out).dump(tmp_path / "checked.cubin", do_check=True)
    text = tmp_path / "out.sass"
    assert main(["disasm", str(out), "-o", str(text)]) == 0
    assert main(["asm", str(text), "--cubin", str(out), "-o", str(tmp_path / "same.cubin")]) == 0
    assert (tmp_path / "same.cubin").read_bytes() == out.read_bytes()


def test_facts_and_texts_come_from_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CUBIN), "--json", "--vectorization"]) == 0
    assert "LDG.E.128" in capsys.readouterr().out
    kernel = Cubin.from_file(CUBIN).get_kerneldef_by_name("copy_kernel")
    assert kernel.texts[0] == kernel.list_instructions[0].str() == "LDC R1, c[0x0][0x28]"
    kernel.parse_cfg()
    assert kernel.cfg is not None and kernel.cfg.basic_blocks[0].instruction_strs[0] == kernel.texts[0]


def test_doctor_says_what_it_would_be_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    rows = found if isinstance(found, list) else found["findings"]
    (row,) = [row for row in rows if row["name"] == "nvdisasm"]
    assert row["state"] == "absent" and "optional" in row["needed_for"]


def test_asking_for_nvdisasm_says_where_it_was_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["disasm", str(CUBIN), "--engine", "nvdisasm"]) == 2
    assert "[nvdisasm-missing] GWATCH_NVDISASM=/nowhere" in capsys.readouterr().err
