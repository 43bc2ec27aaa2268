"""Control words of inserted code: the record sequences whose cost was measured, and what makes a line wait."""

from __future__ import annotations

import numpy as np
import pytest

from gwatch.errors import UnsupportedError
from gwatch.rewrite.schedule import LONGEST_STALL, TO_ORIGINAL, Line, Run, Scheduler
from gwatch.sass.cfg import Cfg, Flow, FlowTable
from gwatch.sass.control import Control
from gwatch.sass.latency import parse_table
from gwatch.sass.scoreboards import Spans
from gwatch.sass.uses import Use, WordFacts

TABLE = parse_table(
    """
signal 2
pair ISETP P * guard 13 13 100
pair ELECT P * guard 13 13 100
floor ELECT P * guard 14
pair CS2R R STG data 5 5 100
pair LOP3 R STG data 5 5 100
pair LOP3 R STG address 5 5 100
pair LOP3 R LOP3 data 4 4 100
pair IADD3 R LOP3 data 4 4 100
pair IADD3 R IADD3 data 4 4 100
pair LOP3 R IADD3 data 4 4 100
pair MOV R ISETP data 4 4 100
overwrite CS2R R LOP3 1 1 100
""",
    "test",
)

OFF, BASE, HIGH, T, S, A = 20, 21, 23, 24, 25, 22
OWN = frozenset({("R", number) for number in range(20, 32)} | {("P", 6), ("UR", 60), ("UR", 61)})
STATE = frozenset({("R", OFF), ("R", BASE), ("R", HIGH)})
NOP = WordFacts(True, True, "NOP", "NOP", "fixed", (7, False), (), "NOP")


class StubView:
    """A kernel of ``count`` instructions with one stall and no register use."""

    def __init__(self, count: int, stall: int = 1) -> None:
        self.count, self.cycles = count, stall
        self.control = {name: np.full(count, 7) for name in ("write_scoreboard", "read_scoreboard")}
        self.control["stall"] = np.full(count, stall)

    def __len__(self) -> int:
        return self.count

    def stall(self, index: int) -> int:
        return self.cycles

    def writers(self, file: str, register: int) -> np.ndarray:
        return np.zeros(0, np.int32)

    def incomplete(self) -> list[int]:
        return []

    def facts(self, index: int) -> WordFacts:
        return NOP


class StubWaits:
    def __init__(self, count: int) -> None:
        self.view = StubView(count)
        self.mask = np.zeros(count, np.int64)
        self.group = np.zeros(count, bool)

    def spans(self, cfg: Cfg) -> Spans:
        return Spans(cfg, self.view, self)  # type: ignore[arg-type]


def loop(count: int) -> Cfg:
    """Instructions 0..count-1; the last one branches back to 1 or goes on to an EXIT."""
    kind = np.zeros(count, np.uint8)
    kind[count - 2], kind[count - 1] = Flow.BRANCH, Flow.EXIT
    target = np.full(count, -1, np.int64)
    target[count - 2] = 1
    conditional = np.zeros(count, bool)
    conditional[count - 2] = True
    return Cfg(FlowTable(kind, conditional, target, np.full(count, -1, np.int8), {}), (0,))


def line(
    opcode: str,
    *uses: Use,
    kind: str = "fixed",
    guard: tuple[int, bool] = (7, False),
    owner: int = 0,
    target: int | None = None,
) -> Line:
    mnemonic = opcode.split(".")[0]
    if guard != (7, False):
        uses = (*uses, Use("P", guard[0], 1, "guard", False))
    return Line(opcode, WordFacts(True, True, mnemonic, opcode, kind, guard, uses, opcode), owner, target)


def r(number: int, count: int = 1, role: str = "data") -> Use:
    return Use("R", number, count, role, False)


def w(number: int, count: int = 1, file: str = "R") -> Use:
    return Use(file, number, count, "data", True)


def record(elected: bool) -> list[Line]:
    guard = (6, False) if elected else (7, False)
    head = [line("ELECT", Use("P", 6, 1, "predicate", True))] if elected else []
    return [
        *head,
        line("CS2R.32", w(T)),
        line("LOP3.LUT", w(S), r(OFF)),
        line("LOP3.LUT", w(A), r(OFF), r(BASE)),
        line(
            "STG.E.EF.64",
            r(A, 2, "address"),
            r(T, 2),
            Use("UR", 60, 2, "descriptor", False),
            kind="variable",
            guard=guard,
        ),
        line("IADD3", w(OFF), r(OFF), guard=guard),
    ]


