"""``gwatch trace`` on more kinds of programs: numba, CuTeDSL, packaged models, clusters, two GPUs; ends, profilers,
autotuners; a cause for every empty trace; a deadlock explained."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
from test_trace_command import needs

from gwatch.common.format import File
from gwatch.cuda.driver import Driver

PROGRAMS = Path(__file__).resolve().parent / "programs"


def test_verified_launches_are_timed_too(program: Any) -> None:
    needs("torch")
    traced = program("softmax.py", trace=["--kernel", "softmax", "--verify"])
    assert traced.code == 0 and "outputs     identical" in traced.out, traced.err
    (run,) = traced.runs()
    assert run.evidence["slowdown"]["passes"] == 15 and 0.5 < run.evidence["slowdown"]["median"] < 5
    assert "not measured" not in traced.out and re.search(r"slowdown    \d\.\d{3} \(", traced.out)
    assert "slowdown not measured" not in run.verdict.as_dict()["line"]


def test_a_compiled_transformer_block_forward_and_backward(program: Any) -> None:
    needs("torch", "triton")
    plain = program("compiled.py")
    listed = program("compiled.py", trace=["--list"])
    assert listed.code == 0 and listed.digests == plain.digests, listed.err
    assert "torch.compile" in listed.out and "[internal]" not in listed.out
    traced = program("compiled.py", trace=["--kernel", "triton_", "--all-kernels", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    kernels = {run.kernel for run in traced.runs()}
    assert len(kernels) >= 4, kernels
    assert any("backward" in name for name in kernels), kernels
    assert all(run.evidence["outputs"] in ("identical", "nondeterministic") for run in traced.runs())


def test_an_autotuner_takes_the_same_configuration(program: Any) -> None:
    needs("torch", "triton")
    plain = program("choice.py")
    traced = program("choice.py", trace=["--kernel", "^product$"])
    assert traced.code == 0 and traced.digests == plain.digests and "M: 128" in traced.digests[0], traced.err
    assert "launch      2 of 4" in traced.out and "launches made by autotuners" in traced.out


def test_attention_in_triton(program: Any) -> None:
    needs("torch", "triton")
    plain = program("attention.py")
    traced = program("attention.py", trace=["--kernel", "^attention$", "--auto", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests and "True" in traced.digests[0], traced.err
    assert "outputs     identical" in traced.out and len(traced.runs()[0].intervals) > 1000


def test_numba(program: Any) -> None:
    needs("numba.cuda")
    plain = program("numba_program.py")
    listed = program("numba_program.py", trace=["--list"])
    assert plain.code == 0 and listed.digests == plain.digests and re.search(r"numba +yes", listed.out), listed.err
    traced = program("numba_program.py", trace=["--kernel", "saxpy", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "outputs     identical" in traced.out and len(traced.runs()[0].intervals) == 20 * 8


def test_cutedsl(program: Any) -> None:
    needs("torch", "cutlass")
    plain = program("cutedsl.py")
    listed = program("cutedsl.py", trace=["--list"])
    assert plain.code == 0 and listed.digests == plain.digests and re.search(r"CuTeDSL +yes", listed.out), listed.err
    traced = program("cutedsl.py", trace=["--kernel", "scale_kernel", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "outputs     identical" in traced.out and len(traced.runs()[0].intervals) == 32 * 4


def test_a_packaged_model(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch", "triton")
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.fail("packaging a model needs a C++ compiler")
    package = str(tmp_path / "model.pt2")
    made = program("runner.py", "make", package)
    assert made.code == 0, made.err[-2000:]
    plain = program("runner.py", "run", package)
    if plain.code == -signal.SIGSEGV:
        # The compiler has put a copy of the C++ library into the package, which crashes in std::regex beside the one
        # that PyTorch loads; loaded first, that one takes its place.
        monkeypatch.setenv("LD_PRELOAD", "libstdc++.so.6")
        plain = program("runner.py", "run", package)
    listed = program("runner.py", "run", package, trace=["--list"])
    assert plain.code == 0 and listed.digests == plain.digests and "triton_" in listed.out, listed.err
    traced = program("runner.py", "run", package, trace=["--kernel", "triton_", "--all-kernels", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert traced.runs() and all(run.evidence["outputs"] == "identical" for run in traced.runs())


def test_clusters(program: Any) -> None:
    needs("torch", "cuda.bindings")
    plain = program("clusters.py")
    assert plain.code == 0 and "True" in plain.digests[0], plain.err
    traced = program("clusters.py", trace=["--kernel", "neighbours", "--auto", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    (run,) = traced.runs()
    assert run.launch["cluster"] == [4, 1, 1] and run.evidence["outputs"] == "identical"
    waits = [site for site in run.sites if "cluster wait" in str(site["label"])]
    assert waits and len(run.trace) > 64 * 4 * 4


def test_a_warp_specialised_product(program: Any) -> None:
    needs("torch", "cuda.bindings")
    plain = program("hopper_product.py")
    assert plain.code == 0 and "True" in plain.digests[0], plain.err
    traced = program("hopper_product.py", trace=["--kernel", "hgmma", "--auto", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    (run,) = traced.runs()
    assert run.evidence["outputs"] == "identical" and set(run.roles.values()) == {"TMA producer", "MMA consumer 0"}
    assert {"mbarrier wait 0", "mbarrier wait 1", "MMA wait 0"} <= set(run.labels) and run.listing["text"]


def test_cooperative_launches(program: Any) -> None:
    needs("torch", "cuda.bindings")
    plain = program("clusters.py")
    traced = program("clusters.py", trace=["--kernel", "grid_sum"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    (run,) = traced.runs()
    assert "Cooperative" in run.launch["api"] and len(run.intervals) == 64 * 4


def test_a_profiler_beside_the_trace_is_named(program: Any, record_property: Any) -> None:
    needs("torch")
    plain = program("profiled.py")
    traced = program("profiled.py", trace=["--kernel", "softmax"])
    assert traced.code == 0 and traced.digests == plain.digests, traced.err
    assert "[profiler-active]" in traced.err and len(traced.runs()[0].trace) == 2 * 512
    counts = [line.split()[1] for ran in (plain, traced) for line in ran.out.splitlines() if line.startswith("seen")]
    record_property("seen by torch.profiler alone, beside gwatch", counts)
    sys.stdout.write(f"kernels seen by torch.profiler: {counts[0]} alone, {counts[1]} beside gwatch\n")


@pytest.mark.parametrize("end", ["exit", "TERM", "HUP"])
def test_ends_that_run_no_atexit_keep_the_records(program: Any, end: str) -> None:
    needs("torch")
    traced = program("endings.py", end, trace=["--kernel", "softmax"])
    assert traced.code == {"exit": 0, "TERM": 128 + 15, "HUP": 128 + 1}[end] and traced.digests, traced.err
    assert len(traced.runs()[0].trace) == 2 * 512


def test_a_killed_process_is_named(program: Any) -> None:
    needs("torch")
    traced = program("endings.py", "KILL", trace=["--kernel", "softmax"])
    assert traced.code == 128 + 9 and "[process-killed]" in traced.err and "by SIGKILL" in traced.err
    assert not (traced.folder / "trace.gwatch").exists()


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("softmax.py", ["--kernel", "no_such"], "kernel-not-launched"),
        ("softmax.py", ["--kernel", "softmax", "--cta", "9999,0,0"], "cta-outside"),
        ("softmax.py", ["--kernel", "softmax", "--launch", "99"], "launch-not-reached"),
        ("softmax.py", ["--kernel", "softmax", "--site", "99999"], "site-range"),
        ("crash.py", ["--kernel", "wild"], "kernel-crashed"),
    ],
)
def test_causes_of_an_empty_trace(program: Any, name: str, options: list[str], code: str) -> None:
    needs("torch", "cupy")
    traced = program(name, trace=options)
    assert traced.code in (1, 3) and f"[{code}]" in traced.err, traced.err
    assert not (traced.folder / "trace.gwatch").exists()


def test_only_an_autotuners_launches_is_a_cause(program: Any) -> None:
    needs("torch", "triton")
    traced = program("tuning_only.py", trace=["--kernel", "^product$"])
    assert traced.code == 3 and "[only-autotuning]" in traced.err, traced.err


def test_a_kernel_loaded_before_the_hooks_is_a_cause(program: Any, tmp_path: Path) -> None:
    needs("torch")
    cubin = tmp_path / "early.cubin"
    source = tmp_path / "early.cu"
    source.write_text('extern "C" __global__ void early(int* out) { out[threadIdx.x] = threadIdx.x; }')
    subprocess.run(["nvcc", "-cubin", "-arch=sm_90", "-o", cubin, source], check=True)
    plain = program("early.py", str(cubin), "early")
    traced = program("early.py", str(cubin), "early", trace=["--kernel", "early"])
    assert traced.digests == plain.digests
    assert traced.code == 3 and "[image-not-found]" in traced.err, (traced.out, traced.err)


def test_dropped_records_are_counted(program: Any) -> None:
    needs("torch", "triton")
    traced = program("attention.py", trace=["--kernel", "^attention$", "--auto", "--depth", "2"])
    assert traced.code == 0 and re.search(r"records     \d+, [1-9]\d* dropped", traced.out), traced.out
    assert "[dropped]" in traced.out
    assert traced.runs()[0].verdict.trustworthy == "no"


def test_a_deadlock_is_explained(program: Any) -> None:
    needs("torch", "cuda.bindings")
    text = (PROGRAMS / "deadlock.py").read_text()
    source = re.search(r'SOURCE = r"""(.*?)"""', text, re.DOTALL)
    assert source is not None
    lines = list(enumerate(source[1].splitlines(), 1))
    waits = {word: next(n for n, line in lines if f"// {word}" in line) for word in ("PRODUCER", "CONSUMER")}
    traced = program("deadlock.py", trace=["--kernel", "pipeline", "--timeout", "3"])
    assert traced.code == 1 and "[hang] launch 0 of pipeline" in traced.out, (traced.out, traced.err)
    producer = rf"TMA producer: 2 warps last seen at mbarrier wait \d \(.*pipeline\.cu:{waits['PRODUCER']}, inlined"
    consumer = rf"consumer: 4 warps last seen at mbarrier wait \d \(.*pipeline\.cu:{waits['CONSUMER']}, inlined"
    assert re.search(producer, traced.out) and re.search(consumer, traced.out), traced.out
    assert "consumer: 2 warps last seen at exit" in traced.out, traced.out


def test_two_ranks_on_two_gpus(program: Any, gpu: Driver) -> None:
    needs("torch")
    if gpu.device_count() < 2:
        pytest.skip("needs two GPUs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    traced = program("ranks.py", trace=["--kernel", "softmax", "-o", "both.html"], command=command)
    assert traced.code == 0 and len(set(traced.digests)) == 1, traced.err
    runs = [traced.runs(f"both.rank{rank}.gwatch")[0] for rank in range(2)]
    assert [run.launch["device"] for run in runs] == [0, 1] and [run.launch["rank"] for run in runs] == [0, 1]
    merged = File.merge([File.load(traced.folder / f"both.rank{rank}.gwatch") for rank in range(2)], ["rank0", "rank1"])
    assert [run.source for run in merged.runs] == ["rank0", "rank1"]
    assert (traced.folder / "both.html").stat().st_size > 10_000
    listed = program("ranks.py", trace=["--list"], command=command)
    assert "nccl" in listed.out.lower() and "rank0:" in listed.out and "rank1:" in listed.out, listed.out


def test_a_soak_of_threads_modules_graphs_and_errors(program: Any, record_property: Any) -> None:
    """``GWATCH_SOAK_SECONDS=1800`` makes it the long one; from 120 on memory must be flat in its second half."""
    needs("torch", "cuda.bindings")
    seconds = float(os.environ.get("GWATCH_SOAK_SECONDS", "30"))
    options = ["--kernel", "at6native|softmax|fill", "--all-kernels"]
    traced = program("soak.py", str(seconds), trace=options, limit=seconds + 240)
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "soak.err").write_text(traced.err)
    assert traced.code == 0, (traced.out, traced.err[-3000:])
    done, memory = re.search(r"did (.*)", traced.out), re.search(r"memory MiB (\d+) (\d+) (\d+) (\d+)", traced.out)
    assert done is not None and memory is not None
    record_property("soak", f"{seconds:g} s: {done[1]}, memory {memory[0]}")
    sys.stdout.write(f"soak of {seconds:g} s: {done[1]}, {memory[0]} (host early, late, device early, late)\n")
    host_early, host_late, device_early, device_late = map(int, memory.groups())
    if seconds >= 120:
        assert host_late - host_early < 100 and device_late - device_early < 100, memory[0]
    assert all(count > 0 for count in map(int, re.findall(r"\d+", done[1]))), done[1]
    kernels = {run.kernel for run in traced.runs()}
    assert "fill" in kernels and any("softmax" in name for name in kernels), kernels


def test_a_cutedsl_hopper_product(program: Any) -> None:
    """``GWATCH_CUTE_GEMM``: path of CUTLASS's dense_gemm.py for Hopper."""
    needs("torch", "cutlass")
    if "GWATCH_CUTE_GEMM" not in os.environ:
        pytest.skip("needs CUTLASS's example: GWATCH_CUTE_GEMM=.../hopper/.../dense_gemm.py")
    arguments = ["--mnkl", "1024,1024,1024,1", "--iterations", "4"]
    plain = program(os.environ["GWATCH_CUTE_GEMM"], *arguments)
    listed = program(os.environ["GWATCH_CUTE_GEMM"], *arguments, trace=["--list"])
    assert plain.code == 0 and "PASS" in plain.out and "PASS" in listed.out, plain.err + listed.err
    assert re.search(r"CuTeDSL +yes", listed.out), listed.out
    options = ["--kernel", "kernel_cutlass", "--auto", "--verify"]
    traced = program(os.environ["GWATCH_CUTE_GEMM"], *arguments, trace=options)
    assert traced.code == 0 and "PASS" in traced.out and "outputs     identical" in traced.out, traced.err
    labels = set(traced.runs()[0].labels)
    assert any("mbarrier wait" in label for label in labels) and any("MMA" in label for label in labels), labels


