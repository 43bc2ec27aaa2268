"""The command around the program: what it accepts, what it passes on, what it says when nothing came of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import gwatch
from gwatch.cli.main import run_command
from gwatch.cli.trace import _scope, run_lines
from gwatch.common.format import File
from gwatch.cuda.cupti import need_driver
from gwatch.cuda.program import target
from gwatch.cuda.program.collected import (
    Program,
    causes,
    hindered,
    outputs_of,
    process_names,
    refuse_existing,
)
from gwatch.cuda.program.launches import KernelRow, table_lines, time_text
from gwatch.cuda.program.names import demangled
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.outcome import table_notes
from gwatch.cuda.program.target import BOOTSTRAP, command_of, environment
from gwatch.errors import KernelError, TraceError, UnsupportedError


def script(folder: Path, name: str, text: str, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def test_python_programs_are_accepted_and_others_refused(tmp_path: Path) -> None:
    assert command_of([sys.executable, "-u", "x.py", "-I"])[1:] == ["-u", "x.py", "-I"]
    own = script(tmp_path, "run.py", "")
    assert command_of([str(own), "1"]) == [sys.executable, str(own), "1"]
    runner = script(tmp_path, "torchrun", "#!/usr/bin/env -S python3 -u\nprint(1)\n")
    assert command_of([str(runner), "x.py"]) == [str(runner), "x.py"]
    long = f"#!/bin/sh\n'''exec' \"/{'long/' * 60}bin/python3.11\" \"$0\" \"$@\"\n' '''\nprint(1)\n"
    runner = script(tmp_path, "accelerate", long)  # what pip writes where the path is too long for a first line
    assert command_of([str(runner), "x.py"]) == [str(runner), "x.py"]
    for text in ("#!/bin/sh\npython x.py\n", "#!/bin/sh\n'''exec' /bin/ruby\n", "#!/usr/bin/env bash\n", "no shebang"):
        with pytest.raises(UnsupportedError, match=r"\[target-not-python\]"):
            command_of([str(script(tmp_path, "other", text))])
    with pytest.raises(UnsupportedError, match=r"\[target-not-found\]"):
        command_of(["no-such-program-here"])
    with pytest.raises(UnsupportedError, match=r"\[target-missing\]"):
        command_of([])


@pytest.mark.parametrize("options", ["-I", "-E", "-S", "-uI", "-BE", "-X importtime -I", "-W error -uS", "-Xdev -E"])
def test_interpreter_options_that_keep_the_hooks_out_are_refused(options: str) -> None:
    with pytest.raises(UnsupportedError, match=r"\[target-isolated\]"):
        command_of([sys.executable, *options.split(), "x.py"])


@pytest.mark.parametrize(
    "arguments", [["-c", "pass", "-S"], ["-m", "mod", "-E"], ["-W", "error", "x.py"], ["-XI", "x.py"], ["-X", "dev"]]
)
def test_options_of_the_program_itself_are_its_own_business(arguments: list[str]) -> None:
    assert command_of([sys.executable, *arguments])[1:] == arguments


def test_options_travel_through_the_environment() -> None:
    options = ProgramOptions(
        "/tmp/x",
        kernel="a|b",
        cta=((1, 2, 3),),
        sites=("op:BAR@first",),
        regions=("n=1..2",),
        scopes=((3, "load"),),
        timeout=1.5,
    )
    found = environment(options, {"PYTHONPATH": os.pathsep.join(["/a", str(BOOTSTRAP)]), "HOME": "/h"})
    parts = found["PYTHONPATH"].split(os.pathsep)
    assert parts == [str(BOOTSTRAP), "/a"] and found["HOME"] == "/h"
    assert ProgramOptions.from_text(found["GWATCH_TRACE"]) == options
    with pytest.raises(TraceError, match=r"\[option-text\]"):
        ProgramOptions.from_text('{"folder": "/x", "unknown": 1}')


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"launch": 1, "skip": 2}, "option-conflict"),
        ({"launch": -1}, "option-range"),
        ({"count": 0}, "option-range"),
        ({"ctas": 0}, "option-range"),
        ({"timeout": 0.0}, "option-range"),
        ({"cta": ((0, 0, 0),), "ctas": 2}, "option-conflict"),
        ({"verify": True, "timeout": 5.0}, "option-conflict"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_the_program_runs(
    options: dict[str, Any], code: str
) -> None:
    with pytest.raises(TraceError) as refusal:
        ProgramOptions("", **options)
    assert refusal.value.code == code


def test_names_of_scope_markers_are_numbers_with_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert _scope("3=wait for data") == (3, "wait for data")
    for text in ("x=load", "3", "3=", "=load"):
        assert run_command("trace", ["--scope", text, "--", sys.executable, "-c", "pass"]) == 2
        assert "ID=NAME" in capsys.readouterr().err


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(KernelError, match=r"\[kernel-pattern\]"):
        ProgramOptions("", kernel="(")


def test_the_programs_exit_code_and_output_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = script(
        tmp_path, "p.py", "import sys; print('out', sys.argv[1:]); sys.stderr.write('err'); sys.exit(7)"
    )
    assert run_command("trace", ["--", sys.executable, str(program), "--kernel", "x"]) == 7
    out, err = capfd.readouterr()
    assert out.startswith("out ['--kernel', 'x']\n")
    assert err.startswith("err") and "[no-cuda]" in err and "exit code 7" in err
    assert not list(tmp_path.glob("*.gwatch"))


def test_a_program_without_cuda_is_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["--", sys.executable, "-c", "pass"]) == 3
    assert run_command("trace", ["--list", "--", sys.executable, "-c", "pass"]) == 3


def test_without_a_driver_the_program_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gwatch.cuda.program.collected.need_driver", need_driver)

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    for more in ([], ["--list"], ["--json"]):
        assert run_command("trace", [*more, "--", sys.executable, "-c", "open('ran', 'w')"]) == 2
        said = capfd.readouterr().err
        assert said.startswith("gwatch: [no-driver] ") and "libcuda.so.1" in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["cupti-missing", "cupti-held", "cupti-failed", "no-gpu", "dependency-missing"])
def test_what_the_machine_lacks_is_exit_code_2(code: str) -> None:
    left = {"pid": 1, "state": "failed", "problems": [f"[{code}] is why"]}
    assert hindered(causes(Program(0, (left,)), ProgramOptions("")))
    assert not hindered(causes(Program(0, ({"pid": 1, "state": "no-cuda", "problems": []},)), ProgramOptions("")))


def test_a_killed_program_is_told_from_an_ended_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_command("trace", ["--", sys.executable, "-c", code]) == 128 + 9
    err = capfd.readouterr().err
    assert "[process-killed]" in err and "by SIGKILL, before it launched a kernel" in err


def test_the_environments_own_sitecustomize_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['OWN_SITE'] = 'ran'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code = "import os, sys; sys.exit(0 if os.environ.get('OWN_SITE') == 'ran' else 9)"
    assert run_command("trace", ["--", sys.executable, "-c", code]) == 3


def test_gwatch_comes_from_its_own_place_and_brings_no_other_package_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = (
        tmp_path / "site-packages"
    )  # of another environment: gwatch and a package the program does not have
    home.mkdir()
    (home / "gwatch").symlink_to(Path(gwatch.__file__).parent)
    (home / "stranger.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, "BOOTSTRAP", home / "gwatch/cuda/program/bootstrap")
    code = (
        "import sys, gwatch, importlib.util as u; print(gwatch.__path__[0]); "
        "sys.exit(5 if u.find_spec('stranger') else 0)"
    )
    assert run_command("trace", ["--", sys.executable, "-c", code]) == 3
    assert capfd.readouterr().out.strip() == str(home / "gwatch")


def test_children_are_seen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "import subprocess, sys; subprocess.call([sys.executable, '-c', 'import os, signal; "
        "os.kill(os.getpid(), signal.SIGKILL)'])"
    )
    assert run_command("trace", ["--", sys.executable, "-c", code]) == 3
    assert "[process-killed]" in capfd.readouterr().err


def test_files_that_exist_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.gwatch").write_text("mine")
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')"
    assert run_command("trace", ["--", sys.executable, "-c", code]) == 2
    assert not marker.exists() and (tmp_path / "trace.gwatch").read_text() == "mine"
    with pytest.raises(TraceError, match=r"\[output-exists\]"):
        refuse_existing([tmp_path / "trace.gwatch"], False)
    refuse_existing([tmp_path / "trace.gwatch"], True)


def test_a_launch_call_that_waits_for_its_kernel_cannot_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert run_command("trace", ["--timeout", "3", "--", sys.executable, "-c", "open('ran', 'w')"]) == 2
    assert "[launch-blocking]" in capfd.readouterr().err and not (tmp_path / "ran").exists()


def test_an_unknown_report_form_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["-o", "x.pdf", "--", sys.executable, "-c", "open('ran', 'w')"]) == 2
    assert not (tmp_path / "ran").exists()


def test_archives_are_named_after_the_output_and_the_process() -> None:
    assert outputs_of(None, 1, []) == [Path("trace.gwatch")]
    assert outputs_of(Path("a/b.html"), 1, []) == [Path("a/b.gwatch")]
    assert outputs_of(Path("b.chrome.json"), 1, []) == [Path("b.gwatch")]
    names = process_names([{"pid": 1, "rank": 0}, {"pid": 2, "rank": 1}, {"pid": 3, "rank": None}])
    assert names == ["rank0", "rank1", "pid3"]
    assert outputs_of(Path("b.html"), 3, names)[2] == Path("b.pid3.gwatch")
    assert process_names([{"pid": 1, "rank": 0}, {"pid": 2, "rank": 0}]) == ["rank0-pid1", "rank0-pid2"]
    assert process_names([{"pid": 1, "rank": 0}] * 2 + [{"pid": 2, "rank": None}] * 2) == [
        "rank0-pid1-1",
        "rank0-pid1-2",
        "pid2-1",
        "pid2-2",
    ]


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "kernel": "k",
        "demangled": "k(float*)",
        "origin": "Triton",
        "registers": 32,
        "device": 0,
        "launches": 4,
        "autotuning": 1,
        "captured": 0,
        "timed": 4,
        "total_ns": 12_345.0,
        "estimated_ns": 12_345.0,
        "shapes": [{"grid": [2, 3, 1], "block": [128, 1, 1], "cluster": None, "shared": 0, "launches": 4}],
        "traceable": "yes",
    }
    return {**base, **changes}


def process(**changes: Any) -> dict[str, Any]:
    base = {"pid": 5, "rank": None, "state": "done", "problems": [], "kernels": [row()], "wanted": ["k"]}
    return {**base, **changes}


@pytest.mark.parametrize(
    ("processes", "code"),
    [
        ([], "not-hooked"),
        ([{"pid": 1, "state": "no-cuda", "problems": []}], "no-cuda"),
        ([process(kernels=[], wanted=[])], "no-launches"),
        ([{"pid": 1, "state": "failed", "problems": ["[cupti-held] by nsys"]}], "cupti-held"),
        ([process(wanted=[])], "kernel-not-launched"),
        ([process(kernels=[row(autotuning=4)])], "only-autotuning"),
        ([process()], "launch-not-reached"),
        ([{"pid": 4194305, "state": "launching"}, {"pid": 2, "state": "no-cuda"}], "process-killed"),
        ([{"pid": 4194305, "state": "started"}, {"pid": 2, "state": "no-cuda"}], "process-killed"),
        ([process(problems=["[kernel-crashed] at k"])], "kernel-crashed"),
    ],
)
def test_every_empty_trace_has_a_named_cause(processes: list[dict[str, Any]], code: str) -> None:
    found = causes(Program(0, tuple(processes)), ProgramOptions("", kernel="k"))
    assert any(line.startswith(f"[{code}]") for line in found), found


def test_the_table_puts_the_longest_kernel_first() -> None:
    lines = table_lines(
        [row(), row(kernel="big", demangled="big", estimated_ns=5e6, traceable="[arch-untested]")]
    )
    assert lines[0].split()[:3] == ["launches", "tuning", "time"]
    assert lines[1].endswith("big") and "[arch-untested]" in lines[1] and "5 ms" in lines[1]
    assert "2x3x1" in lines[2] and "128x1x1" in lines[2] and "12.3 µs" in lines[2]


def test_the_timed_launches_stand_for_the_others() -> None:
    kernel = KernelRow("k", "k", "torch", count=50, tuning=10, captured=8, timed=8, total_ns=800.0)
    assert kernel.estimated_ns == 3_200.0
    assert KernelRow("k", "k", "torch", count=4, timed=4, total_ns=10.0).estimated_ns == 10.0
    assert KernelRow("k", "k", "torch", count=4).estimated_ns == 0.0


def test_sampled_times_are_marked_and_what_is_missing_is_said() -> None:
    one = row(launches=100, autotuning=40, captured=2, timed=10, estimated_ns=58_000.0)
    assert "≈58 µs" in table_lines([one])[1]
    notes = "\n".join(table_notes([one]))
    assert "40 launches made by autotuners" in notes and "2 launches were captured" in notes and "≈" in notes
    assert table_notes([row(launches=5, timed=4)]) == ["1 launches made by autotuners are not in the times"]


def test_times_are_told_in_a_fitting_unit() -> None:
    assert [time_text(ns) for ns in (950, 2_500, 3.2e6, 7e9)] == ["950 ns", "2.5 µs", "3.2 ms", "7 s"]


def test_names_are_demangled_with_or_without_the_optional_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from gwatch.inspect import demangle

    assert demangled("_Z4axpyPfi") == "axpy(float*, int)"
    monkeypatch.setattr(demangle, "_demangle", None)
    demangled.cache_clear()
    assert demangled("_Z4axpyPfi") == "axpy(float*, int)"
    assert demangled("matmul") == "matmul" and demangled("_Znonsense") == "_Znonsense"
    demangled.cache_clear()


def test_the_summary_names_the_launch_and_what_was_left_alone() -> None:
    one = {
        "kernel": "k",
        "demangled": "k(float*)",
        "number": 2,
        "steady": True,
        "explicit": False,
        "why": "the third of its shape",
        "launches": 9,
        "tuning": 3,
        "grid": [2, 1, 1],
        "block": [64, 1, 1],
        "device": 1,
        "records": 8,
        "dropped": 0,
        "outputs": "identical",
        "registers": {"before": 30, "after": 38},
        "captured": False,
        "traced_ns": 4_200.0,
        "plain_ns": 4_000.0,
        "slowdown": {"median": 1.05, "low": 1.02, "high": 1.08, "noise": 0.01, "passes": 5},
        "sites": 2,
        "warnings": ["[sampled] 1 of 2 CTAs"],
    }
    item = {"rank": 1, "runs": [one], "kernels": [row(), row(kernel="o")], "tuning": 3, "over_limit": [], "cut_off": 0}
    text = "\n".join(run_lines(item))
    assert "2 of 9 (the third of its shape), grid 2x1x1, block 64x1x1, device 1, rank 1" in text
    assert "slowdown    1.050 (1.020 to 1.080, noise 0.010) in 5 replays" in text
    assert "4.2 µs traced, 4 µs at the median" in text and "outputs     identical" in text
    assert "left alone  3 launches made by autotuners" in text and "left alone  1 other kernels" in text
    assert "[sampled] 1 of 2 CTAs" in text


def test_the_list_as_json_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["--list", "--json", "--", sys.executable, "-c", "pass"]) == 3
    found = json.loads(capfd.readouterr().out)
    assert found["exit_code"] == 0 and found["processes"][0]["state"] == "no-cuda"


RANKS = """
import json, os, sys
sys.path.insert(0, {xtrace!r})
from ringsim import Clocks, Writer, site, site_map
import numpy as np
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.cuda.xtrace.decode import decode_ring
from gwatch.cuda.xtrace.format import decoded_result
from gwatch.rewrite.ring import RecordKind, RingFormat, RingLayout

