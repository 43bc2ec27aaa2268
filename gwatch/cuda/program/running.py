"""The part of :mod:`gwatch.cuda.program.start` that needs the rest of gwatch."""

from __future__ import annotations

import contextlib
import os
import sys

from gwatch.cuda.driver import driver
from gwatch.cuda.program.names import demangled
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.outcome import collect, hang_report, save
from gwatch.cuda.program.session import Kernel, ProgramSession, Traced

HANGING = 1
"""Exit code of a process that was ended because its kernel hung."""


def start_session(text: str) -> ProgramSession:
    """Watch this process's launches. Raises ToolError, TraceError ``[option-text]``."""
    session = ProgramSession(ProgramOptions.from_text(text), driver, demangled)
    session.on_hang = _hanging
    session.begin()
    return session


def restart_session(parent: ProgramSession) -> ProgramSession | None:
    """In a forked child: a session of its own on the inherited subscription.

    None when the parent had launched kernels: CUDA does not work in such a child.
    """
    if parent.used:
        return None
    session = ProgramSession(parent.options, driver, demangled)
    session.on_hang = _hanging
    session.inherit(parent)
    return session


def _hanging(session: ProgramSession, kernel: Kernel, traced: Traced | None) -> None:
    """Leave the report behind and end the process: its main thread waits for a kernel that does not end."""
    try:
        save(session.options.folder, hang_report(session, kernel, traced))
    finally:
        with contextlib.suppress(Exception):  # the program may have closed it
            sys.stdout.flush()
        # Past the wrapper that reads the records: it would wait for the kernel.
        getattr(os._exit, "__wrapped__", os._exit)(HANGING)


def end_session(session: ProgramSession) -> None:
    """Read the records and write this process's results into the options' folder."""
    save(session.options.folder, collect(session))
