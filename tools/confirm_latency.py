#!/usr/bin/env python3
"""Hold the issue distances of sm_90 against the hardware: does a value change below the smallest one, and never at it?

    python tools/confirm_latency.py [--json] [--only REGEX]

For each pair of a producer and a consumer a kernel is assembled that runs the pair 20 times, with 1 to 20 issue cycles
between them, on 32 lanes of random operands; a result counts as right when it equals the one at the longest distance.
Prints, per pair, what the hardware needs and what the table says. Exit codes: 0 the table is nowhere too short, 1 it
is, 2 no GPU. ``--dry`` only assembles, and holds the checker's limits against the same code: no GPU needed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.errors import GWatchError, ToolError  # noqa: E402
from gwatch.sass.control import Control  # noqa: E402
from gwatch.sass.isa import isa_for  # noqa: E402
from gwatch.sass.latency import latency_class, latency_for  # noqa: E402
from gwatch.sass.section import check_section  # noqa: E402
from gwatch.sass.uses import word_facts  # noqa: E402

LONGEST = 20
LINE, FIRST_OF_LINE = 8, 4
OLD = "0x3f123456"
LANES = 32
_HOST = """
extern "C" __global__ void probe(const unsigned *in, unsigned *out)
{
    unsigned v[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = in[threadIdx.x + i * 32];
#pragma unroll
    for (int k = 0; k < 24; ++k)
#pragma unroll
        for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i + 7) & 63] + k;
