"""The process around a trace: hooks that cost nothing, errors that leave nothing behind, threads, files, sanitizers."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import torch

import gwatch.libpygwatch as pygwatch
from gpu_checks.frameworks import triton_sum
from gpu_checks.matmul import SIZE, TILE, Product, loop_index
from gpu_checks.support import MATMUL, PROGRAM, ROOT, Facts, check, same, trace
from gpu_checks.values import Trips, loop_counter
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.capture import hooks
from gwatch.cuda.launcher import Launcher
from gwatch.cuda.xtrace import SassTraceSite
from gwatch.rewrite.trace import plan_trace

SOAK_SECONDS = 0.0


def patched_matmul(folder: str) -> Path:
    """The matmul cubin with a record in its tile loop, as a file."""
    path = Path(folder) / "matmul.patched.cubin"
    path.write_bytes(
        plan_trace(MATMUL.cubin, "matmul", [SassTraceSite(loop_index())], clock="sm", depth=32).data
    )
    return path


@check("launcher")
def patched_file_armed_and_unarmed() -> Facts:
    product = Product()
    plain = product().get()
    blocks, times = SIZE // TILE, {}
    with tempfile.TemporaryDirectory() as folder:
        original, patched = Launcher(MATMUL.path), Launcher(patched_matmul(folder))
        with original, patched:
            arguments = (product.a, product.b, product.c, np.int32(SIZE))
            for name, launcher, armed in [
                ("plain", original, False),
                ("unarmed", patched, False),
                ("armed", patched, True),
            ]:
                best = []
                for _ in range(7):
                    product.c[...] = 0
                    launcher.launch((blocks, blocks), (TILE, TILE), arguments, trace=armed)
                    best.append(launcher.duration_ms())
                    same(f"{name} output", plain, product.c.get())
                times[name] = float(np.median(best))
            decoded = patched.collect()
            assert len(decoded.records) == SIZE * SIZE * (SIZE // TILE)
    armed_cost, idle_cost = times["armed"] - times["plain"], times["unarmed"] - times["plain"]
    assert idle_cost <= 0.5 * armed_cost, f"unarmed costs {idle_cost:.4f} ms of {armed_cost:.4f} ms armed"
    return {name: round(value, 4) for name, value in times.items()}


@check("process")
def hooks_cost_nothing_to_other_launches() -> Facts:
    x = torch.zeros(64, device="cuda")

    def thousand() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            x.add_(1)
        elapsed = time.perf_counter() - start
        torch.cuda.synchronize()
        return elapsed * 1e3  # µs a launch

    def median() -> float:
        return float(np.median([thousand() for _ in range(15)]))

    thousand()
    without = median()
    pygwatch.init_cupti_hooks()
    try:
        hooked = median()
    finally:
        pygwatch.shutdown_capsule()
    after = median()
    assert not hooks.installed
    assert hooked - without <= 2.0, f"{hooked - without:.2f} µs a launch"
    return {"plain_us": round(without, 2), "hooked_us": round(hooked, 2), "after_us": round(after, 2)}


@check("process")
def an_exception_in_fn_leaves_nothing_behind() -> Facts:
    product, turns = Product(), [0]

    def run() -> None:
        turns[0] += 1
        product()
        if turns[0] == 3:
            raise RuntimeError("from fn")

    try:
        trace(run, "matmul", [SassTraceSite(loop_index())])
    except RuntimeError as error:
        assert str(error) == "from fn"
    else:
        raise AssertionError("the exception was swallowed")
    assert not hooks.installed
    plain = product().get()
    records = trace(product, "matmul", [SassTraceSite(loop_index())])["records"]
    same("output afterwards", plain, product.c.get())
    return {"passes_before": turns[0], "records_afterwards": len(records)}


@check("process")
def a_broken_stall_is_noticed() -> Facts:
    """Negative control: a register recorded one cycle after it was written must come out wrong, and be seen to."""
    work = Trips()
    at, match = loop_counter()
    register = int(next(group for group in match.groups() if group))
    plan = plan_trace(
        PROGRAM.cubin, "trips_kernel", [SassTraceSite(at + 1, value_reg=register)], clock="sm", depth=64
    )
    wrong = {}
    for name, image in (("good", plan.data), ("broken", hurried(plan.data, register))):
        with Launcher(image, "trips_kernel") as launcher:
            launcher.launch(work.grid, work.block, (work.trips, work.table, work.out))
            records = launcher.collect().records
        same("trips output", work.expected(), work.out.get())
        assert len(records) == int(work.trips.get().sum())
        # The site is behind the increment.
        wrong[name] = int((records["value"] != records["sequence"] + 1).sum())
    assert wrong["good"] == 0, wrong
    assert wrong["broken"] > 0, "a value read too early passed"
    return {"wrong_values": wrong["broken"]}


def hurried(image: bytes, register: int) -> bytes:
    """A patched trips_kernel in which a record copies ``register`` right behind the instruction that writes it."""
    definition = Cubin.from_bytes(image).get_kerneldef_by_name("trips_kernel")
    texts = [i.str(flatten=True) for i in definition.list_instructions]
    copy = next(i for i, text in enumerate(texts) if re.match(rf"MOV R\d+, R{register}\b", text))
    written = max(i for i in range(copy) if re.match(rf"VIADD R{register}, |IADD3 R{register}, ", texts[i]))
    for i in range(written, copy):
        word = int(definition.words[i][0]) | int(definition.words[i][1]) << 64
        # Stall 1 and "stay": the shortest distance the control word can say.
        short = (word & ~(0x1F << 105)) | 1 << 105 | 1 << 109
        # The untouched copy of the code may hold the same word; only the first one is in the instrumented part.
        image = image.replace(word.to_bytes(16, "little"), short.to_bytes(16, "little"), 1)
    return image


@check("process")
def memcheck_is_clean_on_a_patched_file() -> Facts:
    with tempfile.TemporaryDirectory() as folder:
        path = patched_matmul(folder)
        script = textwrap.dedent(f"""
            import sys
            sys.path[:0] = [{str(ROOT)!r}]
            import numpy as np
            from gwatch.cuda.launcher import Launcher
            n = 64
            a = np.ones((n, n), np.float32); b = np.ones((n, n), np.float32); c = np.zeros((n, n), np.float32)
            with Launcher({str(path)!r}) as launcher:
                launcher.launch((n // 16, n // 16), (16, 16), (a, b, c, np.int32(n)))
                decoded = launcher.collect()
            assert (c == n).all() and len(decoded.records) == n * n * (n // 16), len(decoded.records)
            print("RAN", len(decoded.records))
        """)
        result = subprocess.run(
            [
                "compute-sanitizer",
                "--tool",
                "memcheck",
                "--error-exitcode",
                "9",
                sys.executable,
                "-c",
                script,
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    summary = [line for line in result.stdout.splitlines() if "ERROR SUMMARY" in line]
    assert result.returncode == 0 and "RAN" in result.stdout, (result.stdout + result.stderr)[-600:]
    return {"summary": summary[0].strip("= ") if summary else "?"}


@check("process")
def soak_many_threads() -> Facts:
    """Autograd workers, module loads, a thread that holds the GIL, and traces on top: no deadlock, nothing lost."""
    stop, failures, counts = threading.Event(), [], {"steps": 0, "loads": 0, "traces": 0, "spins": 0}

    def guard(body):  # type: ignore[no-untyped-def]
        def loop() -> None:
            try:
                while not stop.is_set():
                    body()
            except BaseException as error:
                failures.append(repr(error))
                stop.set()

        return threading.Thread(target=loop, daemon=True)

    def train() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                model(torch.randn(32, 64, device="cuda")).square().mean().backward()
                counts["steps"] += 1
            torch.cuda.current_stream().synchronize()

    def load() -> None:
        PROGRAM.fresh_module().get_function("ragged_kernel")
        counts["loads"] += 1

    def hold() -> None:
        sum(range(200_000))
        counts["spins"] += 1

    work, multiply = Trips(), triton_sum(100_003)
    site = PROGRAM.find("trips_kernel", r"LDG", "load")[0][0]
    visits = int(work.trips.get().sum())
    expected = work.expected()
    workers = [guard(train), guard(train), guard(load), guard(hold), guard(lambda: (multiply(), None))]
    # A deadlock shows every thread's stack instead of hanging silently.
    faulthandler.dump_traceback_later(SOAK_SECONDS + 90, exit=True)
    try:
        for worker in workers:
            worker.start()
        end = time.monotonic() + SOAK_SECONDS
        while time.monotonic() < end and not stop.is_set():
            result = trace(work, "trips_kernel", [SassTraceSite(site)], sass_per_thread_records=64)
            assert len(result["records"]) == visits and result["dropped"] == 0
            same("output beside other threads", expected, work.out.get())
            counts["traces"] += 1
        stop.set()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive(), "a thread never came back: deadlock"
    finally:
        stop.set()
        faulthandler.cancel_dump_traceback_later()
    assert not failures, failures
    return dict(counts, seconds=SOAK_SECONDS, cpus=os.cpu_count())