folder = json.loads(os.environ["GWATCH_TRACE"])["folder"]
fmt = RingFormat(RecordKind.NARROW, 4)
smap = site_map("gpu", fmt, [site(0, warp=True), site(1, warp=True)])
layout = RingLayout(fmt, (2, 1, 1), (32, 1, 1), 2)
for rank in range({ranks}):
    writer = Writer(layout, smap, Clocks())
    for cta in range(2):
        writer.enter(cta, cta, sm=cta, t=100.0)
        writer.visit(cta, [0], 0, 300.0)
        writer.visit(cta, [0], 1, 700.0 + 64 * rank)
    section = Section_IntraKernelTrace()
    decoded = decode_ring(bytes(writer.data), layout, smap, 1e6)
    section.add_run(decoded_result(decoded, smap, layout), site_regions=[(0, 1, "life")])
    report = File(title="program")
    report.add_section(section)
    report.render(os.path.join(folder, f"{{rank}}.gwatch"))
    one = dict(kernel="k", demangled="k()", number=2, steady=True, explicit=False, why="as asked for", launches=5,
               tuning=0, grid=[2, 1, 1], block=[32, 1, 1], device=rank, records=4, dropped=0, outputs={outputs!r},
               captured=False,
               registers=dict(before=16, after=24), traced_ns=900.0, plain_ns=None, slowdown=None, sites=2, warnings=[])
    outcome = dict(pid=rank, rank=rank, state="done", argv=[], kernels=[{row!r}], wanted=["k"], tuning=0,
                   over_limit=[], cut_off=0, ambiguous=False, runs=[one], problems=[], archive=f"{{rank}}.gwatch")
    with open(os.path.join(folder, f"{{rank}}.json"), "w") as file:
        json.dump(outcome, file)
