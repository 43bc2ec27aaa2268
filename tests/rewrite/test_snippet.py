"""Snippets: what can be written, what is refused, and where the refusal points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gwatch.errors import ParseError
from gwatch.rewrite.snippet import ORIGINAL, Reference, Snippet


def references(snippet: Snippet) -> list[Reference]:
    return [piece for line in snippet.lines for piece in line.pieces if isinstance(piece, Reference)]


def test_undeclared_numbered_names_are_single_scratch_registers() -> None:
    snippet = Snippet("@%p0 IADD3 %r0, %r1, 0x1, RZ ; ULDC %ur3, c[0x0][0x208]")
    assert snippet.scratch == {"p0": ("P", 1), "r0": ("R", 1), "r1": ("R", 1), "ur3": ("UR", 1)}
    assert [line.line for line in snippet.lines] == [1, 1]


def test_offsets_of_wide_registers_are_told_from_hexadecimal_address_offsets() -> None:
    snippet = Snippet(
        "STG.E.64 desc[%ud][%a.64+0x10], %t+1 ;", registers={"a": 2, "t": 2}, uniforms={"ud": 2}
    )
    assert [(r.kind, r.name, r.offset) for r in references(snippet)] == [
        ("UR", "ud", 0),
        ("R", "a", 0),
        ("R", "t", 1),
    ]
    assert "".join(p if isinstance(p, str) else "_" for p in snippet.lines[0].pieces) == (
        "STG.E.64 desc[_][_.64+0x10], _"
    )


def test_state_values_and_guard_are_kinds_of_their_own() -> None:
    snippet = Snippet("@%guard LOP3.LUT %off, %off, {site}, RZ, 0xfc", state=("off",))
    assert snippet.scratch == {} and snippet.values == {"site"}
    assert [r.kind for r in references(snippet)] == ["guard", "state", "state", "value"]
    assert snippet.lines[0].guarded


def test_labels_and_the_original_are_targets_not_operands() -> None:
    snippet = Snippet("""
        again: IADD3 %r0, %r0, -0x1, RZ
        ISETP.NE.AND %p0, PT, %r0, RZ, PT   // count down
        @%p0 BRA again
        BRA {original}
    """)
    assert [line.target for line in snippet.lines] == [None, None, "again", ORIGINAL]
    assert snippet.labels == {"again": 0} and snippet.uses_original
    assert snippet.lines[2].pieces[-1] == " BRA "


@pytest.mark.parametrize(
    ("text", "keywords", "code", "where"),
    [
        ("", {}, "snippet-empty", ""),
        ("// nothing", {}, "snippet-empty", ""),
        ("NOP\n  mov %r0, 1", {}, "snippet-syntax", "line 2, column 3"),
        ("MOV %r0, %value", {}, "snippet-name", "line 1, column 10"),
        ("MOV %t+2, RZ", {"registers": {"t": 2}}, "snippet-width", "line 1, column 5"),
        ("a: NOP\na: NOP", {}, "snippet-label", "line 2, column 1"),
        ("NOP\nend:", {}, "snippet-label", "'end'"),
        ("MOV %r0, {original}, RZ", {}, "snippet-label", "column 10"),
        ("@!%guard NOP", {}, "snippet-name", "column 1"),
        ("NOP", {"registers": {"t": 3}}, "snippet-width", "3 wide"),
        ("NOP", {"registers": {"t": 1}, "predicates": ("t",)}, "snippet-name", "twice"),
        ("NOP", {"registers": {"guard": 1}}, "snippet-name", "guard"),
        ("NOP", {"needs": ("printf",)}, "snippet-need", "printf"),
        ("MOV %r0, %", {}, "snippet-syntax", "column 1"),
    ],
)
def test_refusals_name_the_place(text: str, keywords: dict[str, object], code: str, where: str) -> None:
    with pytest.raises(ParseError) as caught:
        Snippet(text, **keywords)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert where in str(caught.value)


@given(st.text(alphabet="%{}:;@!.,[]+-0x1rpuRAZ nolabe\n/", max_size=60))
def test_any_text_is_a_snippet_or_a_parse_error(text: str) -> None:
    try:
        snippet = Snippet(text)
    except ParseError as error:
        assert error.code.startswith("snippet-")
    else:
        assert snippet.lines
        assert all(index < len(snippet.lines) for index in snippet.labels.values())