def listed_rows(ran: Any) -> list[dict[str, Any]]:
    found = json.loads(ran.out.splitlines()[-1])["processes"]
    return [row for process in found for row in process.get("kernels", ())]


def test_a_list_tells_trials_from_launches_and_closed_kernels_from_open_ones(program: Any) -> None:
    needs("torch", "triton")
    plain = program("autotuned.py")
    listed = program("autotuned.py", trace=["--list", "--json"])
    assert listed.code == 0 and listed.digests == plain.digests, listed.err
    rows = listed_rows(listed)
    (product,) = [row for row in rows if row["kernel"] == "product"]
    assert product["origin"] == "Triton" and product["traceable"] == "yes" and product["registers"]
    assert product["autotuning"] > 5 and product["launches"] == product["autotuning"] + 1
    closed = [row["kernel"] for row in rows if row["traceable"] == "not traceable: closed library"]
    assert closed, [(row["kernel"], row["traceable"]) for row in rows]
    traced = program("autotuned.py", trace=["--kernel", f"^{re.escape(closed[0])}$"])
    assert traced.code == 3 and "[closed-library]" in traced.err and traced.digests == plain.digests, traced.err


@pytest.mark.parametrize("name", ["cupy_program.py", "clusters.py"])
def test_a_list_of_other_frameworks(program: Any, name: str) -> None:
    """Compiled bindings leave no frame: where PyTorch is imported, a kernel that nothing else tells apart is its."""
    needs("torch", "cupy", "cuda.bindings")
    plain = program(name)
    listed = program(name, trace=["--list", "--json"])
    assert plain.code == listed.code == 0 and listed.digests == plain.digests, listed.err
    kernel, origin = {"cupy_program.py": ("scale", "CuPy"), "clusters.py": ("grid_sum", "torch")}[name]
    (row,) = [row for row in listed_rows(listed) if row["kernel"] == kernel]
    assert (row["origin"], row["traceable"]) == (origin, "yes") and row["launches"] >= 1


