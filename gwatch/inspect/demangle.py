"""C++ names of kernels. The only module that imports the demangler, which is an optional package."""

from __future__ import annotations

from functools import lru_cache

from gwatch.errors import printable

try:
    from pydemumble import demangle as _demangle
except ImportError:  # the ``inspect`` extra is not installed
    _demangle = None


def available() -> bool:
    """Whether names can be demangled here (``pip install 'gwatch-sass[inspect]'``)."""
    return _demangle is not None


@lru_cache(maxsize=1 << 14)
def demangle(name: str) -> str:
    """The C++ spelling of ``name``; ``name`` itself when it is not mangled or no demangler is installed. This is how
    names are shown everywhere: what a terminal would obey in them is escaped."""
    if _demangle is None or not name.startswith(("_Z", "__Z")):
        return printable(name)
    plain: str = _demangle(name)
    return printable(plain or name)


def short(name: str) -> str:
    """``name`` demangled, without parameter list and return type: ``copy<float, 4>``."""
    text = demangle(name).replace("(anonymous namespace)", "{anonymous}")
    if text == printable(name):
        return text
    depth = 0
    start, end = 0, len(text)
    for at, character in enumerate(text):
        if character in "<[{":
            depth += 1
        elif character in ">]}" and text[at - 1 : at + 1] != "->":
            depth -= 1
        elif depth == 0 and character == " " and end == len(text):
            start = at + 1
        elif depth == 0 and character == "(":
            end = at
            break
    return text[start:end] or text
