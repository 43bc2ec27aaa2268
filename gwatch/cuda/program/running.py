"""The part of :mod:`gwatch.cuda.program.start` that needs the rest of gwatch."""

from __future__ import annotations

from gwatch.cuda.driver import driver
from gwatch.cuda.program.names import demangled
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.outcome import collect, save
from gwatch.cuda.program.session import ProgramSession


def start_session(text: str) -> ProgramSession:
    """Watch this process's launches. Raises ToolError, TraceError ``[option-text]``."""
    session = ProgramSession(ProgramOptions.from_text(text), driver, demangled)
    session.begin()
    return session


def end_session(session: ProgramSession) -> None:
    """Read the records and write this process's results into the options' folder."""
    save(session.options.folder, collect(session))