def schedule(
    runs: list[Run], count: int = 12, stall: int = 1, entry_only: frozenset[tuple[str, int]] = frozenset()
) -> None:
    cfg = loop(count)
    Scheduler(
        cfg,
        StubView(count, stall),
        StubWaits(count),
        TABLE,
        OWN,
        entry_only,
        STATE,
        4,
        5,  # type: ignore[arg-type]
        NOP,
    ).schedule(runs)


def stalls(run: Run) -> list[int]:
    return [item.control.stall for item in run.lines]


def test_record_a_comes_out_as_it_was_measured() -> None:
    run = Run(4, record(elected=False))
    schedule([run])
    assert stalls(run) == [1, 1, 5, 1, 1]
    assert [item.control.yield_flag for item in run.lines] == [1] * 5
    assert [item.control.wait_mask for item in run.lines] == [1 << 4, 0, 0, 0, 0]
    assert [item.control.read_scoreboard for item in run.lines] == [7, 7, 7, 4, 7]
    assert {item.control.write_scoreboard for item in run.lines} == {7}


def test_record_b_elects_first_and_stalls_11_before_the_store() -> None:
    run = Run(4, record(elected=True))
    schedule([run])
    assert stalls(run) == [1, 1, 1, 11, 1, 1]
    assert [item.control.wait_mask for item in run.lines] == [0, 1 << 4, 0, 0, 0, 0]


def test_two_records_at_one_place_wait_for_each_other() -> None:
    run = Run(4, [*record(elected=False), *record(elected=False)])
    schedule([run])
    # The second clock may not be written before the first store has read it, and must come 2 cycles after it.
    assert [item.control.wait_mask for item in run.lines] == [16, 0, 0, 0, 0, 16, 0, 0, 0, 0]
    # IADD3 -> LOP3 needs 4: the clock is read first, then the missing cycles pass.
    assert stalls(run) == [1, 1, 5, 1, 1, 3, 1, 5, 1, 1]


def test_a_result_needed_by_the_next_site_lengthens_the_last_stall() -> None:
    first, second = Run(4, record(elected=False)), Run(5, record(elected=False))
    schedule([first, second])
    # IADD3 (1) -> original 4 (1) -> CS2R (1) -> LOP3: 3 cycles, one short.
    assert stalls(first) == [1, 1, 5, 1, 2]
    assert stalls(second) == [1, 1, 5, 1, 1]
    far = Run(7, record(elected=False))
    near = Run(4, record(elected=False))
    schedule([near, far])
    assert stalls(near) == [1, 1, 5, 1, 1]


def test_a_loop_of_one_instruction_needs_the_stall_too() -> None:
    run = Run(1, record(elected=False))
    schedule([run], count=3)  # 0, 1 (branches to 1), exit
    assert stalls(run)[-1] == 2


def test_a_result_of_variable_latency_is_waited_for_at_its_first_use_only() -> None:
    run = Run(
        4,
        [
            line("LDC", w(26), kind="variable"),
            line("MOV", w(27)),
            line("IADD3", w(28), r(26)),
            line("IADD3", w(29), r(26)),
        ],
    )
    schedule([run])
    assert [item.control.write_scoreboard for item in run.lines] == [5, 7, 7, 7]
    assert [item.control.wait_mask for item in run.lines] == [0, 0, 1 << 5, 0]
    assert stalls(run)[0] + stalls(run)[1] >= TABLE.signal


def test_state_left_to_a_load_is_waited_for_before_the_run_ends() -> None:
    run = Run(0, [line("LDC", w(OFF), kind="variable")], entry=1)
    schedule([run])
    assert [item.text for item in run.lines] == ["LDC", "NOP"]
    assert run.lines[1].control.wait_mask == 1 << 5
    assert stalls(run)[0] == TABLE.signal


def test_a_kernel_register_lent_to_a_store_is_waited_for() -> None:
    run = Run(4, [line("STG.E", r(A, 2, "address"), r(3), kind="variable")])
    schedule([run])
    assert [item.text for item in run.lines] == ["STG.E", "NOP"]
    assert run.lines[1].control.wait_mask == 1 << 4


