"""The code of a traced kernel as its report shows it: instructions beside the source lines they stem from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch.cuda.binary.instruction import INSTRUCTION_SIZE

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef

WHOLE = 1500
"""Kernels of up to this many instructions are listed whole, of others what lies around the sites."""
AROUND = 40
_MOST_BYTES = 4 << 20
_MOST_COLUMNS = 200


def listing_of(kernel: KernelDef, sites: Iterable[int]) -> dict[str, Any]:
    """``index``, ``text`` and ``place`` of the instructions listed; ``places``: (file, line, file and line of the
    outermost call it was inlined through, or "" and 0); ``source``: text by file and line, as far as the files are
    there to be read. ``sites``: instruction indices."""
    count = len(kernel.texts)
    if count <= WHOLE:
        index = list(range(count))
    else:
        near = {i for site in sites for i in range(site - AROUND, site + AROUND + 1)}
        index = sorted(i for i in near if 0 <= i < count)
    lines, calls = kernel.map_address_to_line, kernel.inlined_at
    places: dict[tuple[str, int, str, int], int] = {}
    place = []
    for i in index:
        file, line = lines.get(i * INSTRUCTION_SIZE, ("", 0))
        outer = calls.get(i * INSTRUCTION_SIZE, ())
        key = (file, line, outer[-1].file, outer[-1].line) if outer else (file, line, "", 0)
        place.append(places.setdefault(key, len(places)))
    wanted: dict[str, set[int]] = {}
    for file, line, outer_file, outer_line in places:
        wanted.setdefault(file, set()).add(line)
        wanted.setdefault(outer_file, set()).add(outer_line)
    return {
        "index": index,
        "text": [kernel.texts[i].strip() for i in index],
        "place": place,
        "places": [list(key) for key in places],
        "source": {file: text for file, numbers in wanted.items() if (text := _source(file, numbers))},
    }


def with_callers(kernel: KernelDef, sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sites as reports name them, those in inlined code with ``called_from``: file:line of the outermost call."""
    for site in sites:
        calls = kernel.inlined_at.get(site["index"] * INSTRUCTION_SIZE, ())
        if calls:
            site["called_from"] = f"{calls[-1].file}:{calls[-1].line}"
    return sites


def _source(file: str, numbers: set[int]) -> dict[str, str]:
    """The lines of a file by number, {} where it cannot be read."""
    path = Path(file)
    try:
        if not file or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return {}
        text = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {str(n): text[n - 1].rstrip()[:_MOST_COLUMNS] for n in sorted(numbers) if 0 < n <= len(text)}
