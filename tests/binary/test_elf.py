"""ELF in and out: identity, agreement with pyelftools, layouts that grow."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from binary_support import DATA
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from gwatch.cuda.binary.elf import EHDR, PHDR, SHDR, Elf
from gwatch.cuda.binary.layout import Editor
from gwatch.errors import CubinError

FIXTURES = sorted(DATA.glob("*.cubin"))


def _check_identity(path: Path) -> None:
    data = path.read_bytes()
    assert Editor(Elf(data, path.name)).write() == data, path.name


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_a_fixture_is_written_back_byte_for_byte(path: Path) -> None:
    _check_identity(path)


def test_every_corpus_cubin_is_written_back_byte_for_byte(corpus_all: list[Path]) -> None:
    assert len(corpus_all) == 42
    for path in corpus_all:
        _check_identity(path)


def _compare(path: Path) -> int:
    """Compare with pyelftools; the number of relocations compared."""
    data = path.read_bytes()
    ours, theirs = Elf(data), ELFFile(io.BytesIO(data))
    assert ours.header.flags == theirs["e_flags"]
    assert ours.header.abi_version == theirs["e_ident"]["EI_ABIVERSION"]
    assert len(ours.sections) == theirs.num_sections()
    for section in ours.sections:
        header = theirs.get_section(section.index).header
        fields = (header.sh_flags, header.sh_offset, header.sh_size, header.sh_link, header.sh_info)
        assert (section.flags, section.offset, section.size, section.link, section.info) == fields
        assert (section.align, section.entry_size) == (header.sh_addralign, header.sh_entsize)
        assert section.name == theirs.get_section(section.index).name
        if section.in_file:
            assert ours.content(section) == theirs.get_section(section.index).data()
    table = theirs.get_section_by_name(".symtab")
    assert len(ours.symbols) == table.num_symbols()
    for symbol, entry in zip(ours.symbols, table.iter_symbols(), strict=True):
        assert (symbol.value, symbol.size, symbol.info >> 4) == (
            entry["st_value"],
            entry["st_size"],
            _binding(entry),
        )
        assert symbol.name == (entry.name or ours.sections[symbol.section].name * (symbol.kind == 3))
    assert len(ours.segments) == theirs.num_segments()
    for segment, other in zip(ours.segments, theirs.iter_segments(), strict=True):
        assert (segment.offset, segment.file_size) == (other["p_offset"], other["p_filesz"])
        assert (segment.memory_size, segment.flags, segment.align) == (
            other["p_memsz"], other["p_flags"], other["p_align"],
        )  # fmt: skip
    count = 0
    for section in ours.relocation_sections():
        reader = theirs.get_section(section.index)
        assert isinstance(reader, RelocationSection)
        for entry, other in zip(ours.relocations(section), reader.iter_relocations(), strict=True):
            assert (entry.offset, entry.type, entry.symbol) == (
                other["r_offset"], other["r_info_type"], other["r_info_sym"],
            )  # fmt: skip
            assert entry.addend == (other["r_addend"] if reader.is_RELA() else None)
            count += 1
    return count


def _binding(entry: object) -> int:
    return {"STB_LOCAL": 0, "STB_GLOBAL": 1, "STB_WEAK": 2}[entry["st_info"]["bind"]]  # type: ignore[index]


def test_headers_symbols_and_relocations_agree_with_pyelftools(corpus_all: list[Path]) -> None:
    small = [path for path in corpus_all if path.stat().st_size < 600_000]
    assert len(small) > 25
    assert sum(_compare(path) for path in [*small, *FIXTURES]) > 1000


def _scrambled(data: bytes) -> bytes:
    """The same ELF with section contents in reverse order at odd offsets, tables in between and a gap of
    junk."""
    elf = Elf(data)
    header = list(EHDR.unpack_from(data))
    out = bytearray(EHDR.size)
    moved: dict[tuple[int, int], int] = {}
    out += b"\xa5" * 7
    for section in reversed(elf.sections):
        if section.in_file and (section.offset, section.size) not in moved:
            moved[section.offset, section.size] = len(out)
            out += elf.content(section) + b"\xa5" * (section.index % 3)
    header[6] = len(out)
    for section in elf.sections:
        offset = moved.get((section.offset, section.size), 3 * section.index)
        out += SHDR.pack(
            section.name_offset, section.type, section.flags, section.address, offset, section.size, section.link,
            section.info, section.align, section.entry_size,
        )  # fmt: skip
    header[5] = header[10] = 0
    out += b"tail"
    EHDR.pack_into(out, 0, *header)
    return bytes(out)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_sections_out_of_order_and_unaligned_survive(path: Path) -> None:
    data = _scrambled(path.read_bytes())
    elf = Elf(data)
    offsets = [section.offset for section in elf.sections if section.in_file]
    assert offsets != sorted(offsets)
    assert any(section.offset % section.align for section in elf.sections if section.in_file)
    assert Editor(elf).write() == data


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
@pytest.mark.parametrize("scramble", [False, True], ids=["as built", "scrambled"])
def test_growing_any_section_keeps_all_other_contents_and_alignments(path: Path, scramble: bool) -> None:
    data = path.read_bytes()
    elf = Elf(_scrambled(data) if scramble else data)
    for section in elf.sections:
        if not section.in_file or section.index == elf.header.shstrndx:
            continue
        editor = Editor(elf)
        longer = elf.content(section) + b"\x5a" * 40
        editor.replace(section.index, longer)
        result = Elf(editor.write())
        for old, new in zip(elf.sections, result.sections, strict=True):
            shared = old.in_file and (old.offset, old.size) == (section.offset, section.size)
            assert result.content(new) == (longer if shared else elf.content(old))
            assert not old.in_file or new.offset % 128 == old.offset % 128
        for segment, moved in zip(elf.segments, result.segments, strict=True):
            inside = {s.index for s in elf.sections if s.in_file and _covers(segment, s)}
            assert {s.index for s in result.sections if s.in_file and _covers(moved, s)} == inside


def _covers(segment: object, section: object) -> bool:
    start, end = segment.offset, segment.offset + segment.file_size  # type: ignore[attr-defined]
    return start <= section.offset and section.offset + section.size <= end  # type: ignore[attr-defined]


def test_shrinking_a_section_moves_nothing() -> None:
    elf = Elf((DATA / "holders_sm90.cubin").read_bytes())
    text = next(s for s in elf.sections if s.name == ".text.reach")
    editor = Editor(elf)
    editor.replace(text.index, elf.content(text)[:-128])
    result = Elf(editor.write())
    assert len(result.data) == len(elf.data)
    assert [s.offset for s in result.sections] == [s.offset for s in elf.sections]
    assert result.section(text.index).size == text.size - 128


def test_an_appended_section_and_symbol_take_the_next_indices() -> None:
    elf = Elf((DATA / "holders_sm75.cubin").read_bytes())
    editor = Editor(elf)
    index = editor.append_section(".note.test", b"payload", kind=7, flags=0, align=4)
    symbol = editor.append_symbol("marker", value=4, size=8, info=0x11, other=0, section=index)
    result = Elf(editor.write())
    assert (index, symbol) == (len(elf.sections), len(elf.symbols))
    assert result.section(index).name == ".note.test"
    assert result.content(index) == b"payload"
    assert (result.symbols[symbol].name, result.symbols[symbol].value) == ("marker", 4)
    assert result.symbols[:symbol] == elf.symbols
    assert [s.name for s in result.sections[:index]] == [s.name for s in elf.sections]


def test_a_local_symbol_cannot_be_appended() -> None:
    editor = Editor(Elf((DATA / "holders_sm75.cubin").read_bytes()))
    with pytest.raises(CubinError, match=r"\[elf-symbol\]"):
        editor.append_symbol("marker", value=0, size=8, info=0x01, other=0, section=1)


def test_a_new_program_header_grows_the_table_and_its_self_mapping() -> None:
    elf = Elf((DATA / "holders_sm90.cubin").read_bytes())
    editor = Editor(elf)
    index = editor.append_section(".nv.extra", bytes(24), kind=1, flags=2, align=8)
    editor.append_segment(1, 4, index)
    result = Elf(editor.write())
    assert len(result.segments) == len(elf.segments) + 1
    assert result.segments[0].offset == result.header.phoff
    assert result.segments[0].file_size == len(result.segments) * PHDR.size
    assert (result.segments[-1].offset, result.segments[-1].file_size) == (result.section(index).offset, 24)


def test_section_counts_in_section_zero_are_read_and_written() -> None:
    data = bytearray((DATA / "debug_sm90.cubin").read_bytes())
    elf = Elf(bytes(data))
    struct.pack_into("<Q", data, elf.header.shoff + 32, len(elf.sections))
    struct.pack_into("<I", data, elf.header.shoff + 40, elf.header.shstrndx)
    struct.pack_into("<HH", data, 60, 0, 0xFFFF)
    extended = Elf(bytes(data))
    assert [s.name for s in extended.sections] == [s.name for s in elf.sections]
    assert Editor(extended).write() == bytes(data)
    editor = Editor(extended)
    editor.append_section(".more", b"x", kind=1, flags=0, align=1)
    grown = Elf(editor.write())
    assert grown.sections[-1].name == ".more"
    assert struct.unpack_from("<H", grown.data, 60) == (0,)


def test_replacing_a_section_without_bytes_is_refused() -> None:
    elf = Elf((DATA / "holders_sm90.cubin").read_bytes())
    shared = next(s for s in elf.sections if s.name == ".nv.shared.swap")
    with pytest.raises(CubinError, match=r"\[elf-nobits\]"):
        Editor(elf).replace(shared.index, b"x")
