"""The names under which programs switch gwatch's interception on and off: two lines before a module loads.

import gwatch.libpygwatch
gwatch.libpygwatch.init_cupti_hooks()
"""

from __future__ import annotations

from gwatch.cuda.capture import hooks

_held = False


def init_cupti_hooks() -> None:
    """See every module that loads from now on; a second call does nothing.

    Costs nothing per launch (launches are watched only while a trace runs). Call it before importing the
    package, or making the call, that loads the kernels to be traced. Raises ToolError ``[cupti-missing]``,
    ``[cupti-held]`` (naming who holds CUPTI) or ``[cupti-failed]``.
    """
    global _held
    if not _held:
        hooks.acquire()
        _held = True


def shutdown_capsule() -> None:
    """Give CUPTI back; what was seen loading stays known. Without a preceding init nothing happens."""
    global _held
    if _held:
        _held = False
        hooks.release()


def hooks_installed() -> bool:
    """Whether this process holds CUPTI's subscription through gwatch."""
    return hooks.installed
