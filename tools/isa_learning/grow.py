"""Grow a decision tree from samples: tests only on bits that were seen to matter when flipped alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gwatch.sass.isa.tree import Node

SWITCH_BITS = 9
_CONSTANTS = 3


def _entropy(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    total = counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(counts > 0, counts * np.log2(counts / total), 0.0)
    return -part.sum(axis=-1)


class Grower:
    """``bits`` (n, 128) 0/1, ``labels`` (n,) ints, ``candidates`` bits proved relevant, ``groups`` value fields."""

    def __init__(self, bits: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], candidates: Sequence[int],
                 groups: Sequence[tuple[int, int]]) -> None:
        self.candidates = sorted(candidates)
        chosen = set(self.candidates)
        self.groups = [g for g in groups if any(b in chosen for b in range(g[0], g[0] + g[1]))]
        owned = {b for low, width in self.groups for b in range(low, low + width)}
        # Samples that no test can tell apart are kept once, with their number as weight.
        seen = np.packbits(bits[:, sorted(chosen | owned)], axis=1)
        rows = np.column_stack([seen, labels.astype("<i4").reshape(-1, 1).view(np.uint8)])
        _, first, weights = np.unique(np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel(), return_index=True,
                                      return_counts=True)
        order = np.argsort(first)
        bits = bits[first[order]]
        self.bits = bits
        self.labels = labels[first[order]]
        self.weights: npt.NDArray[np.int64] = weights[order]
        self.free = [b for b in self.candidates if b not in owned]
        self.owned = [b for b in self.candidates if b in owned]
        self.packed = []
        for low, width in self.groups:
            weights = np.int64(1) << np.arange(width, dtype=np.int64)
            self.packed.append(bits[:, low:low + width].astype(np.int64) @ weights)
        self.count = int(labels.max()) + 1 if len(labels) else 1
        self.impure = 0

    def grow(self) -> Node:
        """The tree. ``impure`` counts samples left in leaves that hold several labels (those become UNKNOWN)."""
        return self._node(np.arange(len(self.labels)), 0)

    def _switch(self, index: npt.NDArray[np.int64], over: list[int]) -> Node | None:
        """A switch over ``over`` when it decides all labels here, made minimal; None otherwise."""
        labels = self.labels[index]
        if not over:
            return None
        rows = self.bits[np.ix_(index, over)]
        differ = rows.min(axis=0) != rows.max(axis=0)
        kept = [b for b, d in zip(over, differ.tolist(), strict=True) if d]
        if not kept or len(kept) > SWITCH_BITS:
            return None
        table = self._table(index, labels, kept)
        if table is None:
            return None
        for bit in list(kept):
            fewer = [b for b in kept if b != bit]
            smaller = self._table(index, labels, fewer) if fewer else None
            if smaller is not None:
                kept, table = fewer, smaller
        if len(kept) == 1:
            mask = 1 << kept[0]
            return ("eq", mask, mask, table.get(1, -1), table.get(0, -1))
        return ("sw", tuple(kept), dict(table))

    def _table(self, index: npt.NDArray[np.int64], labels: npt.NDArray[np.int64],
               kept: list[int]) -> dict[int, int] | None:
        weights = np.int64(1) << np.arange(len(kept), dtype=np.int64)
        values = self.bits[np.ix_(index, kept)].astype(np.int64) @ weights
        pairs = np.unique(values * self.count + labels)
        seen = pairs // self.count
        if len(np.unique(seen)) != len(seen):
            return None
        return {int(p // self.count): int(p % self.count) for p in pairs}

    def _node(self, index: npt.NDArray[np.int64], depth: int) -> Node:
        labels = self.labels[index]
        if labels.min() == labels.max():
            return int(labels[0])
        switch = self._switch(index, self.free)
        if switch is not None:
            return switch
        present, place = np.unique(labels, return_inverse=True)
        onehot = np.zeros((len(index), len(present)), dtype=np.float32)
        onehot[np.arange(len(index)), place] = self.weights[index]
        total = onehot.sum(axis=0).astype(np.float64)
        base = _entropy(total)
        best: tuple[float, tuple[int, ...]] = (1e-9, ())
        pool = self.free + self.owned
        if pool:
            ones = self.bits[np.ix_(index, pool)].T.astype(np.float32) @ onehot
            ones = ones.astype(np.float64)
            gains = base - _entropy(ones) - _entropy(total[None, :] - ones)
            for position, bit in enumerate(pool):
                gain = float(gains[position]) * (1.0 if position < len(self.free) else 0.4)
                if gain > best[0] * 1.0000001:
                    best = (gain, (0, bit))
        for number, (_, width) in enumerate(self.groups):
            values = self.packed[number][index]
            for constant in ((1 << width) - 1, 0, 1)[:_CONSTANTS]:
                hit = values == constant
                gain = self._gain(hit, onehot, total, float(base))
                if gain >= best[0] * 0.9999999 and gain > 1e-9:
                    best = (gain, (1, number, constant))
            hit = (values > 0) & ((values & (values - 1)) == 0)
            gain = self._gain(hit, onehot, total, float(base)) * 0.9
            if gain > best[0] * 1.0000001:
                best = (gain, (2, number))
        choice = best[1]
        if not choice or depth > 40:
            self.impure += int(self.weights[index].sum())
            return -1
        if choice[0] == 0:
            mask = 1 << choice[1]
            hit = self.bits[index, choice[1]] == 1
            head: tuple[object, ...] = ("eq", mask, mask)
        elif choice[0] == 1:
            low, width = self.groups[choice[1]]
            hit = self.packed[choice[1]][index] == choice[2]
            head = ("eq", ((1 << width) - 1) << low, choice[2] << low)
        else:
            low, width = self.groups[choice[1]]
            values = self.packed[choice[1]][index]
            hit = (values > 0) & ((values & (values - 1)) == 0)
            head = ("pow2", low, width)
        return (*head, self._node(index[hit], depth + 1), self._node(index[~hit], depth + 1))

    def _gain(self, hit: npt.NDArray[np.bool_], onehot: npt.NDArray[np.float32], total: npt.NDArray[np.float64],
              base: float) -> float:
        if not hit.any() or hit.all():
            return 0.0
        ones = onehot[hit].sum(axis=0).astype(np.float64)
        return float(base - _entropy(ones) - _entropy(total - ones))
