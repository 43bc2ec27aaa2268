"""Learn issue distances from compiled kernels: writes ``isa/latency_<table>.txt``.

For every dependent pair the distance is the sum of stalls from producer to consumer: inside a basic block, and across
its end for results that are still young there. Nothing is counted across a stall of 0, which says nothing about time.

``pair`` lines are for code made from nothing: only pairs of one block without a scoreboard wait in between (the wait,
not the stall, may be what makes them right); the smallest distance seen, the distance at or below which TRUST pairs
were seen, and the number of pairs. ``limit`` lines are for checking foreign code: all pairs, pooled by the units that
execute them, wherever the smallest distance was seen in many code sections of several origins (an origin is the second
part of a file name, ``sm90-ORIGIN-hash.cubin``, or else its folder).

    python tools/learn_latency.py TABLE... --corpus CUBIN_OR_FOLDER... -o isa [--keep] [--seconds S] [--jobs N]
    python tools/learn_latency.py TABLE... --corpus CUBIN_OR_FOLDER... --halves     # learn on half of the origins, hold
                                                                                    # it against the other half

TABLE is sm_75, sm_80, sm_86, sm_90, sm_100 or sm_120. ``-o`` names the file, or the folder for ``latency_TABLE.txt``.
Linked code only, and of equal code sections one. ``--seconds`` stops each table there; origins take turns, so that
none is left out. ``--keep`` takes over what the table that is there now knows of code that isn't at hand.
``tools/latency_kernels.cu`` is compiled and learned from too where nvcc is found (for what no library
holds: clocks, elected stores).
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.cuda.binary.elf import ET_REL
from gwatch.errors import GWatchError, UnsupportedError
from gwatch.sass.arch import ARCHES
from gwatch.sass.cfg import Cfg, build_cfg
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import ANY, OVERWRITE, TRUST, latency_class, producer_unit, unit_class
from gwatch.sass.scoreboards import Waits, timed
from gwatch.sass.uses import ADDEND, CodeView, Use, WordFacts

KERNELS = Path(__file__).resolve().with_name("latency_kernels.cu")
TABLES = tuple(dict.fromkeys(arch.latency for arch in ARCHES.values()))
PROGRESS = 15.0
FARTHEST = 80
YOUNG = 26
"""Results younger than this at the end of their block are followed into the next ones."""
BORNE_OUT = {3: 170, 4: 60}
"""Origins -> code sections in which a limit's smallest distance must have been seen (more origins: as for four)."""
SPREAD = 2
"""A general register is read at nearly the same point by all units: a limit is at most this much above the least of its
producer. Templates that every library holds (division, say) leave more only by habit."""
ALWAYS = (7, False)
WIDE = frozenset({"IMAD.WIDE", "UIMAD.WIDE"})
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
            "floor IMAD.WIDE R * data 5",
            "the high half is there later than the low one, which compilers read at 3",
        ),
        (
            "given CS2R R STG data 5",
            "compilers leave 5 on sm_80 and later; 5 and more ran and were checked on an H200",
        ),
        ("given LOP3 R STG address 5", "ran and was checked on an H200"),
        ("given LOP3 R STG data 5", "6 ran and was checked on an H200; compilers leave 5"),
    ),
}

Pair = tuple[str, str, str, str]
Row = tuple[int, ...]
NAMED = {"pair": 5, "overwrite": 4, "limit": 5, "signal": 1}
"""Words that name a learned line of a table; numbers follow."""


@dataclass
class Seen:
    """How often a distance was seen, in how many sections, of which origins."""

    pairs: int = 0
    sections: int = 0
    origins: set[str] = field(default_factory=set)
    last: int = -1

    def add(self, section: int, origin: str) -> None:
        self.pairs += 1
        if self.last != section:
            self.last = section
            self.sections += 1
            self.origins.add(origin)

    def merge(self, other: Seen) -> None:
        self.pairs += other.pairs
        self.sections += other.sections
        self.origins |= other.origins


