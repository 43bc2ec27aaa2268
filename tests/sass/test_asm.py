"""Assembly files: text with control words to the same bits and back; all that is wrong is said, with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gwatch.cuda.binary import Cubin
from gwatch.errors import EncodeError
from gwatch.sass.arch import arch_by_name
from gwatch.sass.asm import AssemblyError, assemble, control_text, disassemble, parse_control, write_unit
from gwatch.sass.control import Control
from gwatch.sass.isa import isa_for

SM90 = arch_by_name("sm_90a")


def words_of(*words: int) -> np.ndarray:
    return np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)


def text_of(words: np.ndarray, **options: bool) -> str:
    return f".target {SM90.name}\n" + write_unit(SM90, "k", disassemble(SM90, words), **options)


def test_the_open_corpus_comes_back_bit_by_bit(corpus_sm90: list[Path]) -> None:
    seen = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        kernels = list(cubin.get_map_kernel_def().values())
        for number, kernel in enumerate(kernels[::1 if len(kernels) < 10 else 67]):
            listed = disassemble(cubin.arch, kernel.words)
            assert not any(one.bare for one in listed)
            text = write_unit(cubin.arch, kernel.name, listed, words=number % 3 == 2, labels=number % 3 == 1)
            arch, (unit,) = assemble(f".target {cubin.arch.name}\n{text}")
            assert (arch, unit.name) == (cubin.arch, kernel.name)
            assert unit.words.tobytes() == kernel.words.tobytes()
            seen += len(listed)
    assert seen > 40_000


controls = st.builds(
    Control, st.integers(0, 15), st.integers(0, 1), st.sampled_from([0, 1, 2, 3, 4, 5, 7]),
    st.sampled_from([0, 1, 2, 3, 4, 5, 7]), st.integers(0, 63), st.integers(0, 15),
).filter(lambda control: not control.illegal)


@given(controls)
def test_control_words_come_back(control: Control) -> None:
    text = control_text(control)
    assert parse_control(text[1:-1]) == control


def test_reuse_stands_in_the_text_where_it_is_shown_and_in_the_braces_where_not() -> None:
    isa = isa_for("sm_90a")
    shown = isa.encode("FFMA R1, R2.reuse, R3, R4.reuse", Control(4))
    hidden = isa.encode("FFMA R1, R2, R3, R4", Control(4, yield_flag=0, reuse=0b101))
    other = isa.encode("FFMA R1, R2, R3, R4", Control(4, reuse=0b1000))
    text = text_of(words_of(shown, hidden, other))
    assert "FFMA R1, R2.reuse, R3, R4.reuse ;" in text and "{stall 4}" in text
    assert "{stall 4, yield, reuse a c}" in text and "{stall 4, reuse d}" in text
    _, (unit,) = assemble(text)
    assert unit.words.tolist() == words_of(shown, hidden, other).tolist()


def test_a_nan_carries_its_bits() -> None:
    isa = isa_for("sm_90a")
    word = isa.encode("FSEL R7, R7, -QNAN(0xfff00000), !P0")
    assert isa.decode(word).text == "FSEL R7, R7, -QNAN , !P0"
    assert isa.decode(word).canonical == "FSEL R7, R7, -QNAN(0xfff00000), !P0"
    assert assemble(text_of(words_of(word)))[1][0].words.tolist() == words_of(word).tolist()
    for text in ("-QNAN(0x7fc00000)", "+SNAN(0x7fc00000)", "+QNAN(0x3f800000)", "+QNAN(0x17fc00000)"):
        with pytest.raises(EncodeError, match="operand-range"):
            isa.encode(f"FSEL R7, R7, {text}, !P0")
    half = isa.encode("HFMA2.MMA R1, -RZ, RZ, +QNAN(0x7fff), 1")
    assert isa.encode(isa.decode(half).canonical) == half


def test_words_that_nothing_decodes_are_data_and_come_back() -> None:
    odd = [0, (1 << 128) - 1, 0xFFF, isa_for("sm_90a").encode("NOP") & ~(1 << 110), 1 << 127]
    text = text_of(words_of(*odd))
    assert text.count(".word 0x") == len(odd)
    assert assemble(text)[1][0].words.tolist() == words_of(*odd).tolist()


def test_a_word_that_its_text_does_not_give_is_written_out_and_checked() -> None:
    isa = isa_for("sm_90a")
    word = isa.encode("NOP") | 1 << 32
    assert isa.decode(word).text == "NOP"
    text = text_of(words_of(word))
    assert f"= {word:#034x}" in text
    assert assemble(text)[1][0].words.tolist() == words_of(word).tolist()
    for changed in (text.replace("NOP", "EXIT"), text.replace("{stall 1}", "{stall 2}")):
        with pytest.raises(AssemblyError, match="word-mismatch"):
            assemble(changed)


def test_labels_are_places() -> None:
    _, (unit,) = assemble(
        ".target sm_90a\n.kernel k\nstart: NOP;\n  BRA `(end) ; {stall 5}\n// a comment\nBRA `(start);/* x */\n"
        "end:\nEXIT\n"
    )
    isa = isa_for("sm_90a")
    texts = [isa.decode(low | high << 64, 16 * n).text for n, (low, high) in enumerate(unit.words.tolist())]
    assert texts == ["NOP", "BRA 0x30", "BRA 0x0", "EXIT"]


BAD = [
    ("LDH.E R4, desc[UR4][R2.64]", 1, "LDH", "mnemonic-unknown", "LD"),
    ("  LDG.E.129 R4, desc[UR4][R2.64] ;", 8, ".129", "modifier-unknown", ".128"),
    ("IADD3 R1, R2 ;", 1, "", "form-unknown", "nearest form"),
    ("IADD3 R1, R2, R255, RZ ;", 15, "R255", "register-range", "R254"),
    ("@P7 IADD3 R1, R2, R3, RZ ;", 2, "P7", "register-range", "P0..P6"),
    ("@UP0 IADD3 R1, R2, R3, RZ ;", 2, "UP0", "guard-file", ""),
    ("IADD3 R1, R2, 0x1ffffffff, RZ", 15, "0x1ffffffff", "operand-range", "0x7fffffff"),
    ("S2R R0, SR_TID.W", 9, "SR_TID.W", "name-unknown", "SR_TID.X"),
    ("LDG.E.64 R5, desc[UR4][R2.64]", 10, "R5", "register-alignment", "multiple of 2"),
    ("FADD R1, R2 $ R3", 13, "", "sass-syntax", ""),
    ("BRA `(nowhere) ;", 7, "nowhere", "asm-label", "here"),
    ("NOP ; {stall 16}", 14, "16", "control-range", "stall 15"),
    ("NOP ; {stall 0}", 8, "stall", "control-illegal", ""),
    ("NOP ; {stal 1}", 8, "stal", "control-syntax", "stall"),
    ("NOP ; {wait SB6}", 13, "SB6", "control-range", "SB5"),
    ("NOP ; {write SB0, write SB1}", 8, "write", "control-syntax", ""),
    ("NOP ; garbage", 7, "garbage", "asm-syntax", ""),
    (".wrod 0x0", 1, ".wrod", "asm-directive", ".word"),
    (".word 12", 7, "12", "asm-word", ""),
    ("FSEL R7, R7, -QNAN , !P0", 14, "-QNAN", "nan-payload", "bits"),
]


@pytest.mark.parametrize(("line", "column", "token", "code", "hint"), BAD, ids=[row[0] for row in BAD])
def test_a_bad_line_is_refused_with_its_place_and_the_nearest_thing(
    line: str, column: int, token: str, code: str, hint: str
) -> None:
    with pytest.raises(AssemblyError) as caught:
        assemble(f".target sm_90a\nhere: NOP ;\n{line}\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.token, problem.code) == (3, column, token, code)
    assert hint in problem.hint


def test_all_lines_of_a_file_are_checked() -> None:
    lines = [row[0] for row in BAD]
    with pytest.raises(AssemblyError) as caught:
        assemble(".target sm_90a\nhere: NOP ;\n" + "\n".join(lines))
    assert [problem.line for problem in caught.value.problems] == list(range(3, 3 + len(lines)))
    assert caught.value.as_dict()["code"] == "asm"


@given(st.text(max_size=60))
def test_no_text_breaks_the_assembler(text: str) -> None:
    try:
        assemble(".target sm_90a\n" + text)
    except AssemblyError as error:
        assert all(problem.line >= 1 and problem.column >= 1 for problem in error.problems)


def test_a_target_is_needed_and_must_be_one() -> None:
    with pytest.raises(EncodeError, match="asm-target"):
        assemble("NOP ;")
    with pytest.raises(AssemblyError, match="arch-unknown"):
        assemble(".target sm_12\nNOP ;")
    with pytest.raises(AssemblyError, match="asm-target"):
        assemble(".target sm_90\nNOP ;", SM90)
    assert len(assemble("NOP ;", SM90)[1][0].words) == 1


def test_a_control_word_that_the_opcode_forbids_is_refused_by_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = isa_for("sm_90a")
    template = isa.templates.of(isa.encode("EXIT"))
    assert template is not None
    # Observed of EXIT: it decodes without scoreboards only, with any wait mask.
    rule = {"write": 1 << 7, "read": 1 << 7, "wait": 63, "issue": (1 << 32) - 1, "reuse": [0, 0]}
    monkeypatch.setitem(template.key.extra, "control", rule)
    monkeypatch.setattr(isa._lines, "_legal", {})
    assemble(".target sm_90a\nEXIT ; {stall 5, wait SB0 SB5}")
    for control, part in (("write SB1", "write"), ("read SB0", "read"), ("reuse a", "reuse")):
        with pytest.raises(AssemblyError) as caught:
            assemble(f".target sm_90a\nEXIT ; {{stall 5, {control}}}")
        (problem,) = caught.value.problems
        assert (problem.code, problem.token, problem.hint) == ("control-illegal", part, f"leave {part} out")
    monkeypatch.undo()
