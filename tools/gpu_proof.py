#!/usr/bin/env python3
"""Run everything that only a GPU can prove, most telling first, inside a time budget, and keep what it said.

    python tools/gpu_proof.py --out DIR [--budget SECONDS] [--only REGEX] [--jobs 4] [--list]

Steps whose verdict does not depend on time run side by side; those that measure run alone afterwards. A step that
fails, hangs or is left out for want of time is named, and the others go on. DIR receives ``proof.md`` (a table),
``proof.json`` and ``logs.tar.gz`` (each step's whole output). Exit codes: 0 all passed, 1 a step failed or was left
out, 2 no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gwatch.cuda.driver import driver  # noqa: E402
from gwatch.errors import ToolError  # noqa: E402

Command = tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A command (arguments of Python), the seconds it may take, and whether it measures time."""

    name: str
    command: Command
    limit: float
    alone: bool = False


@dataclass
class Outcome:
    """What a step came to: ``verdict`` is ok, FAIL, TIMEOUT or left out; ``last`` its closing lines."""

    name: str
    verdict: str
    seconds: float
    last: str
    log: str


def _checks(modules: str, limit: float, alone: bool = False) -> Step:
    return Step(f"checks-{modules.replace(',', '-')}", ("tools/gpu_check.py", "--modules", modules), limit, alone)


def _tests(name: str, limit: float, *options: str, alone: bool = False) -> Step:
    chosen = (after for before, after in itertools.pairwise(options) if before == "-k")
    label = "-".join([f"tests-{name}", *chosen]).replace(" ", "_")
    return Step(label, ("-m", "pytest", "-q", "-rfs", *options, f"tests/gpu/test_{name}.py"), limit, alone)


_SIDE_BY_SIDE = ("-n", "6") if importlib.util.find_spec("xdist") else ()

STEPS = (
    _checks("matmul,values", 240),
    _checks("control,groups", 300),
    _checks("records,registers,state", 240),
    _checks("frameworks", 200),
    _tests("do_trace", 200),
    _tests("capture", 120),
    _tests("launcher", 120),
    _tests("scopes", 150),
    _tests("trace_command", 240),
    _tests("trace_programs", 600, "-k", "not soak", *_SIDE_BY_SIDE),
    Step("torture", ("tools/torture.py", "--gpu", "--seconds", "150", "--sites", "2500", "--seed", "1", "--json"), 240),
    Step("torture-frameworks", ("tools/torture.py", "--frameworks", "--seconds", "60", "--seed", "2", "--json"), 150),
    Step("torture-sanitize", ("tools/torture.py", "--sanitize", "--seconds", "60", "--seed", "3", "--json"), 200),
    Step("latency", ("tools/confirm_latency.py", "--json"), 120),
    _checks("process,clocks,consistency", 200, alone=True),
    _checks("scopes", 200, alone=True),
    _checks("bottlenecks", 120, alone=True),
    Step("record-cost", ("tools/bench/record_cost.py", "--quick"), 120, True),
    Step("tiers", ("tools/bench/tiers.py",), 120, True),
    Step("ablation", ("tools/bench/ablation.py",), 90, True),
    Step("overhead", ("tools/bench/overhead.py",), 180, True),
    _tests("iket_agreement", 120, alone=True),
    _tests("trace_programs", 300, "-k", "soak", alone=True),
)


def run(step: Step, limit: float, folder: Path) -> Outcome:
    """Run a step for at most ``limit`` seconds; what is left of it then is killed, children included."""
    log = folder / f"{step.name}.log"
    begin = time.monotonic()
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, *step.command],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            verdict = "FAIL" if process.wait(limit) else "ok"
        except subprocess.TimeoutExpired:
            verdict = "TIMEOUT"
        finally:
            with contextlib.suppress(ProcessLookupError):  # where the step and all its children have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text("utf-8", "replace")
    outcome = Outcome(step.name, verdict, time.monotonic() - begin, _closing(text), text)
    print(f"{verdict:8} {step.name:40} {outcome.seconds:6.1f} s  {outcome.last.splitlines()[-1:]}", flush=True)
    return outcome


def _closing(text: str, lines: int = 6, width: int = 400) -> str:
    kept = [line[:width] for line in text.splitlines() if line.strip() and not line.startswith("SKIPPED")]
    failed = [line for line in kept if line.startswith(("FAIL", "ERROR"))]
    return "\n".join([*failed[:8], *kept[-lines:]])


def prove(steps: Sequence[Step], budget: float, jobs: int, folder: Path) -> list[Outcome]:
    """Run ``steps`` within ``budget`` seconds, those that may share the GPU ``jobs`` at a time."""
    end = time.monotonic() + budget

    def within(step: Step) -> Outcome:
        left = end - time.monotonic()
        if left < min(step.limit, 60):
            return Outcome(step.name, "left out", 0.0, f"{left:.0f} s of the budget were left", "")
        return run(step, min(step.limit, left), folder)

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(within, [step for step in steps if not step.alone]))
    return outcomes + [within(step) for step in steps if step.alone]


def write(outcomes: Sequence[Outcome], gpu: str, out: Path) -> None:
    """Write the table, the JSON object and the logs of all steps to ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"Proof on {gpu}", "", "| step | verdict | seconds | last line |", "| --- | --- | --- | --- |"]
    lines += [f"| {o.name} | {o.verdict} | {o.seconds:.0f} | {(o.last.splitlines() or [''])[-1]} |" for o in outcomes]
    (out / "proof.md").write_text("\n".join(lines) + "\n")
    facts = [{"step": o.name, "verdict": o.verdict, "seconds": round(o.seconds, 1), "last": o.last} for o in outcomes]
    (out / "proof.json").write_text(json.dumps({"gpu": gpu, "steps": facts}, indent=1))
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for outcome in outcomes:
            data = outcome.log.encode()
            entry = tarfile.TarInfo(f"{outcome.name}.log")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run everything that only a GPU can prove.")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-proof"))
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for all steps together")
    parser.add_argument("--only", default="", help="only steps whose name matches this regular expression")
    parser.add_argument("--jobs", type=int, default=4, help="steps at a time, where time is not measured")
    parser.add_argument("--list", action="store_true", help="print the steps and stop")
    args = parser.parse_args()
    steps = [step for step in STEPS if re.search(args.only, step.name)]
    if args.list:
        for step in steps:
            print(f"{step.name:40} {step.limit:5.0f} s {'alone' if step.alone else '     '}  {' '.join(step.command)}")
        return 0
    try:
        gpu = driver().device_name(0)
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        outcomes = prove(steps, args.budget, args.jobs, Path(folder))
    write(outcomes, gpu, args.out)
    passed = sum(outcome.verdict == "ok" for outcome in outcomes)
    print(f"{passed} of {len(outcomes)} steps passed on {gpu}; see {args.out}")
    return 0 if passed == len(outcomes) and outcomes else 1


if __name__ == "__main__":
    raise SystemExit(main())
