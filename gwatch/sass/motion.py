"""Moving instructions: new places, re-encoded targets, and the return addresses that hide in immediates.

:class:`Layout` says where everything goes when words are inserted (and deleted); :func:`move_words` builds
the new words. Two maps, because two questions are asked: *who is reached* by a branch to instruction i (the
first word inserted before it: ``target_map``) and *where is* instruction i itself (``place_map``).

Holders of code positions inside the words, all handled here: relative targets (BRA, BSSY, CALL.REL, RET.REL,
WARPSYNC, LEPC), the displacements of indirect branches (:mod:`gwatch.sass.indirect`), and the immediates that a caller
of a function inside the section loads as return address (``MOV R54, 0x3ea0; CALL.REL.NOINC f`` with
``RET.REL.NODEC R54`` in ``f``), found by following the returned register back to the callers, through the stack where
the function keeps it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import GWatchError, UnsupportedError
from gwatch.sass.cfg import OUTSIDE, Cfg, Flow, Words, build_cfg, word_at
from gwatch.sass.indirect import Tables, find_table_loads, moved_branch, shifted_load
from gwatch.sass.pcs import computed_returns
from gwatch.sass.stack import saved_from
from gwatch.sass.uses import ALWAYS, CodeView, WordFacts

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa

Indices = npt.NDArray[np.int64]
_IMMEDIATE_SHIFT = 32
_FIRST_OPERAND = re.compile(r"(?:@!?U?P\w+ )?\S+ R(\d+)\b")
_WIDEST = 16
_MOVE_IMMEDIATE = re.compile(r"(?:MOV|IMAD\.MOV(?:\.U32)?) R(\d+),(?: RZ, RZ,)? (0x[0-9a-f]+)(?:, 0xf)?$")
_MOVE_REGISTER = re.compile(r"(?:MOV|IMAD\.MOV(?:\.U32)?) R(\d+),(?: RZ, RZ,)? R(\d+)(?:, 0xf)?$")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where ``n`` instructions go.

    ``target_map`` (n + 1,): new index of the first word inserted before i (of i itself when nothing is; last
    entry: the end). ``place_map`` (n,): i's own new index, -1 for a deleted one. ``branch_map`` (n + 1,):
    like ``target_map``, but behind the ``entry`` words, which run only when the function is entered.
    ``count``: new number of words before padding.
    """

    target_map: Indices
    place_map: Indices
    branch_map: Indices
    count: int


def plan_layout(
    count: int,
    inserted: Mapping[int, int],
    entry: tuple[int, int] = (0, 0),
    deleted: frozenset[int] = frozenset(),
) -> Layout:
    """Layout of ``count`` instructions with ``inserted[i]`` words before i and ``entry`` = (index, words)
    more words before those, which branches to that index skip.
    """
    before = np.zeros(count + 1, np.int64)
    for index, number in inserted.items():
        before[index] += number
    before[entry[0]] += entry[1]
    kept = np.ones(count, np.int64)
    kept[list(deleted)] = 0
    own = np.concatenate(([0], np.cumsum(kept))) + np.cumsum(before)
    target = own - before
    branch = target.copy()
    branch[entry[0]] += entry[1]
    place = own[:-1].copy()
    place[list(deleted)] = -1
    return Layout(target, place, branch, int(own[-1]))


def return_addresses(view: CodeView, cfg: Cfg, relocated: frozenset[int] = frozenset()) -> dict[int, int]:
    """The instructions that load a return address as a plain immediate: index -> address (bytes from the
    start).

    ``relocated`` are instructions whose immediate a relocation supplies (the container moves those). Raises
    UnsupportedError ``[return-address]`` when a returned-to address comes from anything but such a move, a
    copy of one, the function's stack frame, LEPC or a relocation.
    """
    found: dict[int, int] = {}
    size = cfg.instruction_size
    for index in np.flatnonzero(cfg.flow.kind == Flow.RETURN).tolist():
        facts = view.facts(index)
        register = next((use.first for use in facts.reads() if use.file == "R"), None)
        if register is None:
            raise UnsupportedError(
                "return-address", f"instruction {index} ({facts.text}) returns without a register"
            )
        relative = "REL" in facts.opcode.split(".")
        for place, address in _sources(view, cfg, index, register, relocated):
            if address is None:
                continue
            if not relative or address % size or address >= len(view) * size:
                raise UnsupportedError(
                    "return-address",
                    f"instruction {place} loads {address:#x}, which instruction "
                    f"{index} ({facts.text}) returns to, but it is no place in this section",
                )
            found[place] = address
    return found


