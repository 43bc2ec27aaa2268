"""Faults planted in a finished rewrite on purpose. Each must be reported, at the instruction it breaks.

What makes a seed a fault is decided here, from the instruction words in straight lines, not by the checker: a stall is
shortened only where a pair of instructions sits at its minimum; a wait is dropped only where the nearest instruction
that took the scoreboard makes what is read here; a register is clobbered only where the next original reads it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np

from gwatch.check import check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.nvinfo import OFFSET_SHAPES
from gwatch.errors import GWatchError
from gwatch.rewrite import rewriter as rewriter_module
from gwatch.sass.cfg import FLOW_MNEMONICS, Words, build_cfg
from gwatch.sass.control import NO_SCOREBOARD, Control
from gwatch.sass.hazards import RewriteChecker, check_rewrite
from gwatch.sass.integrity import Rewrite
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.latency import LatencyTable, latency_class
from gwatch.sass.uses import CodeView, Use
from torturing.cases import Case

ALWAYS = (7, False)
_SLOT = re.compile(r"(LDL R(\d+), \[R\d+\+-)(0x[0-9a-f]+)\]")
MOST = 4
"""Seeds of a kind per rewrite."""
Mutation = tuple[int, Words, int]
"""(where it must be reported, the new words, where they were changed)."""


@dataclass
class Captured:
    """The finished rewrite as the checker saw it."""

    isa: Isa
    latency: LatencyTable
    rewrite: Rewrite


def capture(case: Case) -> tuple[Captured, bytes, bytes]:
    """Build ``case`` and keep what the checker was given, with the images before and after."""
    kept: list[Captured] = []

    def keep(isa: Isa, latency: LatencyTable, rewrite: Rewrite) -> str:
        kept.append(Captured(isa, latency, rewrite))
        return check_rewrite(isa, latency, rewrite)

    with mock.patch.object(rewriter_module, "check_rewrite", keep):
        before, _, after = case.build()
    return kept[-1], before, after


def with_word(words: Words, index: int, word: int) -> Words:
    """A copy of ``words`` with one replaced."""
    out: Words = words.copy()
    out[index] = word & (1 << 64) - 1, word >> 64
    return out


def word_of(words: Words, index: int) -> int:
    """One word as an int."""
    return int(words[index, 0]) | int(words[index, 1]) << 64


def with_control(words: Words, index: int, **fields: int) -> Words:
    """A copy of ``words`` with control fields of one changed; the yield bit follows the stall."""
    word = word_of(words, index)
    control = dataclasses.replace(Control.from_word(word), **fields)
    legal = int(0 < control.stall < 12) if control.illegal else control.yield_flag
    return with_word(words, index, dataclasses.replace(control, yield_flag=legal).replace_in(word))


class Planter:
    """Seeds of every kind for one finished rewrite."""

    def __init__(self, captured: Captured) -> None:
        self.isa, self.latency, self.rewrite = captured.isa, captured.latency, captured.rewrite
        self.words = self.rewrite.words
        self.view = CodeView(self.isa, self.words[: self.rewrite.count])
        self.control = self.view.control
        self.inserted = np.flatnonzero(self.rewrite.inserted[: self.rewrite.count]).tolist()

    def _straight(self, index: int, limit: int = 48) -> Iterator[tuple[int, int]]:
        """(following instruction, issue distance from ``index``), up to the first one that may leave the line."""
        distance = 0
        for at in range(index, min(index + limit, self.rewrite.count - 1)):
            if self.view.facts(at).mnemonic in FLOW_MNEMONICS and at != index:
                return
            distance += self.view.stall(at)
            yield at + 1, distance

    def stalls(self) -> Iterator[Mutation]:
        """One cycle less between an inserted result and its first reader, where the pair sits at its minimum."""
        for index in self.inserted:
            facts = self.view.facts(index)
            stall = int(self.control["stall"][index])
            if facts.kind != "fixed" or stall < 2 or facts.mnemonic in FLOW_MNEMONICS:
                continue
            reader = self._at_minimum(index)
            if reader is not None:
                yield reader, with_control(self.words, index, stall=stall - 1), index

    def _at_minimum(self, index: int) -> int | None:
        facts = self.view.facts(index)
        for use in facts.writes():
            for at, distance in self._straight(index):
                reader = self.view.facts(at)
                if not self.rewrite.inserted[at] or (facts.guard[0] == reader.guard[0] != 7):
                    break
                touching = [item for item in reader.uses if item.file == use.file and overlap(item, use)]
                needs = [
                    self.latency.distance(
                        latency_class(facts.opcode), use.file, latency_class(reader.opcode), item.role
                    )
                    for item in touching
                    if not item.write
                ]
                if needs and max(needs) == distance:
                    return at
                if any(item.write for item in touching):
                    break
        return None

    def waits(self) -> Iterator[Mutation]:
        """A wait less, where the nearest taker of the scoreboard makes what this instruction reads or writes."""
        for index in self.inserted:
            mask = int(self.control["wait_mask"][index])
            for board in range(6):
                if mask >> board & 1 and self._needs(index, board):
                    yield index, with_control(self.words, index, wait_mask=mask & ~(1 << board)), index

    def _needs(self, index: int, board: int) -> bool:
        facts = self.view.facts(index)
        for at in range(index - 1, max(-1, index - 40), -1):
            taker = self.view.facts(at)
            control = self.control[at]
            if taker.mnemonic in FLOW_MNEMONICS or int(control["wait_mask"]) >> board & 1:
                return False
            for field, uses in (("write_scoreboard", taker.writes()), ("read_scoreboard", taker.reads())):
                if int(control[field]) != board:
                    continue
                late = [use for use in uses if field == "write_scoreboard" or use.file == "R"]
                mine = [use for use in facts.uses if use.write or field == "write_scoreboard"]
                return taker.guard == ALWAYS and any(
                    overlap(one, other) for one in late for other in mine if one.file == other.file
                )
        return False

    def scoreboards(self) -> Iterator[Mutation]:
        """A wrong scoreboard (or none) for a result that later inserted code waits for."""
        for index in self.inserted:
            facts, control = self.view.facts(index), self.control[index]
            board = int(control["write_scoreboard"])
            if facts.kind != "variable" or board == NO_SCOREBOARD or not facts.writes():
                continue
            waited = 0
            for at, _ in self._straight(index):
                mask = int(self.control["wait_mask"][at])
                waited |= mask
                user = self.view.facts(at)
                touches = any(
                    overlap(one, other)
                    for one in facts.writes()
                    for other in user.uses
                    if one.file == other.file
                )
                if not self.rewrite.inserted[at] or (mask >> board & 1 and not touches):
                    break
                if touches:
                    if mask >> board & 1:
                        # One that another line waits for on the way would be as good.
                        for wrong in (NO_SCOREBOARD, *[b for b in range(6) if not waited >> b & 1][:1]):
                            where = index if wrong == NO_SCOREBOARD else at
                            yield where, with_control(self.words, index, write_scoreboard=wrong), index
                    break

    def clobbers(self) -> Iterator[Mutation]:
        """The result of an inserted instruction goes to a register that the next original reads."""
        for index in self.inserted:
            facts = self.view.facts(index)
            writes = [use for use in facts.writes() if use.file == "R" and use.count == 1]
            if facts.kind != "fixed" or len(writes) != 1 or len(facts.writes()) != 1:
                continue
            following = next(
                (at for at in range(index, self.rewrite.count) if not self.rewrite.inserted[at]), None
            )
            if following is None or any(
                self.view.facts(at).mnemonic in FLOW_MNEMONICS for at in range(index, following)
            ):
                continue
            live = [use.first for use in self.view.facts(following).reads() if use.file == "R"]
            if live and live[0] != writes[0].first:
                word = word_of(self.words, index) & ~(0xFF << 16) | live[0] << 16
                yield following, with_word(self.words, index, word), index

    def slots(self) -> Iterator[Mutation]:
        """What was saved or is kept in local memory is loaded from another place."""
        for index in self.inserted:
            match = _SLOT.match(self.view.facts(index).text)
            if match is None:
                continue
            for at, _ in self._straight(index):
                if any(use.file == "R" and use.covers(int(match[2])) for use in self.view.facts(at).uses):
                    if any(
                        use.file == "R" and use.covers(int(match[2])) for use in self.view.facts(at).reads()
                    ):
                        control = Control.from_word(word_of(self.words, index))
                        text = f"{match[1]}{int(match[3], 16) + 8:#x}]"
                        word = self.isa.encode(
                            text, control=control, pc=index * self.isa.arch.instruction_size
                        )
                        yield at, with_word(self.words, index, word), index
                    break

    def targets(self) -> Iterator[Mutation]:
        """A branch of the kernel leads one instruction further."""
        size = self.isa.arch.instruction_size
        flow = build_cfg(self.isa, self.view.words, (0,)).flow
        for index in flow.relative().tolist():
            target = int(flow.target[index])
            if not self.rewrite.inserted[index] and 0 <= target < self.rewrite.count - 1:
                try:
                    word = self.isa.with_target(word_of(self.words, index), index * size, (target + 1) * size)
                except GWatchError:
                    continue
                yield index, with_word(self.words, index, word), index

    def originals(self) -> Iterator[Mutation]:
        """A bit of an original instruction's operand is changed."""
        for index in range(0, self.rewrite.count, max(1, self.rewrite.count // 7)):
            if not self.rewrite.inserted[index] and self.view.facts(index).mnemonic not in FLOW_MNEMONICS:
                yield index, with_word(self.words, index, word_of(self.words, index) ^ 1 << 24), index

    def reuses(self) -> Iterator[Mutation]:
        """The operand kept by the instruction before an insertion is kept after all."""
        old = self.rewrite.view.control
        places = np.flatnonzero(~self.rewrite.inserted[: self.rewrite.count]).tolist()
        for number, at in enumerate(places):
            bits, stay = int(old["reuse"][number]), bool(old["yield_flag"][number])
            if bits and stay and not int(self.control["reuse"][at]):
                yield at, with_control(self.words, at, reuse=bits), at


KINDS: dict[str, Callable[[Planter], Iterator[Mutation]]] = {
    "stall": Planter.stalls,
    "wait": Planter.waits,
    "scoreboard": Planter.scoreboards,
    "clobber": Planter.clobbers,
    "slot": Planter.slots,
    "target": Planter.targets,
    "original": Planter.originals,
    "reuse": Planter.reuses,
}


def overlap(one: Use, other: Use) -> bool:
    """Whether two accesses of one file share a register."""
    return one.first < other.first + other.count and other.first < one.first + one.count


def plant_all(case: Case) -> dict[str, tuple[int, int, list[str]]]:
    """Kind -> (seeds, caught at the right place, sentences about the others)."""
    captured, original, after = capture(case)
    planter = Planter(captured)
    found: dict[str, tuple[int, int, list[str]]] = {}
    for kind, make in KINDS.items():
        seeds = caught = 0
        missed = []
        for where, words, changed in make(planter):
            seeds += 1
            checker = RewriteChecker(
                captured.isa, captured.latency, dataclasses.replace(captured.rewrite, words=words)
            )
            reports = checker.run()
            if any(report.index in (where, changed) for report in reports):
                caught += 1
            else:
                text = planter.view.facts(changed).text
                missed.append(
                    f"planted {kind} at new instruction {changed} ({text}), to be seen at {where}: "
                    f"{[(r.index, r.kind) for r in reports[:3]] or 'not reported'}"
                )
            if seeds >= MOST:
                break
        found[kind] = seeds, caught, missed
    found["offset"] = plant_offsets(original, after, case.kernel)
    found["table"] = plant_tables(after, case.kernel)
    return found


def plant_tables(image: bytes, kernel: str) -> tuple[int, int, list[str]]:
    """The last entry of each jump table leads one instruction further than the list of the branch's targets says."""
    cubin = Cubin.from_bytes(image)
    bank = cubin.elf.find(f".nv.constant2.{kernel}")
    size = cubin.arch.instruction_size
    seeds = caught = 0
    missed: list[str] = []
    for branch, targets in cubin.get_kerneldef_by_name(kernel).indirect_targets.items():
        table = b"".join((target * size).to_bytes(4, "little") for target in targets)
        if bank is None or cubin.elf.content(bank).count(table) != 1 or seeds >= MOST:
            continue
        end = image.index(table, bank.offset) + len(table)
        wrong = image[: end - 4] + ((targets[-1] + 1) * size).to_bytes(4, "little") + image[end:]
        broken = Cubin.from_bytes(wrong)
        seeds += 1
        reports = check_kernel(broken, broken.get_kerneldef_by_name(kernel)).findings
        if any(item.kind == "jump-table" and item.index == branch for item in reports):
            caught += 1
        else:
            missed.append(f"planted table entry of the branch at {branch}: not reported")
    return seeds, caught, missed


def plant_offsets(original: bytes, image: bytes, kernel: str) -> tuple[int, int, list[str]]:
    """Each attribute that holds code offsets, one entry moved by one instruction. Where it then points at another
    instruction that it may mean, only the comparison with the original can tell.
    """
    cubin = Cubin.from_bytes(image)
    definition = cubin.get_kerneldef_by_name(kernel)
    before = check_kernel(cubin, definition)
    view = CodeView(isa_for(cubin.arch.name), definition.words)
    seeds = caught = 0
    missed: list[str] = []
    for place, attribute in enumerate(definition.attributes):
        shape = OFFSET_SHAPES.get(attribute.code)
        if shape is None or not attribute.words:
            continue
        words = list(attribute.words)
        index = words[shape.column] // cubin.arch.instruction_size
        if index + 1 >= len(view) or view.facts(index + 1).mnemonic == view.facts(index).mnemonic:
            continue
        words[shape.column] += cubin.arch.instruction_size
        changed = [*definition.attributes]
        changed[place] = attribute.with_words(words)
        seeds += 1
        broken = cubin.get_kerneldef_by_name(kernel)
        with mock.patch.dict(vars(broken), {"attributes": tuple(changed)}):
            checked = check_kernel(cubin, broken)
            if not [item for item in checked.findings if item not in before.findings]:
                check_against(Cubin.from_bytes(original), cubin, checked)
            reports = checked.findings
        if {item.index for item in reports if item not in before.findings} & {index, index + 1}:
            caught += 1
        else:
            missed.append(f"planted offset in {attribute.name}: not reported")
    return seeds, caught, missed
