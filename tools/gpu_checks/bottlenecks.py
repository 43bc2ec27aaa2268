"""Planted bottlenecks: `gwatch show`'s findings name what was planted, and say nothing about clean kernels."""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from gpu_checks.support import ROOT, Facts, Program, check
from gwatch.cli.main import main
from gwatch.common.format import File
from gwatch.cuda.xtrace import SassTraceSite, do_trace
from gwatch.cuda.xtrace.format import Section_IntraKernelTrace

KERNELS = Program(ROOT / "tests/gpu/kernels/bottlenecks.cu")
BLOCKS, WAVE = 132, 140
ALONE = 120 << 10  # dynamic shared bytes that leave room for one CTA on an SM
PIPELINE = {
    "rounds": 32,
    "stages": 4,
    "load": 600,
    "math": 640,
    "stores": 64,
    "stride": 1,
    "slow_block": -1,
    "slow_warp": -1,
    "hiccup": 0,
}
TILES = {"rounds": 32, "math": 1500, "ahead": 1}
MARKS = {
    "pipeline": ([1, 2, 3, 4, 5, 6], [(0, 1, "load"), (2, 3, "math"), (4, 5, "epilogue")]),
    "tiles": ([7, 8, 9], [(0, 1, "copy wait"), (1, 2, "math")]),
}
ROLES = {"load": "Producer", "math": "Consumer", "epilogue": "Consumer"}


@dataclass(frozen=True)
class Case:
    """``planted``: the code that must be found, with evidence it must carry; ``beside``: codes that are true, too."""

    name: str
    kernel: str = "pipeline"
    planted: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    changes: dict[str, int] = field(default_factory=dict)
    blocks: int = BLOCKS
    shared: int = 0


CASES = [
    Case("clean: balanced"),
    Case("clean: longer rounds, more stages", changes={"load": 900, "math": 930, "stages": 6, "rounds": 24}),
    Case("clean: the next tile is on its way", "tiles"),
    Case(
        "delayed producer", "pipeline", "role-waits", {"role": "Consumer", "waits_for": "Producer"}, (), {"load": 1300}
    ),
    Case("heavy consumer", "pipeline", "role-waits", {"role": "Producer", "waits_for": "Consumer"}, (), {"math": 1400}),
    Case("one stage", "pipeline", "take-turns", {"roles": ["Consumer", "Producer"]}, (), {"stages": 1}),
    Case(
        "one stage, uneven work",
        "pipeline",
        "take-turns",
        {"roles": ["Consumer", "Producer"]},
        (),
        {"stages": 1, "load": 400, "math": 800},
    ),
    Case("one slow CTA", "pipeline", "slow-block", {"block": 17}, ("tail",), {"slow_block": 17}),
    Case(
        "one slow warp",
        "pipeline",
        "uneven-rows",
        {"role": "Consumer"},
        ("slow-block", "tail"),
        {"slow_block": 5, "slow_warp": 2},
    ),
    Case(
        "epilogue with bank conflicts",
        "pipeline",
        "serial-scope",
        {"scope": "epilogue"},
        (),
        {"stores": 256, "stride": 32},
    ),
    Case(
        "now and then a long round",
        "pipeline",
        "spread",
        {"scope": "math"},
        ("role-waits", "take-turns"),
        {"hiccup": 11, "stages": 8, "load": 1000},
    ),
    Case("copies waited for at once", "tiles", "long-wait", {"scope": "copy wait"}, (), {"ahead": 0, "math": 800}),
    Case("a few CTAs more than fit", "pipeline", "tail", {}, (), {}, WAVE, ALONE),
]


def _arguments(case: Case, out: Any, source: Any) -> tuple[Any, ...]:
    values = {**(PIPELINE if case.kernel == "pipeline" else TILES), **case.changes}
    numbers = tuple(np.int32(value) for value in values.values())
    return (out, *numbers) if case.kernel == "pipeline" else (source, out, *numbers)


def _findings(case: Case, folder: Path) -> list[dict[str, Any]]:
    """What the command says about a traced launch of the case."""
    marks, regions = MARKS[case.kernel]
    sites = []
    for mark in marks:
        ((index, _),) = KERNELS.find(case.kernel, rf"PMTRIG 0x{mark:x}\b")
        sites.append(SassTraceSite(index, warp_level=True))
    kernel = KERNELS.kernel(case.kernel)
    if case.shared:
        kernel.max_dynamic_shared_size_bytes = case.shared
    out = cupy.zeros(WAVE * 128, cupy.int32)
    source = cupy.zeros(32 * WAVE * 128 * 4, cupy.int32) if case.kernel == "tiles" else None
    arguments = _arguments(case, out, source)

    def run() -> Any:
        kernel((case.blocks,), (128,), arguments, shared_mem=case.shared)
        cupy.cuda.Device().synchronize()
        return out

    result = do_trace(
        fn=run,
        kernel_name_pattern=f"^{case.kernel}$",
        instrumentation_tier="sass",
        sass_trace_sites=sites,
        sass_per_thread_records=256,
        clock_type="anchor",
        passes=1,
    )
    assert result["dropped"] == 0 and result["outputs"] == "identical", (result["dropped"], result["outputs"])
    labels = {label for _, _, label in regions}
    roles = {label: role for label, role in ROLES.items() if label in labels and case.kernel == "pipeline"}
    section = Section_IntraKernelTrace()
    section.add_run(result, site_regions=regions, scope_roles=roles or None)
    report = File(title="case")
    report.add_section(section)
    path = folder / "case.json"
    report.render(path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["show", str(path), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(printed.getvalue())["findings"]
    return found


def wrong(case: Case, found: list[dict[str, Any]]) -> str | None:
    """What is wrong with the findings on a case, None when they are right."""
    codes = [finding["code"] for finding in found]
    strange = [finding["text"] for finding in found if finding["code"] not in (case.planted, *case.beside)]
    if strange:
        return f"says {strange}"
    if case.planted is None:
        return None
    for finding in found:
        if finding["code"] == case.planted and all(
            finding["evidence"].get(key) == value for key, value in case.evidence.items()
        ):
            return None
    return f"does not name {case.planted} {case.evidence}, but {codes} {[finding['text'] for finding in found]}"


@check("bottlenecks")
def planted_ones_are_named_and_clean_kernels_are_not() -> Facts:
    order = list(CASES)
    random.Random(20).shuffle(order)
    failed, weights = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for case in order:
            found = _findings(case, Path(folder))
            problem = wrong(case, found)
            weights[case.name] = [f"{finding['code']} {finding['weight']:.2f}" for finding in found]
            if problem is not None:
                failed.append(f"{case.name}: {problem}")
    assert not failed, "\n".join(failed)
    planted = sum(case.planted is not None for case in CASES)
    return {"planted": planted, "clean": len(CASES) - planted, "found": weights}
