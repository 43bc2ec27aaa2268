"""Find the printing slots of an opcode's words: which words exclude each other, and in which order they stand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

SIZE = re.compile(r"\d+x\d+x\d+")
Words = tuple[str, ...]
Named = tuple[str, int]


def _named(opcode: Words) -> list[Named]:
    count: dict[str, int] = defaultdict(int)
    out = []
    for word in opcode:
        out.append((word, count[word]))
        count[word] += 1
    return out


@dataclass(frozen=True)
class Slots:
    """``slot[name]`` is the place of an opcode word (with its occurrence number) among ``count`` slots."""

    slot: dict[Named, int]
    count: int

    def texts(self, opcode: Words) -> list[str]:
        """What each slot prints for ``opcode``: its words joined by dots."""
        out: list[list[str]] = [[] for _ in range(self.count)]
        for word, k in _named(opcode):
            out[self.slot[word, k]].append(word)
        return [".".join(words) for words in out]


def _components(names: list[Named], after: dict[Named, set[Named]]) -> list[list[Named]]:
    """Strongly connected components in topological order (Tarjan, iterative order made deterministic by sorting)."""
    index: dict[Named, int] = {}
    low: dict[Named, int] = {}
    stack: list[Named] = []
    on: set[Named] = set()
    out: list[list[Named]] = []

    def visit(node: Named) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in sorted(after[node], reverse=True):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                other = stack.pop()
                on.discard(other)
                component.append(other)
                if other == node:
                    break
            out.append(sorted(component))

    for name in sorted(names, reverse=True):
        if name not in index:
            visit(name)
    return out[::-1]


def arrange(opcodes: Iterable[Words], changes: Iterable[tuple[Words, Words, int]]) -> Slots:
    """Slots for the words of ``opcodes``; words that flip with the same bits and never meet share a slot.

    ``changes``: two different opcodes of words that differ in this bit alone.
    """
    distinct = sorted(set(opcodes))
    lists = {o: _named(o) for o in distinct}
    names = sorted({n for ns in lists.values() for n in ns})
    after: dict[Named, set[Named]] = defaultdict(set)
    together: set[tuple[Named, Named]] = set()
    for ns in lists.values():
        for i, a in enumerate(ns):
            for b in ns[i + 1:]:
                after[a].add(b)
                together |= {(a, b), (b, a)}
    moves: dict[Named, set[int]] = defaultdict(set)
    for one, other, bit in changes:
        for name in set(lists[one]) ^ set(lists[other]):
            moves[name].add(bit)
    components = _components(names, after)
    place = {n: k for k, c in enumerate(components) for n in c}

    def order_ok(parent: dict[Named, int]) -> list[int] | None:
        edges: dict[int, set[int]] = defaultdict(set)
        for a, others in after.items():
            for b in others:
                if parent[a] != parent[b]:
                    edges[parent[a]].add(parent[b])
        todo = set(parent.values())
        incoming = dict.fromkeys(todo, 0)
        for outs in edges.values():
            for n in outs:
                incoming[n] += 1
        ready = sorted(n for n in todo if not incoming[n])
        result = []
        while ready:
            n = ready.pop(0)
            result.append(n)
            for m in sorted(edges[n]):
                incoming[m] -= 1
                if not incoming[m]:
                    ready.append(m)
            ready.sort()
        return result if len(result) == len(todo) else None

    parent = dict(place)
    current = order_ok(parent)
    assert current is not None
    # The sizes of a product exclude each other, whatever bits tell them apart.
    sizes = [n for n in names if SIZE.fullmatch(n[0])]
    if not any((a, b) in together for a in sizes for b in sizes):
        trial = {n: place[sizes[0]] if n in sizes else p for n, p in place.items()}
        if order_ok(trial) is not None:
            parent = trial
    singles = [c[0] for c in components if len(c) == 1]
    for n, a in enumerate(singles):
        for b in singles[n + 1:]:
            if parent[a] == parent[b] or not moves[a] & moves[b]:
                continue
            left = [x for x in parent if parent[x] == parent[a]]
            right = [x for x in parent if parent[x] == parent[b]]
            if any((x, y) in together for x in left for y in right):
                continue
            trial = {x: parent[a] if x in right else p for x, p in parent.items()}
            if order_ok(trial) is not None:
                parent = trial
    final = order_ok(parent)
    assert final is not None
    rank = {p: n for n, p in enumerate(final)}
    slots = Slots({n: rank[p] for n, p in parent.items()}, len(final))
    for opcode in distinct:
        if ".".join(text for text in slots.texts(opcode) if text) != ".".join(opcode):
            return Slots(dict.fromkeys(names, 0), 1)
    return slots