#pragma unroll
    for (int i = 0; i < 64; ++i) out[threadIdx.x + i * 32] = v[i];
}
"""


@dataclass(frozen=True)
class Op:
    """``text`` with {d} (destination) and {s} (what it reads); R6, R7 and R20:21 hold operands, P1 is random."""

    name: str
    text: str
    reset: str = ""


# Results in R10 (R10:11 for pairs), P0 or UR8.
PRODUCERS = {
    "R": [
        Op("IADD3", "IADD3 R10, R6, R7, RZ"),
        Op("LOP3", "LOP3.LUT R10, R6, R7, RZ, 0x3c, !PT"),
        Op("SHF", "SHF.L.U32 R10, R6, 0x3, RZ"),
        Op("SEL", "SEL R10, R6, R7, P1"),
        Op("PRMT", "PRMT R10, R6, 0x5410, R7"),
        Op("MOV", "MOV R10, R6"),
        Op("LEA", "LEA R10, R6, R7, 0x2"),
        Op("FMNMX", "FMNMX R10, R8, R9, PT"),
        Op("FSEL", "FSEL R10, R8, R9, P1"),
        Op("IABS", "IABS R10, R6"),
        Op("IMAD", "IMAD R10, R6, R7, R7"),
        Op("VIADD", "VIADD R10, R6, 0x77"),
        Op("FADD", "FADD R10, R8, R9"),
        Op("FMUL", "FMUL R10, R8, R9"),
        Op("FFMA", "FFMA R10, R8, R9, R9"),
        Op("IMAD.WIDE", "IMAD.WIDE.U32 R10, R6, R7, R20"),
        Op("HADD2", "HADD2 R10, R8, R9"),
        Op("DADD", "DADD R10, R20, R22"),
        Op("DFMA", "DFMA R10, R20, R22, R20"),
    ],
    "P": [
        Op("ISETP", "ISETP.GT.AND P0, PT, R6, R7, PT"),
        Op("FSETP", "FSETP.GT.AND P0, PT, R8, R9, PT"),
        Op("DSETP", "DSETP.GT.AND P0, PT, R20, R22, PT"),
        Op("LOP3", "LOP3.LUT P0, RZ, R6, 0x1, RZ, 0xc0, !PT"),
        Op("PLOP3", "PLOP3.LUT P0, PT, P1, PT, PT, 0x8, 0x0"),
    ],
    "UR": [
        Op("UIADD3", "UIADD3 UR8, UR6, UR7, URZ"),
        Op("ULOP3", "ULOP3.LUT UR8, UR6, UR7, URZ, 0x3c, !UPT"),
        Op("USHF", "USHF.L.U32 UR8, UR6, 0x3, URZ"),
        Op("UMOV", "UMOV UR8, UR6"),
        Op("ULDC", "ULDC UR8, c[0x0][0x218]"),
    ],
}
CONSUMERS = {
    "R": [
        Op("IADD3", "IADD3 R12, R10, R7, RZ"),
        Op("LOP3", "LOP3.LUT R12, R10, R7, RZ, 0x3c, !PT"),
        Op("SHF", "SHF.L.U32 R12, R10, 0x1, RZ"),
        Op("IMAD", "IMAD R12, R10, R7, RZ"),
        Op("IMAD addend", "IMAD R12, R6, R7, R10"),
        Op("VIADD", "VIADD R12, R10, 0x5"),
        Op("FADD", "FADD R12, R10, R9"),
        Op("IMAD.WIDE", "IMAD.WIDE.U32 R12, R10, R7, RZ"),
        Op("STG", "STG.E desc[UR4][R4.64], R10"),
    ],
    "P": [
        Op("SEL", "SEL R12, R6, R7, P0"),
        Op("guard", "@P0 IADD3 R12, R6, 0x1, RZ"),
        Op("guard FMA", "@P0 IMAD R12, R6, 0x3, RZ"),
        Op("ISETP", "ISETP.GT.AND P2, PT, R7, R6, P0"),
    ],
    "UR": [
        Op("IADD3", "IADD3 R12, R6, UR8, RZ"),
        Op("IMAD", "IMAD R12, R6, UR8, RZ"),
        Op("UIADD3", "UIADD3 UR10, UR8, UR7, URZ"),
    ],
}
RESET = {
    "R": ["MOV R10, " + OLD, "MOV R11, " + OLD],
    "P": ["PLOP3.LUT P0, PT, P2, PT, PT, 0x80, 0x0"],
    "UR": ["UMOV UR8, " + OLD],
}


@dataclass(frozen=True)
class Pair:
    """One experiment."""

    file: str
    producer: Op
    consumer: Op

    @property
    def name(self) -> str:
        return f"{self.producer.name} {self.file} {self.consumer.name}"


def pairs() -> Iterator[Pair]:
    """All experiments."""
    for file, producers in PRODUCERS.items():
        for producer in producers:
            for consumer in CONSUMERS[file]:
                yield Pair(file, producer, consumer)


class Assembler:
    """Lines with control words; everything that isn't under test waits long enough."""

    def __init__(self, arch: str) -> None:
        self.isa = isa_for(arch)
        self.words: list[int] = []

    def line(self, text: str, stall: int = 15, wait: int = 0, write: int = 7, read: int = 7) -> None:
        control = Control(stall, int(0 < stall < 12), write, read, wait)
        self.words.append(self.isa.encode(text, control=control, pc=16 * len(self.words)))

    def prologue(self) -> None:
        self.line("S2R R0, SR_TID.X", 2, write=0)
        self.line("LDC.64 R2, c[0x0][0x210]", 2, write=1)
        self.line("LDC.64 R4, c[0x0][0x218]", 2, write=2)
        self.line("ULDC.64 UR4, c[0x0][0x208]", 15)
        self.line("NOP", wait=7)
        self.line("IMAD.WIDE.U32 R2, R0, 0x4, R2")
        self.line("IMAD.WIDE.U32 R4, R0, 0x100, R4")
        for register, offset in (
            (6, 0x80),
            (7, 0x100),
            (8, 0x180),
            (9, 0x200),
            (20, 0x280),
            (21, 0x300),
            (22, 0x380),
            (23, 0x400),
        ):
            self.line(f"LDG.E R{register}, desc[UR4][R2.64+{offset:#x}]", 2, write=3)
        self.line("NOP", wait=8)
        self.line("ISETP.GT.AND P1, PT, R6, R8, PT", 15)
        self.line("PLOP3.LUT P2, PT, PT, PT, PT, 0x8, 0x0", 15)
        self.line("UMOV UR6, 0x1234567", 15)
        self.line("UMOV UR7, 0x89abcd", 15)

    def pair(self, pair: Pair, distance: int, slot: int) -> int:
        """One run of the pair; the index of its consumer."""
        for text in RESET[pair.file]:
            self.line(text, wait=16)
        self.line("MOV R12, RZ")
        # Producer and consumer stand in one line of the instruction cache, which has arrived by then.
        for _ in range(3 + (FIRST_OF_LINE - 3 - len(self.words)) % LINE):
            self.line("NOP")
        first, rest = min(distance, 11), max(0, distance - 11)
        self.line(pair.producer.text, first)
        if rest:
            self.line("NOP", rest)
        where = len(self.words)
        text = pair.consumer.text
        if text.startswith("STG"):
            self.line(text.replace("[R4.64]", f"[R4.64+{4 * slot:#x}]"), 15, read=4)
            return where
        self.line(text)
        for _ in range(3):
            self.line("NOP")
        if text.startswith("ISETP"):
            self.line("SEL R12, R6, RZ, P2")
            self.line("PLOP3.LUT P2, PT, PT, PT, PT, 0x8, 0x0")
        elif text.startswith("U"):
            self.line("IADD3 R12, R6, UR10, RZ")
        self.line("NOP")
        self.line(f"STG.E desc[UR4][R4.64+{4 * slot:#x}], R12", 15, read=4)
        return where


