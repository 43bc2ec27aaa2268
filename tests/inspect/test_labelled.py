"""Listings with labels, source lines and inlined calls are letter for letter nvdisasm's, without running it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from inspect_support import FIXTURES, TRITON

from gwatch.inspect.labelled import CannotLabel, text
from gwatch.inspect.listing import Style, listing
from gwatch.inspect.view import CubinView
from gwatch.sass.nvdisasm import disassemble_cubin

oracle = lru_cache(disassemble_cubin)
ROOT = FIXTURES.parent.parent
OPTIONS = {Style.NVDISASM: "-g", Style.INLINED: "-gi"}
FILES = [
    FIXTURES / "vector_copy.cubin",
    FIXTURES / "nested.cubin",
    FIXTURES / "narrow_sm_90.cubin",
    TRITON / "out_unaligned.cubin",  # a symbol without a name
    # Calls that were inlined two deep, inner functions, barriers; and all kinds of attributes with places.
    ROOT / "binary" / "data" / "holders_sm90.cubin",
    FIXTURES / "places_sm_90.cubin",
    # Other architectures.
    FIXTURES / "narrow_sm_80.cubin",
    FIXTURES / "narrow_sm_100.cubin",
    ROOT / "binary" / "data" / "holders_sm75.cubin",
    ROOT / "binary" / "data" / "holders_sm120.cubin",
]


def own(view: CubinView, style: Style, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.setattr("gwatch.sass.nvdisasm.disassemble_cubin", lambda *_: pytest.fail("nvdisasm was run"))
        return listing(view, style)


@pytest.mark.parametrize("style", OPTIONS, ids=str)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fixtures(path: Path, style: Style, monkeypatch: pytest.MonkeyPatch) -> None:
    view = CubinView.of(path.read_bytes())
    assert own(view, style, monkeypatch) == oracle(path, OPTIONS[style], "-c")


def test_the_fixtures_have_what_is_special() -> None:
    listings = [oracle(path, "-gi", "-c") for path in FILES]
    for special in ("inlined at", "SpillRefill", "BRANCH_TARGETS", ".weak", "vprintf"):
        assert any(special in found for found in listings), special


def test_the_open_corpus(corpus_sm90: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside all small ones a large one, which has return addresses in relocations.
    for path in corpus_sm90:
        if "d24c5a182260" not in path.name:
            ours = own(CubinView.of(path.read_bytes()), Style.INLINED, monkeypatch)
            same = ours == oracle(path, "-gi", "-c")  # pytest's own diff of large texts takes minutes
            assert same, path


@pytest.mark.parametrize("style", OPTIONS, ids=str)
def test_what_is_not_known_is_left_to_the_program(style: Style) -> None:
    debugged = ROOT / "binary" / "data" / "debug_sm90.cubin"
    view = CubinView.of(debugged.read_bytes())
    with pytest.raises(CannotLabel):
        text(view, "", False)
    assert listing(view, style) == oracle(debugged, OPTIONS[style], "-c")


def test_only_the_functions_asked_for() -> None:
    for path in (FIXTURES / "narrow_sm_90.cubin", FIXTURES / "narrow_sm_80.cubin"):
        found = listing(CubinView.of(path.read_bytes()), Style.NVDISASM, lambda name: name in ("mask", "tail"))
        assert [line for line in found.split("\n") if line.startswith(".text.")] == [".text.tail:", ".text.mask:"]
