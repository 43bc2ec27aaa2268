"""Listings are letter for letter what NVIDIA's tools print."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspect_support import COPY_CUBIN, FIXTURES, cuobjdump

from gwatch.inspect.listing import Style, listing
from gwatch.inspect.view import CubinView
from gwatch.sass.nvdisasm import disassemble_cubin


def test_the_copy_kernel_as_both_tools_print_it() -> None:
    view = CubinView.of(COPY_CUBIN)
    path = FIXTURES / "vector_copy.cubin"
    assert listing(view, Style.CUOBJDUMP) == cuobjdump("-sass", path)
    assert listing(view, Style.NVDISASM) == disassemble_cubin(path, "-g", "-c")
    sections = listing(view, Style.SECTIONS)
    assert sections == disassemble_cubin(path, "-g") and "\n.nv.constant0.copy_kernel:\n" in sections
    assert listing(view, Style.SECTIONS, lambda name: False) == ""
    assert "@!P0 LDG.E.128 R4, desc[UR4][R8.64] ;" in listing(view, Style.CUOBJDUMP)


@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_every_architecture_as_cuobjdump_prints_it(arch: str) -> None:
    path = FIXTURES / f"narrow_sm_{arch}.cubin"
    assert listing(CubinView.of(path.read_bytes()), Style.CUOBJDUMP) == cuobjdump("-sass", path)


@pytest.mark.parametrize("part", ["large", "rest"])
def test_the_open_corpus_as_cuobjdump_prints_it(corpus_sm90: list[Path], part: str) -> None:
    names = {
        "large": ["e946f17c538a"],
        "rest": ["07f3da197567", "14516869dcfb", "bb4300356c24", "38d1a903907e"],
    }
    chosen = [path for path in corpus_sm90 if any(name in path.name for name in names[part])]
    assert len(chosen) == len(names[part])
    for path in chosen:
        # Not compared by `assert a == b`: pytest's own diff of two texts of 25 MB takes minutes.
        assert (
            listing(CubinView.of(path.read_bytes()), Style.CUOBJDUMP) == cuobjdump("-sass", path)
        ) is True, path


def test_only_the_functions_asked_for() -> None:
    view = CubinView.of((FIXTURES / "narrow_sm_90.cubin").read_bytes())
    text = listing(view, Style.CUOBJDUMP, lambda name: name in ("mask", "tail"))
    assert [line.split(" : ")[1] for line in text.split("\n") if "Function :" in line] == ["tail", "mask"]