def assemble(pair: Pair, arch: str) -> tuple[np.ndarray[Any, Any], dict[int, int]]:
    """The code of one experiment, ending before EXIT, and the consumer's index per distance."""
    out = Assembler(arch)
    out.prologue()
    places = {}
    for distance in range(1, LONGEST + 1):
        places[distance] = out.pair(pair, distance, distance)
    words = np.array([[word & (1 << 64) - 1, word >> 64] for word in out.words], np.uint64)
    return words, places


def host_cubin(folder: Path) -> Cubin:
    """A kernel with room for the experiments: they are written over its code, in front of its EXIT."""
    source = folder / "probe.cu"
    source.write_text(_HOST)
    target = folder / "probe.cubin"
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-o", str(target), str(source)], check=True)
    return Cubin.from_file(target)


def image_of(cubin: Cubin, words: np.ndarray[Any, Any]) -> bytes:
    """The host cubin with the first instructions replaced, NOPs up to its EXIT."""
    kernel = cubin.get_kerneldef_by_name("probe")
    isa = isa_for(cubin.arch.name)
    code = kernel.words.copy()
    exits = [
        i
        for i in range(len(code))
        if word_facts(isa, int(code[i, 0]) | int(code[i, 1]) << 64).mnemonic == "EXIT"
    ]
    room = exits[-1]
    if len(words) > room:
        raise ToolError("probe-room", f"{len(words)} instructions don't fit in front of instruction {room}")
    nop = isa.encode("NOP", control=Control(1, 1))
    code[:room] = nop & (1 << 64) - 1, nop >> 64
    code[: len(words)] = words
    # The EXIT waits for the last store's sources; nothing of the old code runs.
    section = kernel.section
    data = bytearray(cubin.data)
    data[section.offset : section.offset + section.size] = code.tobytes()
    return bytes(data)


def table_says(pair: Pair, arch: str) -> tuple[int, int]:
    """(distance inserted code leaves, limit of the checker) for a pair, from the latency table."""
    isa, latency = isa_for(arch), latency_for(isa_for(arch).arch.table)
    producer = word_facts(isa, isa.encode(pair.producer.text))
    consumer = word_facts(isa, isa.encode(pair.consumer.text))
    register = {"R": 10, "P": 0, "UR": 8}[pair.file]
    roles = [use.role for use in consumer.reads() if use.file == pair.file and use.covers(register)]
    names = latency_class(producer.opcode), latency_class(consumer.opcode)
    distance = max(latency.distance(names[0], pair.file, names[1], role) for role in roles)
    limit = max(latency.limit(names[0], pair.file, names[1], role) for role in roles)
    return distance, limit


