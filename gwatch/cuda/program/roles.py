"""``--auto``: the places worth seeing in a kernel, and which warps do what.

Everything is read off the instructions and their control flow. A place is a barrier, an mbarrier wait or
arrive, the issue of a TMA copy, the first and last MMA of a loop, or a loop's head. Warp roles exist in
kernels that split their warps: the code that only some warps reach is found from the places of ``USETMAXREG``
(setmaxnreg), else from the first branch that has barriers, copies or MMAs of its own on either side, and is
named after what happens there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gwatch.cuda.program.loops import loops_of, spins_of, wait_end
from gwatch.cuda.program.places import Places, exit_indices, graph_of
from gwatch.errors import SiteError
from gwatch.rewrite.trace import SassTraceSite

if TYPE_CHECKING:
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.sass.cfg import Cfg

MOST_SITES = 64
_OPCODE = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)")
_MMA = ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTCHMMA", "UTCQMMA")
_TMA = ("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UBLKCP", "UBLKRED")
_SPLIT = "USETMAXREG"
_MOST_BRANCHES = 64


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run code of their own: ``name`` and the instruction indices only they reach."""

    name: str
    body: frozenset[int]


def opcodes_of(kernel: KernelDef) -> list[str]:
    """Opcode with modifiers of each instruction, without its guard; "" where the text shows none."""
    return [match[1] if (match := _OPCODE.match(text)) else "" for text in kernel.texts]


def kind_of(opcode: str) -> str | None:
    """What an instruction is to a reader of traces, None when it is nothing special."""
    base = opcode.split(".", 1)[0]
    if base == "BAR":
        return "barrier arrive" if ".ARV" in opcode else "barrier"
    if base == "SYNCS":
        if ".TRYWAIT" in opcode or ".TRANS64.TRYWAIT" in opcode:
            return "mbarrier wait"
        return "mbarrier arrive" if ".ARRIVE" in opcode else None
    if base in _TMA:
        return "TMA store" if base in ("UTMASTG", "UTMAREDG") else "TMA issue"
    if base == "UCGABAR_ARV":
        return "cluster arrive"
    if base == "UCGABAR_WAIT":
        return "cluster wait"
    if base == "WARPGROUP" and ".DEPBAR" in opcode:
        return "MMA wait"
    return "MMA" if base in _MMA else None


_WAITS = ("barrier", "mbarrier wait", "MMA wait", "cluster wait")
_PASSED = frozenset({*_WAITS, "loop head", "loop end"})
"""Places that bound something: every warp that comes by is recorded there, whatever the instruction's own guard says
(the branch that ends a loop is not taken on the last trip)."""


def roles_of(kernel: KernelDef) -> list[Role]:
    """The warp roles of a kernel, [] where all warps run the same code."""
    opcodes, graph = opcodes_of(kernel), graph_of(kernel)
    splits = [index for index, opcode in enumerate(opcodes) if opcode.startswith(_SPLIT)]
    reached = {split: _reach(graph, split) for split in splits}
    # A register change inside another role's code belongs to that role.
    tops = [s for s in splits if not any(s in reached[o] and o not in reached[s] for o in splits)]
    bodies = _exclusive({top: reached[top] for top in tops})
    if len(bodies) < 2:
        bodies = _branch_sides(opcodes, graph)
    kinds = {start: _role_kind(opcodes[index] for index in body) for start, body in bodies.items()}
    if any(kind.endswith("producer") for kind in kinds.values()):
        kinds = {start: "consumer" if kind == "waiting warps" else kind for start, kind in kinds.items()}
    roles, numbers = [], dict.fromkeys(kinds.values(), 0)
    for start, body in sorted(bodies.items()):
        kind = kinds[start]
        # The number of a consumer is part of its name even where there is one.
        alone = list(kinds.values()).count(kind) == 1 and kind != "MMA consumer"
        roles.append(Role(kind if alone else f"{kind} {numbers[kind]}", body))
        numbers[kind] += 1
    return roles


