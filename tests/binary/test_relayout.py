"""Moving holders of code addresses: one test per kind, with a site exactly on the referenced instruction.

The code itself is only shifted here (branches inside it keep their old distances): what is looked at is the
container.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from binary_support import DATA, HOLDERS, Edited, insert, load, with_dependent_mercury

from gwatch.cuda.binary import Cubin, KernelDef, nvinfo
from gwatch.cuda.binary.debugregs import RegisterRange, read_ranges, write_ranges
from gwatch.cuda.binary.elf import STT_FUNC, Elf
from gwatch.cuda.binary.frames import read_fdes
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.lines import start_addresses
from gwatch.cuda.binary.mercury import mercury_sections, without_mercury
from gwatch.cuda.binary.nvinfo import Attr, Attribute
from gwatch.cuda.binary.relayout import TextEdit, apply_edit
from gwatch.errors import CubinError, GWatchError, UnsupportedError
from gwatch.sass import nvdisasm

EXIT, BRA = 0x94D, 0x947


def _words(kernel: object, code: int) -> tuple[int, ...]:
    attribute = nvinfo.first(kernel.attributes, code)  # type: ignore[attr-defined]
    assert attribute is not None
    return attribute.words


# offset attributes ------------------------------------------------------------------------------------------

CASES = [
    ("reach", Attr.EXIT_INSTR_OFFSETS), ("reach", Attr.INT_WARP_WIDE_INSTR_OFFSETS), ("speak", Attr.SYSCALL_OFFSETS),
    ("swap", Attr.COOP_GROUP_INSTR_OFFSETS), ("halves", Attr.ATOM16_EMUL_INSTR_REG_MAP),
]  # fmt: skip


@pytest.mark.parametrize("twin", [False, True], ids=["one copy", "twin"])
@pytest.mark.parametrize(("kernel", "code"), CASES, ids=lambda v: v if isinstance(v, str) else v.name)
@pytest.mark.parametrize("file", HOLDERS)
def test_an_attribute_follows_its_instruction(file: str, kernel: str, code: Attr, twin: bool) -> None:
    _check_attribute(load(file), kernel, code, twin)


def _check_attribute(cubin: Cubin, kernel: str, code: int, twin: bool) -> None:
    shape = nvinfo.OFFSET_SHAPES[code]
    before = [w for a in cubin.get_kerneldef_by_name(kernel).attributes if a.code == code for w in a.words]
    sites = {offset // 16 for offset in before[shape.column :: shape.stride]}
    edited = insert(cubin, kernel, sites, twin=twin)
    copies = 1 + twin
    records_before = [a.words for a in edited.before.attributes if a.code == code]
    records_after = [a.words for a in edited.after.attributes if a.code == code]
    assert len(records_after) == len(records_before)
    for old, new in zip(records_before, records_after, strict=True):
        assert len(new) == copies * len(old)
        for copy in range(copies):
            part = new[copy * len(old) : (copy + 1) * len(old)]
            for column in range(shape.stride):
                for was, now in zip(old[column :: shape.stride], part[column :: shape.stride], strict=True):
                    if column == shape.column:
                        assert now == 16 * edited.place[copy][was // 16]
                        assert now != 16 * edited.target[was // 16]
                        assert (
                            edited.after.words[now // 16].tolist() == edited.before.words[was // 16].tolist()
                        )
                    else:
                        assert now == was


CORPUS_KINDS = {
    Attr.MBARRIER_INSTR_OFFSETS: "sm_90a", Attr.INSTR_REG_MAP: "sm_90a", Attr.UNUSED_LOAD_BYTE_OFFSET: "sm_80",
    Attr.ANNOTATIONS: "sm_75",
}  # fmt: skip


@pytest.mark.parametrize("code", CORPUS_KINDS, ids=lambda c: c.name)
def test_an_attribute_of_a_real_kernel_follows_its_instruction(code: Attr, corpus_all: list[Path]) -> None:
    checked = 0
    for path in corpus_all:
        if not path.name.startswith(CORPUS_KINDS[code]) or "bitsandbytes" in path.name:
            continue
        cubin = Cubin.from_file(path)
        for name, kernel in cubin.get_map_kernel_def().items():
            codes = {a.code for a in kernel.attributes}
            if code in codes and Attr.INDIRECT_BRANCH_TARGETS not in codes:
                for twin in (False, True):
                    _check_attribute(cubin, name, code, twin)
                checked += 1
    assert checked


def test_masks_stay_parallel_in_a_twin() -> None:
    edited = insert(load("holders_sm90.cubin"), "swap", {0}, twin=True)
    old = _words(edited.before, Attr.COOP_GROUP_MASK_REGIDS)
    assert _words(edited.after, Attr.COOP_GROUP_MASK_REGIDS) == old * 2
    assert len(_words(edited.after, Attr.COOP_GROUP_INSTR_OFFSETS)) == 2 * len(old)


def test_other_kernels_and_attributes_keep_their_bytes() -> None:
    cubin = load("holders_sm90.cubin")
    edited = insert(cubin, "reach", {0, 5})
    for name, kernel in cubin.get_map_kernel_def().items():
        other = edited.cubin.get_kerneldef_by_name(name)
        if name != "reach":
            assert np.array_equal(other.words, kernel.words)
            assert other.attributes == kernel.attributes
            assert other.map_address_to_line == kernel.map_address_to_line
            assert other.symbol == kernel.symbol


# jump tables ----------------------------------------------------------------------------------------------------


def _check_tables(cubin: Cubin, name: str, twin: bool) -> int:
    kernel = cubin.get_kerneldef_by_name(name)
    tables = kernel.jump_tables
    assert tables is not None
    sites = {0, *kernel.indirect_targets}
    sites |= {target for targets in kernel.indirect_targets.values() for target in targets}
    edited = insert(cubin, name, sites, twin=twin)
    after = [
        branch
        for attribute in edited.after.attributes
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS
        for branch in nvinfo.indirect_branches(attribute)
    ]
    count = len(tables.branches)
    assert len(after) == count * (1 + twin)
    old_bank = cubin.elf.content(tables.section)
    new_bank = edited.cubin.elf.content(edited.cubin.elf.section(tables.section.index))
    assert len(new_bank) == len(old_bank) + twin * tables.stride and tables.stride % 16 == 0
    for copy in range(1 + twin):
        targets = edited.place[1] if copy else edited.target
        for old, new in zip(tables.branches, after[copy * count : (copy + 1) * count], strict=True):
            assert new.branch == 16 * edited.place[copy][old.branch // 16]
            assert new.targets == tuple(16 * targets[target // 16] for target in old.targets)
            assert edited.after.texts[new.branch // 16].split()[0] in ("BRX", "BRXU")
    # The untouched copy counts from its own start: its tables stay as they were.
    assert not twin or new_bank[: len(old_bank)] == old_bank
    for word in range(len(old_bank) // 4):
        was, now = (
            int.from_bytes(bank[at : at + 4], "little")
            for bank, at in ((old_bank, 4 * word), (new_bank, 4 * word + twin * tables.stride))
        )
        assert now == (16 * edited.target[was // 16] if word in tables.words else was)
    return count


@pytest.mark.parametrize("twin", [False, True], ids=["one copy", "twin"])
@pytest.mark.parametrize("file", HOLDERS)
def test_jump_tables_and_their_records_move(file: str, twin: bool) -> None:
    # sm_120: three, with uniform branches.
    assert _check_tables(load(file), "choose", twin) == 2 + ("120" in file)


def test_other_constants_beside_a_table_keep_their_value() -> None:
    tables = load("holders_sm75.cubin").get_kerneldef_by_name("choose").jump_tables
    assert tables is not None
    # The table's 7 entries, a gap, and a double (pi / 2) behind it.
    assert tables.words == tuple(range(7)) and tables.section.size == 40


def test_jump_tables_of_real_kernels_move(corpus_sm90: list[Path]) -> None:
    done = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        for name, kernel in cubin.get_map_kernel_def().items():
            if kernel.indirect_targets:
                for twin in (False, True):
                    done += _check_tables(cubin, name, twin)
    assert done == 4


@pytest.mark.parametrize("file", HOLDERS)
def test_a_table_is_told_from_equal_constants_by_the_load_that_reads_it(file: str) -> None:
    cubin = load(file)
    tables = cubin.get_kerneldef_by_name("choose").jump_tables
    assert tables is not None
    content = cubin.elf.content(tables.section)

    def with_bank(fresh: bytes) -> Cubin:
        editor = Editor(cubin.elf)
        editor.replace(tables.section.index, fresh)
        return Cubin.from_bytes(editor.write())

    twice = with_bank(content + content).get_kerneldef_by_name("choose").jump_tables
    assert twice is not None and twice.words == tables.words
    _refused(with_bank(content[:12] + bytes(4) + content[16:]), "choose", "jump-table")
    # Twice, but nowhere that a load starts from.
    _refused(with_bank(bytes(8) + content + content), "choose", "jump-table")


# symbols and frames -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", HOLDERS)
def test_an_inner_function_starts_at_the_code_inserted_before_it(file: str) -> None:
    cubin = load(file)
    (inner,) = cubin.get_kerneldef_by_name("reach").inner_functions
    edited = insert(cubin, "reach", {inner.value // 16})
    (moved,) = edited.after.inner_functions
    assert moved.value == 16 * edited.target[inner.value // 16] != 16 * edited.place[0][inner.value // 16]
    assert moved.value + moved.size == 16 * edited.target[-1]
    assert edited.after.symbol.size == edited.after.section.size


@pytest.mark.parametrize("twin", [False, True], ids=["one copy", "twin"])
@pytest.mark.parametrize("file", HOLDERS)
def test_frames_cover_what_they_covered(file: str, twin: bool) -> None:
    cubin = load(file)
    (inner,) = cubin.get_kerneldef_by_name("reach").inner_functions
    edited = insert(cubin, "reach", {inner.value // 16, 1}, twin=twin)
    old, new = _frames(cubin), _frames(edited.cubin)
    assert len(old) == len(new) >= 2
    for (begin, span, owner), (new_begin, new_span, new_owner) in zip(old, new, strict=True):
        assert owner == new_owner
        if owner != "reach":
            assert (begin, span) == (new_begin, new_span)
            continue
        assert new_begin == 16 * edited.target[begin // 16]
        whole = begin == 0 and begin + span == edited.before.section.size
        end = edited.after.section.size if whole else 16 * edited.target[(begin + span) // 16]
        assert new_begin + new_span == end


def _frames(cubin: Cubin) -> list[tuple[int, int, str]]:
    elf = cubin.elf
    section = elf.find(".debug_frame")
    assert section is not None
    starts = start_addresses(elf, section)
    found = []
    for fde in read_fdes(elf.content(section), "test"):
        symbol, addend = starts[fde.start_at]
        found.append((elf.symbols[symbol].value + addend, fde.length, elf.symbols[symbol].name))
    return found


def test_advances_inside_a_frame_move(corpus_all: list[Path]) -> None:
    """The first advance of the kernel's frame (to the stack set-up) follows the target map."""
    cubin = load("holders_sm90.cubin")
    edited = insert(cubin, "reach", {0, 1, 2})

    def first_advance(image: Cubin) -> int:
        elf = image.elf
        section = elf.find(".debug_frame")
        assert section is not None
        content = elf.content(section)
        starts = start_addresses(elf, section)
        for fde in read_fdes(content, "test"):
            symbol, addend = starts[fde.start_at]
            if elf.symbols[symbol].name == "reach" and not addend:
                assert content[fde.program] == 4  # DW_CFA_advance_loc4
                return 4 * int.from_bytes(content[fde.program + 1 : fde.program + 5], "little")
        raise AssertionError("no frame of reach")

    old = first_advance(cubin)
    assert first_advance(edited.cubin) == 16 * edited.target[old // 16]


# relocations ------------------------------------------------------------------------------------------------


def test_text_relocations_follow_their_instruction_and_return_addresses_their_target(
    corpus_all: list[Path],
) -> None:
    """CALL.ABS with 56/57 addends (return addresses): places by the place map, addends by the target map."""
    addends = 0
    for path in corpus_all:
        if "sm_80-bitsandbytes" not in path.name and "sm_90-bitsandbytes-d24c" not in path.name:
            continue
        cubin = Cubin.from_file(path)
        names = [
            n for n, k in cubin.get_map_kernel_def().items()
            if any(r.addend and cubin.elf.symbols[r.symbol].section == k.section_index for r in k.relocations)
        ][:10]  # fmt: skip
        for name in names:
            kernel = cubin.get_kerneldef_by_name(name)
            returns = {r.addend // 16 for r in kernel.relocations if r.addend}
            sites = {r.offset // 16 for r in kernel.relocations} | returns
            edited = insert(cubin, name, sites)
            for old, new in zip(kernel.relocations, edited.after.relocations, strict=True):
                assert new.offset == 16 * edited.place[0][old.offset // 16] + old.offset % 16
                assert (new.type, new.symbol) == (old.type, old.symbol)
                if old.addend:
                    assert new.addend == 16 * edited.target[old.addend // 16]
                    addends += 1
                else:
                    assert new.addend == old.addend
    assert addends > 50


def test_a_twin_gets_relocations_of_its_own(corpus_all: list[Path]) -> None:
    path = next(p for p in corpus_all if "sm_90-bitsandbytes-d24c" in p.name)
    cubin = Cubin.from_file(path)
    name = next(n for n, k in cubin.get_map_kernel_def().items() if any(r.addend for r in k.relocations))
    kernel = cubin.get_kerneldef_by_name(name)
    edited = insert(cubin, name, {0}, twin=True)
    per_table: dict[tuple[int, int], list[int]] = {}
    for old in kernel.relocations:
        per_table.setdefault((old.type, old.symbol), []).append(old.offset)
    fresh = [(r.type, r.symbol, r.offset, r.addend) for r in edited.after.relocations]
    for old in kernel.relocations:
        for copy in (0, 1):
            addend = old.addend
            if addend:
                chosen = edited.target if copy == 0 else edited.place[1]
                addend = 16 * chosen[addend // 16]
            place = 16 * edited.place[copy][old.offset // 16] + old.offset % 16
            assert (old.type, old.symbol, place, addend) in fresh
    assert len(fresh) == 2 * len(kernel.relocations)


# line tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True], ids=["one copy", "twin"])
@pytest.mark.parametrize("name", ["reach", "speak", "swap", "halves"])
@pytest.mark.parametrize("file", HOLDERS)
def test_every_instruction_keeps_its_line_and_its_call_sites(file: str, name: str, twin: bool) -> None:
    cubin = load(file)
    kernel = cubin.get_kerneldef_by_name(name)
    rows = {row.address // 16 for row in kernel.line_table.rows}
    edited = insert(cubin, name, rows | {0}, twin=twin)
    assert kernel.map_address_to_line and kernel.map_address_to_ptx_line
    for copy in range(1 + twin):
        for index in range(len(kernel.words)):
            old, new = 16 * index, 16 * edited.place[copy][index]
            assert edited.after.map_address_to_line.get(new) == kernel.map_address_to_line.get(old)
            assert edited.after.inlined_at.get(new) == kernel.inlined_at.get(old)
            assert edited.after.map_address_to_ptx_line.get(new) == kernel.map_address_to_ptx_line.get(old)


# debug information of -G ----------------------------------------------------------------------------------------


def _ranges(cubin: Cubin, name: str) -> list[RegisterRange]:
    section = cubin.elf.find(".nv_debug_info_reg_sass")
    assert section is not None
    content = cubin.elf.content(section)
    functions = read_ranges(content)
    assert write_ranges(functions) == content
    return dict(functions)[name.encode()]


@pytest.mark.parametrize("twin", [False, True], ids=["one copy", "twin"])
@pytest.mark.parametrize("name", ["walk", "_Z4stepf"])
def test_register_ranges_of_debug_code_follow_their_instructions(name: str, twin: bool) -> None:
    cubin = load("debug_sm90.cubin")
    old = _ranges(cubin, name)
    assert len(old) >= 3 and len({item.location for item in old}) > 1
    sites = {offset // 16 for item in old for offset in (item.begin, item.end)}
    edited = insert(cubin, name, sites, twin=twin)
    new = _ranges(edited.cubin, name)
    assert len(new) == (1 + twin) * len(old)
    for copy in range(1 + twin):
        ends = edited.place[1] if copy else edited.target
        for was, now in zip(old, new[copy * len(old) :], strict=False):
            assert (now.name, now.location, now.flag) == (was.name, was.location, was.flag)
            assert now.begin == 16 * edited.place[copy][was.begin // 16]
            assert now.end == max(now.begin, 16 * ends[was.end // 16])
    other = "walk" if name == "_Z4stepf" else "_Z4stepf"
    assert _ranges(edited.cubin, other) == _ranges(cubin, other)


def test_relocated_debug_addresses_follow_the_target_map() -> None:
    """.debug_info (function bounds, scopes) and .debug_loc hold relocated addresses only."""
    cubin = load("debug_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("walk")
    edited = insert(cubin, "walk", set(range(len(kernel.words))))
    checked = 0
    for name in (".debug_info", ".debug_loc"):
        section = cubin.elf.find(name)
        assert section is not None
        for table in cubin.elf.relocation_sections(section.index):
            fresh = edited.cubin.elf.relocations(edited.cubin.elf.section(table.index))
            for old, new in zip(cubin.elf.relocations(table), fresh, strict=True):
                assert (new.offset, new.symbol) == (old.offset, old.symbol)
                if cubin.elf.symbols[old.symbol].name != "walk" or not old.addend:
                    assert new.addend == old.addend
                    continue
                whole = old.addend == kernel.section.size
                assert new.addend == (
                    edited.after.section.size if whole else 16 * edited.target[old.addend // 16]
                )
                checked += 1
    assert checked >= 3


def test_the_lines_of_debug_code_move() -> None:
    cubin = load("debug_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("walk")
    edited = insert(cubin, "walk", {0, 7, 30})
    assert len(kernel.map_address_to_line) > 50
    for index in range(len(kernel.words)):
        assert edited.after.map_address_to_line.get(
            16 * edited.place[0][index]
        ) == kernel.map_address_to_line.get(16 * index)


@pytest.mark.parametrize(
    "content",
    [
        b"walk\0",
        b"walk\0\xff\0\0\0",
        b"walk\0\1\0\0\0\0\0\0\0%r1\0" + bytes(11),
        b"walk\0\1\0\0\0\0\0\0\0%r1\0\0\0\0\5\x20\0\0\0\x10\0\0\0",
        b"stranger\0\0\0\0\0",
    ],
)
def test_a_register_table_of_another_layout_is_refused(content: bytes) -> None:
    cubin = load("debug_sm90.cubin")
    section = cubin.elf.find(".nv_debug_info_reg_sass")
    assert section is not None
    editor = Editor(cubin.elf)
    editor.replace(section.index, content)
    _refused(Cubin.from_bytes(editor.write()), "walk", "debug-registers")


# registers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "top"), [("holders_sm75.cubin", 21), ("holders_sm90.cubin", 0)])
def test_the_register_count_is_written_where_the_architecture_keeps_it(file: str, top: int) -> None:
    cubin = load(file)
    edited = insert(cubin, "reach", {0}, registers=21)
    assert edited.after.register_count == 21 != edited.before.register_count
    assert edited.after.section.info >> 24 == top
    assert edited.after.section.info & 0xFFFFFF == edited.before.symbol.index
    assert (
        edited.cubin.get_kerneldef_by_name("speak").register_count
        == cubin.get_kerneldef_by_name("speak").register_count
    )


def test_the_register_limit_of_a_bounded_kernel_is_raised_with_the_count(corpus_sm90: list[Path]) -> None:
    cubin = Cubin.from_file(next(p for p in corpus_sm90 if "d24c5a182260" in p.name))
    name = next(n for n, k in cubin.get_map_kernel_def().items() if _limit(k) == 80)
    assert _limit(insert(cubin, name, {0}, registers=80).after) == 80
    assert _limit(insert(cubin, name, {0}, registers=88).after) == 88


def _limit(kernel: KernelDef) -> int:
    attribute = nvinfo.first(kernel.attributes, Attr.MAXREG_COUNT)
    assert attribute is not None
    return attribute.value


def test_a_register_count_that_contradicts_the_section_header_is_refused() -> None:
    cubin = load("holders_sm75.cubin")
    kernel = cubin.get_kerneldef_by_name("reach")
    editor = Editor(cubin.elf)
    editor.set_section(kernel.section_index, info=kernel.section.info & 0xFFFFFF | 99 << 24)
    with pytest.raises(CubinError, match=r"\[regcount-mismatch\]"):
        insert(Cubin.from_bytes(editor.write()), "reach", {0}, registers=21)


def test_more_registers_than_a_thread_can_have_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\[register-limit\]"):
        insert(load("holders_sm90.cubin"), "reach", {0}, registers=256)


# refusals ---------------------------------------------------------------------------------------------------


def _refused(cubin: Cubin, name: str, code: str) -> None:
    with pytest.raises(GWatchError) as caught:
        insert(cubin, name, {0})
    assert caught.value.code == code


def test_what_cannot_be_moved_is_refused_by_name() -> None:
    _refused(Cubin.from_bytes(with_dependent_mercury()), "reach", "mercury")


# the second form of the code ---------------------------------------------------------------------------------


def _check_without_mercury(data: bytes) -> None:
    image = without_mercury(data)
    old, new = Elf(data), Elf(image)
    gone = mercury_sections(old)
    assert gone and not mercury_sections(new)
    assert new.header.flags == old.header.flags & ~2 | 4
    assert len(new.sections) == len(old.sections) - len(gone) == gone[0].index
    assert new.symbols == old.symbols and len(new.segments) == len(old.segments)
    for before, after in zip(old.sections, new.sections, strict=False):
        if before.name != ".nv.compat":
            assert before == after and old.content(before) == new.content(after)
    compat = new.find(".nv.compat")
    assert compat is None or 0x0B not in [item.code for item in nvinfo.parse(new.content(compat))]
    assert without_mercury(image) == image


def test_the_second_form_of_the_code_is_left_out(corpus_all: list[Path]) -> None:
    _check_without_mercury((DATA / "holders_sm120.cubin").read_bytes())
    done = 0
    for path in corpus_all:
        data = path.read_bytes()
        if mercury_sections(Elf(data)):
            _check_without_mercury(data)
            done += 1
        else:
            assert without_mercury(data) == data
    assert done == 15


def test_a_changed_cubin_has_one_form_of_its_code_and_says_so() -> None:
    cubin = load("holders_sm120.cubin")
    edited = insert(cubin, "reach", {0})
    assert not mercury_sections(edited.cubin.elf) and edited.cubin.elf.header.flags & 6 == 4
    assert edited.moved["Mercury section left out"] == len(mercury_sections(cubin.elf)) > 10
    assert edited.cubin.arch.name == "sm_120"
    # The other kernels read as before.
    for name, kernel in cubin.get_map_kernel_def().items():
        if name != "reach":
            assert (edited.cubin.get_kerneldef_by_name(name).words == kernel.words).all()


def test_an_unknown_attribute_of_another_kernel_does_not_matter() -> None:
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("swap")
    section = kernel.info_section
    assert section is not None
    editor = Editor(cubin.elf)
    fresh = [*kernel.attributes, Attribute(4, 0x7E, 4, b"\x10\0\0\0")]
    editor.replace(section.index, nvinfo.serialize(fresh))
    changed = Cubin.from_bytes(editor.write())
    _refused(changed, "swap", "nvinfo-unknown")
    assert insert(changed, "reach", {0}).after.words.shape[0] > 0


def test_a_relocatable_object_is_refused() -> None:
    image = bytearray(load("holders_sm90.cubin").data)
    image[16] = 1
    _refused(Cubin.from_bytes(bytes(image)), "reach", "relocatable-object")


def test_an_unknown_debug_section_is_refused() -> None:
    editor = Editor(load("holders_sm90.cubin").elf)
    editor.append_section(".debug_ranges", bytes(16), kind=1, flags=0, align=1)
    _refused(Cubin.from_bytes(editor.write()), "reach", "debug-section")


def test_newer_debug_information_is_refused() -> None:
    editor = Editor(load("holders_sm90.cubin").elf)
    editor.append_section(".debug_info", b"\x07\0\0\0\x04\0" + bytes(5), kind=1, flags=0, align=1)
    _refused(Cubin.from_bytes(editor.write()), "reach", "debug-info")


def test_an_attribute_that_names_no_instruction_is_refused() -> None:
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("reach")
    section = kernel.info_section
    assert section is not None
    editor = Editor(cubin.elf)
    fresh = [a.with_words([8]) if a.code == Attr.EXIT_INSTR_OFFSETS else a for a in kernel.attributes]
    editor.replace(section.index, nvinfo.serialize(fresh))
    _refused(Cubin.from_bytes(editor.write()), "reach", "code-offset")


def _edit(cubin: Cubin, text: bytes, target: list[int], place: list[int]) -> TextEdit:
    kernel = cubin.get_kerneldef_by_name("swap")
    return TextEdit(kernel.section_index, text, np.array(target, np.int64), [np.array(place, np.int64)])


def test_impossible_maps_are_refused() -> None:
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("swap")
    count = len(kernel.words)
    text = cubin.elf.content(kernel.section)
    same = list(range(count))
    assert apply_edit(cubin.data, _edit(cubin, text, [*same, count], same)) == cubin.data
    for target, place in (
        ([*same], same), ([*same, count], same[:-1]), ([*same, count], [*same[:-1], count]),
        ([0, 2, *same[2:], count], same), ([*same, count + 1], same), ([0, 0, *same[2:], count], same),
        ([1, *same[1:], count], same), ([*same, count], same[::-1]),
    ):  # fmt: skip
        with pytest.raises(CubinError, match=r"\[edit-maps\]"):
            apply_edit(cubin.data, _edit(cubin, text, target, place))
    with pytest.raises(CubinError, match=r"\[edit-text\]"):
        apply_edit(cubin.data, _edit(cubin, text + bytes(16), [*same, count], same))
    with pytest.raises(CubinError, match=r"\[code-section\]"):
        apply_edit(cubin.data, TextEdit(1, text, np.arange(1), [np.arange(0)]))


def test_code_that_lost_its_exits_is_not_written() -> None:
    """The check of the result is independent of the maps: shift the code by one and keep the maps."""
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("swap")
    text = cubin.elf.content(kernel.section)
    same = list(range(len(kernel.words)))
    with pytest.raises(CubinError, match=r"\[relayout-check\]"):
        apply_edit(cubin.data, _edit(cubin, text[16:] + text[:16], [*same, len(same)], same))


# by another road ----------------------------------------------------------------------------------------------

_HEADER = re.compile(r"\.text\.(\S+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*)")


def _listing(image: bytes, name: str) -> list[str]:
    """Labels, line comments and instructions of one section as nvdisasm -gi prints them, addresses left out."""
    lines: list[str] = []
    inside = False
    for line in nvdisasm.disassemble_cubin(image, "-gi", "-c").splitlines():
        if match := _HEADER.match(line):
            inside = match[1] == name
        elif inside:
            match = _INSTRUCTION.match(line)
            lines.append(match[1] if match else line.strip())
    return [
        line
        for line in lines
        if line and not line.startswith((".section", ".align", ".sectionflags", "//-----"))
    ]


@pytest.mark.parametrize("name", ["reach", "speak", "swap", "halves"])
@pytest.mark.parametrize("file", HOLDERS)
def test_nvdisasm_reads_a_shifted_kernel_as_the_same_code(file: str, name: str) -> None:
    """Words inserted before everything leave all distances alone: the listing must stay the same."""
    cubin = load(file)
    before = _listing(cubin.data, name)
    after = _listing(insert(cubin, name, {0}, count=8).cubin.data, name)
    assert all(line.startswith("NOP") for line in after[:8])
    assert _renumbered(after[8:]) == _renumbered(before)
    assert sum(line.startswith("//##") for line in before) > 3
    assert any(line.startswith(".L_x_") for line in before)


def _renumbered(lines: list[str]) -> list[str]:
    """Labels numbered as they appear. A function's return names the kernel's start, which the raw words still do."""
    names: dict[str, str] = {}
    kept = [re.sub(r"`\(\.L_x_\d+\)", "start", line) if line.startswith("RET") else line for line in lines]
    kept = kept[1:] if kept[0].startswith(".L_x_") else kept
    return [
        re.sub(
            r"\.L_x_\d+",
            lambda m: names.setdefault(m[0], f"label {len(names)}"),
            re.sub(r"`\(reach\)|`\(speak\)", "start", line),
        )
        for line in kept
        if not line.startswith(".size")
    ]


# deletion ---------------------------------------------------------------------------------------------------


def _delete(cubin: Cubin, name: str, index: int) -> Edited:
    kernel = cubin.get_kerneldef_by_name(name)
    words = kernel.words.tolist()
    place = [i if i < index else -1 if i == index else i - 1 for i in range(len(words))]
    target = [i if i <= index else i - 1 for i in range(len(words) + 1)]
    new = [word for i, word in enumerate(words) if i != index] + [words[-1]]
    edit = TextEdit(
        kernel.section_index, np.array(new, dtype="<u8").tobytes(), np.array(target, np.int64),
        [np.array(place, np.int64)],
    )  # fmt: skip
    result = Cubin.from_bytes(apply_edit(cubin.data, edit))
    return Edited(kernel, result.get_kerneldef_by_name(name), result, target, [place], {})


def test_lines_close_over_a_deleted_instruction() -> None:
    cubin = load("holders_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("reach")
    row = kernel.line_table.rows[2]
    edited = _delete(cubin, "reach", row.address // 16)
    for index, place in enumerate(edited.place[0]):
        if place >= 0:
            assert edited.after.map_address_to_line.get(16 * place) == kernel.map_address_to_line.get(
                16 * index
            )


def test_deleting_an_instruction_that_an_attribute_names_is_refused() -> None:
    cubin = load("holders_sm90.cubin")
    exit_at = _words(cubin.get_kerneldef_by_name("reach"), Attr.EXIT_INSTR_OFFSETS)[0] // 16
    with pytest.raises(UnsupportedError, match=r"\[deleted-instruction\]"):
        _delete(cubin, "reach", exit_at)


def test_entry_symbols_are_the_only_ones_at_zero() -> None:
    """What the maps rely on: a kernel starts its section, functions inside come later."""
    for path in sorted(DATA.glob("holders*.cubin")):
        cubin = Cubin.from_file(path)
        for kernel in cubin.get_map_kernel_def().values():
            starts = [
                s for s in cubin.elf.symbols if s.kind == STT_FUNC and s.section == kernel.section_index
            ]
            assert [s.name for s in starts if s.value == 0] == [kernel.name]
