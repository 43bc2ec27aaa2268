"""``.nv.info`` attributes."""

from __future__ import annotations

from pathlib import Path

import pytest
from binary_support import load
from hypothesis import given
from hypothesis import strategies as st

from gwatch.cuda.binary import nvinfo
from gwatch.cuda.binary.elf import Elf
from gwatch.cuda.binary.nvinfo import Attr, Attribute
from gwatch.errors import CubinError, UnsupportedError

SHT_CUDA_INFO = 0x70000000


def test_every_section_of_the_corpus_is_serialized_byte_for_byte(corpus_all: list[Path]) -> None:
    records = 0
    for path in corpus_all:
        elf = Elf(path.read_bytes(), path.name)
        for section in elf.sections:
            if section.type == SHT_CUDA_INFO:
                attributes = nvinfo.parse(elf.content(section), section.name)
                assert nvinfo.serialize(attributes) == elf.content(section)
                records += len(attributes)
    assert records > 30_000


def test_offsets_of_the_corpus_name_instructions_of_their_kind(corpus_all: list[Path]) -> None:
    """The offset column of each list is right: every value is an instruction, and EXIT offsets name EXITs."""
    seen: dict[int, int] = {}
    for path in corpus_all:
        elf = Elf(path.read_bytes(), path.name)
        for section in elf.sections:
            if section.type != SHT_CUDA_INFO or section.name == ".nv.info":
                continue
            text = elf.content(section.info)
            for attribute in nvinfo.parse(elf.content(section)):
                shape = nvinfo.OFFSET_SHAPES.get(attribute.code)
                if shape is None:
                    continue
                words = attribute.words
                assert len(words) % shape.stride == 0
                for offset in words[shape.column :: shape.stride]:
                    assert offset % 16 == 0 and offset < len(text), (path.name, section.name, attribute.name)
                    if attribute.code == Attr.EXIT_INSTR_OFFSETS:
                        assert int.from_bytes(text[offset : offset + 2], "little") & 0xFFF == 0x94D
                    seen[attribute.code] = seen.get(attribute.code, 0) + 1
    assert set(seen) == set(nvinfo.OFFSET_SHAPES) - {Attr.ATOM16_EMUL_INSTR_REG_MAP}


def test_masks_are_parallel_to_their_offsets(corpus_all: list[Path]) -> None:
    pairs = 0
    for path in corpus_all:
        elf = Elf(path.read_bytes(), path.name)
        for section in elf.sections:
            if section.type == SHT_CUDA_INFO:
                attributes = nvinfo.parse(elf.content(section))
                masks = nvinfo.first(attributes, Attr.COOP_GROUP_MASK_REGIDS)
                offsets = nvinfo.first(attributes, Attr.COOP_GROUP_INSTR_OFFSETS)
                if masks is not None:
                    assert offsets is not None and len(offsets.words) == len(masks.words)
                    pairs += 1
    assert pairs > 500


def test_typed_access_to_a_kernel() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("reach")
    assert nvinfo.parameters(kernel.attributes) == (nvinfo.Parameter(0, 0, 8), nvinfo.Parameter(1, 8, 4))
    assert kernel.param_base == 0x210
    assert kernel.register_count == 15
    cbank = nvinfo.first(kernel.attributes, Attr.PARAM_CBANK)
    assert cbank is not None and cbank.words[1] == 0xC0210
    assert nvinfo.first(kernel.attributes, Attr.INDIRECT_BRANCH_TARGETS) is None


def test_jump_table_records_list_branch_and_targets() -> None:
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("choose")
    attribute = nvinfo.first(kernel.attributes, Attr.INDIRECT_BRANCH_TARGETS)
    assert attribute is not None
    branches = nvinfo.indirect_branches(attribute)
    assert [len(branch.targets) for branch in branches] == [4, 3]
    opcodes = [int(kernel.words[branch.branch // 16, 0]) & 0xFFF for branch in branches]
    assert opcodes == [0x949, 0x949]  # BRX
    with pytest.raises(CubinError, match=r"\[nvinfo-shape\]"):
        nvinfo.indirect_branches(attribute.with_words([0, 0, 9, 1]))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x04\x2f", "nvinfo-truncated"),
        (b"\x04\x2f\x08\x00\x01\x02", "nvinfo-truncated"),
        (b"\x05\x2f\x08\x00", "nvinfo-format"),
        (b"\x00\x00\x00\x00", "nvinfo-format"),
    ],
)
def test_damage_has_a_code(data: bytes, code: str) -> None:
    with pytest.raises(CubinError) as caught:
        nvinfo.parse(data)
    assert caught.value.code == code


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_exactly_or_refused(data: bytes) -> None:
    try:
        attributes = nvinfo.parse(data)
    except CubinError:
        return
    assert nvinfo.serialize(attributes) == data


@pytest.mark.parametrize("code", [0x5F, 0x68, 0x6D])
@pytest.mark.parametrize("form", [3, 4])
def test_known_scalars_without_a_name_pass(code: int, form: int) -> None:
    nvinfo.check_movable([Attribute(form, code, 4, b"\0\0\0\0" if form == 4 else b"")], "k")


def test_an_unknown_list_refuses_movement_by_code() -> None:
    with pytest.raises(UnsupportedError, match=r"\[nvinfo-unknown\] kernel k carries attribute 0x7e"):
        nvinfo.check_movable([Attribute(4, 0x7E, 4, b"\0\0\0\0")], "k")
    nvinfo.check_movable([Attribute(3, 0x7E, 4)], "k")


@pytest.mark.parametrize("attr", [Attr.S2RCTAID_INSTR_OFFSETS, Attr.COROUTINE_RESUME_OFFSETS,
                                  Attr.SW_WAR_MEMBAR_SYS_INSTR_OFFSETS, Attr.STACK_CANARY_TRAP_OFFSETS])  # fmt: skip
def test_offset_lists_whose_shape_was_never_seen_are_refused(attr: Attr) -> None:
    with pytest.raises(UnsupportedError) as caught:
        nvinfo.check_movable([Attribute(4, attr, 4, b"\0\0\0\0")], "k")
    assert caught.value.code == "nvinfo-unknown" and attr.name in str(caught.value)


def test_two_copies_get_two_sets_of_entries_and_the_masks_stay_parallel() -> None:
    offsets = Attribute(4, Attr.COOP_GROUP_INSTR_OFFSETS, 0).with_words([0x10, 0x30])
    masks = Attribute(4, Attr.COOP_GROUP_MASK_REGIDS, 0).with_words([0xF, 0xFFFFFFFF])
    moved, counts = nvinfo.move([masks, offsets], lambda offset, copy: offset + 0x1000 * copy, 2)
    assert moved[0].words == (0xF, 0xFFFFFFFF, 0xF, 0xFFFFFFFF)
    assert moved[1].words == (0x10, 0x30, 0x1010, 0x1030)
    assert counts == {"COOP_GROUP_INSTR_OFFSETS": 2}


def test_a_list_beyond_the_record_size_is_refused() -> None:
    with pytest.raises(CubinError, match=r"\[nvinfo-shape\]"):
        Attribute(4, Attr.EXIT_INSTR_OFFSETS, 0).with_words(range(16384))