@dataclass
class Counts:
    """What was learned. ``plain``: distances of pairs and overwrites inside a block without a wait; ``limits``: by
    units, everything.
    """

    plain: dict[Pair, Counter[int]] = field(default_factory=dict)
    limits: dict[Pair, dict[int, Seen]] = field(default_factory=dict)
    signals: Counter[int] = field(default_factory=Counter)
    instructions: int = 0
    sections: int = 0

    def note(self, pair: Pair, distance: int, plain: bool, origin: str, offset: int = 0) -> None:
        """Count a pair; ``offset``: which register of the producer's result it is about."""
        if plain:
            self.plain.setdefault(pair, Counter())[distance] += 1
        producer, file, consumer, role = pair
        if role == OVERWRITE:  # no law: halves of the corpus contradict each other
            return
        reader = consumer if consumer == ANY else unit_class(consumer)
        table = self.limits.setdefault((producer_unit(producer, offset), file, reader, role), {})
        table.setdefault(distance, Seen()).add(self.sections, origin)

    def merge(self, other: Counts) -> None:
        for pair, seen in other.plain.items():
            self.plain.setdefault(pair, Counter()).update(seen)
        for pair, distances in other.limits.items():
            mine = self.limits.setdefault(pair, {})
            for distance, item in distances.items():
                mine.setdefault(distance, Seen()).merge(item)
        self.signals.update(other.signals)
        self.instructions += other.instructions
        self.sections += other.sections


@dataclass(frozen=True)
class Written:
    """A write that may still be on its way: when, by which class, under which guard, after how many waits."""

    time: int
    name: str
    guard: tuple[int, bool]
    waits: int
    offset: int = 0


def exclusive(first: tuple[int, bool], second: tuple[int, bool]) -> bool:
    """Whether two guards can't both hold."""
    return first[0] == second[0] and first[1] != second[1]


class SectionLearner:
    """Adds the pairs of one section to ``counts``."""

    def __init__(self, isa: Any, words: Any, entries: Iterable[int], counts: Counts, origin: str) -> None:
        self.view = CodeView(isa, words)
        self.cfg: Cfg = build_cfg(isa, words, tuple(entries))
        self.waits = Waits(self.view)
        self.counts, self.origin = counts, origin
        self.stall = self.view.control["stall"].tolist()
        self.facts: list[WordFacts] = [self.view.facts(index) for index in range(len(self.view))]

    def run(self) -> None:
        self.counts.sections += 1
        self.counts.instructions += len(self.view)
        for block in self.cfg.blocks:
            writers, time, waited = self.block(block.start, block.end)
            following = self.cfg.successors(block.end - 1)
            for key, items in writers.items():
                for item in items:
                    if time - item.time < YOUNG and following:
                        self.beyond(following, key, item, time, item.waits != waited)

    def block(self, start: int, end: int) -> tuple[dict[tuple[str, int], list[Written]], int, int]:
        """The pairs of one block; returns the writes that reach its end, the time there and the waits passed."""
        control = self.view.control
        masks = control["wait_mask"].tolist()
        boards_taken = [control["write_scoreboard"].tolist(), control["read_scoreboard"].tolist()]
        time = waited = 0
        writers: dict[tuple[str, int], list[Written]] = {}
        boards: dict[int, int] = {}
        for index in range(start, end):
            facts = self.facts[index]
            for board in [item for item in boards if masks[index] >> item & 1]:
                self.counts.signals[min(time - boards.pop(board), FARTHEST)] += 1
            waited += bool(self.waits.mask[index]) or bool(self.waits.group[index])
            if facts.complete:
                for use in facts.uses:
                    for number in range(use.first, use.first + use.count):
                        for before in writers.get((use.file, number), ()):
                            distance = time - before.time
                            if distance <= FARTHEST and not exclusive(before.guard, facts.guard):
                                self.note(facts, use, before, distance, before.waits == waited)
            self.write(index, writers, time, waited)
            for column in boards_taken:
                if column[index] != 7:
                    boards[column[index]] = time
            if self.stall[index] == 0:
                writers.clear()
                boards.clear()
            time += max(1, self.stall[index])
        return writers, time, waited

    def write(
        self, index: int, writers: dict[tuple[str, int], list[Written]], time: int, waited: int
    ) -> None:
        facts, by_time = self.facts[index], timed(self.view, index)
        for use in facts.writes():
            for number in range(use.first, use.first + use.count):
                key = (use.file, number)
                if use.file == "P":
                    forget_guard(writers, number)
                kept = [] if facts.guard == ALWAYS else writers.get(key, [])
                offset = number - use.first
                new = [Written(time, latency_class(facts.opcode), facts.guard, waited, offset)]
                writers[key] = [*kept, *new] if by_time else kept

    def beyond(
        self, following: list[int], key: tuple[str, int], item: Written, time: int, waited: bool
    ) -> None:
        """Follow a young result past the end of its block."""
        best: dict[int, int] = {}
        stack = [(index, time - item.time) for index in following]
        while stack:
            index, distance = stack.pop()
            if distance >= YOUNG or best.get(index, YOUNG) <= distance:
                continue
            best[index] = distance
            facts = self.facts[index]
            over = False
            for use in facts.uses if facts.complete else ():
                if use.file == key[0] and use.covers(key[1]):
                    over = over or (use.write and facts.guard == ALWAYS)
                    if not exclusive(item.guard, facts.guard):
                        self.note(facts, use, item, distance, plain=False)
            if not over and self.stall[index]:
                stack += [(after, distance + self.stall[index]) for after in self.cfg.successors(index)]

    def note(self, facts: WordFacts, use: Use, before: Written, distance: int, plain: bool) -> None:
        name = latency_class(facts.opcode)
        if use.write:
            if facts.kind == "fixed":
                self.counts.note((before.name, use.file, name, OVERWRITE), distance, plain, self.origin)
            return
        # A guard is read at the same point by every instruction: one pool.
        consumer = ANY if use.role == "guard" else name
        # Code made from nothing may read either half of a wide product: the later one decides.
        plain = plain and (before.name not in WIDE or before.offset == 1)
        self.counts.note(
            (before.name, use.file, consumer, use.role), distance, plain, self.origin, before.offset
        )