def test_a_range_of_launches(program: Any) -> None:
    needs("torch")
    traced = program("softmax.py", trace=["--kernel", "softmax", "--launch-skip", "1", "--launch-count", "3"])
    assert traced.code == 0 and traced.out.count("of 5 (as asked for)") == 3, (traced.out, traced.err)
    assert [(run.launch["index"], len(run.trace)) for run in traced.runs()] == [(1, 1024), (2, 1024), (3, 1024)]


def test_chosen_ctas(program: Any) -> None:
    needs("torch")
    whole = program("softmax.py", trace=["--kernel", "softmax"])
    (run,) = whole.runs()
    ctas, warps = run.geometry.grid[0], len(run.intervals) // run.geometry.grid[0]
    named = program("softmax.py", trace=["--force", "--kernel", "softmax", "--cta", "3,0,0", "--cta", "5,0,0"])
    assert named.code == 0 and f"[sampled] 2 of {ctas} CTAs" in named.out, (named.out, named.err)
    assert set(named.runs()[0].trace.rows.block.tolist()) == {3, 5}
    counted = program("softmax.py", trace=["--force", "--kernel", "softmax", "--ctas", "4"])
    assert counted.code == 0 and f"[sampled] 4 of {ctas} CTAs" in counted.out, (counted.out, counted.err)
    assert len(counted.runs()[0].trace) == 4 * 2 * warps


