"""Where a whole warp runs: what is said holds in every run of random programs, lane by lane; and cases by hand."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import pytest

from gwatch.sass.cfg import build_cfg
from gwatch.sass.convergence import Convergence
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.uses import CodeView

ISA = isa_for("sm_90")
LANES = 4


def convergence(lines: Sequence[str], isa: Isa = ISA) -> Convergence:
    words = [isa.encode(line, pc=16 * index) for index, line in enumerate(lines)]
    code = np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64)
    return Convergence(build_cfg(isa, code), CodeView(isa, code))


def whole(lines: Sequence[str], isa: Isa = ISA) -> list[int]:
    """The instructions that the whole warp surely comes to."""
    found = convergence(lines, isa)
    return [index for index in range(len(lines)) if found.together(index)]


NOP = "IADD3 R0, R0, 0x1, RZ"
TID = "S2R R0, SR_TID.X"
PARTS = [TID, "ISETP.NE.AND P0, PT, R0, 0x3, PT"]


def test_a_branch_parts_a_warp_unless_its_lanes_decide_alike() -> None:
    assert whole([*PARTS, "@P0 BRA 0x40", NOP, NOP, "EXIT"]) == [0, 1, 2]
    for alike in (
        "MOV R0, 0x5",
        "S2R R0, SR_CTAID.X",
        "MOV R0, UR4",
        "CS2R R0, SRZ",
        "LDC R0, c[0x0][0x210]",
        "VOTE.ANY R0, PT, P3",
    ):
        assert whole([alike, PARTS[1], "@P0 BRA 0x40", NOP, NOP, "EXIT"]) == list(range(6)), alike
    for apart in (
        "S2R R0, SR_LANEID",
        "LDG.E R0, desc[UR4][R2.64]",
        "@P3 MOV R0, 0x5",
        "CS2R.32 R0, SR_CLOCKLO",
        "MOV R0, R9",
        "MOV R0, R3, 0x3",  # two lanes of four
    ):
        assert whole([apart, PARTS[1], "@P0 BRA 0x40", NOP, NOP, "EXIT"]) == [0, 1, 2], apart
    assert whole(["MOV R3, 0x1", "MOV R0, R3", PARTS[1], "@P0 BRA 0x50", NOP, "EXIT"]) == list(range(6))
    assert whole(["MOV R3, 0x1", "MOV R0, R3, 0x3", PARTS[1], "@P0 BRA 0x50", NOP, "EXIT"]) == list(range(4))
    some = ["MOV R4, R5", TID, "@P4 MOV R0, 0x5", PARTS[1], "@P0 BRA 0x70", NOP, NOP, "EXIT"]
    for first in (
        "ISETP.NE.AND P4, PT, RZ, 0x3, PT",
        "MOV R4, R5",
    ):  # all lanes write R0 or none does, or some do
        assert whole([first, *some[1:]]) == list(range(5))
    for parts in ("@P0 EXIT", "@P0 IADD3 R3, R3, 0x1, RZ"):  # who is left goes on together
        assert whole([*PARTS, parts, NOP, "EXIT"]) == list(range(5)), parts
    for waits in (
        "@P0 BAR.SYNC 0x0",
        "@P0 NANOSLEEP 0x64",
        "@P0 YIELD",
        "NANOSLEEP R0",
        "@P0 WARPSYNC.ALL",
        "@P0 BSYNC B0",
        "@P0 MEMBAR.SC.GPU",
        "@P0 SYNCS.PHASECHK.TRANS64 P1, [UR5], RZ",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R0+URZ], RZ",
        "WARPSYNC.EXCLUSIVE R3",
    ):
        assert whole([*PARTS, waits, NOP, "EXIT"]) == [0, 1, 2], waits
    for goes_on in (
        "@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR5], R6",
        "BAR.SYNC 0x0",
        "MEMBAR.SC.GPU",
        "YIELD",
        "WARPSYNC.ALL",
    ):
        assert whole([*PARTS, goes_on, NOP, "EXIT"]) == list(range(5)), goes_on


def test_what_parted_lanes_write_differs_and_what_they_leave_does_not() -> None:
    known = ["MOV R4, 0x1", "MOV R5, 0x1", *PARTS, "BSSY B0, 0x80", "@P0 BRA 0x70", "MOV R5, 0x2", "BSYNC B0"]
    for register, following in ((4, list(range(9, 13))), (5, [9, 10])):
        lines = [*known, NOP, f"ISETP.NE.AND P1, PT, R{register}, 0x3, PT", "@P1 BRA 0xc0", NOP, "EXIT"]
        assert whole(lines) == [*range(6), 8, *following]


REGION = [*PARTS, "BSSY B0, 0x70", "@P0 BRA 0x60", NOP, NOP, "BSYNC B0", NOP, "EXIT"]


def test_a_bsync_makes_whole_what_a_whole_bssy_named() -> None:
    assert whole(REGION) == [0, 1, 2, 3, 7, 8]
    assert whole([*REGION[:4], "@P0 EXIT", *REGION[5:]]) == [0, 1, 2, 3, 7, 8]
    assert whole(
        [
            "@P3 BRA 0x10",
            *[line.replace("0x60", "0x70").replace("0x70", "0x80", line.count("BSSY")) for line in REGION],
        ]
    ) == [0]
    for disturbs in (
        "YIELD",
        "NANOSLEEP 0x64",
        "BREAK B0",
        "BSSY B0, 0x70",
        "BAR.SYNC 0x0",
        "BMOV.32 B0, R3",
        "WARPSYNC R3",
        "MEMBAR.SC.GPU",
        "ACQBULK",
        "UCGABAR_WAIT",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR5], RZ",
    ):
        assert whole([*REGION[:4], disturbs, *REGION[5:]]) == [0, 1, 2, 3], disturbs
    for line, changed in (
        (2, "@P3 BSSY B0, 0x70"),
        (2, "BSSY B0, 0x80"),
        (2, "BSSY B0, 0x50"),
        (6, "@P3 BSYNC B0"),
        (6, "BSYNC B1"),
        (5, "BSYNC B0"),
    ):
        assert 7 not in whole([*REGION[:line], changed, *REGION[line + 1 :]]), changed
    assert 7 in whole([*REGION[:2], "BSSY B0, 0x60", *REGION[3:]])
    # Who goes by the BSYNC is waited for until it ends.
    assert whole([*REGION[:5], "BRA 0x80", *REGION[6:]]) == [0, 1, 2, 3, 7]


def test_a_bsync_parts_a_whole_warp_unless_its_barrier_names_it() -> None:
    opens, closes = ["BSSY B0, 0x40", NOP], ["BSYNC B0", NOP, "EXIT"]
    assert whole([*opens, NOP, *closes]) == list(range(6))
    assert whole([NOP, "YIELD", NOP, *closes]) == list(range(4))
    for changed in (
        ["@P0 BSSY B0, 0x40", NOP, NOP],
        [*opens, "@P0 BREAK B0"],
        [*opens, "BMOV.32 B0, R3"],
        [*opens, closes[0]],
    ):
        assert whole([*changed, *closes]) == list(range(4)), changed


def test_a_bsync_of_later_architectures_proves_nothing() -> None:
    """What .RECONVERGENT promises wasn't measured."""
    lines = [line.replace("BSSY", "BSSY.RECONVERGENT").replace("BSYNC", "BSYNC.RECONVERGENT") for line in REGION]
    lines = [line.replace(NOP, "MOV R3, R4") for line in lines]
    assert whole(lines, isa_for("sm_100")) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "aligned",
    [
        "HMMA.16816.F32 R8, R12, R16, R8",
        "USETMAXREG.DEALLOC.CTAPOOL 0x28",
        "LDSM.16.M88.4 R8, [R4]",
        "WARPGROUP.ARRIVE",
    ],
)
def test_what_only_a_whole_warp_may_run_shows_that_it_is(aligned: str) -> None:
    assert whole([*PARTS, "@P0 BRA 0x40", NOP, aligned, NOP, "EXIT"]) == [0, 1, 2, 5, 6]