def forget_guard(writers: dict[tuple[str, int], list[Written]], number: int) -> None:
    """Guards on a predicate that has been rewritten say nothing about exclusion any more."""
    for key, items in writers.items():
        if any(item.guard[0] == number for item in items):
            writers[key] = [
                replace(item, guard=(-1, False)) if item.guard[0] == number else item for item in items
            ]


def origin_of(path: Path) -> str:
    """Which package a file comes from."""
    parts = path.name.split("-")
    return parts[1] if len(parts) >= 3 else path.parent.name


@dataclass(frozen=True)
class Task:
    """Sections of one file to learn from, by name."""

    path: Path
    names: tuple[str, ...]
    origin: str


def tasks_of(paths: Iterable[Path], table: str, largest: int, skip: str) -> list[Task]:
    """The files of ``table`` in an order in which their origins take turns; every code section that equals one of an
    earlier file is left out.
    """
    seen: set[bytes] = set()
    by_origin: dict[str, list[Task]] = defaultdict(list)
    for path in cubins(paths):
        if re.search(skip, path.name):
            continue
        try:
            cubin = Cubin.from_file(path)
        except UnsupportedError:
            continue  # an architecture that gwatch doesn't know
        if cubin.arch.latency != table or cubin.elf.header.type == ET_REL:
            continue
        names = []
        for kernel in sections(cubin):
            digest = hashlib.sha1(np.ascontiguousarray(kernel.words).tobytes()).digest()
            if digest not in seen and len(kernel.words) <= largest:
                seen.add(digest)
                names.append(kernel.name)
        if names:
            by_origin[origin_of(path)].append(Task(path, tuple(names), origin_of(path)))
    rng = random.Random(table)
    turns = [rng.sample(tasks, len(tasks)) for _, tasks in sorted(by_origin.items())]
    return [task for step in zip_longest(*turns) for task in step if task is not None]


