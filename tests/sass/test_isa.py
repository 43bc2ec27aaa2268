"""Text to word and back, for every shape in the golden file, for random operands, and for what must be refused."""

from __future__ import annotations

import copy
import json
import pickle
import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.errors import DecodeError, EncodeError, GWatchError, ParseError, UnsupportedError
from gwatch.sass.arch import arch_by_name
from gwatch.sass.control import CONTROL_MASK, Control
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.isa.model import Form, Key

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "isa_sm90.txt"


@lru_cache(maxsize=1)
def golden() -> list[tuple[int, str, str, str]]:
    rows = []
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            word, text, reads, writes = (part.strip(" ") for part in line.split(" ;"))
            rows.append((int(word, 16), text, reads, writes))
    return rows


@pytest.fixture(scope="module")
def isa() -> Isa:
    return isa_for("sm_90a")


def test_every_golden_word_prints_its_text_and_effects(isa: Isa) -> None:
    rows = golden()
    assert len(rows) > 700
    for word, text, reads, writes in rows:
        decoded = isa.decode(word)
        assert decoded.text == text
        if reads != "?":
            assert decoded.effects.complete, text
            assert " ".join(map(str, decoded.effects.reads)) == reads, text
            assert " ".join(map(str, decoded.effects.writes)) == writes, text
        else:
            assert not decoded.effects.complete, text


def test_every_golden_text_gives_its_word(isa: Isa) -> None:
    exact = 0
    for word, text, _, _ in golden():
        try:
            made = isa.encode(text)
        except EncodeError as error:
            # Compilers' words are refused for a NaN's payload only; derived ones, too, where bits that no text shows
            # are known from one project's words alone.
            allowed = {"nan-payload"} if isa.seen_in_compiler_code(word) else {"nan-payload", "encode-ambiguous"}
            assert error.code in allowed or not isa.in_compiler_code(word), (text, str(error))
            continue
        assert isa.decode(made).text == text
        assert made == word or not isa.in_compiler_code(word), text
        exact += made == word
    assert exact > 0.6 * len(golden())


REFUSALS = [
    ("IADD3 R300, R1, R2, RZ", "register-range"),
    ("IADD3 R255, R1, R2, RZ", "register-range"),
    ("UIADD3 UR64, UR5, 0x1, URZ", "register-range"),
    ("ISETP.NE.AND P7, PT, R1, 0x0, PT", "register-range"),
    ("IADD3 R1, R2, 0x1ffffffff, RZ", "operand-range"),
    ("LDG.E R4, desc[UR4][R2.64+0x1000000]", "operand-range"),
    ("BAR.SYNC.DEFER_BLOCKING 0x1000", "operand-range"),
    ("FADD R1, R2, 0.1", "operand-range"),
    ("LDG.E.129 R4, desc[UR4][R2.64]", "modifier-unknown"),
    ("IADD4 R1, R2, R3, RZ", "mnemonic-unknown"),
    ("IADD3 R1, R2", "form-unknown"),
    ("FSEL R7, R7, -QNAN , !P0", "nan-payload"),
    ("S2R R0, SR_NOSUCH", "name-unknown"),
    ("@UP0 IADD3 R1, R2, R3, RZ", "guard-file"),
    ("@P9 IADD3 R1, R2, R3, RZ", "register-range"),
]


@pytest.mark.parametrize("text,code", REFUSALS)
def test_what_does_not_exist_is_refused_by_name(isa: Isa, text: str, code: str) -> None:
    with pytest.raises(EncodeError) as caught:
        isa.encode(text)
    assert caught.value.code == code
    assert caught.value.hint or caught.value.message


def test_an_odd_register_pair_is_refused(isa: Isa) -> None:
    good = isa.encode("STG.E.64 desc[UR4][R2.64], R6")
    assert isa.decode(good).text == "STG.E.64 desc[UR4][R2.64], R6"
    for text in ("LDG.E.64 R5, desc[UR4][R2.64]", "LDC.64 R3, c[0x0][0x210]"):
        with pytest.raises(EncodeError):
            isa.encode(text)


def test_unknown_modifiers_name_the_nearest_one(isa: Isa) -> None:
    with pytest.raises(EncodeError, match=r"nearest: .*STRONG"):
        isa.encode("STG.E.STRNG.GPU desc[UR4][R2.64], R6")


