#!/usr/bin/env python3
"""Fuzz gwatch with broken cubins: only coded refusals may come out, quickly and without using up memory.

    python tools/fuzz.py --stage parse|check|rewrite --count N [--seed S] [--jobs J] [--seconds S] [--json] [--keep DIR]

The seeds are small cubins of this repository. A mutation knows their structure: it changes fields of ELF headers,
section and program headers, symbols, relocations, attributes and their payloads, constant tables, names and machine
words, copies one field over another, cuts or extends the file; one to four at a time. Every mutation follows from the
seed and its number, so ``--first N --count 1`` repeats one.

A fault is any exception that is not a GWatchError, a rewrite that its own replay disagrees with (``hazard``), a case
over 10 s of processor time, a process over 2 GiB, one that dies or that hangs for a minute. Faulty inputs go to
``--keep``. What the tables can't read isn't shown to nvdisasm (0.4 s each time) unless ``--nvdisasm`` is given. Exit
codes: 0 no fault, 1 faults.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
# Every process computes on one core, and the threads of others would count as its memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from torturing.pool import children_seconds, peak_mib, spread  # noqa: E402

from gwatch.check import check_cubin  # noqa: E402
from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.cuda.binary.elf import EHDR, PHDR, SHDR, SYM, Elf  # noqa: E402
from gwatch.errors import GWatchError, HazardError  # noqa: E402
from gwatch.rewrite.trace import SassTraceSite, plan_trace  # noqa: E402

SEEDS = (
    "tests/trace_command/pipeline.cubin",
    "tests/inspect/fixtures/nested.cubin",
    "tests/inspect/fixtures/vector_copy.cubin",
    "tests/binary/data/debug_sm90.cubin",
    "tests/binary/data/holders_sm90.cubin",
    "tests/binary/data/holders_sm75.cubin",
    "tests/binary/data/holders_sm120.cubin",
)
CASE_SECONDS = 10
MEMORY = 2 << 30
LIMIT = 4096
"""MiB of address space of a process, the libraries that it maps included."""
CHUNKS = {"parse": 2000, "check": 50, "rewrite": 50}
"""Mutations of one task."""
HANG_SECONDS = 60
PROGRESS = 10.0
NO_NVDISASM = "/none"
_EHDR_FIELDS = ((4, 1), (5, 1), (7, 1), (8, 1), (16, 2), (18, 2), (20, 4), (32, 8), (40, 8), (48, 4), (52, 2), (54, 2),
                (56, 2), (58, 2), (60, 2), (62, 2))  # fmt: skip
_SHDR_FIELDS = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 4), (44, 4), (48, 8), (56, 8))
_PHDR_FIELDS = ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8))
_SYM_FIELDS = ((0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8))
_RELOCATION_FIELDS = ((0, 8), (8, 4), (12, 4), (16, 8))
_SHT_RELOCATIONS = (4, 9)


@dataclass(frozen=True)
class Seed:
    """A good cubin and where its fields are: (offset, bytes), by kind; and where its code is."""

    name: str
    data: bytes
    fields: dict[str, tuple[tuple[int, int], ...]]

    @classmethod
    def load(cls, name: str) -> Seed:
        """Read one of :data:`SEEDS`."""
        data = (ROOT / name).read_bytes()
        elf = Elf(data)
        header = elf.header
        fields: dict[str, list[tuple[int, int]]] = {
            "header": list(_EHDR_FIELDS),
            "sections": [
                (header.shoff + n * SHDR.size + at, size)
                for n in range(header.shnum)
                for at, size in _SHDR_FIELDS
            ],
            "segments": [
                (header.phoff + n * PHDR.size + at, size)
                for n in range(header.phnum)
                for at, size in _PHDR_FIELDS
            ],
            "symbols": [],
            "relocations": [],
            "attributes": [],
            "code": [],
            "tables": [],
            "debug": [],
        }
        for section in elf.sections:
            if not section.in_file:
                continue
            start, stop = section.offset, section.offset + section.size
            if section.type == 2:
                fields["symbols"] += [
                    (at + place, size) for at in range(start, stop, SYM.size) for place, size in _SYM_FIELDS
                ]
            elif section.type in _SHT_RELOCATIONS and section.entry_size:
                fields["relocations"] += [
                    (at + place, size)
                    for at in range(start, stop, section.entry_size)
                    for place, size in _RELOCATION_FIELDS
                    if place < section.entry_size
                ]
            elif section.name.startswith(".nv.info"):
                fields["attributes"] += _attribute_fields(data, start, stop)
            elif section.name.startswith(".text"):
                fields["code"] += [(at, 8) for at in range(start, stop - 7, 8)]
            elif "debug" in section.name:
                fields["debug"] += [(at, 1) for at in range(start, stop)]
            else:
                fields["tables"] += [(at, 4) for at in range(start, stop - 3, 4)]
        assert EHDR.size == 64
        return cls(name, data, {kind: tuple(found) for kind, found in fields.items() if found})


def _attribute_fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    at = start
    while at + 4 <= stop:
        form, _, value = struct.unpack_from("<BBH", data, at)
        yield from ((at, 1), (at + 1, 1), (at + 2, 2))
        at += 4
        if form == 4:
            yield from ((place, 4) for place in range(at, min(at + value, stop - 3), 4))
            at += value


@cache
def seeds() -> tuple[Seed, ...]:
    """All seeds, read once a process."""
    return tuple(map(Seed.load, SEEDS))


def mutate(seed: int, number: int, allowed: tuple[Seed, ...]) -> tuple[str, bytes]:
    """Mutation ``number``: the name of its base and the bytes. Small files, which take less time, come more often."""
    rng = random.Random(hashlib.sha256(f"{seed}|{number}".encode()).digest())
    (base,) = rng.choices(allowed, [len(item.data) ** -0.5 for item in allowed])
    data = bytearray(base.data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        kind = rng.choice([*base.fields, "code", "cut"])
        if kind == "cut":
            _cut(rng, data)
            continue
        offset, size = rng.choice(base.fields.get(kind, base.fields["header"]))
        if offset + size <= len(data):
            data[offset : offset + size] = _value(rng, base, data, offset, size)
    return base.name, bytes(data)


def _cut(rng: random.Random, data: bytearray) -> None:
    where = rng.randrange(max(1, len(data)))
    how = rng.random()
    if how < 0.4:
        del data[where:]
    elif how < 0.6:
        del data[where : where + rng.choice([1, 4, 8, 16, 64])]
    elif how < 0.8:
        data[where:where] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 8, 16])))
    else:
        data += bytes(rng.randrange(1 << rng.randrange(1, 12)))


def _value(rng: random.Random, base: Seed, data: bytearray, offset: int, size: int) -> bytes:
    old = int.from_bytes(data[offset : offset + size], "little")
    top = (1 << 8 * size) - 1
    way = rng.randrange(8)
    if way == 0:
        new = rng.choice(
            [0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 0xFFFF, top, top - 1, top >> 1, (top >> 1) + 1]
        )
    elif way == 1:
        new = old + rng.choice([-16, -8, -4, -1, 1, 4, 8, 16, 128])
    elif way == 2:
        new = old ^ 1 << rng.randrange(8 * size)
    elif way == 3:
        new = rng.choice([len(data), len(data) - 1, len(data) + 1, len(data) - size])
    elif way == 4:
        other, width = rng.choice(base.fields[rng.choice(list(base.fields))])
        new = int.from_bytes(data[other : other + width], "little")
    elif way == 5:
        new = rng.getrandbits(8 * size)
    elif way == 6:
        new = old * rng.choice([2, 16, 256])
    else:
        new = rng.randrange(256)
    return (new & top).to_bytes(size, "little")


# what is done with a mutation
# -----------------------------------------------------------------------------------------------------


def parse(data: bytes, rng: random.Random) -> None:
    """Read everything that is read without understanding code."""
    cubin = Cubin.from_bytes(data)
    for kernel in [*cubin.get_map_kernel_def().values(), *cubin.get_map_function_def().values()]:
        for name in (
            "words",
            "attributes",
            "params",
            "param_base",
            "inner_functions",
            "relocations",
            "max_threads",
        ):
            with contextlib.suppress(GWatchError):
                getattr(kernel, name)
        with contextlib.suppress(GWatchError):
            _ = kernel.register_count
    if rng.random() < 0.1:
        for kernel in cubin.get_map_kernel_def().values():
            _ = kernel.map_address_to_line


def check(data: bytes, rng: random.Random) -> None:
    """``gwatch check``."""
    for result in check_cubin(Cubin.from_bytes(data)):
        result.to_json()


def rewrite(data: bytes, rng: random.Random) -> None:
    """Parse, check, and patch at a random place."""
    check(data, rng)
    cubin = Cubin.from_bytes(data)
    kernels = list(cubin.get_map_kernel_def().values())
    if kernels:
        kernel = rng.choice(kernels)
        count = max(2, len(kernel.words))
        sites = [
            SassTraceSite(rng.randrange(count // 2), warp_level=rng.random() < 0.3)
            for _ in range(rng.randint(1, 3))
        ]
        plan_trace(cubin, kernel, sites, clock=rng.choice(["gpu", "sm"]))


STAGES: dict[str, Callable[[bytes, random.Random], None]] = {
    "parse": parse,
    "check": check,
    "rewrite": rewrite,
}


class TooSlow(Exception):
    """A case ran over its time."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"over {CASE_SECONDS} s")


