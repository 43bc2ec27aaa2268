"""Indirect branches and calls through a register: the loads that feed them, and their words in moved code.

``BRX R6 -0x220`` goes to the start of its section plus R6; ``CALL.REL.NOINC R10 start`` likewise. The register comes
from a load out of constant bank 2 (``LDC R6, c[0x2][R9+0x40]``; ``LDCU`` for uniform branches), whose immediate is the
first byte of a table of code offsets; in linked cubins the index carries a constant that the immediate takes away again
(``IADD3 R9, R9, 0x8000, RZ; LDC R6, c[0x2][R9+-0x8000]``). :func:`find_table_loads` follows the register back to those
loads on every path and compares table and targets; whatever comes from elsewhere is refused with its address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gwatch.errors import GWatchError, UnsupportedError
from gwatch.sass.cfg import Cfg, Flow, word_at
from gwatch.sass.control import CONTROL_MASK
from gwatch.sass.uses import ALWAYS, CodeView, Key, plain

if TYPE_CHECKING:
    from gwatch.sass.isa import Isa
    from gwatch.sass.uses import Words

_GUARD = r"(?:@!?U?P\w+ )?"
_MOVE = r"(?:MOV|UMOV|R2UR|IMAD\.MOV(?:\.U32)?|UIMAD\.MOV) (U?R)(\d+),(?: U?RZ, U?RZ,)? "
_LOAD = re.compile(_GUARD + r"(?:U?LDCU?)(?:\.64)? (U?R)(\d+), c\[0x(\d)\]\[(U?R\w+)?\+?(-?0x[0-9a-f]+)?\]$")
_COPY = re.compile(_GUARD + _MOVE + r"(U?R)(\d+)(?:, 0xf)?$")
_ADDED = re.compile(
    _GUARD + r"(?:VIADD|U?IADD3|IADD)(?:\.\w+)* (U?R)(\d+),(?: U?PT,)* U?R\d+(?:\.reuse)?, (0x[0-9a-f]+)(?:, U?RZ)?$"
)
_NUMBER = re.compile(_GUARD + _MOVE + r"(0x[0-9a-f]+)(?:, 0xf)?$")
_PLACE = re.compile(r"(c\[0x2\]\[)(U?R\w+)?\+?(-?0x[0-9a-f]+)?\]$")
_DISPLACEMENT = re.compile(r"-?0x[0-9a-f]+$")
_BRANCHES = frozenset({"BRX", "BRXU"})
_POINTER = 8


@dataclass(frozen=True, slots=True)
class Tables:
    """What a section's indirect control flow reads.

    ``branches``: indices of the indirect branches; ``calls``: of the calls through a register; ``loads``: index of each
    load that feeds one -> byte offset of the table in bank 2. ``sizes``: offset of each jump table -> its bytes.
    """

    branches: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()
    loads: Mapping[int, int] = field(default_factory=dict)
    sizes: Mapping[int, int] = field(default_factory=dict)


def find_table_loads(view: CodeView, cfg: Cfg, bank: bytes) -> Tables:
    """The loads behind every indirect branch and call of the section; ``bank`` is what bank 2 holds.

    Raises UnsupportedError ``[jump-table]`` or ``[indirect-call]`` with index and address where a branch is in no list,
    its register comes from anything but such a load, or the table there doesn't hold the listed targets.
    """
    kinds = cfg.flow.kind
    branches = np.flatnonzero(kinds == Flow.INDIRECT).tolist()
    calls = np.flatnonzero(kinds == Flow.CALL_INDIRECT).tolist()
    loads: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for index in branches + calls:
        for place, start in _feeding(view, cfg, index).items():
            size = _check_table(view, cfg, index, place, start, bank)
            loads[place] = start
            if index in branches:
                sizes[start] = max(size, sizes.get(start, 0))
    return Tables(tuple(branches), tuple(calls), loads, sizes)


def _refusal(view: CodeView, cfg: Cfg, index: int, why: str) -> UnsupportedError:
    called = cfg.flow.kind[index] == Flow.CALL_INDIRECT
    return UnsupportedError(
        "indirect-call" if called else "jump-table",
        f"instruction {index} (0x{index * cfg.instruction_size:x}) is {view.facts(index).text}, which {why}",
        "code positions that can't be followed to their table aren't moved",
    )


def _feeding(view: CodeView, cfg: Cfg, index: int) -> dict[int, int]:
    """The loads whose value the register of ``index`` may hold: index -> offset of the table in the bank."""
    facts = view.facts(index)
    if index not in cfg.jumps:
        raise _refusal(view, cfg, index, "leads somewhere that the cubin doesn't list")
    if cfg.flow.kind[index] == Flow.INDIRECT:
        size = cfg.instruction_size
        if facts.mnemonic not in _BRANCHES or (index + 1) * size + displacement(facts.text)[1] != 0:
            raise _refusal(view, cfg, index, "doesn't count from the start of its section")
    elif cfg.flow.target[index] != 0:
        raise _refusal(view, cfg, index, "doesn't count from the start of its section")
    found: dict[int, int] = {}
    for at, key in definitions(view, cfg, index):
        text = view.facts(at).text.rstrip(" ;")
        load = _LOAD.match(text)
        if load is None or load[3] != "2" or (load[1], int(load[2])) != key:
            raise _refusal(view, cfg, index, f"goes where instruction {at} ({text}) computes")
        found[at] = int(load[5] or "0", 16) + _bias(view, cfg, at, load[4])
    return found


def _bias(view: CodeView, cfg: Cfg, load: int, register: str | None) -> int:
    """The constant that the index of a load carries beside the index proper; 0 where none is plain to see."""
    if register is None or register.endswith("Z"):
        return 0
    file = "UR" if register.startswith("UR") else "R"
    found = set()
    try:
        for at, key in definitions(view, cfg, load, (file, int(register.removeprefix(file)))):
            added = _ADDED.match(view.facts(at).text.rstrip(" ;"))
            found.add(int(added[3], 16) if added and (added[1], int(added[2])) == key else 0)
    except UnsupportedError:
        return 0
    return found.pop() if len(found) == 1 else 0


def definitions(view: CodeView, cfg: Cfg, index: int, operand: Key | None = None) -> list[tuple[int, Key]]:
    """The instructions that the register ``index`` reads (or ``operand``) may come from, on every path, copies
    followed, each with the register it writes. Raises UnsupportedError where that can't be told.
    """
    key = operand or next(((use.file, use.first) for use in view.facts(index).reads() if use.file in ("R", "UR")), None)
    if key is None:
        raise _refusal(view, cfg, index, "has no register")
    found: list[tuple[int, Key]] = []
    seen: set[tuple[int, Key]] = set()
    stack = [(before, key) for before in cfg.predecessors(index)]
    if not stack:
        raise _refusal(view, cfg, index, "can't be reached")
    while stack:
        at, key = stack.pop()
        if (at, key) in seen:
            continue
        seen.add((at, key))
        facts = view.facts(at)
        if not facts.complete and facts.may_write(*key):
            raise _refusal(view, cfg, index, f"may read what instruction {at} writes, which can't be read")
        before = cfg.predecessors(at)
        if not any(use.file == key[0] and use.covers(key[1]) for use in facts.writes()):
            if not before or cfg.flow.kind[at] == Flow.CALL_OUT:
                raise _refusal(view, cfg, index, f"may read {key[0]}{key[1]} as instruction {at} leaves it")
            stack.extend((item, key) for item in before)
            continue
        copy = _COPY.match(facts.text.rstrip(" ;"))
        if copy and (copy[1], int(copy[2])) == key:
            stack.extend((item, (copy[3], int(copy[4]))) for item in before)
        else:
            found.append((at, key))
        if facts.guard != ALWAYS:
            stack.extend((item, key) for item in before)
    return found


def address_loads(view: CodeView, cfg: Cfg, index: int) -> set[int]:
    """Byte offsets in constant bank 4 that the register of the call at ``index`` may be loaded from.

    Empty where it may come from anything else.
    """
    places = set()
    try:
        for at, key in definitions(view, cfg, index):
            text = view.facts(at).text.rstrip(" ;")
            load = _LOAD.match(text)
            if load is None or load[3] != "4" or (load[1], int(load[2])) != key:
                return set()
            places |= {int(load[5] or "0", 16) + base for base in _bases(view, cfg, at, load[4])}
    except UnsupportedError:
        return set()
    return places


def _bases(view: CodeView, cfg: Cfg, index: int, register: str | None) -> set[int]:
    """Values of a load's index register; raises UnsupportedError where it isn't a plain number everywhere."""
    if register is None or register.endswith("Z"):
        return {0}
    file = "UR" if register.startswith("UR") else "R"
    found = set()
    for at, key in definitions(view, cfg, index, (file, int(register.removeprefix(file)))):
        value = number_of(view, at, key)
        if value is None:
            raise _refusal(view, cfg, index, f"is indexed by what instruction {at} computes")
        found.add(value)
    return found


def number_of(view: CodeView, index: int, key: Key) -> int | None:
    """The number that a plain move puts into the register ``key``; None for other instructions."""
    match = _NUMBER.match(view.facts(index).text.rstrip(" ;"))
    return int(match[3], 16) if match and (match[1], int(match[2])) == key else None


def displacement(text: str) -> tuple[str, int]:
    """(the text of an indirect branch without its displacement, that displacement in bytes)."""
    match = _DISPLACEMENT.search(text.rstrip(" ;"))
    return _DISPLACEMENT.sub("", text.rstrip(" ;")), int(match[0], 16) if match else 0


def _check_table(view: CodeView, cfg: Cfg, index: int, load: int, start: int, bank: bytes) -> int:
    """Bytes of the table at ``start``. Raises where it doesn't hold what the branch or call may lead to."""
    targets = [target * cfg.instruction_size for target in cfg.jumps[index]]
    if cfg.flow.kind[index] == Flow.INDIRECT:
        wanted = b"".join(target.to_bytes(4, "little") for target in targets)
        found = bank[start : start + len(wanted)] if start >= 0 else b""
    else:
        # The null pointer comes first; the table may name a function more than once.
        wanted = b"".join(target.to_bytes(_POINTER, "little") for target in targets)
        found = bank[start + _POINTER : start + _POINTER + len(wanted)] if start == 0 else b""
    if 0 in targets:
        raise _refusal(view, cfg, index, "may lead to the kernel's first instruction")
    if found != wanted:
        raise _refusal(
            view,
            cfg,
            index,
            f"loads from c[0x2][{start:#x}] (instruction {load}), where its {len(targets)} targets aren't",
        )
    return len(wanted)