def test_what_is_alike_proves_nothing_of_loads_other_ways_or_a_bsync_that_nobody_runs() -> None:
    known = ["MOV R2, 0x0", "MOV R3, 0x0"]
    load = [*known, "LDG.E R0, desc[UR4][R2.64]", PARTS[1], "@P0 BRA 0x60", NOP, NOP, "EXIT"]
    assert whole(load) == list(range(5))
    never = [
        "ISETP.NE.AND P4, PT, RZ, RZ, PT",
        *PARTS,
        "BSSY B0, 0x80",
        "@P0 BRA 0x70",
        NOP,
        NOP,
        "@P4 BSYNC B0",
    ]
    assert whole([*never, NOP, "EXIT"]) == list(range(5))
    around = [
        "ISETP.NE.AND P4, PT, RZ, 0x1, PT",
        "@P4 BRA 0x30",
        "BSSY B0, 0x50",
        NOP,
        "BSYNC B0",
        NOP,
        "EXIT",
    ]
    assert whole(around) == list(range(5))


def test_a_part_of_a_warp_may_go_by_an_aligned_instruction_that_it_does_not_run() -> None:
    guarded = "@P1 LDSM.16.M88.4 R8, [R4]"
    assert whole([*PARTS, "@P0 BRA 0x40", NOP, guarded, NOP, "EXIT"]) == [0, 1, 2]
    assert whole([*PARTS, guarded, NOP, "EXIT"]) == list(range(5))


