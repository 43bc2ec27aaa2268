"""Where a result counts as finished: overwritten, announced by a scoreboard, handed over by a call. Both ways: what is
sound passes, and what comes too early is caught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.rewrite import Rewriter, Rewritten, Snippet
from gwatch.rewrite import rewriter as rewriter_module
from gwatch.sass.control import Control
from gwatch.sass.hazards import RewriteChecker, check_rewrite
from gwatch.sass.integrity import Rewrite
from gwatch.sass.isa import Isa
from gwatch.sass.latency import LatencyTable

KERNEL = "_Z5kfuncIfLi0EEvPT_S1_S0_l"
CALL = 21
NOP = ("NOP", Control(stall=1))


class Checked:
    """A kernel of sm_86 some of whose instructions are others, one snippet inserted, and what the checker was given."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        corpus: list[Path],
        lines: Sequence[tuple[str, Control]],
        start: int,
        site: int,
        snippet: str,
        registers: Sequence[int] = (),
        names: int = 1,
    ) -> None:
        (path,) = (item for item in corpus if "sm_86-bitsandbytes-4392a173999b" in item.name)
        cubin = Cubin.from_file(path)
        kernel = cubin.get_kerneldef_by_name(KERNEL)
        rewriter = Rewriter(cubin, kernel)
        data = bytearray(cubin.data)
        for number, (text, control) in enumerate(lines):
            place = kernel.section.offset + 16 * (start + number)
            data[place : place + 16] = rewriter.isa.encode(text, control=control).to_bytes(16, "little")
        caught: list[tuple[Isa, LatencyTable, Rewrite]] = []

        def spy(isa: Isa, latency: LatencyTable, rewrite: Rewrite) -> str:
            caught.append((isa, latency, rewrite))
            return check_rewrite(isa, latency, rewrite)

        monkeypatch.setattr(rewriter_module, "check_rewrite", spy)
        others = [number for number in range(255) if number not in registers] if registers else []
        changed = Rewriter(Cubin.from_bytes(bytes(data)), KERNEL, {"general": others})
        changed.insert(site, Snippet(snippet, registers={f"r{number}": 1 for number in range(names)}))
        self.result: Rewritten = changed.apply()
        self.isa, self.latency, self.rewrite = caught[-1]
        self.first = self.result.sites[0].first
        self.controls = [Control(*fields) for fields in self.result.sites[0].controls]
        self.texts = self.result.sites[0].texts

    def kinds(self, index: int, **fields: int) -> set[str]:
        """Reports once the control word of the site's line ``index`` is another."""
        words = self.rewrite.words.copy()
        word = int(words[self.first + index, 0]) | int(words[self.first + index, 1]) << 64
        control = dataclasses.replace(Control.from_word(word), **fields)
        word = dataclasses.replace(control, yield_flag=int(control.stall < 12)).replace_in(word)
        words[self.first + index] = word & (1 << 64) - 1, word >> 64
        changed = dataclasses.replace(self.rewrite, words=words)
        return {report.kind for report in RewriteChecker(self.isa, self.latency, changed).run()}


def test_a_product_with_a_scoreboard_is_waited_for_and_one_without_is_timed(
    monkeypatch: pytest.MonkeyPatch, corpus_all: list[Path]
) -> None:
    product = "HMMA.16816.F32 R4, R12, R8, R4"
    copy = "IADD3 %r0, R4, RZ, RZ"
    given = [(product, Control(stall=2, write_scoreboard=3, read_scoreboard=4)), NOP]
    waits = Checked(monkeypatch, corpus_all, given, 7, 9, copy)
    assert [control.wait_mask for control in waits.controls] == [1 << 3]
    assert waits.kinds(0, wait_mask=0) == {"not-ready"}
    timed = Checked(monkeypatch, corpus_all, [(product, Control(stall=2)), NOP], 7, 9, copy)
    needed = timed.latency.distance("HMMA", "R", "IADD3", "data")
    assert needed >= 15 and sum(control.stall for control in timed.controls[:-1]) + 3 >= needed
    assert not any(control.wait_mask for control in timed.controls)
    longest = max(range(len(timed.controls) - 1), key=lambda number: timed.controls[number].stall)
    assert timed.kinds(longest, stall=timed.controls[longest].stall - 1) == {"not-ready"}
    assert len(timed.controls) - 1 == -(-(needed - 3) // 15), "no more NOPs than the wait takes"


def test_what_a_call_left_unfinished_is_finished_behind_it(
    monkeypatch: pytest.MonkeyPatch, corpus_all: list[Path]
) -> None:
    write = "LDC %r0, c[0x0][0x0]"
    behind = Checked(monkeypatch, corpus_all, [], CALL, CALL + 1, write, (20,))
    assert behind.texts[0].startswith("LDC R20"), "the return address, written 5 cycles before the call"
    assert behind.kinds(0) == set()
    # Without the call it would still be on its way.
    plain = Checked(monkeypatch, corpus_all, [NOP], CALL, CALL + 1, write, (20,))
    (load,) = (number for number, text in enumerate(plain.texts) if text.startswith("LDC"))
    assert load and sum(control.stall for control in plain.controls[:load]) >= 8
    assert plain.kinds(load - 1, stall=plain.controls[load - 1].stall - 1) == {"overwrite"}


def test_a_result_that_ours_overwrote_is_none_that_the_kernel_waits_for(
    monkeypatch: pytest.MonkeyPatch, corpus_all: list[Path]
) -> None:
    # R0 is the kernel's from instruction 9 on; FADD's is gone by then.
    snippet = "S2R %r0, SR_TID.X\nFADD %r0, %r0, %r0\nMUFU.RCP %r0, %r0\nFFMA %r0, %r0, %r0, %r0"
    use = [("S2R R0, SR_TID.X", Control(stall=1, write_scoreboard=0)), ("IADD3 R4, R0, RZ, RZ", Control(wait_mask=1))]
    found = Checked(monkeypatch, corpus_all, use, 7, 7, snippet, (0,))
    assert found.texts[3].startswith("FFMA R0") and found.kinds(3) == set()
    assert "lands-late" in found.kinds(3, stall=1)
    assert np.flatnonzero(found.rewrite.inserted).tolist() == list(range(7, 7 + len(found.texts)))
