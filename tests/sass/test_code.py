"""Code read as columns says word for word what the instruction decoder and nvdisasm say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.inspect.view import CubinView
from gwatch.sass import nvdisasm
from gwatch.sass.code import Code, code_of, group, opcode_of, split_text
from gwatch.sass.isa import isa_for

FIXTURES = Path(__file__).resolve().parent.parent / "inspect" / "fixtures"
COPY_CUBIN = (FIXTURES / "vector_copy.cubin").read_bytes()


def joined(cubin: Cubin) -> tuple[np.ndarray, np.ndarray]:
    words = [kernel.words for kernel in cubin.get_map_kernel_def().values()]
    return np.concatenate(words), np.concatenate([np.arange(len(w)) * 16 for w in words])


def test_columns_equal_the_decoder_on_the_open_corpus(corpus_sm90: list[Path]) -> None:
    seen = 0
    for path in corpus_sm90:
        cubin = Cubin.from_file(path)
        words, addresses = joined(cubin)
        keep = slice(0, None, max(1, len(words) // 5000))  # every file, about 5,000 words of each
        words, addresses = words[keep], addresses[keep]
        code = code_of(cubin.arch, words, addresses)
        assert code.engine == "tables"
        isa = isa_for(cubin.arch)
        names, targets = code.opcode_names, code.targets.tolist()
        for index, (low, high) in enumerate(words.tolist()):
            decoded = isa.decode(high << 64 | low, int(addresses[index]))
            assert code.texts[index] == decoded.text
            assert names[code.opcodes[index]] == decoded.opcode
            assert targets[index] == (-1 if decoded.target is None else decoded.target)
        seen += len(words)
    assert seen > 30_000


def test_an_architecture_without_a_table_is_read_through_nvdisasm() -> None:
    view = CubinView.of((FIXTURES / "narrow_sm_100.cubin").read_bytes())
    kernel = view.cubin.get_kerneldef_by_name("tail")
    code = view.code(kernel)
    expected = nvdisasm.disassemble_words("sm_100", kernel.words)
    assert code.texts == expected
    assert [code.opcode_names[c] for c in code.opcodes] == [opcode_of(text) for text in code.texts]
    for index in code.where("BRA").tolist():
        assert code.texts[index].endswith(f"{code.targets[index]:#x}")


def test_a_word_that_the_tables_do_not_know_is_shown_as_such() -> None:
    cubin = Cubin.from_bytes(COPY_CUBIN)
    words = cubin.get_kerneldef_by_name("copy_kernel").words[:4].copy()
    words[2] = (0xFFFFFFFFFFFFFFFF, 0x000FFFFFFFFFFFFF)
    code = code_of(cubin.arch, words)
    assert code.texts[0] == "LDC R1, c[0x0][0x28]"
    assert code.texts[2] == "(undecoded) 0x000fffffffffffffffffffffffffffff"
    assert code.opcode_names[code.opcodes[2]] == "(undecoded)"


def test_a_part_shares_the_whole() -> None:
    cubin = Cubin.from_bytes(COPY_CUBIN)
    words = cubin.get_kerneldef_by_name("copy_kernel").words
    whole = Code(cubin.arch, words, code_of(cubin.arch, words).isa)
    part = whole.part(17, 24)
    assert part.texts == whole.texts[17:24]
    assert part.texts_at(np.array([0, 3])) == [
        "@!P0 LDG.E.128 R4, desc[UR4][R8.64]",
        "@!P1 LDG.E.128 R12, desc[UR4][R8.64+0x800]",
    ]
    assert part.where("LDG").tolist() == [0, 3]
    assert part.guarded.tolist() == [True, False, False, True, True, True, False]


def test_grouping_tells_every_pair_apart_even_when_the_mixed_values_collide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gwatch.sass.code._MIX", np.uint64(0))
    low = np.array([5, 6, 5, 7], np.uint64)
    high = np.array([1, 1, 1, 1], np.uint64)
    first, inverse = group(low, high)
    assert low[first][inverse].tolist() == [5, 6, 5, 7]
    assert len(first) == 3


def test_text_is_cut_into_guard_opcode_and_operands() -> None:
    assert split_text("@!UP0 LDG.E R4, desc[UR4][R2.64]") == ("@!UP0", "LDG.E", "R4, desc[UR4][R2.64]")
    assert split_text("EXIT") == ("", "EXIT", "")
