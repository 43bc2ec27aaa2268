"""Learn issue distances from compiled kernels: writes ``isa/latency_<table>.txt``.

For every dependent pair inside a basic block the distance is the sum of stalls from producer to consumer.
Pairs with a scoreboard wait in between are left out: the wait, not the stall, may be what makes them right.
For each (producer class, register file, consumer class, operand role) the table holds the smallest distance
seen, the distance below which fewer than TRUST pairs were seen, and the number of pairs.

    python tools/learn_latency.py --table sm_90 --out isa/latency_sm_90.txt CUBIN_OR_FOLDER...
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gwatch.cuda.binary import Cubin
from gwatch.errors import GWatchError
from gwatch.sass.cfg import build_cfg
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import ANY, TRUST, latency_class
from gwatch.sass.scoreboards import Waits
from gwatch.sass.uses import CodeView, WordFacts

FARTHEST = 80
# Facts stated by hand, each with its source.
STATED = {
    "sm_90": (
        (
            "floor ELECT P * guard 14",
            "the distance at which the elected record ran and was checked on an H200",
        ),
        ("floor LOP3 R IMAD.WIDE data 5", "4 wrote wrong addresses on an H200, 5 was right"),
        ("given LOP3 R IMAD.WIDE data 5", "see the floor"),
        (
            "given CS2R R STG data 5",
            "compilers leave 5 on sm_80 and later; 5 and more ran and were checked on an H200",
        ),
        ("given LOP3 R STG address 5", "ran and was checked on an H200"),
        ("given LOP3 R STG data 5", "6 ran and was checked on an H200; compilers leave 5"),
    ),
}


@dataclass
class Counts:
    """Distances seen, per pair."""

    pairs: dict[tuple[str, str, str, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    overwrites: dict[tuple[str, str, str], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    signals: Counter[int] = field(default_factory=Counter)
    instructions: int = 0
    sections: int = 0


@dataclass(frozen=True)
class Written:
    """The last writes of a register inside the block."""

    time: int
    name: str
    guard: tuple[int, bool]
    waits: int


def exclusive(first: tuple[int, bool], second: tuple[int, bool]) -> bool:
    """Whether two guards can't both hold."""
    return first[0] == second[0] and first[1] != second[1]


def learn_block(view: CodeView, waits: Waits, start: int, end: int, counts: Counts) -> None:
    """Add the pairs of one basic block."""
    time = waited = 0
    writers: dict[tuple[str, int], list[Written]] = {}
    boards: dict[int, int] = {}
    for index in range(start, end):
        facts = view.facts(index)
        mask = int(waits.mask[index])
        for board in [item for item in boards if int(view.control["wait_mask"][index]) >> item & 1]:
            counts.signals[min(time - boards.pop(board), FARTHEST)] += 1
        waited += mask != 0 or bool(waits.group[index])
        if facts.complete:
            note(view, index, facts, time, waited, writers, counts)
        for use in facts.writes():
            for number in range(use.first, use.first + use.count):
                key = (use.file, number)
                if use.file == "P":
                    forget_guard(writers, number)
                kept = [] if facts.guard == (7, False) else writers.get(key, [])
                fixed = facts.kind == "fixed"
                writers[key] = (
                    [*kept, Written(time, latency_class(facts.opcode), facts.guard, waited)]
                    if fixed
                    else kept
                )
        control = view.control[index]
        for board in (int(control["write_scoreboard"]), int(control["read_scoreboard"])):
            if board != 7:
                boards[board] = time
        # A stall of 0 (with yield 0) doesn't mean that the next instruction issues at once.
        if view.control["stall"][index] == 0:
            waited += 1
            boards.clear()
        time += view.stall(index)


def forget_guard(writers: dict[tuple[str, int], list[Written]], number: int) -> None:
    """Guards on a predicate that has been rewritten say nothing about exclusion any more."""
    for key, items in writers.items():
        if any(item.guard[0] == number for item in items):
            writers[key] = [
                Written(item.time, item.name, (-1, False), item.waits) if item.guard[0] == number else item
                for item in items
            ]


