"""The torture without a GPU: cases of many kernels, spread over processes, each rewrite proved."""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.elf import ET_REL
from gwatch.cuda.program.places import lifetimes
from gwatch.cuda.program.roles import automatic
from gwatch.errors import GWatchError, SiteError
from gwatch.rewrite.trace import SassTraceSite
from gwatch.sass import nvdisasm
from gwatch.sass.isa import isa_for
from torturing.cases import Case, make_case, rng_of
from torturing.mutations import plant_all
from torturing.pool import Done, children_seconds, peak_mib, spread
from torturing.proof import Outcome, buildable, prove

PLANT_EVERY = 10
SURVEYED = 2
"""Sites of a kernel that a survey asks for."""
PROGRESS = 10.0
"""Seconds between two lines of progress."""
NAMED = 40
"""Wrong and refused kernels that the summary names."""
OF_THE_REQUEST = frozenset(
    {
        "site-register",
        "value-not-ready",
        "site-collective",
        "site-range",
        "site-padding",
        "site-reuse",
        "site-unreachable",
    }
)
"""Refusals of one site: the random choice asked for what isn't there. Others speak of the kernel."""


@dataclass(frozen=True)
class Task:
    """One case of one kernel."""

    path: Path
    kernel: str
    number: int
    seed: int
    plant: bool
    survey: bool = False


@dataclass
class Report:
    """What a task came to; ``peak`` memory of its process in MiB, ``seconds`` of processor time."""

    arch: str
    outcome: Outcome
    planted: dict[str, int] = field(default_factory=dict)
    caught: dict[str, int] = field(default_factory=dict)
    peak: int = 0
    seconds: float = 0.0


