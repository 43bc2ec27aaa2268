"""What one table line means: opcode keys, their forms, and text from a word.

A key (13 bits) has an opcode part, whose words (``.E``, ``.128``) are chosen by trees, and several forms. A form is an
operand skeleton with, per attachment, a tree that chooses its text and, per value, a field or a named enumeration.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gwatch.sass.isa import lex, tree, values
from gwatch.sass.isa.tree import UNKNOWN, Node

KEY_BIT = 91
GUARD_SHIFT = 12
_EXAMPLES = ("shapes", "probes", "derived", "lone")


def key_of(word: int) -> int:
    """The 13-bit opcode key of a word: bits 0-11, and bit 91 as bit 12."""
    return word & 0xFFF | (word >> KEY_BIT & 1) << 12


@dataclass(slots=True)
class Choice:
    """A text chosen by a tree among ``labels``."""

    labels: list[str]
    node: Node

    def get(self, word: int) -> str | None:
        """The text for ``word``, None where the tables do not know."""
        node = self.node
        label = node if isinstance(node, int) else tree.lookup(node, word)
        return None if label == UNKNOWN else self.labels[label]

    def to_json(self) -> Any:
        """JSON data: the text itself when there is no choice."""
        if len(self.labels) == 1 and self.node == 0:
            return self.labels[0]
        return [self.labels, tree.to_json(self.node)]

    @classmethod
    def from_json(cls, data: Any) -> Choice:
        """Read what :meth:`to_json` wrote."""
        if isinstance(data, str):
            return cls([data], 0)
        return cls(list(data[0]), tree.from_json(data[1]))


@dataclass(slots=True)
class Value:
    """One operand value: a name chosen by a tree, or one of several fields, also chosen by a tree."""

    kind: str
    name: Choice | None = None
    fields: list[values.Field] = field(default_factory=list)
    node: Node = 0

    def field_of(self, word: int) -> values.Field | None:
        """The field that holds for ``word`` (None for names, and where the tables do not know)."""
        if self.name is not None:
            return None
        label = tree.lookup(self.node, word)
        return None if label == UNKNOWN else self.fields[label]

    def text(self, word: int, zero: dict[str, int]) -> str | None:
        """nvdisasm's spelling, None where the tables do not know."""
        if self.name is not None:
            return self.name.get(word)
        place = self.field_of(word)
        return None if place is None else values.number_text(place.kind, place.get(word), zero)

    @property
    def mask(self) -> int:
        """Bits that any of the fields owns."""
        mask = 0
        for place in self.fields:
            mask |= place.mask
        return mask

    def to_json(self) -> Any:
        """JSON data."""
        if self.name is not None:
            return {"name": self.name.to_json()}
        places = [[f.kind, [list(r) for r in f.runs], int(f.signed), f.const, *([f.add] if f.add else [])]
                  for f in self.fields]
        return {"kind": self.kind, "fields": places, "tree": tree.to_json(self.node)}

    @classmethod
    def from_json(cls, data: Any) -> Value:
        """Read what :meth:`to_json` wrote."""
        if "name" in data:
            return cls("N", Choice.from_json(data["name"]))
        places = [values.Field(kind, tuple((r[0], r[1], r[2]) for r in runs), bool(signed), const, *add)
                  for kind, runs, signed, const, *add in data["fields"]]
        return cls(data["kind"], None, places, tree.from_json(data["tree"]))


@dataclass(slots=True)
class Rule:
    """The effect of one value: ``counts`` chooses "registers read,registers written"."""

    value: int
    role: str
    counts: Choice

    def get(self, word: int) -> tuple[int, int] | None:
        """(registers read, registers written), None where the tables do not know."""
        text = self.counts.get(word)
        if text is None:
            return None
        reads, writes = text.split(",")
        return int(reads), int(writes)

    def to_json(self) -> Any:
        """JSON data."""
        return [self.value, self.role, self.counts.to_json()]

    @classmethod
    def from_json(cls, data: Any) -> Rule:
        """Read what :meth:`to_json` wrote."""
        return cls(data[0], data[1], Choice.from_json(data[2]))


