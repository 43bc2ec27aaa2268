"""Shared by the checks: the registry, compiled kernels, site look-up, and comparisons that say what differed."""

from __future__ import annotations

import faulthandler
import json
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import gwatch.cuda.binary as gw_binary
from gwatch.cuda.xtrace import do_trace

ROOT = Path(__file__).resolve().parent.parent.parent
Facts = dict[str, Any]


@dataclass
class Check:
    """A named check and the function that runs it."""

    name: str
    group: str
    run: Callable[[], Facts]
    limit: float | None = None
    """Seconds that a stage of it may take; such a check runs in a process of its own."""

    @property
    def title(self) -> str:
        """What ``--only`` is matched with."""
        return f"{self.group}/{self.name}"


CHECKS: list[Check] = []
STAGE, FACTS = "stage: ", "facts: "
_stages: list[float] = []


def check(group: str, limit: float | None = None) -> Callable[[Callable[[], Facts]], Callable[[], Facts]]:
    """Register a function as a check of a group. ``limit``: see :class:`Check`."""

    def register(function: Callable[[], Facts]) -> Callable[[], Facts]:
        CHECKS.append(Check(function.__name__, group, function, limit))
        return function

    return register


def stage(name: str) -> None:
    """Say what a check with a limit does now, and start its time anew; elsewhere nothing happens."""
    if _stages:
        print(f"{STAGE}{name}", flush=True)
        # A kernel that never ends can't be waited for or interrupted: the process ends, with a trace of where.
        faulthandler.dump_traceback_later(_stages[-1], exit=True)


def run_staged(entry: Check) -> int:
    """In the process of a check with a limit: run it and write its facts, or what was wrong; the exit status."""
    assert entry.limit is not None
    _stages.append(entry.limit)
    stage("start")
    try:
        facts = entry.run()
    except Exception as error:  # as in the checks that run without a process
        facts = {"error": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    faulthandler.cancel_dump_traceback_later()
    print(FACTS + json.dumps(facts, default=str), flush=True)
    return int("error" in facts)


def run_in_child(command: list[str], title: str, limit: float) -> Facts:
    """Run ``command``, which runs a check by :func:`run_staged`; stages go to stderr.

    Facts of a failed check hold an "error". Raises RuntimeError with stage and exit status of a child that ended
    early, as it does where a stage takes more than ``limit`` seconds, and TimeoutError where it had to be killed.
    """
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    at, facts, late = "imports", None, threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    def timer(seconds: float) -> threading.Timer:
        made = threading.Timer(seconds, end)
        made.daemon = True
        made.start()
        return made

    watchdog = timer(4 * limit)
    for line in child.stdout:
        if line.startswith(STAGE):
            at = line[len(STAGE) :].strip()
            print(f"     {title}: {at}", file=sys.stderr, flush=True)
            watchdog.cancel()
            # The child's own time comes first: it knows where it is.
            watchdog = timer(limit + 5)
        elif line.startswith(FACTS):
            facts = json.loads(line[len(FACTS) :])
    try:
        status: int | None = child.wait(limit)
    except subprocess.TimeoutExpired:  # a process may need long to leave a kernel that doesn't end
        child.kill()
        status = None
    watchdog.cancel()
    if facts is not None:
        return dict(facts)
    if late.is_set():
        raise TimeoutError(f"killed in stage {at!r}")
    raise RuntimeError(f"ended in stage {at!r} with status {status}; its trace is on stderr")


@dataclass
class Program:
    """A CUDA C++ file compiled to a cubin, with the marked lines of its source."""

    source: Path
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gwatch-check-")))

    @cached_property
    def path(self) -> Path:
        """The cubin, compiled with line information for the H200."""
        path = self.folder / (self.source.stem + ".cubin")
        subprocess.run(
            ["nvcc", "-cubin", "-arch=sm_90", "-lineinfo", "-o", str(path), str(self.source)], check=True
        )
        return path

    @cached_property
    def cubin(self) -> gw_binary.Cubin:
        """The parsed cubin."""
        cubin = gw_binary.Cubin()
        cubin.fill(str(self.path))
        cubin.parse()
        return cubin

    @cached_property
    def module(self) -> Any:
        """A CuPy module of the cubin; loading it happens at the first use, inside a trace or before one."""
        return cupy.RawModule(path=str(self.path))

    def fresh_module(self) -> Any:
        """Another module of the same cubin, loaded now."""
        return cupy.RawModule(path=str(self.path))

    def kernel(self, name: str) -> Any:
        """A launchable kernel."""
        return self.module.get_function(name)

    @cached_property
    def marks(self) -> dict[str, int]:
        """Line number of each "// SITE name" comment."""
        found: dict[str, int] = {}
        for number, line in enumerate(self.source.read_text().splitlines(), 1):
            if match := re.search(r"// SITE (\w+)$", line):
                found[match[1]] = number
        return found

    def indices(self, kernel: str, mark: str) -> list[int]:
        """Instruction indices of the marked line in a kernel, code inlined into it included."""
        definition = self.cubin.get_kerneldef_by_name(kernel)
        found = []
        for i in range(len(definition.list_instructions)):
            pc = 16 * i
            lines = [(definition.map_address_to_line.get(pc) or (None, None))[1]]
            lines += [call.line for call in definition.inlined_at.get(pc, ())]
            if self.marks[mark] in lines:
                found.append(i)
        assert found, f"no instruction of {kernel} comes from line {self.marks[mark]} ({mark})"
        return found

    def find(self, kernel: str, pattern: str, mark: str | None = None) -> list[tuple[int, re.Match[str]]]:
        """(index, match) of the instructions whose text matches, in the whole kernel or on a marked line."""
        definition = self.cubin.get_kerneldef_by_name(kernel)
        texts = [instruction.str(flatten=True) for instruction in definition.list_instructions]
        among = range(len(texts)) if mark is None else self.indices(kernel, mark)
        return [(i, match) for i in among if (match := re.search(pattern, texts[i]))]


PROGRAM = Program(ROOT / "tests/gpu/kernels/checks.cu")
MATMUL = Program(ROOT / "examples/cuda/trace/matmul.cu")


def trace(fn: Callable[[], Any], kernel: str, sites: list[Any], **options: Any) -> Any:
    """``do_trace`` of the kernel of exactly this name, with few passes: these checks look at records,
    not at times.
    """
    options.setdefault("passes", 1)
    return do_trace(
        fn=fn,
        kernel_name_pattern=f"^{kernel}$",
        instrumentation_tier="sass",
        sass_trace_sites=sites,
        **options,
    )


def same(name: str, left: Any, right: Any) -> None:
    """Bit-for-bit equality of two arrays, with the first difference in the message."""
    a, b = np.asarray(left), np.asarray(right)
    assert a.shape == b.shape, f"{name}: shape {a.shape} against {b.shape}"
    assert a.dtype == b.dtype, f"{name}: {a.dtype} against {b.dtype}"
    if a.tobytes() != b.tobytes():
        where = np.flatnonzero(a.reshape(-1) != b.reshape(-1))
        first = where[0] if len(where) else 0
        raise AssertionError(
            f"{name}: {len(where)} of {a.size} differ, first at {first}: "
            f"{a.reshape(-1)[first]} against {b.reshape(-1)[first]}"
        )


def global_threads(records: Any, block_size: int) -> Any:
    """Linear thread index of the whole (one-dimensional) launch for each record."""
    return records["block"][:, 0].astype(np.int64) * block_size + records["thread"]
