"""The learner of the ISA tables: samples, words of other targets, kernels left out."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

from isa_learning.corpus import text_sections
from isa_learning.family import Family, Home, Options
from isa_learning.fit import Fitter, Samples
from isa_learning.learn import corner_predicates, probing_word
from isa_learning.sources import constant_kernels

from gwatch.cuda.closed import closed_symbol

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
    """A prober that knows a few words."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.known = {probing_word(word): text for word, text in texts.items()}

    def texts(self, words: Iterable[int]) -> list[str | None]:
        """Text per word."""
        return [self.known.get(word) for word in words]


def test_words_of_other_targets_are_lent_where_they_say_the_same_in_a_new_shape() -> None:
    same, other, shaped, own = (0x237 | n << 24 for n in range(4))
    first = Answering(
        {same: "IMMA.SAT R0, R1", other: "IMMA.E4M3 R0, R2", shaped: "IMMA R0, R4", own: "IMMA R0, R3"}
    )
    here = Answering(
        {same: "IMMA.SAT R0, R1", other: "IMMA.U4 R0, R2", shaped: "IMMA R0, R4", own: "IMMA R0, R3"}
    )
    family = Family(ZERO, print, Options(), [Home(first, {}, {})])  # type: ignore[arg-type]
    assert family.native_words(here, {own}, [same, other, shaped, own, 0x238], {0x237}) == sorted([own, same])  # type: ignore[arg-type]


def test_corners_try_the_true_predicate_with_the_bit_that_negates_it() -> None:
    assert {word >> 87 & 15 for word in corner_predicates(5 << 87, 87, 3)} == {0, 7, 8, 15}
    assert corner_predicates(0, 88, 3) == set()


def test_kernels_of_closed_libraries_are_left_out() -> None:
    names = b"\0.shstrtab\0.text._Z4mineP1x\0.text.ampere_sgemm_128x64_nn\0"
    code = [bytes([n] * 16) for n in (1, 2)]
    sections = [(names.index(b".text._Z4"), 64, 16), (names.index(b".text.amp"), 80, 16), (1, 96, len(names))]
    table = 96 + len(names)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HH", header, 0x3C, len(sections), 2)
    rows = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in sections
    )
    image = bytes(header) + b"".join(code) + names + rows
    assert len(text_sections(image)) == 2
    assert text_sections(image, closed_symbol).tolist() == [[0x0101010101010101] * 2]


def test_own_kernels_with_constants_have_names_of_their_own() -> None:
    kernels = constant_kernels()
    assert len({kernel.split("(")[0] for kernel in kernels}) == len(kernels) > 10_000