def note(
    view: CodeView,
    index: int,
    facts: WordFacts,
    time: int,
    waited: int,
    writers: dict[tuple[str, int], list[Written]],
    counts: Counts,
) -> None:
    """Add the pairs that end at one instruction."""
    name = latency_class(facts.opcode)
    for use in facts.uses:
        for number in range(use.first, use.first + use.count):
            for before in writers.get((use.file, number), ()):
                distance = time - before.time
                if distance > FARTHEST or before.waits != waited or exclusive(before.guard, facts.guard):
                    continue
                if not use.write:
                    # A guard is read at the same point by every instruction: one pool.
                    consumer = ANY if use.role == "guard" else name
                    counts.pairs[before.name, use.file, consumer, use.role][distance] += 1
                elif facts.kind == "fixed":
                    counts.overwrites[before.name, use.file, name][distance] += 1


def learn_section(isa: object, words: object, counts: Counts) -> None:
    """Add one section's pairs."""
    view = CodeView(isa, words)  # type: ignore[arg-type]
    cfg = build_cfg(isa, words)  # type: ignore[arg-type]
    waits = Waits(view)
    for block in cfg.blocks:
        learn_block(view, waits, block.start, block.end, counts)
    counts.instructions += len(view)
    counts.sections += 1


def cubins(paths: Iterable[Path]) -> Iterator[Path]:
    """The files named, and every ``*.cubin`` below the folders named."""
    for path in paths:
        yield from sorted(path.rglob("*.cubin")) if path.is_dir() else [path]


def trusted(seen: Counter[int]) -> int:
    """The smallest distance at or below which TRUST pairs were seen (the largest distance when there are
    fewer).
    """
    total = 0
    for distance in sorted(seen):
        total += seen[distance]
        if total >= TRUST:
            return distance
    return max(seen, default=2)


def table_text(table: str, counts: Counts) -> str:
    """The table file."""
    lines = [
        f"# Issue distances of {table}, learned by tools/learn_latency.py from {counts.instructions} instructions in "
        f"{counts.sections} code sections.",
        "# pair PRODUCER FILE CONSUMER ROLE MINIMUM TRUSTED SEEN; overwrite FIRST FILE SECOND MINIMUM TRUSTED SEEN;",
        "# signal: least cycles from taking a scoreboard to waiting for it; floor, given: stated by hand.",
        f"signal {trusted(counts.signals)}",
    ]
    lines += [f"{fact}  # {why}" for fact, why in STATED.get(table, ())]
    for pair, seen in sorted(counts.pairs.items()):
        lines.append(f"pair {' '.join(pair)} {min(seen)} {trusted(seen)} {sum(seen.values())}")
    for both, seen in sorted(counts.overwrites.items()):
        lines.append(f"overwrite {' '.join(both)} {min(seen)} {trusted(seen)} {sum(seen.values())}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; exit status 0, or 2 when a file can't be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--table", default="sm_90", help="ISA table that the cubins must belong to")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--skip", default="$^", help="leave out files whose name matches this pattern")
    options = parser.parse_args(arguments)
    counts = Counts()
    skipped: Counter[str] = Counter()
    seen: set[bytes] = set()
    for path in cubins(options.paths):
        if re.search(options.skip, path.name):
            continue
        try:
            cubin = Cubin.from_file(path)
            if cubin.arch.table != options.table:
                continue
            isa = isa_for(cubin.arch.name)
            for kernel in [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]:
                words = np.ascontiguousarray(kernel.words)
                if (text := words.tobytes()) in seen:
                    continue
                seen.add(text)
                try:
                    learn_section(isa, words, counts)
                except GWatchError as error:
                    skipped[error.code] += 1
        except GWatchError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        print(f"{path.name}: {counts.instructions} instructions, {len(counts.pairs)} pairs", flush=True)
    options.out.write_text(table_text(options.table, counts), encoding="utf-8")
    print(f"{options.out}: {counts.sections} sections, skipped {dict(skipped)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
