"""Moving instructions: maps for any set of insertions, and every code position inside the words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.errors import UnsupportedError
from gwatch.sass.cfg import build_cfg, word_at
from gwatch.sass.isa import Isa, isa_for
from gwatch.sass.motion import move_words, plan_layout, return_addresses
from gwatch.sass.uses import CodeView

NOP = 0x000FC000000000000000000000007918


@given(
    st.integers(1, 30).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.dictionaries(st.integers(0, count), st.integers(1, 4)),
            st.sets(st.integers(0, count - 1)),
            st.integers(0, 3),
        )
    )
)
def test_layout_of_any_insertions_and_deletions(case: tuple[int, dict[int, int], set[int], int]) -> None:
    count, inserted, deleted, entry = case
    layout = plan_layout(count, inserted, (0, entry), frozenset(deleted))
    # The order by hand: entry words, then before each index its words, then the instruction.
    order: list[tuple[str, int]] = [("entry", 0)] * entry
    first = {}
    for index in range(count + 1):
        first[index] = len(order)
        order += [("new", index)] * inserted.get(index, 0)
        if index < count and index not in deleted:
            order.append(("old", index))
    assert layout.count == len(order)
    for index in range(count):
        wanted = -1 if index in deleted else order.index(("old", index))
        assert layout.place_map[index] == wanted
    for index in range(count + 1):
        assert layout.branch_map[index] == first[index]
        assert layout.target_map[index] == (0 if index == 0 else first[index])


@pytest.fixture(scope="module")
def kernel(corpus_sm90: list[Path]) -> KernelDef:
    """A kernel with branches both ways, BSSY, calls, and a function inside its section."""
    (path,) = [item for item in corpus_sm90 if "bb4300356c24" in item.name]
    return next(iter(Cubin.from_file(path).get_map_kernel_def().values()))


@pytest.fixture(scope="module")
def isa(kernel: KernelDef) -> Isa:
    return isa_for(kernel.arch.name)


def test_return_addresses_are_found_through_copies(kernel: KernelDef, isa: Isa) -> None:
    view = CodeView(isa, kernel.words)
    assert return_addresses(view, build_cfg(isa, kernel.words)) == {19: 0x150}
    assert return_addresses(view, build_cfg(isa, kernel.words), frozenset({19})) == {}, (
        "a relocation supplies it"
    )


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, 207), st.integers(1, 3), min_size=1, max_size=12))
def test_every_position_follows_any_insertion(kernel: KernelDef, isa: Isa, where: dict[int, int]) -> None:
    words = kernel.words
    moved = move_words(isa, words, {index: [NOP] * number for index, number in where.items()})
    layout = moved.layout
    assert len(moved.words) == 208 + sum(where.values())
    new_of = {int(place): index for index, place in enumerate(layout.place_map)}
    relative = 0
    for place in range(len(moved.words)):
        if place not in new_of:
            assert word_at(moved.words, place) == NOP
            continue
        index = new_of[place]
        old, new = word_at(words, index), word_at(moved.words, place)
        target = isa.relative_target(old, index * 16)
        if target is not None:
            is_return = isa.decode(old).mnemonic == "RET"
            wanted = 0 if is_return else int(layout.branch_map[target // 16]) * 16
            assert isa.relative_target(new, place * 16) == wanted
            relative += 1
        elif index == 19:
            assert isa.decode(new).text == f"MOV R2, {int(layout.branch_map[0x15]) * 16:#x}"
        else:
            assert new == old
    assert relative == 10


def test_deleting_moves_targets_to_what_follows(kernel: KernelDef, isa: Isa) -> None:
    target = isa.relative_target(word_at(kernel.words, 18), 18 * 16)
    assert target == 24 * 16
    moved = move_words(isa, kernel.words, {}, deleted=frozenset({24}))
    assert len(moved.words) == 207
    assert isa.relative_target(word_at(moved.words, 18), 18 * 16) == 24 * 16
    assert word_at(moved.words, 24) == word_at(kernel.words, 25)
    assert moved.layout.place_map[24] == -1
    with pytest.raises(UnsupportedError, match=r"\[return-address\]"):
        move_words(isa, kernel.words, {}, deleted=frozenset({19}))


def test_a_return_to_a_computed_address_is_refused(kernel: KernelDef, isa: Isa) -> None:
    words = kernel.words.copy()
    word = isa.encode("IADD3 R2, R4, 0x150, RZ")
    words[19] = word & (1 << 64) - 1, word >> 64
    with pytest.raises(UnsupportedError, match=r"\[return-address\].*IADD3"):
        move_words(isa, words, {3: [NOP]})


def test_jump_tables_are_refused(corpus_sm90: list[Path]) -> None:
    (path,) = [item for item in corpus_sm90 if "5c8e698c11aa" in item.name]
    cubin = Cubin.from_file(path)
    words = next(iter(cubin.get_map_kernel_def().values())).words
    with pytest.raises(UnsupportedError, match=r"\[jump-table\].*BRX"):
        move_words(isa_for(cubin.arch.name), words, {3: [NOP]})


def test_identity(kernel: KernelDef, isa: Isa) -> None:
    moved = move_words(isa, kernel.words, {})
    assert np.array_equal(moved.words, kernel.words) and not moved.branches and not moved.returns


def test_a_relative_call_through_a_register_is_refused() -> None:
    isa = isa_for("sm_90")
    # CALL.REL.NOINC R2 -0x90 at 0x80, as compilers call a function pointer: it counts from the section's start.
    call = 0x020FEA0003C3FFFFFFFFFFFC02DC7344
    assert isa.decode(call, pc=0x80).text == "CALL.REL.NOINC R2 0x0"
    code = [*[NOP] * 8, call, isa.encode("EXIT")]
    words = np.array([[word & (1 << 64) - 1, word >> 64] for word in code], np.uint64)
    with pytest.raises(UnsupportedError, match=r"\[indirect-call\] instruction 8 \(0x80\)"):
        move_words(isa, words, {3: [NOP]})
