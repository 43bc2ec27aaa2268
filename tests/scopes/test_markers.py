"""Scope markers in machine code: found on every architecture, checked, planned, and merged again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gwatch
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.lines import Call
from gwatch.cuda.trace import tilelang, triton
from gwatch.cuda.xtrace import markers
from gwatch.cuda.xtrace.markers import Marker, check_markers, find_markers, mask_of, read_mask
from gwatch.cuda.xtrace.records import RECORD_DTYPE
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.cuda.xtrace.scopes import Scopes, check_divergence, merge, scope_sites
from gwatch.errors import GWatchError, SiteError, TraceError
from gwatch.rewrite.trace import plan_trace

DATA = Path(__file__).resolve().parent / "data"
ARCHS = sorted(path.stem.removeprefix("markers_") for path in DATA.glob("markers_sm*.cubin"))
FRONT_ENDS = (
    "hgmma_matmul",
    "cute_matmul",
    "triton_attention",
    "tilelang_matmul",
    "markers_sm90a",
    "markers_sm90",
)


def kernel_of(path: Path) -> Any:
    cubin = Cubin.from_file(path)
    return cubin.get_kerneldef_by_name(next(iter(cubin.get_map_kernel_def())))


@given(st.integers(0, markers.MAX_ID), st.booleans(), st.booleans())
def test_a_marker_says_what_it_was_made_of(scope: int, end: bool, payload: bool) -> None:
    assert read_mask(mask_of(scope, end=end, payload=payload)) == (scope, end, payload)


@given(st.integers(0, 0xFFFF))
def test_no_other_event_is_taken_for_a_marker(mask: int) -> None:
    read = read_mask(mask)
    assert (read is None) == (mask >> 13 != 0b101)
    assert read is None or mask_of(read[0], end=read[1], payload=read[2]) == mask


@pytest.mark.parametrize("scope", [-1, 2048, 1.5, "1", None, True])
def test_ids_out_of_range_are_refused(scope: Any) -> None:
    with pytest.raises(SiteError, match=r"\[scope-id\]"):
        mask_of(scope, end=False)
    with pytest.raises(SiteError, match=r"\[scope-id\]"):
        tilelang.scope_start(scope)


def test_the_data_covers_every_architecture() -> None:
    assert len(ARCHS) == 10


@pytest.mark.parametrize("arch", ARCHS)
def test_markers_and_payload_registers_are_found_on_every_architecture(arch: str) -> None:
    kernel = kernel_of(DATA / f"markers_{arch}.cubin")
    found = find_markers(kernel)
    check_markers(kernel, found, {1: "load", 2: "square", 3: "halve"})
    counted = {(m.scope, m.end): sum(o.scope == m.scope and o.end == m.end for o in found) for m in found}
    assert counted[1, False] == counted[1, True] == counted[3, False] == counted[3, True] == 1
    assert counted[2, False] == counted[2, True] == 5  # four copies of the unrolled loop, one of the rest
    start, end = (next(m for m in found if m.scope == 1 and m.end == which) for which in (False, True))
    assert start.payload and end.payload and start.value_reg is not None and end.value_reg is not None
    # The payload of the end is what the load before it wrote.
    load = next(text for text in kernel.texts[start.index : end.index] if "LDG" in text)
    assert f"R{end.value_reg}," in load.partition("LDG")[2]
    for marker in found:
        assert kernel.text(marker.index).endswith(
            f"PMTRIG {mask_of(marker.scope, end=marker.end, payload=marker.payload):#x}"
        )


def test_a_payload_whose_register_is_gone_is_refused() -> None:
    texts = ["@!P0 STS [R0+0x67570], R3", "IMAD R3, R1, R2, R3", "PMTRIG 0xa801"]
    words = np.zeros((3, 2), np.uint64)
    words[2, 0] = 0xA801_0000_7801
    kernel: Any = SimpleNamespace(name="k", words=words, text=texts.__getitem__)
    with pytest.raises(SiteError, match=r"\[scope-payload\]"):
        find_markers(kernel)
    texts[1] = "IMAD R5, R1, R2, R3"
    assert find_markers(kernel) == [Marker(2, 1, False, True, 3)]
    texts[0] = "@!P0 STS [UR4+0x67570], RZ"
    assert find_markers(kernel) == [Marker(2, 1, False, True, None)]
    texts[0] = "@!P0 STS [R0+0x10], R3"
    with pytest.raises(SiteError, match=r"\[scope-payload\]"):
        find_markers(kernel)


def stub(
    lines: dict[int, tuple[str, int]] | None = None, calls: dict[int, tuple[Call, ...]] | None = None
) -> Any:
    return SimpleNamespace(
        name="k",
        map_address_to_line=lines or {},
        inlined_at=calls or {},
        arch=SimpleNamespace(instruction_size=16),
    )


@pytest.mark.parametrize(
    ("found", "names", "lines", "code"),
    [
        ([], {}, {}, "no-markers"),
        ([Marker(1, 1, False)], {}, {}, "scope-unended"),
        ([Marker(1, 1, True)], {}, {}, "scope-unstarted"),
        ([Marker(1, 1, False), Marker(2, 1, True)], {2: "b"}, {}, "scope-unknown"),
        (
            [Marker(1, 1, False), Marker(2, 1, False), Marker(3, 1, True)],
            {},
            {16: ("a.cu", 4), 32: ("a.cu", 9), 48: ("a.cu", 12)},
            "scope-id-twice",
        ),
    ],
)
def test_markers_that_would_give_wrong_intervals_are_refused(
    found: list[Marker], names: dict[int, str], lines: dict[int, tuple[str, int]], code: str
) -> None:
    with pytest.raises(SiteError, match=rf"\[{code}\]"):
        check_markers(stub(lines), found, names)


def test_copies_of_one_place_and_several_ends_are_right() -> None:
    found = [Marker(1, 1, False), Marker(2, 1, False), Marker(3, 1, True), Marker(4, 1, True)]
    check_markers(stub({16: ("a.cu", 4), 32: ("a.cu", 4), 48: ("a.cu", 7), 64: ("a.cu", 8)}), found, {1: "x"})


def test_markers_of_blocks_stand_where_the_block_is() -> None:
    """Not where its constructor is, which all of them share."""
    found = [Marker(1, 1, False), Marker(2, 1, False), Marker(3, 1, True), Marker(4, 1, True)]
    header = ("/opt/gwatch/include/gwatch/cuda/trace.hpp", 38)
    lines = {16 * index: header for index in range(1, 5)}
    check_markers(stub(lines), found, {})
    calls: dict[int, tuple[Call, ...]] = {
        16 * index: (Call("a.cu", 4, "KernelScope"), Call("a.cu", index, "f")) for index in range(1, 5)
    }
    check_markers(stub(lines, calls), found, {})
    calls[32] = (Call("a.cu", 9, "KernelScope"),)
    with pytest.raises(SiteError, match=r"\[scope-id-twice\].* a\.cu:4, a\.cu:9;"):
        check_markers(stub(lines, calls), found, {})


def test_moves_of_constants_do_not_reach_machine_code_and_the_refusal_says_so() -> None:
    kernel = kernel_of(DATA / "sentinels_sm90a.cubin")
    with pytest.raises(SiteError, match=r"\[no-markers\].*three moves.*instrumentation_tier='ptx'"):
        scope_sites(kernel, {}, False)


@pytest.mark.parametrize("name", FRONT_ENDS)
@pytest.mark.parametrize("warp_level", [False, True])
def test_kernels_of_every_front_end_are_planned(name: str, warp_level: bool) -> None:
    cubin = Cubin.from_file(DATA / f"{name}.cubin")
    kernel = kernel_of(DATA / f"{name}.cubin")
    sites, scopes = scope_sites(kernel, {1: "first"}, warp_level)
    planned = plan_trace(cubin, kernel.name, sites)
    assert len(planned.site_map.sites) == len(scopes.boundaries)
    assert all(
        "PMTRIG" in site.instruction and site.warp_level == warp_level for site in planned.site_map.sites
    )
    assert scopes.names[0] == (1, "first") and scopes.regions[0] == (0, 1, "first")


def test_a_kernel_that_hands_registers_over_keeps_its_count() -> None:
    cubin = Cubin.from_file(DATA / "hgmma_matmul.cubin")
    sites, _ = scope_sites(cubin.get_kerneldef_by_name("hgmma_matmul"), {}, True)
    planned = plan_trace(cubin, "hgmma_matmul", sites, clock="anchor")
    assert planned.site_map.registers_before == planned.site_map.registers_after == 168
    assert len(sites) == 8


def test_the_end_of_one_scope_and_the_start_of_the_next_share_a_record() -> None:
    """Markers that nothing lies between, so that each step of a pipeline costs a record less; none across a wait."""
    cubin = Cubin.from_file(DATA / "hgmma_matmul.cubin")
    kernel = cubin.get_kerneldef_by_name("hgmma_matmul")
    names = {1: "wait for slot", 2: "issue loads", 3: "wait for data", 4: "multiply"}
    sites, _ = scope_sites(kernel, names, True)
    planned = plan_trace(cubin, "hgmma_matmul", sites, clock="sm", hold=False).site_map
    shared = {
        site.label: planned.sites[site.shared_with].label
        for site in planned.sites
        if site.shared_with is not None
    }
    assert shared == {"wait for data end": "multiply start", "wait for slot end": "issue loads start"}


def test_scopes_of_many_copies_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gwatch.cuda.xtrace.scopes.MAX_SITES", 4)
    with pytest.raises(SiteError, match=r"\[scope-copies\]"):
        scope_sites(kernel_of(DATA / "markers_sm90a.cubin"), {}, False)


def records(*rows: tuple[int, int, int, int, int]) -> Any:
    """(warp, lane, sequence, site, time) of a launch of one CTA."""
    made = np.zeros(len(rows), RECORD_DTYPE)
    for record, (warp, lane, sequence, site, time) in zip(made, rows, strict=True):
        record["warp"], record["lane"], record["sequence"] = warp, lane, sequence
        record["site"], record["time"], record["thread"] = site, time, -1
        record["warp_level"] = True
    return made


def traced(made: Any, sites: int) -> TraceResult:
    described = [{"site_id": i, "index": 10 * i, "label": str(i)} for i in range(sites)]
    return TraceResult(
        records=made,
        sites=described,
        grid_dim=(1, 1, 1),
        block_dim=(64, 1, 1),
        compile_results={},
        splice_results={"sites": {}},
    )


def test_records_of_copies_become_those_of_one_scope() -> None:
    scopes = Scopes(
        ((1, "a"), (9, "b")), ((1, False), (1, True), (9, False), (1, False), (9, True), (1, True)), True
    )
    made = records(
        (0, 0, 0, 0, 5), (0, 0, 1, 1, 6), (0, 0, 2, 2, 7), (0, 0, 3, 3, 8), (0, 0, 4, 5, 9), (0, 0, 5, 4, 10)
    )
    result = traced(made, 6)
    merge(result, scopes)
    assert result["records"]["site"].tolist() == [0, 1, 2, 0, 1, 3]
    assert [(s["site_id"], s["copies"]) for s in result["sites"]] == [
        (0, [0, 30]),
        (1, [10, 50]),
        (2, [20]),
        (3, [40]),
    ]
    assert result["analysis"]["site_regions"] == [[0, 1, "a"], [2, 3, "b"]]
    rows = result["trace_results"]
    assert rows[2] == {
        "global_tid": 0, "type_id": 1, "type_str": "SCOPE_START", "scope_id": 2, "scope_str": "9",
        "scope_label": "b", "payload": 0, "value": 7,
    }  # fmt: skip
    assert [row["type_str"] for row in rows].count("SCOPE_END") == 3


SCOPE = Scopes(((1, "a"),), ((1, False), (1, True)), True)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 0, 0, 5), (0, 0, 1, 1, 9)],
        # Two groups of a diverged warp, one after the other, and at the same time step.
        [(0, 0, 0, 0, 5), (0, 0, 1, 1, 9), (0, 7, 0, 0, 9), (0, 7, 1, 1, 9)],
        # The first record of a lane was dropped.
        [(0, 0, 3, 1, 5), (0, 0, 4, 0, 9), (0, 0, 5, 1, 12), (0, 7, 0, 0, 20), (0, 7, 1, 1, 21)],
    ],
)
def test_one_group_of_lanes_after_another_is_right(rows: list[tuple[int, int, int, int, int]]) -> None:
    check_divergence(records(*rows), (1, 1, 1), (64, 1, 1), SCOPE)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(1, 0, 0, 0, 5), (1, 7, 0, 0, 6), (1, 0, 1, 1, 9), (1, 7, 1, 1, 10)], "at the same time"),
        ([(1, 0, 0, 0, 5), (1, 7, 0, 1, 6)], "different lanes"),
    ],
)
def test_groups_side_by_side_in_a_warp_level_scope_are_refused(
    rows: list[tuple[int, int, int, int, int]], why: str
) -> None:
    with pytest.raises(TraceError, match=rf"\[scope-diverged\] warp 1 .*{why}"):
        check_divergence(records(*rows), (1, 1, 1), (64, 1, 1), SCOPE)


def test_divergence_can_be_a_warning() -> None:
    result = traced(records((1, 0, 0, 0, 5), (1, 7, 0, 0, 6), (1, 0, 1, 1, 9), (1, 7, 1, 1, 10)), 2)
    result["warnings"] = []
    merge(result, SCOPE, refuse=False)
    assert result["warnings"][0].startswith("[scope-diverged] warp 1") and result["scopes"] == {1: "a"}


def test_front_ends_import_without_their_dsl_and_say_what_is_missing() -> None:
    import gwatch.cuda.xtrace.cute
    import gwatch.cuda.xtrace.tilelang
    import gwatch.cuda.xtrace.triton

    assert gwatch.cuda.xtrace.tilelang.scope_start is tilelang.scope_start
    assert gwatch.cuda.xtrace.triton.scope_end is triton.scope_end
    for call in (gwatch.cuda.xtrace.cute.scope_start, tilelang.scope_end):
        with pytest.raises(GWatchError, match=r"\[dsl-missing\].*pip install"):
            call(1)
    assert 0 <= tilelang.get_scope_id("load") != tilelang.get_scope_id("store") <= markers.MAX_ID


def test_the_header_is_where_get_include_says() -> None:
    header = Path(gwatch.get_include(), "gwatch/cuda/trace.hpp").read_text()
    assert f"st.shared.b32 [%%gwatch_n+{markers.PAYLOAD_PLACE}]" in header
    for macro in ("SCOPE_START(ID)", "SCOPE_END(ID)", "SCOPE(ID)", "SCOPE_START_VALUE(ID, VALUE)"):
        assert f"#define GWATCH_CUDA_KERNEL_{macro}" in header


def test_a_triton_marker_outside_a_kernel_is_refused() -> None:
    for marker in (triton.scope_start, triton.scope_end):
        with pytest.raises(SiteError, match=r"\[scope-outside\].*inside a @triton.jit function"):
            marker(1)
