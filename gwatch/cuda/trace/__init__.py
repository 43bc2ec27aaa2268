"""Scope markers of the DSLs, the PTX tier, and the older import path of :mod:`gwatch.cuda.xtrace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gwatch.cuda import xtrace

if TYPE_CHECKING:
    from gwatch.cuda.xtrace.result import TraceResult
    from gwatch.cuda.xtrace.trace import do_trace, do_trace_kernel_launch_sequence
    from gwatch.rewrite.trace import SassTraceSite

__all__ = ["SassTraceSite", "TraceResult", "do_trace", "do_trace_kernel_launch_sequence"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(xtrace, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
