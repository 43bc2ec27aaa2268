"""Architecture names and occupancy."""

from __future__ import annotations

import pytest

from gwatch.errors import UnsupportedError
from gwatch.sass.arch import ARCHES, allocated_registers, arch_by_name, occupancy


@pytest.mark.parametrize("name", ["90a", "sm_90a", "SM90a", "sm90a", "compute_90a", " sm_90A "])
def test_every_spelling_names_the_same_architecture(name: str) -> None:
    assert arch_by_name(name) is ARCHES["sm_90a"]


@pytest.mark.parametrize("name", ["", "sm_", "sm_70", "sm_90f", "hopper", "90aa"])
def test_an_unknown_name_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(UnsupportedError, match="arch-unknown") as caught:
        arch_by_name(name)
    assert "sm_90a" in str(caught.value)


@pytest.mark.parametrize("arch,registers,threads,shared,ctas", [
    ("sm_90a", 32, 1024, 0, 2),
    ("sm_90a", 33, 1024, 0, 1),      # 40 allocated: 51 warps fit, one CTA of 32
    ("sm_90a", 168, 384, 0, 1),
    ("sm_90a", 255, 128, 0, 2),
    ("sm_90a", 16, 32, 0, 32),       # the CTA limit
    ("sm_90a", 32, 128, 100 * 1024, 2),
    ("sm_90a", 32, 128, 227 * 1024, 1),
    ("sm_90a", 32, 128, 228 * 1024, 0),
    ("sm_90a", 65, 1024, 0, 0),      # 72 x 1024 > 65536
    ("sm_75", 32, 1024, 0, 1),
    ("sm_75", 32, 64, 32 * 1024, 2),
    ("sm_86", 40, 128, 0, 12),
    ("sm_89", 32, 1536, 0, 0),
])
def test_occupancy(arch: str, registers: int, threads: int, shared: int, ctas: int) -> None:
    assert occupancy(arch, registers, threads, shared) == ctas


def test_registers_are_allocated_in_steps_of_eight() -> None:
    assert [allocated_registers("sm_90", n) for n in (0, 1, 8, 9, 254, 255)] == [8, 8, 8, 16, 256, 256]


def test_sm_90_and_90a_share_one_table() -> None:
    assert arch_by_name("sm_90").table == arch_by_name("sm_90a").table == "sm_90"
