"""Return addresses that code computes from its own place, as compilers do before calls of driver functions on sm_75 to
sm_89::

    LEPC R10                              the place of this instruction
    MOV R3, 0x2f0                         where to come back to, counted from the start of the section
    MOV R20, 0x270                        the place of the LEPC, counted likewise
    IADD3 R20, P0, P1, -R20, R3, R10      their difference, added

When code moves, the first immediate follows whom the return reaches, the second the LEPC itself. From sm_90 on
``LEPC R20, target`` names the target and needs none of this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from gwatch.errors import UnsupportedError
from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.indirect import definitions, number_of
from gwatch.sass.uses import ALWAYS, CodeView, Key

_SUM = re.compile(r"IADD3 R\d+, P\d, P\d, -R(\d+), R(\d+), R(\d+)$")


@dataclass(frozen=True, slots=True)
class Computed:
    """``returns``: index of an instruction that loads a return address -> the address in bytes; ``origins``: index of
    one that loads the place of an LEPC -> the LEPC's index.
    """

    returns: dict[int, int] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)


def computed_returns(view: CodeView, cfg: Cfg) -> Computed:
    """The immediates of every sum with an LEPC of the section.

    Raises UnsupportedError ``[pc-arithmetic]`` with the address of an LEPC that is used in another way.
    """
    found = Computed()
    size = cfg.instruction_size
    plain = [
        index
        for index in np.flatnonzero((cfg.flow.kind == Flow.REFERENCE) & (cfg.flow.target < 0)).tolist()
        if view.facts(index).mnemonic == "LEPC"
    ]
    for index in plain:
        for place in _sums(view, cfg, index):
            match = _SUM.match(view.facts(place).text.rstrip(" ;"))
            registers = [int(number) for number in match.groups()] if match else [0, 0, 0]
            written = next((use.first for use in view.facts(index).writes() if use.file == "R"), None)
            if match is None or registers[2] != written:
                raise _refusal(view, cfg, index, f"is used by instruction {place} ({view.facts(place).text})")
            origin = _immediate(view, cfg, index, place, ("R", registers[0]))
            target = _immediate(view, cfg, index, place, ("R", registers[1]))
            if origin[1] != index * size or target[1] % size or not 0 < target[1] < len(view) * size:
                raise _refusal(view, cfg, index, f"is added to {target[1]:#x} - {origin[1]:#x}")
            found.origins[origin[0]] = index
            found.returns[target[0]] = target[1]
    if found.origins.keys() & found.returns.keys():
        raise UnsupportedError("pc-arithmetic", "one immediate is both the place of an LEPC and a return address")
    return found


def _refusal(view: CodeView, cfg: Cfg, index: int, why: str) -> UnsupportedError:
    return UnsupportedError(
        "pc-arithmetic",
        f"instruction {index} (0x{index * cfg.instruction_size:x}) is {view.facts(index).text}, which {why}",
        "code that computes with its own place in another way isn't moved",
    )


def _sums(view: CodeView, cfg: Cfg, index: int) -> list[int]:
    """The instructions that read the low half of what the LEPC writes, on any path."""
    register = next((use.first for use in view.facts(index).writes() if use.file == "R"), None)
    if register is None:
        raise _refusal(view, cfg, index, "writes no register")
    found = set()
    seen: set[int] = set()
    stack = cfg.successors(index)
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        facts = view.facts(at)
        if not facts.complete and facts.may_touch("R", register):
            raise _refusal(view, cfg, index, f"may be used by instruction {at}, which can't be read")
        if any(use.file == "R" and use.covers(register) for use in facts.reads()):
            found.add(at)
        written = any(use.file == "R" and use.covers(register) for use in facts.writes())
        if not cfg.leaves[at] and not (written and facts.guard == ALWAYS):
            stack.extend(cfg.successors(at))
    return sorted(found)


def _immediate(view: CodeView, cfg: Cfg, lepc: int, index: int, key: Key) -> tuple[int, int]:
    """(instruction, value) of the one plain number that ``key`` holds at ``index``."""
    found = definitions(view, cfg, index, key)
    value = number_of(view, *found[0]) if len(found) == 1 else None
    if value is None:
        raise _refusal(view, cfg, lepc, f"is added to what instruction {found[0][0]} computes")
    return found[0][0], value