@dataclass
class Folder:
    """The kernels at hand by architecture and file, and how many files can't be used, by code."""

    kernels: dict[str, dict[Path, list[str]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, paths: list[Path], longest: int, only: str) -> Folder:
        """All cubins named or below the folders named; kernels of at most ``longest`` instructions."""
        folder = cls()
        for path in files_of(paths):
            try:
                cubin = Cubin.from_file(path)
                isa_for(cubin.arch.name)
                if cubin.elf.header.type == ET_REL:
                    folder.left_out["relocatable-object"] += 1
                    continue
                names = [
                    kernel.name
                    for kernel in cubin.get_map_kernel_def().values()
                    if len(kernel.words) <= longest and re.search(only, kernel.name)
                ]
            except GWatchError as error:
                folder.left_out[error.code] += 1
                continue
            if names:
                folder.kernels.setdefault(cubin.arch.name, {})[path] = names
        return folder

    def cases(self, arch: str, seed: int, rounds: int) -> Iterator[tuple[Path, str, int]]:
        """(file, kernel, case number) in random order: every kernel once before any comes again, and of every file
        one before a second one of any.
        """
        for number in range(rounds):
            rng = random.Random(f"{seed}|{arch}|{number}")
            left = {path: rng.sample(names, len(names)) for path, names in self.kernels[arch].items()}
            while left:
                for path in rng.sample(list(left), len(left)):
                    yield path, left[path].pop(), number
                    if not left[path]:
                        del left[path]

    def tasks(self, args: argparse.Namespace) -> Iterator[Task]:
        """Cases of all architectures in turn."""
        rounds = 1 if args.case is not None else args.rounds
        turns = [self.cases(arch, args.seed, rounds) for arch in sorted(self.kernels)]
        count = 0
        while turns:
            for turn in list(turns):
                case = next(turn, None)
                if case is None:
                    turns.remove(turn)
                    continue
                number = case[2] if args.case is None else args.case
                plant = count % PLANT_EVERY == 0 or args.case is not None
                yield Task(case[0], case[1], number, args.seed, plant and not args.survey, args.survey)
                count += 1


def files_of(paths: list[Path]) -> list[Path]:
    """The cubins named, and those below the folders named."""
    return [item for path in paths for item in (sorted(path.rglob("*.cubin")) if path.is_dir() else [path])]


@lru_cache(maxsize=2)
def _cubin(path: Path) -> Cubin:
    return Cubin.from_file(path)


def do_task(task: Task) -> Report:
    """One case: prove it, and plant faults in it where the task says so."""
    begin = time.process_time()
    cubin = _cubin(task.path)
    found = Outcome()
    report = Report(cubin.arch.name, found)
    kernel = cubin.get_map_kernel_def()[task.kernel]
    try:
        case = make_case(cubin, kernel, task.seed, task.path.name, task.number, snippets=not task.survey)
        found = report.outcome = survey(case, task) if task.survey else prove(case)
        if found.good and task.plant:
            for kind, (seeds, seen, missed) in plant_all(case.part(found.good)).items():
                report.planted[kind], report.caught[kind] = seeds, seen
                found.wrong += missed
    except GWatchError as error:
        found.refused[error.code] = 1
        found.reasons[error.code] = f"{kernel.name}: {error}"
    report.peak = peak_mib()
    report.seconds = time.process_time() - begin
    return report


def survey(case: Case, task: Task) -> Outcome:
    """Whether a few of the case's records can be had, and the traces that ``gwatch trace`` makes by itself; nothing is
    proved. Where one of those is refused, the kernel counts as refused.
    """
    rng = rng_of(task.seed, task.path.name, case.kernel, task.number)
    chosen = sorted(rng.sample(range(len(case)), min(SURVEYED, len(case))))
    outcome = Outcome()
    groups = buildable(case, chosen, outcome)
    outcome.rewrites = len(groups)
    outcome.proved = sum(len(group) for group, _ in groups)
    for name, sites in usual(case):
        try:
            Case(case.cubin, case.kernel, name, sites, "anchor").build()
        except GWatchError as error:
            outcome.refused[error.code] = outcome.refused.get(error.code, 0) + 1
            outcome.reasons[error.code] = f"{case.kernel}: {name}: {error}"
            outcome.own.append(error.code)
        else:
            outcome.rewrites += 1
    return outcome


def usual(case: Case) -> Iterator[tuple[str, tuple[SassTraceSite, ...]]]:
    """What ``gwatch trace`` records without being told where, and with ``--auto``."""
    kernel = case.cubin.get_kerneldef_by_name(case.kernel)
    yield "lifetimes", lifetimes(kernel).sites
    try:
        yield "auto", automatic(kernel).sites
    except SiteError:
        return  # nothing there that is worth seeing


@dataclass
class Tally:
    """Everything so far."""

    total: Outcome = field(default_factory=Outcome)
    planted: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    by_arch: dict[str, Counter[str]] = field(default_factory=dict)
    kernels: dict[str, set[tuple[Path, str]]] = field(default_factory=dict)
    refused: dict[tuple[Path, str], str] = field(default_factory=dict)
    taken: set[tuple[Path, str]] = field(default_factory=set)
    wrong: set[tuple[Path, str]] = field(default_factory=set)
    cases: int = 0
    unfinished: int = 0
    peak: int = 0
    slowest: tuple[float, str] = (0.0, "")

    @property
    def pairs(self) -> int:
        """(kernel, site) pairs tried."""
        return self.total.proved + sum(self.total.refused.values())

    def count(self, done: Done[Task, Report], arch: str) -> None:
        """Add one task; what is wrong is printed with the command that repeats it."""
        if done.unfinished:
            self.unfinished += 1
            return
        task, report = done.task, done.result
        if report is None:
            report = Report(arch, Outcome(wrong=[f"no result: {done.lost}"]))
        found = report.outcome
        self.cases += 1
        key = task.path, task.kernel
        self.kernels.setdefault(arch, set()).add(key)
        row = self.by_arch.setdefault(arch, Counter())
        row["cases"] += 1
        row["pairs"] += found.proved
        row["wrong"] += len(found.wrong)
        for code, number in found.refused.items():
            row[f"refused: {code}"] += number
        of_kernel = found.own or [code for code in found.refused if code not in OF_THE_REQUEST]
        if found.proved and not found.own:
            self.taken.add(key)
        elif of_kernel:
            self.refused[key] = found.reasons.get(of_kernel[0], of_kernel[0])
        if found.wrong:
            self.wrong.add(key)
        self.planted.update(report.planted)
        self.caught.update(report.caught)
        self.peak = max(self.peak, report.peak)
        self.slowest = max(self.slowest, (round(report.seconds, 1), f"{task.path.name} {task.kernel}"))
        for sentence in found.wrong:
            print(
                f"WRONG {task.path.name} {task.kernel}: {sentence}\n  again: python tools/torture.py --kernels "
                f"{task.path} --only '^{re.escape(task.kernel)}$' --seed {task.seed} --case {task.number}",
                file=sys.stderr,
                flush=True,
            )
        self.total.add(found)

    def result(self) -> dict[str, object]:
        """The summary."""
        refused = {key: reason for key, reason in self.refused.items() if key not in self.taken}
        for arch, keys in self.kernels.items():
            self.by_arch[arch]["kernels"] = len(keys)
            self.by_arch[arch]["kernels refused"] = len(keys & refused.keys())
        return {
            "cases": self.cases,
            "unfinished": self.unfinished,
            "rewrites": self.total.rewrites,
            "proved": self.total.proved,
            "pairs": self.pairs,
            "refused": dict(sorted(self.total.refused.items())),
            "reasons": self.total.reasons,
            "kernels": sum(map(len, self.kernels.values())),
            "kernels_refused": len(refused),
            "refused_kernels": [f"{key[0].name}: {reason}" for key, reason in refused.items()][:NAMED],
            "wrong": len(self.total.wrong),
            "wrong_kernels": [f"{path.name}: {kernel}" for path, kernel in sorted(self.wrong)][:NAMED],
            "first_wrong": self.total.wrong[:NAMED],
            "by_arch": {arch: dict(row) for arch, row in sorted(self.by_arch.items())},
            "planted": dict(self.planted),
            "caught": dict(self.caught),
            "peak_mib": self.peak,
            "slowest": list(self.slowest),
        }


def offline(args: argparse.Namespace) -> int:
    """Torture without a GPU. Exit codes as of the tool."""
    begin = last = time.monotonic()
    try:
        if not args.survey:
            nvdisasm.find()
    except GWatchError as error:
        print(error, file=sys.stderr)
        return 2
    folder = Folder.read(args.kernels, args.longest, args.only)
    archs = {path: arch for arch, files in folder.kernels.items() for path in files}
    tally = Tally()

    def tell() -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS:
            last = time.monotonic()
            print(
                f"[{last - begin:.0f} s] {tally.cases} cases, {tally.total.proved} pairs proved, "
                f"{sum(tally.total.refused.values())} refused, {len(tally.total.wrong)} wrong",
                file=sys.stderr,
                flush=True,
            )

    def tasks() -> Iterator[Task]:
        for task in folder.tasks(args):
            if tally.pairs >= args.sites:
                return
            yield task

    for done in spread(
        do_task,
        tasks(),
        args.jobs,
        each=args.case_seconds,
        memory_mib=args.memory,
        seconds=args.seconds,
        tick=tell,
    ):
        tally.count(done, archs[done.task.path])
    head = {"seed": args.seed, "seconds": round(time.monotonic() - begin, 1), "jobs": args.jobs}
    head["cpu_seconds"] = children_seconds()
    result = head | tally.result() | {"files": len(archs), "files_left_out": dict(folder.left_out)}
    print(json.dumps(result) if args.json else summary(result))
    if not tally.cases:
        return 2
    return 1 if tally.total.wrong else 0


def summary(result: dict[str, object]) -> str:
    """The result as text."""
    lines = [
        f"{result['cases']} cases, {result['rewrites']} rewrites, {result['proved']} (kernel, site) pairs proved, "
        f"{result['wrong']} wrong, {result['kernels_refused']} of {result['kernels']} kernels refused, in "
        f"{result['seconds']} s (seed {result['seed']}); {result['peak_mib']} MiB at most in one process"
    ]
    lines += [f"{arch}: {row}" for arch, row in result["by_arch"].items()]  # type: ignore[attr-defined]
    lines += [f"refused {code}: {count}" for code, count in result["refused"].items()]  # type: ignore[attr-defined]
    for kind, seeds in result["planted"].items():  # type: ignore[attr-defined]
        lines.append(f"planted {kind}: {result['caught'].get(kind, 0)} of {seeds} caught")  # type: ignore[attr-defined]
    return "\n".join(lines)
