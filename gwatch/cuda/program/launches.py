"""The launch table of a process: what was launched, how often, how long, by whom, and whether it can be
traced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gwatch.cuda.launchview import Dim3

Shape = tuple[Dim3, Dim3, "Dim3 | None", int]
"""Grid, block, cluster, dynamic shared bytes."""


@dataclass(slots=True)
class KernelRow:
    """One kernel of the table. ``timed``: launches whose time is in ``total_ns``; ``captured``: launches
    recorded into a graph, which run later and unseen; ``counted``: whether launches of it are counted at all."""

    symbol: str
    demangled: str
    origin: str
    counted: bool = True
    registers: int | None = None
    device: int = 0
    count: int = 0
    tuning: int = 0
    captured: int = 0
    timed: int = 0
    total_ns: float = 0.0
    shapes: Counter[Shape] = field(default_factory=Counter)
    streams: set[int] = field(default_factory=set)
    traceable: str = ""

    @property
    def estimated_ns(self) -> float:
        """Time of all launches that ran, autotuning aside: the timed ones stand for the others."""
        ran = self.count - self.tuning - self.captured
        return self.total_ns * max(ran / self.timed, 1.0) if self.timed else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``shapes`` most frequent first."""
        return {
            "kernel": self.symbol,
            "demangled": self.demangled,
            "origin": self.origin,
            "counted": self.counted,
            "registers": self.registers,
            "device": self.device,
            "launches": self.count,
            "autotuning": self.tuning,
            "captured": self.captured,
            "streams": len(self.streams),
            "timed": self.timed,
            "total_ns": self.total_ns,
            "estimated_ns": self.estimated_ns,
            "shapes": [
                {"grid": grid, "block": block, "cluster": cluster, "shared": shared, "launches": count}
                for (grid, block, cluster, shared), count in self.shapes.most_common()
            ],
            "traceable": self.traceable,
        }


def shape_text(shape: dict[str, Any]) -> tuple[str, str]:
    """("4x2x1", "128x1x1") of a shape as :meth:`KernelRow.to_json` writes it."""
    return "x".join(map(str, shape["grid"])), "x".join(map(str, shape["block"]))


def time_text(ns: float) -> str:
    """Nanoseconds in a unit that leaves few digits."""
    for limit, divisor, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if ns < limit:
            return f"{ns / divisor:.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def untimed(row: dict[str, Any]) -> int:
    """Launches that ran, autotuning aside, without a time of their own."""
    return int(max(row["launches"] - row["autotuning"] - row["captured"] - row["timed"], 0))


def _total(row: dict[str, Any]) -> str:
    if not row["timed"]:
        return "-"
    return ("≈" if untimed(row) else "") + time_text(row["estimated_ns"])


def table_lines(rows: list[dict[str, Any]], width: int = 72) -> list[str]:
    """The table as text, the kernels that took longest first; names longer than ``width`` are cut."""
    if not rows:
        return []
    head = ("launches", "tuning", "time", "grid", "block", "regs", "origin", "traceable", "kernel")
    body = []
    for row in sorted(rows, key=lambda row: (-row["estimated_ns"], -row["launches"], row["kernel"])):
        grid, block = shape_text(row["shapes"][0]) if row["shapes"] else ("", "")
        more = f" (+{len(row['shapes']) - 1})" if len(row["shapes"]) > 1 else ""
        name = row["demangled"]
        body.append(
            (
                str(row["launches"]),
                str(row["autotuning"]),
                _total(row),
                grid + more,
                block,
                "-" if row["registers"] is None else str(row["registers"]),
                row["origin"],
                row["traceable"],
                name if len(name) <= width else name[: width - 1] + "…",
            )
        )
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip()
        for line in (head, *body)
    ]