def _sources(
    view: CodeView, cfg: Cfg, index: int, register: int, relocated: frozenset[int]
) -> list[tuple[int, int | None]]:
    """Where the value of ``register`` at ``index`` comes from: (instruction, immediate or None when
    relocated).
    """
    out: list[tuple[int, int | None]] = []
    seen: set[tuple[int, int]] = set()
    stack = [(before, register) for before in _before(view, cfg, index, register)]
    while stack:
        at, wanted = stack.pop()
        if (at, wanted) in seen:
            continue
        seen.add((at, wanted))
        facts = view.facts(at)
        if _may_write(facts, wanted):
            raise UnsupportedError(
                "return-address",
                f"instruction {index} returns to what instruction {at} may write, which can't be read completely",
            )
        if not any(use.file == "R" and use.covers(wanted) for use in facts.writes()):
            stack.extend((before, wanted) for before in _before(view, cfg, at, wanted))
            continue
        text = re.sub(r"^@!?U?P\w+ ", "", facts.text.rstrip(" ;"))
        immediate, copy = _MOVE_IMMEDIATE.match(text), _MOVE_REGISTER.match(text)
        if at in relocated or facts.mnemonic == "LEPC":
            out.append((at, None))
        elif immediate:
            out.append((at, int(immediate[2], 16)))
        elif copy:
            stack.extend((before, int(copy[2])) for before in _before(view, cfg, at, int(copy[2])))
        elif facts.mnemonic == "LDL":
            for store, kept in saved_from(view, cfg, at, wanted):
                stack.extend((before, kept) for before in _before(view, cfg, store, kept))
        else:
            raise UnsupportedError(
                "return-address",
                f"instruction {index} returns to an address that instruction {at} ({facts.text}) computes",
                "such code can't be moved safely yet",
            )
        if facts.guard != ALWAYS:
            stack.extend((before, wanted) for before in _before(view, cfg, at, wanted))
    return out


def _may_write(facts: WordFacts, register: int) -> bool:
    """Whether a word whose uses aren't all known may write ``register`` beside the writes that are."""
    # A barrier register moves to or from one register, which is known.
    if facts.complete or facts.mnemonic == "BMOV" or not facts.may_write("R", register):
        return False
    first = _FIRST_OPERAND.match(facts.text)
    return not facts.known or (first is not None and 0 <= register - int(first[1]) < _WIDEST)


def _before(view: CodeView, cfg: Cfg, index: int, register: int) -> list[int]:
    """Predecessors of ``index``, stepping over calls (a callee that writes ``register`` is refused)."""
    out = []
    for item in cfg.predecessors(index):
        call = index - 1
        if cfg.flow.kind[item] == Flow.RETURN and call >= 0 and cfg.callees(call):
            for callee in cfg.callees(call):
                body = cfg.function_body(callee)
                if np.isin(view.writers("R", register), body).any():
                    raise UnsupportedError(
                        "return-address",
                        f"the function called at instruction {call} changes R{register}, "
                        "which holds a return address",
                    )
            item = call
        if item not in out:
            out.append(item)
    return out


@dataclass(frozen=True, slots=True)
class Moved:
    """``words`` ``(count, 2)`` with rows of inserted words still zero where none were given; ``branches`` and
    ``returns``: the original indices whose target field or immediate was re-encoded; ``loads``: those that load from
    a table further on.
    """

    words: Words
    layout: Layout
    branches: tuple[int, ...]
    returns: tuple[int, ...]
    loads: tuple[int, ...] = ()


