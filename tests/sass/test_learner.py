"""The learner of the ISA tables: samples, words of other targets, kernels left out."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence

import pytest
from harvest_words import closed_cubin
from isa_learning.corpus import text_names, text_sections
from isa_learning.effects import _fillings
from isa_learning.family import Source, meanings, native_words
from isa_learning.fit import Fitter, Samples
from isa_learning.learn import Learner, corner_predicates
from isa_learning.probe import probing_word
from isa_learning.ranges import Holder, Marks
from isa_learning.sources import constant_kernels

from gwatch.errors import EncodeError
from gwatch.sass.isa.model import Value
from gwatch.sass.isa.values import Field

ZERO = {"R": 255, "U": 63, "P": 7, "Q": 7}
KEY = 0x984


def test_a_bit_that_no_pair_flips_is_found_between_its_neighbours() -> None:
    rng = random.Random(1)
    samples = Samples(KEY)
    for _ in range(40):
        number = rng.getrandbits(24)
        for bit in (None, *(b for b in range(24) if b != 13)):
            word = KEY | (number ^ (0 if bit is None else 1 << bit)) << 40
            samples.add(word, f"LDS R0, [{word >> 40 & 0xFFFFFF:#x}]")
    form = Fitter(samples, ZERO).fit().forms[0]
    assert [place.runs for place in form.values[1].fields] == [((40, 24, 0),)]


class Answering:
    """A prober of ``arch`` that knows a few words."""

    def __init__(self, texts: dict[int, str], arch: str) -> None:
        self.arch = arch
        self.cache: dict[int, str | None] = {}
        self.known = {probing_word(word): text for word, text in texts.items()}

    def texts(self, words: Iterable[int], mostly_valid: bool = False) -> list[str | None]:
        """Text per word."""
        return [self.known.get(word) for word in words]


def test_words_of_other_targets_are_lent_where_they_say_the_same_in_a_new_shape() -> None:
    same, other, shaped, own, wide = (probing_word(0x237 | n << 24) for n in range(5))
    first = Answering(
        {same: "IMMA.SAT R0, R1", other: "IMMA.E4M3 R0, R2", shaped: "IMMA R0, R4", own: "IMMA R0, R3"}, "sm_100a"
    )
    here = Answering(
        {same: "IMMA.SAT R0, R1", other: "IMMA.U4 R0, R2", shaped: "IMMA R0, R4", own: "IMMA R0, R3"}, "sm_103a"
    )
    sources = [Source("sm_100a", "one", {same, other, shaped, wide}), Source("sm_103a", "two", {own, other})]
    meant = meanings([first, here], sources)["sm_103a"]  # type: ignore[list-item]
    assert native_words(here, meant, {0x237}) == sorted([own, same, other])  # type: ignore[arg-type]


def test_a_word_of_another_target_counts_only_where_it_says_the_same() -> None:
    plain, pair, both = (probing_word(0x308 | 2 << 74 | n << 80) for n in range(3))
    first = Answering({plain: "MUFU.EX2 R0, R0", pair: "MUFU.EX2 R0, R0", both: "MUFU.LG2 R0, R0"}, "sm_100a")
    other = Answering(
        {plain: "MUFU.EX2 R0, R0", pair: "MUFU.EX2.BF16x2 R0, R0", both: "MUFU.LG2 R0, R0"}, "sm_103a"
    )
    sources = [Source("sm_100a", "one", {plain}), Source("sm_103a", "two", {pair, both, plain})]
    meant = meanings([first, other], sources)  # type: ignore[list-item]
    assert meant["sm_100a"].projects == {plain: {"one", "two"}, both: {"two"}}
    assert (meant["sm_100a"].native, meant["sm_100a"].apart) == ({plain}, {pair})
    assert meant["sm_103a"].projects == {plain: {"one", "two"}, pair: {"two"}, both: {"two"}}
    assert meant["sm_103a"].apart == set()


def test_two_neighbours_are_flipped_at_once_where_each_alone_leaves_no_instruction() -> None:
    prober = Answering({}, "sm_120a")
    prober.cache = {1: "F2FP", **{1 ^ 1 << bit: None for bit in (79, 80, 84)}, 1 ^ 1 << 85: "F2FP.RELU"}
    learner = Learner(prober, ZERO, print)  # type: ignore[arg-type]
    assert learner.undefined_alone([1], range(79, 87)) == {1 ^ 3 << 79}


def test_corners_try_the_true_predicate_with_the_bit_that_negates_it() -> None:
    assert {word >> 87 & 15 for word in corner_predicates(5 << 87, 87, 3)} == {0, 7, 8, 15}
    assert corner_predicates(0, 88, 3) == set()


def test_the_register_behind_another_operands_is_a_field_with_one_added() -> None:
    samples = Samples(KEY)
    for number in (0, 1, 2, 7, 8, 21, 62):
        for other in (number, *(number ^ 1 << bit for bit in range(6))):
            name = "URZ" if other == 63 else f"UR{other}"
            behind = "URZ" if other >= 62 else f"UR{other + 1}"
            samples.add(KEY | other << 40, f"LDS [{name}], [{behind}]")
    key = Fitter(samples, ZERO).fit()
    field = key.forms[0].values[1].fields[0]
    assert (field.runs, field.add) == (((40, 6, 0),), 1)
    assert [field.get(n << 40) for n in (0, 5, 62, 63)] == [1, 6, 63, 63]
    assert [field.put(n) >> 40 for n in (1, 6, 63)] == [0, 5, 63]
    with pytest.raises(EncodeError, match=r"\[operand-range\]"):
        field.put(0)
    assert Value.from_json(key.forms[0].values[1].to_json()) == key.forms[0].values[1]


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_nn", "_ZN8cublasLt19splitKreduce_kernelE", "cask__conv",
                                  "_Z20sm80_xmma_gemm_f16f16", "_Z11regular_fftILj7EEv", "_Z15spRadix0064B_k1",
                                  "_ZN7cudnn_x4fill", "_Z12cusparseFill", "_Z7nvjpegX"])
def test_cubins_with_a_kernel_of_a_closed_library_are_left_out(name: str) -> None:
    assert closed_cubin(image_of("_Z4mineP1x", name))
    assert not closed_cubin(image_of("_Z4mineP1x", "_Z8cascadedPf", "_Z9fft_mixedPf", "_Z5spRadPf"))


def image_of(*kernels: str) -> bytes:
    """A cubin's section table with a text section of one instruction per kernel."""
    names = b"\0.shstrtab\0" + b"".join(f".text.{kernel}\0".encode() for kernel in kernels)
    code = [bytes([n + 1] * 16) for n in range(len(kernels))]
    sections = [(names.index(f".text.{kernel}\0".encode()), 64 + 16 * n, 16) for n, kernel in enumerate(kernels)]
    sections.append((1, 64 + 16 * len(kernels), len(names)))
    table = sections[-1][1] + len(names)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HH", header, 0x3C, len(sections), len(kernels))
    rows = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in sections
    )
    return bytes(header) + b"".join(code) + names + rows


