"""gwatch: open any NVIDIA cubin, understand it, insert timestamps at any SASS instruction, see what happened.

Importing this package is cheap and touches no driver; every layer is imported by name when it is needed.
"""

from __future__ import annotations

from pathlib import Path

from gwatch.errors import GWatchError

__version__ = "0.1.0"
__all__ = ["GWatchError", "__version__", "get_include"]


def get_include() -> str:
    """The folder for nvcc's ``-I``: ``#include <gwatch/cuda/trace.hpp>`` finds the scope markers there."""
    return str(Path(__file__).resolve().parent / "include")
