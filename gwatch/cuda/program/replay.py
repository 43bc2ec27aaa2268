"""``--verify``: run the very launch that is about to be traced plain, plain and traced on the same memory.

All of it happens when the launch call is entered. The device is waited for, the allocations that the launch's
parameters point into and the variables of its module are saved, and after every replay they are put back, so
that the program's own launch finds what it would have found. Memory that is reached through pointers stored
*in* memory is neither saved nor compared.
"""

from __future__ import annotations

import re

import numpy as np

from gwatch.cuda.driver import Driver
from gwatch.cuda.launchview import LaunchView
from gwatch.cuda.xtrace.outputs import Snapshot, Verdict, compare, pointers_in
from gwatch.cuda.xtrace.passes import Slot
from gwatch.cuda.xtrace.prepare import Target, variables
from gwatch.errors import GWatchError

LIMIT = 1 << 30
# Kernels that wait for a peer GPU (or for another launch) never end when they are run alone.
_PEERS = re.compile(
    r"nccl|nvshmem|multimem|symm_?mem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I
)


def replay(driver: Driver, view: LaunchView, slot: Slot, target: Target, stream: int) -> Verdict:
    """The verdict on a launch whose slot is loaded and armed; its ring is zeroed again in the end.

    ``stream``: gwatch's own stream in the launch's context. Raises LaunchError when a replay fails: the memory
    is put back before.
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
    shots: list[Snapshot] = []
    try:
        for handle in (slot.seen.launch.handle, slot.seen.launch.handle, slot.patched.kernel):
            arguments = view.again(handle)
            assert arguments is not None
            if handle == slot.patched.kernel and slot.constants is not None:
                to, source, size = slot.constants
                driver.copy_async(to, source, size, slot.seen.launch.stream)
            driver.repeat(view.api, arguments)
            driver.synchronize()
            shots.append(_save(driver, blocks))
            _put_back(driver, blocks, saved)
    except GWatchError:
        _put_back(driver, blocks, saved)
        raise
    slot.ring.clear(stream)
    return compare(shots[:2], shots[2])


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
