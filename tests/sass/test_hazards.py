"""The replay must agree with sound rewrites and catch every seeded fault."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.errors import HazardError
from gwatch.rewrite import Rewriter
from gwatch.rewrite import rewriter as rewriter_module
from gwatch.sass.control import Control
from gwatch.sass.hazards import RewriteChecker, check_rewrite
from gwatch.sass.integrity import Rewrite
from gwatch.sass.isa import Isa
from gwatch.sass.latency import LatencyTable

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rewrite"))

from records import RECORD_A, RECORD_B, named, recorder


@dataclasses.dataclass
class Case:
    """A sound rewrite, as the checker was given it."""

    isa: Isa
    latency: LatencyTable
    rewrite: Rewrite
    branches: tuple[int, ...]
    returns: tuple[int, ...]
    edits: tuple[int, ...]
    place: np.ndarray

    def mutated(self, index: int, change: object) -> Rewrite:
        """The rewrite with word ``index`` passed through ``change``."""
        words = self.rewrite.words.copy()
        word = int(words[index, 0]) | int(words[index, 1]) << 64
        word = change(word)  # type: ignore[operator]
        words[index] = word & (1 << 64) - 1, word >> 64
        return dataclasses.replace(self.rewrite, words=words)

    def kinds(self, rewrite: Rewrite) -> set[str]:
        """Kinds of the reports on ``rewrite``."""
        return {report.kind for report in RewriteChecker(self.isa, self.latency, rewrite).run()}


def controlled(**fields: int) -> object:
    """A change of control fields; yield_flag follows the stall."""

    def change(word: int) -> int:
        control = dataclasses.replace(Control.from_word(word), **fields)
        return dataclasses.replace(control, yield_flag=int(control.stall < 12)).replace_in(word)

    return change


def case(monkeypatch: pytest.MonkeyPatch, image: bytes, name: str, sites: tuple[int, ...]) -> Case:
    caught: list[tuple[Isa, LatencyTable, Rewrite]] = []

    def spy(isa: Isa, latency: LatencyTable, rewrite: Rewrite) -> str:
        caught.append((isa, latency, rewrite))
        return check_rewrite(isa, latency, rewrite)

    monkeypatch.setattr(rewriter_module, "check_rewrite", spy)
    cubin = Cubin.from_bytes(image)
    kernel = next(kernel for key, kernel in cubin.get_map_kernel_def().items() if name in key)
    plan = recorder(cubin, kernel)
    for number, index in enumerate(sites):
        plan.insert(index, RECORD_B if number % 2 else RECORD_A, {"site": number, "mask": 0xFF00})
    result = plan.apply()
    return Case(
        *caught[0], result.branches, result.returns, tuple(e.index for e in result.edits), result.place_map
    )


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch, corpus_sm90: list[Path]) -> Case:
    # Two sites one instruction apart, a call, a return place, a loop, one behind .reuse, the inner function.
    image = named(corpus_sm90, "jax_cuda13_plugin-bb4300356c24").read_bytes()
    return case(monkeypatch, image, "Make", (0, 5, 6, 20, 21, 60, 61, 130))


def lines(sound: Case) -> list[tuple[int, Control, str]]:
    checker = RewriteChecker(sound.isa, sound.latency, sound.rewrite)
    return [
        (
            index,
            Control.from_word(int(checker.view.words[index, 0]) | int(checker.view.words[index, 1]) << 64),
            checker.view.facts(index).text,
        )
        for index in checker.new
    ]


def test_a_sound_rewrite_has_no_reports(sound: Case) -> None:
    assert sound.kinds(sound.rewrite) == set()
    assert sound.edits and sound.returns and len(sound.branches) > 3


def test_every_stall_of_a_record_is_the_least_possible(sound: Case) -> None:
    tried = 0
    for index, control, text in lines(sound):
        if control.stall == 1 or "BRA" in text or index < sound.rewrite.entry:
            continue
        broken = sound.mutated(index, controlled(stall=control.stall - 1))
        assert sound.kinds(broken) & {"too-early", "lands-late", "overwrite"}, text
        tried += 1
    assert tried >= 8


def test_a_dropped_wait_is_caught(sound: Case) -> None:
    tried = 0
    for index, control, text in lines(sound):
        for board in range(6):
            if control.wait_mask >> board & 1:
                broken = sound.mutated(index, controlled(wait_mask=control.wait_mask & ~(1 << board)))
                assert sound.kinds(broken) & {"in-flight", "lent", "not-ready"}, text
                tried += 1
    assert tried >= 8


def test_a_wrong_or_missing_scoreboard_is_caught(sound: Case) -> None:
    tried = 0
    for index, control, text in lines(sound):
        for name in ("write_scoreboard", "read_scoreboard"):
            board = getattr(control, name)
            if board == 7:
                continue
            for other in {0, 1, 2, 3, 4, 5, 7} - {board}:
                caught = bool(sound.kinds(sound.mutated(index, controlled(**{name: other}))))
                # A store's sources may not be wanted back on any way, or the kernel may wait for the other board first.
                assert caught or (name == "read_scoreboard" and other < 7), (text, name, other)
                tried += caught
    assert tried >= 30


def test_a_scoreboard_that_a_depbar_counts_on_is_caught(sound: Case) -> None:
    use = dataclasses.replace(sound.rewrite.waits.use, counted=frozenset(range(6)))
    waits = sound.rewrite.waits
    waits.use = use
    assert "counted" in sound.kinds(sound.rewrite)


def test_a_write_to_a_live_register_is_caught(sound: Case) -> None:
    seen: set[str] = set()
    for index, _, text in lines(sound):
        if "CS2R" in text or "LOP3" in text:
            kinds = sound.kinds(sound.mutated(index, lambda word: word & ~(0xFF << 16) | 9 << 16))
            # R9 is idle in places; even there it may not be overwritten at the last moment.
            assert kinds & {"clobber", "lands-late", "not-ready"}, text
            seen |= kinds
    assert "clobber" in seen


def test_an_unmoved_position_is_caught(sound: Case) -> None:
    old = sound.rewrite.view.words
    for index in (*sound.branches, *sound.returns):
        word = int(old[index, 0]) | int(old[index, 1]) << 64
        kinds = sound.kinds(sound.mutated(int(sound.place[index]), lambda _, word=word: word))
        assert kinds & {"target", "return-address"}, index


def test_a_changed_original_a_kept_operand_and_a_spoilt_copy_are_caught(sound: Case) -> None:
    place = int(sound.place[40])
    assert sound.kinds(sound.mutated(place, lambda word: word ^ 1 << 24)) == {"changed"}
    assert sound.kinds(sound.mutated(place, lambda word: word ^ 1 << 116)) == {"changed"}
    edited = int(sound.place[sound.edits[0]])
    assert "reuse" in sound.kinds(sound.mutated(edited, lambda word: word | 1 << 122))
    assert sound.rewrite.twin is not None
    assert sound.kinds(sound.mutated(sound.rewrite.twin + 3, lambda word: word ^ 1 << 24)) == {"twin"}
    assert sound.rewrite.count < sound.rewrite.twin
    assert sound.kinds(sound.mutated(sound.rewrite.count, lambda word: word ^ 1 << 24)) == {"padding"}
    branch = int(sound.place[sound.branches[0]])
    assert "changed" in sound.kinds(sound.mutated(branch, lambda word: word ^ 1 << 116))


def test_a_register_that_the_kernel_uses_is_not_the_snippet_s(sound: Case) -> None:
    for file, number in (("R", 9), ("UR", 4), ("P", 0)):
        shared = dataclasses.replace(sound.rewrite, own=sound.rewrite.own | {(file, number)})
        assert "shared" in sound.kinds(shared)


def test_reports_become_one_error(sound: Case) -> None:
    broken = sound.mutated(int(sound.place[40]), lambda word: word ^ 1 << 24)
    with pytest.raises(HazardError, match=r"\[hazard\] new instruction .*: changed: original instruction 40"):
        check_rewrite(sound.isa, sound.latency, broken)


def test_a_value_read_too_early_is_caught(monkeypatch: pytest.MonkeyPatch, corpus_sm90: list[Path]) -> None:
    from gwatch.rewrite import Snippet

    image = named(corpus_sm90, "jax_cuda13_plugin-bb4300356c24").read_bytes()
    caught: list[tuple[Isa, LatencyTable, Rewrite]] = []
    monkeypatch.setattr(rewriter_module, "check_rewrite", lambda *given: caught.append(given) or "")
    copy = Snippet("IADD3 %r0, {value}, RZ, RZ\nIADD3 %r1, %r0, RZ, RZ", name="copy")
    tried = 0
    for index in range(2, 60):
        cubin = Cubin.from_bytes(image)
        plan = Rewriter(cubin, next(iter(cubin.get_map_kernel_def())))
        written = [use for use in plan.surroundings.view.facts(index - 1).writes() if use.file == "R"]
        if not written:
            continue
        plan.insert(index, copy, {"value": f"R{written[0].first}"})
        plan.apply()
        isa, latency, rewrite = caught[-1]
        checker = RewriteChecker(isa, latency, rewrite)
        assert checker.run() == []
        current = Case(isa, latency, rewrite, (), (), (), np.zeros(0))
        for place, control, text in lines(current):
            if control.wait_mask:
                assert current.kinds(current.mutated(place, controlled(wait_mask=0))) == {"not-ready"}, text
                tried += 1
            if "NOP" in text and control.stall > 1:
                broken = current.mutated(place, controlled(stall=control.stall - 1))
                assert current.kinds(broken) == {"not-ready"}, text
                tried += 1
    assert tried > 10
