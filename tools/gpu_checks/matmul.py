"""The seed's program and the tiled matrix product: outputs untouched, every record there, every drop counted."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import cupy
import numpy as np

import gwatch.cuda.binary as gw_binary
from gpu_checks.support import MATMUL, Facts, check, same, trace
from gwatch.common.format import File
from gwatch.cuda.xtrace import SassTraceSite, do_trace
from gwatch.cuda.xtrace.format import Section_IntraKernelTrace

SIZE, TILE = 512, 16
TRIPS = SIZE // TILE


class Product:
    """C = A * B on fixed inputs, launched through CuPy."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.a = cupy.asarray(random.standard_normal((SIZE, SIZE), np.float32))
        self.b = cupy.asarray(random.standard_normal((SIZE, SIZE), np.float32))
        self.c = cupy.zeros((SIZE, SIZE), np.float32)
        self.kernel = MATMUL.kernel("matmul")

    def __call__(self) -> cupy.ndarray:
        blocks = SIZE // TILE
        self.kernel((blocks, blocks), (TILE, TILE), (self.a, self.b, self.c, np.int32(SIZE)))
        cupy.cuda.Device().synchronize()
        return self.c


def loop_index() -> int:
    """The instruction that steps the tile loop: a uniform add of TILE."""
    return MATMUL.find("matmul", r"UIADD3 UR(\d+), UR\1, 0x10, URZ")[0][0]


@check("seed")
def the_seeds_program() -> Facts:
    cubin = gw_binary.Cubin()
    cubin.fill(str(MATMUL.path))
    cubin.parse()
    kernel_def = cubin.get_kerneldef_by_name("matmul")
    kernel_def.parse_cfg()
    isize = kernel_def.cfg.instruction_size
    candidates = [
        index
        for index in range(len(kernel_def.list_instructions))
        if (kernel_def.map_address_to_line.get(index * isize) or (None, None))[1] == 29
    ]
    load_index, load = MATMUL.find("matmul", r"LDG.*\[R(\d+)\.64")[0]
    sites = [
        SassTraceSite(candidates[0]),
        SassTraceSite(candidates[-1], value_reg=7),
        SassTraceSite(load_index, value_reg=int(load[1]), value_width_bits=64),
        SassTraceSite(loop_index(), warp_level=True),
    ]
    result = do_trace(
        fn=Product(),
        kernel_name_pattern=r".*matmul.*",
        instrumentation_tier="sass",
        sass_trace_sites=sites,
        clock_type="gpu",
    )
    section = Section_IntraKernelTrace()
    section.add_run(result, site_regions=[(0, 1, "mainloop")], scope_roles={"mainloop": "Math Warp"})
    report = File(title="SASS trace")
    report.add_section(section)
    with tempfile.TemporaryDirectory() as folder:
        report.render(f"{folder}/trace.html")
        report.render(f"{folder}/trace.json")
        envelope = json.loads(Path(f"{folder}/trace.json").read_text())
        html = len(Path(f"{folder}/trace.html").read_bytes())
    assert envelope["sections"][0]["type"] == "Section_Overview"
    assert set(np.unique(result["records"]["site"])) == {0, 1, 2, 3}
    assert result["outputs"] == "identical", result["outputs"]
    return {
        "records": len(result["records"]),
        "html_kB": html // 1000,
        "slowdown": result["slowdown"]["median"],
    }


def _exact(clock: str, depth: int, keep: str) -> Facts:
    product = Product()
    plain = product().get()
    site = loop_index()
    result = trace(
        product, "matmul", [SassTraceSite(site)], clock_type=clock, sass_per_thread_records=depth, keep=keep
    )
    same("matmul output", plain, product.c.get())
    records = result["records"]
    block = records["block"][:, 1].astype(np.int64) * (SIZE // TILE) + records["block"][:, 0]
    thread = block * TILE * TILE + records["thread"]
    counts = np.bincount(thread, minlength=SIZE * SIZE)
    expected = min(TRIPS, depth)
    assert counts.min() == counts.max() == expected, (counts.min(), counts.max(), expected)
    assert result["dropped"] == SIZE * SIZE * (TRIPS - expected), result["dropped"]
    order = np.lexsort((records["sequence"], thread))
    times, owner = records["time"][order], thread[order]
    steps = np.diff(times)[np.diff(owner) == 0]
    assert steps.min() >= 0, f"a thread's time goes back by {-steps.min()}"
    sequence = np.sort(records["sequence"].reshape(-1))
    first = 0 if keep == "first" else TRIPS - expected
    assert sequence[0] == first and sequence[-1] == first + expected - 1
    return {"records": len(records), "dropped": result["dropped"]}


@check("matmul")
def exact_counts_sm() -> Facts:
    return _exact("sm", 32, "newest")


@check("matmul")
def exact_counts_gpu_with_drops() -> Facts:
    return _exact("gpu", 16, "newest")


@check("matmul")
def exact_counts_anchor_keep_first() -> Facts:
    return _exact("anchor", 8, "first")


@check("matmul")
def warp_and_thread_sites_mixed() -> Facts:
    product = Product()
    plain = product().get()
    site = loop_index()
    result = trace(
        product,
        "matmul",
        [SassTraceSite(site), SassTraceSite(site, warp_level=True)],
        clock_type="anchor",
        sass_per_thread_records=128,
    )
    same("matmul output", plain, product.c.get())
    records = result["records"]
    per_thread = int((~records["warp_level"]).sum())
    per_warp = int(records["warp_level"].sum())
    assert per_thread == SIZE * SIZE * TRIPS and per_warp == SIZE * SIZE // 32 * TRIPS, (per_thread, per_warp)
    assert result["dropped"] == 0
    return {"thread": per_thread, "warp": per_warp}


@check("matmul")
def uniform_register_counts_the_tiles() -> Facts:
    site, match = MATMUL.find("matmul", r"UIADD3 UR(\d+), UR\1, 0x10, URZ")[0]
    result = trace(Product(), "matmul", [SassTraceSite(site, value_reg=int(match[1]), value_is_uniform=True)])
    records = result["records"]
    same("uniform step", records["value"], records["sequence"].astype(np.uint64) * TILE)
    assert len(records) == SIZE * SIZE * TRIPS
    return {"records": len(records)}


@check("matmul")
def too_large_for_the_budget_samples_whole_ctas() -> Facts:
    product = Product()
    plain = product().get()
    result = trace(
        product, "matmul", [SassTraceSite(loop_index())], sass_per_thread_records=32, ring_bytes=16 << 20
    )
    same("matmul output", plain, product.c.get())
    records = result["records"]
    ctas = np.unique(records["block"][:, 1].astype(np.int64) * (SIZE // TILE) + records["block"][:, 0])
    total = (SIZE // TILE) ** 2
    assert 0 < len(ctas) < total and len(records) == len(ctas) * TILE * TILE * TRIPS
    gaps = np.diff(ctas)
    assert gaps.max() - gaps.min() <= 1, "the sample is not even"
    picked = [(3, 5, 0), (31, 31, 0)]
    chosen = trace(product, "matmul", [SassTraceSite(loop_index())], cta=picked)["records"]
    assert {tuple(block) for block in chosen["block"].tolist()} == set(picked)
    return {"ctas": len(ctas), "of": total}
