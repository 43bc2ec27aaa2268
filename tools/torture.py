#!/usr/bin/env python3
"""Torture the rewriter: random sites and snippets in every kernel of a folder, each rewrite proved.

    python tools/torture.py --kernels DIR_OR_CUBIN ... [--sites N] [--seconds S] [--seed S] [--json]
    python tools/torture.py --gpu | --frameworks | --sanitize [--seconds S] [--seed S] [--json]

Without a GPU every rewrite is proved by three roads that don't use the rewriter's maps: nvdisasm lists both images and
the inserted lines taken out leave equal listings; ``gwatch check`` finds no hazard and no stale code offset in the new
image; compared with the original, nothing but insertions differs and they disturb nothing. Every tenth rewrite also
gets faults planted in it on purpose, which the checker must report.

With ``--gpu`` the kernels of ``tools/torturing`` and freshly generated ones run plain and patched on random inputs:
outputs must be equal bit by bit, armed and unarmed, and every visit of a site must be recorded exactly once, as counted
by an independent counter snippet. A launch that takes longer than 20 s counts as a hang.

A failure prints the command that repeats it. Exit codes: 0 nothing wrong, 1 something was, 2 nothing could be tried.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from torturing.cases import make_case  # noqa: E402
from torturing.mutations import plant_all  # noqa: E402
from torturing.proof import Outcome, prove  # noqa: E402

from gwatch.cuda.binary import Cubin, KernelDef  # noqa: E402
from gwatch.errors import GWatchError  # noqa: E402

PLANT_EVERY = 10
SANITIZERS = ("memcheck", "racecheck", "synccheck")
SAMPLE = "kernels/(switch|shared|atomics|calls|ragged|solid|divide|local|constants)"
"""Kernels of the sanitizers' sample: free of asynchronous copies and clusters, which they only partly understand."""


def files_of(paths: list[Path]) -> list[Path]:
    """The cubins named, and those below the folders named."""
    return [item for path in paths for item in (sorted(path.rglob("*.cubin")) if path.is_dir() else [path])]


def kernels_of(
    paths: list[Path], rng: random.Random, longest: int, only: str
) -> Iterator[tuple[Path, Cubin, KernelDef]]:
    """Kernels in random order, every file once before any comes again."""
    files = files_of(paths)
    left: dict[Path, list[str]] = {}
    while files:
        rng.shuffle(files)
        for path in list(files):
            try:
                cubin = Cubin.from_file(path)
                kernels = cubin.get_map_kernel_def()
            except GWatchError as error:
                print(f"{path}: {error}", file=sys.stderr)
                files.remove(path)
                continue
            if path not in left:
                left[path] = [
                    k.name for k in kernels.values() if len(k.words) <= longest and re.search(only, k.name)
                ]
                rng.shuffle(left[path])
            if not left[path]:
                files.remove(path)
                continue
            yield path, cubin, kernels[left[path].pop()]


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kernels", nargs="+", type=Path, default=[ROOT / ".corpus"], help="cubins or folders"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="only kernels whose name matches")
    parser.add_argument("--sites", type=int, default=20_000, help="stop after this many (kernel, site) pairs")
    parser.add_argument("--seconds", type=float, default=0, help="stop after this long (0: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--case", type=int, help="only this case number of each kernel (with --only: repeats it)"
    )
    parser.add_argument(
        "--longest", type=int, default=100_000, help="leave out longer kernels (instructions)"
    )
    parser.add_argument("--rounds", type=int, default=100, help="times through all kernels, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes (without a GPU)")
    parser.add_argument("--gpu", action="store_true", help="run on the GPU")
    parser.add_argument(
        "--frameworks", action="store_true", help="on the GPU: kernels that torch, Triton and CuPy launch"
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="on the GPU: a sample under compute-sanitizer's tools"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.sanitize:
        return sanitize(args)
    if args.gpu or args.frameworks:
        from torturing.gpu import torture_gpu

        return torture_gpu(args)
    return offline(args)


def sanitize(args: argparse.Namespace) -> int:
    """Some seconds of ``--gpu`` under each tool of compute-sanitizer; all must be silent."""
    seconds = (args.seconds or 120) / len(SANITIZERS)
    worst = 0
    results = {}
    for tool in SANITIZERS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
        command += [
            sys.executable,
            __file__,
            "--gpu",
            "--json",
            "--seed",
            str(args.seed),
            "--seconds",
            str(seconds),
        ]
        command += ["--only", args.only or SAMPLE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=4 * seconds + 120
            )
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            print(f"{tool}: {error}", file=sys.stderr)
            return 2
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "=========" in line]
        results[tool] = {"exit": done.returncode, "said": lines[-1:], "pairs": _pairs(done.stdout)}
        if done.returncode:
            print("\n".join([f"{tool} complains:", *lines[:20], done.stderr[-1000:]]), file=sys.stderr)
            worst = 1
    print(json.dumps(results, indent=None if args.json else 1))
    return worst


