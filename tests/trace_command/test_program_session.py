"""A traced program's launches on a driver and a CUPTI made of Python: what is traced, collected and left alone."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakecupti import launch_arguments
from fakes import packed
from test_trace_flow import Machine, left_clean

from gwatch.common.format import File
from gwatch.cuda.driver import MAX_THREADS
from gwatch.cuda.launchview import LaunchView
from gwatch.cuda.program import outcome, replay
from gwatch.cuda.program import session as session_module
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.session import ProgramSession
from gwatch.cuda.xtrace import prepare
from gwatch.errors import LaunchError


@pytest.fixture
def start(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    monkeypatch.setattr(session_module, "hooks", machine.hooks)
    monkeypatch.setattr(outcome, "hooks", machine.hooks)

    def begin(**options: Any) -> ProgramSession:
        options.setdefault("sites", ("10", "20"))
        options.setdefault("clock", "gpu")
        made = ProgramSession(
            ProgramOptions(str(tmp_path), **options), lambda: machine.driver, lambda name: f"void {name}()"
        )
        made.begin()
        return made

    yield begin


def autotune_bench(launch: Callable[[], Any]) -> None:
    """A launch below a frame of an autotuner's benchmark function."""
    namespace: dict[str, Any] = {"__name__": "triton.runtime.autotuner", "launch": launch}
    exec("def _bench():\n    launch()\n_bench()", namespace)


def test_the_third_launch_of_a_shape_is_reported_and_later_ones_are_left_alone(
    machine: Machine,
    start: Callable[..., Any],
) -> None:
    session = start()
    for _ in range(6):
        machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["traced"] * 3 + ["plain"] * 3
    (run,) = found["runs"]
    assert (run["number"], run["steady"], run["launches"]) == (2, True, 6)
    assert run["records"] == 2 * 48 * 3 and run["dropped"] == 0
    assert run["outputs"].startswith("not checked")
    assert found["kernels"][0]["demangled"] == "void matmul()" and found["kernels"][0]["launches"] == 6
    assert left_clean(machine)
    report = File.load(Path(session.options.folder) / found["archive"])
    (traced,) = report.traces[0].runs
    assert traced.launch["index"] == 2 and traced.launch["launches"] == 6
    assert traced.listing["text"][0].startswith("LDC R1") and any("EXIT" in text for text in traced.listing["text"])


def test_a_kernel_launched_once_is_traced_at_once(machine: Machine, start: Callable[..., Any]) -> None:
    session = start()
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["traced"] and [run["number"] for run in found["runs"]] == [0]
    assert found["runs"][0]["steady"] is False


def test_launches_of_an_autotuner_stay_untouched_and_are_counted(
    machine: Machine,
    start: Callable[..., Any],
) -> None:
    session = start()
    for _ in range(4):
        autotune_bench(machine.launch)
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain"] * 4 + ["traced"]
    assert found["tuning"] == 4 and found["kernels"][0]["autotuning"] == 4
    assert found["runs"][0]["number"] == 0 and found["runs"][0]["launches"] == 1


def test_only_autotuning_launches_leave_no_archive(machine: Machine, start: Callable[..., Any]) -> None:
    session = start()
    autotune_bench(machine.launch)
    found = outcome.collect(session)
    assert machine.ran == ["plain"] and found["archive"] is None and found["runs"] == []


