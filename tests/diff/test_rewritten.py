"""A cubin against its own rewritten version: the inserted snippets are exactly the difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary import Cubin
from gwatch.diff.artifacts import KernelDiff, compare
from gwatch.diff.compare import Fate
from gwatch.rewrite import Rewriter, Snippet
from gwatch.rewrite.trace import SassTraceSite, plan_trace

FIXTURES = Path(__file__).resolve().parent.parent / "inspect" / "fixtures"
UNTOUCHED = {Fate.SAME, Fate.CONTROL, Fate.TARGET}
STAMP = Snippet(
    "CS2R %time, SR_CLOCKLO\nIMAD.IADD %other, %time, 0x1, %time+1",
    registers={"time": 2, "other": 1},
    name="stamp",
)

CASES = [
    ("triton/aligned.cubin", "copy_kernel", [17]),
    ("triton/mask.cubin", "copy_kernel", [29, 46]),
    ("narrow_sm_90.cubin", "tail", [12]),
    ("narrow_sm_90.cubin", "stride", [0, 17]),
]


def difference(original: Path, image: bytes, kernel: str, folder: Path) -> KernelDiff:
    """The kernel's diff; every other kernel must be identical."""
    target = folder / "rewritten.cubin"
    target.write_bytes(image)
    found = {k.name: k for k in compare(original, target).kernels}
    assert all(k.verdict == "identical code" for name, k in found.items() if name != kernel)
    return found[kernel]


@pytest.mark.parametrize(("name", "kernel", "sites"), CASES)
def test_snippets_are_exactly_the_difference(
    tmp_path: Path, name: str, kernel: str, sites: list[int]
) -> None:
    rewriter = Rewriter(Cubin.from_file(FIXTURES / name), kernel)
    for site in sites:
        rewriter.insert(site, STAMP)
    rewritten = rewriter.apply()
    diff = difference(FIXTURES / name, rewritten.data, kernel, tmp_path)
    assert diff.code is not None
    places = {step.first: step.second for step in diff.code.steps if step.first is not None}
    assert {step.fate for step in diff.code.steps if step.first is not None} <= UNTOUCHED
    count = len(diff.items[0])
    assert places == dict(enumerate(rewritten.place_map.tolist()[:count]))
    inserted = [step.second for step in diff.code.steps if step.fate is Fate.INSERTED]
    assert inserted == [index for index, mark in enumerate(rewritten.inserted.tolist()) if mark]
    assert len(inserted) >= 2 * len(sites)


@pytest.mark.parametrize(("name", "kernel", "sites"), CASES)
def test_a_traced_kernel_keeps_every_instruction(
    tmp_path: Path, name: str, kernel: str, sites: list[int]
) -> None:
    plan = plan_trace(Cubin.from_file(FIXTURES / name), kernel, [SassTraceSite(index) for index in sites])
    diff = difference(FIXTURES / name, plan.data, kernel, tmp_path)
    assert diff.code is not None
    # The untouched copy behind the traced code is left out, and said to be.
    assert plan.rewritten.twin is not None and diff.second is not None
    address = plan.rewritten.twin * 16
    many = "s" * (len(sites) > 1)
    assert diff.second.patched == (
        f"records {len(sites)} site{many} (gwatch); the untouched copy of the code from {address:#x} on is left out"
    )
    assert {step.fate for step in diff.code.steps if step.first is not None} <= UNTOUCHED
    places = {step.first: step.second for step in diff.code.steps if step.first is not None}
    assert places == dict(enumerate(plan.rewritten.place_map.tolist()[: len(diff.items[0])]))
    inserted = [step.second for step in diff.code.steps if step.fate is Fate.INSERTED]
    assert inserted == np.flatnonzero(plan.rewritten.inserted).tolist()
    assert not {change.name for change in diff.resources} & {"loops", "barriers", "tensor instructions"}
    registers = {c.name: (c.before, c.after) for c in diff.resources}["registers"]
    assert registers == (plan.rewritten.registers_before, plan.rewritten.registers_after)


def test_spills_of_the_untouched_copy_are_left_out_like_the_rest_of_it(tmp_path: Path) -> None:
    original = FIXTURES / "places_sm_90.cubin"
    plan = plan_trace(Cubin.from_file(original), "_Z6spillsPfi", [SassTraceSite(200)], clock="sm")
    found = difference(original, plan.data, "_Z6spillsPfi", tmp_path)
    assert "spills" not in [change.name for change in found.resources]