def test_lanes_that_a_collective_gathered_go_their_own_ways_behind_it() -> None:
    inside = [NOP, "WARPSYNC.COLLECTIVE R3, 0x60", "LDSM.16.M88.4 R8, [R4]", NOP]
    assert whole([*inside, "ENDCOLLECTIVE", NOP, NOP, "EXIT"]) == [0, 1, 3, 4]
    assert whole([*inside, NOP, NOP, NOP, "EXIT"]) == [0, 1, 3, 4, 5]


def test_a_parted_warp_may_meet_at_two_warpsyncs() -> None:
    assert whole([*PARTS, "@P0 BRA 0x50", "WARPSYNC.ALL", NOP, "WARPSYNC.ALL", NOP, "EXIT"]) == [0, 1, 2]
    assert whole([*PARTS, "WARPSYNC.ALL", NOP, "EXIT"]) == list(range(5))


def test_an_mbarrier_answers_a_whole_warp_alike() -> None:
    wait = ["SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+URZ], R3", "@!P0 BRA 0x20", NOP, "EXIT"]
    assert whole(["MOV R2, 0x8", "MOV R3, 0x0", *wait]) == list(range(6))
    assert whole(["MOV R2, 0x8", "MOV R3, R4", *wait]) == [0, 1]
    assert whole([TID.replace("R0", "R2"), "MOV R3, 0x0", *wait]) == [0, 1]


def test_a_shuffle_from_lane_0_is_alike_while_lane_0_lives() -> None:
    lines = [
        TID,
        "SHFL.IDX PT, R1, R0, RZ, 0x1f",
        "ISETP.NE.AND P1, PT, R1, 0x3, PT",
        "@P1 BRA 0x50",
        NOP,
        NOP,
        "EXIT",
    ]
    assert whole(lines) == list(range(7))
    assert whole([*lines[:1], lines[1].replace("RZ", "R7"), *lines[2:]]) == [0, 1, 2, 3]
    assert whole([*PARTS, "@P0 EXIT", *[line.replace("0x50", "0x80") for line in lines]]) == list(range(7))


def test_calls_and_entries_that_are_not_the_kernels_are_not_known() -> None:
    assert whole([NOP, "CALL.REL.NOINC 0x40", NOP, "EXIT", NOP, "RET.REL.NODEC R20 0x0"]) == [0, 1, 4, 5]
    assert whole([NOP, "CALL.ABS.NOINC 0x0", NOP, "EXIT"]) == [0, 1]
    assert whole([NOP, "BRX R2 -0x10", NOP, "EXIT"]) == []


