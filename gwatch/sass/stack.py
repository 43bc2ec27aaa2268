"""Registers that a function keeps in its stack frame: which stores a load of the frame may read.

A frame is addressed by R1 plus an immediate; R1 changes by constants only (``VIADD R1, R1, 0xfffffff0`` at the start,
the opposite before the return). A callee leaves R1 as it found it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gwatch.errors import UnsupportedError
from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.uses import CodeView

STACK_POINTER = 1
_CALLS = (Flow.CALL, Flow.CALL_INDIRECT, Flow.CALL_OUT)
_ACCESS = re.compile(r"(LDL|STL)(?:\.(?:E|LU|EF|EL))*(\.64|\.128)?(?:\.(?:E|LU|EF|EL))* (.*)$")
_SLOT = re.compile(r"\[R1(?:\+(-?0x[0-9a-f]+))?\]")
_CHANGE = re.compile(r"(?:VIADD|IADD3|IADD)(?:\.\w+)* R1, (?:PT, )*R1, (-?0x[0-9a-f]+)(?:, U?RZ)?$")
_WORD = 4


def saved_from(view: CodeView, cfg: Cfg, load: int, register: int) -> list[tuple[int, int]]:
    """The stores that the LDL at ``load`` may read ``register`` from: (index of the store, register stored).

    Raises UnsupportedError ``[return-address]`` where the frame can't be followed.
    """
    body = _body_of(view, cfg, load)
    depths = _depths(view, cfg, body)
    wanted = _slot(view, load, depths, "LDL")
    if wanted is None:
        raise _unknown(view, load, "doesn't load from the frame")
    first, slot, _ = wanted
    place = slot + _WORD * (register - first)
    found = []
    for index in sorted(body):
        if view.facts(index).mnemonic != "STL":
            continue
        stored = _slot(view, index, depths, "STL")
        if stored is not None and stored[1] <= place < stored[1] + stored[2]:
            found.append((index, stored[0] + (place - stored[1]) // _WORD))
    if not found:
        raise _unknown(view, load, "loads what its function never stored")
    return found


def _unknown(view: CodeView, index: int, why: str) -> UnsupportedError:
    return UnsupportedError(
        "return-address",
        f"a return address comes from instruction {index} ({view.facts(index).text}), which {why}",
        "such code can't be moved safely yet",
    )


def _body_of(view: CodeView, cfg: Cfg, index: int) -> frozenset[int]:
    """The one function of the section that ``index`` belongs to."""
    bodies = [cfg.function_body(entry) for entry in sorted(_entries(cfg))]
    mine = [frozenset(body) for body in bodies if index in body]
    if len(set(mine)) != 1:
        raise _unknown(view, index, f"belongs to {len(set(mine))} functions")
    return mine[0]


def _entries(cfg: Cfg) -> set[int]:
    """Where functions of the section start."""
    calls = np.flatnonzero(np.isin(cfg.flow.kind, _CALLS)).tolist()
    return {*cfg.entries, *(callee for call in calls for callee in cfg.callees(call))}


def _steps(cfg: Cfg, index: int) -> Iterator[int]:
    """Successors within the function: calls are stepped over."""
    if cfg.flow.kind[index] in _CALLS:
        yield index + 1
    elif cfg.flow.kind[index] == Flow.RETURN:
        if cfg.flow.conditional[index]:
            yield index + 1
    else:
        yield from cfg.successors(index)


def _depths(view: CodeView, cfg: Cfg, body: frozenset[int]) -> dict[int, int]:
    """R1 before each instruction of a function, counted from its value at the function's entry."""
    entries = body & _entries(cfg)
    known = dict.fromkeys(entries, 0)
    stack = sorted(entries)
    while stack:
        at = stack.pop()
        depth = known[at] + _change(view, at)
        for item in _steps(cfg, at):
            if item not in body:
                continue
            if item not in known:
                known[item] = depth
                stack.append(item)
            elif known[item] != depth:
                raise _unknown(view, at, "leaves the stack pointer at different depths")
    return known


def _change(view: CodeView, index: int) -> int:
    facts = view.facts(index)
    if not facts.complete and facts.may_write("R", STACK_POINTER):
        raise _unknown(view, index, "can't be read")
    if not any(use.file == "R" and use.covers(STACK_POINTER) for use in facts.writes()):
        return 0
    match = _CHANGE.match(facts.text.rstrip(" ;"))
    if match is None:
        raise _unknown(view, index, "sets the stack pointer")
    value = int(match[1], 16)
    return value - (1 << 32) if value >= 1 << 31 else value


def _slot(view: CodeView, index: int, depths: dict[int, int], mnemonic: str) -> tuple[int, int, int] | None:
    """(first register, place in the frame, bytes) of a frame access without a guard; None for other accesses."""
    match = _ACCESS.match(view.facts(index).text.rstrip(" ;"))
    if match is None or match[1] != mnemonic:
        return None
    slot = _SLOT.search(match[3])
    register = re.search(r"^R(\d+)," if mnemonic == "LDL" else r", R(\d+)$", match[3])
    if slot is None or register is None:
        return None
    width = {".64": 8, ".128": 16}.get(match[2] or "", _WORD)
    return int(register[1]), depths.get(index, 0) + int(slot[1] or "0", 16), width
