"""Decision trees over the bits of an instruction word: the one mechanism behind forms, modifiers and enumerations.

A node is a leaf (an ``int`` label, -1 = the tables do not know), a test, or a switch:

* ``("eq", mask, value, yes, no)``: ``word & mask == value``;
* ``("pow2", low, width, yes, no)``: the field is a power of two;
* ``("sw", bits, children)``: ``bits`` gathered with the first one lowest; ``children`` maps value to node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

Node: TypeAlias = "int | tuple[Any, ...]"

UNKNOWN = -1


def lookup(node: Node, word: int) -> int:
    """The label of ``word``; UNKNOWN where no sample decided."""
    while not isinstance(node, int):
        kind = node[0]
        if kind == "eq":
            node = node[3] if word & node[1] == node[2] else node[4]
        elif kind == "sw":
            value = 0
            for position, bit in enumerate(node[1]):
                value |= (word >> bit & 1) << position
            node = node[2].get(value, UNKNOWN)
        else:
            field = word >> node[1] & (1 << node[2]) - 1
            node = node[3] if field and not field & field - 1 else node[4]
    return int(node)


def tested_bits(node: Node) -> int:
    """Mask of all bits that the tree looks at."""
    if isinstance(node, int):
        return 0
    if node[0] == "eq":
        return int(node[1]) | tested_bits(node[3]) | tested_bits(node[4])
    if node[0] == "sw":
        mask = 0
        for bit in node[1]:
            mask |= 1 << bit
        for child in node[2].values():
            mask |= tested_bits(child)
        return mask
    own: int = (1 << node[2]) - 1 << node[1]
    return own | tested_bits(node[3]) | tested_bits(node[4])


def pinned_bits(node: Node, word: int) -> int:
    """Mask of the bits that the path of ``word`` fixes (tests that fail on several bits at once fix nothing)."""
    mask = 0
    while not isinstance(node, int):
        if node[0] == "eq":
            hit = word & node[1] == node[2]
            if hit or not node[1] & node[1] - 1:
                mask |= int(node[1])
            node = node[3] if hit else node[4]
        elif node[0] == "sw":
            value = 0
            for position, bit in enumerate(node[1]):
                mask |= 1 << bit
                value |= (word >> bit & 1) << position
            node = node[2].get(value, UNKNOWN)
        else:
            field = word >> node[1] & (1 << node[2]) - 1
            node = node[3] if field and not field & field - 1 else node[4]
    return mask


def paths(node: Node, label: int, mask: int = 0, value: int = 0) -> Iterator[tuple[int, int]]:
    """(mask, value) of every way to reach ``label``, as far as plain equality can say it.

    Tests that must *fail* are not expressed (a caller checks the finished word by decoding it).
    """
    if isinstance(node, int):
        if node == label:
            yield mask, value
        return
    if node[0] == "eq":
        more, wanted = int(node[1]), int(node[2])
        if (value ^ wanted) & mask & more == 0:
            yield from paths(node[3], label, mask | more, value | wanted)
        if more & more - 1 == 0:  # one bit: failing the test pins it as well
            other = wanted ^ more
            if (value ^ other) & mask & more == 0:
                yield from paths(node[4], label, mask | more, value | other)
        elif not (more & mask == more and value & more == wanted):
            yield from paths(node[4], label, mask, value)
        return
    if node[0] == "sw":
        for number, child in node[2].items():
            more = wanted = 0
            for position, bit in enumerate(node[1]):
                more |= 1 << bit
                wanted |= (number >> position & 1) << bit
            if (value ^ wanted) & mask & more == 0:
                yield from paths(child, label, mask | more, value | wanted)
        return
    yield from paths(node[3], label, mask, value)
    yield from paths(node[4], label, mask, value)


def to_json(node: Node) -> Any:
    """The node as JSON data."""
    if isinstance(node, int):
        return int(node)
    if node[0] == "eq":
        return ["eq", f"{node[1]:x}", f"{node[2]:x}", to_json(node[3]), to_json(node[4])]
    if node[0] == "sw":
        return ["sw", list(node[1]), {str(k): to_json(v) for k, v in sorted(node[2].items())}]
    return ["pow2", node[1], node[2], to_json(node[3]), to_json(node[4])]


def from_json(data: Any) -> Node:
    """The node that :func:`to_json` wrote."""
    if isinstance(data, int):
        return data
    if data[0] == "eq":
        return ("eq", int(data[1], 16), int(data[2], 16), from_json(data[3]), from_json(data[4]))
    if data[0] == "sw":
        return ("sw", tuple(data[1]), {int(k): from_json(v) for k, v in data[2].items()})
    return ("pow2", data[1], data[2], from_json(data[3]), from_json(data[4]))
