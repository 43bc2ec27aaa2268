"""Scope markers for CuTeDSL kernels.

    import gwatch.cuda.trace.cute as gw_trace

    @cute.kernel
    def kernel(...):
        gw_trace.scope_start(1)
        ...
        gw_trace.scope_end(1)

or ``with gw_trace.scope(1): ...`` around straight-line code. Ids are compile-time integers, 0 to 2047, one per
region. A marker is one instruction; ``payload`` (an ``Int32``, ``Uint32`` or ``Float32``) costs three more. Importing
this module imports nothing of CuTeDSL: before or after it, both work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gwatch.cuda.xtrace.markers import checked_id, marker_ptx, payload_ptx
from gwatch.errors import SiteError, ToolError

__all__ = ["scope", "scope_end", "scope_start"]


def scope_start(scope_id: Any, payload: Any = None) -> None:
    """The region ``scope_id`` begins here. Raises SiteError ``[scope-id]``, ``[scope-payload]``."""
    _mark(scope_id, False, payload)


def scope_end(scope_id: Any, payload: Any = None) -> None:
    """The region ``scope_id`` ends here. Raises SiteError ``[scope-id]``, ``[scope-payload]``."""
    _mark(scope_id, True, payload)


@contextlib.contextmanager
def scope(scope_id: Any) -> Iterator[None]:
    """The region ``scope_id`` is what the block traces."""
    _mark(scope_id, False, None)
    yield
    _mark(scope_id, True, None)


def _mark(scope_id: Any, end: bool, payload: Any) -> None:
    number = checked_id(getattr(scope_id, "value", scope_id))  # a Constexpr carries a plain int
    try:
        from cutlass._mlir.dialects import llvm
    except ImportError as error:
        raise ToolError(
            "dsl-missing", f"CuTeDSL is not installed here ({error})", "pip install nvidia-cutlass-dsl"
        ) from None
    operands, constraint, text = [], "", marker_ptx(number, end=end)
    if payload is not None:
        operands, constraint = [_value(payload)], "r"
        text = payload_ptx(number, "$0", end=end)
    llvm.inline_asm(
        None,
        operands,
        text,
        constraint,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def _value(payload: Any) -> Any:
    """The payload as an IR value of 32 bits."""
    import cutlass

    if isinstance(payload, bool) or not isinstance(
        payload, (int, cutlass.Int32, cutlass.Uint32, cutlass.Float32)
    ):
        raise SiteError(
            "scope-payload",
            f"a payload is a {type(payload).__name__}",
            "give an Int32, Uint32 or Float32 value",
        )
    if isinstance(payload, int):
        payload = cutlass.Int32(payload)
    if isinstance(payload, cutlass.Float32):
        from cutlass._mlir.dialects import arith
        from cutlass.cutlass_dsl import T

        return arith.bitcast(T.i32(), payload.ir_value())
    return payload.ir_value()