@pytest.mark.parametrize("text", ["", " ", "@P0", "IADD3 R1, R2 $", "FADD R1, {", "@P0 @P1 EXIT"])
def test_what_is_no_instruction_is_a_parse_error(isa: Isa, text: str) -> None:
    with pytest.raises((ParseError, EncodeError)):
        isa.encode(text)


@pytest.mark.parametrize("word", [0, (1 << 128) - 1, 1 << 127, 0xFFF])
def test_words_that_are_no_instruction_are_refused(isa: Isa, word: int) -> None:
    with pytest.raises(DecodeError, match="word-unknown"):
        isa.decode(word)


TEMPLATES = [
    "IADD3 R{a}, R{b}, R{c}, R{d}", "IMAD.WIDE.U32 R{even}, R{b}, 0x{imm:x}, R{even2}",
    "LOP3.LUT R{a}, R{b}, 0x{imm:x}, R{c}, 0x{lut:x}, !PT", "STG.E.EF.64 desc[UR{ur}][R{even}.64+0x{off:x}], R{even2}",
    "LDG.E.128 R{quad}, desc[UR{ur}][R{even}.64+-0x{off:x}]", "CS2R.32 R{a}, SR_CLOCKLO",
    "@!P{p} ISETP.GE.U32.AND P{q}, PT, R{a}, R{b}, PT", "LDC.64 R{even}, c[0x3][0x{word:x}]", "ELECT P{p}, URZ, PT",
    "SHF.R.U32.HI R{a}, RZ, 0x{sh:x}, R{b}", "FFMA R{a}, R{b}, -R{c}, |R{d}|", "FADD.FTZ R{a}, R{b}, {f}",
    "ULDC.64 UR{ur}, c[0x0][0x{word:x}]", "BRA 0x{target:x}", "BSSY B{br}, 0x{target:x}", "SEL R{a}, R{b}, R{c}, !P{p}",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TEMPLATES), st.data())
def test_random_operands_round_trip(template: str, data: st.DataObject) -> None:
    isa = isa_for("sm_90a")
    register = st.integers(0, 254)
    values = {
        "a": register, "b": register, "c": register, "d": register,
        "even": st.integers(0, 126).map(lambda n: 2 * n), "even2": st.integers(0, 126).map(lambda n: 2 * n),
        "quad": st.integers(0, 62).map(lambda n: 4 * n), "ur": st.integers(0, 30).map(lambda n: 2 * n),
        "p": st.integers(0, 6), "q": st.integers(0, 6), "imm": st.integers(1 << 20, (1 << 31) - 1),
        "lut": st.integers(0, 255), "off": st.integers(1, (1 << 23) - 1),
        "word": st.integers(0, 0x1FFF).map(lambda n: 8 * n),
        "sh": st.integers(0, 0xFFFF), "br": st.integers(0, 15), "target": st.integers(0, 1 << 25).map(lambda n: 16 * n),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)
        .map(lambda x: f"{x:.20e}" if abs(x) >= 1e9 else f"{x:.20g}"),
    }
    drawn = {name: data.draw(values[name], name) for name in values if "{" + name in template}
    text = template.format(**drawn)
    pc = 16 * data.draw(st.integers(0, 1 << 20), "pc")
    try:
        word = isa.encode(text, pc=pc)
    except EncodeError as error:
        # A text that nvdisasm would print another way (an alias, a hidden operand) is refused, never guessed.
        assert error.code in ("encode-unproved", "operand-range"), text
        assert "word" in drawn or "imm" in drawn or "sh" in drawn, text
        return
    assert isa.decode(word, pc).text == text
    assert word & CONTROL_MASK == Control().to_bits()


@given(st.integers(0, (1 << 128) - 1))
@settings(max_examples=300, deadline=None)
def test_random_words_decode_to_something_that_encodes_back_or_are_refused(word: int) -> None:
    isa = isa_for("sm_90a")
    row = golden()[word % len(golden())][0]
    mixed = row ^ (word & word >> 3 & word >> 11 & (1 << 105) - 1 & ~0xFFFF & ~(1 << 91))
    try:
        text = isa.decode(mixed).text
        again = isa.encode(text)
    except GWatchError as error:
        assert error.code
        return
    assert isa.decode(again).text == text


