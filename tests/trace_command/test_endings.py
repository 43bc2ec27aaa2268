"""Ends that run no atexit: os._exit, exec, signals. The records are read before, or their loss is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAD = """
import json, os, signal, sys, threading, time
from gwatch.cuda.program import running, start
folder = sys.argv[1]

def read_records(session):
    time.sleep(0.1)
    running.save(folder, {"pid": os.getpid(), "state": "done", "kernels": []})

running.end_session = read_records
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may ignore it, and children inherit that
process = start.Process(json.dumps({"folder": folder}))
process.hello()
process.wrap_exits()
process._session = object()
process.launching()
"""


def ended(folder: Path, text: str, send: int | None = None) -> tuple[int, str]:
    """(exit status, state left behind) of a process that launched a kernel and then runs ``text``."""
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + text, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    if send is not None:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        child.send_signal(send)
    code = child.wait(60)
    child.stdout.close()
    return code, json.loads((folder / f"{child.pid}.json").read_text())["state"]


def test_os_exit_reads_the_records_first(tmp_path: Path) -> None:
    assert ended(tmp_path, "os._exit(5)") == (5, "done")


def test_a_program_that_takes_the_process_over_does_so_after_the_records_are_read(tmp_path: Path) -> None:
    assert ended(
        tmp_path, "os.execvp(sys.executable, [sys.executable, '-S', '-c', 'import os; os._exit(4)'])"
    ) == (
        4,
        "done",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "waiting",
    [
        "time.sleep(60)",
        # Stays in C without the GIL: the main thread runs no handler.
        "import hashlib; hashlib.pbkdf2_hmac('sha256', b'a', b'b', 400_000_000)",
    ],
)
def test_a_signal_that_ends_the_process_finds_the_records_read(
    tmp_path: Path, number: int, waiting: str
) -> None:
    assert ended(tmp_path, f"print('ready', flush=True); {waiting}", number) == (-number, "done")


def test_a_signal_while_the_records_are_read_lets_them_be_written(tmp_path: Path) -> None:
    text = "print('ready', flush=True); running_time = 0.5\n"
    text += "def slow(session):\n    time.sleep(0.6)\n    read_records(session)\n"
    text += "running.end_session = slow\nprocess.finish()\nos._exit(0)"
    assert ended(tmp_path, text, signal.SIGTERM) == (-signal.SIGTERM, "done")


def test_a_signal_that_the_program_handles_is_its_own(tmp_path: Path) -> None:
    text = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(6)); print('ready', flush=True); time.sleep(60)"
    assert ended(tmp_path, text, signal.SIGTERM) == (6, "launching")


def test_records_that_cannot_be_read_in_time_do_not_keep_the_process(tmp_path: Path) -> None:
    text = "start.FINISH_SECONDS = 0.2; running.end_session = lambda session: time.sleep(60)\nos._exit(5)"
    assert ended(tmp_path, text) == (5, "launching")


def test_a_forked_child_ends_by_signals_as_ever(tmp_path: Path) -> None:
    text = """
start.Process.forked(process)
os.register_at_fork(after_in_child=process.forked)
running.restart_session = lambda session: None
child = os.fork()
if child == 0:
    time.sleep(60)
time.sleep(0.2)
os.kill(child, signal.SIGTERM)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
time.sleep(0.3)  # the parent must not take the child's signal for its own
os._exit(7)
"""
    assert ended(tmp_path, text) == (7, "done")
    assert len(os.listdir(tmp_path)) == 1


def test_records_outlive_a_program_that_takes_the_process_over(tmp_path: Path) -> None:
    """The next program of the process wrote its own state where the first had left its results."""
    text = """
def with_archive(session):
    open(os.path.join(folder, f"{os.getpid()}.gwatch"), "w").write("records")
    running.save(folder, {"pid": os.getpid(), "state": "done", "kernels": [], "archive": f"{os.getpid()}.gwatch"})
running.end_session = with_archive
next_program = f"import sys; sys.path[:] = {sys.path!r}\\n"
next_program += "import json; from gwatch.cuda.program import start\\n"
next_program += "start.Process(json.dumps({'folder': sys.argv[1]})).hello()"
os.execv(sys.executable, [sys.executable, "-S", "-c", next_program, folder])
"""
    assert ended(tmp_path, text) == (0, "started")
    (first,) = tmp_path.glob("*-*.json")
    left = json.loads(first.read_text())
    assert left["state"] == "done" and (tmp_path / left["archive"]).read_text() == "records"
    assert left["archive"] == f"{first.stem}.gwatch"


def test_a_closed_standard_output_does_not_keep_a_hanging_process(tmp_path: Path) -> None:
    text = """
running.hang_report = lambda *_: {"pid": os.getpid(), "state": "hanging"}
from types import SimpleNamespace
sys.stdout.close()
threading.Thread(
    target=running._hanging, args=(SimpleNamespace(options=SimpleNamespace(folder=folder)), None, None)
).start()
time.sleep(60)
"""
    assert ended(tmp_path, text) == (1, "hanging")
