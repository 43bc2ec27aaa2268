"""Names of the data that a host library embeds: AOTInductor puts kernels there as ``__NAME_start``."""

from __future__ import annotations

import re

from gwatch.inspect.reader import Reader

_START = re.compile(r"__(\w+)_start")
_FATBIN_SECTION = ".nv_fatbin"
_DYNAMIC = ".dynsym"
_NAME_LIMIT = 4096


def embedded_symbols(reader: Reader) -> dict[int, str]:
    """Byte offset in the file -> NAME of the symbol ``__NAME_start`` that leads there.

    Empty for files that are no host ELF, for libraries that nvcc made (their kernels have a section of their own) and
    for damaged symbol tables.
    """
    if reader.read(0, 4) != b"\x7fELF":
        return {}
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    found: dict[int, str] = {}
    try:
        elf = ELFFile(reader.stream)
        if elf.get_section_by_name(_FATBIN_SECTION) is not None:
            return {}
        table = elf.get_section_by_name(_DYNAMIC)
        for symbol in table.iter_symbols() if isinstance(table, SymbolTableSection) else ():
            if len(symbol.name) > _NAME_LIMIT:
                return found  # damage; reading on would read the same bytes again and again
            match = _START.fullmatch(symbol.name)
            number = symbol["st_shndx"]
            if match is not None and isinstance(number, int):
                section = elf.get_section(number)
                found[symbol["st_value"] - section["sh_addr"] + section["sh_offset"]] = match[1]
    except (ELFError, ValueError, LookupError, AttributeError, TypeError, OSError, ArithmeticError):
        return {}  # names are a help; what was found stays found
    return found
