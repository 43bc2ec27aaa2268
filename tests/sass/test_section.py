"""The model held against compiler output: nothing to report on it, and every shortened pair or dropped wait is seen."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.errors import UnsupportedError
from gwatch.sass.cfg import build_cfg
from gwatch.sass.control import Control
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.latency import latency_class, latency_for
from gwatch.sass.section import SectionChecker, check_section
from gwatch.sass.uses import CodeView

Words = np.ndarray


def with_control(words: Words, index: int, **fields: int) -> Words:
    """A copy of ``words`` with control fields of one word changed."""
    out = words.copy()
    word = int(words[index, 0]) | int(words[index, 1]) << 64
    control = dataclasses.replace(Control.from_word(word), **fields)
    word = dataclasses.replace(control, yield_flag=int(0 < control.stall < 12)).replace_in(word)
    out[index] = word & (1 << 64) - 1, word >> 64
    return out


def sections(paths: list[Path], each: int) -> list[tuple[Isa, Words]]:
    rng = random.Random(8)
    out = []
    for path in paths:
        cubin = Cubin.from_file(path)
        kernels = list(cubin.get_map_kernel_def().values())
        out += [
            (isa_for(cubin.arch.name), kernel.words)
            for kernel in rng.sample(kernels, min(each, len(kernels)))
        ]
    return out


def test_compiler_output_has_no_reports(corpus_sm90: list[Path]) -> None:
    pairs = 0
    for isa, words in sections(corpus_sm90, 6):
        checker = SectionChecker(isa, latency_for("sm_90"), words, build_cfg(isa, words))
        assert checker.run() == []
        pairs += checker.pairs
    assert pairs > 8_000


def test_a_pair_at_its_minimum_cannot_be_shortened_unseen(corpus_sm90: list[Path]) -> None:
    latency = latency_for("sm_90")
    tried = 0
    for isa, words in sections(corpus_sm90, 3):
        view = CodeView(isa, words)
        live = build_cfg(isa, words).reachable([0])
        for index in range(min(len(words) - 1, 900)):
            first, second = view.facts(index), view.facts(index + 1)
            stall = int(view.control["stall"][index])
            if first.kind != "fixed" or stall < 2 or not live[index] or view.control["wait_mask"][index + 1]:
                continue
            if "DEPBAR" in second.text or second.guard[1] != first.guard[1]:
                continue
            names = latency_class(first.opcode), latency_class(second.opcode)
            at_minimum = any(
                use.file == other.file
                and use.covers(other.first)
                and latency.limit(names[0], use.file, names[1], other.role) == stall
                for use in first.writes()
                for other in second.reads()
            )
            if not at_minimum:
                continue
            reports = check_section(isa, latency, with_control(words, index, stall=stall - 1))
            assert any(report.kind == "too-early" and report.index == index + 1 for report in reports), (
                second.text
            )
            tried += 1
            if tried % 12 == 0:
                break
    assert tried >= 60


def test_a_wait_that_a_reader_needs_cannot_be_dropped_unseen(corpus_sm90: list[Path]) -> None:
    latency = latency_for("sm_90")
    tried = 0
    for isa, words in sections(corpus_sm90, 2):
        view = CodeView(isa, words)
        live = build_cfg(isa, words).reachable([0])
        pending: dict[int, tuple[int, set[tuple[str, int]]]] = {}
        before = tried
        for index in range(min(len(words), 700)):
            facts, control = view.facts(index), view.control[index]
            reads = {
                (use.file, number)
                for use in facts.reads()
                for number in range(use.first, use.first + use.count)
                if use.role != "guard"
            }
            mask = int(control["wait_mask"])
            for board, (taken, results) in list(pending.items()):
                # The nearest taker in straight-line code, waited for by the very instruction that reads its result.
                if mask >> board & 1:
                    straight = all(view.facts(item).kind != "branch" for item in range(taken, index))
                    if straight and reads & results and live[index] and view.facts(taken).guard == (7, False):
                        reports = check_section(
                            isa, latency, with_control(words, index, wait_mask=mask & ~(1 << board))
                        )
                        assert any(
                            report.kind == "in-flight" and report.index == index for report in reports
                        ), facts.text
                        tried += 1
                    del pending[board]
            board = int(control["write_scoreboard"])
            if facts.kind == "variable" and board != 7:
                pending[board] = (
                    index,
                    {
                        (use.file, number)
                        for use in facts.writes()
                        for number in range(use.first, use.first + use.count)
                    },
                )
            if tried - before >= 8:
                break
    assert tried >= 40


def test_an_unreadable_opcode_is_refused(corpus_sm90: list[Path]) -> None:
    ((isa, words), *_) = sections(corpus_sm90, 1)
    broken = words.copy()
    broken[2] = 0xFFF, 0
    with pytest.raises(UnsupportedError, match=r"\[word-unknown\]"):
        check_section(isa, latency_for("sm_90"), broken)


def test_a_product_that_takes_a_scoreboard_is_waited_for_however_long_it_takes() -> None:
    isa = isa_for("sm_86")

    def kinds(board: int, wait: int, between: int) -> set[str]:
        lines = [
            ("HMMA.16816.F32 R4, R12, R8, R4", Control(stall=2, write_scoreboard=board)),
            *[("NOP", Control(stall=15, yield_flag=0))] * between,
            ("IADD3 R0, R4, RZ, RZ", Control(stall=5, wait_mask=wait)),
            ("EXIT", Control(stall=5)),
        ]
        encoded = [isa.encode(text, control=control) for text, control in lines]
        words = np.array([(word & (1 << 64) - 1, word >> 64) for word in encoded], np.uint64)
        return {report.kind for report in check_section(isa, latency_for("sm_86"), words)}

    assert kinds(3, 1 << 3, 0) == kinds(7, 0, 3) == set()
    assert kinds(3, 0, 8) == {"in-flight"}, "other compilers' products are there after a time, this one says when"


def test_a_depbar_right_behind_who_takes_the_scoreboard_sees_it_and_a_control_word_does_not() -> None:
    isa = isa_for("sm_90")

    def kinds(stall: int, waiter: str, wait: int) -> set[str]:
        lines = [
            ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R0+URZ+0x28800], R3", Control(stall, 1, 1, 1)),
            (waiter, Control(stall=4, wait_mask=wait)),
            ("@!P0 NANOSLEEP 0x989680", Control(stall=5)),
            ("EXIT", Control(stall=5)),
        ]
        encoded = [isa.encode(text, control=control) for text, control in lines]
        words = np.array([(word & (1 << 64) - 1, word >> 64) for word in encoded], np.uint64)
        return {report.kind for report in check_section(isa, latency_for("sm_90"), words)}

    assert kinds(1, "DEPBAR.LE SB1, 0x0", 0) == kinds(2, "NOP", 1 << 1) == set()
    assert kinds(1, "NOP", 1 << 1) == kinds(1, "DEPBAR.LE SB0, 0x0", 0) == {"in-flight"}
