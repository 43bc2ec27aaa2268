"""Rewriting kernels of every architecture: proved by nvdisasm and the checker, in that architecture's own spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from gwatch.check import check_kernel
from gwatch.check.against import check_against
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.nvinfo import Attr, first
from gwatch.errors import SiteError
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.rewrite.verify import verify

# A small kernel of each architecture, and how it is spelled there: constants, stores, sums.
CASES = {
    "sm_75-ctranslate2-37f0ffa36502": ("MOV R", "STG.E.EF.64.SYS [R", "IADD3 R"),
    "sm_80-ctranslate2-a74f44d8281a": ("MOV R", "STG.E.EF.64 desc[UR", "IADD3 R"),
    "sm_86-ctranslate2-c17b98e5f7e4": ("MOV R", "STG.E.EF.64 desc[UR", "IADD3 R"),
    "sm_89-bitsandbytes-33a0e4586f25": ("MOV R", "STG.E.EF.64 desc[UR", "IADD3 R"),
    "sm_90-jax_cuda13_plugin-bb4300356c24": ("LDC.64 R", "STG.E.EF.64 desc[UR", "IADD3 R"),
    "sm_100-jax_cuda13_plugin-069a97ccb693": ("LDC.64 R", "STG.E.EF.64 desc[UR", ", PT, PT, R"),
    "sm_103a-sgl_flash_mla-32acc6023595": ("LDC.64 R", "STG.E.EF.64 desc[UR", ", PT, PT, R"),
    "sm_120-jax_cuda13_plugin-056781364ff1": ("LDC.64 R", "STG.E.EF.64 desc[UR", "IADD R"),
}


def test_a_call_that_keeps_no_uniform_register_has_the_header_in_a_general_one(corpus_all: list[Path]) -> None:
    """sm_75's printf; the stubs of kernels that are there for a newer GPU only say so, and end."""
    (path,) = [item for item in corpus_all if item.stem == "sm_75-xformers-ca0e9d30030b"]
    cubin = Cubin.from_file(path)
    stub = min(cubin.get_map_kernel_def().values(), key=lambda kernel: kernel.code.unpadded)
    (last,) = [index for index, text in enumerate(stub.texts) if text.startswith("EXIT")]
    sites = [SassTraceSite(0, warp_level=True), SassTraceSite(last, warp_level=True)]
    assert any(text.startswith("CALL.ABS") for text in stub.texts[:last])
    plan = plan_trace(cubin, stub, sites, clock="anchor")
    verify(cubin.data, plan.rewritten)
    assert plan.rewritten.state["head"].startswith("R") and plan.site_map.pairs_at_exit


@pytest.mark.parametrize("stem", CASES)
def test_records_are_written_as_the_architecture_does_and_proved(corpus_all: list[Path], stem: str) -> None:
    (path,) = [item for item in corpus_all if item.stem == stem]
    cubin = Cubin.from_file(path)
    long_enough = [item for item in cubin.get_map_kernel_def().values() if item.code.unpadded > 10]
    kernel = min(long_enough, key=lambda item: len(item.words))
    sites = [SassTraceSite(2, warp_level=True), SassTraceSite(5), SassTraceSite(6, special="activemask")]
    plan = plan_trace(cubin, kernel, sites, clock="anchor", keep="first")
    verify(cubin.data, plan.rewritten)
    patched = Cubin.from_bytes(plan.data)
    after = patched.get_kerneldef_by_name(kernel.name)
    assert check_kernel(patched, after).findings == []
    constant, store, total = CASES[stem]
    texts = [text for site in plan.rewritten.sites for text in site.texts]
    for wanted in (constant, store, total):
        assert any(wanted in text for text in texts), (wanted, texts)
    assert any(text.startswith("ELECT") for text in texts) == cubin.arch.has_elect
    assert bool(cubin.arch.unconfirmed) == (cubin.arch.number != 90)
    # The prologue reads SR_CTAID.Z, which older architectures want declared.
    declared = first(after.attributes, Attr.CTAIDZ_USED) is not None
    assert declared or not cubin.arch.marks_ctaid_z


@pytest.mark.parametrize("path", ["binary/data/holders_sm75.cubin", "scopes/data/markers_sm75.cubin"])
def test_code_that_ends_without_a_nop_is_padded_with_nops(path: str) -> None:
    """Compilers end code for sm_75 with its branch to itself where that fills the last 128 bytes."""
    cubin = Cubin.from_file(Path(__file__).parents[1] / path)
    kernel = next(item for item in cubin.get_map_kernel_def().values() if item.texts[-1].startswith("BRA"))
    plan = plan_trace(cubin, kernel, [SassTraceSite(2)], clock="sm")
    verify(cubin.data, plan.rewritten)
    patched = Cubin.from_bytes(plan.data)
    after = patched.get_kerneldef_by_name(kernel.name)
    assert plan.rewritten.twin is not None
    body = after.texts[: plan.rewritten.twin]
    last = max(index for index, text in enumerate(body) if text != "NOP")
    assert body[last] == f"BRA {16 * last:#x}" and last < len(body) - 1
    with pytest.raises(SiteError, match=r"^\[site-padding\]"):
        plan_trace(cubin, kernel, [SassTraceSite(len(kernel.texts) - 1)], clock="sm")
    check = check_kernel(patched, after)
    check_against(cubin, patched, check)
    assert check.findings == [] and not check.refused
