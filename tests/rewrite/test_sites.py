"""Site descriptions against a kernel made of texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gwatch.cuda.binary.lines import Call
from gwatch.errors import SiteError
from gwatch.rewrite.sites import parse_excluded, resolve_site
from gwatch.rewrite.trace import SassTraceSite

TEXTS = [
    "LDC R1, c[0x0][0x28]",
    "S2R R0, SR_TID.X",
    "@!P0 LDG.E.128 R4, desc[UR4][R2.64]",
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "FFMA R7, R4, R5, R6",
    "@P1 FFMA R8, R4, R5, R6",
    "BAR.SYNC 0x1",
    "EXIT",
]


def kernel(lines: bool = True) -> Any:
    rows = {
        ("/src/matmul.cu", 29): [0x40, 0x50],
        ("/src/matmul.cu", 30): [0x60],
        ("/src/a/util.h", 7): [0x10],
        ("/src/b/util.h", 7): [0x20],
        ("/src/b/util.h", 9): [0x30],
    }
    return SimpleNamespace(
        name="k",
        words=np.zeros((len(TEXTS), 2), np.uint64),
        arch=SimpleNamespace(instruction_size=16),
        texts=TEXTS,
        code=SimpleNamespace(unpadded=len(TEXTS)),
        text=lambda i: TEXTS[i],
        map_line_to_addresses=rows if lines else {},
        inlined_at={0x20: (Call("/src/a/util.h", 70, "f"), Call("/src/matmul.cu", 30, "g"))} if lines else {},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", [SassTraceSite(5)]),
        ("0x50", [SassTraceSite(5)]),
        ("0", [SassTraceSite(0)]),
        ("0x20,reg=R4", [SassTraceSite(2, 4)]),
        ("2,reg=R4:64", [SassTraceSite(2, 4, 64)]),
        ("2,reg=UR4:64,warp", [SassTraceSite(2, 4, 64, True, warp_level=True)]),
        ("7,smid", [SassTraceSite(7, value_is_smid=True)]),
        ("7,activemask,always", [SassTraceSite(7, special="activemask", unconditional=True)]),
        ("7, ns:64 ,label=end", [SassTraceSite(7, special="ns:64", label="end")]),
        ("line:matmul.cu:29@first", [SassTraceSite(4)]),
        ("line:29@last", [SassTraceSite(5)]),
        (
            "line:/src/matmul.cu:29@all,warp",
            [SassTraceSite(4, warp_level=True), SassTraceSite(5, warp_level=True)],
        ),
        ("line:matmul.cu:30@all", [SassTraceSite(2), SassTraceSite(6)]),
        ("line:a/util.h:70", [SassTraceSite(2)]),
        ("line:a/util.h:7", [SassTraceSite(1)]),
        ("op:BAR.SYNC@all", [SassTraceSite(3), SassTraceSite(6)]),
        ("op:BAR.SYNC.DEFER_BLOCKING", [SassTraceSite(3)]),
        ("op:LDG", [SassTraceSite(2)]),
        ("op:FFMA@last", [SassTraceSite(5)]),
    ],
)
def test_places_and_options(text: str, expected: list[SassTraceSite]) -> None:
    assert resolve_site(kernel(), text) == expected


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("op:FFMA", "site-ambiguous", "4 (0x40) FFMA R7, R4, R5, R6 | 5 (0x50) @P1 FFMA"),
        ("line:29", "site-ambiguous", "@first, @last or @all"),
        ("line:util.h:7", "site-ambiguous", "/src/a/util.h, /src/b/util.h"),
        ("op:BAR.SNYC", "site-none", "nearest: BAR.SYNC"),
        ("line:matmul.cu:31", "site-none", "nearest lines with code: 29, 30"),
        ("line:mul.cu:29", "site-none", "files: matmul.cu, util.h"),
        ("8", "site-range", "instructions 0..7"),
        ("0x80", "site-range", "0x0..0x70"),
        ("-1", "site-range", "instructions 0..7"),
        ("0x18", "site-unaligned", "no multiple of 16"),
        ("twelve", "site-syntax", "'twelve' is no place"),
        ("", "site-syntax", "names no place"),
        ("op:", "site-syntax", "'' is no opcode"),
        ("op:LDS.", "site-syntax", "'LDS.' is no opcode"),
        ("op:LDS@middle", "site-syntax", "@middle is none of @first, @last, @all"),
        ("op:LDS@", "site-syntax", "@ is none of"),
        ("op:LDS@first@last", "site-syntax", "chooses twice"),
        ("\u0665", "site-syntax", "is no place"),
        ("5_0", "site-syntax", "is no place"),
        ("@first", "site-syntax", "names no place"),
        ("line:x.cu:y", "site-syntax", "no line number"),
        ("5,reg=X3", "site-syntax", "'X3' is no register"),
        ("5,reg=R3:16", "site-syntax", "no register"),
        ("5,warm", "site-syntax", "option 'warm' is not known"),
        ("5,", "site-syntax", "option '' is not known"),
        ("5,warp,warp", "site-syntax", "twice"),
        ("5,reg=R2,reg=R4", "site-syntax", "twice"),
        ("5,reg=R3:64", "site-register", "odd"),
        ("5,reg=R255", "site-register", "zero register"),
        ("5,reg=UR63", "site-register", "zero register"),
        ("5,reg=R4,smid", "site-value", "several values"),
    ],
)
def test_refusals_name_the_part_and_what_to_do(text: str, code: str, said: str) -> None:
    with pytest.raises(SiteError) as caught:
        resolve_site(kernel(), text)
    assert caught.value.code == code
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_lines_need_line_information() -> None:
    with pytest.raises(SiteError, match=r"^\[site-none\] k has no line information; compile with -lineinfo"):
        resolve_site(kernel(lines=False), "line:29")


def test_long_lists_are_cut() -> None:
    many = kernel()
    many.texts = ["NOP"] * 20
    many.text = lambda i: "NOP"
    many.words = np.zeros((20, 2), np.uint64)
    with pytest.raises(SiteError, match=r"names 20 instructions .* \| and 12 more; say @first"):
        resolve_site(many, "op:NOP")


def test_excluded_registers() -> None:
    assert parse_excluded("R252, UR4,R3,P1") == {
        "general": [252, 3],
        "uniform_general": [4],
        "predicate": [1],
    }
    with pytest.raises(SiteError, match=r"^\[site-syntax\] 'Q1'"):
        parse_excluded("R1,Q1")
