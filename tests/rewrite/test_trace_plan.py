"""Sites, record formats and refusals of a trace plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gwatch.cuda.binary.cubin import Cubin
from gwatch.errors import SiteError, TraceError
from gwatch.rewrite.ring import Keep, RecordKind
from gwatch.rewrite.trace import SassTraceSite, choose_format, plan_trace

MATMUL = Path(__file__).parents[2] / "examples" / "cuda" / "trace" / "matmul_sm90.cubin"


def test_site_fields_and_defaults() -> None:
    site = SassTraceSite(12)
    assert (site.insert_index, site.value_reg, site.value_width_bits, site.value_is_uniform) == (
        12,
        None,
        32,
        False,
    )
    assert (site.value_is_smid, site.warp_level, site.unconditional, site.label) == (
        False,
        False,
        False,
        None,
    )
    assert SassTraceSite(np.int64(5), np.int32(4)).value == "R4"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("site", "value", "bits"),
    [
        (SassTraceSite(0), "none", 0),
        (SassTraceSite(0, 8), "R8", 32),
        (SassTraceSite(0, 8, 64), "R8:64", 64),
        (SassTraceSite(0, 0, value_is_uniform=True), "UR0", 32),
        (SassTraceSite(0, 62, 64, True), "UR62:64", 64),
        (SassTraceSite(0, value_is_smid=True), "smid", 0),
        (SassTraceSite(0, special="activemask"), "activemask", 32),
        (SassTraceSite(0, special="ns:64"), "ns:64", 64),
    ],
)
def test_site_values(site: SassTraceSite, value: str, bits: int) -> None:
    assert (site.value, site.record_bits) == (value, bits)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((-1,), "site-range"),
        (("3",), "site-value"),
        ((True,), "site-value"),
        ((1.0,), "site-value"),
        ((0, 255), "site-register"),
        ((0, -1), "site-register"),
        ((0, 256), "site-register"),
        ((0, 63, 32, True), "site-register"),
        ((0, 5, 64), "site-register"),
        ((0, 5, 64, True), "site-register"),
        ((0, 4, 16), "site-value"),
        ((0, 4, 128), "site-value"),
        ((0, None, 64), "site-value"),
        ((0, None, 32, True), "site-value"),
        ((0, 4, 32, False, True), "site-value"),
        ((0, None, 32, False, True, False, False, None, "ns"), "site-value"),
        ((0, None, 32, False, False, False, False, None, "clock"), "site-value"),
    ],
)
def test_contradicting_or_impossible_sites_are_value_errors(arguments: tuple[object, ...], code: str) -> None:
    with pytest.raises(SiteError) as caught:
        SassTraceSite(*arguments)  # type: ignore[arg-type]
    assert caught.value.code == code and isinstance(caught.value, ValueError)


NONE, X, XY = SassTraceSite(0), SassTraceSite(0, 4), SassTraceSite(0, 4, 64)
NS = SassTraceSite(0, special="ns:64")


@pytest.mark.parametrize(
    ("sites", "clock", "duration", "kind", "pairs"),
    [
        ([NONE], "gpu", None, RecordKind.NARROW, False),
        ([NONE, X], "sm", None, RecordKind.WIDE, False),
        ([XY], "gpu", 1e9, RecordKind.WIDE, False),
        ([NONE], "gpu", 3e9, RecordKind.LONG, False),
        ([X], "sm", 1e9, RecordKind.LONG, False),
        ([NONE], "sm", 0.5e9, RecordKind.NARROW, False),
        ([NONE], "anchor", 0.9e6, RecordKind.NARROW, False),
        ([XY], "anchor", 0.9e6, RecordKind.WIDE, False),
        ([NONE], "anchor", 2e6, RecordKind.WIDE, True),
        ([NONE, XY], "anchor", 0.2e9, RecordKind.WIDE, True),
        ([NS], "anchor", 0.2e9, RecordKind.WIDE, True),
        ([NONE, X], "anchor", 1.5e9, RecordKind.LONG, True),
        ([SassTraceSite(0, special="ns")], "anchor", 1.5e9, RecordKind.LONG, True),
    ],
)
def test_records_are_as_wide_as_values_and_times_need(
    sites: list[SassTraceSite], clock: str, duration: float | None, kind: RecordKind, pairs: bool
) -> None:
    fmt, paired = choose_format(sites, clock, 33, "first", duration)
    assert (fmt.kind, paired, fmt.depth, fmt.keep) == (kind, pairs, 64, Keep.FIRST)


@pytest.mark.parametrize(
    ("sites", "clock", "duration"),
    [
        ([XY], "gpu", 3e9),
        ([NONE, XY], "sm", 1e9),
        ([XY], "anchor", 2e6),
        ([NONE, XY], "anchor", 1e9),
        ([X], "anchor", 1e9),
        ([NONE], "anchor", 2.5e9),
    ],
)
def test_times_that_cannot_stay_exact_are_refused(
    sites: list[SassTraceSite], clock: str, duration: float
) -> None:
    with pytest.raises(TraceError, match=r"^\[trace-too-long\]"):
        choose_format(sites, clock, 32, "newest", duration)


@pytest.mark.parametrize(
    ("clock", "depth", "keep", "code"),
    [
        ("cpu", 32, "newest", "trace-clock"),
        ("sm", 0, "newest", "trace-depth"),
        ("sm", 32, "last", "trace-keep"),
    ],
)
def test_unknown_options_are_refused(clock: str, depth: int, keep: str, code: str) -> None:
    with pytest.raises(TraceError) as caught:
        choose_format([NONE], clock, depth, keep, None)
    assert caught.value.code == code


def test_a_branch_at_a_site_reads_as_in_the_listing() -> None:
    cubin = Cubin.from_file(MATMUL)
    kernel = cubin.get_kerneldef_by_name("matmul")
    index = next(at for at, text in enumerate(kernel.texts) if text.startswith("@!P0 BRA"))
    plan = plan_trace(cubin, "matmul", [SassTraceSite(index)])
    assert plan.site_map.sites[0].instruction == kernel.texts[index] and kernel.texts[index].startswith("@!P0 BRA 0x")
