"""Word files of tools/harvest_words.py: which of their words count for an architecture."""

from __future__ import annotations

from pathlib import Path

from isa_learning.corpus import WORDS, listed_words, project_of

from gwatch.sass.arch import ARCHES


def test_words_stand_under_their_target_and_library(tmp_path: Path) -> None:
    path = tmp_path / "sm_90.txt"
    path.write_text("# comment\nsm_90 one 1.0\n0f\nsm_90a one 1.0\n10\nsm_90 two 2.0\n11\nsm_100 one 1.0\n12\n")
    assert listed_words(path, 90) == {"one": {0x0F, 0x10}, "two": {0x11}}
    assert listed_words(path, 90, ["two"]) == {"one": {0x0F, 0x10}}
    assert listed_words(path, 100) == {"one": {0x12}}


def test_a_project_has_one_name_in_all_its_wheels() -> None:
    libraries = ("cupy_cuda12x 14.2.0", "cupy_cuda13x", "jax_cuda13_plugin 0.10.2", "faiss_gpu_cu12 1.14.1",
                 "torch 2.7.1", "fbgemm_gpu_genai 1.9.0", "autoawq_kernels 0.0.9", "own 11.8", "sgl_kernel 0.3.21")
    assert [project_of(name) for name in libraries] == [
        "cupy", "cupy", "jax", "faiss", "torch", "fbgemm", "autoawq", "own", "sgl_kernel"]


def test_every_table_has_words_of_its_architectures() -> None:
    for table in sorted({arch.table for arch in ARCHES.values()}):
        lines = (WORDS / f"{table}.txt").read_text(encoding="utf-8").splitlines()
        targets = {line.split(" ")[0] for line in lines[1:] if " " in line}
        assert targets
        assert all(ARCHES[target].table == table for target in targets)
        assert all(len(line) == 32 for line in lines[1:] if " " not in line)
