"""Reading nvdisasm listings: functions, labels, instructions, line comments, encodings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gwatch.cuda.binary.elf import Elf
from gwatch.errors import KernelError, ParseError
from gwatch.sass.listing import (
    Argument,
    Directive,
    ListedFunction,
    ListedInstruction,
    SourcePlace,
    parse_listing,
)
from gwatch.sass.nvdisasm import disassemble_cubin

GOLDEN = Path(__file__).parent / "golden"
HEADER = "\t.target\tsm_90a\n\n//---- .text.k ----\n\t.section\t.text.k,\"ax\",@progbits\nk:\n"
SMALL = "sm_90-jax_cuda13_plugin-bb4300356c24.cubin"


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def test_functions_of_a_listing() -> None:
    listing = parse_listing(golden("listing_hex.txt"))
    assert listing.target == "sm_90a"
    assert [section.name for section in listing.sections] == [".text._Z6secondPi", ".text.first"]
    slow_sqrt = "$__internal_0_$__cuda_sm20_sqrt_rn_f32_slowpath"
    slow_div = "$__internal_1_$__cuda_sm3x_div_rn_noftz_f32_slowpath"
    assert [function for _, function in listing.functions()] == [
        ListedFunction("_Z6secondPi", 0, 0x180, "global", True),
        ListedFunction("first", 0, 0xB00, "global", True),
        ListedFunction("$first$_Z1ff", 0xC0, 0x1C0, "local", False),
        ListedFunction(slow_sqrt, 0x280, 0x170, "weak", False),
        ListedFunction(slow_div, 0x3F0, 0x710, "weak", False),
    ]


def test_instructions_of_a_function() -> None:
    listing = parse_listing(golden("listing_hex.txt"))
    section, inner = listing.function("$first$_Z1ff")
    inside = section.instructions_of(inner)
    assert (inside[0].offset, inside[-1].offset) == (0xC0, 0x270)
    assert inside[0].labels == ("$first$_Z1ff",)
    kernel = listing.function("first")[1]
    assert len(section.instructions_of(kernel)) == 0xB00 // 16
    with pytest.raises(KernelError, match=r"\[kernel-unknown\] the listing has no function 'third'"):
        listing.function("third")


def test_encodings_are_whole_words() -> None:
    listing = parse_listing(golden("listing_hex.txt"))
    first = listing.sections[0].instructions[0]
    assert first == ListedInstruction(0, "LDC R1, c[0x0][0x28]", " ;", ("_Z6secondPi", ".text._Z6secondPi"),
                                      (), 0x000FE2000000080000000A00FF017B82)
    words = [one.encoding for section in listing.sections for one in section.instructions]
    assert len(words) == 0x180 // 16 + 0xB00 // 16
    assert all(word is not None and 0 < word >> 64 < 1 << 62 for word in words)


def test_line_comments_with_inlining() -> None:
    section = parse_listing(golden("listing_inlined.txt")).sections[0]
    by_text = {one.text: one for one in section.instructions}
    assert by_text["LDC R1, c[0x0][0x28]"].sources == (SourcePlace("/src/inl.cu", 4),)
    inlined = (SourcePlace("/src/inl.cu", 2, ("/src/inl.cu", 5)), SourcePlace("/src/inl.cu", 5))
    assert by_text["HFMA2.MMA R5, -RZ, RZ, 2, 0"].sources == inlined
    assert by_text["FFMA R5, R0, R5, 1"].sources == inlined
    assert by_text["STG.E desc[UR4][R2.64], R5"].sources == (SourcePlace("/src/inl.cu", 5),)
    assert by_text["EXIT"].labels == (".L_x_1",)
    assert by_text["BRA `(.L_x_0)"].tail == ";"
    assert section.labels == {"kk": 0, ".text.kk": 0, ".L_x_1": 0x90, ".L_x_0": 0xA0, ".L_x_2": 0x180}


def test_directives_of_a_section() -> None:
    section = parse_listing(golden("listing_inlined.txt")).sections[0]
    assert section.directives == [
        Directive(".section", (Argument("word", ".text.kk"), Argument("string", "ax"),
                               Argument("attribute", "progbits"))),
        Directive(".align", (Argument("word", "128"),)),
        Directive(".global", (Argument("word", "kk"),)),
        Directive(".type", (Argument("word", "kk"), Argument("attribute", "function"))),
        Directive(".size", (Argument("word", "kk"), Argument("difference", ".L_x_2", "kk"))),
        Directive(".other", (Argument("word", "kk"), Argument("attribute", "STO_CUDA_ENTRY STV_DEFAULT"))),
    ]


def test_annotations_are_kept_apart_from_the_text() -> None:
    listing = parse_listing(HEADER + '        /*0000*/                   STL [R1+0x8], R4     (*"SpillRefill"*);\n'
                            '        /*0010*/                   BRX R2 -0x8250  (*"BRANCH_TARGETS .L_x_1,.L_x_2"*);\n'
                            "        /*0020*/              @!P0 EXIT ;\n")
    spill, table, leave = listing.sections[0].instructions
    assert (spill.text, spill.annotation) == ("STL [R1+0x8], R4", '"SpillRefill"')
    assert spill.tail == '     (*"SpillRefill"*);'
    assert (table.text, table.annotation) == ("BRX R2 -0x8250", '"BRANCH_TARGETS .L_x_1,.L_x_2"')
    assert (leave.text, leave.tail, leave.annotation) == ("@!P0 EXIT", " ;", "")


@pytest.mark.parametrize(("flags", "target"), [
    ("EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM75)", "sm_80"),
    ("EF_CUDA_64BIT_ADDRESS EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)", "sm_90a"),
    ("EF_CUDA_64BIT_ADDRESS", ""),
])
def test_target_of_an_old_file_is_in_its_flags(flags: str, target: str) -> None:
    assert parse_listing(f'\t.headerflags\t@"{flags}"\n').target == target


def test_data_sections_are_passed_over() -> None:
    listing = parse_listing('//---- .nv.info ----\n\t.section\t.nv.info,"",@"SHT_CUDA_INFO"\n\t.align\t4\nx:\n'
                            "        /*0000*/ \t.byte\t0x04, 0x37\n.L_1:\n" + HEADER
                            + "        /*0000*/                   NOP;\n")
    assert [section.name for section in listing.sections] == [".text.k"]
    assert [one.text for one in listing.sections[0].instructions] == ["NOP"]
    assert listing.sections[0].labels == {"k": 0}


@pytest.mark.parametrize(("lines", "message"), [
    ("        /*0000*/                   NOP\n", "line 6 is an instruction without semicolon"),
    ("        /*0000*/                   ;\n", "line 6 is an empty instruction"),
    ("        /*00x0*/                   NOP ;\n", "line 6 has no offset"),
    ("        /*0000*/                   NOP ; junk\n", "line 6 has text behind the semicolon"),
    ("what is this\n", "line 6 is no instruction, label or directive"),
    ("                 /* 0x000e220000000800 */\n", "line 6 is an encoding without instruction"),
    ("        /*0000*/ NOP ; /* 0x0000000000007918 */\n /* 0x000fc00000000000 */\n /* 0x000fc00000000000 */\n",
     "line 8 is an encoding without instruction"),
    ("\t.size\tk,(.L_1 - \n", "line 6, column 16: unexpected the end"),
])
def test_what_is_not_understood_is_refused_with_its_line(lines: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_listing(HEADER + lines)
    assert caught.value.code == "listing-syntax"
    assert caught.value.message.startswith(message)


def test_an_empty_listing_is_empty() -> None:
    assert parse_listing("").sections == []
    assert parse_listing(HEADER).sections[0].instructions == []
    assert parse_listing(HEADER).sections[0].labels == {"k": 0}


@pytest.fixture(scope="module")
def small(corpus_sm90: list[Path]) -> Path:
    return next(path for path in corpus_sm90 if path.name == SMALL)


@pytest.mark.parametrize("options", [
    (), ("-hex",), ("-c", "-hex", "-gi"), ("-c", "-g"), ("-c", "-gp"), ("-raw",), ("-c", "-raw", "-ndf"),
    ("-sf",), ("-sort",), ("-c", "-ndf"),
], ids=" ".join)
def test_every_output_option_gives_the_same_code(small: Path, options: tuple[str, ...]) -> None:
    expected = parse_listing(disassemble_cubin(small, "-c"))
    found = parse_listing(disassemble_cubin(small, *options))
    assert [one for _, one in found.functions()] == [one for _, one in expected.functions()]
    assert len(found.sections) == len(expected.sections) == 1
    for ours, theirs in zip(found.sections, expected.sections, strict=True):
        assert [(one.offset, one.text) for one in ours.instructions] == [
            (one.offset, one.text) for one in theirs.instructions]
        assert ours.functions == theirs.functions
        assert ours.labels == theirs.labels


def test_encodings_are_the_bytes_of_the_file(corpus_sm90: list[Path]) -> None:
    """The other road to the same words: the ELF sections."""
    path = next(path for path in corpus_sm90 if "xformers" in path.name)
    elf = Elf(path.read_bytes())
    sections = parse_listing(disassemble_cubin(path, "-c", "-hex")).sections
    assert len(sections) == 3
    for section in sections:
        found = elf.find(section.name)
        assert found is not None
        words = b"".join((one.encoding or 0).to_bytes(16, "little") for one in section.instructions)
        assert words == bytes(elf.content(found.index))


def test_corpus_listings_are_complete(sm90_listings: dict[Path, str]) -> None:
    for path, text in sm90_listings.items():
        listing = parse_listing(text)
        count = sum(len(section.instructions) for section in listing.sections)
        # A line with an offset comment is an instruction in a code-only listing: count them another way.
        assert count == len(re.findall(r"^ {8}/\*[0-9a-f]{4,}\*/ .*;", text, re.M))
        assert listing.target in ("sm_90", "sm_90a") and listing.target == path.name.split("-")[0]
        for section in listing.sections:
            assert [one.offset for one in section.instructions] == list(
                range(0, 16 * len(section.instructions), 16))
            for one in section.instructions:
                target = re.search(r"`\((\.L_[^)]*)\)", one.text)
                assert target is None or target.group(1) in section.labels
        assert all(function.size for _, function in listing.functions())
