"""The table file of an architecture: one JSON object a line, opcodes built only when asked for.

Line 1 is the header (architecture, format version, nvdisasm version, mnemonic -> keys). Then, sorted by key, one line
per key followed by one line per form. Loading reads the file and notes where each key starts; nothing else is parsed
before it is needed, so no second, compiled copy has to be kept in step with the text. The architectures of a family
share what was read, and the examples, which are more than half of a file, are left unread until words are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from gwatch._resources import resource
from gwatch.errors import ToolError
from gwatch.sass.arch import ARCHES
from gwatch.sass.isa.model import Form, Key

VERSION = 1
_KEY = re.compile(r'\{"key":"([0-9a-f]+)"(?:,"targets":\[([^]]*)\])?')
_KEY_START = '{"key":"'
_EXAMPLES = re.compile(r',"shapes":\[[^]]*\],"derived":\[[^]]*\],"probes":\[[^]]*\]')


class Source:
    """A table file's lines, where its keys start, and those that were read so far."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.starts = [
            (int(match[1], 16), match[2], number) for number, line in enumerate(self.lines)
            if line.startswith(_KEY_START) and (match := _KEY.match(line))]
        self.built: dict[int, Key] = {}

    def key(self, line: int) -> Key:
        """The key that starts in this line, with its forms."""
        built = self.built.get(line)
        if built is None:
            end = line + 1
            while end < len(self.lines) and not self.lines[end].startswith(_KEY_START):
                end += 1
            forms = [_form(text) for text in self.lines[line + 1:end]]
            built = self.built.setdefault(line, Key.from_json(json.loads(self.lines[line]), forms))
        return built


def _form(text: str) -> Form:
    found = _EXAMPLES.search(text)
    if found is None:
        return Form.from_json(json.loads(text))
    return Form.from_json(json.loads(text[:found.start()] + text[found.end():]), "{" + found[0][1:] + "}")


class Table:
    """A loaded table: ``header`` as written, keys on demand.

    A family's table serves several architectures; with ``target`` ("sm_86") only the opcodes of that one are there.
    Without, the first meaning of every opcode is.
    """

    def __init__(self, text: str | Source, name: str, target: str | None = None) -> None:
        self.name = name
        self.source = text if isinstance(text, Source) else Source(text)
        try:
            self.header: dict[str, Any] = json.loads(self.source.lines[0])
            version = self.header["version"]
        except (IndexError, KeyError, ValueError) as error:
            raise ToolError("table-damaged", f"ISA table {name} does not start with a header",
                            "reinstall gwatch-sass") from error
        if version != VERSION:
            raise ToolError("table-version", f"ISA table {name} has format {version}, this gwatch reads {VERSION}",
                            "reinstall gwatch-sass")
        self._start: dict[int, int] = {}
        for number, targets, line in self.source.starts:
            if target is None or not targets or f'"{target}"' in targets:
                self._start.setdefault(number, line)
        self.mnemonics: dict[str, list[int]] = {
            name: here for name, keys in self.header["mnemonics"].items()
            if (here := [n for k in keys if (n := int(k, 16)) in self._start])}

    def numbers(self) -> list[int]:
        """All opcode keys, ascending."""
        return sorted(self._start)

    def key(self, number: int) -> Key | None:
        """The model of one opcode key, None when the table has none."""
        line = self._start.get(number)
        return None if line is None else self.source.key(line)


def load(name: str, target: str | None = None) -> Table:
    """The packaged table called ``name`` ("sm_90"). Raises ToolError when it is missing or damaged."""
    return Table(resource("isa", f"{name}.jsonl").read_text(encoding="utf-8"), name, target)


@lru_cache
def packaged(name: str) -> Source:
    """The packaged table called ``name``, read once. Raises ToolError when it is missing."""
    return Source(resource("isa", f"{name}.jsonl").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def mnemonics() -> frozenset[str]:
    """Every mnemonic that some architecture has."""
    found: set[str] = set()
    for name in sorted({arch.table for arch in ARCHES.values()}):
        try:
            with open(resource("isa", f"{name}.jsonl"), encoding="utf-8") as lines:
                found.update(json.loads(next(lines))["mnemonics"])
        except ToolError:
            continue  # an architecture without a table
    return frozenset(found)


def dump(header: dict[str, Any], keys: Iterable[Key]) -> str:
    """The table's text. ``header`` gets the version and the mnemonic index; forms keep their order."""
    ordered = sorted(keys, key=lambda k: (k.key, k.targets))
    mnemonics: dict[str, list[str]] = {}
    for key in ordered:
        for label in key.opcode[0].labels:
            numbers = mnemonics.setdefault(label.split(".")[0], [])
            if f"{key.key:04x}" not in numbers:
                numbers.append(f"{key.key:04x}")
    lines = [json.dumps({**header, "version": VERSION, "mnemonics": dict(sorted(mnemonics.items()))},
                        separators=(",", ":"))]
    for key in ordered:
        lines.append(json.dumps(key.to_json(), separators=(",", ":")))
        lines += [json.dumps(form.to_json(), separators=(",", ":")) for form in key.forms]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write a table file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