def test_other_entries_than_the_kernel_s_are_come_to_by_parts_of_warps() -> None:
    lines = [NOP, "EXIT", NOP, NOP, "EXIT"]
    words = [ISA.encode(line, pc=16 * index) for index, line in enumerate(lines)]
    code = np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64)
    found = Convergence(build_cfg(ISA, code, (0, 2)), CodeView(ISA, code))
    assert [found.together(index) for index in range(5)] == [True, True, False, False, False]


def _program(rng: random.Random) -> list[str]:
    """A random program of regions, loops and jumps; R0 is the lane, R1 to R3 and P0 to P2 whatever comes."""
    lines = [TID, "MOV R3, 0x1", f"ISETP.EQ.AND P2, PT, R3, {rng.randrange(2):#x}, PT"]
    lines += [f"ISETP.EQ.AND P{number}, PT, R0, {rng.randrange(3):#x}, PT" for number in range(2)]
    disturbs = rng.choice(
        [(), ("YIELD",), ("BREAK B0", "BREAK B1"), ("WARPSYNC.ALL",), ("@P0 BSYNC B0", "YIELD")]
    )

    def some(count: int) -> None:
        for _ in range(count):
            chance = rng.random()
            if chance < 0.25 and len(lines) < 30:
                region(rng.randrange(2))
            elif chance < 0.35:
                lines.append(f"@{rng.choice(('', '!'))}P{rng.randrange(3)} BRA to {rng.random()}")
            elif chance < 0.4:
                lines.append(f"@P{rng.randrange(3)} EXIT")
            elif chance < 0.6 and disturbs:
                lines.append(rng.choice(disturbs))
            else:
                target, source = rng.randrange(1, 4), rng.randrange(4)
                lines.append(
                    rng.choice(
                        [
                            f"MOV R{target}, {rng.randrange(3):#x}",
                            f"IADD3 R{target}, R{source}, {rng.randrange(2):#x}, RZ",
                            f"ISETP.EQ.AND P{rng.randrange(3)}, PT, R{source}, {rng.randrange(3):#x}, PT",
                            f"ISETP.EQ.AND P{rng.randrange(3)}, PT, R{source}, {rng.randrange(3):#x}, PT",
                            f"@P{rng.randrange(3)} MOV R{target}, R{source}",
                            f"@P{rng.randrange(3)} MOV R{target}, {rng.randrange(3):#x}",
                        ]
                    )
                )

    def region(barrier: int) -> None:
        place = len(lines)
        lines.extend(("", ""))
        some(rng.randrange(4))
        lines[place] = f"BSSY B{barrier}, {16 * len(lines) + 16:#x}"
        lines[place + 1] = f"@P{rng.randrange(3)} BRA {16 * len(lines):#x}"
        lines.append(f"BSYNC B{barrier if rng.random() < 0.95 else 1 - barrier}")

    some(rng.randrange(4, 12))
    lines.append("EXIT")
    return [
        re.sub(r"to (\S+)", lambda match: f"{16 * int(float(match[1]) * len(lines)):#x}", line)
        for line in lines
    ]


