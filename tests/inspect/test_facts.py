"""Facts agree with NVIDIA's tools, and with sources where only the source can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inspect_support import COPY_CUBIN, FIXTURES, RESOURCES, cuobjdump

from gwatch.inspect.facts import KernelFacts, kernel_facts
from gwatch.inspect.loops import find_loops
from gwatch.inspect.opcodes import access_of, unit_of
from gwatch.inspect.view import CubinView
from gwatch.sass.code import code_of
from gwatch.sass.nvdisasm import disassemble_cubin


def facts_of(path: Path) -> dict[str, KernelFacts]:
    view = CubinView.of(path.read_bytes(), str(path))
    return {kernel.name: kernel_facts(view, kernel) for kernel in view.kernels}


def test_resources_equal_cuobjdump_on_the_open_corpus(corpus_sm90: list[Path]) -> None:
    kernels = 0
    for path in corpus_sm90:
        ours = facts_of(path)
        for match in RESOURCES.finditer(cuobjdump("-res-usage", path)):
            facts = ours[match["name"]]
            if not facts.is_kernel:
                continue
            constants = re.findall(r"CONSTANT\[(\d+)\]:(\d+)", match["constants"])
            assert facts.resources.registers == int(match["registers"])
            assert facts.resources.stack == int(match["stack"])
            assert facts.resources.shared == int(match["shared"])
            assert facts.resources.local == int(match["local"])
            assert facts.resources.constants == tuple(sorted((int(b), int(n)) for b, n in constants))
            kernels += 1
    assert kernels > 400


@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_resources_equal_cuobjdump_on_every_architecture(arch: str) -> None:
    path = FIXTURES / f"narrow_sm_{arch}.cubin"
    ours = facts_of(path)
    found = list(RESOURCES.finditer(cuobjdump("-res-usage", path)))
    assert len(found) == len(ours) == 10
    for match in found:
        facts = ours[match["name"]]
        assert (facts.resources.registers, facts.resources.stack) == (int(match["registers"]), int(match["stack"]))


def test_barriers_equal_what_nvdisasm_says_of_the_section(corpus_sm90: list[Path]) -> None:
    path = next(
        p for p in corpus_sm90 if "xformers" in p.name
    )  # old ABI: the count is in the section's flags
    ours = facts_of(path)
    section = ""
    stated: dict[str, int] = {}
    for line in disassemble_cubin(path, "-c").splitlines():
        if line.startswith("\t.section\t.text."):
            section = line.split(",")[0].removeprefix("\t.section\t.text.")
            stated[section] = 0
        elif "SHF_BARRIERS=" in line:
            stated[section] = int(re.findall(r"SHF_BARRIERS=(\d+)", line)[0])
    assert {name: facts.barriers for name, facts in ours.items()} == stated
    assert sum(stated.values()) > 3


def test_barriers_of_the_new_abi(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "14516869dcfb" in p.name)
    (facts,) = facts_of(path).values()
    assert (facts.barriers, facts.mbarriers > 0) == (15, True)


def test_spills_equal_the_compilers_marks(corpus_all: list[Path]) -> None:
    path = next(p for p in corpus_all if "sm_86-ctranslate2-61b077c41cec" in p.name)
    ours = facts_of(path)
    marks = disassemble_cubin(path, "-c").count('(*"SpillRefill"*)')
    assert sum(facts.code.spills for facts in ours.values()) == marks == 384
    assert all(facts.code.spills_exact for facts in ours.values())


def test_local_arrays_are_no_spills_where_the_compiler_marks_spills(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "38d1a903907e" in p.name)
    (facts,) = facts_of(path).values()
    assert (facts.code.local_accesses, facts.code.spills, facts.code.spills_exact) == (3, 0, True)


def test_the_copy_kernel() -> None:
    view = CubinView.of(COPY_CUBIN)
    (kernel,) = view.kernels
    facts = kernel_facts(view, kernel, threads=128)
    assert view.toolkit == "13.0.88"
    assert facts.code is not None
    assert (facts.code.instructions, facts.resources.registers) == (26, 18)
    assert (facts.resources.stack, facts.resources.shared) == (0, 0)
    assert facts.resources.constants == ((0, 568),)
    assert facts.parameters == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
    assert facts.required_threads == (128, 1, 1)
    assert facts.occupancy is not None
    assert (facts.occupancy.ctas, facts.occupancy.warps, facts.occupancy.basis) == (16, 64, "launch")
    assert dict(facts.code.opcodes)["LDG.E.128"] == 2
    assert dict(facts.code.opcodes)["STG.E.128"] == 2
    assert facts.code.share(128) == 1.0
    assert facts.code.share(256) == 0.0
    assert sum(count for _, count in facts.code.mix) == facts.code.instructions
    assert facts.code.loops == ()


def test_setmaxnreg_roles(corpus_sm90: list[Path]) -> None:
    path = next(p for p in corpus_sm90 if "14516869dcfb" in p.name)
    (facts,) = facts_of(path).values()
    texts = re.findall(
        r"/\*([0-9a-f]+)\*/\s+USETMAXREG\.(\w+)\S* (?:\w+, )?(0x[0-9a-f]+)", disassemble_cubin(path, "-c")
    )
    assert facts.code.register_budgets == tuple((int(pc, 16), kind, int(count, 16)) for pc, kind, count in texts)
    assert {kind for _, kind, _ in facts.code.register_budgets} == {"DEALLOC", "TRY_ALLOC"}


def test_loops_are_those_of_the_listing(corpus_sm90: list[Path]) -> None:
    # A loop's header is a branch target in front of its latch; every latch branches there.
    path = next(p for p in corpus_sm90 if "5c8e698c11aa" in p.name)
    view = CubinView.of(path.read_bytes())
    code = view.code(view.kernels[0])
    loops = find_loops(code)
    assert len(loops) > 5
    for loop in loops:
        latch = loop.latch // 16
        assert code.targets[latch] == loop.start
        assert loop.start // 16 in loop.indices()
        assert latch in loop.indices()
        assert loop.instructions == len(loop.indices()) > 1
    for inner in (loop for loop in loops if loop.depth == 2):
        assert any(set(inner.indices()) < set(o.indices()) for o in loops if o.depth == 1)


def test_the_trap_behind_exit_and_blocks_moved_out_of_line_are_no_loops() -> None:
    view = CubinView.of((FIXTURES / "narrow_sm_90.cubin").read_bytes())
    assert [kernel_facts(view, kernel).code.loops for kernel in view.kernels] == [()] * 10


def test_a_hand_made_loop() -> None:
    isa_lines = [
        "MOV R0, 0x8",
        "IADD3 R0, R0, -0x1, RZ",
        "ISETP.NE.AND P0, PT, R0, RZ, PT",
        "@P0 BRA 0x10",
        "EXIT",
    ]
    import numpy as np

    from gwatch.sass.isa import isa_for

    isa = isa_for("sm_90")
    words = [isa.encode(line, pc=16 * n) for n, line in enumerate(isa_lines)]
    table = np.array([[w & (1 << 64) - 1, w >> 64] for w in words], np.uint64)
    (loop,) = find_loops(code_of(isa.arch, table))
    assert (loop.start, loop.latch, loop.depth, loop.ranges) == (0x10, 0x30, 1, ((1, 3),))


@pytest.mark.parametrize(
    ("opcode", "space", "action", "bits", "modifiers"),
    [
        ("LDG.E.128.CONSTANT", "global", "load", 128, ("CONSTANT",)),
        ("STG.E", "global", "store", 32, ()),
        ("LDG.E.NA.EFL2.LTC256B.256.CONSTANT", "global", "load", 256, ("NA", "EFL2", "LTC256B", "CONSTANT")),
        ("LDG.E.U16.CONSTANT.SYS", "global", "load", 16, ("CONSTANT", "SYS")),
        ("LDSM.16.M88.4", "shared", "load", 128, ()),
        ("STSM.16.M88", "shared", "store", 32, ()),
        ("LDTM.x32", "tensor memory", "load", 1024, ()),
        ("STL.64", "local", "store", 64, ()),
        ("LDGSTS.E.BYPASS.LTC256B.128", "global", "copy to shared", 128, ("BYPASS", "LTC256B")),
    ],
)
def test_memory_opcodes(opcode: str, space: str, action: str, bits: int, modifiers: tuple[str, ...]) -> None:
    access = access_of(opcode)
    assert access is not None
    assert (access.space, access.action, access.bits, access.modifiers) == (space, action, bits, modifiers)


def test_units() -> None:
    units = {
        "FFMA": "fp32",
        "HGMMA.64x8x16.F32": "tensor",
        "UTMALDG.2D": "tma",
        "UIADD3": "uniform",
        "WHATEVER": "other",
    }
    assert {name: unit_of(name) for name in units} == units
    assert access_of("FFMA") is None


def test_resources_alone_are_the_same_numbers_and_read_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    path = FIXTURES / "narrow_sm_90.cubin"
    whole = facts_of(path)
    monkeypatch.setattr(CubinView, "code", lambda *_: pytest.fail("code was read"))
    view = CubinView.of(path.read_bytes())
    for kernel in view.kernels:
        assert kernel_facts(view, kernel, read_code=False) == whole[kernel.name]._replace(code=None)


def test_accesses_of_256_bits() -> None:
    (facts,) = facts_of(FIXTURES / "wide_sm_100.cubin").values()
    assert facts.code is not None
    assert (facts.code.share(128), facts.code.share(256)) == (1.0, 1.0)
    assert {(use.opcode, use.bits) for use in facts.code.memory if use.space == "global"} == {
        ("LDG.E.ENL2.256", 256),
        ("STG.E.ENL2.256", 256),
    }
