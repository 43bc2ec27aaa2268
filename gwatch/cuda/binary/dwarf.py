"""Headers of DWARF line-number programs, through pyelftools (imported by this module alone).

Their layout depends on the DWARF version (2 to 4); the opcodes behind them are decoded in
:mod:`.lineprogram`, because pyelftools drops CUDA's extended opcodes.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from elftools.common.utils import struct_parse
from elftools.dwarf.structs import DWARFStructs

from gwatch.errors import CubinError


@dataclass(frozen=True, slots=True)
class LineHeader:
    """Header of one DWARF line-number program. Offsets are relative to the section; ``files`` maps number ->
    path."""

    offset: int
    program: int
    end: int
    length_size: int
    version: int
    min_instruction_length: int
    default_is_stmt: bool
    line_base: int
    line_range: int
    opcode_base: int
    opcode_lengths: tuple[int, ...]
    files: dict[int, str]


def _path(directory: bytes, name: bytes) -> str:
    folder, file = (part.decode("utf-8", "backslashreplace") for part in (directory, name))
    return file if file.startswith("/") or not folder else f"{folder.rstrip('/')}/{file}"


def line_headers(data: bytes, where: str) -> tuple[LineHeader, ...]:
    """Headers of all line-number programs (DWARF 2 to 4) of a section, by pyelftools.

    Raises CubinError [dwarf-line] for anything that isn't one.
    """
    headers = []
    at = 0
    while at < len(data):
        # pyelftools and construct raise many kinds of exceptions on damaged input; each means the same here.
        try:
            header = _line_header(data, at)
        except CubinError:
            raise
        except Exception as error:
            raise CubinError(
                "dwarf-line", f"{where}: damaged line program at {at:#x} ({type(error).__name__})"
            ) from None
        headers.append(header)
        at = header.end
    return tuple(headers)


def _line_header(data: bytes, at: int) -> LineHeader:
    wide = data[at : at + 4] == b"\xff\xff\xff\xff"
    size = 12 if wide else 4
    length = int.from_bytes(data[at + size - (8 if wide else 4) : at + size], "little")
    end = at + size + length
    if length < 10 or end > len(data):
        raise CubinError("dwarf-line", f"line program at {at:#x} claims {length} of {len(data) - at} bytes")
    version = int.from_bytes(data[at + size : at + size + 2], "little")
    if not 2 <= version <= 4:
        raise CubinError(
            "dwarf-line", f"line program at {at:#x} has DWARF version {version}, known are 2 to 4"
        )
    structs = DWARFStructs(
        little_endian=True, dwarf_format=64 if wide else 32, address_size=8, dwarf_version=version
    )
    fields = struct_parse(structs.Dwarf_lineprog_header, io.BytesIO(data[at:end]))
    program = at + size + 2 + (8 if wide else 4) + fields["header_length"]
    if program > end or fields["line_range"] == 0 or fields["opcode_base"] == 0:
        raise CubinError("dwarf-line", f"line program at {at:#x} has an impossible header")
    directories = [b"", *fields["include_directory"]]
    files = {}
    for number, entry in enumerate(fields["file_entry"], 1):
        if entry["dir_index"] >= len(directories):
            raise CubinError("dwarf-line", f"line program at {at:#x}: file {number} names no directory")
        files[number] = _path(directories[entry["dir_index"]], entry["name"])
    return LineHeader(
        at, program, end, size, version, fields["minimum_instruction_length"],
        bool(fields["default_is_stmt"]), fields["line_base"], fields["line_range"], fields["opcode_base"],
        tuple(fields["standard_opcode_lengths"]), files,
    )  # fmt: skip