def _pairs(text: str) -> int:
    """The (kernel, site) pairs of a run's JSON line."""
    found = re.findall(r'"pairs": (\d+)', text)
    return int(found[-1]) if found else 0


@dataclass
class Part:
    """What one process did."""

    total: Outcome = field(default_factory=Outcome)
    planted: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    by_arch: dict[str, Counter[str]] = field(default_factory=dict)
    cases: int = 0

    def merge(self, other: Part) -> None:
        """Add another process's."""
        self.total.add(other.total)
        self.planted.update(other.planted)
        self.caught.update(other.caught)
        self.cases += other.cases
        for arch, row in other.by_arch.items():
            self.by_arch.setdefault(arch, Counter()).update(row)


def offline(args: argparse.Namespace) -> int:
    """Torture without a GPU."""
    begin = time.monotonic()
    whole = Part()
    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs) as pool:
            for part in pool.map(partial(work, args), range(args.jobs)):
                whole.merge(part)
    else:
        whole = work(args, 0)
    result = {
        "seed": args.seed,
        "seconds": round(time.monotonic() - begin, 1),
        "cases": whole.cases,
        "rewrites": whole.total.rewrites,
        "proved": whole.total.proved,
        "refused": dict(sorted(whole.total.refused.items())),
        "reasons": whole.total.reasons,
        "wrong": len(whole.total.wrong),
        "by_arch": {arch: dict(row) for arch, row in sorted(whole.by_arch.items())},
        "planted": dict(whole.planted),
        "caught": dict(whole.caught),
    }
    print(json.dumps(result, indent=1) if args.json else summary(result))
    if not whole.cases:
        return 2
    return 1 if whole.total.wrong else 0


def work(args: argparse.Namespace, part: int) -> Part:
    """Every ``args.jobs``-th kernel, from ``part`` on, until the share of pairs or the time is used up."""
    begin = time.monotonic()
    done = Part()
    for number in range(args.rounds):
        rng = random.Random(f"{args.seed}|{number}")
        tried = False
        for place, (path, cubin, kernel) in enumerate(kernels_of(args.kernels, rng, args.longest, args.only)):
            spent = done.total.proved + sum(done.total.refused.values())
            if spent * args.jobs >= args.sites or (args.seconds and time.monotonic() - begin > args.seconds):
                return done
            if place % args.jobs == part:
                tried = True
                try_case(args, path, cubin, kernel, number if args.case is None else args.case, done)
            if sys.stderr.isatty() and args.jobs == 1:
                sys.stderr.write(
                    f"\r{done.total.proved} proved, {len(done.total.wrong)} wrong, {done.cases} cases "
                )
        if not tried or args.case is not None:
            break
    return done


def try_case(
    args: argparse.Namespace, path: Path, cubin: Cubin, kernel: KernelDef, number: int, done: Part
) -> None:
    """One case: prove it, and every so often plant faults in it."""
    found = Outcome()
    try:
        case = make_case(cubin, kernel, args.seed, path.name, number)
        found = prove(case)
        if found.good and (done.cases % PLANT_EVERY == 0 or args.case is not None):
            for kind, (seeds, seen, missed) in plant_all(case.part(found.good)).items():
                done.planted[kind] += seeds
                done.caught[kind] += seen
                found.wrong += missed
    except GWatchError as error:
        found.refused[error.code] = 1
        found.reasons[error.code] = f"{kernel.name}: {error}"
    done.cases += 1
    row = done.by_arch.setdefault(cubin.arch.name, Counter())
    row["kernels"] += 1
    row["rewritten" if found.proved else "refused"] += 1
    row["sites"] += found.proved
    if not found.proved and found.refused:
        row["refused: " + max(found.refused, key=lambda code: found.refused[code])] += 1
    for sentence in found.wrong:
        print(
            f"WRONG {path.name} {kernel.name}: {sentence}\n  again: python tools/torture.py --kernels {path} "
            f"--only '^{re.escape(kernel.name)}$' --seed {args.seed} --case {number} --rounds 1",
            file=sys.stderr,
            flush=True,
        )
    done.total.add(found)


def summary(result: dict[str, object]) -> str:
    """The result as text."""
    lines = [
        f"{result['cases']} cases, {result['rewrites']} rewrites, {result['proved']} (kernel, site) pairs proved, "
        f"{result['wrong']} wrong, in {result['seconds']} s (seed {result['seed']})"
    ]
    lines += [f"{arch}: {row}" for arch, row in result["by_arch"].items()]  # type: ignore[attr-defined]
    lines += [f"refused {code}: {count}" for code, count in result["refused"].items()]  # type: ignore[attr-defined]
    for kind, seeds in result["planted"].items():  # type: ignore[attr-defined]
        lines.append(f"planted {kind}: {result['caught'].get(kind, 0)} of {seeds} caught")  # type: ignore[attr-defined]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