def measure(cubin: Cubin, chosen: list[Pair]) -> list[dict[str, Any]]:
    """Run the experiments."""
    from gwatch.cuda.driver import driver

    gpu = driver()
    gpu.use_device(0)
    source, target = gpu.allocate(1 << 16), gpu.allocate(1 << 16)
    rng = np.random.default_rng(7)
    given = rng.integers(1, 1 << 31, 1 << 14, np.uint32)
    given[96:160] = rng.random(64, np.float32).view(np.uint32)  # R8, R9: floats
    doubles = rng.random(2 * LANES)
    for place in range(2):
        halves = doubles[place * LANES : (place + 1) * LANES].view(np.uint32).reshape(LANES, 2)
        given[160 + 64 * place : 192 + 64 * place] = halves[:, 0]
        given[192 + 64 * place : 224 + 64 * place] = halves[:, 1]
    gpu.write(source, given.tobytes())
    rows = []
    for pair in chosen:
        words, _ = assemble(pair, cubin.arch.name)
        library = gpu.load_library(image_of(cubin, words))
        try:
            handle = gpu.library_kernel(library, "probe")
            values = (ctypes.c_uint64(source), ctypes.c_uint64(target))
            pointers = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
            runs = []
            for _ in range(3):
                gpu.zero(target, 1 << 16)
                gpu.launch(handle, (1, 1, 1), (LANES, 1, 1), ctypes.addressof(pointers))
                gpu.synchronize()
                runs.append(np.frombuffer(gpu.read(target, 256 * LANES), np.uint32).reshape(LANES, 64))
        finally:
            gpu.unload_library(library)
        right = [all((run[:, d] == run[:, LONGEST]).all() for run in runs) for d in range(1, LONGEST + 1)]
        needs = LONGEST
        while needs > 1 and right[needs - 2]:
            needs -= 1
        distance, limit = table_says(pair, cubin.arch.name)
        # With "hardware" above 1 a wrong value was seen one cycle below it.
        rows.append({"pair": pair.name, "hardware": needs, "inserted": distance, "limit": limit})
    return rows


def dry(chosen: list[Pair]) -> int:
    """Hold the checker against the assembled code: it must report each run below the limit, and no other."""
    isa = isa_for("sm_90")
    latency = latency_for("sm_90")
    wrong = 0
    for pair in chosen:
        words, places = assemble(pair, "sm_90")
        last = isa.encode("EXIT", control=Control(5, 1))
        words = np.concatenate([words, np.array([[last & (1 << 64) - 1, last >> 64]], np.uint64)])
        _, limit = table_says(pair, "sm_90")
        seen = {report.index for report in check_section(isa, latency, words) if report.kind == "too-early"}
        expected = {index for distance, index in places.items() if distance < limit}
        if seen != expected:
            wrong += 1
            print(f"{pair.name}: limit {limit}, reported at {sorted(seen)}, expected {sorted(expected)}")
    print(f"{len(chosen)} pairs assembled, {wrong} where the checker disagrees with its table")
    return 1 if wrong else 0


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="only pairs whose name matches")
    parser.add_argument("--dry", action="store_true", help="no GPU: assemble, and check the checker")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    chosen = [pair for pair in pairs() if re.search(args.only, pair.name)]
    if args.dry:
        return dry(chosen)
    try:
        with tempfile.TemporaryDirectory() as name:
            rows = measure(host_cubin(Path(name)), chosen)
    except (ToolError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    except GWatchError as error:
        print(error, file=sys.stderr)
        return 1
    short = [row for row in rows if row["hardware"] > row["inserted"]]
    exact = [row for row in rows if row["hardware"] == row["inserted"] > 1]
    limits = [row for row in rows if row["hardware"] == row["limit"] > 1]
    if args.json:
        print(
            json.dumps(
                {"pairs": rows, "too_short": len(short), "exact": len(exact), "limit_exact": len(limits)}
            )
        )
    else:
        print(f"{'pair':28} hardware inserted limit")
        for row in rows:
            mark = (
                "TOO SHORT"
                if row in short
                else "LIMIT TOO HIGH"
                if row["limit"] > row["hardware"] > 1
                else ""
            )
            print(f"{row['pair']:28} {row['hardware']:8} {row['inserted']:8} {row['limit']:5} {mark}")
        print(
            f"{len(rows)} pairs: inserted code too early in {len(short)}, just in time in {len(exact)}; "
            f"the checker's limit is the hardware's in {len(limits)}"
        )
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
