"""Control flow: hand-made tables for the rules, corpus kernels for the truth."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.errors import UnsupportedError
from gwatch.rewrite.surroundings import Surroundings
from gwatch.sass.cfg import Cfg, Flow, FlowTable, build_cfg, flow_table, opcode_keys, word_at
from gwatch.sass.isa import isa_for


def graph(*items: tuple[Flow, bool, int], barriers: dict[int, int] | None = None) -> Cfg:
    """A graph from (kind, conditional, target) per instruction."""
    kinds, conditional, targets = zip(*items, strict=True)
    barrier = np.full(len(items), -1, np.int8)
    for index, number in (barriers or {}).items():
        barrier[index] = number
    table = FlowTable(
        np.array(kinds, np.uint8), np.array(conditional), np.array(targets, np.int64), barrier, {}
    )
    return Cfg(table, (0,))


NEXT = (Flow.NEXT, False, -1)
EXIT = (Flow.EXIT, False, -1)


def test_branches_go_on_only_when_conditional() -> None:
    cfg = graph(NEXT, (Flow.BRANCH, True, 0), (Flow.BRANCH, False, 4), NEXT, EXIT)
    assert [cfg.successors(index) for index in range(5)] == [[1], [2, 0], [4], [4], []]
    assert [cfg.predecessors(index) for index in range(5)] == [[1], [0], [1], [], [3, 2]]
    assert [(block.start, block.end) for block in cfg.blocks] == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_a_conditional_exit_goes_on_and_the_last_instruction_does_not() -> None:
    cfg = graph((Flow.EXIT, True, -1), NEXT)
    assert cfg.successors(0) == [1] and cfg.successors(1) == []


def test_calls_enter_their_callee_and_come_back_from_its_returns() -> None:
    call = (Flow.CALL, False, 4)
    cfg = graph(call, NEXT, call, EXIT, NEXT, (Flow.RETURN, True, 0), (Flow.RETURN, False, 0))
    assert cfg.successors(0) == [4] and cfg.successors(2) == [4]
    assert cfg.successors(5) == [6, 1, 3] and cfg.successors(6) == [1, 3]
    assert cfg.predecessors(4) == [0, 2] and cfg.predecessors(1) == [5, 6]
    assert cfg.function_body(4) == [4, 5, 6]
    assert cfg.reachable([0]).all()


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_trap_does_not_go_on_into_a_function(arch: str) -> None:
    isa = isa_for(arch)

    def successors(trap: str, target: int, entries: tuple[int, ...] = (0,)) -> list[int]:
        lines = [f"CALL.REL.NOINC {target * 16:#x}", "EXIT", trap, "NOP", "EXIT"]
        words = [isa.encode(line, pc=16 * index) for index, line in enumerate(lines)]
        columns = np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64)
        return build_cfg(isa, columns, entries).successors(2)

    assert successors("BPT.TRAP 0x1", 3) == []
    assert successors("BPT.TRAP 0x1", 4, (0, 3)) == []
    assert successors("BPT.TRAP 0x1", 4) == [3]
    assert successors("@P0 BPT.TRAP 0x1", 3) == [3]


def test_calls_that_leave_the_section_come_back_behind_themselves() -> None:
    cfg = graph((Flow.CALL_OUT, False, -1), NEXT, EXIT)
    assert cfg.successors(0) == [1]


def test_a_barrier_may_lead_where_its_opener_says() -> None:
    usual = graph((Flow.REFERENCE, False, 2), NEXT, NEXT, EXIT, barriers={0: 0, 1: 0})
    assert usual.successors(1) == [2]
    other = graph((Flow.REFERENCE, False, 3), NEXT, NEXT, EXIT, barriers={0: 0, 1: 0})
    assert other.successors(1) == [2, 3]


def test_indirect_branches_are_named_and_lead_nowhere() -> None:
    cfg = graph((Flow.INDIRECT, False, -1), EXIT)
    assert cfg.indirect == [0] and cfg.successors(0) == []


def test_a_corpus_kernel_with_a_function_inside(corpus_sm90: list[Path]) -> None:
    (path,) = [item for item in corpus_sm90 if "bb4300356c24" in item.name]
    cubin = Cubin.from_file(path)
    (kernel,) = cubin.get_map_kernel_def().values()
    cfg = build_cfg(isa_for(cubin.arch.name), kernel.words)
    assert cfg.instruction_size == 16
    assert cfg.flow.kind[20] == Flow.CALL and cfg.successors(20) == [128 - 2 * 0]
    returns = np.flatnonzero(cfg.flow.kind == Flow.RETURN).tolist()
    assert returns == [193] and cfg.successors(193) == [21] and cfg.predecessors(21) == [193]
    assert cfg.successors(8) == [9], "@P0 EXIT goes on"
    assert cfg.flow.conditional[8] and cfg.successors(23) == [43]


def test_every_corpus_kernel_has_a_graph_whose_edges_agree_both_ways(corpus_sm90: list[Path]) -> None:
    kernels = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        isa = isa_for(cubin.arch.name)
        for kernel in list(cubin.get_map_kernel_def().values())[:40]:
            cfg = build_cfg(isa, kernel.words)
            for index in range(len(kernel.words)):
                assert all(index in cfg.predecessors(item) for item in cfg.successors(index))
            covered = [index for block in cfg.blocks for index in range(block.start, block.end)]
            assert covered == list(range(len(kernel.words)))
            for block in cfg.blocks:
                inside = range(block.start, block.end - 1)
                assert all(cfg.successors(index) == [index + 1] for index in inside)
                assert all(cfg.predecessors(index + 1) == [index] for index in inside)
            kernels += 1
    assert kernels > 80


def test_an_unknown_opcode_is_refused_because_it_could_be_a_branch(corpus_sm90: list[Path]) -> None:
    cubin = Cubin.from_file(corpus_sm90[0])
    words = next(iter(cubin.get_map_kernel_def().values())).words[:16].copy()
    words[3] = 0xFFF, 0
    assert opcode_keys(words)[3] == 0xFFF and word_at(words, 3) == 0xFFF
    with pytest.raises(UnsupportedError, match=r"\[word-unknown\] instruction 3 \(0x30"):
        flow_table(isa_for(cubin.arch.name), words)


@pytest.mark.parametrize(
    ("arch", "text"),
    [
        ("sm_75", "BRA.CONV 0x30"),
        ("sm_80", "BRA.CONV ~URZ, 0x30"),
        ("sm_75", "BRA.DIV 0x30"),
        ("sm_80", "BRA.DIV ~URZ, 0x30"),
        ("sm_90", "BRA.DIV UR4, 0x30"),
        ("sm_100", "BRA.U.ANY 0x30"),
    ],
)
def test_a_branch_on_convergence_may_go_on(arch: str, text: str) -> None:
    isa = isa_for(arch)
    words = [isa.encode(line, pc=16 * index) for index, line in enumerate([text, "NOP", "NOP", "EXIT"])]
    rows = np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)
    assert sorted(build_cfg(isa, rows).successors(0)) == [1, 3]


@pytest.mark.parametrize("text", ["BRA 0x30", "BRA.U 0x30"])
def test_a_branch_without_a_condition_does_not_go_on(text: str) -> None:
    for arch in ("sm_75", "sm_90", "sm_120"):
        isa = isa_for(arch)
        words = [isa.encode(line, pc=16 * index) for index, line in enumerate([text, "NOP", "NOP", "EXIT"])]
        rows = np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)
        assert build_cfg(isa, rows).successors(0) == [3]


def test_compilers_leave_no_code_that_nothing_leads_to(corpus_all: list[Path]) -> None:
    """So what looks unreachable shows a branch that was misread: of 2,734 kernels of all architectures none has any."""
    rng = random.Random(6)
    kernels = 0
    for path in corpus_all:
        cubin = Cubin.from_file(path)
        isa = isa_for(cubin.arch.name)
        named = cubin.get_map_kernel_def()
        for name in rng.sample(sorted(named), min(12, len(named))):
            around = Surroundings(cubin, named[name], isa)
            reached = around.cfg.reachable(around.cfg.entries)
            dead = np.flatnonzero(~reached[: around.padding]).tolist()
            assert not dead, (path.name, name, [around.view.text(index) for index in (dead[0] - 1, dead[0])])
            kernels += 1
    assert kernels > 150
