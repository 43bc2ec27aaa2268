#!/usr/bin/env python3
"""Compare what gwatch says instructions do with what nvdisasm says: reads, writes, register lives, control flow.

    python tools/isa_semantics.py [CUBIN | FOLDER ...] [--arch sm_90] [--json]      # default: .corpus

For every kernel of an architecture with a table, four things are compared with nvdisasm's register life ranges
(``-plr``) and its graph of basic blocks (``-bbcfg``):

* reads, writes   registers of each instruction, the same set
* lives           registers live into each instruction: gwatch's must contain nvdisasm's
* edges           of the control-flow graph: gwatch's must contain nvdisasm's

Differences that are understood are counted by cause, all others are printed, and the exit status is then 1. The causes:

``call``       nvdisasm takes a call to read and write what the calling convention allows; gwatch follows it into the
               callee where that is in the section. Its graph steps over calls and ends at returns.
``saved``      nvdisasm counts the registers that a function must not change as live up to its exits.
``guard``      a write under a guard ends no life for gwatch; nvdisasm sees that reads under the same guard need none.
``collective`` WARPSYNC.COLLECTIVE goes on or jumps; nvdisasm's graph only jumps, its life ranges only go on.
``trap``       nvdisasm ends its graph at BPT.TRAP and counts registers as live there, gwatch goes on.
``fill``       nvdisasm marks the predicate that LDGSTS reads as written.
``unmarked``   nvdisasm never marks UR0-UR3 and UR63 and above; the stack pointer R1 is live everywhere for it.
``unproved``   gwatch says itself that it does not know all of the instruction's registers (callers refuse it).

nvdisasm gives neither for files of the old ABI (before CUDA 12.8 or 13), nor for kernels that it finds too odd: skipped
and counted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import numpy as np  # noqa: E402
from isa_learning.ranges import column_places  # noqa: E402

from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.cuda.binary.kernel import KernelDef  # noqa: E402
from gwatch.errors import GWatchError, ToolError, UnsupportedError  # noqa: E402
from gwatch.sass.cfg import Cfg, Flow, build_cfg  # noqa: E402
from gwatch.sass.isa import FILE_NAMES, isa_for  # noqa: E402
from gwatch.sass.nvdisasm import disassemble_cubin  # noqa: E402

BASES = {"R": 0, "UR": 256, "P": 512, "UP": 520}
UNMARKED = (0xF | (1 << 256) - (1 << 63)) << BASES["UR"]
"""UR0 to UR3 and UR63 and above: nvdisasm marks them nowhere."""
STACK = 1 << 1
_SECTION = re.compile(r'\s*\.section\s+"?\.text\.([^",\s]+)')
_ROW = re.compile(r"\s+/\*([0-9a-f]+)\*/")
_CLUSTER = re.compile(r'subgraph "cluster_(.*)" \{')
_EDGE = re.compile(r'"(.*?)":\w+(?::\w+)? -> "(.*?)":')
_CALLS = frozenset({Flow.CALL, Flow.CALL_OUT, Flow.CALL_INDIRECT, Flow.RETURN})


@dataclass(slots=True)
class Marks:
    """nvdisasm's marks in one row, as sets of registers (bits, see :data:`BASES`)."""

    live: int = 0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of a comparison: ``counts`` of rows and edges, of differences by cause, and ``bad`` ones in words."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)


