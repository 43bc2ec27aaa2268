"""Everything that concerns CUDA: reading cubins needs no driver, running kernels does.

``start``, ``stop`` and ``session`` switch the interception of module loads on and off; ``Launcher`` runs a
cubin. Importing this package installs nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gwatch.cuda.launcher import Launcher

__all__ = ["Launcher", "session", "start", "stop"]


def start() -> bool:
    """Watch module loads from now on; True, also when already watching.

    Raises ToolError ``[cupti-missing]``, ``[cupti-held]`` or ``[cupti-failed]``.
    """
    from gwatch.libpygwatch import init_cupti_hooks

    init_cupti_hooks()
    return True


def stop() -> bool:
    """Stop watching and give CUPTI back; True if something was switched off."""
    from gwatch.libpygwatch import hooks_installed, shutdown_capsule

    before = hooks_installed()
    shutdown_capsule()
    return before


@contextlib.contextmanager
def session() -> Iterator[None]:
    """``start()`` for the length of a with block."""
    start()
    try:
        yield
    finally:
        stop()


def __getattr__(name: str) -> Any:
    # Launcher pulls in numpy and the decoder; `import gwatch.cuda` stays cheap without it.
    if name == "Launcher":
        from gwatch.cuda.launcher import Launcher

        return Launcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
