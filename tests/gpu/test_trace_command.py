"""``gwatch trace`` on unmodified programs: PyTorch, Triton with autotuning, CuPy, graphs, threads, children, a hang."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest


def needs(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package, reason=f"needs {package}")


def test_a_list_changes_nothing_and_names_every_kernel(program: Any) -> None:
    needs("torch")
    plain = program("softmax.py")
    listed = program("softmax.py", trace=["--list", "--json"])
    assert plain.code == listed.code == 0 and plain.digests == listed.digests
    (process,) = [p for p in json.loads(listed.out.splitlines()[-1])["processes"] if p.get("kernels")]
    (softmax,) = [row for row in process["kernels"] if "softmax" in row["demangled"]]
    assert softmax["launches"] == 5 and softmax["origin"] == "torch" and softmax["traceable"] == "yes"
    assert softmax["registers"] and softmax["timed"] == 5 and softmax["total_ns"] > 5_000


def test_the_steady_launch_is_traced_and_outputs_are_identical(program: Any) -> None:
    needs("torch")
    plain = program("softmax.py")
    traced = program("softmax.py", trace=["--kernel", "softmax", "--verify", "-o", "trace.html"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "launch      2 of 5 (the third of its shape)" in traced.out
    assert "outputs     identical" in traced.out and (traced.folder / "trace.html").stat().st_size > 10_000
    (run,) = traced.runs()
    assert len(run.trace) == 2 * 512 and run.intervals.end.min() > run.intervals.start.min()
    again = program("softmax.py", trace=["--kernel", "softmax"])
    assert again.code == 2 and "[output-exists]" in again.err


def test_a_kernel_that_is_launched_once_is_not_missed(program: Any) -> None:
    needs("torch")
    traced = program("softmax.py", "1", trace=["--kernel", "softmax"])
    assert traced.code == 0 and "launch      0 of 1" in traced.out, traced.err
    assert len(traced.runs()[0].trace) == 1024


def test_an_autotuners_launches_are_left_alone(program: Any) -> None:
    needs("torch", "triton")
    plain = program("autotuned.py")
    traced = program("autotuned.py", trace=["--kernel", "^product$", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert re.search(r"left alone  \d{2,} launches made by autotuners", traced.out)
    assert "launch      0 of 1" in traced.out and "outputs     identical" in traced.out
    (run,) = traced.runs()
    assert len(run.intervals) == run.geometry.grid[0] * run.geometry.grid[1] * run.geometry.block[0] // 32


def test_auto_sites_of_a_triton_kernel(program: Any) -> None:
    needs("torch", "triton")
    traced = program("autotuned.py", trace=["--kernel", "^product$", "--auto"])
    assert traced.code == 0, traced.err
    labels = {str(site["label"]) for site in traced.runs()[0].sites}
    assert {"entry", "barrier 0", "first MMA 0", "loop end 0"} <= labels, labels


def test_a_graph_captured_and_replayed(program: Any) -> None:
    needs("torch")
    plain = program("graph.py")
    traced = program("graph.py", trace=["--kernel", "layer_norm"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "captured into a graph" in traced.out
    assert len(traced.runs()[0].intervals) == 256 * 4


def test_launches_of_autograds_threads(program: Any) -> None:
    needs("torch")
    plain = program("training.py")
    traced = program("training.py", trace=["--all-kernels"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    kernels = {run.kernel for run in traced.runs()}
    assert len(kernels) > 3 and any("gelu" in name.lower() or "Gelu" in name for name in kernels), kernels


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_each_child_process_writes_an_archive(program: Any, method: str) -> None:
    needs("torch")
    traced = program("children.py", method, trace=["--kernel", "softmax"])
    assert traced.code == 0 and len(traced.digests) == 2, traced.err
    for rank in range(2):
        (run,) = traced.runs(f"trace.rank{rank}.gwatch")
        assert run.launch["rank"] == rank and run.launch["device"] == 0 and len(run.trace) > 0


def test_ranks_of_torchrun(program: Any) -> None:
    needs("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    traced = program("softmax.py", trace=["--kernel", "softmax"], command=command)
    assert traced.code == 0 and len(set(traced.digests)) == 1, traced.err
    assert [traced.runs(f"trace.rank{rank}.gwatch")[0].launch["rank"] for rank in range(2)] == [0, 1]


def test_cupy(program: Any) -> None:
    needs("cupy")
    plain = program("cupy_program.py")
    traced = program("cupy_program.py", trace=["--kernel", "^scale$", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "outputs     identical" in traced.out and len(traced.runs()[0].intervals) == 16 * 8


def test_several_matching_kernels_are_listed_and_refused(program: Any) -> None:
    needs("cupy")
    traced = program("cupy_program.py", trace=["--kernel", "cupy_"])
    assert traced.code == 2 and "[kernel-ambiguous]" in traced.err
    assert "cupy_add" in traced.out and "cupy_arange" in traced.out
    assert not (traced.folder / "trace.gwatch").exists()


def test_a_pattern_without_a_launch_names_what_was_launched(program: Any) -> None:
    needs("cupy")
    traced = program("cupy_program.py", trace=["--kernel", "no_such_kernel"])
    assert traced.code == 3 and "[kernel-not-launched]" in traced.err and "cupy_add" in traced.err


def test_a_crashing_kernel_is_a_named_cause(program: Any) -> None:
    needs("cupy")
    traced = program("crash.py", trace=["--kernel", "wild"])
    assert traced.code == 1 and "[kernel-crashed]" in traced.err, traced.err
    assert "ILLEGAL_ADDRESS" in traced.err and not (traced.folder / "trace.gwatch").exists()


def test_a_hanging_kernel_is_explained(program: Any) -> None:
    needs("torch", "cuda.bindings")
    traced = program("hang.py", trace=["--kernel", "pipeline", "--timeout", "3"])
    assert traced.code == 1 and "[hang] launch 0 of pipeline" in traced.out, (traced.out, traced.err)
    assert re.search(
        r"waiting warps: 6 warps last seen at barrier 0 \(instruction \d+: BAR\.SYNC", traced.out
    )
    assert "pipeline.cu:" in traced.out and "visit 5 of it" in traced.out
    assert "2 warps last seen at exit" in traced.out