def test_reuse_in_text_sets_the_control_bit_and_shows_again(isa: Isa) -> None:
    word = isa.encode("FFMA R1, R2.reuse, R3, R4.reuse", Control(stall=4))
    assert Control.from_word(word) == Control(stall=4, reuse=0b101)
    assert isa.decode(word).text == "FFMA R1, R2.reuse, R3, R4.reuse"
    assert isa.decode(word & ~(7 << 122)).text == "FFMA R1, R2, R3, R4"


def test_targets_move_with_the_program_counter(isa: Isa) -> None:
    for text in ("BRA 0x{0:x}", "@P0 BRA 0x{0:x}", "BSSY B0, 0x{0:x}", "CALL.REL.NOINC 0x{0:x}", "LEPC R20, 0x{0:x}"):
        word = isa.encode(text.format(0x1230), pc=0x400)
        assert isa.relative_target(word, 0x400) == 0x1230
        assert isa.relative_target(word, 0x500) == 0x1330
        moved = isa.with_target(word, 0x800, 0x10)
        assert isa.decode(moved, 0x800).text == text.format(0x10)
        assert isa.decode(moved, 0x800).target == 0x10
    with pytest.raises(EncodeError, match="not-relative"):
        isa.with_target(isa.encode("NOP"), 0, 0)
    with pytest.raises(EncodeError, match="target-range"):
        isa.with_target(isa.encode("BRA 0x0"), 0, 1 << 60)


@pytest.mark.parametrize("text,kind", [
    ("IADD3 R1, R2, R3, RZ", "fixed"), ("CS2R.32 R1, SR_CLOCKLO", "fixed"), ("DADD R2, R4, R6", "fixed"),
    ("S2R R1, SR_TID.X", "variable"), ("LDG.E R1, desc[UR4][R2.64]", "variable"), ("MUFU.RCP R1, R2", "variable"),
    ("STG.E desc[UR4][R2.64], R1", "variable"), ("BRA 0x100", "branch"), ("EXIT", "branch"),
    ("ULDC.64 UR4, c[0x0][0x208]", "fixed"), ("LDC R1, c[0x0][0x28]", "variable")])
def test_latency_kinds(isa: Isa, text: str, kind: str) -> None:
    assert isa.decode(isa.encode(text)).effects.kind == kind


@pytest.mark.parametrize("text,reads,writes", [
    ("@P3 IMAD.WIDE R2, R4, 0x4, R6", "R4 R6..7 P3", "R2..3"),
    ("STG.E.EF.128 desc[UR4][R2.64], R8", "UR4..5 R2..3 R8..11", ""),
    ("LDG.E.64 R4, desc[UR6][R2.64+0x8]", "UR6..7 R2..3", "R4..5"),
    ("ELECT P0, URZ, PT", "", "P0"),
    ("IADD3 R1, P0, R2, R3, RZ", "R2 R3", "R1 P0"),
    ("ISETP.GE.U32.AND P0, PT, R1, R2, P4", "R1 R2 P4", "P0"),
    ("HMMA.16816.F32 R4, R8, R12, R4", "R8..11 R12..13 R4..7", "R4..7"),
    ("BSSY B3, 0x100", "", "B3"), ("BSYNC B3", "B3", ""), ("RET.REL.NODEC R20 0x0", "R20..21", ""),
])
def test_reads_and_writes(isa: Isa, text: str, reads: str, writes: str) -> None:
    effects = isa.decode(isa.encode(text)).effects
    assert effects.complete
    assert " ".join(map(str, effects.reads)) == reads
    assert " ".join(map(str, effects.writes)) == writes


def test_scoreboard_fields_follow_the_compilers(isa: Isa) -> None:
    load = isa.decode(isa.encode("LDG.E R1, desc[UR4][R2.64]")).effects
    store = isa.decode(isa.encode("STG.E desc[UR4][R2.64], R1")).effects
    add = isa.decode(isa.encode("IADD3 R1, R2, R3, RZ")).effects
    assert (load.write_scoreboard, store.write_scoreboard, store.read_scoreboard) == (True, False, True)
    assert not add.write_scoreboard and not add.read_scoreboard


