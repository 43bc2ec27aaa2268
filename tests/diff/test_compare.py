"""What the comparison says about known changes to a kernel's code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.diff.artifacts import ArtifactDiff, compare
from gwatch.diff.compare import CodeDiff, Fate, compare_code
from gwatch.diff.items import Item
from gwatch.diff.text import full
from gwatch.inspect.view import CubinView
from gwatch.sass.shape import split

FIXTURES = Path(__file__).resolve().parent.parent / "inspect" / "fixtures"
_REGISTER = re.compile(r"\b(R|P|UR)([0-9]+)\b")

# Every line occurs once, so that an edit has one smallest description.
LINES = [f"IADD3 R{n}, R{n + 1}, {16 * n + 4:#x}, RZ" for n in range(40)]


def item(text: str, target: int = -1, control: tuple[int, ...] = (1, 1, 7, 7, 0, 0)) -> Item:
    registers = tuple(f"{file}{number}" for file, number in _REGISTER.findall(text))
    return Item(text, text, _REGISTER.sub(r"\1", text), registers, target, "", control)


def code(lines: list[str]) -> list[Item]:
    return [item(line) for line in lines]


def rows(diff: CodeDiff, fate: Fate) -> list[tuple[int | None, int | None]]:
    return [(step.first, step.second) for step in diff.steps if step.fate is fate]


def test_equal_code_is_identical() -> None:
    diff = compare_code(code(LINES), code(LINES))
    assert diff.verdict == "identical code"
    assert diff.counts == {Fate.SAME: 40}


@given(st.sets(st.integers(0, 40), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_inserted_lines_are_reported_exactly(places: set[int]) -> None:
    second: list[str] = []
    expected = []
    for position in range(41):
        if position in places:
            expected.append(len(second))
            second.append(f"MOV R200, {position:#x}")
        if position < 40:
            second.append(LINES[position])
    diff = compare_code(code(LINES), code(second))
    assert diff.counts == {Fate.SAME: 40, Fate.INSERTED: len(places)}
    assert [y for _, y in rows(diff, Fate.INSERTED)] == expected


@given(st.sets(st.integers(0, 39), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_deleted_lines_are_reported_exactly(places: set[int]) -> None:
    second = [line for n, line in enumerate(LINES) if n not in places]
    diff = compare_code(code(LINES), code(second))
    assert diff.counts == {Fate.SAME: 40 - len(places), Fate.DELETED: len(places)}
    assert [x for x, _ in rows(diff, Fate.DELETED)] == sorted(places)


@given(st.permutations(range(48)))
@settings(max_examples=40, deadline=None)
def test_a_renaming_is_recognised_with_its_mapping(order: list[int]) -> None:
    renamed = [_REGISTER.sub(lambda m: f"{m[1]}{order[int(m[2])] + 50}", line) for line in LINES]
    diff = compare_code(code(LINES), code(renamed))
    assert set(diff.counts) <= {Fate.REGISTERS, Fate.SAME}
    assert diff.counts[Fate.REGISTERS] == 40
    assert dict(diff.renaming) == {f"R{n}": f"R{order[n] + 50}" for n in range(41)}
    assert diff.verdict == "same instructions, other registers"


def test_registers_without_one_mapping_are_not_called_a_renaming() -> None:
    second = [LINES[0].replace("R0,", "R90,"), *LINES[1:]]
    second[1] = second[1].replace("R1,", "R91,").replace("R2,", "R92,")
    diff = compare_code(code(LINES), code(second))
    assert len(rows(diff, Fate.REGISTERS)) == 2
    assert diff.renaming == ()


@given(st.integers(0, 30), st.integers(3, 8), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_a_moved_block_is_reported_as_moved(start: int, length: int, target: int) -> None:
    block = LINES[start : start + length]
    rest = LINES[:start] + LINES[start + length :]
    target = min(target, len(rest))
    second = rest[:target] + block + rest[target:]
    diff = compare_code(code(LINES), code(second))
    assert set(diff.counts) <= {Fate.SAME, Fate.MOVED}
    distance = abs(target - start)
    assert diff.counts.get(Fate.MOVED, 0) == min(
        length, distance
    )  # either the block moved, or what it jumped over
    for x, y in rows(diff, Fate.MOVED):
        assert x is not None
        assert y is not None
        assert LINES[x] == second[y]


def test_a_hidden_bit_is_told_where_the_target_or_the_line_moved() -> None:
    ahead = [item(line) for line in LINES[:6]]
    branch = replace(item("BRA →", target=2), text="BRA 0x20", word=1)
    away = replace(branch, target=3, text="BRA 0x30")
    pushed = [item("NOP"), *ahead]
    assert compare_code([*ahead, branch], [*pushed, away]).counts[Fate.TARGET] == 1
    found = compare_code([*ahead, branch], [*pushed, replace(away, word=3)]).counts
    assert found.get(Fate.CHANGED) == 1 and Fate.TARGET not in found
    odd = replace(item("FADD R90, R91, R92"), word=1)
    assert compare_code([odd, *ahead], [*ahead, odd]).counts[Fate.MOVED] == 1
    assert Fate.MOVED not in compare_code([odd, *ahead], [*ahead, replace(odd, word=3)]).counts


def test_control_words_alone() -> None:
    second = code(LINES)
    second[5] = item(LINES[5], control=(4, 1, 7, 7, 0, 0))
    diff = compare_code(code(LINES), second)
    assert rows(diff, Fate.CONTROL) == [(5, 5)]
    assert diff.verdict == "same instructions, other control words"


def test_targets_that_move_with_the_code_are_no_change_and_others_are() -> None:
    first = [item("BRA →", target=3), *code(LINES[:4])]
    moved = [item("BRA →", target=4), item("NOP 1"), *code(LINES[:4])]
    diff = compare_code(first, moved)
    assert rows(diff, Fate.TARGET) == [(0, 0)]
    to_inserted = [item("BRA →", target=3), *code(LINES[:2]), item("NOP 1"), *code(LINES[2:4])]
    assert rows(compare_code(first, to_inserted), Fate.TARGET) == []
    assert rows(compare_code(first, to_inserted), Fate.SAME)[0] == (0, 0)
    elsewhere = [item("BRA →", target=2), *code(LINES[:4])]
    assert rows(compare_code(first, elsewhere), Fate.CHANGED) == [(0, 0)]


def test_a_return_address_that_moved_is_a_target() -> None:
    first = [item("MOV R54, 0x20"), *code(LINES[:3])]
    second = [item("MOV R54, 0x30"), item("NOP 1"), *code(LINES[:3])]
    assert rows(compare_code(first, second), Fate.TARGET) == [(0, 0)]
    other = [item("MOV R54, 0x40"), item("NOP 1"), *code(LINES[:3])]
    assert rows(compare_code(first, other), Fate.CHANGED) == [(0, 0)]


def test_an_operand_that_changed() -> None:
    second = [*LINES[:7], LINES[7].replace("RZ", "R3"), *LINES[8:]]
    diff = compare_code(code(LINES), code(second))
    assert rows(diff, Fate.CHANGED) == [(7, 7)]
    assert diff.verdict == "changed"


def test_shapes_keep_everything_but_registers() -> None:
    one = item("@!P0 LDG.E R4, desc[UR4][R2.64+0x8]")
    assert one.shape == "@!P LDG.E R, desc[UR][R.64+0x8]"
    assert one.registers == ("P0", "R4", "UR4", "R2")
    assert split(one.text)[1][-1] == "0x8"


@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_two_copies_of_one_build_have_identical_code(arch: str) -> None:
    path = FIXTURES / f"narrow_sm_{arch}.cubin"
    diff = compare(path, path)
    assert not diff.differs
    assert {kernel.verdict for kernel in diff.kernels} == {"identical code"}
    assert len(diff.kernels) == 10


def test_lost_alignment_shows_in_resources_and_instructions() -> None:
    diff = compare(FIXTURES / "triton/aligned.cubin", FIXTURES / "triton/in_unaligned.cubin")
    (kernel,) = diff.kernels
    assert kernel.code is not None
    changes = {change.name: (change.before, change.after) for change in kernel.resources}
    assert changes["share of 128-bit global accesses"] == (1.0, 0.2)
    assert kernel.fails("vector-width")
    assert kernel.fails("any")
    assert not kernel.fails("registers")
    assert not kernel.fails("spill")
    changed = [
        (kernel.items[0][s.first or 0].text, kernel.items[1][s.second or 0].text)
        for s in kernel.code.steps
        if s.fate is Fate.CHANGED
    ]
    assert changed[0] == ("@!P0 LDG.E.128 R4, desc[UR4][R2.64]", "@!P0 LDG.E R4, desc[UR4][R2.64]")
    inserted = [kernel.items[1][s.second or 0].text for s in kernel.code.steps if s.fate is Fate.INSERTED]
    assert [text.split(" ")[1] for text in inserted] == ["LDG.E"] * 6
    back = compare(FIXTURES / "triton/in_unaligned.cubin", FIXTURES / "triton/aligned.cubin").kernels[0]
    assert not back.fails("vector-width")


def test_kernels_on_one_side_only() -> None:
    diff = compare(FIXTURES / "triton/aligned.cubin", FIXTURES / "narrow_sm_90.cubin")
    verdicts = {kernel.name: kernel.verdict for kernel in diff.kernels}
    assert verdicts["copy_kernel"] == "only in the first"
    assert verdicts["mask"] == "only in the second"


def test_one_kernel_on_each_side_is_compared_whatever_its_name() -> None:
    (kernel,) = compare(
        FIXTURES / "triton/aligned.cubin", FIXTURES / "narrow_sm_90.cubin", "copy|wide"
    ).kernels
    assert (kernel.name, kernel.second_name, kernel.verdict) == ("copy_kernel", "wide", "changed")
    assert full(ArtifactDiff([kernel], [])).startswith("kernel copy_kernel → wide: changed\n")


def test_the_toolkit_ladder_of_the_open_corpus(corpus_sm90: list[Path]) -> None:
    # The same kernels built by CUDA 11.8 and 12.8: every pair accounts for every instruction of both sides.
    first = next(p for p in corpus_sm90 if "d24c5a182260" in p.name)
    second = next(p for p in corpus_sm90 if "e946f17c538a" in p.name)
    diff = compare(first, second, "kDequantizeBlockwise")
    both = [kernel for kernel in diff.kernels if kernel.code is not None]
    assert len(both) >= 9
    for kernel in both:
        assert kernel.code is not None
        steps = kernel.code.steps
        assert sorted(s.first for s in steps if s.first is not None) == list(range(len(kernel.items[0])))
        assert sorted(s.second for s in steps if s.second is not None) == list(range(len(kernel.items[1])))
        for step in steps:
            if step.fate in (Fate.SAME, Fate.CONTROL, Fate.TARGET, Fate.REGISTERS) and step.first is not None:
                one, other = kernel.items[0][step.first], kernel.items[1][step.second or 0]
                assert one.shape == other.shape or step.fate is Fate.TARGET
        aligned = sum(1 for s in steps if s.fate not in (Fate.INSERTED, Fate.DELETED))
        assert aligned > 0.5 * min(len(kernel.items[0]), len(kernel.items[1]))


def test_initial_values_and_names_are_compared_too(tmp_path: Path) -> None:
    """Same code with another table, or under another name, is not the same kernel."""
    source = Path(__file__).parents[1] / "binary/data/holders_sm90.cubin"
    view = CubinView.of(source.read_bytes())
    name = next(name for name, value in view.initial_values.items() if len(value) >= 4)
    elf = view.cubin.elf
    symbol = next(item for item in elf.symbols if item.name == name)
    at = elf.sections[symbol.section].offset + symbol.value
    data = bytearray(source.read_bytes())
    data[at] ^= 0x40
    (tmp_path / "other.cubin").write_bytes(bytes(data))
    diff = compare(source, tmp_path / "other.cubin")
    assert diff.differs and all(kernel.verdict == "identical code" for kernel in diff.kernels)
    (change,) = diff.kernels[0].attributes
    assert change.name == f"initial value of {name}" and change.before != change.after
    assert not compare(source, source).differs
