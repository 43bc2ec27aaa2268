"""Demangled kernel names where the optional demangler is not installed: the C++ runtime knows them too."""

from __future__ import annotations

import ctypes
import functools

from gwatch.errors import printable
from gwatch.inspect import demangle as installed

_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1")


@functools.lru_cache(maxsize=1)
def _runtime() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """The C++ runtime and the C library whose ``free`` its answers need; None where there is none."""
    for name in _RUNTIMES:
        try:
            library = ctypes.CDLL(name)
            function = library.__cxa_demangle
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        process = ctypes.CDLL(None)
        process.free.argtypes = [ctypes.c_void_p]
        process.free.restype = None
        return library, process
    return None


@functools.lru_cache(maxsize=1 << 12)
def demangled(symbol: str) -> str:
    """The C++ spelling of a mangled name, ``symbol`` itself when it is not mangled."""
    if installed.available() or not symbol.startswith("_Z"):
        return installed.demangle(symbol)
    found = _runtime()
    if found is None:
        return printable(symbol)
    library, process = found
    status = ctypes.c_int()
    address = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address:
        return printable(symbol)
    try:
        return printable(ctypes.string_at(address).decode(errors="replace"))
    finally:
        process.free(address)