sys.exit({code})
"""


def ranks_program(ranks: int, outputs: str = "identical", code: int = 0) -> list[str]:
    """A program whose processes left what a traced program's leave."""
    xtrace = str(Path(__file__).resolve().parents[1] / "xtrace")
    text = RANKS.format(ranks=ranks, outputs=outputs, code=code, row=row(), xtrace=xtrace)
    return [sys.executable, "-c", text]


def test_one_process_leaves_one_archive_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["-o", "report.json", "--", *ranks_program(1)]) == 0
    out = capfd.readouterr().out
    assert "written     report.json, report.gwatch" in out and "rank 0" in out
    assert File.load("report.json").runs[0].intervals.end.tolist() != []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.gwatch", "report.json"]


def test_ranks_leave_an_archive_each_and_a_merged_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["-o", "report.json", "--", *ranks_program(2)]) == 0
    merged = File.load("report.json")
    assert [run.launch["source"] for run in merged.runs] == ["rank0", "rank1"]
    lives = [File.load(f"report.rank{rank}.gwatch").runs[0].intervals for rank in range(2)]
    assert [set((life.end - life.start).tolist()) for life in lives] == [
        {384},
        {448},
    ]  # the timer steps by 32 ns


def test_a_rank_that_was_killed_is_named_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ranks_program(1)
    command[2] = command[2].replace(
        "sys.exit(0)",
        'for n in (4194305, os.getppid()):\n    with open(os.path.join(folder, f"{n}.json"), "w") as file:\n'
        '        json.dump({"pid": n, "state": "launching", "argv": []}, file)\nsys.exit(0)',
    )
    assert run_command("trace", ["--", *command]) == 0
    err = capfd.readouterr().err
    assert "[process-killed] process 4194305 ended without reaching" in err  # above the largest process id
    assert f"[process-running] process {os.getpid()} outlives" in err