def life_ranges(listing: str) -> dict[str, dict[int, Marks]]:
    """Kernel (section) name -> instruction index -> marks, of a ``-plr`` listing."""
    found: dict[str, dict[int, Marks]] = {}
    rows: dict[int, Marks] | None = None
    header: list[str] = []
    places: dict[int, int] = {}
    for line in listing.splitlines():
        section = _SECTION.match(line)
        if section is not None:
            rows, header, places = found.setdefault(section[1], {}), [], {}
            continue
        at = line.find("// |")
        if rows is None or at < 0:
            continue
        table = line[at + 3:]
        if not places:
            header.append(table)
            if "#" in table:
                places = {place: BASES[file] + register for place, (file, register)
                          in column_places(header).items()}
            continue
        row = _ROW.match(line)
        if row is not None:
            marks = rows[int(row[1], 16) // 16] = Marks()
            for match in re.finditer(r"[:v^x]", table):
                bit = 1 << places[match.start()]
                marks.live |= bit * (match[0] in ":vx")
                marks.read |= bit * (match[0] in "vx")
                marks.written |= bit * (match[0] in "^x")
    return found


def names(registers: int) -> str:
    """A set of registers in words."""
    return " ".join(f"{file}{bit - base}" for bit in range(registers.bit_length()) if registers >> bit & 1
                    for file, base in BASES.items() if base <= bit and (bit < 256 or base >= 256)
                    and (bit < 512 or base >= 512) and (bit < 520 or base >= 520))


class KernelCheck:
    """Comparisons over one kernel."""

    def __init__(self, cubin: Cubin, kernel: KernelDef, outcome: Outcome) -> None:
        self.kernel, self.outcome = kernel, outcome
        isa = isa_for(cubin.arch)
        section = isa.section(kernel.words)
        uses = section.uses
        count = len(kernel.words)
        self.read, self.written = [0] * count, [0] * count
        columns = (uses.index, uses.file, uses.first, uses.count, uses.write)
        for index, file, first, number, write in zip(*[column.tolist() for column in columns], strict=True):
            if FILE_NAMES[file] in BASES:
                mask = (1 << number) - 1 << BASES[FILE_NAMES[file]] + first
                (self.written if write else self.read)[index] |= mask
        self.complete = uses.complete.tolist()
        self.mnemonics = [section.opcode_names[code].split(".")[0] if code >= 0 else "?"
                          for code in section.opcodes.tolist()]
        self.guarded = ((kernel.words[:, 0] >> np.uint64(12) & np.uint64(15)) != 7).tolist()
        self.cfg: Cfg = build_cfg(isa, kernel.words, kernel.entry_indices, kernel.indirect_targets)
        self.kinds = [Flow(kind) for kind in self.cfg.flow.kind.tolist()]

    def differ(self, cause: str, index: int, what: str) -> None:
        """Count a difference; one without a cause is bad."""
        self.outcome.counts[cause or "bad"] += 1
        if not cause:
            self.outcome.bad.append(f"{self.kernel.name[:40]} {index} {self.kernel.text(index)}: {what}")

    def marks(self, rows: dict[int, Marks]) -> None:
        """Reads and writes of every row."""
        for index, row in rows.items():
            self.outcome.counts["rows"] += 1
            sets = ("reads", self.read[index], row.read), ("writes", self.written[index], row.written)
            for what, ours, theirs in sets:
                difference = (ours ^ theirs) & ~UNMARKED
                if (ours ^ theirs) & UNMARKED:
                    self.outcome.counts["unmarked"] += 1
                if not difference:
                    continue
                cause = "call" if self.kinds[index] in _CALLS else "unproved" if not self.complete[index] else ""
                if self.mnemonics[index] == "LDGSTS" and what == "writes" and not ours & difference:
                    cause = "fill"
                self.differ(cause, index, f"{what} {names(ours)}, nvdisasm: {names(theirs)}")

    def lives(self, rows: dict[int, Marks]) -> None:
        """Live registers of every row, calls and collectives taken as nvdisasm takes them."""
        reads, writes = list(self.read), list(self.written)
        for index, row in rows.items():
            if self.kinds[index] in _CALLS or not self.complete[index]:
                reads[index], writes[index] = row.read, row.written
        under_guard = 0
        for guarded, written in zip(self.guarded, writes, strict=True):
            under_guard |= written if guarded else 0
        live = self._solve(reads, [0 if guarded else w for guarded, w in zip(self.guarded, writes, strict=True)])
        saved = 0
        for index, row in rows.items():
            if self.kinds[index] in (Flow.EXIT, Flow.RETURN) and not self.cfg.flow.conditional[index]:
                saved |= row.live & ~row.read
        for index, row in rows.items():
            known = row.live | (row.written if self.guarded[index] else 0)
            missing = row.live & ~live[index] & ~UNMARKED & ~STACK
            if missing:
                cause = "trap" if self.mnemonics[index] == "BPT" else "" if missing & ~saved else "saved"
                self.differ(cause, index, f"live for nvdisasm alone: {names(missing)}")
            extra = live[index] & ~known & ~UNMARKED & ~STACK
            if extra:
                cause = "guard" if not extra & ~under_guard else ""
                self.differ(cause, index, f"live for gwatch alone: {names(extra)}")

    def _following(self, index: int) -> list[int]:
        kind = self.kinds[index]
        last = index + 1 >= len(self.kinds)
        if kind in (Flow.CALL, Flow.CALL_OUT, Flow.CALL_INDIRECT, Flow.SPLIT):
            return [] if last else [index + 1]
        if kind == Flow.RETURN:
            return [index + 1] if self.cfg.flow.conditional[index] and not last else []
        return self.cfg.successors(index)

    def _solve(self, reads: list[int], kills: list[int]) -> list[int]:
        count = len(reads)
        following = [self._following(index) for index in range(count)]
        before: list[list[int]] = [[] for _ in range(count)]
        for index, items in enumerate(following):
            for item in items:
                before[item].append(index)
        live = [0] * count
        work = list(range(count))
        waiting = [True] * count
        while work:
            index = work.pop()
            waiting[index] = False
            out = 0
            for item in following[index]:
                out |= live[item]
            new = reads[index] | out & ~kills[index]
            if new != live[index]:
                live[index] = new
                for item in before[index]:
                    if not waiting[item]:
                        waiting[item] = True
                        work.append(item)
        return live

    def edges(self, graph: Graph) -> None:
        """Successors of every block's last instruction."""
        for last, theirs in graph.successors().items():
            self.outcome.counts["blocks"] += 1
            ours = set(self.cfg.successors(last))
            if ours == theirs:
                continue
            kind = self.kinds[last]
            cause = "call" if kind in _CALLS else ""
            if kind == Flow.SPLIT and theirs < ours:
                cause = "collective"
            if self.mnemonics[last] == "BPT" and not theirs:
                cause = "trap"
            self.differ(cause, last, f"goes to {sorted(ours)}, nvdisasm: {sorted(theirs)}")


@dataclass(slots=True)
class Graph:
    """nvdisasm's blocks of one section in address order, with their numbers of instructions, and edges by name."""

    blocks: dict[str, tuple[int, int]] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, name: str, instructions: int) -> None:
        """The next block."""
        self.blocks[name] = (self.count, self.count + instructions - 1)
        self.count += instructions

    def successors(self) -> dict[int, set[int]]:
        """Index of each block's last instruction -> first instructions of the blocks behind it."""
        out: dict[int, set[int]] = {last: set() for first, last in self.blocks.values() if last >= first}
        for source, target in self.edges:
            if source in self.blocks and target in self.blocks:
                out.setdefault(self.blocks[source][1], set()).add(self.blocks[target][0])
        return out


