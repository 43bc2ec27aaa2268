"""Damaged input is named, never a crash, and never an endless loop."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inspect_support import COPY_CUBIN, FIXTURES, TRITON, WRAPPER

from gwatch.inspect.artifacts import Image, Text
from gwatch.inspect.listing import Style
from gwatch.inspect.rules import fail_on, parse_forbid, parse_require
from gwatch.inspect.run import Request, examine, inspect
from gwatch.inspect.triton_source import TritonKernels

ALL = Request(
    rules=(parse_require("LDG.E.128 >= 2"), parse_forbid("STL"), fail_on("narrow")),
    vectorization=True,
    lines=True,
    sass=Style.CUOBJDUMP,
)
edits = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=12)


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for place, value in changes:
        out[place % len(out)] = value
    return bytes(out)


@given(edits)
@settings(max_examples=60, deadline=None)
def test_a_damaged_cubin_is_read_or_named(changes: list[tuple[int, int]]) -> None:
    image = damaged(COPY_CUBIN, changes)
    report = examine(Image("x", "file", image), ALL, TritonKernels())
    assert report.problem == "" or report.problem.startswith("[")


@given(edits, st.integers(0, 27000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_library_is_read_or_named(changes: list[tuple[int, int]], cut: int) -> None:
    data = damaged((FIXTURES / "libtwo.so").read_bytes(), changes)[: max(cut, 64)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.so"
        path.write_bytes(data)
        report = inspect([path])
    assert report.images or report.skipped
    for image in report.images:
        assert image.problem == "" or image.problem.startswith("[")


@given(edits)
@settings(max_examples=60, deadline=None)
def test_damaged_texts_describe_something_or_nothing(changes: list[tuple[int, int]]) -> None:
    kernels = TritonKernels()
    for name, text in (
        ("w.cpp", WRAPPER),
        ("k.ttir", (TRITON / "mask.ttir").read_text()),
        ("k.json", '{"name": "k", "num_warps": 4}'),
    ):
        kernels.add(Text(name, damaged(text.encode(), changes).decode("utf-8", "replace")))
    found = kernels.find("copy_kernel", "x/k.cubin")
    assert found is None or found.name == "copy_kernel"
