"""Jump tables, recursion, calls through pointers and of the driver: a site on every instruction referred to."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from gwatch.check import check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary import Cubin, nvinfo
from gwatch.cuda.binary.layout import Editor
from gwatch.cuda.binary.nvinfo import Attr
from gwatch.errors import HazardError, UnsupportedError
from gwatch.rewrite import Rewriter, Snippet
from gwatch.rewrite.result import Rewritten
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.rewrite.verify import verify
from gwatch.sass.abi import survivors
from gwatch.sass.arch import arch_by_name
from gwatch.sass.cfg import Flow
from gwatch.sass.indirect import moved_branch, shifted_load
from gwatch.sass.motion import place_words, plan_layout

DATA = Path(__file__).resolve().parent / "data"
MARK = Snippet("IADD3 %r0, RZ, {number}, RZ", name="mark")
CONTROL = [
    "switch_kernel",
    "recursion_kernel",
    "pointer_kernel",
    "virtual_kernel",
    "printf_kernel",
    "malloc_kernel",
    "assert_kernel",
]


def load(name: str) -> Cubin:
    return Cubin.from_file(DATA / name)


def referred(cubin: Cubin, name: str) -> tuple[Rewriter, list[int]]:
    """A rewriter and the instructions that something refers to: targets, callees, what calls come back to, tables'
    loads, the branches and returns themselves.
    """
    rewriter = Rewriter(cubin, name)
    around = rewriter.surroundings
    flow, cfg = around.cfg.flow, around.cfg
    found = {0, *around.tables.loads, *around.tables.branches, *around.tables.calls}
    found |= {target for targets in cfg.jumps.values() for target in targets}
    found |= set(flow.target[flow.target >= 0].tolist())
    calls = np.flatnonzero(np.isin(flow.kind, (Flow.CALL, Flow.CALL_INDIRECT, Flow.CALL_OUT))).tolist()
    found |= {*calls, *(call + 1 for call in calls), *np.flatnonzero(flow.kind == Flow.RETURN).tolist()}
    return rewriter, sorted(index for index in found if index < around.padding)


def marked(cubin: Cubin, name: str) -> Rewritten:
    rewriter, places = referred(cubin, name)
    for number, index in enumerate(places):
        rewriter.insert(index, MARK, {"number": number + 1})
    return rewriter.apply(twin=True)


@pytest.mark.parametrize("name", CONTROL)
def test_a_site_on_every_instruction_that_is_referred_to(name: str) -> None:
    cubin = load("control_sm90.cubin")
    result = marked(cubin, name)
    found = verify(cubin.data, result)
    assert found.copies == 2 and found.inserted == len(result.sites) >= 5
    # Four tables of 14 entries; a function table names six functions of the module.
    entries = {"switch_kernel": 14, "pointer_kernel": 6, "virtual_kernel": 6}
    assert found.entries == entries.get(name, 0)


def test_tables_move_in_place_without_an_untouched_copy() -> None:
    cubin = load("control_sm90.cubin")
    for name, entries in (("switch_kernel", 14), ("pointer_kernel", 6)):
        rewriter = Rewriter(cubin, name)
        rewriter.insert(3, MARK, {"number": 1})
        result = rewriter.apply()
        assert result.twin is None and verify(cubin.data, result).entries == entries
        patched = Cubin.from_bytes(result.data)
        check = check_kernel(patched, patched.get_kerneldef_by_name(name))
        check_against(cubin, patched, check)
        assert check.findings == [] and check.refused == ""


@pytest.mark.parametrize("name", CONTROL)
def test_random_traces(name: str) -> None:
    cubin = load("control_sm90.cubin")
    rng = random.Random(name)
    _, places = referred(cubin, name)
    sites = [SassTraceSite(index, warp_level=rng.random() < 0.5) for index in rng.choices(places, k=6)]
    plan = plan_trace(cubin, name, sites, clock="anchor")
    verify(cubin.data, plan.rewritten)
    if name in ("printf_kernel", "malloc_kernel"):
        kept = {(r.rstrip("0123456789"), int(r.lstrip("UR"))) for r in plan.rewritten.state.values()}
        assert kept <= survivors(cubin.arch)


def test_linked_cubins_bias_the_index_of_their_tables() -> None:
    cubin = load("linked_sm90.cubin")
    around = Rewriter(cubin, "linked_kernel").surroundings
    assert sorted(around.tables.loads.values()) == [0, 12]
    assert [text.split()[-1] for text in (around.view.facts(index).text for index in around.tables.loads)] == [
        "c[0x2][R0+-0x7ff4]",
        "c[0x2][R0+-0x8000]",
    ]
    assert verify(cubin.data, marked(cubin, "linked_kernel")).entries == 7


def test_what_calls_keep_alive_is_what_the_abi_keeps() -> None:
    """Registers that compiled code reads right behind a call of a driver function without writing them there first."""
    cubin = load("control_sm90.cubin")
    kept = survivors(cubin.arch)
    seen: set[tuple[str, int]] = set()
    for name in ("printf_kernel", "malloc_kernel"):
        around = Rewriter(cubin, name).surroundings
        assert around.outside_call([around.padding - 1]) == around.leaves[0]
        for call in around.leaves:
            written: set[tuple[str, int]] = set()
            for index in range(call + 1, call + 20):
                facts = around.view.facts(index)
                for use in facts.uses:
                    keys = {(use.file, number) for number in range(use.first, use.first + use.count)}
                    seen |= keys - written if not use.write and use.file in ("R", "UR") else set()
                for use in facts.writes():
                    written |= {(use.file, number) for number in range(use.first, use.first + use.count)}
                if around.cfg.flow.kind[index] not in (Flow.NEXT, Flow.REFERENCE):
                    break
    # R4 and R5 hold what the callee returns.
    assert seen - kept <= {("R", 2), ("R", 4), ("R", 5)} and len(seen & kept) >= 3
    assert ("R", 20) not in kept and ("R", 33) in kept and ("UR", 4) not in kept
    old = survivors(arch_by_name("sm_75"))
    assert ("R", 35) not in old and ("R", 36) in old and not any(file == "UR" for file, _ in old)


@pytest.mark.parametrize("name", ["printf_kernel", "malloc_kernel", "assert_kernel"])
def test_return_addresses_computed_from_the_place_of_the_code(name: str) -> None:
    """sm_75: LEPC, and the difference of two immediates added to it."""
    rewriter = Rewriter(load("control_sm75.cubin"), name)
    around, isa, words = rewriter.surroundings, rewriter.isa, rewriter.kernel.words
    computed = around.computed
    assert len(computed.origins) == len(computed.returns) == len(around.leaves) >= 1
    assert sorted(computed.returns.values()) == [16 * (call + 1) for call in around.leaves]
    for index, lepc in computed.origins.items():
        assert around.view.facts(lepc).mnemonic == "LEPC" and f"{16 * lepc:#x}" in around.view.facts(index).text
    # Three words before each instruction that is returned to and before each LEPC.
    places = [address // 16 for address in computed.returns.values()] + list(computed.origins.values())
    layout = plan_layout(len(words), dict.fromkeys(places, 3))
    moved = place_words(isa, words, around.cfg, layout, around.returns, origins=computed.origins)
    for index, address in computed.returns.items():
        assert int(moved.words[layout.place_map[index], 0]) >> 32 == 16 * layout.target_map[address // 16]
    for index, lepc in computed.origins.items():
        assert int(moved.words[layout.place_map[index], 0]) >> 32 == 16 * layout.place_map[lepc]
        assert layout.place_map[lepc] == layout.target_map[lepc] + 3


# refused by name --------------------------------------------------------------------------------------------


def test_code_offsets_in_memory_are_refused_with_the_call() -> None:
    cubin = load("pointers_sm90.cubin")
    with pytest.raises(UnsupportedError, match=r"\[indirect-call\] instruction 34 \(0x220\)"):
        plan_trace(cubin, "alone_kernel", [SassTraceSite(5)])


def test_objects_that_are_not_linked_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\[relocatable-object\] linked_kernel .*nvlink"):
        plan_trace(load("object_sm90.cubin"), "linked_kernel", [SassTraceSite(5)])


def test_a_branch_that_is_in_no_list_is_refused_with_its_address() -> None:
    cubin = load("control_sm90.cubin")
    kernel = cubin.get_kerneldef_by_name("switch_kernel")
    first = min(kernel.indirect_targets)
    records = [
        attribute.with_words(_without(attribute, 16 * first))
        if attribute.code == Attr.INDIRECT_BRANCH_TARGETS
        else attribute
        for attribute in kernel.attributes
    ]
    editor = Editor(cubin.elf)
    assert kernel.info_section is not None
    editor.replace(kernel.info_section.index, nvinfo.serialize(records))
    with pytest.raises(UnsupportedError, match=rf"\[jump-table\] instruction {first} \({16 * first:#x}\) is BRX"):
        plan_trace(Cubin.from_bytes(editor.write()), "switch_kernel", [SassTraceSite(5)])


def _without(attribute: nvinfo.Attribute, branch: int) -> list[int]:
    kept = [item for item in nvinfo.indirect_branches(attribute) if item.branch != branch]
    return [word for item in kept for word in (item.branch, item.tag, len(item.targets), *item.targets)]


# what must be noticed ----------------------------------------------------------------------------------------


def _patched(result: Rewritten, section: str, at: int, value: bytes) -> Rewritten:
    cubin = Cubin.from_bytes(result.data)
    found = cubin.elf.find(section)
    assert found is not None
    data = bytearray(result.data)
    start = found.offset + at
    assert data[start : start + len(value)] != value
    data[start : start + len(value)] = value
    return dataclasses.replace(result, data=bytes(data))


@pytest.mark.parametrize("name", ["switch_kernel", "pointer_kernel"])
def test_an_entry_left_unmoved_is_noticed(name: str) -> None:
    cubin = load("control_sm90.cubin")
    result = marked(cubin, name)
    bank = f".nv.constant2.{name}"
    tables = cubin.get_kerneldef_by_name(name).jump_tables
    assert tables is not None
    content = cubin.elf.content(tables.section)
    word = tables.words[-1]
    for broken, why in (
        (_patched(result, bank, tables.stride + 4 * word, content[4 * word :][:4]), rf"c\[0x2\]\[{4 * word:#x}\]"),
        (_patched(result, bank, 4 * word, b"\1\2\3\4"), "untouched copy"),
    ):
        with pytest.raises(HazardError, match=why):
            verify(cubin.data, broken)


def test_a_branch_or_load_left_unmoved_is_noticed() -> None:
    cubin = load("control_sm90.cubin")
    result = marked(cubin, "switch_kernel")
    rewriter = Rewriter(cubin, "switch_kernel")
    tables, words = rewriter.surroundings.tables, rewriter.kernel.words
    for index in (tables.branches[-1], max(tables.loads)):
        old = words[index].astype("<u8").tobytes()
        with pytest.raises(HazardError, match=f"instruction {index} "):
            verify(cubin.data, _patched(result, ".text.switch_kernel", 16 * int(result.place_map[index]), old))


def test_a_record_left_unmoved_is_noticed() -> None:
    cubin = load("control_sm90.cubin")
    result = marked(cubin, "switch_kernel")
    kernel = Cubin.from_bytes(result.data).get_kerneldef_by_name("switch_kernel")
    attribute = next(item for item in kernel.attributes if item.code == Attr.INDIRECT_BRANCH_TARGETS)
    section = kernel.info_section
    assert section is not None
    at = Cubin.from_bytes(result.data).elf.content(section).index(attribute.payload)
    for word in (0, len(attribute.words) - 1):
        broken = (attribute.words[word] + 16).to_bytes(4, "little")
        with pytest.raises(HazardError):
            verify(cubin.data, _patched(result, section.name, at + 4 * word, broken))


def test_words_of_branches_and_loads() -> None:
    cubin = load("control_sm90.cubin")
    rewriter = Rewriter(cubin, "switch_kernel")
    isa, words, tables = rewriter.isa, rewriter.kernel.words, rewriter.surroundings.tables
    for index in tables.branches:
        old = int(words[index, 0]) | int(words[index, 1]) << 64
        assert moved_branch(isa, words, index, index) == old
        assert isa.decode(moved_branch(isa, words, index, 1000)).text.split()[-1] == f"-{1001 * 16:#x}"
    for index, start in tables.loads.items():
        old = int(words[index, 0]) | int(words[index, 1]) << 64
        assert shifted_load(isa, words, index, 0) == old
        assert f"+{start + 64:#x}]" in isa.decode(shifted_load(isa, words, index, 64)).text
        with pytest.raises(UnsupportedError, match=r"\[jump-table\]"):
            shifted_load(isa, words, index, 1 << 20)