def _again(isa: Isa, word: int, text: str, pc: int) -> int:
    """``text`` as a word with the control bits of ``word``."""
    return isa.encode(text, pc=pc) & ~CONTROL_MASK | word & CONTROL_MASK


def moved_branch(isa: Isa, words: Words, index: int, place: int) -> int:
    """The indirect branch ``index`` as it stands at instruction ``place``, still counting from the section's start.

    Raises EncodeError where the tables can't write it.
    """
    size = isa.arch.instruction_size
    word = word_at(words, index)
    text = isa.decode(plain(word), pc=index * size).text.rstrip(" ;")
    fresh = _DISPLACEMENT.sub(f"-{(place + 1) * size:#x}", text)
    return _again(isa, word, fresh, place * size)


def shifted_load(isa: Isa, words: Words, index: int, stride: int) -> int:
    """The load ``index`` from the same place of the tables that start ``stride`` bytes further in bank 2.

    Raises UnsupportedError ``[jump-table]`` where the instruction can't reach so far.
    """
    size = isa.arch.instruction_size
    word = word_at(words, index)
    text = isa.decode(plain(word), pc=index * size).text.rstrip(" ;")
    try:
        fresh = _PLACE.sub(
            lambda m: f"{m[1]}{_sum(m[2], int(m[3] or '0', 16) + stride)}]", text
        )
        return _again(isa, word, fresh, index * size)
    except GWatchError as error:
        raise UnsupportedError(
            "jump-table",
            f"instruction {index} ({index * size:#x}, {text}) can't load from {stride} bytes further: {error.message}",
        ) from error


def _sum(register: str | None, offset: int) -> str:
    if register is None or register.endswith("Z"):
        return f"{offset:#x}"
    return f"{register}+{offset:#x}" if offset else register


def table_place(text: str) -> tuple[str, int] | None:
    """(the text without its table offset, that offset) of a load from bank 2; None for other instructions."""
    match = _PLACE.search(text.rstrip(" ;"))
    if match is None:
        return None
    return _PLACE.sub(lambda m: f"{m[1]}{m[2] or ''}]", text.rstrip(" ;")), int(match[3] or "0", 16)
