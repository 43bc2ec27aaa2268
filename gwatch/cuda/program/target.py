"""The command line of the program to trace: whether it starts Python, and how to run it hooked."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gwatch.cuda.program.options import VARIABLE, ProgramOptions
from gwatch.errors import UnsupportedError

_PYTHON = re.compile(r"(?:python|pypy)(?:\d+(?:\.\d+)*)?t?\Z")
# Interpreter options that keep sitecustomize or PYTHONPATH out.
_BLOCKING = {"I": "-I", "E": "-E", "S": "-S"}
_WITH_VALUE = "XW"
_LONG_PATH, _LONGEST_LINE = b"'''exec' ", 1 << 13
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"


def command_of(target: Sequence[str]) -> list[str]:
    """The command that runs the program.

    ``python …``, a ``.py`` file (run with this interpreter) and scripts that name a Python in their first line
    (``torchrun``) are programs gwatch can trace. Raises UnsupportedError ``[target-missing]``,
    ``[target-not-found]``, ``[target-not-python]``, ``[target-isolated]``.
    """
    if not target:
        raise UnsupportedError(
            "target-missing", "no program to trace", "gwatch trace [options] -- python script.py arguments"
        )
    name, *arguments = target
    if name.endswith(".py") and Path(name).is_file():
        return [sys.executable, *target]
    found = shutil.which(name)
    if found is None:
        raise UnsupportedError(
            "target-not-found", f"there is no program {name!r}", "write it as the shell would run it"
        )
    if _PYTHON.match(Path(found).name):
        _refuse_isolation(arguments)
        return [found, *arguments]
    if _PYTHON.match(_interpreter(Path(found))):
        return [found, *arguments]
    raise UnsupportedError(
        "target-not-python",
        f"{name} does not start Python, and gwatch's hooks live in a Python process",
        "give the python command inside it; for a C++ program patch the cubin with `gwatch rewrite` and arm it "
        "in your loader",
    )


def _interpreter(path: Path) -> str:
    """File name of the program that runs a script: the one in its first line, or in what installers write where the
    path is too long for that; "" for anything else."""
    try:
        with path.open("rb") as file:
            first, second = file.readline(512), file.readline(_LONGEST_LINE)
    except OSError:
        return ""
    if first.startswith(b"#!/bin/sh") and second.startswith(_LONG_PATH):
        first = b"#!" + second[len(_LONG_PATH) :].replace(b'"', b" ")
    words = first[2:].decode(errors="replace").split() if first[:2] == b"#!" else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return Path(words[0]).name if words else ""


def _refuse_isolation(arguments: Sequence[str]) -> None:
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument.startswith("--") or argument == "-":
            return
        for at, letter in enumerate(argument[1:], 2):
            if letter in _BLOCKING:
                raise UnsupportedError(
                    "target-isolated",
                    f"python {_BLOCKING[letter]} keeps gwatch's sitecustomize out of the program",
                    f"leave {_BLOCKING[letter]} out",
                )
            if letter in "cm":  # they end the options
                return
            if letter in _WITH_VALUE:  # the value is what follows in this word, or the next word
                if at == len(argument):
                    next(rest, None)
                break


def environment(options: ProgramOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Environment of the program: gwatch's bootstrap folder in front of its path."""
    given = [part for part in base.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = [str(BOOTSTRAP), *(part for part in given if part != str(BOOTSTRAP))]
    return {**base, "PYTHONPATH": os.pathsep.join(path), VARIABLE: options.to_text()}
