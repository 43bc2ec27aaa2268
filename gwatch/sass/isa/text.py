"""Text of many instruction words at once.

Words of one template differ in their numbers only, so each template is one format string, filled from columns of
number texts. nvdisasm's text and the canonical one (which also shows what nvdisasm hides) are made the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.sass.arch import INSTRUCTION_SIZE
from gwatch.sass.isa.pattern import Words
from gwatch.sass.isa.values import FLOATS, number_text

if TYPE_CHECKING:
    from gwatch.sass.isa.vector import Column, Decoder, Ids

_REGISTERS = "RUPQBS"
_NUMBERS = 256
_FLAT = 1 << 16


class Renderer:
    """Writes the text of words whose template numbers are known. Keeps formats and the texts of numbers."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        zero = decoder.source.zero
        self._names = {letter: np.array([number_text(letter, value, zero) for value in range(_NUMBERS)], object)
                       for letter in _REGISTERS}
        self._formats: dict[tuple[int, bool], tuple[str, tuple[int, ...], bool]] = {}
        self._known: dict[tuple[str, bool], dict[int, str]] = {}

    def texts(self, words: Words, ids: Ids, addresses: Column, canonical: bool) -> npt.NDArray[np.object_]:
        """The text of each word (None where the table does not know it), guard included, targets absolute."""
        out = np.full(len(words), None, object)
        high = words[:, 1]
        marked = np.where(high >> np.uint64(45) & np.uint64(1), high >> np.uint64(58) & np.uint64(15), np.uint64(0))
        variants = ids.astype(np.int64) << 4 | marked.astype(np.int64)
        first, order, edges = _runs(variants)
        known = self.decoder.column("known")[ids]
        columns = self._columns(words, ids, addresses, canonical)
        for group in np.flatnonzero(known[first]).tolist():
            rows = order[edges[group]:edges[group + 1]]
            form, numbers, blank = self._format(int(variants[rows[0]]), words[rows[0]], canonical)
            if numbers:
                filled = zip(*[columns[number][rows].tolist() for number in numbers], strict=True)
                texts = [form % row for row in filled]
                out[rows] = [text.rstrip(" ") for text in texts] if blank else texts
            else:
                out[rows] = form
        self._guards(words, ids, known, out)
        return out

    def _format(self, variant: int, word: npt.NDArray[np.uint64], canonical: bool
                ) -> tuple[str, tuple[int, ...], bool]:
        """Format string, numbers of the fields that fill it, and whether it may end in a blank."""
        found = self._formats.get((variant, canonical))
        if found is None:
            template = self.decoder.templates[variant >> 4]
            assert template is not None
            low, high = word.tolist()
            marked = template.form.marked(low | high << 64, variant & 15) if variant & 15 else ()
            pieces, numbers = template.shown(marked, canonical)
            form = "%s".join(piece.replace("%", "%%") for piece in pieces) if numbers else "".join(pieces)
            blank = bool(numbers) and not pieces[-1] and template.fields[numbers[-1]].kind in FLOATS
            found = self._formats[variant, canonical] = form, numbers, blank
        return found

    def _columns(self, words: Words, ids: Ids, addresses: Column, canonical: bool) -> list[npt.NDArray[np.object_]]:
        """The texts of the numbers, by field number; a row is filled where its template has that many."""
        decoder = self.decoder
        counts, relative = decoder.column("texts")[ids], decoder.column("relative")[ids]
        out = []
        for slot in range(int(counts.max(initial=0))):
            rows = np.flatnonzero(counts > slot)
            mine = ids[rows]
            values = decoder.numbers(words[rows], mine, slot)
            last = relative[rows] & (counts[rows] == slot + 1)
            values[last] += addresses[rows[last]] + INSTRUCTION_SIZE
            column = np.full(len(words), None, object)
            kinds = decoder.column("field_kind")[slot][mine]
            for code in np.flatnonzero(np.bincount(kinds)).tolist():
                letter = decoder.kind_names[code]
                here = np.flatnonzero(kinds == code)
                column[rows[here]] = self._texts(letter, values[here], canonical)
            out.append(column)
        return out

    def _texts(self, letter: str, values: Column, canonical: bool) -> npt.NDArray[np.object_] | list[str]:
        if letter in self._names:
            found: npt.NDArray[np.object_] = self._names[letter][values]
            return found
        if letter == "I":
            return list(map(hex, values.tolist()))
        known = self._known.setdefault((letter, canonical), {})
        if len(known) > _FLAT:
            known.clear()
        zero = self.decoder.source.zero
        for value in set(values.tolist()) - known.keys():
            known[value] = number_text(letter, value, zero, canonical)
        return [known[value] for value in values.tolist()]

    def _guards(self, words: Words, ids: Ids, known: npt.NDArray[np.bool_], out: npt.NDArray[np.object_]) -> None:
        guards = (words[:, 0] >> np.uint64(12)).astype(np.uint8) & np.uint8(15)
        rows = np.flatnonzero((guards != 7) & known)
        codes = guards[rows] | self.decoder.column("uniform")[ids[rows]].astype(np.uint8) << np.uint8(4)
        out[rows] = [_GUARDS[code] + text for code, text in zip(codes.tolist(), out[rows].tolist(), strict=True)]


def guard_text(guard: int, negated: bool, uniform: bool) -> str:
    """``@!P0 `` with the blank behind it."""
    return f"@{'!' if negated else ''}{'U' if uniform else ''}P{'T' if guard == 7 else guard} "


_GUARDS = [guard_text(code & 7, bool(code & 8), bool(code & 16)) for code in range(32)]


def _runs(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], list[int]]:
    """``(first, order, edges)``: rows in ``order`` with equal values together, group g at ``edges[g]:edges[g + 1]``."""
    # Two passes over 16 bits each: numpy sorts these by radix, many times faster than 64-bit numbers.
    order = np.argsort((values & 0xFFFF).astype(np.uint16), kind="stable")
    if len(values) and int(values.max()) > 0xFFFF:
        order = order[np.argsort((values[order] >> 16).astype(np.uint16), kind="stable")]
    sorted_ = values[order]
    starts = np.concatenate((np.zeros(min(1, len(values)), np.intp), np.flatnonzero(np.diff(sorted_)) + 1))
    return order[starts], order, [*starts.tolist(), len(values)]
