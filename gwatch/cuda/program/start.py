"""Getting ready inside the program, with as little as possible until it turns out to use CUDA.

CUPTI is taken right after the first import of a package that launches kernels: a process that never imports
one (a build tool, a data loader) is left alone, and where PyTorch brings a CUPTI of its own, that copy is
used. This module imports nothing but the standard library until then.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WATCHED = (
    "torch",
    "triton",
    "cupy",
    "cuda.bindings.driver",
    "cuda.core",
    "numba.cuda",
    "cutlass",
    "pycuda.driver",
    "tilelang",
    "jax",
)

FINISH_SECONDS = 10.0
"""How long a process that is told to end at once may still take to read its records: a kernel may be hanging."""

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class _After(importlib.abc.Loader):
    """A loader that calls back once its module is there."""

    def __init__(self, inner: importlib.abc.Loader, then: Callable[[str], None]) -> None:
        self._inner, self._then = inner, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._then(module.__name__)


class ImportWatch(importlib.abc.MetaPathFinder):
    """Calls ``then`` after the first import of one of ``names``, and leaves ``sys.meta_path``."""

    def __init__(self, names: Sequence[str], then: Callable[[str], None]) -> None:
        self._names, self._then = frozenset(names), then
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, with a loader that tells."""
        if fullname not in self._names or self._searching:
            return None
        self._searching = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(fullname, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _After(spec.loader, self._done)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._searching = False
        return None

    def _done(self, name: str) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(name)


class Process:
    """gwatch in this process: waiting for CUDA, watching, or done."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._folder: str = json.loads(text)["folder"]
        self._session: Any = None
        self._pid = os.getpid()
        self._launched = self._finished = False
        self._problem = ""
        self._pipe: tuple[int, int] | None = None
        self._lock = threading.Lock()  # held while the records are read
        self._finisher = 0  # thread that holds it
        self._pending = 0  # signal that came meanwhile

    def hello(self) -> None:
        """Tell the command that a Python process of the program has the hooks at hand."""
        self._keep_what_is_there()
        self._write({"pid": os.getpid(), "state": "started", "argv": list(sys.orig_argv)})

    def _keep_what_is_there(self) -> None:
        """Move away what a program left that had this process before, and handed it over by exec."""
        path = Path(self._folder) / f"{self._pid}.json"
        with contextlib.suppress(OSError, ValueError):
            left = json.loads(path.read_text())
            if left["state"] == "started":
                return
            name = f"{self._pid}-{time.monotonic_ns()}"
            if left.get("archive"):
                os.replace(path.with_name(left["archive"]), path.with_name(f"{name}.gwatch"))
                left["archive"] = f"{name}.gwatch"
            path.with_name(f"{name}.json").write_text(json.dumps(left))

    def launching(self) -> None:
        """Tell that this process launched a kernel: from now on it has something to lose."""
        self._launched = True
        self._write({"pid": os.getpid(), "state": "launching", "argv": list(sys.orig_argv)})
        self._heed_signals()

    def cuda_seen(self, name: str) -> None:
        """A package that launches kernels was imported: watch from now on."""
        try:
            from gwatch.cuda.program.running import start_session

            self._session = start_session(self._text)
            self._session.on_first_launch = self.launching
        except ImportError as error:
            self._problem = (
                f"[dependency-missing] {sys.executable} lacks what gwatch needs ({error}); pip install "
                "'gwatch-sass[gpu]' there"
            )
        except Exception as error:
            coded = hasattr(error, "code")
            self._problem = str(error) if coded else f"[internal] {type(error).__name__}: {error}"

    def forked(self) -> None:
        """In a forked child: a child of a process that has not used CUDA may use it, and is watched like one that
        was started; what the parent recorded stays the parent's."""
        if os.getpid() == self._pid:
            return
        self._pid, self._launched = os.getpid(), False
        self._lock, self._finisher, self._pending = threading.Lock(), 0, 0
        self._forget_signals()
        if self._session is not None:
            from gwatch.cuda.program.running import restart_session

            self._session = restart_session(self._session)
            self._finished = self._session is None
            if self._session is not None:
                self._session.on_first_launch = self.launching
        self._exit_like_multiprocessing()

    def _exit_like_multiprocessing(self) -> None:
        """Children that multiprocessing makes end without running atexit, but run its finalizers."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, _finish_before_exit)

    # ends that run no atexit

    def wrap_exits(self) -> None:
        """Read the records before ``os._exit`` and before another program takes the process over."""
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, self._finishing(getattr(os, name), name == "_exit"))

    def _finishing(self, real: Callable[..., Any], always: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        def leave(*arguments: Any, **named: Any) -> Any:
            if always or self._launched:
                self.finish_soon()
            return real(*arguments, **named)

        return leave

    def finish_soon(self) -> None:
        """:meth:`finish`, given up after ``FINISH_SECONDS``; what is lost then is told by the state left behind."""
        if not self._launched:
            self.finish()
            return
        worker = threading.Thread(target=self.finish, name="gwatch finish", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the interpreter is going down already
            self.finish()
        else:
            worker.join(FINISH_SECONDS)

    def _heed_signals(self) -> None:
        """Read the records before a signal ends the process, where the program leaves that signal alone.

        A Python handler runs when the main thread comes back from C, which under a hanging kernel it never does;
        hence the thread behind a wakeup descriptor. Not before the first launch: a thread makes forks warn.
        """
        if threading.current_thread() is not threading.main_thread() or self._pipe is not None:
            return
        mine = [number for number in ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        ends = os.pipe()
        for end in ends:
            os.set_blocking(end, end == ends[0])
        before = signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
        if before != -1 or not mine:  # an event loop has the descriptor: signals keep their default
            signal.set_wakeup_fd(before)
            for end in ends:
                os.close(end)
            return
        self._pipe = ends
        for number in mine:
            signal.signal(number, lambda number, _frame: self._ended_by(number))
        threading.Thread(
            target=self._wait_for_signals, args=(ends[0], frozenset(mine)), name="gwatch signals", daemon=True
        ).start()

    def _wait_for_signals(self, end: int, mine: frozenset[int]) -> None:
        while byte := os.read(end, 1):
            number = byte[0]
            handler = signal.getsignal(number)
            if number in mine and getattr(handler, "__module__", "") == __name__:
                self._ended_by(number)

    def _ended_by(self, number: int) -> None:
        if self._finisher == threading.get_ident():
            self._pending = number  # the interrupted thread goes on reading records, and then ends the process
            return
        if os.getpid() == self._pid:
            self.finish_soon()
        _die(number)

    def _forget_signals(self) -> None:
        """In a forked child: the descriptor and the thread behind it are the parent's."""
        if self._pipe is None:
            return
        signal.set_wakeup_fd(-1)
        for number in ENDING_SIGNALS:
            if getattr(signal.getsignal(number), "__module__", "") == __name__:
                signal.signal(number, signal.SIG_DFL)
        for end in self._pipe:
            os.close(end)
        self._pipe = None

    def finish(self) -> None:
        """Read the records and leave the results behind; at the end of the process, once."""
        with self._lock:
            self._finisher = threading.get_ident()
            try:
                self._finish()
            finally:
                self._finisher = 0
        if self._pending:
            _die(self._pending)

    def _finish(self) -> None:
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        if self._session is not None:
            from gwatch.cuda.program.running import end_session

            if self._launched:
                _progress("reading the records")
            try:
                end_session(self._session)
                return
            except Exception as error:
                self._problem = f"[internal] {type(error).__name__}: {error}"
        state = "failed" if self._problem else "no-cuda"
        problems = [self._problem] if self._problem else []
        self._write({"pid": self._pid, "state": state, "argv": list(sys.orig_argv), "problems": problems})

    def _write(self, data: dict[str, Any]) -> None:
        path = Path(self._folder) / f"{data['pid']}.json"
        try:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(data))
            os.replace(part, path)
        except OSError:
            return  # the command has ended and taken its folder along; this process outlived it


def _progress(text: str) -> None:
    """A line on a terminal's standard error, nothing where that is a file, or closed already."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            sys.stderr.write(f"gwatch: {text} …\n")


def _die(number: int) -> None:
    """End the process by a signal, as it would have without gwatch."""
    ctypes.CDLL(None).signal(number, 0)  # signal.signal works on the main thread alone
    os.kill(os.getpid(), number)


def _finish_before_exit(process: Process) -> None:
    from multiprocessing import util

    util.Finalize(None, process.finish, exitpriority=0)


def begin() -> Process:
    """Called by the bootstrap's sitecustomize."""
    process = Process(os.environ["GWATCH_TRACE"])
    process.hello()
    sys.meta_path.insert(0, ImportWatch(WATCHED, process.cuda_seen))
    process.wrap_exits()
    atexit.register(process.finish)
    os.register_at_fork(after_in_child=process.forked)
    if "--multiprocessing-fork" in sys.orig_argv:
        _finish_before_exit(process)
    return process