def place_words(
    isa: Isa,
    words: Words,
    cfg: Cfg,
    layout: Layout,
    returns: Mapping[int, int],
    tables: Tables | None = None,
    stride: int = 0,
    origins: Mapping[int, int] | None = None,
) -> Moved:
    """The original ``words`` in their new places, with every code position in them re-encoded.

    ``returns`` is what :func:`return_addresses` found, ``origins`` the immediates that hold the place of an LEPC
    (:mod:`gwatch.sass.pcs`), ``tables`` what
    :func:`~gwatch.sass.indirect.find_table_loads` found, ``stride`` by how many bytes the moved tables stand behind
    the old ones (0: in their place). Raises UnsupportedError ``[branch-outside]`` for a relative target outside the
    section, ``[jump-table]`` or ``[indirect-call]`` for one that is in no list, and whatever the ISA refuses.
    """
    size = isa.arch.instruction_size
    _refuse(isa, words, cfg, frozenset((origins or {}).values()))
    out = np.zeros((layout.count, 2), np.uint64)
    kept = layout.place_map >= 0
    out[layout.place_map[kept]] = words[kept]
    branches = []
    for index in cfg.flow.relative().tolist():
        place, target = int(layout.place_map[index]), int(cfg.flow.target[index])
        if place < 0:
            continue
        # A relative return adds its register to the start of the function, not to a place that branches
        # reach; so does a call through a register.
        counts = cfg.flow.kind[index] in (Flow.RETURN, Flow.CALL_INDIRECT)
        chosen = layout.target_map if counts else layout.branch_map
        address = int(chosen[target]) * size
        if address - place * size != (target - index) * size:
            word = isa.with_target(word_at(words, index), place * size, address)
            out[place] = word & (1 << 64) - 1, word >> 64
            branches.append(index)
    found = tables or Tables()
    for index in found.branches:
        place = int(layout.place_map[index])
        if place >= 0 and place != index:
            word = moved_branch(isa, words, index, place)
            out[place] = word & (1 << 64) - 1, word >> 64
            branches.append(index)
    loads = sorted(found.loads) if stride else []
    for index in loads:
        place = int(layout.place_map[index])
        word = shifted_load(isa, words, index, stride)
        out[place] = word & (1 << 64) - 1, word >> 64
    moved_returns = []
    for index, address in returns.items():
        place = int(layout.place_map[index])
        value = int(layout.branch_map[address // size]) * size
        if place >= 0 and value != address:
            out[place, 0] = np.uint64(int(words[index, 0]) & 0xFFFFFFFF | value << _IMMEDIATE_SHIFT)
            moved_returns.append(index)
    for index, lepc in (origins or {}).items():
        place, origin = int(layout.place_map[index]), int(layout.place_map[lepc])
        if place >= 0:
            value = origin * size
            out[place, 0] = np.uint64(int(words[index, 0]) & 0xFFFFFFFF | value << _IMMEDIATE_SHIFT)
    return Moved(out, layout, tuple(sorted(branches)), tuple(moved_returns), tuple(loads))


def _refuse(isa: Isa, words: Words, cfg: Cfg, followed: frozenset[int]) -> None:
    size = isa.arch.instruction_size
    flow = cfg.flow
    for index in np.flatnonzero(flow.target == OUTSIDE).tolist():
        raise UnsupportedError(
            "branch-outside", f"instruction {index} (0x{index * size:x}) has a target outside its section"
        )
    for index in cfg.indirect:
        raise UnsupportedError(
            "indirect-call" if flow.kind[index] == Flow.CALL_INDIRECT else "jump-table",
            f"instruction {index} (0x{index * size:x}) is {isa.decode(word_at(words, index), pc=index * size).text}, "
            "which leads somewhere that the cubin doesn't list",
            "code positions that can't be followed to their table aren't moved",
        )
    for index in np.flatnonzero((flow.kind == Flow.CALL_OUT) | (flow.kind == Flow.REFERENCE)).tolist():
        opcode = isa.decode(word_at(words, index), pc=index * size).opcode
        names = "REL" in opcode.split(".") or flow.kind[index] == Flow.REFERENCE
        if names and flow.target[index] < 0 and index not in followed:
            raise UnsupportedError(
                "pc-arithmetic",
                f"instruction {index} (0x{index * size:x}) is {opcode} without a "
                "plain target: code that computes with the pc isn't rewritten yet",
            )


def refuse_relative_returns(view: CodeView, cfg: Cfg) -> None:
    """Raise UnsupportedError ``[return-address]`` when a relative return counts from anything but index 0."""
    for index in np.flatnonzero(cfg.flow.kind == Flow.RETURN).tolist():
        if cfg.flow.target[index] > 0:
            raise UnsupportedError(
                "return-address",
                f"instruction {index} ({view.facts(index).text}) counts return "
                "addresses from the middle of its section",
            )


def move_words(
    isa: Isa,
    words: Words,
    inserted: Mapping[int, Sequence[int]],
    deleted: frozenset[int] = frozenset(),
    entries: Sequence[int] = (0,),
    relocated: frozenset[int] = frozenset(),
    jumps: Mapping[int, Sequence[int]] | None = None,
    callees: Sequence[int] = (),
    bank: bytes = b"",
) -> Moved:
    """Insert finished 128-bit words before instructions, delete others, and move everything.

    ``inserted`` maps an index (0 .. n) to the words that go before it; their own relative targets must
    already fit their new place. A deleted instruction may not be one that loads a return address. ``jumps`` and
    ``callees`` are those of :func:`~gwatch.sass.cfg.build_cfg`, ``bank`` the contents of constant bank 2, where their
    tables are moved in place. Raises UnsupportedError by name for what can't be moved.
    """
    view = CodeView(isa, words)
    cfg = build_cfg(isa, words, entries, jumps, callees)
    tables = find_table_loads(view, cfg, bank)
    refuse_relative_returns(view, cfg)
    computed = computed_returns(view, cfg)
    returns = return_addresses(view, cfg, relocated) | computed.returns
    bad = deleted & {*returns, *computed.origins, *computed.origins.values()}
    if bad:
        raise UnsupportedError(
            "return-address", f"instruction {min(bad)} loads a return address: it can't be deleted"
        )
    layout = plan_layout(
        len(words), {index: len(items) for index, items in inserted.items()}, deleted=deleted
    )
    moved = place_words(isa, words, cfg, layout, returns, tables, origins=computed.origins)
    for index, items in inserted.items():
        start = int(layout.target_map[index])
        for offset, word in enumerate(items):
            if not 0 <= word < 1 << 128:
                raise GWatchError("word-size", f"inserted word {word:#x} is not 128 bits")
            moved.words[start + offset] = word & (1 << 64) - 1, word >> 64
    return moved