def graphs(listing: str, known: set[str]) -> dict[str, Graph]:
    """Kernel name -> graph, of a ``-bbcfg`` listing. Clusters of functions inside a kernel follow the kernel's."""
    found: dict[str, Graph] = {}
    graph = Graph()
    previous = ""
    for line in listing.splitlines():
        cluster = _CLUSTER.match(line)
        if cluster is not None:
            if cluster[1] in known:
                graph = found.setdefault(cluster[1], Graph())
        elif line.startswith("[label="):
            graph.add(previous.strip('"'), line.count(";\\l"))
        else:
            edge = _EDGE.match(line)
            if edge is not None:
                graph.edges.append((edge[1], edge[2]))
        previous = line
    return found


def compare(path: Path, outcome: Outcome) -> None:
    """Everything about one cubin."""
    cubin = Cubin.from_file(path)
    try:
        isa_for(cubin.arch)
        listing, blocks = disassemble_cubin(path, "-c", "-plr"), disassemble_cubin(path, "-bbcfg")
    except (ToolError, UnsupportedError) as error:
        if error.code not in ("nvdisasm-failed", "isa-missing"):
            raise
        outcome.counts["cubins skipped"] += 1
        return
    kernels = {**cubin.get_map_kernel_def(), **cubin.get_map_function_def()}
    flow = graphs(blocks, set(kernels))
    outcome.counts["cubins"] += 1
    for name, rows in life_ranges(listing).items():
        try:
            check = KernelCheck(cubin, kernels[name], outcome)
        except GWatchError as error:
            outcome.counts["kernels skipped"] += 1
            outcome.counts[error.code] += 1
            continue
        outcome.counts["kernels"] += 1
        check.marks(rows)
        check.lives(rows)
        check.edges(flow[name])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="*")
    parser.add_argument("--arch", default="", help="only files whose name starts with this, like sm_90")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    paths = [path for source in options.sources or [ROOT / ".corpus"]
             for path in (sorted(source.rglob("*.cubin")) if source.is_dir() else [source])
             if path.name.startswith(options.arch)]
    outcome = Outcome()
    for path in paths:
        compare(path, outcome)
    if options.json:
        print(json.dumps({"counts": outcome.counts, "bad": outcome.bad}, indent=1))
    else:
        for name, value in sorted(outcome.counts.items()):
            print(f"{name:20} {value:>10,}")
        for line in outcome.bad[:40]:
            print(f"  {line}")
    if not outcome.counts["cubins"]:
        print("nothing was compared", file=sys.stderr)
        return 2
    return 1 if outcome.bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