def test_outputs_that_differ_are_exit_code_1_and_a_failed_program_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["--", *ranks_program(1, outputs="differ")]) == 1
    assert run_command("trace", ["--force", "--", *ranks_program(1, outputs="differ", code=4)]) == 4
    assert (tmp_path / "trace.gwatch").exists()


def left_behind(*processes: dict[str, Any], code: int = 0) -> list[str]:
    """A program whose processes left these results."""
    text = f"""
import json, os, sys
folder = json.loads(os.environ["GWATCH_TRACE"])["folder"]
for number, one in enumerate({list(processes)!r}):
    with open(os.path.join(folder, f"{{number}}.json"), "w") as file:
        json.dump(one, file)
sys.exit({code})
"""
    return [sys.executable, "-c", text]


def test_a_failing_programs_list_is_printed_and_its_code_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """The list of a program that ends with an error was not shown at all."""
    for more in ([], ["--json"]):
        assert run_command("trace", ["--list", *more, "--", *left_behind(process(), code=7)]) == 7
        out, err = capfd.readouterr()
        assert "k(float*)" in out and "exit code 7" in err


def test_a_list_names_what_is_missing_from_it(capfd: pytest.CaptureFixture[str]) -> None:
    failed = {"pid": 4194304, "state": "failed", "problems": ["[cupti-held] by nsys"]}
    killed = {"pid": 4194305, "state": "launching", "argv": []}
    assert run_command("trace", ["--list", "--", *left_behind(process(), failed, killed)]) == 0
    out, err = capfd.readouterr()
    assert "4 launches of 1 kernels" in out and "[cupti-held] by nsys" in err and "[process-killed]" in err


