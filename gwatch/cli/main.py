"""``gwatch COMMAND …``: picks the command's module, runs it, and turns refusals into one line and an exit code.

Exit codes of every command: 0 done, 1 a rule or comparison failed, 2 input, environment or refusal, 3 nothing recorded.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from gwatch import __version__
from gwatch._files import need_folder
from gwatch.cli.examples import epilog
from gwatch.errors import GWatchError, UsageError

# name -> (module, one-line help). Only the chosen command's module is imported: `gwatch --help` stays fast.
COMMANDS = {
    "rewrite": ("gwatch.cli.rewrite", "insert trace records at SASS sites of a cubin"),
    "decode": ("gwatch.cli.decode", "decode a ring buffer that your own loader filled"),
    "trace": ("gwatch.cli.trace", "trace a Python program's kernels, unchanged"),
    "show": ("gwatch.cli.show", "print a trace: verdict, tables, timeline"),
    "inspect": ("gwatch.cli.inspect", "what is in a cubin, library, package or folder; rules for CI"),
    "check": ("gwatch.cli.check", "check machine code for hazards and stale code offsets, whoever patched it"),
    "diff": ("gwatch.cli.diff", "compare two cubins, libraries or packages, kernel by kernel"),
    "disasm": ("gwatch.cli.disasm", "a cubin's code, or bare words, as text with control words"),
    "asm": ("gwatch.cli.asm", "such text to words, or into a cubin"),
    "doctor": ("gwatch.cli.doctor", "say what gwatch finds on this machine, and where it looked"),
    "schema": ("gwatch.cli.schema", "print the JSON Schema of a report"),
    "skill": ("gwatch.cli.skill", "print the page that tells a coding agent how to use gwatch"),
}

# Arguments of all commands that name files to read.
_INPUTS = ("file", "paths", "cubin", "ring", "report", "first", "second", "original", "snippet", "rules", "diff")
# The one that runs another program in its process, which may do linear algebra. The others have no use for the threads
# of numpy's BLAS, which spin when it is imported.
_HOST = "trace"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Commands that print or compare code: they take --engine nvdisasm.
_READERS = frozenset({"rewrite", "inspect", "diff", "disasm"})


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: gwatch [--version] COMMAND …",
            "",
            "commands:",
            *lines,
            "",
            "`gwatch COMMAND --help` describes a command.",
            "exit codes: 0 done, 1 a rule or comparison failed, 2 input or environment, 3 nothing recorded",
            "outputs go into folders that exist; none is made for them",
        ]
    )


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses like everything else: one line with a code."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError ``[usage]``."""
        raise UsageError("usage", message, f"{self.prog} --help lists the arguments")


def run_command(name: str, arguments: list[str], prog: str | None = None) -> int:
    """Run one command with its arguments; returns the exit code."""
    if not _streams():
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(prog=prog or f"gwatch {name}", description=COMMANDS[name][1], epilog=epilog(name),
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    if name in _READERS:
        parser.add_argument("--engine", choices=("tables", "nvdisasm"),
                            help="what reads the code: gwatch's tables (default), or nvdisasm as a second opinion")
    # What follows `--` is another program's; wrong arguments leave nothing better to ask than their text.
    as_json = "--json" in arguments[:arguments.index("--") if "--" in arguments else None]
    try:
        args = parser.parse_args(arguments)
        as_json = bool(getattr(args, "json", False))
        if getattr(args, "output", None) is not None:
            _check_output(args)
        engine = (args.engine or os.environ.get("GWATCH_ENGINE")) if name in _READERS else None
        with _set(_BLAS_THREADS, None if name == _HOST else os.environ.get(_BLAS_THREADS, "1")), _engine(engine):
            code: int = module.run(args)
        sys.stdout.flush()
    except GWatchError as error:
        _refuse(error, as_json)
        return 2
    except BrokenPipeError:
        # A reader such as `head` went away.
        _silence()
        return 0
    except OSError as error:
        _silence()
        _refuse(UsageError("os-error", str(error), "check the disk, and where the output goes"), False)
        return 2
    return code


def _streams() -> bool:
    """Whether there is a standard output. What it can't encode it then shows escaped, as standard error does."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (kept open)
    if sys.stdout is None:
        _refuse(UsageError("no-output", "standard output is closed", "give one, such as >/dev/null or a file"), False)
        return False
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return True


def _check_output(args: argparse.Namespace) -> None:
    """Raises UsageError ``[output-folder]``, ``[output-is-input]``."""
    need_folder(args.output)
    if not os.path.exists(args.output):
        return
    for name in _INPUTS:
        given = getattr(args, name, None)
        for path in given if isinstance(given, list) else [given]:
            if path is not None and os.path.exists(path) and os.path.samefile(path, args.output):
                raise UsageError("output-is-input", f"{args.output} is the input", "name another output")


def _silence() -> None:
    """Point standard output at nothing, so that the interpreter's own flush at exit stays quiet."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _engine(name: str | None) -> Iterator[None]:
    """Have code read by this engine (:mod:`gwatch.sass.code`), also in worker processes."""
    if name is None:
        yield
        return
    from gwatch.sass.code import ENGINE_VARIABLE

    with _set(ENGINE_VARIABLE, name):
        if name == "nvdisasm":
            from gwatch.sass import nvdisasm

            nvdisasm.find()  # missing, it is refused at once, whatever the command would ask it
        yield


@contextmanager
def _set(variable: str, value: str | None) -> Iterator[None]:
    """Have an environment variable set meanwhile, also for child processes; None leaves it as it is."""
    before = os.environ.get(variable)
    if value is not None:
        os.environ[variable] = value
    try:
        yield
    finally:
        if value is not None and before is None:
            del os.environ[variable]
        elif value is not None:
            os.environ[variable] = str(before)


def _refuse(error: GWatchError, as_json: bool) -> None:
    """One line on standard error; under ``--json`` also the error as an object, alone on standard output."""
    print(f"gwatch: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(error.as_dict()))


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script."""
    arguments = sys.argv[1:] if argv is None else argv
    if not _streams():
        return 2
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        if not arguments:
            _refuse(UsageError("usage", "no command given", "gwatch --help lists them"), False)
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        print(f"gwatch-sass {__version__}")
        return 0
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=3) or list(COMMANDS)
        _refuse(
            UsageError("unknown-command", f"there is no command {name!r}", f"one of: {', '.join(COMMANDS)}", near),
            "--json" in rest,
        )
        return 2
    return run_command(name, rest)


if __name__ == "__main__":
    raise SystemExit(main())