def _exclusive(reached: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    """What each start reaches and no other does; starts with nothing of their own are left out."""
    found = {}
    for start, body in reached.items():
        others: set[int] = set()
        for other, theirs in reached.items():
            if other != start:
                others |= theirs
        own = body - others
        if own:
            found[start] = own
    return found


def _branch_sides(opcodes: list[str], graph: Cfg) -> dict[int, frozenset[int]]:
    """The two sides of the first branch with something to trace on both of them that the other never reaches."""
    from gwatch.sass.cfg import Flow

    tried = 0
    for index, kind in enumerate(graph.flow.kind.tolist()):
        target = int(graph.flow.target[index])
        if kind != int(Flow.BRANCH) or not graph.flow.conditional[index] or target <= index + 1:
            continue
        if opcodes[index].startswith("BRA.DIV"):
            continue
        tried += 1
        if tried > _MOST_BRANCHES:
            break
        sides = _exclusive({start: _reach(graph, start) for start in (index + 1, target)})
        if len(sides) == 2 and all(
            _role_kind(opcodes[i] for i in body) != "other" for body in sides.values()
        ):
            return sides
    return {}


def _reach(graph: Cfg, start: int) -> frozenset[int]:
    return frozenset(graph.reachable([start]).nonzero()[0].tolist())


def _role_kind(opcodes: Iterable[str]) -> str:
    named = list(opcodes)
    kinds = {kind_of(opcode) for opcode in named}
    if "MMA" in kinds:
        return "MMA consumer"
    if "TMA issue" in kinds:
        return "TMA producer"
    if any(opcode.startswith("LDGSTS") for opcode in named):
        return "copy producer"
    if kinds & {"barrier", "mbarrier wait"}:
        return "waiting warps"
    return "arriving warps" if kinds & {"barrier arrive", "mbarrier arrive"} else "other"


def automatic(kernel: KernelDef) -> Places:
    """Sites, regions and roles of ``--auto``: a site per place found, the kernel's entry and exits around them.

    Raises SiteError ``[auto-nothing]`` and ``[auto-too-many]``.
    """
    opcodes, graph = opcodes_of(kernel), graph_of(kernel)
    spins = spins_of(kernel.texts, graph)
    loops, roles = _telling_loops(opcodes, graph, spins), roles_of(kernel)
    marks = {index: kind for index, kind in _marks(opcodes, loops).items() if index not in spins}
    if not marks:
        raise SiteError(
            "auto-nothing",
            f"{kernel.name} has no barrier, TMA, MMA or loop to record",
            "leave --auto out to see warp lifetimes, or choose with --site",
        )
    ends = exit_indices(kernel)
    if len(marks) + 1 + len(ends) > MOST_SITES:
        marks = dict(_most_telling(marks, MOST_SITES - 1 - len(ends)))
    names: dict[str, int] = {}
    sites = [SassTraceSite(0, warp_level=True, label="entry")]
    site_at: dict[int, int] = {}
    owners: dict[str, str] = {}
    for index, name in sorted(marks.items()):
        number = names[name] = names.get(name, -1) + 1
        site_at[index] = len(sites)
        sites.append(
            SassTraceSite(index, warp_level=True, unconditional=name in _PASSED, label=f"{name} {number}")
        )
    regions = []
    for head, back in loops:
        if head in site_at and back in site_at:
            owner = next((role.name for role in roles if head in role.body), None)
            digits = str(sites[site_at[head]].label).rsplit(" ", 1)[-1]
            label = f"{owner or ''} loop {digits}".lstrip()
            regions.append((site_at[head], site_at[back], label))
            if owner:
                owners[label] = owner
    for index, kind in marks.items():
        if kind in _WAITS and index + 1 < len(opcodes):
            after = _after(kernel, graph, index, kind)
            if after is None:
                continue
            label = str(sites[site_at[index]].label)
            there = site_at.get(after)
            if there is not None and kernel.texts[after].startswith("@") and not sites[there].unconditional:
                there = None  # it counts only lanes for which the guard is true
            if there is None and len(sites) + len(ends) < MOST_SITES:
                there = site_at[after] = len(sites)
                sites.append(SassTraceSite(after, warp_level=True, unconditional=True, label=f"after {label}"))
            if there is not None:
                regions.append((site_at[index], there, label))
                owner = next((role.name for role in roles if index in role.body), None)
                if owner:
                    owners[label] = owner
    sites += [SassTraceSite(index, warp_level=True, label="exit") for index in ends]
    return Places(tuple(sites), tuple(regions), tuple(owners.items()))


def _telling_loops(
    opcodes: list[str], graph: Cfg, spins: Mapping[int, tuple[int, int]]
) -> list[tuple[int, int]]:
    """Loops of the source: not those that spin on an mbarrier or for registers, nor the compiler's own, which run the
    lanes of a warp one after another through an instruction with uniform operands."""
    return [
        (head, back)
        for head, back in loops_of(graph)
        if ".U.ANY" not in opcodes[back]
        and not any(opcode.startswith(_SPLIT) for opcode in opcodes[head : back + 1])
        and not any(start <= head and back < end for start, end in _spun(spins))
    ]


def _spun(spins: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans of the code that spins; the way back to where the wait ends belongs to it."""
    for index, (start, end) in spins.items():
        yield min(start, index), max(end, index) + 1


def _after(kernel: KernelDef, graph: Cfg, index: int, kind: str) -> int | None:
    """First instruction after what is waited for at ``index``."""
    if kind == "mbarrier wait":
        found = wait_end(kernel.texts, graph, index)
        return None if found is None or found[0] >= len(kernel.texts) else found[0]
    return index + 1 if graph.successors(index) == [index + 1] else None


def _marks(opcodes: list[str], loops: list[tuple[int, int]]) -> dict[int, str]:
    """Name by instruction index. MMAs outside loops and between a loop's first and last are left out, and so is
    code that one thread runs for its whole warp (it stands in for an ordinary path)."""
    marks: dict[int, str] = {}
    collective = False
    for index, opcode in enumerate(opcodes):
        collective = (collective or opcode.startswith("WARPSYNC.COLLECTIVE")) and opcode != "ENDCOLLECTIVE"
        kind = kind_of(opcode)
        if kind is not None and kind != "MMA" and not collective:
            marks[index] = kind
    for head, back in loops:
        inner = [(a, b) for a, b in loops if head <= a and b <= back and (a, b) != (head, back)]
        multiplies = [
            index
            for index in range(head, back + 1)
            if kind_of(opcodes[index]) == "MMA" and not any(a <= index <= b for a, b in inner)
        ]
        if multiplies:
            marks[multiplies[0]] = "first MMA"
            if multiplies[-1] != multiplies[0]:
                marks[multiplies[-1]] = "last MMA"
        marks.setdefault(head, "loop head")
        marks.setdefault(back, "loop end")
    return marks


_ORDER = (
    "barrier",
    "cluster wait",
    "mbarrier wait",
    "TMA issue",
    "TMA store",
    "first MMA",
    "last MMA",
    "MMA wait",
)


def _most_telling(marks: dict[int, str], most: int) -> list[tuple[int, str]]:
    ranked = sorted(
        marks.items(), key=lambda item: (_ORDER.index(item[1]) if item[1] in _ORDER else 99, item[0])
    )
    return ranked[: max(most, 1)]
