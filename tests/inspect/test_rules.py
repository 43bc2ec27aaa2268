"""Rules: what they say, what they count, what they report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_support import COPY_CUBIN, COPY_NAME, FIXTURES, TRITON, WRAPPER, make_pt2

from gwatch.errors import ParseError
from gwatch.inspect.rules import (
    Rule,
    fail_on,
    matches,
    max_registers,
    parse_forbid,
    parse_require,
    read_rules,
)
from gwatch.inspect.run import Request, inspect


def broken(path: Path, *rules: Rule) -> list[tuple[str, str, int, str]]:
    report = inspect([path], Request(rules=rules))
    return [(v.kernel, v.message, v.pc, v.cause) for _, v in report.violations]


def test_requirement_syntax() -> None:
    assert parse_require("kernel:copy.* has LDG.E.128 >= 2") == Rule(
        "require", "copy.*", "LDG.E.128", ">=", 2
    )
    assert parse_require("LDG.E.128") == Rule("require", "", "LDG.E.128", ">=", 1)
    assert parse_require("has *MMA = 0") == Rule("require", "", "*MMA", "==", 0)
    assert parse_require("kernel:a has LDG >= 2").text == "kernel:a has LDG >= 2"
    assert parse_forbid("kernel:copy STL") == Rule("forbid", "copy", "STL", "==", 0)
    for text in ("", "LDG >= many", "kernel:( has LDG", "LDG 128 >= 2"):
        with pytest.raises(ParseError, match="rule-syntax"):
            parse_require(text)
    with pytest.raises(ParseError, match="one of spill, local, narrow"):
        fail_on("spills")


@pytest.mark.parametrize(
    "text",
    [
        "LGD",
        "STL,LDL",
        "STL;",
        ".STL",
        "STG|STL",
        "STG>=1",
        '"STG"',
        "ST[GL]",
        "NOTANOPCODE",
        "ZZ*",
        "kernel:a LGD",
    ],
)
def test_an_opcode_that_no_architecture_has_is_no_rule(text: str) -> None:
    """Else a typing error lets everything pass."""
    with pytest.raises(ParseError, match=r"^\[rule-syntax\]"):
        parse_forbid(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("STG.129", "no architecture has STG with a modifier '129'; did you mean 128?"),
        ("LDG.E.CONSTNAT", "no architecture has LDG with a modifier 'CONSTNAT'; did you mean CONSTANT?"),
        ("kernel:a LDG.E.12?8", "no architecture has LDG with a modifier '12?8'"),
        ("STL.CONSTANTS", "no architecture has STL with a modifier 'CONSTANTS'"),
        ("EXIT.128", "no architecture has EXIT with a modifier '128'"),
        ("STG.128.E", "no architecture has STG with these modifiers together in this order; write them as a listing"),
        ("LDG.E.E", "no architecture has LDG with these modifiers together in this order"),
        ("LDG.CONSTANT.128", "no architecture has LDG with these modifiers together in this order"),
        ("ST?.129", "no architecture has ST? with a modifier '129'"),
        ("LDG.64.128", "no architecture has LDG with these modifiers together in this order"),
        ("STG.E.64.128", "no architecture has STG with these modifiers together in this order"),
        ("LD.U8.128", "no architecture has LD with these modifiers together in this order"),
        ("LDGSTS.E.128.64", "no architecture has LDGSTS with these modifiers together in this order"),
        ("ISETP.EQ.GE", "no architecture has ISETP with these modifiers together in this order"),
        ("ATOMG.E.CAS.128.64", "no architecture has ATOMG with these modifiers together in this order"),
    ],
)
def test_modifiers_that_no_architecture_has_are_no_rule(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=r"^\[rule-syntax\] .*" + re.escape(said)):
        parse_forbid(text)
    with pytest.raises(ParseError, match=re.escape(said)):
        parse_require(f"{text} <= 0")


@pytest.mark.parametrize(
    "text",
    [
        "STG.E.128", "stg.128", "LDG.E.LTC128B.128.CONSTANT", "LDG.*.12?", "*.128", "F2F.F32.F64", "F2F.F64.F32",
        "HGMMA.64x8x16.F32", "hgmma.64X8X16", "LDG.E.ENL2.256", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "MUFU.RCP64H",
        "HMMA.16816.F32.BF16", "LDTM.16dp256bit", "BAR.SYNC.DEFER_BLOCKING", "DEPBAR.LE",
    ],
)  # fmt: skip
def test_modifiers_that_some_architecture_has_are_a_rule(text: str) -> None:
    assert parse_forbid(text).what == text.upper()


def test_every_opcode_of_a_cubin_is_a_rule_and_counts_itself() -> None:
    for path in sorted(FIXTURES.glob("*.cubin")):
        (image,) = inspect([path]).images
        for kernel in image.kernels:
            assert kernel.facts.code is not None
            for opcode, _ in kernel.facts.code.opcodes:
                assert matches(parse_forbid(opcode).what, opcode)


def test_opcodes_may_be_in_lower_case_and_typing_errors_get_a_hint(tmp_path: Path) -> None:
    assert parse_forbid("stl").what == "STL" and parse_require("has ldg.e.128 >= 2").what == "LDG.E.128"
    assert parse_forbid("UTMA*").what == "UTMA*"
    with pytest.raises(ParseError, match="did you mean LDS"):
        parse_forbid("LGDS")
    for line in ("forbid = []", "forbid = 3", "max_registers = true", 'forbid = ["STG", 1]'):
        (tmp_path / "rules.toml").write_text(f"[[rule]]\n{line}\n")
        with pytest.raises(ParseError, match=r"^\[rule-file\]"):
            read_rules(tmp_path / "rules.toml")


@pytest.mark.parametrize(
    ("pattern", "opcode", "fits"),
    [
        ("LDG.E.128", "LDG.E.128", True),
        ("LDG.128", "LDG.E.128.CONSTANT", True),
        ("LDG", "LDG.E", True),
        ("LDG.E.128", "LDG.E", False),
        ("LDG.128.E", "LDG.E.128", False),
        ("*MMA", "HGMMA.64x8x16.F32", True),
        ("LD", "LDG.E", False),
        ("HGMMA.64X8X16", "HGMMA.64x8x16.F32", True),
    ],
)
def test_opcode_patterns(pattern: str, opcode: str, fits: bool) -> None:
    assert matches(pattern, opcode) is fits


words = st.lists(st.sampled_from(["E", "64", "128", "CONSTANT"]), max_size=4)


@given(words, words)
def test_modifiers_match_as_a_subsequence(wanted: list[str], present: list[str]) -> None:
    position = 0
    for word in present:
        if position < len(wanted) and wanted[position] == word:
            position += 1
    assert matches(".".join(["LDG", *wanted]), ".".join(["LDG", *present])) is (position == len(wanted))


def test_the_rule_of_the_copy_package_passes_and_fails_with_the_argument(tmp_path: Path) -> None:
    rule = parse_require("kernel:copy.* has LDG.E.128 >= 2")
    assert broken(make_pt2(tmp_path / "good.pt2", WRAPPER, {COPY_NAME: COPY_CUBIN}), rule) == []
    wrapper = WRAPPER.replace("(0,): [['tt.divisibility', 16]], ", "")
    bad = make_pt2(tmp_path / "bad.pt2", wrapper, {COPY_NAME: (TRITON / "in_unaligned.cubin").read_bytes()})
    report = inspect([bad], Request(rules=(rule,)))
    ((path, violation),) = report.violations
    assert path.endswith(COPY_NAME)
    assert violation.message == "0 × LDG.E.128, required >= 2"
    assert (violation.pc, violation.instruction) == (0x110, "@!P0 LDG.E R4, desc[UR4][R2.64]")
    assert violation.line is not None
    assert violation.cause.startswith("divisibility: i (*fp32) has no tt.divisibility")


def test_forbidden_opcodes_registers_and_narrow_accesses() -> None:
    path = FIXTURES / "narrow_sm_90.cubin"
    (found,) = broken(path, parse_forbid("kernel:^dtype$ LDG.E.U8"))
    assert found == ("dtype", "1 × LDG.E.U8, forbidden", 0xB0, "")
    assert broken(path, parse_forbid("STL"), max_registers(255)) == []
    assert {f[0] for f in broken(path, max_registers(10))} == {
        "mask",
        "offset",
        "stride",
        "stride_rows",
        "gather",
    } | {f[0] for f in broken(path, max_registers(10))}
    (kernel, message, _, _) = broken(path, max_registers(1, "^wide$"))[0]
    assert (kernel, message) == ("wide", "14 registers, at most 1 allowed")
    narrow = {kernel for kernel, _, _, _ in broken(path, fail_on("narrow"))}
    assert "wide" not in narrow
    assert {"mask", "tail", "gather"} < narrow


def test_spills_are_reported_with_the_first_one(corpus_all: list[Path]) -> None:
    path = next(p for p in corpus_all if "sm_86-ctranslate2-61b077c41cec" in p.name)
    found = broken(path, fail_on("spill"))
    assert [message.split(",")[0] for _, message, _, _ in found] == [
        "32 spill instructions",
        "352 spill instructions",
    ]
    assert all(pc > 0 for _, _, pc, _ in found)


def test_a_requirement_that_no_kernel_is_measured_by_is_broken() -> None:
    assert broken(FIXTURES / "vector_copy.cubin", parse_require("kernel:nothing has LDG >= 1")) == [
        ("", "no kernel matches 'nothing'", -1, "")
    ]


@pytest.mark.parametrize(
    "rule",
    [
        parse_forbid("kernel:copy_kernl STL"),
        fail_on("narrow", "copy_kernl"),
        max_registers(200, "copy_kernl"),
    ],
)
def test_no_rule_passes_for_want_of_a_kernel(rule: Rule) -> None:
    assert broken(FIXTURES / "vector_copy.cubin", rule) == [("", "no kernel matches 'copy_kernl'", -1, "")]


def test_at_most_rules_name_an_instance() -> None:
    ((_, message, pc, _),) = broken(FIXTURES / "vector_copy.cubin", parse_require("has STG <= 1"))
    assert (message, pc) == ("2 × STG, required <= 1", 0x150)


def test_rule_files(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rule]]\nkernel = "copy.*"\nrequire = ["LDG.E.128 >= 2", "STG.E.128 >= 2"]\nforbid = "STL"\n'
        '[[rule]]\nmax_registers = 32\nfail_on = ["spill"]\n'
    )
    assert [rule.text for rule in read_rules(path)] == [
        "kernel:copy.* has LDG.E.128 >= 2",
        "kernel:copy.* has STG.E.128 >= 2",
        "kernel:copy.* forbid STL",
        "fail-on spill",
        "max-registers 32",
    ]
    assert broken(FIXTURES / "vector_copy.cubin", *read_rules(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[rule]\n",
        "[[rule]]\n",
        '[[rule]]\nkernel = "x"\n',
        "[[rule]]\nforbit = 1\n",
        "x = \n",
        '[[rule]]\nmax_registers = "many"\n',
    ],
)
def test_odd_rule_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ParseError, match="rule-file"):
        read_rules(path)
    with pytest.raises(ParseError, match="cannot read"):
        read_rules(tmp_path / "missing.toml")
