"""The torture on a GPU: the same launch plain, patched and armed, patched and not armed, and with a counter snippet."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gwatch.cuda.arming import PatchedKernel, Ring
from gwatch.cuda.binary import Cubin
from gwatch.cuda.driver import MAX_DYNAMIC_SHARED, driver
from gwatch.cuda.launcher import ring_layout
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.errors import GWatchError, LaunchError, ToolError
from gwatch.rewrite.trace import TracePlan, plan_trace
from torturing.cases import Case, make_case, rng_of
from torturing.counting import COUNTS, FIRST, agreed, countable, counting_image
from torturing.generate import source
from torturing.proof import Outcome, buildable

WORDS = 1 << 16
TRIPS = 24
HANG_SECONDS = 20.0
RING_BYTES = 1 << 28
DEEP = 1024
_COMMENT = re.compile(r"^// TORTURE (\w+)(.*)$", re.MULTILINE)


@dataclass
class Shape:
    """How a kernel is launched. ``spins``: it waits in loops, so visits depend on time."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    shared: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    spins: bool = False

    @classmethod
    def parse(cls, text: str) -> Shape:
        """``grid=3,2 block=64 shared=1024 cluster=4 cooperative spins``."""
        shape = cls()
        for word in text.split():
            name, _, value = word.partition("=")
            if name in ("grid", "block", "cluster"):
                numbers = [int(item) for item in value.split(",")]
                setattr(shape, name, tuple(numbers + [1] * (3 - len(numbers))))
            elif name == "shared":
                shape.shared = int(value)
            else:
                setattr(shape, name, True)
        return shape


@dataclass
class Workload:
    """A compiled file: its cubin and the launch of each kernel."""

    name: str
    cubin: Cubin
    shapes: dict[str, Shape]


