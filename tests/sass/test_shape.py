"""Cutting text into shape and values: lossless for any text, few shapes, typed values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gwatch.sass.shape import HOLE, join, parse_value, parse_values, split


def cut(text: str) -> tuple[str, ...]:
    key, values = split(text)
    return (key.replace(HOLE, "#"), *values)


@pytest.mark.parametrize(("text", "expected"), [
    ("@!P0 LDG.E R4, desc[UR4][R2.64+0x10]",
     ("@!P# LDG.E R#, desc[UR#][R#.64+#]", "0", "4", "4", "2", "0x10")),
    ("LDS R0, [R5.X4+UR3+-0x20]", ("LDS R#, [R#.X4+UR#+#]", "0", "5", "3", "-0x20")),
    ("IMAD.WIDE.U32 RZ, R7, 0x4, UR4", ("IMAD.WIDE.U32 RZ, R#, #, UR#", "7", "0x4", "4")),
    ("HFMA2.MMA R11, -RZ, RZ, 1.875, -10752", ("HFMA2.MMA R#, -RZ, RZ, #, #", "11", "1.875", "-10752")),
    ("FADD R0, -|R2|, 1.47e-39", ("FADD R#, -|R#|, #", "0", "2", "1.47e-39")),
    ("FSEL R2, R2, +INF , P1", ("FSEL R#, R#, # , P#", "2", "2", "+INF", "1")),
    ("F2FP R0, R1, +SNAN .B1", ("F2FP R#, R#, # .B1", "0", "1", "+SNAN")),
    ("F2FP R0, R1, 2.5.H1", ("F2FP R#, R#, #.H1", "0", "1", "2.5")),
    ("FADD R0, R1, -c[0x18][-0x45b8]", ("FADD R#, R#, -c[#][#]", "0", "1", "0x18", "-0x45b8")),
    ("BRX R4 -0xc2040", ("BRX R# #", "4", "-0xc2040")),
    ("DEPBAR.LE SB4, UR19, {5,3,2}", ("DEPBAR.LE SB#, UR#, {#,#,#}", "4", "19", "5", "3", "2")),
    ("HGMMA.64x8x16.F32 R24, gdesc[UR4], RZ, !UPT, gsb0",
     ("HGMMA.64x8x16.F32 R#, gdesc[UR#], RZ, !UPT, gsb#", "24", "4", "0")),
    ("BRA `(.L_x_2)", ("BRA `(#)", ".L_x_2")),
    ("MOV R4, 32@hi(fun@unified(_Z4fexti))", ("MOV R#, 32@hi(#)", "4", "fun@unified(_Z4fexti)")),
    ("MOV R20, 32@lo((_Z5kf + .L_x_0@srel))", ("MOV R#, 32@lo(#)", "20", "(_Z5kf + .L_x_0@srel)")),
])
def test_what_is_cut_out(text: str, expected: tuple[str, ...]) -> None:
    assert cut(text) == expected


@pytest.mark.parametrize("text", [
    "I2F.U8 RZ, RZ.B2", "HFMA2 RZ, RZ.H0_H0, RZ.H0_NH1", "TEX.LZ RZ, RZ, RZ, 2D", "IDP.4A.U8.U8 RZ, RZ, RZ",
    "S2R RZ, SR_TID.X", "S2UR URZ, SR224", "VIMNMX.U32 RZ, PT, ???7, RZ", "FADD.???12 RZ, RZ",
    "UTCSHIFT.2CTA URZ", "QMUL4.E5M2x4 RZ, RZ.B3210, RZ.N6420", "F2FP.RS.7b.LTN25 RZ, RZ", "__HIR0X1F0 RZ",
    "FSWZADD RZ, RZ, RZ, PNPPPPPP", "MOV %r0, {r1}", "MOV %R0, {P5}", "B2R RZ", "LDTM.x2 RZ",
])
def test_names_and_modifiers_stay(text: str) -> None:
    assert split(text) == (text, ())


def test_lines_that_differ_in_values_only_have_one_shape() -> None:
    lines = ["IADD3 R0, R1, -0x1, RZ", "IADD3 R250, R10, 0xffff, RZ", "IADD3 R7, R7, 0x0, RZ"]
    assert len({split(line)[0] for line in lines}) == 1
    assert split("IADD3 R0, R1, -R2, RZ")[0] != split("IADD3 R0, R1, R2, RZ")[0]
    assert split("IADD3 R0, R1, R2, RZ")[0] != split("IADD3 R0, R1, R2, R3")[0]


@given(st.text())
def test_any_text_is_put_together_again(text: str) -> None:
    assert join(*split(text)) == text


@given(st.text(alphabet="RUPBZT0123456789.xabcdefINFQS-+[]|~!@%?{}`() ,\x00", max_size=60))
def test_any_likely_text_is_put_together_again(text: str) -> None:
    key, values = split(text)
    assert join(key, values) == text
    assert key.count(HOLE) == len(values)


def test_join_refuses_another_number_of_values() -> None:
    key, values = split("IADD3 R0, R1, R2, RZ")
    with pytest.raises(ValueError, match="3 holes, got 2"):
        join(key, values[:2])


@pytest.mark.parametrize(("text", "value"), [
    ("4", 4), ("0x10", 16), ("-0x45b8", -0x45B8), ("+0x1", 1), ("-13154260", -13154260), ("1.5", 1.5),
    ("5.96e-08", 5.96e-08), ("-2e+09", -2e9), ("+INF", math.inf), ("-INF", -math.inf), ("-QNAN", "-QNAN"),
    ("+SNAN", "+SNAN"), (".L_x_2", ".L_x_2"), ("_Z4fexti", "_Z4fexti"), ("0xzz", "0xzz"), ("1.2.3", "1.2.3"),
    ("", ""), ("-", "-"), ("٣", "٣"), ("1_000", "1_000"),
])
def test_values_are_typed(text: str, value: int | float | str) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_values_of_a_line() -> None:
    assert parse_values(split("FFMA R1, R2, 0.5, -INF")[1]) == (1, 2, 0.5, -math.inf)


@given(st.text(max_size=20))
def test_parse_value_takes_any_text(text: str) -> None:
    assert isinstance(parse_value(text), (int, float, str))
