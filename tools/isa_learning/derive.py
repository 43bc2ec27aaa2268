"""More shapes to start encoding from: compiler words with one operand changed.

``STG.E desc[UR4][R2.64], R5`` in compiler code says what the bits that no text shows are for
``STG.E desc[UR4][R2.64+0x10], R5``, too. Each changed word is confirmed by nvdisasm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from isa_learning.control_facts import ASYNC
from isa_learning.probe import CONTROL_MASK, PROBE_CONTROL, Prober

from gwatch.sass.isa import tree
from gwatch.sass.isa.model import Key

ATTACHMENT_BITS = 4
OPCODE_BITS = 8
_PLAIN = PROBE_CONTROL | 7 << 12
Shape = tuple[int, tuple[str, ...], int]
Name = tuple[str, str, tuple[str, ...]]


def derive_shapes(models: Iterable[Key], prober: Prober, zero: dict[str, int]) -> int:
    """Add such words to ``shapes`` of the forms where no compiler word is; returns how many."""
    models = list(models)
    compiled = set()
    for model in models:
        for form in model.forms:
            for word in form.shapes:
                shape = _shape(model, word)
                if shape is not None:
                    compiled.add(_name(model, word, shape))
    found: dict[Name, list[tuple[Key, Shape, int]]] = defaultdict(list)
    for model in models:
        # Warpgroup products come in more sizes than compilers' words show, and bits that mean "no scoreboard" only in
        # one of eight values: their opcode words are changed, too.
        whole = model.opcode[0].labels[0].split(".")[0] in ASYNC
        changes = _changes(model) + (_opcode_changes(model) if whole else [])
        for base in sorted(w for form in model.forms for w in form.shapes):
            text = model.opcode_text(base)
            for word in _variants(base, changes):
                shape = _shape(model, word)
                if shape is None or (model.opcode_text(word) != text and not whole):
                    continue
                name = _name(model, word, shape)
                if name not in compiled and all(m is not model or s != shape for m, s, _ in found[name]):
                    found[name].append((model, shape, word))
    # A text for which compiler words suggest several words is left to the encoder's rules.
    single = [options[0] for _, options in sorted(found.items(), key=lambda item: item[0]) if len(options) == 1]
    asked = sorted({word & ~CONTROL_MASK & ~(15 << 12) | _PLAIN for _, _, word in single})
    texts = dict(zip(asked, prober.texts(asked), strict=True))
    count = 0
    for model, shape, word in single:
        text = texts[word & ~CONTROL_MASK & ~(15 << 12) | _PLAIN]
        if text is not None and model.body(word, zero) == text:
            form = model.forms[shape[0]]
            form.shapes.append(word)
            form.derived |= {word}
            count += 1
    for model in models:
        for form in model.forms:
            form.shapes.sort()
            if form.shapes:
                form.probes = []
    return count


def _name(model: Key, word: int, shape: Shape) -> Name:
    return model.opcode_text(word) or "", model.forms[shape[0]].skeleton, shape[1]


def _changes(model: Key) -> list[tuple[int, list[int]]]:
    """(mask, values) per operand field, and per group of bits that decide what stands around an operand."""
    fields: dict[int, list[int]] = {}
    owned = 0
    for form in model.forms:
        for value in form.values:
            owned |= value.mask
            for place in value.fields:
                for low, width, _ in place.runs:
                    mask = (1 << width) - 1 << low
                    if width >= 3:
                        fields[mask] = [0, mask, 1 << low + min(3, width - 2)]
    opcode_bits = 0
    for choice in model.opcode:
        opcode_bits |= tree.tested_bits(choice.node)
    marks: dict[int, list[int]] = {}
    for form in model.forms:
        for attachment in form.attachments:
            mask = tree.tested_bits(attachment.node) & ~owned & ~opcode_bits
            bits = [b for b in range(128) if mask >> b & 1]
            if 0 < len(bits) <= ATTACHMENT_BITS:
                marks[mask] = [sum((n >> k & 1) << b for k, b in enumerate(bits)) for n in range(1 << len(bits))]
    return [*sorted(fields.items()), *sorted(marks.items())]


def _opcode_changes(model: Key) -> list[tuple[int, list[int]]]:
    """(mask, values) per printing slot of the opcode."""
    out = []
    for choice in model.opcode:
        bits = [b for b in range(128) if tree.tested_bits(choice.node) >> b & 1]
        if 0 < len(bits) <= OPCODE_BITS:
            values = [sum((n >> k & 1) << b for k, b in enumerate(bits)) for n in range(1 << len(bits))]
            out.append((sum(1 << b for b in bits), values))
    return out


def _variants(word: int, changes: Iterable[tuple[int, list[int]]]) -> Iterator[int]:
    for mask, values in changes:
        for value in values:
            if word & mask != value:
                yield word & ~mask | value


def _shape(model: Key, word: int) -> Shape | None:
    """(form, texts around its operands, bits that the text does not show), None where the table does not know."""
    label = tree.lookup(model.select, word)
    if label < 0:
        return None
    form = model.forms[label]
    attached = []
    for choice in form.attachments:
        text = choice.get(word)
        if text is None:
            return None
        attached.append(text)
    hidden = word & ~CONTROL_MASK
    for value in form.values:
        place = value.field_of(word)
        hidden &= ~(place.mask if place else tree.tested_bits(value.name.node) if value.name else 0)
    return label, tuple(attached), hidden