def test_the_text_sections_of_a_cubin_are_read_with_their_names() -> None:
    image = image_of("one", "two")
    assert text_names(image) == ["one", "two"]
    assert text_sections(image).tolist() == [[0x0101010101010101] * 2, [0x0202020202020202] * 2]


def test_own_kernels_with_constants_have_names_of_their_own() -> None:
    kernels = constant_kernels()
    assert len({kernel.split("(")[0] for kernel in kernels}) == len(kernels) > 10_000


def test_numbers_that_a_field_lacks_are_no_trials() -> None:
    assert _fillings(Field("I", ((49, 1, 1),), const=1)) == [0, 1 << 49]
    assert _fillings(Field("U", ((40, 2, 0),), add=1)) == [n << 40 for n in (0, 1, 3)]


class Listing(Holder):
    """A holder whose rows end behind word 9, as behind an instruction that ends the kernel."""

    def __init__(self) -> None:
        self.size = 16
        self.asked: list[list[int]] = []

    def _batch(self, words: Sequence[int]) -> list[Marks | None]:
        self.asked.append(list(words))
        end = words.index(9) if 9 in words else len(words)
        return [{("R", w): "v"} if n <= end else None for n, w in enumerate(words)]


def test_words_behind_the_end_of_a_kernel_are_asked_again() -> None:
    holder = Listing()
    words = [1, 2, 9, 3, 9, 9, 4, 5, 6, 7, 8]
    assert holder.marks(words) == [{("R", word): "v"} for word in words]
    assert len(holder.asked) == 4
