"""Hostile containers: every defect is a GWatchError with a code, and costs no memory in proportion to its
claims."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from binary_support import DATA, insert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import add_constant3, add_note, globals_reached
from gwatch.cuda.binary.elf import SHDR, SYM, Elf
from gwatch.cuda.binary.frames import read_fdes
from gwatch.cuda.binary.layout import Editor
from gwatch.errors import CubinError, GWatchError

GOOD = (DATA / "holders_sm90.cubin").read_bytes()
OLD = (DATA / "holders_sm75.cubin").read_bytes()
DEBUG = (DATA / "debug_sm90.cubin").read_bytes()
MERCURY = (DATA / "holders_sm120.cubin").read_bytes()
_ELF = Elf(GOOD)


def _index(name: str) -> int:
    section = _ELF.find(name)
    assert section is not None
    return section.index


def _header(field: int, form: str, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(form, data, field, value)
    return bytes(data)


def _section(name: str, field: int, form: str, value: int) -> bytes:
    """GOOD with one field of a section header changed (field: byte offset inside the header)."""
    return _header(_ELF.header.shoff + _index(name) * SHDR.size + field, form, value)


def _content(name: str, at: int, form: str, value: int) -> bytes:
    return _header(_ELF.section(_index(name)).offset + at, form, value)


def _symbol(index: int, field: int, form: str, value: int) -> bytes:
    table = _ELF.symbol_table
    assert table is not None
    return _header(table.offset + index * SYM.size + field, form, value)


def _same_extent() -> bytes:
    """An attribute section laid over the code, byte for byte."""
    code = next(section for section in _ELF.sections if section.name.startswith(".text."))
    info = _ELF.sections[_index(".nv.info." + code.name.removeprefix(".text."))]
    data = bytearray(GOOD)
    struct.pack_into("<QQ", data, _ELF.header.shoff + info.index * SHDR.size + 24, code.offset, code.size)
    return bytes(data)


CASES: list[tuple[str, Callable[[], bytes], str]] = [
    ("empty", lambda: b"", "elf-truncated"),
    ("a few bytes", lambda: GOOD[:63], "elf-truncated"),
    ("not ELF", lambda: b"MZ" + bytes(200), "elf-magic"),
    ("two sections in the same bytes", lambda: _same_extent(), "elf-overlap"),
    ("PTX text", lambda: b".version 8.0\n.target sm_90\n" * 9, "elf-magic"),
    ("32-bit", lambda: _header(4, "<B", 1), "elf-class"),
    ("big-endian", lambda: _header(5, "<B", 2), "elf-endian"),
    ("x86-64", lambda: _header(18, "<H", 62), "elf-machine"),
    ("wrong header size", lambda: _header(52, "<H", 60), "elf-header"),
    ("wrong section header size", lambda: _header(58, "<H", 32), "elf-header"),
    ("wrong program header size", lambda: _header(54, "<H", 32), "elf-header"),
    ("no sections", lambda: _header(40, "<Q", 0), "elf-sections"),
    ("section table outside", lambda: _header(40, "<Q", len(GOOD) + 1), "elf-bounds"),
    ("section table at 2**64", lambda: _header(40, "<Q", 2**64 - 64), "elf-bounds"),
    ("cut in half", lambda: GOOD[: len(GOOD) // 2], "elf-bounds"),
    ("65,535 sections", lambda: _header(60, "<H", 0xFFFF), "elf-bounds"),
    ("65,535 program headers", lambda: _header(56, "<H", 0xFFFF), "elf-bounds"),
    ("program headers outside", lambda: _header(32, "<Q", 2**63), "elf-bounds"),
    ("name table index", lambda: _header(62, "<H", 5000), "elf-sections"),
    ("name table is a NOBITS section", lambda: _header(62, "<H", _index(".nv.global")), "elf-sections"),
    ("name outside its table", lambda: _section(".nv.info", 0, "<I", 0x7FFFFFFF), "elf-string"),
    ("section outside the file", lambda: _section(".text.swap", 24, "<Q", len(GOOD)), "elf-bounds"),
    ("section of 2**60 bytes", lambda: _section(".text.swap", 32, "<Q", 2**60), "elf-bounds"),
    ("sections overlap", lambda: _section(".text.swap", 24, "<Q", _ELF.section(_index(".text.reach")).offset + 128),
     "elf-overlap"),
    ("section over the header", lambda: _section(".nv.callgraph", 24, "<Q", 8), "elf-overlap"),
    ("alignment 3", lambda: _section(".text.swap", 48, "<Q", 3), "elf-align"),
    ("symbol entries of 8 bytes", lambda: _section(".symtab", 56, "<Q", 8), "elf-symbol"),
    ("symbol names nowhere", lambda: _section(".symtab", 40, "<I", 40_000), "elf-index"),
    ("symbol name outside", lambda: _symbol(3, 0, "<I", 2**31), "elf-string"),
    ("symbol in section 40,000", lambda: _symbol(3, 6, "<H", 40_000), "elf-symbol"),
    ("unknown architecture", lambda: _header(48, "<I", 0x0A00FF04), "arch-unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_defect_has_its_code(make: Callable[[], bytes], code: str) -> None:
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(GWatchError) as caught:
            Cubin.from_bytes(data, "hostile")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    assert peak < 8 * len(GOOD)


LATE: list[tuple[str, bytes, str]] = [
    ("relocation of symbol 10**6", _section(".rela.nv.constant4", 56, "<Q", 5), "elf-relocation"),
    ("half a relocation", _section(".rela.nv.constant4", 32, "<Q", 25), "elf-relocation"),
    (
        "relocations of a section that isn't there",
        _section(".rela.debug_frame", 44, "<I", 9_999),
        "elf-index",
    ),
    ("register counts cut short", _section(".nv.info", 32, "<Q", 30), "nvinfo-truncated"),
    ("half an instruction", _section(".text.reach", 32, "<Q", 24), "text-size"),
    ("no instruction", _section(".text.reach", 32, "<Q", 0), "text-size"),
    ("a line table longer than its section", _content(".debug_line", 0, "<I", 10**6), "dwarf-line"),
    ("frames longer than their section", _content(".debug_frame", 4, "<Q", 10**6), "dwarf-frame"),
]


@pytest.mark.parametrize(("data", "code"), [case[1:] for case in LATE], ids=[case[0] for case in LATE])
def test_a_defect_met_later_has_its_code(data: bytes, code: str) -> None:
    with pytest.raises(GWatchError) as caught:
        _use_everything(data, strict=True)
    assert caught.value.code == code


def test_a_symbol_that_names_itself_by_a_far_offset_is_refused() -> None:
    relocations = _ELF.section(_index(".rela.nv.constant4"))
    data = bytearray(GOOD)
    struct.pack_into("<Q", data, relocations.offset + 8, 10**6 << 32 | 2)
    with pytest.raises(CubinError, match=r"\[elf-relocation\].*symbol 1000000"):
        _use_everything(bytes(data), strict=True)


def test_a_frame_that_follows_no_common_entry_is_refused() -> None:
    entry = struct.pack("<IQQQ", 0xFFFFFFFF, 24, 0, 0) + bytes(8)
    with pytest.raises(CubinError, match=r"\[dwarf-frame\]"):
        read_fdes(entry, "test")


def test_inlined_code_that_calls_itself_ends() -> None:
    """Rows whose call sites form a cycle: the chain is cut, not followed for ever."""
    elf = Elf(GOOD)
    section = elf.find(".debug_line")
    assert section is not None
    content = bytearray(elf.content(section))
    at = 0
    patched = 0
    while (at := content.find(b"\0\x03\x90", at)) >= 0:
        if content[at + 3]:
            content[at + 3] = 12
            patched += 1
        at += 4
    assert patched > 3
    editor = Editor(elf)
    editor.replace(section.index, bytes(content))
    cubin = Cubin.from_bytes(editor.write())
    assert all(len(calls) <= 256 for calls in cubin.get_kerneldef_by_name("reach").inlined_at.values())


def _use_everything(data: bytes, strict: bool = False) -> None:
    """Every reader and writer over one image; only GWatchErrors may leave a step (strict: the first one
    does)."""
    cubin = Cubin.from_bytes(data, "hostile")
    steps: list[Callable[[], object]] = [lambda: Editor(cubin.elf).write()]
    kernels = [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]
    for kernel in kernels if strict else [k for k in kernels if k.name in ("reach", "walk")]:
        steps += [
            lambda k=kernel: (k.words, k.attributes, k.inner_functions),  # type: ignore[misc]
            lambda k=kernel: k.register_count,  # type: ignore[misc]
            lambda k=kernel: (k.params, k.param_base, k.max_threads),  # type: ignore[misc]
            lambda k=kernel: (k.map_address_to_line, k.inlined_at),  # type: ignore[misc]
            lambda k=kernel: k.map_address_to_ptx_line,  # type: ignore[misc]
            lambda k=kernel: (k.relocations, globals_reached(cubin, k)),  # type: ignore[misc]
            lambda k=kernel: Cubin.from_bytes(insert(cubin, k.name, {0, 3}, registers=40).cubin.data),  # type: ignore[misc]
        ]
    steps += [lambda: add_constant3(data, "gwatch_test", 24), lambda: add_note(data, ".note.gwatch", b"x")]
    steps += [lambda t=table: cubin.elf.relocations(t) for table in cubin.elf.relocation_sections()]  # type: ignore[misc]
    for step in steps:
        try:
            step()
        except GWatchError as error:
            # Refusals of sound images are no defects.
            if strict and error.code not in ("jump-table", "debug-registers", "mercury"):
                raise


@pytest.mark.parametrize("data", [GOOD, OLD, DEBUG, MERCURY], ids=["sm_90", "sm_75", "sm_90 -G", "sm_120"])
def test_sound_images_pass(data: bytes) -> None:
    _use_everything(data, strict=True)


SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
_NUMBERS = st.one_of(
    st.integers(0, 255),
    st.sampled_from([0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]),
)  # fmt: skip


@pytest.mark.parametrize("good", [GOOD, OLD, DEBUG, MERCURY], ids=["sm_90", "sm_75", "sm_90 -G", "sm_120"])
@SETTINGS
@given(
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), _NUMBERS, st.sampled_from("BHIQ")),
        min_size=1,
        max_size=8,
    )
)
def test_mutated_images_raise_only_our_errors(good: bytes, changes: list[tuple[float, int, str]]) -> None:
    data = bytearray(good)
    for where, value, form in changes:
        size = struct.calcsize(form)
        at = min(int(where * len(data)), len(data) - size)
        struct.pack_into(f"<{form}", data, at, value & (1 << 8 * size) - 1)
    _swallow(bytes(data))


@SETTINGS
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(_ELF.sections) - 1), st.integers(0, 9), _NUMBERS), min_size=1, max_size=4
    )
)
def test_mutated_section_headers_raise_only_our_errors(changes: list[tuple[int, int, int]]) -> None:
    data = bytearray(GOOD)
    layout = [
        (0, "I"),
        (4, "I"),
        (8, "Q"),
        (16, "Q"),
        (24, "Q"),
        (32, "Q"),
        (40, "I"),
        (44, "I"),
        (48, "Q"),
        (56, "Q"),
    ]
    for section, field, value in changes:
        offset, form = layout[field]
        mask = (1 << 8 * struct.calcsize(form)) - 1
        struct.pack_into(f"<{form}", data, _ELF.header.shoff + section * SHDR.size + offset, value & mask)
    _swallow(bytes(data))


@SETTINGS
@given(
    name=st.sampled_from([".debug_line", ".nv_debug_line_sass", ".debug_frame", ".nv.info", ".nv.info.reach", ".symtab",
                          ".rela.debug_frame", ".rela.debug_line"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)  # fmt: skip
def test_mutated_tables_raise_only_our_errors(name: str, changes: list[tuple[float, int]]) -> None:
    data = bytearray(GOOD)
    section = _ELF.section(_index(name))
    for where, value in changes:
        data[section.offset + int(where * section.size)] = value
    _swallow(bytes(data))


@SETTINGS
@given(cut=st.integers(0, len(GOOD) - 1))
def test_truncated_images_raise_only_our_errors(cut: int) -> None:
    with pytest.raises(GWatchError):
        Cubin.from_bytes(GOOD[:cut])


@SETTINGS
@given(data=st.binary(max_size=400))
def test_any_bytes_raise_only_our_errors(data: bytes) -> None:
    with pytest.raises(GWatchError):
        Cubin.from_bytes(b"\x7fELF\x02\x01\x01\x41\x08" + data)


def _swallow(data: bytes) -> None:
    tracemalloc.start()
    try:
        _use_everything(data)
    except GWatchError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(GOOD)