def compile_source(name: str, text: str, folder: Path) -> Workload:
    """Compile CUDA C++ for the GPU at hand. Raises ToolError ``[compiler]``."""
    path = folder / f"{name}.cu"
    path.write_text(text)
    target = path.with_suffix(".cubin")
    major, minor = driver().device_capability(0)
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    command = [
        "nvcc",
        "-cubin",
        f"-arch={arch}",
        "-w",
        "-std=c++17",
        "-lineinfo",
        "-o",
        str(target),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError("compiler", f"nvcc failed on {path}: {done.stderr[-800:]}")
    return Workload(
        name,
        Cubin.from_file(target),
        {match[1]: Shape.parse(match[2]) for match in _COMMENT.finditer(text)},
    )


class Watchdog:
    """Ends the process when a launch takes too long: a hung GPU can't be talked to any more."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.what = ""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(0.25)
            deadline = self.deadline
            if deadline is not None and time.monotonic() > deadline:
                print(f"HANG: {self.what}", file=sys.stderr, flush=True)
                print(json.dumps({"wrong": 1, "hang": self.what}), flush=True)
                os._exit(1)

    def run(self, what: str, work: Callable[[], Any], seconds: float = HANG_SECONDS) -> Any:
        """``work()``, at most so long."""
        self.what, self.deadline = what, time.monotonic() + seconds
        try:
            return work()
        finally:
            self.deadline = None


class Device:
    """Input and output buffers and launches of whole images."""

    def __init__(self) -> None:
        self.driver = driver()
        self.driver.use_device(0)
        self.source = self.driver.allocate(4 * WORDS)
        self.target = self.driver.allocate(4 * WORDS)
        self.counts = self.driver.allocate(4 * DEEP)
        self.watchdog = Watchdog()

    def launch(self, handle: int, shape: Shape, given: bytes) -> bytes:
        """Run a kernel on ``given`` input words; its output."""
        gpu = self.driver
        gpu.write(self.source, given)
        gpu.zero(self.target, 4 * WORDS)
        if shape.shared > 48 << 10:
            gpu.set_kernel_attribute(handle, MAX_DYNAMIC_SHARED, shape.shared, 0)
        values = (ctypes.c_uint64(self.source), ctypes.c_uint64(self.target), ctypes.c_int(TRIPS))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        gpu.launch(
            handle,
            shape.grid,
            shape.block,
            ctypes.addressof(pointers),
            shared=shape.shared,
            cluster=shape.cluster,
            cooperative=shape.cooperative,
        )
        gpu.synchronize()
        return bytes(gpu.read(self.target, 4 * WORDS))

    def plain(self, image: bytes, kernel: str, shape: Shape, given: bytes) -> bytes:
        """Load an image, run a kernel once, unload it."""
        library = self.driver.load_library(image)
        try:
            return self.launch(self.driver.library_kernel(library, kernel), shape, given)
        finally:
            self.driver.unload_library(library)


@dataclass
class Tally:
    """What the GPU part counted."""

    pairs: int = 0
    records: int = 0
    counted: int = 0
    idle: Counter[str] = field(default_factory=Counter)
    """Sites that left no record, by what an independent count says."""
    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class GpuTorture:
    """Runs cases of workloads and keeps the tally."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device, self.seed = device, seed
        self.tally = Tally()

    def case(self, workload: Workload, kernel: str, number: int) -> None:
        """One case: build, run, compare."""
        shape = workload.shapes[kernel]
        rng = rng_of(self.seed, workload.name, kernel, number)
        again = f"--gpu --seed {self.seed} --only '^{workload.name}/{kernel}$' --case {number}"
        given = np.random.default_rng(rng.randrange(1 << 32)).integers(0, 1 << 32, WORDS, np.uint32).tobytes()
        outcome = Outcome()
        try:
            definition = workload.cubin.get_kerneldef_by_name(kernel)
            case = make_case(workload.cubin, definition, self.seed, workload.name, number)
        except GWatchError as error:
            self._refuse(error.code, f"{workload.name}/{kernel}: {error}")
            return
        groups = buildable(case, list(range(len(case))), outcome)
        for code, count in outcome.refused.items():
            self.tally.refused[code] += count
        self.tally.reasons.update(outcome.reasons)
        for sentence in outcome.wrong:
            self._wrong(f"{workload.name}/{kernel}: {sentence}", again)
        if not groups:
            return
        expected = self._expected(workload, kernel, shape, given, again)
        for group, _ in groups:
            part = case.part(group)
            try:
                self._run(part, shape, given, expected, again)
            except (GWatchError, AssertionError) as error:
                self._wrong(f"{workload.name}/{kernel}: {type(error).__name__}: {error}", again)
                if isinstance(error, LaunchError):
                    raise
            self.tally.pairs += len(part)
            self.tally.cases[workload.name] += 1

    def _refuse(self, code: str, reason: str) -> None:
        self.tally.refused[code] += 1
        self.tally.reasons[code] = reason

    def _wrong(self, sentence: str, again: str) -> None:
        self.tally.wrong.append(sentence)
        print(f"WRONG {sentence}\n  again: python tools/torture.py {again}", file=sys.stderr, flush=True)

    def _expected(self, workload: Workload, kernel: str, shape: Shape, given: bytes, again: str) -> bytes:
        def run() -> bytes:
            return self.device.plain(workload.cubin.data, kernel, shape, given)

        first = self.device.watchdog.run(f"the original! {again}", run)
        if self.device.watchdog.run(f"the original! {again}", run) != first:
            self._wrong(f"{workload.name}/{kernel} itself gives two outputs", again)
        if not any(first):
            self._wrong(f"{workload.name}/{kernel} itself gives no output", again)
        return first

    def _run(self, case: Case, shape: Shape, given: bytes, expected: bytes, again: str) -> None:
        device = self.device
        if case.snippets:
            _, _, image = case.build()
            got = device.watchdog.run(again, lambda: device.plain(image, case.kernel, shape, given))
            same("output with snippets", expected, got)
            return
        # Deep rings, so that nothing is lost where that can be had; warp-level records count their lanes.
        sites = countable(case.sites)
        depth = case.depth if case.depth <= 8 else DEEP
        try:
            plan = plan_trace(case.cubin, case.kernel, sites, clock=case.clock, keep=case.keep, depth=depth)
        except GWatchError:
            sites, depth = case.sites, case.depth
            plan = plan_trace(case.cubin, case.kernel, sites, clock=case.clock, keep=case.keep, depth=depth)
        patched = PatchedKernel(device.driver, plan.data, plan.site_map)
        try:
            self._patched(case, sites, patched, plan, shape, given, expected, again)
        finally:
            device.driver.unload_library(patched.library)

    def _patched(
        self,
        case: Case,
        sites: Sequence[Any],
        patched: PatchedKernel,
        plan: TracePlan,
        shape: Shape,
        given: bytes,
        expected: bytes,
        again: str,
    ) -> None:
        device = self.device
        got = device.watchdog.run(again + " (unarmed)", lambda: device.launch(patched.kernel, shape, given))
        same("output of the unarmed kernel", expected, got)
        layout, chosen = ring_layout(plan.site_map, shape.grid, shape.block, RING_BYTES, None)
        ring = Ring(device.driver, layout, chosen)
        try:
            ring.clear()
            patched.arm(ring)
            got = device.watchdog.run(again + " (armed)", lambda: device.launch(patched.kernel, shape, given))
            data = ring.read()
        finally:
            patched.disarm()
            ring.free()
        same("output of the traced kernel", expected, got)
        decoded = decode_ring(data, layout, plan.site_map)
        made = int(decoded.visits.sum())
        kept = len(decoded.records)
        if kept + decoded.dropped_total != made:
            raise AssertionError(f"{kept} records and {decoded.dropped_total} dropped, but {made} made")
        self.tally.records += kept
        if not shape.spins and not layout.sampled:
            dropped, shared = decoded.dropped_total, plan.site_map.shares
            self._counts(case, sites, shape, given, decoded.records, dropped, made, shared, again)

    def _counts(
        self,
        case: Case,
        sites: Sequence[Any],
        shape: Shape,
        given: bytes,
        records: Any,
        dropped: int,
        made: int,
        shared: bool,
        again: str,
    ) -> None:
        """The records against an independent count of the visits of each site."""
        try:
            counted = self._visits(case, sites, shape, given, again)
        except GWatchError as error:
            if isinstance(error, LaunchError):
                raise
            self.tally.refused[f"counter: {error.code}"] += 1
            return
        self.tally.counted += agreed(sites, counted, records, dropped, made, shared)

    def _visits(self, case: Case, sites: Sequence[Any], shape: Shape, given: bytes, again: str) -> list[int]:
        device = self.device
        library = device.driver.load_library(counting_image(case.cubin, case.kernel, sites))
        try:
            where = device.driver.library_global(library, COUNTS)
            assert where is not None
            device.driver.zero(device.counts, 4 * DEEP)
            device.driver.write(where[0], device.counts.to_bytes(8, "little"))
            handle = device.driver.library_kernel(library, case.kernel)
            device.watchdog.run(again + " (counting)", lambda: device.launch(handle, shape, given))
            counts = np.frombuffer(device.driver.read(device.counts + FIRST, 4 * len(sites)), np.uint32)
        finally:
            device.driver.unload_library(library)
        found: list[int] = counts.tolist()
        return found


def same(name: str, wanted: bytes, got: bytes) -> None:
    """Bit-by-bit equality, with the first difference in the message."""
    if wanted != got:
        a, b = np.frombuffer(wanted, np.uint32), np.frombuffer(got, np.uint32)
        where = np.flatnonzero(a != b)
        raise AssertionError(
            f"{name}: {len(where)} words differ, first at {where[0]}: {a[where[0]]:#x} against {b[where[0]]:#x}"
        )


def torture_gpu(args: argparse.Namespace) -> int:
    """Run cases until the time is over. Exit codes as of the tool."""
    begin = time.monotonic()
    try:
        device = Device()
    except ToolError as error:
        print(error, file=sys.stderr)
        return 2
    torture = GpuTorture(device, args.seed)
    tally = torture.tally
    seconds = args.seconds or 240.0
    if args.frameworks:
        from torturing.frameworks import torture_frameworks

        torture_frameworks(tally, args.seed, seconds, args.sites, args.only, args.case)
        return report(device, tally, args, begin)
    with tempfile.TemporaryDirectory(prefix="gwatch-torture-") as name:
        folder = Path(name)
        fixed = compile_source(
            "kernels", (Path(__file__).resolve().parent / "kernels.cu").read_text(), folder
        )
        workloads = [fixed]
        number = generated = 0
        try:
            while time.monotonic() - begin < seconds and tally.pairs < args.sites:
                if number % 8 == 1 or (generated == 0 and "kernels" not in args.only):
                    generated += 1
                    made = f"generated{args.seed}_{generated}"
                    workloads.append(compile_source(made, source(args.seed * 1000 + generated), folder))
                    workloads = [fixed, *workloads[-2:]]
                tried = 0
                for workload in workloads:
                    for kernel in workload.shapes:
                        if time.monotonic() - begin > seconds or not re.search(
                            args.only, f"{workload.name}/{kernel}"
                        ):
                            continue
                        tried += 1
                        torture.case(workload, kernel, number if args.case is None else args.case)
                number += 1
                if args.case is not None and tried:
                    break
        except LaunchError as error:
            print(f"the GPU can't be used any more: {error}", file=sys.stderr)
            tally.wrong.append(str(error))
    return report(device, tally, args, begin)


def report(device: Device, tally: Tally, args: argparse.Namespace, begin: float) -> int:
    """Print the result; the exit code."""
    result = {
        "gpu": device.driver.device_name(0),
        "seed": args.seed,
        "seconds": round(time.monotonic() - begin, 1),
        "cases": dict(tally.cases),
        "pairs": tally.pairs,
        "records": tally.records,
        "sites_counted_exactly": tally.counted,
        "sites_without_records": dict(tally.idle),
        "refused": dict(tally.refused),
        "reasons": tally.reasons,
        "wrong": len(tally.wrong),
        "first_wrong": tally.wrong[:10],
    }
    print(json.dumps(result, indent=None if args.json else 1))
    if not tally.pairs:
        return 2
    return 1 if tally.wrong else 0
