"""The process around a trace: hooks that cost nothing, errors that leave nothing behind, threads, files, sanitizers."""

from __future__ import annotations

import os
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
from gpu_checks.frameworks import triton_matmul
from gpu_checks.matmul import SIZE, TILE, Product, loop_index
from gpu_checks.support import MATMUL, PROGRAM, ROOT, Facts, check, same, trace
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
    """Negative control: this check must fail a record whose election is used before it is there."""
    product, blocks = Product(), SIZE // TILE
    expected = SIZE * SIZE // 32 * (SIZE // TILE)
    good = plan_trace(
        MATMUL.cubin, "matmul", [SassTraceSite(loop_index(), warp_level=True)], clock="sm", depth=32
    ).data
    seen = {}
    for name, image in (("good", good), ("broken", with_short_election(good))):
        with Launcher(image) as launcher:
            launcher.launch((blocks, blocks), (TILE, TILE), (product.a, product.b, product.c, np.int32(SIZE)))
            decoded = launcher.collect()
        seen[name] = len(decoded.records) + int(decoded.dropped.sum())
    assert seen["good"] == expected, seen
    assert seen["broken"] != expected, "a record with a broken stall passed"
    return {**seen, "expected": expected}


def with_short_election(image: bytes) -> bytes:
    """A patched matmul in which the store's guard is read 3 cycles after the election instead of 13."""
    definition = Cubin.from_bytes(image).get_kerneldef_by_name("matmul")
    texts = [i.str(flatten=True) for i in definition.list_instructions]
    elect = next(i for i, text in enumerate(texts) if text.startswith("ELECT"))
    store = next(i for i in range(elect, len(texts)) if "STG.E.EF" in texts[i])
    for i in range(elect, store):
        word = int(definition.words[i][0]) | int(definition.words[i][1]) << 64
        # Stall 1 and "stay": the shortest distance the control word can say.
        short = (word & ~(0x1F << 105)) | 1 << 105 | 1 << 109
        assert image.count(word.to_bytes(16, "little")) == 1
        image = image.replace(word.to_bytes(16, "little"), short.to_bytes(16, "little"))
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

    product, multiply = Product(), triton_matmul(512)
    plain = product().get()
    workers = [guard(train), guard(train), guard(load), guard(hold), guard(lambda: (multiply(), None))]
    for worker in workers:
        worker.start()
    end = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < end and not stop.is_set():
        records = trace(product, "matmul", [SassTraceSite(loop_index())])["records"]
        assert len(records) == SIZE * SIZE * (SIZE // TILE)
        same("output beside other threads", plain, product.c.get())
        counts["traces"] += 1
    stop.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "a thread never came back: deadlock"
    assert not failures, failures
    return dict(counts, seconds=SOAK_SECONDS, cpus=os.cpu_count())
