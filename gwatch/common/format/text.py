"""Text building blocks: durations, tables, row names, and what a terminal may be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gwatch.common.format.records import Rows

ASCII = str.maketrans({"·": "|", "→": "->", "µ": "u", "…": "...", "×": "x", "—": "-", "≥": ">=", "≤": "<=",
                       "⋅": "."})
SCOPE_COLOURS = (34, 33, 32, 35, 36, 31, 93, 90)
"""Terminal colours of the scopes, in label order: of the plain sixteen, whose codes are short."""
PLAIN = 39


@dataclass(frozen=True, slots=True)
class Style:
    """What the reader's terminal can show."""

    unicode: bool = False
    colour: bool = False

    def clean(self, text: str) -> str:
        """``text`` without control characters, and in ASCII where nothing else is safe."""
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
        if self.unicode:
            return text
        return text.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii")

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text

    def scopes(self, parts: Iterable[tuple[str, int]]) -> str:
        """Texts in a row, each in the colour of the scope with its index; below 0 in none. A colour is named only where
        it changes: lines of a timeline are mostly changes."""
        text, shown = "", PLAIN
        for part, index in parts:
            code = SCOPE_COLOURS[index % len(SCOPE_COLOURS)] if index >= 0 and self.colour else PLAIN
            text += (f"\x1b[{code}m" if code != shown else "") + part
            shown = code
        return text + (f"\x1b[{PLAIN}m" if shown != PLAIN else "")


def duration(value: float | None, unit: str) -> str:
    """Two decimals in the unit that suits the size: ns, µs, ms, s, or cyc, k cyc, M cyc; "-" for None."""
    if value is None:
        return "-"
    steps = (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)) if unit == "ns" else (
        ("cyc", 1.0), ("k cyc", 1e3), ("M cyc", 1e6), ("G cyc", 1e9))
    # What rounds to 1000 moves on: 999.996 ns reads as 1.00 µs and not as 1000.00 ns.
    name, scale = next((step for step in steps if round(abs(value) / step[1], 2) < 1000), steps[-1])
    if scale == 1.0 and float(value).is_integer():
        return f"{int(value)} {name}"
    return f"{value / scale:.2f} {name}"


def since(value: float, unit: str) -> str:
    """``+17.69µs``: a time counted from the run's first record, as ``--stime`` takes it."""
    return "+" + duration(value, unit).replace(" ", "")


def locator(rows: Rows, row: int) -> str:
    """``b0 w0 t5`` for a thread, ``b0 w0`` for a warp; warp and thread count within the block."""
    lane, warp = int(rows.lane[row]), int(rows.warp[row])
    text = f"b{int(rows.block[row])} w{warp}"
    return text if lane < 0 else f"{text} t{warp * 32 + lane}"


def clip(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters, the cut marked."""
    return text if len(text) <= width else text[:width - 1] + "…"


def wrap(parts: Iterable[str], width: int, lengths: Iterable[int]) -> list[str]:
    """``parts``, two blanks apart, on lines of up to ``width`` characters; ``lengths`` are what readers see of them."""
    lines: list[list[str]] = []
    room = -1
    for part, length in zip(parts, lengths, strict=True):
        if length + 2 > room:
            lines.append([])
            room = width + 2
        lines[-1].append(part)
        room -= length + 2
    return ["  ".join(line) for line in lines]


def table(style: Style, head: Sequence[str], rows: Iterable[Sequence[Any]], left: Iterable[int] = (0,)) -> list[str]:
    """Lines of a table, as ``style`` shows them: header, rule, rows; columns in ``left`` are aligned left, the others
    right."""
    # What a terminal cannot show is longer in ASCII: cells are cleaned before their widths are taken.
    cells = [[style.clean(str(c)) for c in row] for row in rows]
    widths = [max(len(line[i]) for line in (list(head), *cells)) for i in range(len(head))]
    keep_left = set(left)

    def line(row: Sequence[str]) -> str:
        parts = [c.ljust(w) if i in keep_left else c.rjust(w)
                 for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(parts).rstrip()

    return [line(list(head)), "  ".join("-" * w for w in widths), *(line(row) for row in cells)]


def code_order(site: Mapping[str, Any], number: int) -> int:
    """Where in the code a site stands; its number where the report does not say."""
    index = site.get("index")
    return number if index is None else int(index)


def place_of(site: Mapping[str, Any]) -> str:
    """``file.cu:29`` of a site, else its instruction's number; "" when neither is known."""
    index = site.get("index")
    return source_line(site) or ("" if index is None else f"instr {int(index)}")


def source_line(site: Mapping[str, Any]) -> str:
    """``file.cu:29`` of a site (of inlined code: the line that called it), whatever form its line has; "" when
    unknown."""
    line = site.get("called_from") or site.get("line")
    if isinstance(line, (list, tuple)) and len(line) == 2:
        line = f"{line[0]}:{line[1]}"
    text = "" if line in (None, "", 0) else str(line)
    if text.isdigit() and site.get("file"):
        text = f"{site['file']}:{text}"
    return text.rsplit("/", 1)[-1]