@dataclass
class Result:
    """What a run of mutations came to: refusals by code ("accepted" for none), and faults."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, str | int]] = field(default_factory=list)
    slowest: float = 0.0
    peak_mib: int = 0

    def merge(self, other: Result) -> None:
        """Add another run's."""
        self.outcomes.update(other.outcomes)
        self.faults += other.faults
        self.slowest = max(self.slowest, other.slowest)
        self.peak_mib = max(self.peak_mib, other.peak_mib)

    def lose(self, number: int, stage: str, seed: int, why: str, keep: Path | None, where: str = "") -> None:
        """Count a fault: what mutation ``number`` came to; its bytes go to ``keep``."""
        base, data = mutate(seed, number, seeds())
        self.outcomes["FAULT"] += 1
        self.faults.append({"number": number, "seed": seed, "base": base, "error": why[:200], "where": where})
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{stage}-{seed}-{number}.cubin").write_bytes(data)


def _part(part: tuple[int, int], stage: str, seed: int, keep: Path | None) -> Result:
    return run(*part, stage=stage, seed=seed, keep=keep)


def run(first: int, count: int, stage: str, seed: int, keep: Path | None = None) -> Result:
    """Mutations ``first`` .. ``first + count - 1``."""
    result = Result()
    work = STAGES[stage]
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY + (1 << 30), limit[1]))
    old = signal.signal(signal.SIGPROF, _ring)
    try:
        for number in range(first, first + count):
            data = mutate(seed, number, seeds())[1]
            begin = time.process_time()
            # Processor time: a busy machine is no fault.
            signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
            try:
                work(data, random.Random(number))
                result.outcomes["accepted"] += 1
            except HazardError as error:
                result.lose(number, stage, seed, str(error), keep)
            except GWatchError as error:
                result.outcomes[error.code] += 1
            except Exception as error:
                where = traceback.format_exc().splitlines()[-4].strip()
                result.lose(number, stage, seed, f"{type(error).__name__}: {error}", keep, where)
            finally:
                with contextlib.suppress(TooSlow):
                    signal.setitimer(signal.ITIMER_PROF, 0)
            result.slowest = max(result.slowest, time.process_time() - begin)
    finally:
        signal.signal(signal.SIGPROF, old)
        resource.setrlimit(resource.RLIMIT_AS, limit)
    result.peak_mib = peak_mib()
    if result.peak_mib > MEMORY >> 20:
        result.faults.append(
            {"number": first, "seed": seed, "base": "", "error": f"{result.peak_mib} MiB", "where": ""}
        )
    return result


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=STAGES, default="parse")
    parser.add_argument("--count", type=int, default=10_000, help="mutations")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="folder for faulty inputs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--nvdisasm",
        action="store_true",
        help="let nvdisasm read what the tables can't (where it is installed)",
    )
    args = parser.parse_args()
    if not args.nvdisasm:
        os.environ["GWATCH_NVDISASM"] = NO_NVDISASM
    begin = last = time.monotonic()
    total = Result()
    done = 0
    chunk = CHUNKS[args.stage]
    stop = args.first + args.count
    parts: Iterable[tuple[int, int]] = (
        (start, min(chunk, stop - start)) for start in range(args.first, stop, chunk)
    )

    def tell() -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS:
            last = time.monotonic()
            print(
                f"[{last - begin:.0f} s] {done} mutations, {len(total.faults)} faults",
                file=sys.stderr,
                flush=True,
            )

    work = partial(_part, stage=args.stage, seed=args.seed, keep=args.keep)
    unfinished = 0
    while parts:
        # A part that gave no result is tried again in halves, which finds the mutation that it was.
        again: list[tuple[int, int]] = []
        left = max(0.1, args.seconds - (time.monotonic() - begin)) if args.seconds else 0
        for item in spread(
            work, parts, args.jobs, each=HANG_SECONDS, memory_mib=LIMIT, seconds=left, tick=tell
        ):
            first, count = item.task
            if item.result is not None:
                total.merge(item.result)
                done += count
            elif item.unfinished:
                unfinished += count
            elif count > 1:
                again += [(first, count // 2), (first + count // 2, count - count // 2)]
            else:
                total.lose(first, args.stage, args.seed, item.lost, args.keep)
                done += 1
        parts = again
    result = {
        "stage": args.stage,
        "seed": args.seed,
        "mutations": done,
        "unfinished": unfinished,
        "seconds": round(time.monotonic() - begin, 1),
        "jobs": args.jobs,
        "cpu_seconds": children_seconds(),
        "outcomes": dict(total.outcomes.most_common()),
        "slowest_s": round(total.slowest, 2),
        "peak_mib": total.peak_mib,
        "faults": len(total.faults),
        "first_faults": total.faults[:20],
    }
    print(json.dumps(result, indent=None if args.json else 1))
    return 1 if total.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
