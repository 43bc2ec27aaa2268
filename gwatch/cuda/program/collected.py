"""The command's side: run the program, gather what its processes left, write the files, say what happened."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gwatch.cuda.cupti import need_driver
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.start import WATCHED
from gwatch.cuda.program.target import command_of, environment
from gwatch.errors import TraceError, UnsupportedError

SIGNAL_BASE = 128
_ENVIRONMENT = ("no-driver", "no-gpu", "cuda-python-missing", "cupti-missing", "cupti-held", "cupti-failed",
                "dependency-missing")
"""Codes of what keeps gwatch from looking at a program at all."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that has ended: its exit code (128 + n for signal n), what each process left, and the id of the
    process that the command started."""

    code: int
    processes: tuple[dict[str, Any], ...]
    pid: int = 0

    @property
    def watched(self) -> list[dict[str, Any]]:
        """Processes that launched kernels, by rank and process id."""
        found = [item for item in self.processes if item.get("kernels")]
        return sorted(found, key=lambda item: (item.get("rank") is None, item.get("rank"), item["pid"]))


@contextlib.contextmanager
def run_program(
    target: Sequence[str], options: ProgramOptions, base: Mapping[str, str]
) -> Iterator[tuple[Program, Path]]:
    """Run the program to its end; yields it with the folder of the archives, which then goes away.

    Its standard streams are this process's own. Raises UnsupportedError ``[target-not-started]`` and as
    :func:`~gwatch.cuda.program.target.command_of` does, and ToolError ``[no-driver]``, before the program runs.
    """
    command = command_of(target)
    need_driver()
    folder = Path(tempfile.mkdtemp(prefix="gwatch-"))
    try:
        asked = replace(options, folder=str(folder))
        try:
            child = subprocess.Popen(command, env=environment(asked, base))
        except OSError as error:
            raise UnsupportedError(
                "target-not-started",
                f"{command[0]} does not start: {error.strerror}",
                "try it without gwatch; a script's first line must name an interpreter that is there",
            ) from None
        code = _wait(child)
        yield Program(SIGNAL_BASE - code if code < 0 else code, _read(folder), child.pid), folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """The terminal sends Ctrl-C to both; the program decides what it means, this process waits for it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminate)


def _read(folder: Path) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))


def causes(program: Program, options: ProgramOptions) -> list[str]:
    """Why nothing was recorded, ``[code] text`` lines; every empty trace has at least one."""
    if not program.processes:
        return [
            "[not-hooked] no Python process of the program came up with gwatch's sitecustomize; is it started with "
            "-I, -E, -S or a cleared PYTHONPATH?"
        ]
    found = [*troubles(program), *lost(program)]
    unfinished: list[dict[str, Any]] = []
    if not program.watched and not found:
        unfinished = [item for item in program.processes if item["state"] == "started"]
    if unfinished:
        found.append(_killed(program, unfinished[0]))
    if not program.watched:
        if not found:
            states = {item["state"] for item in program.processes}
            found.append(
                "[no-launches] the program launched no kernel that gwatch could see"
                if "done" in states
                else f"[no-cuda] no process imported one of the packages that gwatch watches ({', '.join(WATCHED)})"
            )
        return found
    rows = [row for item in program.watched for row in item["kernels"]]
    wanted = {name for item in program.watched for name in item["wanted"]}
    chosen = [row for row in rows if row["kernel"] in wanted]
    if not chosen:
        names = ", ".join(dict.fromkeys(row["demangled"] for row in rows[:8]))
        found.append(f"[kernel-not-launched] no launched kernel matches {options.kernel!r}; seen: {names}")
    elif all(row["launches"] == row["autotuning"] for row in chosen):
        found.append(
            f"[only-autotuning] all {sum(row['launches'] for row in chosen)} matching launches were made by an "
            "autotuner trying configurations, which gwatch leaves alone"
        )
    elif not found:
        launches = max(row["launches"] - row["autotuning"] for row in chosen)
        found.append(
            f"[launch-not-reached] the kernel was launched {launches} times, and the launch asked for is none "
            "of them"
        )
    return found


def hindered(reasons: Sequence[str]) -> bool:
    """Whether one of :func:`causes` is this machine's or this installation's, not the program's."""
    return any(reason.startswith(tuple(f"[{code}]" for code in _ENVIRONMENT)) for reason in reasons)


def troubles(program: Program) -> list[str]:
    """What the processes say that they could not do, each once."""
    return list(dict.fromkeys(problem for item in program.processes for problem in item.get("problems", ())))


def lost(program: Program) -> list[str]:
    """``[process-killed]`` for each process that launched kernels and left no results."""
    return [_killed(program, item) for item in program.processes if item["state"] == "launching"]


def _killed(program: Program, process: dict[str, Any]) -> str:
    if process["pid"] != program.pid and Path(f"/proc/{process['pid']}").exists():
        return f"[process-running] process {process['pid']} outlives the program: its records are not waited for"
    how = _ended(program, process)
    if process["state"] == "started":
        return f"[process-killed] process {process['pid']} ended {how}, before it launched a kernel gwatch could see"
    return f"[process-killed] process {process['pid']} ended {how}: its records are lost"


def _ended(program: Program, process: dict[str, Any]) -> str:
    if process["pid"] == program.pid and program.code > SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(program.code - SIGNAL_BASE).name}"
    return "without reaching Python's exit (a signal, a crash)"


def outputs_of(output: Path | None, count: int, ranks: Sequence[str]) -> list[Path]:
    """Paths of the archives: ``trace.gwatch``, or one per process where several were traced."""
    base = Path("trace.gwatch") if output is None else output.with_suffix(".gwatch")
    if output is not None and output.name.endswith(".chrome.json"):
        base = output.with_name(output.name[: -len(".chrome.json")] + ".gwatch")
    if count <= 1:
        return [base]
    return [base.with_name(f"{base.stem}.{rank}.gwatch") for rank in ranks]


def process_names(processes: Sequence[dict[str, Any]]) -> list[str]:
    """ "rank0" where a launcher numbered the processes, else "pid1234"; all different."""
    names = [f"pid{item['pid']}" if item.get("rank") is None else f"rank{item['rank']}" for item in processes]
    full = [
        name if names.count(name) == 1 or item.get("rank") is None else f"{name}-pid{item['pid']}"
        for name, item in zip(names, processes, strict=True)
    ]
    # A process has several results where one program handed it over to the next.
    return [
        name if full.count(name) == 1 else f"{name}-{full[: at + 1].count(name)}" for at, name in enumerate(full)
    ]


def several_there(archive: Path) -> list[Path]:
    """Archives of an earlier run of several processes that this one's may replace; which come is not known yet."""
    stem = glob.escape(archive.stem)
    return sorted(path for kind in ("rank", "pid") for path in archive.parent.glob(f"{stem}.{kind}*.gwatch"))


def refuse_existing(paths: Sequence[Path], force: bool) -> None:
    """Raises TraceError ``[output-exists]`` before the program runs."""
    for path in paths:
        if path.exists() and not force:
            raise TraceError(
                "output-exists", f"{path} is there already", "--force replaces it, -o names another file"
            )
        if not os.access(path.parent if str(path.parent) else ".", os.W_OK) and path.parent.exists():
            raise TraceError("output-folder", f"{path.parent} is not writable", "-o names another file")