def test_sites_and_regions_of_the_users_own(program: Any) -> None:
    needs("torch")
    plain = program("softmax.py")
    options = ["--kernel", "softmax", "--site", "0,thread", "--region", "whole=0..op:EXIT@all", "--verify"]
    traced = program("softmax.py", trace=options)
    assert traced.code == 0 and traced.digests == plain.digests, (traced.out, traced.err)
    (run,) = traced.runs()
    threads = prod(run.geometry.grid) * prod(run.geometry.block)
    assert len(run.trace) >= threads + 2 * (threads // 32) and "whole" in run.labels
    assert len(run.intervals) >= threads // 32 and run.evidence["outputs"] == "identical"


def test_launches_on_two_streams_have_records_of_their_own(program: Any) -> None:
    needs("torch")
    plain = program("streams.py", "0", "0")
    traced = program("streams.py", "0", "0", trace=["--kernel", "softmax", "--launch-skip", "0"])
    assert traced.code == 0 and traced.digests == plain.digests, (traced.out, traced.err)
    runs = traced.runs()
    assert [len(run.trace) for run in runs] == [1024] * 8
    streams = [run.launch["stream"] for run in runs]
    assert len(set(streams)) == 2 and streams == streams[:2] * 4


def test_threads_that_launch_one_kernel_side_by_side(program: Any) -> None:
    needs("torch")
    plain = program("threads.py")
    options = ["--kernel", "softmax", "--launch-skip", "0", "--launch-count", "12"]
    for more in ([], ["--force", "--verify"]):
        traced = program("threads.py", trace=[*options, *more])
        assert traced.code == 0 and traced.digests == plain.digests, (traced.out, traced.err)
        runs = traced.runs()
        assert sorted(run.launch["index"] for run in runs) == list(range(12))
        assert [len(run.trace) for run in runs] == [1024] * 12


def test_launches_of_one_process_on_two_gpus(program: Any, gpu: Driver) -> None:
    needs("torch")
    if gpu.device_count() < 2:
        pytest.skip("needs two GPUs")
    plain = program("streams.py", "0", "1")
    traced = program("streams.py", "0", "1", trace=["--kernel", "softmax", "--launch-skip", "0", "--verify"])
    assert traced.code == 0 and traced.digests == plain.digests, (traced.out, traced.err)
    runs = traced.runs()
    assert [run.launch["device"] for run in runs] == [0, 1] * 4 and [len(run.trace) for run in runs] == [1024] * 8
    assert {run.evidence["outputs"] for run in runs} == {"identical"}


def test_a_launch_into_a_stream_of_a_context_that_is_not_current(program: Any) -> None:
    needs("torch", "cuda.bindings")
    plain = program("contexts.py")
    assert plain.code == 0, plain.err
    if "refused" in plain.digests[0]:
        pytest.skip(f"the driver makes no such launch: {plain.digests[0]}")
    for more in ([], ["--force", "--verify"]):
        traced = program("contexts.py", trace=["--kernel", "fill", *more])
        assert traced.code == 0 and traced.digests == plain.digests, (traced.out, traced.err)
        assert "launch      2 of 4" in traced.out and len(traced.runs()[0].intervals) == 2 * 4
    listed = program("contexts.py", trace=["--list", "--json"])
    (row,) = [row for row in listed_rows(listed) if row["kernel"] == "fill"]
    assert row["timed"] == 4 and row["traceable"] == "yes", listed.err


def test_ctrl_c_reaches_a_program_that_launches_all_the_time(program: Any) -> None:
    needs("torch")
    plain = program("interrupted.py", "20")
    assert plain.code == 9 and "20 of 20" in plain.digests[0], plain.err
    for options in (["--kernel", "softmax"], ["--list"]):
        traced = program("interrupted.py", "20", trace=options)
        assert traced.code == 9 and traced.digests == plain.digests, (traced.out, traced.err[-3000:])
        assert "softmax" in traced.out and "[internal]" not in traced.err
    assert len(traced.runs()[0].trace) == 1024


def test_a_process_that_is_handed_over_leaves_both_traces(program: Any) -> None:
    needs("torch")
    traced = program("handover.py", trace=["--kernel", "softmax", "-o", "both.json"])
    assert traced.code == 0 and len(traced.digests) == 2, (traced.out, traced.err)
    assert [len(run.trace) for run in traced.runs("both.json")] == [1024, 1024]
    assert len(list(traced.folder.glob("both.pid*-[12].gwatch"))) == 2


def test_replays_are_refused_where_the_kernel_may_not_end(program: Any) -> None:
    refused = program("hang.py", trace=["--verify", "--timeout", "3"])
    assert refused.code == 2 and "[option-conflict]" in refused.err