def test_opcodes_are_built_when_they_are_asked_for() -> None:
    from gwatch.sass.isa.table import load

    table = load("sm_90")
    assert not table.source.built
    number = table.numbers()[0]
    assert table.key(number) is table.key(number) and [k.key for k in table.source.built.values()] == [number]


def test_the_architectures_of_a_family_share_what_was_read() -> None:
    plain, feature = isa_for("sm_90").table, isa_for("sm_90a").table
    number = plain.numbers()[0]
    assert plain.key(number) is feature.key(number)


def test_examples_of_a_form_are_read_when_they_are_asked_for() -> None:
    from gwatch.sass.isa.table import load

    table = load("sm_90")
    forms = [form for number in table.numbers() if (key := table.key(number)) for form in key.forms]
    lines = [json.loads(line) for line in table.source.lines[1:]]
    plain = [Form.from_json(data) for data in lines if "form" in data]
    assert [form.to_json() for form in forms] == [form.to_json() for form in plain]
    for twin in (copy.deepcopy(plain[0]), pickle.loads(pickle.dumps(forms[0]))):
        assert twin.to_json() == plain[0].to_json()
    form = table.key(table.numbers()[0]).forms[0]  # type: ignore[union-attr]
    form = Form.from_json(form.to_json(), '{"shapes":["1"],"derived":[],"probes":["2"]}')
    form.shapes = [3]
    assert form.probes == [2] and form.shapes == [3] and form.derived == frozenset()
    with pytest.raises(AttributeError, match="no colour"):
        form.colour  # noqa: B018


def test_an_architecture_without_a_table_is_named_with_those_that_have_one() -> None:
    missing = replace(arch_by_name("sm_90"), name="sm_0", table="sm_0")
    with pytest.raises(UnsupportedError, match=r"\[isa-missing\].*sm_0.*supported: .*sm_90 sm_90a"):
        isa_for(missing)


def test_a_field_splits_and_signs_its_number() -> None:
    from gwatch.sass.isa.values import Field

    split = Field("I", ((16, 8, 2), (34, 48, 10)), signed=True)
    for number in (0, 4, -4, 0x1234 * 4, -(1 << 57), (1 << 57) - 4):
        assert split.get(split.put(number)) == number
    for number in (1, 2, 1 << 57, -(1 << 57) - 4):
        with pytest.raises(EncodeError, match="operand-range"):
            split.put(number)
    assert split.put(-4) == 0xFF << 16 | ((1 << 48) - 1) << 34


def test_forms_and_keys_survive_their_json(isa: Isa) -> None:
    rng = random.Random(5)
    for number in rng.sample(isa.table.numbers(), 40):
        key = isa.table.key(number)
        assert key is not None
        again = Key.from_json(key.to_json(), [Form.from_json(f.to_json()) for f in key.forms])
        assert again.to_json() == key.to_json()
        assert [f.to_json() for f in again.forms] == [f.to_json() for f in key.forms]


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("HGMMA.64x128x16.F32 R24, gdesc[UR8].tnspB, R24, gsb0", "UR8..11 R24..87", "R24..87"),
        ("HGMMA.64x64x16.F32 R152, gdesc[UR4].tnspB, R152", "UR4..7 R152..183", "R152..183"),
        ("HGMMA.64x128x16.F32 R24, gdesc[UR4], RZ, !UPT", "UR4..7", "R24..87"),
    ],
)
def test_a_warpgroup_products_accumulator_has_the_size_of_its_shape(text: str, reads: str, writes: str) -> None:
    isa = isa_for("sm_90a")
    word = isa.encode(text)
    effects = isa.decode(word).effects
    assert effects.complete and effects.kind == "async"
    assert (" ".join(map(str, effects.reads)), " ".join(map(str, effects.writes))) == (reads, writes)
    uses = isa.uses(np.array([[word & (1 << 64) - 1, word >> 64]], np.uint64))
    bulk = [(int(f), int(c), bool(w)) for f, c, w in zip(uses.first, uses.count, uses.write, strict=True)]
    single = [(u.first, u.count, False) for u in effects.reads] + [(u.first, u.count, True) for u in effects.writes]
    assert sorted(bulk) == sorted(single) and uses.complete.all()