def sections(cubin: Cubin) -> list[KernelDef]:
    """Kernels and device functions."""
    return [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]


Learned = tuple[Counts, Counts]
"""Counts of every other code section, and of those between."""


def learn_file(task: Task) -> tuple[Task, Learned, dict[str, int]]:
    """The counts of one cubin, and how many of its sections were refused, by code."""
    counts = Counts(), Counts()
    skipped: Counter[str] = Counter()
    cubin = Cubin.from_file(task.path)
    wanted = set(task.names)
    try:
        isa = isa_for(cubin.arch.name)
    except UnsupportedError as error:
        return task, counts, {error.code: len(wanted)}
    for kernel in sections(cubin):
        if kernel.name in wanted:
            try:
                words = np.ascontiguousarray(kernel.words)
                half = hashlib.sha1(kernel.name.encode()).digest()[0] & 1
                SectionLearner(isa, words, kernel.entry_indices, counts[half], task.origin).run()
            except GWatchError as error:
                skipped[error.code] += 1
    return task, counts, dict(skipped)


def compiled(table: str, folder: Path) -> list[Path]:
    """The repository's own kernels for ``table``; none without a compiler, or where it refuses."""
    wheels = [found for entry in sys.path for found in Path(entry or ".").glob("nvidia/*/bin/nvcc")]
    compiler = shutil.which("nvcc") or next(map(str, wheels), None)
    target = folder / f"{table}-latency_kernels-.cubin"
    if compiler is None:
        return []
    command = [compiler, f"-arch={table}", "-cubin", "-w", "-o", str(target), str(KERNELS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{KERNELS.name} is not for {table}: {done.stderr.strip()[-300:]}", file=sys.stderr)
    return [target] if target.is_file() else []


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


def limits(counts: Counts) -> dict[Pair, tuple[int, Seen]]:
    """The limits that enough places bear out, with what bears them out."""
    found: dict[Pair, tuple[int, Seen]] = {}
    for pair, distances in sorted(counts.limits.items()):
        least = min(distances)
        seen = distances[least]
        needed = BORNE_OUT.get(min(len(seen.origins), max(BORNE_OUT)))
        if least > 1 and needed is not None and seen.sections >= needed:
            found[pair] = least, seen
    for pair, (least, seen) in found.items():
        if pair[1] == "R":
            same = [c for other, (c, _) in found.items() if other[:2] == pair[:2] and other[3] != ADDEND]
            found[pair] = min([least, *(cycles + SPREAD for cycles in same)]), seen
    return found


def table_text(table: str, counts: Counts, earlier: str = "") -> str:
    """The table file. What ``earlier``, the text of another table of the same architecture, knows of code that is not
    at hand now is taken over: see :func:`taken_over`.
    """
    rows: dict[str, Row] = {}
    for pair, seen in sorted(counts.plain.items()):
        name = f"overwrite {' '.join(pair[:3])}" if pair[3] == OVERWRITE else f"pair {' '.join(pair)}"
        rows[name] = min(seen), trusted(seen), sum(seen.values())
    for pair, (least, item) in limits(counts).items():
        rows[f"limit {' '.join(pair)}"] = least, item.sections, len(item.origins)
    signal = min(counts.signals, default=2)
    lines = [
        f"# Issue distances of {table}, learned by tools/learn_latency.py from {counts.instructions} instructions in "
        f"{counts.sections} code sections.",
        "# pair PRODUCER FILE CONSUMER ROLE MINIMUM TRUSTED SEEN; overwrite FIRST FILE SECOND MINIMUM TRUSTED SEEN;",
        "# limit PRODUCER-UNIT FILE CONSUMER-UNIT ROLE CYCLES SECTIONS ORIGINS (seen at just that distance);",
        "# signal: least cycles from taking a scoreboard to waiting for it; floor, given: stated by hand.",
    ]
    if earlier:
        undercut = {f"limit {' '.join(pair)}": min(distances) for pair, distances in counts.limits.items()}
        old = rows_of(earlier)
        fresh, rows = rows.keys(), taken_over(rows, old, undercut)
        signal = min([signal, *(old[name][0] for name in ("signal",) if name in old)])
        count = len(rows.keys() - fresh)
        lines.insert(
            1, f"# {count} lines are of code that an earlier table was learned from{_learned_from(earlier)}."
        )
    lines.append(f"signal {signal}")
    lines += [f"{fact}  # {why}" for fact, why in STATED.get(table, ())]
    order = {"pair": 0, "overwrite": 0, "limit": 1}
    names = sorted(rows, key=lambda name: (order[name.split()[0]], name.split()[1:4], name))
    lines += [f"{name} {' '.join(map(str, rows[name]))}" for name in names]
    return "\n".join(lines) + "\n"


def _learned_from(text: str) -> str:
    """What the head of a table says of its code, all of its heads together."""
    found = re.findall(r"^#.*?\b(\d+ instructions)", text, re.MULTILINE)
    return f" ({', '.join(found)})" if found else ""


def rows_of(text: str) -> dict[str, Row]:
    """The lines of a table that were learned: name -> numbers. Floors and given facts are not among them."""
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if words and words[0] in NAMED:
            size = NAMED[words[0]]
            rows[" ".join(words[:size])] = tuple(map(int, words[size:]))
    return rows


def taken_over(rows: dict[str, Row], old: dict[str, Row], least: dict[str, int]) -> dict[str, Row]:
    """``rows`` and what only ``old`` knows.

    Of a pair in both the smaller distances are kept, since either was seen in code that is right, and as seen counts
    the larger number: both may have seen the same code. A limit of either is kept where no pair undercuts it, of those
    at hand (``least``: the smallest distance of each) or of those taken over.
    """
    found = dict(rows)
    for name, row in old.items():
        kind, mine = name.split()[0], rows.get(name)
        if kind == "signal":
            continue
        if mine is None:
            found[name] = row
        elif kind == "limit":
            more = (
                row[1:] if row[0] < mine[0] else mine[1:] if row[0] > mine[0] else map(max, row[1:], mine[1:])
            )
            found[name] = min(row[0], mine[0]), *more
        else:
            sure = [item[1] for item in (mine, row) if item[2] >= TRUST]
            found[name] = (
                min(mine[0], row[0]),
                min(sure) if sure else max(mine[1], row[1]),
                max(mine[2], row[2]),
            )
    seen = dict(least)
    for name, row in found.items():
        words = name.split()
        if words[0] == "pair":
            producer, file, consumer, role = words[1:]
            # Pairs are about the later half of a wide product.
            unit = producer_unit(producer, 1 if producer in WIDE else 0)
            limit = f"limit {unit} {file} {consumer if consumer == ANY else unit_class(consumer)} {role}"
            seen[limit] = min(row[0], seen.get(limit, row[0]))
    return {
        name: row
        for name, row in found.items()
        if not name.startswith("limit ") or seen.get(name, row[0]) >= row[0]
    }


def halves(origins: dict[str, Learned]) -> int:
    """Learn on half of the code and hold it against the rest, for several splits: by origin, and every other section of
    each. How many limits are contradicted.
    """
    names = sorted(origins, key=lambda name: -sum(half.instructions for half in origins[name]))
    splits: list[tuple[str, set[tuple[str, int]]]] = []
    for number in range(4):
        chosen = {name for place, name in enumerate(names) if (place >> number % 3 ^ number // 3) & 1}
        if chosen:
            splits.append((", ".join(sorted(chosen)), {(name, half) for name in chosen for half in (0, 1)}))
    splits += [(f"half {half} of every origin", {(name, half) for name in names}) for half in (0, 1)]
    return sum(_held(origins, title, part) for title, part in splits)


def _held(origins: dict[str, Learned], title: str, part: set[tuple[str, int]]) -> int:
    """What is learned on the halves ``part``, held against the others; how many limits are contradicted."""
    known, other = Counts(), Counts()
    for name, pair in origins.items():
        for half, counts in enumerate(pair):
            (known if (name, half) in part else other).merge(counts)
    found = limits(known)
    bad = {
        p: (c, min(other.limits[p])) for p, (c, _) in found.items() if min(other.limits.get(p, {c: 0})) < c
    }
    total = sum(seen.pairs for item in other.limits.values() for seen in item.values())
    held = sum(seen.pairs for p in found for seen in other.limits.get(p, {}).values())
    print(
        f"learned on {title} ({known.instructions} instructions): {len(found)} limits hold {held} of the {total} pairs "
        f"of the rest; {len(bad)} contradicted {bad or ''}",
        flush=True,
    )
    return len(bad)


def learn(tasks: list[Task], jobs: int, seconds: float) -> tuple[dict[str, Learned], Counter[str], int]:
    """Counts by origin, sections refused by code, and how many of the files were read before the time was up."""
    begin = last = time.monotonic()
    origins: dict[str, Learned] = defaultdict(lambda: (Counts(), Counts()))
    skipped: Counter[str] = Counter()
    done = instructions = 0
    for task, counts, refused in _spread(learn_file, tasks, jobs):
        for mine, found in zip(origins[task.origin], counts, strict=True):
            mine.merge(found)
            instructions += found.instructions
        skipped.update(refused)
        done += 1
        if time.monotonic() - last > PROGRESS:
            last = time.monotonic()
            print(
                f"[{last - begin:.0f} s] {done}/{len(tasks)} files, {instructions} instructions",
                file=sys.stderr,
                flush=True,
            )
        if seconds and time.monotonic() - begin > seconds:
            break
    return origins, skipped, done


def main(arguments: list[str] | None = None) -> int:
    """Run the tool; exit status 0, 1 when halves contradict each other, or 2 when a file can't be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="+", metavar="TABLE", choices=TABLES, help=" ".join(TABLES))
    parser.add_argument("--corpus", nargs="+", type=Path, required=True, metavar="CUBIN_OR_FOLDER")
    parser.add_argument("-o", "--out", type=Path, help="table to write, or the folder of latency_TABLE.txt")
    parser.add_argument(
        "--keep", action="store_true", help="take over what the table that is there knows of other code"
    )
    parser.add_argument("--halves", action="store_true", help="learn on half of the origins, check the rest")
    parser.add_argument("--seconds", type=float, default=0, help="stop each table after this long")
    parser.add_argument("--skip", default="$^", help="leave out files whose name matches this pattern")
    parser.add_argument("--largest", type=int, default=1 << 17, help="leave out longer sections")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    if not options.out and not options.halves:
        parser.error("give -o, --halves, or both")
    if options.out and len(options.tables) > 1 and not options.out.is_dir():
        parser.error("several tables need a folder for -o")
    wrong = 0
    for table in options.tables:
        with tempfile.TemporaryDirectory(prefix="gwatch-latency-") as folder:
            try:
                paths = [*options.corpus, *compiled(table, Path(folder))]
                tasks = tasks_of(paths, table, options.largest, options.skip)
                origins, skipped, done = learn(tasks, options.jobs, options.seconds)
            except GWatchError as error:
                print(error, file=sys.stderr)
                return 2
        total = Counts()
        for counts in chain.from_iterable(origins.values()):
            total.merge(counts)
        wrong += halves(origins) if options.halves else 0
        if options.out:
            path = options.out / f"latency_{table}.txt" if options.out.is_dir() else options.out
            earlier = path.read_text(encoding="utf-8") if options.keep and path.is_file() else ""
            path.write_text(table_text(table, total, earlier), encoding="utf-8")
            print(
                f"{path}: {total.instructions} instructions, {total.sections} sections of {done} of {len(tasks)} "
                f"files, {len(total.plain)} pairs, {len(limits(total))} limits, skipped {dict(skipped)}",
                flush=True,
            )
    return 1 if wrong else 0


def _spread(
    work: Callable[[Task], tuple[Task, Learned, dict[str, int]]], tasks: list[Task], jobs: int
) -> Iterator[tuple[Task, Learned, dict[str, int]]]:
    if jobs <= 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(work, tasks)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
