"""The latency table: how its text is read, what wins, and facts that the shipped one must agree with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gwatch.errors import UnsupportedError
from gwatch.sass.latency import UNKNOWN, UNSEEN, latency_class, latency_for, parse_table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import learn_latency
from learn_latency import BORNE_OUT, Counts, SectionLearner, limits, table_text, trusted

TEXT = """
# a comment
signal 2
pair IADD3 R IMAD data 5 6 100
pair IADD3 R MUFU data 4 4 2    # seen twice: not trusted
floor LOP3 R IMAD.WIDE data 5
pair LOP3 R IMAD.WIDE data 3 3 50
pair ISETP P * guard 13 13 100
pair ELECT P * guard 13 13 100
floor ELECT P * guard 14
pair HMMA R FADD data 34 34 20
given CS2R R STG data 5
pair CS2R R STG data 5 12 9
overwrite MOV R IADD3 2 2 40
overwrite IADD3 R CS2R 61 61 9
limit ALU R FMA data 5 5230 8
limit ALU P * guard 13 5305 8
"""


def test_what_is_trusted_given_and_floored() -> None:
    table = parse_table(TEXT, "test")
    assert table.signal == 2
    assert table.distance("IADD3", "R", "IMAD", "data") == 6
    assert table.minimum("IADD3", "R", "IMAD", "data") == 5
    assert table.distance("IADD3", "R", "MUFU", "data") == UNSEEN
    assert table.minimum("IADD3", "R", "MUFU", "data") == 4
    assert table.distance("IADD3", "R", "SHF", "data") == UNSEEN
    assert table.distance("NEVER", "R", "SEEN", "data") == UNKNOWN
    assert table.distance("HMMA", "R", "SHF", "data") == 36, "slow for all its consumers"
    assert table.distance("LOP3", "R", "IMAD.WIDE", "data") == 5
    assert table.distance("ISETP", "P", "BRA", "guard") == 13
    assert table.distance("ELECT", "P", "STG", "guard") == 14
    assert table.distance("CS2R", "R", "STG", "data") == 5
    assert table.overwrite("MOV", "R", "IADD3") == 2
    assert table.overwrite("MOV", "R", "MOV") == 1
    assert table.overwrite("IADD3", "R", "SHF") == UNSEEN
    assert table.overwrite("MOV", "R", "SHF") == UNKNOWN
    assert table.settled("IADD3", "R") == UNSEEN and table.settled("SHF", "R") == UNKNOWN
    assert table.overwrite("IADD3", "R", "CS2R") == UNSEEN, "a result that is there may be overwritten"


def test_limits_pool_the_opcodes_of_a_unit() -> None:
    table = parse_table(TEXT, "test")
    assert table.limit("SHF", "R", "FFMA", "data") == table.limit("LOP3", "R", "IMAD", "data") == 5
    assert table.limit("SHF", "R", "STG", "data") == 1, "nothing known"
    assert table.limit("ISETP", "P", "BRA", "guard") == table.limit("LOP3", "P", "STG", "guard") == 13
    assert table.slowest("PLOP3", "P") == 13 and table.slowest("IMAD", "R") == 1


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("IMAD.WIDE.U32", "IMAD.WIDE"),
        ("IMAD.MOV.U32", "IMAD"),
        ("IMAD.HI.U32", "IMAD.HI"),
        ("LOP3.LUT", "LOP3"),
        ("CS2R.32", "CS2R"),
        ("LEA.HI.X.SX32", "LEA.HI"),
        ("STG.E.EF.64", "STG"),
    ],
)
def test_latency_classes(opcode: str, name: str) -> None:
    assert latency_class(opcode) == name


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\[latency-unknown\]"):
        latency_for("sm_70")


@pytest.mark.parametrize(
    ("producer", "file", "consumer", "role", "cycles"),
    [
        ("IADD3", "R", "IADD3", "data", 4),
        ("LOP3", "R", "LOP3", "data", 4),
        ("LOP3", "R", "IMAD", "data", 5),
        ("IMAD", "R", "IMAD", "data", 4),
        ("IMAD", "R", "IADD3", "data", 5),
        ("IADD3", "R", "LDG", "address", 5),
        ("LOP3", "R", "STG", "address", 5),
        ("CS2R", "R", "STG", "data", 5),
        ("IADD3", "R", "IMAD.WIDE", "data", 5),
        ("IADD3", "R", "IMAD.WIDE", "addend", 3),
        ("ISETP", "P", "BRA", "guard", 13),
        ("ISETP", "P", "SEL", "predicate", 4),
        ("ELECT", "P", "STG", "guard", 14),
    ],
)
def test_the_shipped_table_agrees_with_what_was_measured(
    producer: str, file: str, consumer: str, role: str, cycles: int
) -> None:
    assert latency_for("sm_90").distance(producer, file, consumer, role) == cycles


def test_the_shipped_table_is_what_the_tool_writes_and_reads_back() -> None:
    table = latency_for("sm_90")
    assert len(table.pairs) > 500 and table.signal == 2
    for (_, file, _, role), (minimum, agreed, seen) in table.pairs.items():
        assert file in ("R", "UR", "P", "UP", "B") and role
        assert 1 <= minimum <= agreed and seen >= 1


def test_trusted_distance_needs_enough_pairs() -> None:
    counts = Counts()
    pair = ("A", "R", "B", "data")
    for distance, times in {4: 2, 5: 10, 9: 1}.items():
        for _ in range(times):
            counts.note(pair, distance, plain=True, origin="one")
    assert trusted(counts.plain[pair]) == 5
    text = table_text("other", counts)
    assert "pair A R B data 4 5 13" in text and "limit" not in text.split("# signal")[1]
    assert parse_table(text, "other").minimum("A", "R", "B", "data") == 4


def test_a_limit_must_be_borne_out_in_many_places() -> None:
    counts = Counts()
    for number in range(BORNE_OUT[3]):
        assert limits(counts) == {}, number
        counts.sections += 1
        for _ in range(5):
            counts.note(("IADD3", "R", "IMAD", "data"), 5, plain=False, origin=f"origin {number % 3}")
    ((pair, (cycles, seen)),) = limits(counts).items()
    assert pair == ("ALU", "R", "FMA", "data") and cycles == 5
    assert (seen.pairs, seen.sections, len(seen.origins)) == (5 * BORNE_OUT[3], BORNE_OUT[3], 3)
    other = Counts()
    other.sections += 1
    other.note(("SHF", "R", "FFMA", "data"), 4, plain=False, origin="another")
    counts.merge(other)
    assert limits(counts) == {}, "one place that goes closer is enough"


def test_learning_finds_pairs_in_a_corpus_kernel(corpus_sm90: list[Path]) -> None:
    from gwatch.cuda.binary import Cubin
    from gwatch.sass.isa import isa_for

    (path,) = [item for item in corpus_sm90 if "bb4300356c24" in item.name]
    cubin = Cubin.from_file(path)
    counts = Counts()
    for kernel in cubin.get_map_kernel_def().values():
        SectionLearner(isa_for(cubin.arch.name), kernel.words, kernel.entry_indices, counts, "jax").run()
    assert counts.instructions == 208
    # ISETP.NE.U32.AND P0 at 0x100 and @!P0 BRA at 0x120 are 13 issue cycles apart.
    assert counts.plain["ISETP", "P", "*", "guard"][13] >= 1
    table = latency_for("sm_90")
    for pair, seen in counts.plain.items():
        if pair[3] != "overwrite":
            assert min(seen) >= table.minimum(*pair), pair
    for (producer, file, consumer, role), distances in counts.limits.items():
        assert min(distances) >= table.limits.get((producer, file, consumer, role), 1)


def test_the_command_learns_linked_code_of_its_table_and_equal_sections_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learn_latency, "compiled", lambda table, folder: [])
    data = Path(__file__).resolve().parents[1]
    for name, source in (
        ("sm90-one-a.cubin", "binary/data/holders_sm90.cubin"),
        ("sm90-two-b.cubin", "binary/data/holders_sm90.cubin"),
        ("sm90-two-c.cubin", "rewrite/data/object_sm90.cubin"),
        ("sm75-one-d.cubin", "binary/data/holders_sm75.cubin"),
    ):
        (tmp_path / name).write_bytes((data / source).read_bytes())
    (task,) = learn_latency.tasks_of([tmp_path], "sm_90", 1000, "$^")
    assert task.path.name == "sm90-one-a.cubin" and task.origin == "one"
    assert learn_latency.main(["sm_90", "sm_75", "--corpus", str(tmp_path), "-o", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 2 and all("of 1 of 1 files" in line for line in out)
    for table in ("sm_90", "sm_75"):
        found = parse_table((tmp_path / f"latency_{table}.txt").read_text(), table)
        assert found.pairs and found.signal >= 1


def test_what_an_earlier_table_knows_of_other_code_is_taken_over() -> None:
    rows = {"pair A R B data": (5, 6, 9), "pair A R C data": (5, 9, 2), "limit ALU R FMA data": (5, 200, 4)}
    old = learn_latency.rows_of(
        "# a head of 77 instructions\nsignal 2\nfloor A R B data 4\npair A R B data 4 7 100\npair A R C data 4 4 6\n"
        "pair A R D data 3 3 8\noverwrite A R B 2 2 9\nlimit ALU R FMA data 6 80 3\nlimit ALU P * guard 13 90 4\n"
        "limit FMA R FMA data 4 90 4\n"
    )
    found = learn_latency.taken_over(rows, old, {"limit FMA R FMA data": 3, "limit ALU P * guard": 13})
    assert found == {
        "pair A R B data": (4, 6, 100),
        "pair A R C data": (4, 4, 6),
        "pair A R D data": (3, 3, 8),
        "overwrite A R B": (2, 2, 9),
        "limit ALU R FMA data": (5, 200, 4),
        "limit ALU P * guard": (13, 90, 4),
    }, "a limit that code at hand undercuts is none"
    wide = {"pair IMAD.WIDE R IMAD.WIDE data": (4, 4, 1128)}
    assert learn_latency.taken_over({"limit HIGH R WIDE data": (6, 78, 6)}, wide, {}) == wide
    text = table_text("sm_75", Counts(), "# from 77 instructions\npair A R D data 3 3 8\nsignal 1\n")
    assert "# 1 lines are of code that an earlier table was learned from (77 instructions)." in text
    assert parse_table(text, "t").pairs == {("A", "R", "D", "data"): (3, 3, 8)} and parse_table(text, "t").signal == 1
