"""Architecture names and occupancy."""

from __future__ import annotations

import numpy as np
import pytest

from gwatch.errors import UnsupportedError
from gwatch.sass.arch import ARCHES, allocated_registers, arch_by_name, declared_shared, occupancy
from gwatch.sass.isa import isa_for
from gwatch.sass.uses import CodeView


@pytest.mark.parametrize("name", ["90a", "sm_90a", "SM90a", "sm90a", "compute_90a", " sm_90A "])
def test_every_spelling_names_the_same_architecture(name: str) -> None:
    assert arch_by_name(name) is ARCHES["sm_90a"]


@pytest.mark.parametrize("name", ["", "sm_", "sm_70", "sm_90f", "hopper", "90aa"])
def test_an_unknown_name_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(UnsupportedError, match="arch-unknown") as caught:
        arch_by_name(name)
    assert "sm_90a" in str(caught.value)


@pytest.mark.parametrize(
    "arch,registers,threads,shared,ctas",
    [
        ("sm_90a", 32, 1024, 0, 2),
        ("sm_90a", 33, 1024, 0, 1),  # 40 allocated: 51 warps fit, one CTA of 32
        ("sm_90a", 168, 384, 0, 1),
        ("sm_90a", 255, 128, 0, 2),
        ("sm_90a", 16, 32, 0, 32),  # the CTA limit
        ("sm_90a", 32, 128, 100 * 1024, 2),
        ("sm_90a", 32, 128, 227 * 1024, 1),
        ("sm_90a", 32, 128, 228 * 1024, 0),
        ("sm_90a", 65, 1024, 0, 0),  # 72 x 1024 > 65536
        ("sm_75", 32, 1024, 0, 1),
        ("sm_75", 32, 64, 32 * 1024, 2),
        ("sm_86", 40, 128, 0, 12),
        ("sm_89", 32, 1536, 0, 0),
    ],
)
def test_occupancy(arch: str, registers: int, threads: int, shared: int, ctas: int) -> None:
    assert occupancy(arch, registers, threads, shared) == ctas


@pytest.mark.parametrize(
    ("arch", "section", "declared", "ctas"),
    [
        ("sm_90a", 38912, 37888, 6),  # ptxas -v says 37888; 6 x 38912 are the SM's 228 KiB
        ("sm_100", 38912, 37888, 6),
        ("sm_90", 1024, 0, 16),
        ("sm_90", 0, 0, 16),
        ("sm_80", 37888, 37888, 4),
    ],
)
def test_shared_sections_hold_what_the_driver_reserves_from_sm_90_on(
    arch: str, section: int, declared: int, ctas: int
) -> None:
    assert declared_shared(arch, section) == declared
    assert occupancy(arch, 32, 128, declared) == ctas


def test_registers_are_allocated_in_steps_of_eight() -> None:
    assert [allocated_registers("sm_90", n) for n in (0, 1, 8, 9, 254, 255)] == [8, 8, 8, 16, 256, 256]


def test_every_architecture_has_its_places_and_opcodes() -> None:
    assert len(ARCHES) == 25
    facts = {
        name: (
            arch.launch_dims_offset,
            arch.grid_dims_offset,
            arch.param_base,
            arch.stack_offset,
            arch.descriptor_offset,
            arch.uniform_zero,
            arch.constant_load,
            arch.uniform_clock,
            arch.table,
        )
        for name, arch in ARCHES.items()
    }
    assert facts["sm_75"] == (0, 12, 0x160, 0x28, None, 63, "ULDC", "S2UR", "sm_75")
    assert facts["sm_87"] == facts["sm_80"] == (0, 12, 0x160, 0x28, 0x118, 63, "ULDC", "S2UR", "sm_80")
    assert facts["sm_90a"] == (0, 12, 0x210, 0x28, 0x208, 63, "ULDC", "S2UR", "sm_90")
    assert facts["sm_103f"] == (0x360, 0x370, 0x380, 0x37C, 0x358, 255, "LDCU", "S2UR", "sm_100")
    assert facts["sm_110a"][-1] == "sm_100" and facts["sm_107f"][-1] == "sm_100"
    assert facts["sm_121"] == (0x360, 0x370, 0x380, 0x37C, 0x358, 255, "LDCU", "CS2UR.32", "sm_120")


@pytest.mark.parametrize(
    ("name", "flags"),
    [("sm_75", 0x06004B04), ("sm_90a", 0x06005A04), ("sm_100f", 0x06006402), ("sm_120", 0x06007802)],
)
def test_elf_flags_are_those_of_the_compiler(name: str, flags: int) -> None:
    assert ARCHES[name].flags == flags


def test_sm_90_and_90a_share_one_table() -> None:
    assert arch_by_name("sm_90").table == arch_by_name("sm_90a").table == "sm_90"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm_100a", "fixed"),
        ("sm_103a", "variable"),
        ("sm_110", "variable"),
        ("sm_120", "variable"),
        ("sm_90", "fixed"),
        ("sm_80", "variable"),
    ],
)
def test_double_precision_is_of_fixed_latency_where_compilers_give_it_no_scoreboard(
    name: str, kind: str
) -> None:
    isa = isa_for(name)
    words = [
        isa.encode(text)
        for text in (
            "DFMA R4, R6, R8, R4",
            "DADD R4, R6, R8",
            "DMUL R4, R6, R8",
            "DSETP.GT.AND P0, PT, R4, R6, PT",
        )
    ]
    assert {isa.decode(word).effects.kind for word in words} == {kind}
    halves = np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)
    assert set(CodeView(isa, halves).kinds()[1]) == {kind}


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_tensor_core_products_are_of_fixed_latency(name: str) -> None:
    """Also for sm_86 and sm_89, where some compilers give them a scoreboard and others use the result without one."""
    isa = isa_for(name)
    assert isa.decode(isa.encode("HMMA.16816.F32 R4, R8, R12, R4")).effects.kind == "fixed"


@pytest.mark.parametrize("name", ARCHES)
def test_sums_and_minima_are_spelled_as_the_architecture_knows_them(name: str) -> None:
    arch = ARCHES[name]
    try:
        isa = isa_for(name)
    except UnsupportedError:
        pytest.skip("no table")
    for pattern in (arch.sum, arch.minimum):
        for last in ("R6", "0x400"):
            text = pattern.format("R4", "R5", last)
            assert isa.decode(isa.encode(text)).text.replace(" ", "") == text.replace(" ", "")
