"""``gwatch COMMAND …``: picks the command's module, runs it, and turns refusals into one line and an exit code.

Exit codes of every command: 0 done, 1 a rule or comparison failed, 2 input, environment or refusal, 3 nothing recorded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn

from gwatch import __version__
from gwatch.errors import GWatchError, UsageError

# name -> (module, one-line help). Only the chosen command's module is imported: `gwatch --help` stays fast.
COMMANDS = {
    "rewrite": ("gwatch.cli.rewrite", "insert trace records at SASS sites of a cubin"),
    "decode": ("gwatch.cli.decode", "decode a ring buffer that your own loader filled"),
    "trace": ("gwatch.cli.trace", "trace a Python program's kernels, unchanged"),
    "show": ("gwatch.cli.show", "print a trace: verdict, tables, timeline"),
    "inspect": ("gwatch.cli.inspect", "what is in a cubin, library, package or folder; rules for CI"),
    "diff": ("gwatch.cli.diff", "compare two cubins, libraries or packages, kernel by kernel"),
    "doctor": ("gwatch.cli.doctor", "say what gwatch finds on this machine, and where it looked"),
}


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
        ]
    )


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses like everything else: one line with a code."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError ``[usage]``."""
        raise UsageError("usage", message, f"{self.prog} --help lists the arguments")


def run_command(name: str, arguments: list[str], prog: str | None = None) -> int:
    """Run one command with its arguments; returns the exit code."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = Parser(prog=prog or f"gwatch {name}", description=COMMANDS[name][1])
    module.add_arguments(parser)
    try:
        code: int = module.run(parser.parse_args(arguments))
    except GWatchError as error:
        print(f"gwatch: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # A reader such as `head` went away; point stdout at nothing so that the interpreter's own flush stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name == "--version":
        print(f"gwatch-sass {__version__}")
        return 0
    if name not in COMMANDS:
        print(
            f"gwatch: [unknown-command] there is no command {name!r}; one of: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    return run_command(name, rest)


if __name__ == "__main__":
    raise SystemExit(main())
