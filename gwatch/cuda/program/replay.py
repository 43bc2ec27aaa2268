"""``--verify``: run the very launch that is about to be traced plain and traced, by turns, on the same memory.

All of it happens when the launch call is entered. The device is waited for, the allocations that the launch's
parameters point into and the variables of its module are saved, and after every replay they are put back, so
that the program's own launch finds what it would have found. Launches of other threads are kept waiting: what they
wrote would be undone. Memory that is reached through pointers stored
*in* memory is neither saved nor compared. The replays are timed like do_trace's passes: that is the slowdown of
the records.
"""

from __future__ import annotations

import re
import time

import numpy as np

from gwatch.cuda.driver import Driver
from gwatch.cuda.launchview import LaunchView
from gwatch.cuda.xtrace.outputs import Snapshot, Verdict, compare, pointers_in
from gwatch.cuda.xtrace.passes import Slot
from gwatch.cuda.xtrace.prepare import Target, variables
from gwatch.cuda.xtrace.timing import LaunchTimer

LIMIT = 1 << 30
PASSES = 15
"""Plain and traced replays by turns, after a plain one that warms up."""
SPIN_NS = 300_000
"""A replay's launch is made in Python, and follows a wait for the device."""
BUDGET_SECONDS = 3.0
"""No further turn is begun after this time; saving and restoring much memory takes long."""
# Kernels that wait for a peer GPU (or for another launch) never end when they are run alone.
_PEERS = re.compile(
    r"nccl|nvshmem|multimem|symm_?mem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I
)


def replay(
    driver: Driver,
    view: LaunchView,
    slot: Slot,
    target: Target,
    stream: int,
    timer: LaunchTimer,
    passes: int | None = None,
) -> Verdict:
    """The verdict on a launch whose slot is loaded and armed; its ring is zeroed again in the end.

    ``stream``: gwatch's own stream in the launch's context. ``passes``: turns, however long they take; None:
    :data:`PASSES`, or fewer where they take longer than :data:`BUDGET_SECONDS`. The times of the replays are left in
    the slot's ``plain_ns`` and ``traced_ns``. Raises LaunchError when a replay fails: the memory is put back before.
    """
    reason = _unsuited(view, slot, target)
    if reason:
        return Verdict(f"not checked: {reason}")
    assert slot.patched is not None and slot.ring is not None
    driver.synchronize()
    blocks = _blocks(driver, slot, target)
    if not blocks:
        return Verdict("not checked: the launch's parameters point to no device memory")
    total = sum(size for _, size in blocks.values())
    if total > LIMIT:
        return Verdict(f"not checked: the launch reaches {total} bytes, over the limit of {LIMIT}")
    saved = _save(driver, blocks)
    timer.prepare(slot.context, 1)
    original, patched = slot.seen.launch.handle, slot.patched.kernel
    begin = time.monotonic()
    try:
        _once(driver, view, slot, original, timer)
        plain = [_save(driver, blocks)]
        traced: Snapshot | None = None
        for _ in range(passes or PASSES):
            _put_back(driver, blocks, saved)
            slot.plain_ns += _once(driver, view, slot, original, timer)
            if traced is None:
                plain.append(_save(driver, blocks))
            _put_back(driver, blocks, saved)
            slot.ring.clear(stream)
            slot.traced_ns += _once(driver, view, slot, patched, timer)
            if traced is None:
                traced = _save(driver, blocks)
            if passes is None and time.monotonic() - begin > BUDGET_SECONDS:
                break
    finally:
        _put_back(driver, blocks, saved)
        timer.close(slot.context)
    slot.ring.clear(stream)
    assert traced is not None
    return compare(plain, traced)


def _once(driver: Driver, view: LaunchView, slot: Slot, handle: int, timer: LaunchTimer) -> list[float]:
    """Run the launch with the code of ``handle`` and wait; its time in ns, if it could be taken."""
    arguments, stream = view.again(handle), slot.seen.launch.stream
    assert arguments is not None
    if handle != slot.seen.launch.handle and slot.constants is not None:
        to, source, size = slot.constants
        driver.copy_async(to, source, size, stream)
    pair = timer.before(slot.context, stream)
    driver.repeat(view.api, arguments)
    if pair is not None:
        timer.after(pair, stream)
    driver.synchronize()
    taken = None if pair is None else timer.take(slot.context, pair)
    return [] if taken is None else [taken]


def _unsuited(view: LaunchView, slot: Slot, target: Target) -> str | None:
    if slot.seen.captured or view.again(0) is None:
        return "the launch is recorded into a graph"
    if slot.seen.launch.parameters is None:
        return "the launch passes its parameters in a way that cannot be read"
    if _PEERS.search(target.symbol):
        return f"{target.symbol} may wait for a peer GPU, and a replay would wait for ever"
    return None


def _blocks(driver: Driver, slot: Slot, target: Target) -> dict[str, tuple[int, int]]:
    """(address, bytes) of what the launch reaches: allocations of its parameters, variables of its module."""
    found: dict[str, tuple[int, int]] = {}
    for name, address in pointers_in(slot.seen.launch.parameters, target.parameters):
        block = driver.allocation(address)
        if block is not None and block not in found.values():
            found[f"memory of {name}"] = block
    for name, (address, size) in variables(driver, target, slot.seen.facts).items():
        if size:
            found[f"variable {name}"] = (address, size)
    return found


def _save(driver: Driver, blocks: dict[str, tuple[int, int]]) -> Snapshot:
    return Snapshot(
        {name: np.frombuffer(driver.read(*block), np.uint8) for name, block in blocks.items()}, ()
    )


def _put_back(driver: Driver, blocks: dict[str, tuple[int, int]], saved: Snapshot) -> None:
    for name, data in saved.data.items():
        driver.write(blocks[name][0], data.data)
