"""Source lines, PTX lines and call sites of inlined code, compared with nvdisasm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from binary_support import DATA, load
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.dwarf import line_headers
from gwatch.cuda.binary.lineprogram import Row, decode, encode
from gwatch.cuda.binary.lines import LineTable
from gwatch.errors import CubinError, UnsupportedError
from gwatch.sass import nvdisasm

FIXTURES = sorted(DATA.glob("*.cubin"))
_LINE = re.compile(r'\s*//## File "(.*?)", line (\d+)')
_TEXT = re.compile(r"\.text\.(\S+):")
_AT = re.compile(r"\s*/\*([0-9a-f]+)\*/")


def _listed(cubin: Cubin) -> dict[str, dict[int, list[tuple[str, int]]]]:
    """nvdisasm -gi: function -> address -> its own line, then the call sites outwards."""
    found: dict[str, dict[int, list[tuple[str, int]]]] = {}
    current: dict[int, list[tuple[str, int]]] = {}
    chain: list[tuple[str, int]] = []
    fresh: list[tuple[str, int]] = []
    for line in nvdisasm.disassemble_cubin(cubin.data, "-gi", "-c").splitlines():
        if match := _TEXT.match(line):
            current, chain, fresh = found.setdefault(match[1], {}), [], []
        elif match := _LINE.match(line):
            fresh.append((match[1], int(match[2])))
        elif match := _AT.match(line):
            chain, fresh = fresh or chain, []
            current[int(match[1], 16)] = chain
    return found


def _check_against_nvdisasm(cubin: Cubin) -> tuple[int, int]:
    lines = inlined = 0
    for name, listed in _listed(cubin).items():
        kernel = cubin.get_kerneldef_by_name(name)
        for address, chain in listed.items():
            calls = [(call.file, call.line) for call in kernel.inlined_at.get(address, ())]
            if not chain:
                assert address not in kernel.map_address_to_line
                continue
            # Several rows at one address: the last one counts, and it is as long as its chain.
            assert [kernel.map_address_to_line[address], *calls] == chain[len(chain) - len(calls) - 1 :]
            lines += 1
            inlined += bool(calls)
    return lines, inlined


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_lines_and_call_sites_are_those_nvdisasm_prints(path: Path) -> None:
    lines, inlined = _check_against_nvdisasm(Cubin.from_file(path))
    assert lines > 30
    assert bool(inlined) == path.name.startswith("holders")


def test_lines_of_an_old_cubin(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "flash_attn3" in p.name)
    cubin = Cubin.from_file(path)
    assert cubin.abi_version == 7
    assert _check_against_nvdisasm(cubin)[0] == 32


def test_call_sites_name_the_functions_inlined_there() -> None:
    source = (DATA / "holders.cu").read_text().splitlines()
    deepest = source.index("    return x * x + 1.0f;") + 1
    kernel = load("holders_sm90.cubin").get_kerneldef_by_name("reach")
    addresses = [
        a for (f, line), found in kernel.map_line_to_addresses.items() if line == deepest for a in found
    ]
    assert addresses
    for address in addresses:
        inner, outer = kernel.inlined_at[address]
        assert (inner.function, outer.function) == ("_Z6squaref", "_Z5twicef")
        assert source[inner.line - 1].strip() == "return square(x) + square(x + 2.0f);"
        assert source[outer.line - 1].strip() == "float v = twice(p[i]);"


def test_both_directions_of_the_map_agree() -> None:
    kernel = load("holders_sm75.cubin").get_kerneldef_by_name("reach")
    assert sum(len(found) for found in kernel.map_line_to_addresses.values()) == len(
        kernel.map_address_to_line
    )
    for place, found in kernel.map_line_to_addresses.items():
        assert all(kernel.map_address_to_line[address] == place for address in found)
    assert any(path.endswith("/holders.cu") for path in kernel.set_filepaths)
    lines = {line for _, line in kernel.map_ptx_line_to_addresses}
    assert lines and set(kernel.map_address_to_ptx_line) <= set(range(0, 16 * len(kernel.words), 16))


def test_ptx_lines_name_instructions_of_the_ptx_text() -> None:
    cubin = load("holders_sm90.cubin")
    section = cubin.elf.find(".nv_debug_ptx_txt")
    assert section is not None
    ptx = cubin.elf.content(section).replace(b"\0", b"\n").decode().split("\n")
    kernel = cubin.get_kerneldef_by_name("swap")
    shuffles = [16 * i for i, text in enumerate(kernel.texts) if text.startswith("SHFL")]
    assert shuffles
    for address in shuffles:
        assert "shfl" in ptx[kernel.map_address_to_ptx_line[address][1] - 1]


def test_a_cubin_without_lines_says_nothing(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "jax" in p.name)
    kernel = next(iter(Cubin.from_file(path).get_map_kernel_def().values()))
    assert kernel.map_address_to_line == {} and kernel.inlined_at == {} and kernel.line_table == LineTable(())


@pytest.mark.parametrize("section", [".debug_line", ".nv_debug_line_sass"])
@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_rows_are_those_of_pyelftools(path: Path, section: str) -> None:
    """pyelftools skips the inlining opcode, but addresses, files, lines and flags must agree."""
    cubin = Cubin.from_file(path)
    found = cubin.elf.find(section)
    assert found is not None
    content = cubin.elf.content(found)
    (header,) = line_headers(content, section)
    ours = [row for sequence in decode(content, header, section) for row in sequence.rows]
    theirs = _pyelftools_rows(content)
    assert len(ours) == len(theirs) > 10
    for row, state in zip(ours, theirs, strict=True):
        assert (row.address, row.file, row.line, row.column) == (
            state.address,
            state.file,
            state.line,
            state.column,
        )
        assert row.end == bool(state.end_sequence)
        assert row.end or row.is_stmt == bool(state.is_stmt)  # pyelftools clears it at an end


def _pyelftools_rows(content: bytes) -> list:  # type: ignore[type-arg]
    import io

    descriptor = DebugSectionDescriptor(io.BytesIO(content), ".debug_line", 0, len(content), 0)
    names = DWARFInfo.__init__.__code__.co_varnames[2 : DWARFInfo.__init__.__code__.co_argcount]
    sections = {name: descriptor if name in ("debug_line_sec", "debug_info_sec") else None for name in names}
    info = DWARFInfo(DwarfConfig(True, "CUDA", 8), **sections)
    program = info._parse_line_program_at_offset(0, info.structs)
    return [entry.state for entry in program.get_entries() if entry.state is not None]


@pytest.mark.parametrize("section", [".debug_line", ".nv_debug_line_sass"])
@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.name)
def test_encoding_decoded_rows_gives_the_same_rows(path: Path, section: str) -> None:
    cubin = Cubin.from_file(path)
    found = cubin.elf.find(section)
    assert found is not None
    content = cubin.elf.content(found)
    (header,) = line_headers(content, section)
    for sequence in decode(content, header, section):
        program = encode(sequence.rows, 0, header)
        assert program[:3] == b"\0\x09\x02"
        unit = content[header.offset : header.program] + program
        fixed = (len(unit) - 4).to_bytes(4, "little") + unit[4:]
        (again,) = decode(fixed, line_headers(fixed, "test")[0], "test")
        assert again.rows == sequence.rows and again.regular


def test_every_kind_of_row_is_encoded() -> None:
    content = _content()
    # This program's own header stops at opcode 9; DWARF 3 adds three more.
    (old,) = line_headers(content, "test")
    lengths = 15
    assert content[lengths - 1] == old.opcode_base == 10
    content = (
        content[: lengths - 1] + b"\x0d" + content[lengths : lengths + 9] + b"\0\0\1" + content[lengths + 9 :]
    )
    size = 6
    grown = int.from_bytes(content[size : size + 4], "little") + 3
    content = content[:size] + grown.to_bytes(4, "little") + content[size + 4 :]
    content = (len(content) - 4).to_bytes(4, "little") + content[4:]
    (header,) = line_headers(content, "test")
    assert header.opcode_base == 13
    rows = [
        Row(0, 1, 5, 0, True), Row(0, 1, 5, 3, False), Row(16, 2, 400, 3, False, flags=7, isa=2, discriminator=9),
        Row(16, 2, 1, 3, True, isa=2, context=3, function=300), Row(99_984, 1, 2, 0, True, isa=2, end=True),
    ]  # fmt: skip
    unit = content[: header.program] + encode(rows, 0, header)
    fixed = (len(unit) - 4).to_bytes(4, "little") + unit[4:]
    (again,) = decode(fixed, line_headers(fixed, "test")[0], "test")
    assert again.rows == rows


def test_a_row_that_the_header_has_no_opcode_for_is_refused() -> None:
    (header,) = line_headers(_content(), "test")
    with pytest.raises(UnsupportedError, match=r"\[debug-line\]"):
        encode([Row(0, 1, 1, 0, True, flags=2)], 0, header)
    with pytest.raises(UnsupportedError, match="cannot step"):
        encode([Row(16, 1, 1, 0, True), Row(0, 1, 1, 0, True, end=True)], 0, header)


def _content() -> bytes:
    elf = load("holders_sm90.cubin").elf
    section = elf.find(".debug_line")
    assert section is not None
    return elf.content(section)


def test_damaged_line_programs_have_one_code() -> None:
    content = _content()
    (header,) = line_headers(content, "test")
    for cut in range(1, len(content), 7):
        with pytest.raises(CubinError) as caught:
            line_headers(content[:cut], "test")
        assert caught.value.code == "dwarf-line"
    long = bytearray(content)
    long[4] = 9
    with pytest.raises(CubinError, match="version 9"):
        line_headers(bytes(long), "test")
    endless = bytearray(content)
    endless[header.program : header.program + 12] = b"\x02" + b"\xff" * 11
    with pytest.raises(CubinError, match=r"\[dwarf-line\]"):
        decode(bytes(endless), header, "test")