def test_a_list_for_a_pattern_that_no_kernel_has_is_exit_code_3(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("trace", ["--list", "--kernel", "x", "--", *left_behind(process(wanted=[]))]) == 3
    assert "[kernel-not-launched]" in capfd.readouterr().err


def test_a_process_that_failed_is_named_beside_one_that_was_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ranks_program(1)
    failed = {"pid": 4194304, "state": "failed", "problems": ["[cupti-held] by nsys"]}
    command[2] = command[2].replace(
        "sys.exit(0)", f"open(os.path.join(folder, 'x.json'), 'w').write(json.dumps({failed!r}))"
    )
    assert run_command("trace", ["--", *command]) == 0
    assert "[cupti-held] by nsys" in capfd.readouterr().err


def hanging() -> dict[str, Any]:
    told = {"kernel": "k(float*)", "number": 3, "seconds": 2.0, "lines": ["4 warps wait"]}
    return process(state="hanging", hang=told, rank=0, archive=None, ambiguous=False, runs=[], tuning=0)


def test_a_hang_is_told_in_either_form_beside_the_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command("trace", ["--timeout", "2", "--", *left_behind(hanging(), code=1)]) == 1
    out, err = capfd.readouterr()
    assert "[hang] launch 3 of k(float*) had not ended after 2 s on rank 0\n4 warps wait\n" in out
    assert "nothing" not in err
    assert run_command("trace", ["--timeout", "2", "--json", "--", *left_behind(hanging(), code=1)]) == 1
    assert json.loads(capfd.readouterr().out)["processes"][0]["hang"]["lines"] == ["4 warps wait"]
    command = ranks_program(1)
    command[2] = command[2].replace(
        "sys.exit(0)", f"open(os.path.join(folder, 'x.json'), 'w').write(json.dumps({hanging()!r})); sys.exit(1)"
    )
    assert run_command("trace", ["--timeout", "2", "--", *command]) == 1
    out = capfd.readouterr().out
    assert "4 warps wait" in out and "written     trace.gwatch" in out and (tmp_path / "trace.gwatch").exists()


def test_several_kernels_are_told_in_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    both = process(kernels=[row(), row(kernel="k2")], wanted=["k", "k2"], ambiguous=True, archive=None)
    assert run_command("trace", ["--kernel", "k", "--json", "--", *left_behind(both)]) == 2
    assert json.loads(capfd.readouterr().out)["causes"][0].startswith("[kernel-ambiguous]")
    assert run_command("trace", ["--kernel", "k", "--", *left_behind(both, code=5)]) == 5


@pytest.mark.parametrize("name", ["report.rank1.gwatch", "report.pid7.gwatch"])
def test_archives_of_processes_are_not_overwritten_and_that_is_said_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """The program ran to its end, and only then its records were thrown away."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    command = [sys.executable, "-c", "open('ran', 'w')"]
    assert run_command("trace", ["-o", "report.json", "--", *command]) == 2
    assert f"[output-exists] {name}" in capfd.readouterr().err and not (tmp_path / "ran").exists()
    assert run_command("trace", ["--force", "-o", "report.json", "--", *ranks_program(2)]) == 0
    assert File.load("report.rank1.gwatch").runs


def test_a_script_whose_interpreter_is_missing_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, "tool", "#!/no/such/python3\n")
    assert run_command("trace", ["--list", "--", str(program)]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"gwatch: [target-not-started] {program} does not start: ") and err.count("\n") == 1


def test_launches_beyond_the_limit_are_told() -> None:
    item = {"rank": None, "runs": [], "kernels": [], "tuning": 0, "over_limit": [], "cut_off": 36}
    assert run_lines(item)[0].startswith("left alone  36 launches that were asked for: at most 64 of a kernel")