def test_entry_scratch_has_landed_before_the_kernel_runs() -> None:
    run = Run(0, [line("MOV", w(5)), line("LDC", w(6), kind="variable")], entry=2)
    schedule([run], entry_only=frozenset({("R", 5), ("R", 6)}))
    assert [item.text for item in run.lines] == ["MOV", "LDC", "NOP"]
    assert run.lines[2].control.wait_mask == 1 << 5
    assert stalls(run)[1] == TABLE.signal, "nothing of the kernel uses R5 soon"


def test_kernel_registers_can_t_be_written() -> None:
    with pytest.raises(UnsupportedError, match=r"\[snippet-clobbers\].*R3"):
        schedule([Run(4, [line("MOV", w(3))])])


def test_a_branch_to_the_original_hands_over_finished_registers() -> None:
    run = Run(
        0,
        [
            line("LDC", w(6), kind="variable"),
            line("MOV", w(26)),
            line("ISETP", Use("P", 6, 1, "predicate", True), r(26)),
            line("BRA", kind="branch", guard=(6, False), target=TO_ORIGINAL),
            line("MOV", w(OFF)),
        ],
        entry=5,
    )
    schedule([run], entry_only=frozenset({("R", 6)}))
    branch = run.lines[3]
    assert branch.control.wait_mask == 1 << 5
    assert run.lines[2].control.stall >= 13
    assert run.lines[2].control.yield_flag == 0
    assert branch.control.stall == 5


def test_a_wait_right_behind_who_takes_the_scoreboard_comes_once_it_is_seen() -> None:
    view = StubView(12)
    view.control["write_scoreboard"][3] = 0
    waiting = Line("NOP", NOP, 0, control=Control(wait_mask=1))
    run = Run(4, [waiting])
    scheduler = Scheduler(
        loop(12), view, StubWaits(12), TABLE, OWN, frozenset(), STATE, 4, 5, NOP  # type: ignore[arg-type]
    )
    scheduler.schedule([run])
    assert [item.control.wait_mask for item in run.lines] == [0, 1] and stalls(run)[0] == 1


def test_a_register_that_is_put_back_is_waited_for_where_the_next_insertion_saves_it_again() -> None:
    key = frozenset({("R", 5)})
    lines = [
        line("STL", r(5), kind="variable", owner=1),
        line("CS2R.32", w(5), owner=1),
        line("LDL", w(5), kind="variable", owner=1),
        line("STL", r(5), kind="variable", owner=2),
        line("CS2R.32", w(5), owner=2),
        line("LDL", w(5), kind="variable", owner=2),
    ]
    for item in lines:
        item.foreign = key if item.facts.opcode == "STL" else frozenset()
    run = Run(3, lines, borrowed=key, restored=key)
    schedule([run])
    again = next(item for item in run.lines if item.owner == 2)
    taken = next(item.control.write_scoreboard for item in run.lines if item.facts.opcode == "LDL")
    assert again.facts.opcode == "STL" and again.control.wait_mask >> taken & 1


def test_a_slow_result_is_there_for_a_run_further_on() -> None:
    first = Run(3, [line("R2P", w(6, file="P"))])
    second = Run(6, [line("P2R", w(20), Use("P", 6, 1, "predicate", False))])
    schedule([first, second], stall=8)
    assert sum(stalls(first)) + 3 * 8 >= TABLE.distance("R2P", "P", "P2R", "predicate") > 2 * LONGEST_STALL


def test_waiting_long_takes_no_more_lines_than_it_needs() -> None:
    # A producer that the table doesn't know: 64 cycles, scheduled anew once it is known what other runs leave behind.
    lines = [
        line("STRANGE", w(T)),
        line("BRA", target=3),
        line("IADD3", w(S), r(OFF)),
        line("IADD3", w(A), r(T)),
        line("IADD3", w(S), r(T)),
    ]
    run = Run(3, lines)
    schedule([run])
    texts = [item.text for item in run.lines]
    assert texts.count("NOP") == 4 and sum(stalls(run)[:-2]) >= 64
    assert run.lines[texts.index("BRA")].target == texts.index("IADD3") + 1