class _Warp:
    """Lanes that run a program, in groups, in an order that chance decides; what machine code leaves open is chance's,
    too."""

    def __init__(self, lines: Sequence[str], rng: random.Random) -> None:
        self.lines, self.rng = lines, rng
        self.registers = [[lane, 0, 1, 2] for lane in range(LANES)]
        self.predicates = [[False] * 3 for _ in range(LANES)]
        self.groups: list[tuple[int, frozenset[int]]] = [(0, frozenset(range(LANES)))]
        self.waiting: list[tuple[int, int, frozenset[int]]] = []  # barrier (-1: all lanes), where, who
        self.barriers = [frozenset[int](), frozenset[int]()]
        self.adds = rng.random() < 0.5

    def living(self) -> frozenset[int]:
        return frozenset[int]().union(
            *(item[-1] for item in self.groups), *(item[-1] for item in self.waiting)
        )

    def run(self, steps: int) -> list[tuple[int, bool]]:
        """(instruction, whether every living lane was there) of each step, until all end or none can go on."""
        seen: list[tuple[int, bool]] = []
        while self.groups and len(seen) < steps:
            index, lanes = self.groups.pop(self.rng.randrange(len(self.groups)))
            seen.append((index, lanes == self.living() | lanes))
            self._step(index, lanes)
            self._release()
        return seen

    def _on(self, index: int, lanes: frozenset[int]) -> None:
        if lanes:
            self.groups.append((index, lanes))

    def _step(self, index: int, lanes: frozenset[int]) -> None:
        line = self.lines[index]
        match = re.match(r"(?:@(!?)P(\d) )?(.*)", line)
        assert match
        text = match[3]
        sure = frozenset(
            lane
            for lane in lanes
            if match[2] is None or self.predicates[lane][int(match[2])] != (match[1] == "!")
        )
        rest = lanes - sure
        name, *operands = re.split(r"[ ,]+", text)
        numbers = [
            int(item, 16) if item.startswith("0x") else int(re.sub(r"\D", "", item) or 0) for item in operands
        ]
        if name == "BRA":
            self._on(numbers[0] // 16, sure)
            self._on(index + 1, rest)
        elif name == "EXIT":
            self._on(index + 1, rest)
        elif name in ("BSYNC", "WARPSYNC.ALL"):
            if sure:
                self.waiting.append((numbers[0] if name == "BSYNC" else -1, index, sure))
            self._on(index + 1, rest)
        else:
            if name == "BSSY":
                old = self.barriers[numbers[0]] if self.adds else frozenset()
                self.barriers[numbers[0]] = sure | old if sure else self.barriers[numbers[0]]
            elif name == "BREAK":
                self.barriers[numbers[0]] -= sure
            elif name == "YIELD" and self.rng.random() < 0.8:
                self._let_go()
            for lane in sure:
                self._compute(name, operands, numbers, lane)
            self._on(index + 1, lanes)
            if name == "YIELD":
                self._merge(index + 1)

    def _compute(self, name: str, operands: list[str], numbers: list[int], lane: int) -> None:
        registers = self.registers[lane]
        if name == "MOV":
            registers[numbers[0]] = registers[numbers[1]] if operands[1].startswith("R") else numbers[1]
        elif name == "IADD3":
            registers[numbers[0]] = registers[numbers[1]] + numbers[2]
        elif name == "ISETP.EQ.AND":
            self.predicates[lane][numbers[0]] = registers[numbers[2]] == numbers[3]

    def _merge(self, index: int) -> None:
        here = [lanes for at, lanes in self.groups if at == index]
        if len(here) > 1 and self.rng.random() < 0.5:
            self.groups = [group for group in self.groups if group[0] != index]
            self._on(index, frozenset().union(*here))

    def _let_go(self) -> None:
        """A wait at a BSYNC that somebody else's YIELD ends."""
        for item in [item for item in self.waiting if item[0] >= 0 and self.rng.random() < 0.7]:
            self.waiting.remove(item)
            self._on(item[1] + 1, item[2])

    def _release(self) -> None:
        for barrier in (-1, 0, 1):
            here = [item for item in self.waiting if item[0] == barrier]
            if not here:
                continue
            present = frozenset().union(*(item[2] for item in here))
            wanted = self.living() if barrier < 0 else self.barriers[barrier] & self.living()
            if wanted <= present:
                self.waiting = [item for item in self.waiting if item[0] != barrier]
                for index in {item[1] for item in here}:
                    groups = [item[2] for item in here if item[1] == index]
                    # Lanes that the barrier doesn't name needn't go on with those that it does.
                    named = frozenset().union(*groups) & (wanted if barrier >= 0 else present)
                    self._on(index + 1, named)
                    for group in groups:
                        self._on(index + 1, group - named)


@pytest.mark.parametrize("seed", range(4))
def test_no_run_of_a_random_program_shows_a_part_of_a_warp_where_it_is_said_to_be_whole(seed: int) -> None:
    rng = random.Random(seed)
    said = parted = 0
    for _ in range(200):
        lines = _program(rng)
        known = convergence(lines)
        together = [known.together(index) for index in range(len(lines))]
        for _ in range(5):
            warp = _Warp(lines, rng)
            for index, all_there in warp.run(100):
                assert all_there or not together[index], (lines, index)
                said += together[index]
                parted += not all_there
    assert said > 3000 and parted > 3000