@dataclass(slots=True, eq=False)
class Form:
    """One operand skeleton of a key. Forms are equal to themselves alone: comparing two would read their examples.

    ``shapes`` are compiler words, one per choice of texts seen (several when hidden bits differ), and ``derived`` ones
    among them, which differ from a compiler word in one operand; ``probes`` are words
    that nvdisasm decodes, for forms that no compiler word has. ``reuse`` gives, per operand-cache bit, the lowest bit
    of the register field that it marks (-1: none). ``rules`` say what each value reads and writes, ``implicit`` lists
    registers that no operand names as [file, register, read, written]; ``proved``: both were checked against
    nvdisasm's life ranges. ``hidden`` are the positions of values that nvdisasm does not print, together with the
    ``desc[..]`` around them; the skeleton has them. ``lone`` names the project of those compiler words whose like no
    other project writes.
    """

    skeleton: str
    attachments: list[Choice]
    values: list[Value]
    shapes: list[int] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)
    reuse: tuple[int, ...] = ()
    rules: list[Rule] = field(default_factory=list)
    implicit: list[list[Any]] = field(default_factory=list)
    proved: bool = False
    hidden: tuple[int, ...] = ()
    derived: frozenset[int] = frozenset()
    lone: dict[int, str] = field(default_factory=dict)
    unread: tuple[str, Any] = field(default=("", None), repr=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Asked for what is not set: the examples that from_json left unread.
            text, lone = self.unread if name in _EXAMPLES else ("", None)
            if not text:
                raise AttributeError(f"a form has no {name}")
            for part, value in _examples(json.loads(text) | {"lone": lone}).items():
                try:  # what was set meanwhile stays
                    object.__getattribute__(self, part)
                except AttributeError:
                    setattr(self, part, value)
            return getattr(self, name)

    def marked(self, word: int, bits: int) -> tuple[int, ...]:
        """Positions of the values that operand-cache ``bits`` mark."""
        lows = {low for n, low in enumerate(self.reuse) if bits >> n & 1 and low >= 0}
        out = []
        for position, value in enumerate(self.values):
            place = value.field_of(word) if lows and value.kind == "R" else None
            if place is not None and place.runs[0][0] in lows:
                out.append(position)
        return tuple(out)

    def operands(self, word: int, zero: dict[str, int], reuse: tuple[int, ...] = ()) -> str | None:
        """Operand text of ``word``, None where the tables do not know."""
        attached = []
        for choice in self.attachments:
            text = choice.get(word)
            if text is None:
                return None
            attached.append(text)
        filled = []
        for value in self.values:
            text = value.text(word, zero)
            if text is None:
                return None
            filled.append(text)
        return lex.fill(self.skeleton, tuple(attached), filled, reuse)

    def to_json(self) -> Any:
        """JSON data."""
        data = {"form": self.skeleton, "attach": [a.to_json() for a in self.attachments],
                "values": [v.to_json() for v in self.values], "reuse": list(self.reuse),
                "shapes": [f"{w:x}" for w in self.shapes if w not in self.derived],
                "derived": [f"{w:x}" for w in self.shapes if w in self.derived],
                "probes": [f"{w:x}" for w in self.probes],
                "effects": [r.to_json() for r in self.rules], "implicit": self.implicit, "proved": int(self.proved)}
        if self.hidden:
            data["hidden"] = list(self.hidden)
        if self.lone:
            places = {w: n for n, w in enumerate(w for w in self.shapes if w not in self.derived)}
            data["lone"] = {project: sorted(places[w] for w, of in self.lone.items() if of == project)
                            for project in sorted(set(self.lone.values()))}
        return data

    @classmethod
    def from_json(cls, data: Any, examples: str = "") -> Form:
        """Read what :meth:`to_json` wrote. ``examples``: the JSON text of shapes, derived and probes, if they were cut
        out of ``data``; it is read when they are asked for."""
        form = cls(data["form"], [Choice.from_json(a) for a in data["attach"]],
                   [Value.from_json(v) for v in data["values"]], reuse=tuple(data["reuse"]),
                   rules=[Rule.from_json(r) for r in data["effects"]], implicit=data["implicit"],
                   proved=bool(data["proved"]), hidden=tuple(data.get("hidden", ())))
        if examples:
            form.unread = examples, data.get("lone", {})
            for name in _EXAMPLES:
                delattr(form, name)
        else:
            for name, value in _examples(data).items():
                setattr(form, name, value)
        return form


def _examples(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a form that are examples, from its JSON data."""
    compiled = [int(w, 16) for w in data["shapes"]]
    derived = frozenset(int(w, 16) for w in data.get("derived", ()))
    return {"shapes": sorted({*compiled, *derived}), "derived": derived,
            "probes": [int(w, 16) for w in data["probes"]],
            "lone": {compiled[n]: project for project, places in data.get("lone", {}).items() for n in places}}


@dataclass(slots=True)
class Key:
    """One 13-bit opcode. ``forms`` in the order of the labels of ``select``.

    ``relative``: None, or the opcode word that says that the last number is a pc-relative target ("" = always).
    ``targets`` are the architectures of the table's family that have the opcode in this meaning, none named = all.
    """

    key: int
    opcode: list[Choice]
    select: Node
    forms: list[Form]
    uniform_guard: bool = False
    relative: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = ()

    def form_of(self, word: int) -> Form | None:
        """The form of ``word``, None where the tables do not know."""
        label = tree.lookup(self.select, word)
        return None if label == UNKNOWN else self.forms[label]

    def opcode_text(self, word: int) -> str | None:
        """Mnemonic with modifiers."""
        words = []
        for choice in self.opcode:
            text = choice.get(word)
            if text is None:
                return None
            if text:
                words.append(text)
        return ".".join(words)

    def constant_words(self) -> set[str]:
        """The opcode words that every text of this key has."""
        return {w for choice in self.opcode if len(choice.labels) == 1 for w in choice.labels[0].split(".")}

    def allows(self, control: int) -> bool:
        """Whether the opcode decodes with the control bits (105-125) of ``control``; True where nothing is known."""
        rule = self.extra.get("control")
        if rule is None:
            return True
        issue, reuse = control >> 105 & 31, control >> 122 & 15
        fits = (rule["write"] >> (control >> 110 & 7) & 1 and rule["read"] >> (control >> 113 & 7) & 1
                and not (control >> 116 & 63) & ~rule["wait"] and rule["issue"] >> issue & 1)
        return bool(fits and (not reuse or (issue & 15 and rule["reuse"][issue >> 4] >> reuse & 1)))

    def is_relative(self, opcode: Sequence[str]) -> bool:
        """Whether an instruction with these opcode words names a pc-relative target."""
        return self.relative is not None and (not self.relative or self.relative in opcode)

    def body(self, word: int, zero: dict[str, int], reuse: tuple[int, ...] = ()) -> str | None:
        """Text without guard; pc-relative targets stay relative. None where the tables do not know."""
        opcode = self.opcode_text(word)
        form = self.form_of(word)
        if opcode is None or form is None:
            return None
        operands = form.operands(word, zero, reuse)
        if operands is None:
            return None
        return f"{opcode} {operands}".rstrip(" ")

    def to_json(self) -> Any:
        """JSON data without the forms."""
        only = {"targets": list(self.targets)} if self.targets else {}
        return {"key": f"{self.key:04x}", **only, "opcode": [c.to_json() for c in self.opcode],
                "select": tree.to_json(self.select), "uniform_guard": int(self.uniform_guard),
                "relative": self.relative, **self.extra}

    @classmethod
    def from_json(cls, data: Any, forms: list[Form]) -> Key:
        """Read what :meth:`to_json` wrote."""
        known = {"key", "opcode", "select", "uniform_guard", "relative", "targets"}
        return cls(int(data["key"], 16), [Choice.from_json(c) for c in data["opcode"]],
                   tree.from_json(data["select"]), forms, bool(data["uniform_guard"]), data["relative"],
                   {k: v for k, v in data.items() if k not in known}, tuple(data.get("targets", ())))
