"""The torture's own count of visits: the counting kernel is a sound rewrite, and records are held against it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from torturing.counting import FIRST, agreed, countable, counting_image, not_executed  # noqa: E402
from torturing.proof import check_faults  # noqa: E402

from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.cuda.binary.constants import add_constant3  # noqa: E402
from gwatch.rewrite.trace import SassTraceSite  # noqa: E402


def records(*rows: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.array(list(rows), np.dtype([("site", "<u2"), ("value", "<u4")]))


def test_the_counting_kernel_has_a_counter_per_site_and_no_fault() -> None:
    cubin = Cubin.from_file(ROOT / "tests/trace_command/pipeline.cubin")
    (kernel,) = cubin.get_map_kernel_def().values()
    sites = [SassTraceSite(0), SassTraceSite(9), SassTraceSite(9, unconditional=True)]
    image = counting_image(cubin, kernel.name, sites)
    patched = Cubin.from_bytes(image)
    added = [
        text for text in patched.get_kerneldef_by_name(kernel.name).texts if "REDG.E.ADD.STRONG.GPU" in text
    ]
    assert len(added) == 3
    before, _ = add_constant3(cubin.data, "torture_counts", 8, bytes(8))
    assert check_faults(Cubin.from_bytes(before), patched, kernel.name) == []
    assert FIRST % 4 == 0


def test_records_are_held_against_the_counts() -> None:
    threads, warps = SassTraceSite(3), countable([SassTraceSite(5, warp_level=True, value_reg=4)])[0]
    made = records((0, 0), (0, 0), (1, 0xFF))
    assert agreed([threads, warps], [2, 8], made, 0, 3) == 2
    with pytest.raises(AssertionError, match=r"site 1 \(instruction 5\): 8 visits recorded, 7 counted"):
        agreed([threads, warps], [2, 7], made, 0, 3)
    assert agreed([threads], [5], made[:2], 3, 5) == 0
    with pytest.raises(AssertionError, match="4 records made, 5 visits counted"):
        agreed([threads], [5], made[:2], 2, 4)
    assert agreed([threads, threads], [5, 5], made[:2], 2, 6, shared=True) == 0


def test_sites_that_nothing_visits_are_no_fault() -> None:
    assert not_executed([0, 0]) == "launch without records, no visit counted"
    assert not_executed(None) == "launch without records, visits not counted"
    with pytest.raises(AssertionError, match=r"visited \[0, 32\] times"):
        not_executed([0, 32])
