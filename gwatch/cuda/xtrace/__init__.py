"""Tracing at SASS sites and scope markers: ``do_trace`` on a GPU, ``SassTraceSite`` and the decoder anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gwatch.cuda.xtrace.result import TraceResult
    from gwatch.cuda.xtrace.trace import (
        capture_cubin,
        capture_kernel,
        do_trace,
        do_trace_kernel_launch_sequence,
    )
    from gwatch.rewrite.trace import SassTraceSite

__all__ = [
    "SassTraceSite",
    "TraceResult",
    "capture_cubin",
    "capture_kernel",
    "do_trace",
    "do_trace_kernel_launch_sequence",
]

_HOMES = {
    "SassTraceSite": "gwatch.rewrite.trace",
    "TraceResult": "gwatch.cuda.xtrace.result",
    "capture_cubin": "gwatch.cuda.xtrace.trace",
    "capture_kernel": "gwatch.cuda.xtrace.trace",
    "do_trace": "gwatch.cuda.xtrace.trace",
    "do_trace_kernel_launch_sequence": "gwatch.cuda.xtrace.trace",
}


def __getattr__(name: str) -> Any:
    # Decoding and reporting import this package too; they need neither the rewriter nor a driver.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
