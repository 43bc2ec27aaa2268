"""Whole sections by columns: rows, uses and texts of any number of words, from any number of threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from gwatch.cuda.binary import Cubin
from gwatch.sass.arch import arch_by_name
from gwatch.sass.isa import FILE_NAMES, KIND_NAMES, Isa, isa_for
from gwatch.sass.isa.table import load

FIXTURE = Path(__file__).resolve().parent.parent / "inspect" / "fixtures" / "vector_copy.cubin"


def words() -> np.ndarray:
    return Cubin.from_file(FIXTURE).get_kerneldef_by_name("copy_kernel").words


def test_rows_say_what_decoding_one_by_one_says() -> None:
    isa = isa_for("sm_90a")
    base = 0x2000
    section = isa.section(words())
    rows, uses = section.rows(base), section.uses
    for index, ((low, high), row) in enumerate(zip(words().tolist(), rows, strict=True)):
        decoded = isa.decode(low | high << 64, base + 16 * index)
        assert section.opcode_names[row["opcode"]] == decoded.opcode and row["known"]
        assert (row["guard"], row["guard_negated"], row["guard_uniform"]) == (*decoded.guard, decoded.uniform_guard)
        assert row["complete"] == decoded.effects.complete and KIND_NAMES[row["kind"]] == decoded.effects.kind
        control = decoded.control
        for name in ("stall", "yield_flag", "write_scoreboard", "read_scoreboard", "wait_mask", "reuse"):
            assert row[name] == getattr(control, name)
        assert row["relative"] == (decoded.target is not None) and row["target"] == (decoded.target or 0)
        mine = slice(int(row["first_use"]), int(row["first_use"]) + int(row["uses"]))
        assert set(uses.index[mine].tolist()) <= {index}
        got = {(FILE_NAMES[file], first, count, write) for file, first, count, write in zip(
            uses.file[mine].tolist(), uses.first[mine].tolist(), uses.count[mine].tolist(), uses.write[mine].tolist(),
            strict=True)}
        effects = decoded.effects
        assert got == {(use.file, use.first, use.count, write) for side, write in ((effects.reads, False),
                                                                                (effects.writes, True)) for use in side}


def test_no_words_and_unknown_words() -> None:
    isa = isa_for("sm_90a")
    empty = isa.section(np.zeros((0, 2), np.uint64))
    assert len(empty.rows()) == len(empty.uses.index) == len(empty.texts(np.zeros(0, np.int64))) == 0
    odd = isa.section(np.array([[0, 0], [2**64 - 1, 2**64 - 1], [0xFFF, 0]], np.uint64))
    assert odd.texts(np.arange(3) * 16) == [None] * 3
    rows = odd.rows()
    assert not rows["known"].any() and not rows["complete"].any() and set(rows["opcode"].tolist()) == {-1}


def test_several_threads_may_read_at_once() -> None:
    for _ in range(3):
        fresh = Isa(arch_by_name("sm_90a"), load("sm_90"))
        expected = isa_for("sm_90a").section(words()).texts(np.arange(len(words())) * 16)
        found: list[list[str | None]] = []
        parts = [np.roll(words(), turn, axis=0) for turn in range(6)]

        def read(part: np.ndarray, isa: Isa = fresh, into: list[list[str | None]] = found) -> None:
            into.append(isa.section(part).texts(np.arange(len(part)) * 16))

        threads = [threading.Thread(target=read, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        plain = sorted(text.split(" 0x")[0] for text in expected if text)
        assert len(found) == 6 and all(sorted(t.split(" 0x")[0] for t in texts if t) == plain for texts in found)
