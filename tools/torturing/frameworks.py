"""The torture on kernels that frameworks launch: PyTorch's own, Triton's, CuPy's. Traced in place, outputs compared.

Only open code: patterns name PyTorch's own kernels, never those of closed libraries.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import numpy as np
import torch
import triton
import triton.language as tl

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.cuda.binary.constants import globals_reached
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import MAX_DYNAMIC_SHARED, driver
from gwatch.cuda.launchview import LaunchView, Replacement
from gwatch.cuda.xtrace import capture_cubin, do_trace
from gwatch.errors import GWatchError, LaunchError, TraceError
from gwatch.rewrite.trace import SassTraceSite
from torturing.cases import Case, make_case
from torturing.counting import COUNTS, FIRST, agreed, countable, counting_image, not_executed
from torturing.gpu import Tally, Watchdog
from torturing.proof import Outcome, buildable

SLOWEST = 90.0
"""Seconds that one case may take, compilers included."""


@dataclass(frozen=True)
class Work:
    """A function that launches one kernel whose name matches ``pattern``, and returns its output."""

    name: str
    pattern: str
    fn: Callable[[], Any]


@triton.jit
def row_softmax(x, y, n, WIDTH: tl.constexpr):
    """A softmax over rows."""
    row = tl.program_id(0)
    columns = tl.arange(0, WIDTH)
    value = tl.load(x + row * n + columns, mask=columns < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * n + columns, value / tl.sum(value, 0), mask=columns < n)


@triton.jit
def product(a, b, c, n, BLOCK: tl.constexpr):
    """A square matrix product."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, n, BLOCK):
        left = tl.load(a + rows[:, None] * n + k + inner[None, :])
        right = tl.load(b + (k + inner)[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


RAW = cupy.RawKernel(
    """
extern "C" __global__ void collatz(const unsigned *in, unsigned *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = in[t], steps = 0;
    while (v > 1 && steps < n) { v = v & 1 ? 3 * v + 1 : v / 2; ++steps; }
    out[t] = steps * 65536 + (v & 65535);
}
""",
    "collatz",
)


def works() -> Iterator[Work]:
    """All of them, on data made from one seed."""
    torch.manual_seed(5)
    device = "cuda"
    x = torch.randn(96, 700, device=device)
    half = torch.randn(512, 512, device=device, dtype=torch.float16)
    whole = torch.randint(0, 1 << 20, (64, 1000), device=device)
    index = torch.randint(0, 1000, (64, 1000), device=device)
    image = torch.randn(4, 8, 40, 40, device=device)
    target = torch.randint(0, 700, (96,), device=device)
    logs = torch.log_softmax(x, -1)
    functional = torch.nn.functional
    yield Work("softmax", "(?i)softmax", lambda: torch.softmax(x, -1))
    yield Work("layer_norm", "(?i)layer_?norm", lambda: functional.layer_norm(x, (700,)))
    yield Work("gelu", "(?i)gelu", lambda: functional.gelu(x))
    yield Work("sort", "(?i)sort", lambda: torch.sort(x, -1)[0])
    yield Work("cumsum", "(?i)scan", lambda: torch.cumsum(whole, -1))
    yield Work("topk", "(?i)topk|sbtopk", lambda: torch.topk(x, 9)[0])
    yield Work("scatter", "(?i)scatter", lambda: torch.zeros_like(whole).scatter_add_(1, index, whole))
    yield Work("gather", "(?i)gather", lambda: torch.gather(whole, 1, index))
    yield Work("sum", "(?i)reduce", lambda: x.sum(-1))
    yield Work("max_pool", "(?i)max_?pool", lambda: functional.max_pool2d(image, 3))
    yield Work("nll", "(?i)nll", lambda: functional.nll_loss(logs, target))
    yield Work(
        "embedding", "(?i)index|embedding|gather", lambda: functional.embedding(target, x.t().contiguous())
    )
    yield Work(
        "upsample", "(?i)upsample", lambda: functional.interpolate(image, scale_factor=2, mode="bilinear")
    )
    yield Work("sine", "(?i)sin", lambda: torch.sin(x * 100))
    yield Work("erfinv", "(?i)erfinv", lambda: torch.erfinv(torch.tanh(x)))

    def softmax() -> torch.Tensor:
        out = torch.empty_like(x)
        row_softmax[(96,)](x, out, 700, WIDTH=1024)
        return out

    def matrix() -> torch.Tensor:
        out = torch.empty_like(half)
        product[(8, 8)](half, half, out, 512, BLOCK=64)
        return out

    def collatz() -> cupy.ndarray:
        out = cupy.zeros(4096, np.uint32)
        RAW((32,), (128,), (cupy.arange(4096, dtype=np.uint32) * 7 + 1, out, np.int32(90)))
        return out

    yield Work("triton_softmax", "row_softmax", softmax)
    yield Work("triton_product", "^product", matrix)
    yield Work("cupy_raw", "^collatz$", collatz)


def raw_bytes(value: Any) -> bytes:
    """The bytes of an output."""
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else cupy.asnumpy(value)
    return bytes(np.ascontiguousarray(array).tobytes())


class Counting:
    """Sends the launches of a kernel to a copy of it that counts the visits of ``sites``."""

    def __init__(self, cubin: Cubin, kernel: KernelDef, sites: Sequence[SassTraceSite]) -> None:
        """Raises what the rewriter refuses with, and TraceError ``[variables]`` for a kernel that uses variables of its
        module, of which a copy would have its own.
        """
        if any(item.mutable for item in globals_reached(cubin, kernel)):
            raise TraceError("variables", f"{kernel.name} uses variables of its module")
        self.driver = driver()
        self.kernel, self.sites = kernel.name, sites
        image = counting_image(cubin, kernel.name, sites)
        with hooks.quiet():
            self.library = self.driver.load_library(image)
            handle = self.driver.library_kernel(self.library, kernel.name)
            self.code = Replacement(handle, self.driver.kernel_function(handle))

    def wants(self, symbol: str) -> bool:
        """Whether it is the counted kernel's name."""
        return symbol == self.kernel

    def enter(self, view: LaunchView) -> None:
        """Send the launch to the counting code."""
        shared = view.record(0).shared_bytes
        if shared > 48 << 10:
            self.driver.set_kernel_attribute(self.code.kernel, MAX_DYNAMIC_SHARED, shared, 0)
        view.redirect(self.code)

    def leave(self, view: LaunchView, status: int) -> None:
        """Nothing to do."""

    def count(self, fn: Callable[[], Any]) -> list[int]:
        """The lanes that visit each site while ``fn`` runs."""
        size = FIRST + 4 * len(self.sites)
        counts = self.driver.allocate(size)
        try:
            where = self.driver.library_global(self.library, COUNTS)
            assert where is not None
            self.driver.zero(counts, size)
            self.driver.write(where[0], counts.to_bytes(8, "little"))
            with hooks.observe(self):
                fn()
                torch.cuda.synchronize()
            found = np.frombuffer(self.driver.read(counts + FIRST, 4 * len(self.sites)), np.uint32)
        finally:
            self.driver.free(counts)
            self.driver.unload_library(self.library)
        return [int(number) for number in found]


def torture_frameworks(
    tally: Tally, seed: int, seconds: float, sites: int, only: str, case: int | None
) -> None:
    """Random sites in each, round and round, until the time is over."""
    begin = time.monotonic()
    watchdog = Watchdog()
    chosen = [work for work in works() if re.search(only, f"frameworks/{work.name}")]
    number = 0
    while chosen and time.monotonic() - begin < seconds and tally.pairs < sites:
        for work in chosen:
            if time.monotonic() - begin > seconds:
                break
            again = f"--frameworks --seed {seed} --only '^frameworks/{work.name}$' --case {number}"
            try:
                watchdog.run(
                    again, partial(_one, tally, work, seed, number if case is None else case), SLOWEST
                )
            except (GWatchError, AssertionError) as error:
                tally.wrong.append(f"{work.name}: {type(error).__name__}: {error}")
                print(
                    f"WRONG {work.name}: {error}\n  again: python tools/torture.py {again}",
                    file=sys.stderr,
                    flush=True,
                )
        number += 1
        if case is not None:
            break


def _one(tally: Tally, work: Work, seed: int, number: int) -> None:
    expected = raw_bytes(work.fn())
    torch.cuda.synchronize()
    try:
        cubin, kernel = capture_cubin(work.fn, work.pattern)
        case = make_case(cubin, kernel, seed, work.name, number, snippets=False)
    except GWatchError as error:
        tally.refused[error.code] += 1
        tally.reasons[error.code] = f"{work.name}: {error}"
        return
    outcome = Outcome()
    groups = buildable(case, list(range(len(case))), outcome)
    tally.refused.update(outcome.refused)
    tally.reasons.update(outcome.reasons)
    tally.wrong += outcome.wrong
    for group, _ in groups:
        part = case.part(group)
        sites = countable(part.sites)
        try:
            counted = Counting(cubin, kernel, sites).count(work.fn)
        except GWatchError as error:
            if isinstance(error, LaunchError):
                raise
            tally.refused[f"counter: {error.code}"] += 1
            counted = None
        _traced(tally, work, part, sites, counted)
        if raw_bytes(work.fn()) != expected:
            raise AssertionError("the untraced output changed afterwards")


def _traced(
    tally: Tally, work: Work, case: Case, sites: Sequence[SassTraceSite], counted: list[int] | None
) -> None:
    """One trace; its records against the visits ``counted`` (None: they could not be)."""
    try:
        result = do_trace(
            fn=work.fn,
            kernel_name_pattern=f"^{re.escape(case.kernel)}$",
            instrumentation_tier="sass",
            sass_trace_sites=list(sites),
            clock_type=case.clock,
            sass_per_thread_records=case.depth,
            keep=case.keep,
            passes=1,
        )
    except TraceError as error:
        if error.code != "no-records":
            raise
        tally.idle[not_executed(counted)] += len(sites)
        return
    if result["outputs"] != "identical":
        raise AssertionError(f"outputs: {result['outputs']}")
    launches = result["launches"]
    tally.records += sum(len(launch["records"]) for launch in launches)
    tally.pairs += len(sites)
    tally.cases[work.name] += 1
    everything = len(launches) == result["launch"]["launches"] and not any(
        launch["sampled"] for launch in launches
    )
    if counted is None or not everything:
        return
    tally.idle["no visit counted"] += counted.count(0)
    tally.counted += agreed(
        sites,
        counted,
        np.concatenate([launch["records"] for launch in launches]),
        sum(launch["dropped"] for launch in launches),
        sum(int(launch["visits"].sum()) for launch in launches),
        any("shared_with" in site for site in result["sites"]),
    )
