"""User constants, notes, and the module variables a kernel reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
from binary_support import DATA, load

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import (
    BANK_SIZE,
    CONSTANT3,
    add_constant3,
    add_note,
    bind_globals,
    globals_reached,
    read_note,
    set_constant3,
)
from gwatch.cuda.binary.elf import PT_LOAD, SHF_ALLOC, STB_GLOBAL, STT_OBJECT, Elf
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.mercury import mercury_sections, without_mercury
from gwatch.errors import CubinError, UnsupportedError
from gwatch.sass import nvdisasm

FIXTURES = sorted(DATA.glob("*.cubin"))


def _check_added(data: bytes, expect_offset: int) -> None:
    image, offset = add_constant3(data, "gwatch_ring_test", 40, b"\x11\x22", 8)
    old, new = Elf(without_mercury(data)), Elf(image)
    assert offset == expect_offset
    symbol = new.symbols[-1]
    assert new.symbols[:-1] == old.symbols
    assert (symbol.name, symbol.value, symbol.size) == ("gwatch_ring_test", offset, 40)
    assert (symbol.kind, symbol.binding, symbol.other) == (STT_OBJECT, STB_GLOBAL, 0)
    changed = set_constant3(image, offset, b"\x33" * 40)
    assert (
        changed.count(b"\x33" * 40) == 1 and changed.replace(b"\x33" * 40, b"\x11\x22" + bytes(38)) == image
    )
    for place in (-8, offset + 8):
        with pytest.raises(CubinError, match=r"^\[constant-size\]"):
            set_constant3(image, place, bytes(40))
    section = new.section(symbol.section)
    assert section.name == CONSTANT3 and section.flags == SHF_ALLOC
    assert section.size == offset + 40 and section.offset % section.align == 0
    assert new.content(section)[offset:] == b"\x11\x22" + bytes(38)
    before = old.find(CONSTANT3)
    if before is not None:
        assert new.content(section)[: before.size] == old.content(before)
    for one, two in zip(old.sections, new.sections, strict=False):
        grown = one.type in (2, 3) or (before is not None and one.offset == before.offset)
        if one.in_file and not grown:
            assert new.content(two) == old.content(one)
    if new.segments:
        homes = [
            s for s in new.segments
            if s.type == PT_LOAD and s.offset <= section.offset
            and section.offset + section.size <= s.offset + s.file_size
        ]  # fmt: skip
        assert len(homes) == 1 and not homes[0].flags & 2


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_a_constant_is_appended_to_a_fixture(path: Path) -> None:
    _check_added(path.read_bytes(), 16 if "holders" in path.name else 0)


def test_a_constant_is_appended_to_every_corpus_cubin(corpus_all: list[Path]) -> None:
    existing = 0
    for path in corpus_all:
        data = path.read_bytes()
        section = Elf(data).find(CONSTANT3)
        existing += section is not None
        _check_added(data, 0 if section is None else -(-section.size // 8) * 8)
    assert 0 < existing < len(corpus_all)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_nvdisasm_reads_the_same_code(path: Path) -> None:
    data = path.read_bytes()
    image, _ = add_constant3(data, "gwatch_ring_test", 64)
    image = add_note(image, ".note.gwatch.sites", b"map")
    assert nvdisasm.disassemble_cubin(image, "-c") == nvdisasm.disassemble_cubin(data, "-c")


def test_a_second_form_of_the_code_that_would_lack_the_constant_is_left_out() -> None:
    data = (DATA / "holders_sm120.cubin").read_bytes()
    image, offset = add_constant3(data, "gwatch_ring_test", 8, b"12345678")
    elf = Elf(image)
    bank = elf.find(CONSTANT3)
    assert bank is not None and elf.content(bank)[offset:] == b"12345678"
    assert mercury_sections(Elf(data)) and not mercury_sections(elf)
    assert Elf(data).header.flags & 6 == 2 and elf.header.flags & 6 == 4


def test_a_cubin_without_constant_sections_gets_a_program_header() -> None:
    data = (DATA / "debug_sm90.cubin").read_bytes()
    image, _ = add_constant3(data, "gwatch_ring_test", 8)
    old, new = Elf(data), Elf(image)
    assert len(new.segments) == len(old.segments) + 1
    assert new.segments[0].file_size == 56 * len(new.segments)


def test_two_constants_share_the_bank() -> None:
    image, first = add_constant3((DATA / "debug_sm90.cubin").read_bytes(), "a", 12)
    image, second = add_constant3(image, "b", 8, b"bbbbbbbb", 16)
    elf = Elf(image)
    assert (first, second) == (0, 16)
    section = elf.find(CONSTANT3)
    assert section is not None and section.align == 8 and section.offset % 8 == 0
    assert elf.content(section) == bytes(16) + b"bbbbbbbb"


@pytest.mark.parametrize(
    ("size", "init", "align", "code"),
    [
        (0, b"", 8, "constant-size"),
        (4, b"12345", 8, "constant-size"),
        (8, b"", 3, "constant-size"),
        (BANK_SIZE + 1, b"", 8, "constant-bank-full"),
    ],
)
def test_impossible_constants_are_refused(size: int, init: bytes, align: int, code: str) -> None:
    with pytest.raises(CubinError) as caught:
        add_constant3((DATA / "holders_sm90.cubin").read_bytes(), "x", size, init, align)
    assert caught.value.code == code


def test_a_second_symbol_of_that_name_is_refused() -> None:
    data = (DATA / "holders_sm90.cubin").read_bytes()
    with pytest.raises(CubinError, match=r"\[constant-exists\]"):
        add_constant3(data, "limits", 8)


def test_notes() -> None:
    data = (DATA / "holders_sm75.cubin").read_bytes()
    assert read_note(data, ".note.gwatch.sites") is None
    image = add_note(data, ".note.gwatch.sites", b"five!")
    assert read_note(image, ".note.gwatch.sites") == b"five!"
    section = Elf(image).sections[-1]
    assert section.type == 7 and not section.flags & SHF_ALLOC
    with pytest.raises(CubinError, match=r"\[note-exists\]"):
        add_note(image, ".note.gwatch.sites", b"")
    with pytest.raises(CubinError, match=r"\[note-damaged\]"):
        read_note(data, ".note.nv.tkinfo")
    editor = Editor(Elf(image))
    editor.replace(section.index, Elf(image).content(section)[:14])
    with pytest.raises(CubinError, match=r"\[note-damaged\]"):
        read_note(editor.write(), ".note.gwatch.sites")


def test_the_module_variables_a_kernel_reaches() -> None:
    cubin = load("holders_sm90.cubin")
    found = {o.name: o for o in globals_reached(cubin, "reach")}
    assert {"counter", "table", "limits"} <= set(found)
    assert found["counter"].mutable and found["table"].mutable and found["limits"].section == CONSTANT3
    assert not found["$str"].mutable
    assert (found["table"].size, found["limits"].size) == (16, 16)
    with_kernel = globals_reached(cubin, cubin.get_kerneldef_by_name("reach"))
    assert [o.name for o in with_kernel] == list(found)


def test_a_cubin_without_variables_reaches_none() -> None:
    assert globals_reached(load("debug_sm90.cubin"), "walk") == []


@pytest.mark.parametrize("file", ["holders_sm75.cubin", "holders_sm90.cubin"])
def test_bound_variables_are_absolute_addresses(file: str) -> None:
    data = (DATA / file).read_bytes()
    address = 0x7F12_3456_7800
    image = bind_globals(data, {"counter": address})
    old, new = Elf(data), Elf(image)
    bank = old.find(".nv.constant4")
    assert bank is not None
    counter = next(s.index for s in old.symbols if s.name == "counter")
    places = [
        e.offset
        for t in old.relocation_sections(bank.index)
        for e in old.relocations(t)
        if e.symbol == counter
    ]
    assert places
    content = new.content(bank.index)
    for place in places:
        assert int.from_bytes(content[place : place + 8], "little") == address
    left = [e.symbol for t in new.relocation_sections(bank.index) for e in new.relocations(t)]
    assert counter not in left and len(left) > 2
    assert nvdisasm.disassemble_cubin(image, "-c")


def test_addresses_in_code_are_bound(corpus_sm90: list[Path]) -> None:
    """ABI 7 code loads the two halves of a variable's address as relocated immediates (types 56 and 57)."""
    path = next(p for p in corpus_sm90 if "bitsandbytes-d24c" in p.name)
    cubin = Cubin.from_file(path)
    elf = cubin.elf
    table = next(
        t for t in elf.relocation_sections()
        if elf.section(t.info).name.startswith(".text")
        and any(elf.symbols[e.symbol].kind == STT_OBJECT for e in elf.relocations(t))
    )  # fmt: skip
    entries = [e for e in elf.relocations(table) if elf.symbols[e.symbol].kind == STT_OBJECT]
    name = elf.symbols[entries[0].symbol].name
    image = bind_globals(cubin.data, {name: 0x0000_7FAB_1234_5678})
    code = Elf(image).content(table.info)
    halves = {56: 0x1234_5678, 57: 0x7FAB}
    for entry in entries:
        if elf.symbols[entry.symbol].name == name:
            assert int.from_bytes(code[entry.offset + 4 : entry.offset + 8], "little") == halves[entry.type]


def test_what_cannot_be_bound_is_refused() -> None:
    data = (DATA / "holders_sm90.cubin").read_bytes()
    with pytest.raises(UnsupportedError, match=r"\[bind-constant\]"):
        bind_globals(data, {"limits": 0x1000})
    with pytest.raises(CubinError, match=r"\[symbol-not-found\]"):
        bind_globals(data, {"nothing": 0x1000})
