"""What a register still waits for: compiler code must already do what the model asks of a reader."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.errors import GWatchError, SiteError, UnsupportedError
from gwatch.sass.cfg import Cfg, build_cfg
from gwatch.sass.control import Control
from gwatch.sass.isa import isa_for
from gwatch.sass.latency import latency_class, latency_for
from gwatch.sass.scoreboards import ScoreboardUse, Waits, producers, readiness
from gwatch.sass.uses import ALWAYS, CodeView, WordFacts

GOLDEN = sorted((Path(__file__).resolve().parent.parent / "golden").glob("isa_*.txt"))


def section(path: Path, number: int = 0) -> tuple[CodeView, Cfg, Waits]:
    cubin = Cubin.from_file(path)
    words = list(cubin.get_map_kernel_def().values())[number].words
    isa = isa_for(cubin.arch.name)
    view = CodeView(isa, words)
    return view, build_cfg(isa, words), Waits(view)


def test_unused_boards_come_first_and_counted_ones_never() -> None:
    use = ScoreboardUse((3, 0, 1, 0, 9, 2), (3, 0, 1, 0, 0, 2), frozenset({1}))
    assert use.choose() == 3
    assert use.choose(frozenset({3})) == 2
    with pytest.raises(UnsupportedError, match=r"\[scoreboards\]"):
        ScoreboardUse((0,) * 6, (0,) * 6, frozenset(range(6))).choose()


def test_an_atomics_predicate_is_announced_by_the_scoreboard_of_its_sources() -> None:
    isa = isa_for("sm_90")
    atomic = "ATOM.E.ADD.F16x2.RN.STRONG.GPU P0, RZ, desc[UR8][R2.64], R5"
    words = [
        isa.encode(atomic, control=Control(1, 1, 7, 2, 0, 0)),
        isa.encode("@P0 EXIT", control=Control(5, 1, 7, 7, 0, 0), pc=16),
    ]
    view = CodeView(isa, np.array([(word & (1 << 64) - 1, word >> 64) for word in words], np.uint64))
    cfg = build_cfg(isa, view.words)
    (guard,) = [use for use in view.facts(1).reads() if use.file == "P"]
    need = readiness(cfg, view, Waits(view), latency_for("sm_90"), 1, guard, "ISETP")
    assert need.wait_mask == 1 << 2


def test_counted_depbars_of_the_corpus_are_recognised(corpus_sm90: list[Path]) -> None:
    counted: set[str] = set()
    full = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        isa = isa_for(cubin.arch.name)
        for kernel in cubin.get_map_kernel_def().values():
            view = CodeView(isa, kernel.words)
            waits = Waits(view)
            for index in range(len(view)) if waits.use.counted or waits.group.any() else ():
                facts = view.facts(index)
                if facts.mnemonic == "DEPBAR" and not facts.text.endswith("0x0"):
                    counted.add(facts.text)
                    assert int(facts.text.split("SB")[1][0]) in waits.use.counted
                elif facts.mnemonic == "DEPBAR":
                    board = int(facts.text.split("SB")[1][0])
                    assert int(waits.mask[index]) >> board & 1
                    full += 1
    assert counted and full


def test_compiler_code_waits_for_everything_the_model_waits_for(corpus_sm90: list[Path]) -> None:
    """Sampled reads of untouched kernels: no wait is missing that a reader inserted there would be given."""
    rng = random.Random(5)
    checked = waited = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        isa = isa_for(cubin.arch.name)
        latency = latency_for(cubin.arch.table)
        kernels = list(cubin.get_map_kernel_def().values())
        for kernel in rng.sample(kernels, min(5, len(kernels))):
            cfg = build_cfg(isa, kernel.words)
            if cfg.indirect:
                continue
            view = CodeView(isa, kernel.words)
            waits = Waits(view)
            live = cfg.reachable([0])
            for index in rng.sample(range(len(view)), min(40, len(view))):
                facts = view.facts(index)
                if not live[index] or not facts.complete or facts.kind == "async":
                    continue
                for use in facts.reads():
                    if use.file == "B":
                        continue
                    try:
                        found = readiness(cfg, view, waits, latency, index, use, latency_class(facts.opcode))
                    except GWatchError as error:
                        assert error.code == "word-unknown" or facts.mnemonic == "LDGSTS", (
                            path.name,
                            index,
                            error,
                        )
                        continue
                    missing = found.wait_mask & ~int(waits.mask[index])
                    assert not missing, (path.name, kernel.name, index, facts.text, use)
                    checked += 1
                    waited += found.wait_mask != 0
    assert checked > 1000 and waited > 30


def test_matrix_results_are_refused_until_their_wait(corpus_sm90: list[Path]) -> None:
    (path,) = [item for item in corpus_sm90 if "14516869dcfb" in item.name]
    view, cfg, waits = section(path)
    latency = latency_for("sm_90")
    (first, *_) = [index for index in range(len(view)) if view.facts(index).mnemonic == "HGMMA"]
    (written, *_) = [use for use in view.facts(first).writes() if use.file == "R"]
    with pytest.raises(SiteError, match=r"\[value-not-ready\].*HGMMA"):
        readiness(cfg, view, waits, latency, first + 1, written, "IADD3")
    after = next(index for index in range(first, len(view)) if waits.group[index]) + 1
    readiness(cfg, view, waits, latency, after, written, "IADD3")


def test_a_unit_that_completes_in_order_shares_a_scoreboard(corpus_sm90: list[Path]) -> None:
    (path,) = [item for item in corpus_sm90 if "9878d0d4aeac" in item.name]
    cubin = Cubin.from_file(path)
    isa = isa_for(cubin.arch.name)
    found = 0
    for kernel in cubin.get_map_kernel_def().values():
        view = CodeView(isa, kernel.words)
        if view.facts(61).text != "FLO.U32 R12, UR5":
            continue
        cfg, waits = build_cfg(isa, kernel.words), Waits(view)
        # FLO takes no scoreboard; POPC behind it takes SB1, which instruction 63 waits for.
        (use,) = [use for use in view.facts(64).reads() if use.first == 12]
        assert [item.index for item in producers(cfg, view, waits, 64, "R", 12)] == [61]
        ready = readiness(cfg, view, waits, latency_for("sm_90"), 64, use, "ISETP")
        assert ready.wait_mask == 0 and int(waits.mask[63]) == 2
        earlier = readiness(cfg, view, waits, latency_for("sm_90"), 63, use, "ISETP")
        assert earlier.wait_mask == 2
        found += 1
    assert found


def test_what_a_word_names_it_may_write_unless_its_opcode_has_no_results() -> None:
    known = WordFacts(True, False, "LD", "LD.E.U8.SYS", "variable", ALWAYS, (), "LD.E.U8.SYS R52, [R10+0x20]")
    assert known.may_touch("R", 67) and known.may_write("R", 67) and not known.may_write("R", 68)
    barrier = WordFacts(
        True, False, "BAR", "BAR.SYNC", "variable", ALWAYS, (), "BAR.SYNC.DEFER_BLOCKING R14, R14"
    )
    assert barrier.may_touch("R", 14) and not barrier.may_write("R", 14)
    unread = WordFacts(False, False, "?", "?", "?", ALWAYS, (), "")
    assert unread.may_write("UR", 3)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_listed_word_of_an_opcode_without_results_writes_a_register(path: Path) -> None:
    seen = set()
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        _, text, _, writes = (part.strip() for part in f"{line} ".split(" ; "))
        mnemonic = re.sub(r"^@!?U?P\w+ ", "", text).split()[0].split(".")[0]
        facts = WordFacts(True, False, mnemonic, mnemonic, "variable", ALWAYS, (), "X R0, P0")
        if not facts.may_write("R", 0) and not facts.may_write("P", 0):
            seen.add(mnemonic)
            assert writes in ("", "?"), line
    assert {"BAR", "STG", "ST"} <= seen
