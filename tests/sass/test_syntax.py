"""The instruction parser: lossless, the same tree by its two roads, clear about what it does not
understand."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.errors import ParseError
from gwatch.sass import operand as nodes
from gwatch.sass import syntax
from gwatch.sass.grammar import parse_instruction
from gwatch.sass.listing import parse_listing
from gwatch.sass.nvdisasm import disassemble_cubin, probe_words
from gwatch.sass.operand import Address, Constant, Immediate, Label, Memory, Operand, Register, Virtual
from gwatch.sass.shape import split
from gwatch.sass.syntax import Guard, Line, canonical, parse, render

GOLDEN = Path(__file__).parent / "golden" / "odd_syntax.txt"


def describe_core(core: nodes.Core) -> str:
    if isinstance(core, Register):
        return f"{core.file}:{'zero' if core.index is None else core.index}"
    if isinstance(core, Virtual):
        return f"virtual:{core.name}" + ("" if core.offset is None else f":{core.offset}")
    if isinstance(core, nodes.Placeholder):
        return f"placeholder:{core.name}"
    if isinstance(core, Immediate):
        return f"{type(core.value).__name__}:{core.value}"
    if isinstance(core, nodes.Name):
        return f"name:{core.text}"
    if isinstance(core, Label):
        return f"label:{core.symbol}"
    if isinstance(core, nodes.Relocation):
        return f"relocation:{core.bits}:{core.part}:{core.symbol}"
    if isinstance(core, nodes.BarrierSet):
        return "set:" + ":".join(map(str, core.items))
    if isinstance(core, Constant):
        bank = describe_operand(core.bank)
        return f"{'bindless' if core.bindless else 'constant'}({bank}; {describe_address(core.address)})"
    descriptor = "" if core.descriptor is None else describe_address(core.descriptor) + "; "
    return f"memory {core.space or '-'}({descriptor}{describe_address(core.address)})"


def describe_address(address: Address) -> str:
    return " + ".join(map(describe_operand, address.terms))


def describe_operand(operand: Operand) -> str:
    words = [operand.prefix, "abs" if operand.absolute else "", describe_core(operand.core)]
    words += [f"inner.{name}" for name in operand.inner] + [f".{name}" for name in operand.suffixes]
    return " ".join(word for word in words if word)


def describe(line: Line) -> str:
    parts = [line.opcode, *map(describe_operand, line.operands)]
    if line.guard is not None:
        parts.insert(0, f"guard {'not ' if line.guard.negated else ''}{describe_core(line.guard.register)}")
    return " | ".join(parts)


def golden() -> list[tuple[str, str]]:
    lines = [text for text in GOLDEN.read_text(encoding="utf-8").splitlines() if not text.startswith("#")]
    return [(text, meaning.strip()) for text, meaning in zip(lines[::2], lines[1::2], strict=True)]


@pytest.mark.parametrize(("text", "meaning"), golden(), ids=[text for text, _ in golden()])
def test_odd_syntax_is_understood_and_given_back(text: str, meaning: str) -> None:
    line = parse(text)
    assert render(line) == text
    assert describe(line) == meaning
    assert canonical(line) == text


def test_golden_file_covers_every_kind_of_operand() -> None:
    assert len(golden()) >= 100
    seen = {type(operand.core) for text, _ in golden() for operand in parse(text).operands}
    assert seen == set(get_args(nodes.Core))


def test_line_gives_its_parts() -> None:
    line = parse("@!P2 LDG.E.128 R4, desc[UR6][R2.64+0x10] ;")
    assert line.guard == Guard(Register("P", 2), True)
    assert (line.mnemonic, line.modifiers, line.opcode) == ("LDG", ("E", "128"), "LDG.E.128")
    assert line.separators == (" ", ", ")
    assert line.tail == " ;"
    memory = line.operands[1].core
    assert isinstance(memory, Memory)
    assert memory.descriptor == Address((Operand(Register("UR", 6)),))
    assert memory.address.base == Operand(Register("R", 2), suffixes=("64",))
    assert memory.address.uniform is None
    assert memory.address.offset == Immediate("0x10")
    assert list(line.registers()) == [Register("P", 2), Register("R", 4), Register("UR", 6), Register("R", 2)]


def test_address_tells_base_uniform_and_offset() -> None:
    memory = parse("LDS R0, [R5.X4+UR3+-0x20]").operands[1].core
    assert isinstance(memory, Memory)
    address = memory.address
    assert address.base is not None and address.base.core == Register("R", 5)
    assert address.uniform is not None and address.uniform.core == Register("UR", 3)
    assert isinstance(address.offset, Immediate) and address.offset.value == -32
    only = parse("UTMACCTL.PF [UR101]").operands[0].core
    assert isinstance(only, Memory)
    assert only.address.base is None
    assert only.address.offset is None


def test_immediates_have_values_and_nans_keep_their_text() -> None:
    line = parse("FAKE 0x10, -0x8, 1.5, 7060, +INF , -INF , -QNAN")
    values = [operand.core.value for operand in line.operands if isinstance(operand.core, Immediate)]
    assert values == [16, -8, 1.5, 7060, math.inf, -math.inf, "-QNAN"]


def test_reuse_is_seen_inside_and_outside_bars() -> None:
    line = parse("FFMA R1, R2.reuse, |R3|.reuse, R4")
    assert [operand.reuse for operand in line.operands] == [False, True, True, False]


def test_registers_of_constants_and_snippet_names() -> None:
    line = parse("@%p0 IADD3 %a+1, c[0x0][UR7+0xc], cx[UR2][R9], [R4.64+UR8]")
    assert list(line.registers()) == [Virtual("p0"), Virtual("a", 1), Register("UR", 7), Register("UR", 2),
                                      Register("R", 9), Register("R", 4), Register("UR", 8)]


@pytest.mark.parametrize("text", [
    "NOP;", "FFMA R1, R2, R3, R4 ;", "DMUL R20, R20, +INF  ;", "EXIT \t;",
    'STL [R1+0x8], R4          (*"SpillRefill"*);',
    'BRX R2 -0x8250    (*"BRANCH_TARGETS .L_x_1,.L_x_2"*);',
])
def test_tail_is_kept(text: str) -> None:
    line = parse(text)
    assert render(line) == text
    assert line.tail.strip().endswith(";")
    bare = Line(line.guard, line.mnemonic, line.modifiers, line.operands, line.separators)
    assert render(bare) + line.tail == text


@pytest.mark.parametrize(("text", "wanted"), [
    ("@P0   EXIT ;", "@P0 EXIT"),
    ("IADD3   R0,R1 ,  R2,RZ;", "IADD3 R0, R1, R2, RZ"),
    ("BRX  R4   -0x40", "BRX R4 -0x40"),
    ("FSEL R2, R2, +INF, P1", "FSEL R2, R2, +INF , P1"),
    ("DMUL R20, R20, +INF  ;", "DMUL R20, R20, +INF"),
])
def test_canonical_spacing_is_nvdisasms(text: str, wanted: str) -> None:
    assert canonical(parse(text)) == wanted
    assert canonical(parse(wanted)) == wanted


@pytest.mark.parametrize(("text", "column", "found"), [
    ("", 1, "the end"),
    ("LDG.E R4, desc[UR4][R2.64+0x10", 31, "the end"),
    ("LDG.E R4, desc[UR4][R2.64+]", 27, "']'"),
    ("FADD R1, R2,, R3", 13, "', '"),
    ("FADD R1, |R2", 13, "the end"),
    ("FADD R1, $x", 10, "'$'"),
    ("@P0EXIT", 2, "'P0EXIT'"),
    ("@R0 EXIT", 2, "'R0'"),
    ("MOV R01, R2", 5, "'R01'"),
    ("@!R0", 3, "'R0'"),
    ("BRA `(.L_x_2", 5, "'`'"),
    ("DEPBAR.LE SB0, {01}", 16, "'{'"),
    ("MOV R1, %a+0x1", 12, "'0x1'"),
    (" NOP", 1, "' '"),
])
def test_errors_name_line_column_and_token(text: str, column: int, found: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text, line=7)
    assert caught.value.code == "sass-syntax"
    assert caught.value.message.startswith(f"line 7, column {column}: unexpected {found} ")


def test_error_says_what_was_expected() -> None:
    with pytest.raises(ParseError) as caught:
        parse("FADD R1 R2 R3,")
    assert caught.value.hint == "expected an operand"
    with pytest.raises(ParseError) as caught:
        parse("LDG R1, [R2+]")
    assert caught.value.hint == "expected a register or a number"
    with pytest.raises(ParseError) as caught:
        parse("LDG R1, [R2")
    assert caught.value.hint == "expected '+' or ']' or a modifier"


@pytest.mark.parametrize("value", ["01", "0x1", "-1", "1.5"])
def test_a_known_shape_is_as_strict_as_the_grammar(value: str) -> None:
    parse("DEPBAR.LE SB0, {1}")
    parse("MOV R1, %a+1")
    for text in (f"DEPBAR.LE SB0, {{{value}}}", f"MOV R1, %a+{value}"):
        with pytest.raises(ParseError):
            parse_instruction(text)
        with pytest.raises(ParseError):
            parse(text)


def test_both_roads_give_the_same_tree() -> None:
    for text, _ in golden():
        by_grammar = parse_instruction(text)
        first, second = parse(text), parse(text)
        assert first == second
        assert first.operands == by_grammar.operands
        assert (first.mnemonic, first.modifiers) == (by_grammar.mnemonic, by_grammar.modifiers)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syntax, "_REMEMBERED", 50)
    for index in range(300):
        assert render(parse(f"MOV R{index % 255}, 0x{index:x}")) == f"MOV R{index % 255}, 0x{index:x}"
    assert sum(len(shape.made) for shape in syntax._shapes.values()) <= 60


modifiers = st.lists(st.from_regex(r"[A-Z0-9?][A-Za-z0-9_?]{0,6}", fullmatch=True), max_size=3).map(tuple)
suffixes = st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9_?]{0,5}", fullmatch=True), max_size=2).map(tuple)
indices = st.integers(0, 300)
registers = st.one_of(
    st.builds(Register, st.sampled_from(["R", "UR", "P", "UP", "B", "SB", "gsb"]), indices),
    st.builds(Register, st.sampled_from(["R", "UR", "P", "UP"]), st.none()))
hexes = st.integers(-(1 << 64), 1 << 64).map(lambda n: f"{'-' if n < 0 else ''}{abs(n):#x}")
floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: f"{x:.20g}")
numbers = st.one_of(hexes, floats).map(Immediate)
some_names = ["PR", "UPR", "Rpc", "2D", "ARRAY_2D", "???7", "PNZPPPPP", "R", "B2R", "c", "desc"]
names = st.one_of(st.sampled_from(some_names),
                  st.from_regex(r"SR_?[A-Z0-9_]{1,8}", fullmatch=True)).map(nodes.Name)
symbols = st.from_regex(r"[.$A-Za-z_][A-Za-z0-9_.$@+ -]{0,12}(\([a-z]{1,3}(\(x\))?\))?", fullmatch=True)
identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
placeholders = identifiers.map(nodes.Placeholder)
virtuals = identifiers.map(Virtual)
memory_registers = st.builds(Register, st.sampled_from(["R", "UR"]), st.one_of(st.none(), indices))
terms = st.one_of(st.builds(Operand, st.one_of(memory_registers, virtuals),
                            suffixes=st.sampled_from([(), ("64",), ("U32",), ("X8",)])),
                  st.builds(Operand, st.one_of(hexes.map(Immediate), placeholders)))
addresses = st.lists(terms, min_size=1, max_size=3).map(lambda chosen: Address(tuple(chosen)))
constants = st.builds(Constant, st.booleans(), terms, addresses, st.sampled_from(["", " "]))
memories = st.builds(Memory, st.sampled_from(["", "desc", "gdesc", "tmem", "idesc", "a"]), addresses,
                     st.one_of(st.none(), addresses))
sets = st.lists(indices, min_size=1, max_size=6).map(lambda items: nodes.BarrierSet(tuple(items)))
relocations = st.builds(nodes.Relocation, st.just("32"), st.sampled_from(["lo", "hi"]), symbols)
cores = st.one_of(registers, names, placeholders,
                  st.builds(Virtual, identifiers, st.one_of(st.none(), indices)),
                  symbols.map(Label), relocations, sets, constants, memories)
prefixes = st.sampled_from(["", "-", "!", "~"])
operands = st.one_of(
    st.builds(Operand, cores, prefixes, suffixes=suffixes),
    st.builds(Operand, cores, prefixes, st.just(True), suffixes, suffixes),
    st.builds(Operand, numbers, suffixes=suffixes),
    st.sampled_from(["+INF", "-INF", "+QNAN", "-SNAN"]).map(lambda text: Operand(Immediate(text))),
    st.just(Operand(Immediate("+SNAN", " "), suffixes=("B1",))))
predicates = st.builds(Register, st.sampled_from(["P", "UP"]), st.one_of(st.none(), indices))
guards = st.builds(Guard, st.one_of(predicates, virtuals), st.booleans(), st.sampled_from([" ", "   "]))


@st.composite
def lines(draw: st.DrawFn) -> Line:
    chosen = draw(st.lists(operands, max_size=5))
    separators = [draw(st.sampled_from([", ", " ", " , ", ","])) for _ in chosen]
    mnemonic = draw(st.from_regex(r"[A-Z]{3}[A-Z0-9]{0,4}", fullmatch=True))
    tail = draw(st.sampled_from(["", ";", " ;", '    (*"SpillRefill"*);']))
    return Line(draw(st.one_of(st.none(), guards)), mnemonic, draw(modifiers), tuple(chosen),
                tuple([" ", *separators[1:]][:len(chosen)]), tail)


@settings(max_examples=200, deadline=None)
@given(lines())
def test_any_tree_survives_printing_and_parsing(line: Line) -> None:
    text = render(line)
    assert parse(text) == line
    # Again, now that the shape is known.
    assert parse(text) == line


@settings(max_examples=200, deadline=None)
@given(lines(), st.data())
def test_any_values_in_a_known_shape(line: Line, data: st.DataObject) -> None:
    """The second line of a shape, made without the grammar, is what the grammar makes of it."""
    plain = Line(line.guard, line.mnemonic, line.modifiers, line.operands, line.separators)
    parse(render(plain))
    key, values = split(render(plain))
    digits = [data.draw(indices.map(str)) if value.isdigit() else value for value in values]
    text = "".join([a + b for a, b in zip(key.split("\x00"), [*digits, ""], strict=True)])
    by_grammar = parse_instruction(text)
    assert parse(text).operands == by_grammar.operands
    assert render(parse(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="@!P0R12 ,.[]|-+~{}%`()xcdesUBLDG;\x00\t", max_size=40))
def test_any_text_is_parsed_exactly_or_refused(text: str) -> None:
    try:
        line = parse(text)
    except ParseError as error:
        assert error.code == "sass-syntax"
        assert "\n" not in str(error)
    else:
        assert render(line) == text


@pytest.fixture(scope="module")
def sm90_lines(sm90_listings: dict[Path, str]) -> list[str]:
    """Every distinct instruction line of the sm_90 and sm_90a cubins of the open corpus."""
    found: set[str] = set()
    total = 0
    for listing in sm90_listings.values():
        for section in parse_listing(listing).sections:
            found.update([line.text + line.tail for line in section.instructions])
            total += len(section.instructions)
    assert total == 245_464
    return sorted(found)


def test_every_line_of_the_corpus_is_given_back(sm90_lines: list[str]) -> None:
    assert len(sm90_lines) > 50_000
    assert [text for text in sm90_lines if render(parse(text)) != text] == []


def test_the_corpus_by_both_roads(sm90_lines: list[str]) -> None:
    """The first and the last line of each shape: the same tree with and without the grammar."""
    ends: dict[str, tuple[str, str]] = {}
    for text in sm90_lines:
        key = split(text)[0]
        ends[key] = (ends.get(key, (text, text))[0], text)
    for text in {text for pair in ends.values() for text in pair}:
        line = parse(text)
        body = text[:len(text) - len(line.tail)]
        assert line.operands == parse_instruction(body).operands
        assert canonical(line) == body.rstrip()


def test_the_smallest_cubin_of_each_architecture(corpus_all: list[Path]) -> None:
    smallest: dict[str, Path] = {}
    for path in sorted(corpus_all, key=lambda one: one.stat().st_size, reverse=True):
        smallest[path.name.split("-")[0]] = path
    assert len(smallest) == 10
    for target, path in smallest.items():
        listing = parse_listing(disassemble_cubin(path, "-c"))
        assert listing.target == target
        for section in listing.sections:
            for one in section.instructions:
                assert render(parse(one.text + one.tail)) == one.text + one.tail


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120a"])
def test_whatever_nvdisasm_prints_can_be_read(arch: str) -> None:
    """Random words of every opcode: most are no instruction, the others show syntax that no compiler writes."""
    rng = random.Random(arch)
    words = []
    for opcode in range(4096):
        for fixed in (7 << 12, 7 << 12 | 7 << 81 | 7 << 87):
            bits = rng.getrandbits(105 if fixed == 7 << 12 else 72) >> 16 << 16
            words.append(bits | fixed | opcode | 0x7F1 << 105)
    texts = [text for text in probe_words(arch, words, mostly_valid=False, fatal_limit=2).texts if text]
    assert len(texts) > 400
    assert [text for text in texts if render(parse(text)) != text or canonical(parse(text)) != text] == []
