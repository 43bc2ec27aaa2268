"""do_trace at scope markers from end to end without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "run"), str(TESTS / "xtrace")]

import test_trace_flow as flow  # noqa: E402
from ringsim import site_map  # noqa: E402

from gwatch.common.format import File  # noqa: E402
from gwatch.cuda.binary.constants import add_note  # noqa: E402
from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.cuda.program.options import ProgramOptions  # noqa: E402
from gwatch.cuda.program.places import places_of  # noqa: E402
from gwatch.cuda.trace import do_trace, do_trace_kernel_launch_sequence  # noqa: E402
from gwatch.cuda.trace.format import Section_IntraKernelTrace  # noqa: E402
from gwatch.cuda.xtrace import prepare, tiers  # noqa: E402
from gwatch.errors import GWatchError, SiteError, TraceError, UnsupportedError  # noqa: E402
from gwatch.rewrite.ring import RecordKind, RingFormat  # noqa: E402
from gwatch.rewrite.sitemap import MappedSite  # noqa: E402

DATA = Path(__file__).resolve().parent / "data"
CUBIN = DATA / "markers_sm90a.cubin"
PTX = DATA / "markers.ptx"
SCHEMA = json.loads((TESTS.parent / "gwatch/common/format/trace.schema.json").read_text())
FORMAT = RingFormat(RecordKind.NARROW, 4)


def mapped(number: int) -> MappedSite:
    return MappedSite(number, number, 0, 0, "PMTRIG", None, None, "none", False, False, False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> flow.Machine:
    """A machine that runs the marked kernel; its "patched code" visits the first two markers in turn."""
    registers = Cubin.from_file(CUBIN).get_kerneldef_by_name("marked").register_count
    monkeypatch.setattr(flow, "EXAMPLE", CUBIN)
    monkeypatch.setattr(flow, "REGISTERS", registers)
    machine: flow.Machine = flow.machine.__wrapped__(monkeypatch)  # type: ignore[attr-defined]
    machine.add("marked", machine.module)
    # The fake module has no constant bank that could be copied.
    monkeypatch.setattr(prepare, "_reached", lambda cubin, kernel: ())
    machine.visits = 4
    planned_sites: dict[str, Any] = {}

    def plan(cubin: Any, *rest: Any, **options: Any) -> Any:
        count = planned_sites["count"]
        made = site_map("gpu", FORMAT, [mapped(i) for i in range(count)])
        monkeypatch.setattr(flow, "MAP", made)
        machine.plans.append(options)  # type: ignore[attr-defined]
        return SimpleNamespace(
            data=add_note(cubin.data, ".note.patched", b"x"), site_map=made, compiler="ptxas 13.5"
        )

    def sass(cubin: Any, kernel: Any, sites: Any, **options: Any) -> Any:
        planned_sites["count"] = len(sites)
        return plan(cubin, sites=sites, **options)

    def ptx(found: Any, cubin: Any, kernel: Any, **options: Any) -> Any:
        planned_sites["count"] = len(found.markers)
        return plan(cubin, found=found, **options)

    monkeypatch.setattr(flow, "FORMAT", FORMAT)
    monkeypatch.setattr(prepare, "plan_trace", sass)
    monkeypatch.setattr(tiers, "plan_ptx", ptx)
    return machine


def trace(machine: flow.Machine, fn: Callable[[], Any] | None = None, **options: Any) -> Any:
    options = {"kernel_name_pattern": "marked", "instrumentation_tier": "sass", "passes": 1, **options}
    return do_trace(fn or (lambda: machine.launch("marked")), **options)


@pytest.mark.parametrize("tier", ["sass", "ptx"])
def test_scopes_are_named_in_the_result_and_in_the_report(
    machine: flow.Machine, tier: str, tmp_path: Path
) -> None:
    given = {"ptx": PTX, "dsl": ""} if tier == "ptx" else {}
    result = trace(machine, scope_name_map={1: "load", 3: "halve"}, instrumentation_tier=tier, **given)
    assert result["scopes"] == {1: "load", 2: "2", 3: "halve"}
    assert result["compile_results"]["instrumentation_level"] == tier
    assert result["compile_results"]["record_shape"] == "scope"
    assert set(np.unique(result["records"]["site"]).tolist()) == {0, 1}
    row = result["trace_results"][0]
    assert (row["type_str"], row["scope_str"], row["scope_label"]) == ("SCOPE_START", "1", "load")
    assert ("splice_results" in result) == (tier == "sass")
    assert ("compiler" in result["compile_results"]) == (tier == "ptx")
    section = Section_IntraKernelTrace()
    section.add_run(result, scope_roles={"load": "Loader"})
    with pytest.raises(TraceError, match=r"\[bad-role\].*nothing"):
        Section_IntraKernelTrace().add_run(result, scope_roles={"nothing": "x"})
    report = File(title="scopes")
    report.add_section(section)
    report.render(tmp_path / "t.json")
    report.render(tmp_path / "t.html")
    assert "load" in (tmp_path / "t.html").read_text()
    jsonschema.validate(json.loads((tmp_path / "t.json").read_text()), SCHEMA)
    with pytest.raises(GWatchError, match=r"\[unknown-format\]"):
        report.render(tmp_path / "t.yaml")
    stats = section.runs[0].analysis["scope_stats"]
    assert [(entry["scope_label"], entry["count"]) for entry in stats] == [("load", 2 * 96)]
    assert machine.ran == ["plain", "plain", "traced"]


def test_a_ring_is_deep_enough_for_all_markers_unless_told_otherwise(machine: flow.Machine) -> None:
    plans = machine.plans  # type: ignore[attr-defined]
    trace(machine)
    trace(machine, sass_per_thread_records=7)
    trace(machine, per_thread_counts={("SCOPE_START", "1"): 10, ("SCOPE_END", "1"): 20})
    assert [plan["depth"] for plan in plans] == [14 * 32, 7, 30]


def test_warps_instead_of_threads_by_either_name(machine: flow.Machine) -> None:
    for option in ("warp_level", "ptx_warp_level"):
        # The fake kernel's lanes all record, as if each of them were a group of its own.
        with pytest.raises(TraceError, match=r"\[scope-diverged\].*warp_level=False"):
            trace(machine, **{option: True})
        assert flow.left_clean(machine)
    assert len(machine.plans) == 2  # type: ignore[attr-defined]
    assert all(site.warp_level for plan in machine.plans for site in plan["sites"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"scope_name_map": {9: "none"}}, SiteError, "scope-unknown"),
        ({"scope_name_map": {4096: "none"}}, SiteError, "scope-id"),
        ({"instrumentation_tier": "ptx", "dsl": "numba"}, TraceError, "dsl-unknown"),
        ({"instrumentation_tier": "ptx", "ptx": DATA / "none.ptx"}, TraceError, "ptx-missing"),
        ({"instrumentation_tier": "ptx", "ptx": DATA / "cute_matmul.ptx"}, TraceError, "ptx-missing"),
        (
            {"instrumentation_tier": "ptx", "sass_excluded_registers": {"general": [1]}},
            UnsupportedError,
            "ptx-sites",
        ),
    ],
)
def test_bad_scopes_are_refused_by_name(
    machine: flow.Machine, options: dict[str, Any], error: type[Exception], code: str
) -> None:
    with pytest.raises(error, match=rf"\[{code}\]"):
        trace(machine, **options)
    assert flow.left_clean(machine)


def test_a_sequence_of_launches_comes_back_in_order(machine: flow.Machine) -> None:
    def fn() -> None:
        machine.launch("marked")
        machine.launch("marked", grid=(4, 1, 1))
        machine.launch("marked")

    found = do_trace_kernel_launch_sequence(fn, "marked", instrumentation_tier="sass", passes=1)
    assert [result["grid_dim"] for result in found] == [(2, 1, 1), (4, 1, 1), (2, 1, 1)]
    assert [result["launch"]["sequence"] for result in found] == [0, 1, 2]
    with pytest.raises(Exception, match=r"\[kernel-not-launched\]"):
        do_trace_kernel_launch_sequence(lambda: None, "marked", instrumentation_tier="sass")
    assert flow.left_clean(machine)


def test_gwatch_trace_records_the_scopes_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ProgramOptions(folder=".")
    places = places_of(Cubin.from_file(CUBIN).get_kerneldef_by_name("marked"), options)
    assert places.scopes is not None and not places.lifetime
    assert [label for _, _, label in places.regions] == ["1", "2", "3"]
    assert len(places.sites) == 14 and all(site.warp_level for site in places.sites)
    named = places_of(
        Cubin.from_file(CUBIN).get_kerneldef_by_name("marked"),
        ProgramOptions(folder=".", scopes=((2, "load"),)),
    )
    assert [label for _, _, label in named.regions] == ["1", "load", "3"]
    plain = places_of(
        Cubin.from_file(DATA / "sentinels_sm90a.cubin").get_kerneldef_by_name("old_markers"), options
    )
    assert plain.scopes is None and plain.lifetime