def test_autotuners_in_c_and_profilers_are_named(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(_C=SimpleNamespace(_get_cudnn_benchmark=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(_is_profiler_enabled=True))
    monkeypatch.setenv("PYTORCH_TUNABLEOP_ENABLED", "1")
    session = start()
    machine.launch()
    found = outcome.collect(session)
    told = "\n".join(found["problems"])
    assert found["runs"] and "[autotuner-unseen] torch.backends.cudnn.benchmark and PyTorch's TunableOp was on" in told
    assert "[profiler-active]" in told
    quiet = start()
    monkeypatch.setattr(torch._C, "_get_cudnn_benchmark", lambda: False)
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", SimpleNamespace(_is_profiler_enabled=False))
    monkeypatch.delenv("PYTORCH_TUNABLEOP_ENABLED")
    machine.launch()
    assert outcome.collect(quiet)["problems"] == []


def test_a_numbered_launch_alone_is_traced(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(launch=1)
    for _ in range(3):
        machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain", "traced", "plain"] and [run["number"] for run in found["runs"]] == [1]


def test_a_range_of_launches_is_reported_in_full(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(skip=1, count=2)
    for _ in range(5):
        machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain", "traced", "traced", "plain", "plain"]
    assert [run["number"] for run in found["runs"]] == [1, 2]
    assert len(File.load(Path(session.options.folder) / found["archive"]).traces[0].runs) == 2


def test_a_list_run_changes_nothing_and_says_what_could_be_traced(
    machine: Machine,
    start: Callable[..., Any],
) -> None:
    session = start(list_only=True)
    machine.launch()
    machine.launch(grid=(4, 1, 1))
    found = outcome.collect(session)
    assert machine.ran == ["plain", "plain"] and not machine.driver.libraries
    (row,) = found["kernels"]
    assert row["traceable"] == "yes" and row["launches"] == 2 and row["timed"] == 2
    assert row["total_ns"] == 20_000.0
    assert {tuple(shape["grid"]) for shape in row["shapes"]} == {(2, 1, 1), (4, 1, 1)}
    assert left_clean(machine)


def test_kernels_of_closed_libraries_are_left_alone_and_named(
    machine: Machine, start: Callable[..., Any], tmp_path: Path
) -> None:
    library = tmp_path / "libcublasLt.so.12"
    library.write_bytes(machine.image)
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        held = ctypes.c_char.from_buffer(view)
        machine.hooks.images.loaded(machine.module, machine.image, address=ctypes.addressof(held))
        session = start(list_only=True)
        machine.launch()
        (row,) = outcome.collect(session)["kernels"]
        assert row["traceable"] == "not traceable: closed library"
        session = start(all_kernels=True)
        for _ in range(3):
            machine.launch()
        found = outcome.collect(session)
        del held
    assert set(machine.ran) == {"plain"} and found["runs"] == [] and not machine.driver.libraries
    (problem,) = found["problems"]
    assert problem.startswith("[closed-library] matmul belongs to libcublasLt.so.12") and "licence" in problem


def test_two_kernels_for_one_pattern_are_listed_and_not_reported(
    machine: Machine,
    start: Callable[..., Any],
) -> None:
    machine.add("matmul2", machine.module)
    session = start(kernel="mat")
    machine.launch()
    machine.launch("matmul2")
    found = outcome.collect(session)
    assert found["ambiguous"] and found["archive"] is None and found["wanted"] == ["matmul", "matmul2"]
    assert left_clean(machine)


def test_a_pattern_that_fits_the_demangled_name_chooses(machine: Machine, start: Callable[..., Any]) -> None:
    machine.add("other", machine.module)
    session = start(kernel=r"^void matmul\(\)$")
    machine.launch("other")
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain", "traced"] and found["wanted"] == ["matmul"]
    assert [(row["kernel"], row["counted"], row["launches"]) for row in found["kernels"]] == [
        ("other", False, 0),
        ("matmul", True, 1),
    ]


def test_a_module_handle_handed_out_again_is_patched_anew(
    machine: Machine, start: Callable[..., Any]
) -> None:
    session = start(skip=0)
    machine.launch()
    machine.launch()
    assert len(machine.plans) == 1  # type: ignore[attr-defined]
    machine.hooks.images.forget(machine.module)
    machine.hooks.images.loaded(machine.module, machine.image)
    machine.launch()
    assert len(machine.plans) == 2  # type: ignore[attr-defined]
    assert len(outcome.collect(session)["runs"]) == 3


def test_a_kernel_that_cannot_be_traced_runs_as_it_is_and_is_named(
    machine: Machine,
    start: Callable[..., Any],
) -> None:
    session = start(sites=("99999",))
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain"] and found["runs"] == []
    assert (
        found["problems"][0].startswith("[site-range]") and found["kernels"][0]["traceable"] == "[site-range]"
    )


def test_a_crashed_gpu_is_named(
    machine: Machine,
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = start()
    machine.launch()

    def broken(stream: int | None = None) -> None:
        raise LaunchError("cuda-error", "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(machine.driver, "synchronize", broken)
    found = outcome.collect(session)
    assert found["archive"] is None and found["problems"][0].startswith("[kernel-crashed]")
    assert "ILLEGAL_ADDRESS" in found["problems"][0]


def test_a_context_that_is_gone_and_a_refused_launch_are_told_from_a_crash(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    machine.launch()
    session.kernels["matmul"].traced[0].failed = True
    (problem,) = outcome.collect(session)["problems"]
    assert problem.startswith("[launch-failed] the driver refused launch 0 of matmul")
    session = start()
    machine.launch()

    def gone(stream: int | None = None) -> None:
        raise LaunchError("cuda-error", "cuCtxSynchronize: CUDA_ERROR_CONTEXT_IS_DESTROYED")

    monkeypatch.setattr(machine.driver, "synchronize", gone)
    assert outcome.collect(session)["problems"][0].startswith("[context-gone] ")


@pytest.mark.parametrize("code", ["block-too-large", "descriptor-missing"])
def test_a_launch_that_the_patched_code_cannot_make_stays_as_it_is(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    if code == "block-too-large":
        real = machine.driver.kernel_attribute
        monkeypatch.setattr(
            machine.driver,
            "kernel_attribute",
            lambda kernel, attribute, device: 32 if attribute == MAX_THREADS else real(kernel, attribute, device),
        )
    else:
        monkeypatch.setattr(machine.driver, "library_global", lambda library, name: None)
    session = start()
    for _ in range(3):
        machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain"] * 3 and found["runs"] == []
    (problem,) = found["problems"]
    assert problem.startswith(f"[{code}] ") and "matmul" in problem and "; " in problem


def test_a_captured_launch_is_traced_without_events(machine: Machine, start: Callable[..., Any]) -> None:
    machine.driver.capturing.add(5)
    session = start()
    machine.launch(stream=5)
    found = outcome.collect(session)
    assert found["runs"][0]["captured"] and found["runs"][0]["traced_ns"] is None
    assert found["kernels"][0]["captured"] == 1 and not machine.driver.events


def test_a_settled_kernel_costs_no_more_events(machine: Machine, start: Callable[..., Any]) -> None:
    session = start()
    for _ in range(session_module.PLAIN_TIMED + 900):
        machine.launch()
    before = len(machine.driver.events)
    for _ in range(50):
        machine.launch()
    assert len(machine.driver.events) == before
    found = outcome.collect(session)
    assert found["runs"][0]["launches"] == session_module.PLAIN_TIMED + 950
    row = found["kernels"][0]
    assert row["timed"] < row["launches"] and row["estimated_ns"] == row["launches"] * 10_000.0


def test_an_autotuners_launches_get_no_events(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(list_only=True)
    autotune_bench(machine.launch)
    found = outcome.collect(session)
    assert not machine.driver.events and found["kernels"][0]["origin"] == "Triton"
    assert (found["kernels"][0]["launches"], found["kernels"][0]["autotuning"]) == (1, 1)


@pytest.mark.parametrize("traced", [True, False])
def test_a_launch_that_does_not_end_is_reported(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, traced: bool
) -> None:
    ended: set[int] = set()
    monkeypatch.setattr(machine.driver, "event_reached", lambda event: event not in ended)
    session = start(timeout=0.1, sites=("10", "20") if traced else ("99999",))
    told: list[Any] = []
    called = threading.Event()

    def on_hang(*arguments: Any) -> None:
        told.extend(arguments)
        called.set()

    session.on_hang = on_hang
    record = machine.driver.record_event

    def mark(event: int, stream: int) -> None:
        record(event, stream)
        if len(machine.driver.events) == 2:  # the one behind the launch is never reached
            ended.add(event)

    monkeypatch.setattr(machine.driver, "record_event", mark)
    machine.launch()
    assert called.wait(10)
    found = outcome.hang_report(*told)
    assert found["state"] == "hanging" and found["hang"]["kernel"] == "void matmul()"
    text = "\n".join(found["hang"]["lines"])
    if traced:
        assert found["hang"]["number"] == 0 and "4 warps last seen at site" in text
    else:
        assert found["hang"]["number"] is None and "[site-range]" in text
    session.stop_watching()
    session.release()


@pytest.fixture
def replays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches that gwatch repeats itself."""
    made: list[str] = []

    def repeat(name: str, arguments: tuple[int, ...]) -> None:
        made.append(name)
        machine._run(arguments[0], arguments[1:4], arguments[4:7])  # type: ignore[arg-type]

    monkeypatch.setattr(machine.driver, "repeat", repeat, raising=False)
    machine.driver.layout = [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4)]
    monkeypatch.setattr(replay, "PASSES", 2)
    monkeypatch.setattr(replay, "BUDGET_SECONDS", 600.0)  # a machine made of Python takes its time
    return made


def test_verify_replays_plain_plain_traced_on_the_same_memory(
    machine: Machine, start: Callable[..., Any], replays: list[str]
) -> None:
    session = start(verify=True)
    machine.driver.write(machine.output, b"\x05" * 4096)
    before: list[bytes] = []
    run = machine._run

    def watched(*arguments: Any) -> None:
        before.append(bytes(machine.driver.read(machine.output, 4096)))
        run(*arguments)

    machine._run = watched  # type: ignore[method-assign]
    machine.launch()
    found = outcome.collect(session)
    turns = ["plain"] + ["plain", "traced"] * replay.PASSES
    assert found["problems"] == []
    assert replays == ["cuLaunchKernel"] * len(turns) and machine.ran == [*turns, "traced"]
    assert set(before) == {b"\x05" * 4096}, "every run must find the memory as the program left it"
    assert found["runs"][0]["outputs"] == "identical" and found["runs"][0]["records"] == 2 * 48 * 3
    slower = found["runs"][0]["slowdown"]
    assert (slower["passes"], slower["median"], slower["plain_ns"]) == (replay.PASSES, 1.0, 10_000.0)
    assert left_clean(machine)


def test_verify_stops_replaying_when_time_is_up(
    machine: Machine, start: Callable[..., Any], replays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "BUDGET_SECONDS", -1.0)
    session = start(verify=True)
    machine.launch()
    (run,) = outcome.collect(session)["runs"]
    assert len(replays) == 3 and run["outputs"] == "identical" and run["slowdown"]["passes"] == 1


def test_passes_that_were_asked_for_are_made(
    machine: Machine, start: Callable[..., Any], replays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "BUDGET_SECONDS", -1.0)
    session = start(verify=True, passes=3)
    machine.launch()
    (run,) = outcome.collect(session)["runs"]
    assert len(replays) == 7 and run["slowdown"]["passes"] == 3


def test_without_verify_the_slowdown_is_not_measured(machine: Machine, start: Callable[..., Any]) -> None:
    session = start()
    machine.launch()
    (run,) = outcome.collect(session)["runs"]
    assert run["slowdown"] is None and run["traced_ns"] == 10_000.0


def test_verify_tells_a_traced_kernel_that_writes_something_else(
    machine: Machine, start: Callable[..., Any], replays: list[str]
) -> None:
    machine.corrupts = True
    session = start(verify=True)
    machine.launch()
    assert outcome.collect(session)["runs"][0]["outputs"] == "differ"


def test_launches_of_other_threads_wait_for_the_replays(
    machine: Machine, start: Callable[..., Any], replays: list[str]
) -> None:
    """What they write into the same allocation would be put back to what it was before."""
    session = start(verify=True, kernel="^matmul$")
    machine.add("other", machine.module)
    run, threads, during = machine._run, list[threading.Thread](), list[bool]()

    def replayed(*arguments: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=lambda: machine.launch("other", grid=(7, 1, 1))))
            threads[0].start()
            time.sleep(0.2)
        if arguments[1] == (7, 1, 1):
            during.append(len(replays) < 1 + 2 * replay.PASSES)
            return
        run(*arguments)

    machine._run = replayed  # type: ignore[method-assign]
    machine.launch()
    threads[0].join(20)
    assert during == [False] and outcome.collect(session)["runs"][0]["outputs"] == "identical"


def test_kernels_that_may_wait_for_a_peer_are_not_replayed(
    machine: Machine, start: Callable[..., Any], replays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_PEERS", re.compile("matmul"))
    session = start(verify=True)
    machine.launch()
    found = outcome.collect(session)
    assert replays == [] and "peer GPU" in found["runs"][0]["outputs"]


def test_chosen_ctas_alone_are_recorded(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(cta=((1, 2, 0),))
    machine.launch(grid=(2, 3, 1))
    found = outcome.collect(session)
    assert machine.layouts[0].cta_slots == 1 and found["runs"][0]["records"] == 48 * 3
    report = File.load(Path(session.options.folder) / found["archive"])
    assert np.unique(report.runs[0].trace.rows.block).tolist() == [1 + 2 * 2]


@pytest.mark.parametrize("options", [{"skip": 0, "count": 12}, {}])
def test_threads_that_launch_one_kernel_side_by_side_miss_no_launch_that_was_chosen(
    machine: Machine, start: Callable[..., Any], options: dict[str, int]
) -> None:
    """While one thread's launch was made ready, those of the others went untraced, and nothing told."""
    session = start(**options)
    meeting = threading.Barrier(4)

    def launches() -> None:
        meeting.wait(20)
        for _ in range(5):
            values = packed(*(ctypes.c_uint64(machine.output) for _ in range(3)), *(ctypes.c_int(1) for _ in range(3)))
            arguments = launch_arguments(machine.kernels["matmul"], (2, 1, 1), (48, 1, 1), 0, ctypes.addressof(values))
            view = LaunchView("cuLaunchKernel", ctypes.addressof(arguments), machine.driver.context, "matmul")
            session.enter(view)
            handle = view.handle
            view.restore()
            with running:
                machine._run(handle, (2, 1, 1), (48, 1, 1))
            session.leave(view, 0)

    running = threading.Lock()
    threads = [threading.Thread(target=launches) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = outcome.collect(session)
    assert found["problems"] == [] and found["kernels"][0]["launches"] == 20
    if options:
        assert sorted(run["number"] for run in found["runs"]) == list(range(12)) and machine.ran.count("traced") == 12
    else:
        (run,) = found["runs"]
        assert run["records"] == 2 * 48 * 3 and run["steady"]
    assert left_clean(machine)


def test_a_program_stopped_while_its_kernel_is_patched_stops(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(_number: int, _frame: object) -> None:
        raise TimeoutError("the program's own")

    before = signal.signal(signal.SIGUSR1, limit)
    monkeypatch.setattr(session_module, "prepare", lambda *_: signal.raise_signal(signal.SIGUSR1))
    session = start()
    try:
        with pytest.raises(TimeoutError):  # what follows the launch is interrupted
            machine.launch()
            time.sleep(20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    monkeypatch.undo()
    assert session.kernels["matmul"].refused is None and not session.kernels["matmul"].turn.locked()
    session.stop_watching()


def test_architectures_that_were_not_tested_are_traced_only_when_asked_for(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gwatch.cuda.program.prepared.TESTED", ("sm_80",))
    session = start()
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain"] and found["problems"][0].startswith("[arch-untested] matmul is sm_90 code")
    session = start(untested_arch=True)
    machine.launch()
    assert outcome.collect(session)["runs"] and machine.ran == ["plain", "traced"]


def test_a_launch_that_does_not_fit_keeps_no_other_from_being_traced(
    machine: Machine, start: Callable[..., Any]
) -> None:
    session = start(cta=((1, 2, 0),))
    machine.launch(grid=(1, 1, 1))
    machine.launch(grid=(1, 1, 1))
    machine.launch(grid=(2, 3, 1))
    found = outcome.collect(session)
    assert machine.ran == ["plain", "plain", "traced"] and found["problems"] == []
    assert [run["number"] for run in found["runs"]] == [2]


def test_a_shape_that_does_not_fit_settles_nothing_however_often_it_comes(
    machine: Machine, start: Callable[..., Any]
) -> None:
    session = start(cta=((1, 2, 0),))
    for _ in range(5):
        machine.launch(grid=(1, 1, 1))
    for _ in range(4):
        machine.launch(grid=(2, 3, 1))
    (run,) = outcome.collect(session)["runs"]
    assert machine.ran == ["plain"] * 5 + ["traced"] * 3 + ["plain"]
    assert (run["number"], run["why"]) == (7, "the third of its shape")


def test_constants_in_a_graph_keep_no_launch_outside_of_it_from_being_traced(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_constants", lambda *_: (1, 2, 3))
    monkeypatch.setattr(machine.driver, "copy_async", lambda *_: None)
    machine.driver.capturing.add(5)
    session = start()
    machine.launch(stream=5)
    assert not [address for address in machine.driver.memory if len(machine.driver.memory[address]) > 4096]
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain", "traced"] and [run["number"] for run in found["runs"]] == [1]
    assert left_clean(machine)


def test_a_launch_that_the_driver_refused_is_not_the_one_reported(
    machine: Machine, start: Callable[..., Any]
) -> None:
    session = start()
    machine.launch()
    machine.launch(grid=(3, 1, 1))
    session.kernels["matmul"].traced[1].failed = True
    (run,) = outcome.collect(session)["runs"]
    assert run["number"] == 0


def test_an_error_of_our_own_about_one_launch_loses_no_other(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outcome._result

    def result(session: Any, kernel: Any, traced: Any) -> Any:
        if traced.number == 0:
            raise ValueError("odd")
        return real(session, kernel, traced)

    monkeypatch.setattr(outcome, "_result", result)
    monkeypatch.setattr(sys, "argv", ["a\udcff.py", 5])
    session = start(skip=0)
    machine.launch()
    machine.launch()
    found = outcome.collect(session)
    assert found["problems"] == ["[internal] void matmul(): ValueError: odd"]
    assert [run["number"] for run in found["runs"]] == [1]
    assert File.load(Path(session.options.folder) / found["archive"]).title == "Trace of a\\udcff.py 5"


def test_launches_that_are_cut_off_are_counted(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(count=70)
    for _ in range(72):
        machine.launch()
    found = outcome.collect(session)
    assert len(found["runs"]) == 64 and found["cut_off"] == 6


def test_threads_that_meet_a_kernel_at_once_count_in_one_row(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(list_only=True)
    meeting = threading.Barrier(2)

    def demangle(name: str) -> str:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(5)  # the demangler gives up the interpreter's lock
        return name

    monkeypatch.setattr(session, "_demangle", demangle)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(session._kernel("new"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is session.kernels["new"]
    outcome.collect(session)


def test_threads_that_launch_first_at_once_share_a_stopwatch(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(list_only=True)
    meeting = threading.Barrier(2)
    first: list[int] = []
    session.on_first_launch = lambda: first.append(1)

    def find() -> Any:
        meeting.wait(5)
        return machine.driver

    monkeypatch.setattr(session, "_find_driver", find)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(session._tools())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0][1] is found[1][1] and first == [1]
    outcome.collect(session)


@pytest.mark.parametrize("options", [{}, {"list_only": True}])
def test_a_launch_into_another_contexts_stream_is_handled_where_it_runs(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The program may leave device 0 current and launch into a stream of device 1."""
    machine.driver.stream_contexts[9] = 0x99
    current = [machine.driver.context]
    used: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def inside(context: int) -> Iterator[None]:
        current.append(context)
        yield
        current.pop()

    monkeypatch.setattr(machine.driver, "inside", inside)
    for name in ("allocate", "create_event", "kernel_function", "current_device"):
        real = getattr(machine.driver, name)

        def noted(*arguments: Any, name: str = name, real: Any = real) -> Any:
            used.append((name, current[-1]))
            return real(*arguments)

        monkeypatch.setattr(machine.driver, name, noted)
    session = start(**options)
    machine.launch(stream=9)
    assert used and {context for _, context in used} == {0x99} and current == [machine.driver.context]
    if not options:
        assert {"allocate", "create_event", "kernel_function"} <= {name for name, _ in used}
        assert session.kernels["matmul"].traced[0].slot.context == 0x99
    outcome.collect(session)


def hangs(machine: Machine, monkeypatch: pytest.MonkeyPatch, session: Any) -> tuple[threading.Event, list[Any]]:
    """Set when a hang was reported, and what was; looks come often."""
    monkeypatch.setattr(session_module, "LOOK_SECONDS", 0.005)
    called, told = threading.Event(), list[Any]()
    session.on_hang = lambda *arguments: (told.extend(arguments), called.set())
    return called, told


def test_short_launches_one_after_another_are_no_hang(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a pair of events: seen running at every look, they were taken for one launch that does not end."""
    session = start(timeout=0.1)
    called, _ = hangs(machine, monkeypatch, session)
    ends: dict[int, float] = {}
    record = machine.driver.record_event

    def mark(event: int, stream: int) -> None:
        record(event, stream)
        if len(machine.driver.events) % 2 == 0:  # each runs for 20 ms
            ends[event] = time.monotonic() + 0.02

    monkeypatch.setattr(machine.driver, "record_event", mark)
    monkeypatch.setattr(machine.driver, "event_reached", lambda event: time.monotonic() >= ends.get(event, 0.0))
    for _ in range(30):
        machine.launch()
        time.sleep(0.02)
    assert not called.is_set()
    assert len({event for event, _ in machine.driver.events}) == 2
    outcome.collect(session)


def test_a_launch_call_that_waits_for_its_kernel_is_watched_too(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA_LAUNCH_BLOCKING=1: the call does not come back, and there is no second event yet."""
    session = start(timeout=0.1)
    called, told = hangs(machine, monkeypatch, session)
    run = machine._run

    def blocked(*arguments: Any) -> None:
        run(*arguments)
        assert called.wait(10)

    monkeypatch.setattr(machine, "_run", blocked)
    machine.launch()
    assert told[2] is session.kernels["matmul"].traced[0]
    assert outcome.hang_report(*told)["hang"]["number"] == 0
    outcome.collect(session)


def test_a_traced_launch_is_watched_however_many_wait_before_it(
    machine: Machine, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 513th launch in flight had no events, so that nothing told that it hung."""
    monkeypatch.setattr(machine.driver, "elapsed_ms", lambda begin, end: None)
    monkeypatch.setattr("gwatch.cuda.program.stopwatch._MOST_PAIRS", 4)
    session = start(timeout=60.0, launch=9)
    for _ in range(10):
        machine.launch()
    (traced,) = session.kernels["matmul"].traced
    assert traced.span is not None and traced.span in session._tools()[1]._open[machine.driver.context][-1]
    outcome.collect(session)


def test_a_number_of_ctas_is_recorded_and_said(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(ctas=2)
    machine.launch(grid=(8, 1, 1))
    found = outcome.collect(session)
    assert machine.layouts[0].cta_slots == 2 and found["runs"][0]["records"] == 2 * 48 * 3
    assert any(text.startswith("[sampled] 2 of 8 CTAs") for text in found["runs"][0]["warnings"])


def test_a_cta_outside_the_grid_is_a_named_cause(machine: Machine, start: Callable[..., Any]) -> None:
    session = start(cta=((9, 0, 0),))
    machine.launch()
    found = outcome.collect(session)
    assert machine.ran == ["plain"] and found["problems"][0].startswith("[cta-outside]")


def test_results_are_written_whole(machine: Machine, start: Callable[..., Any]) -> None:
    session = start()
    machine.launch()
    outcome.save(session.options.folder, found := outcome.collect(session))
    written = json.loads((Path(session.options.folder) / f"{found['pid']}.json").read_text())
    assert written["state"] == "done" and written["runs"][0]["kernel"] == "matmul"
    assert not list(Path(session.options.folder).glob("*.part"))
