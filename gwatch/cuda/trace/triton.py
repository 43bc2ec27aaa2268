"""Scope markers for Triton kernels.

    import gwatch.cuda.trace.triton as gw_trace

    @triton.jit
    def kernel(...):
        gw_trace.scope_start(1)
        ...
        gw_trace.scope_end(1)

Ids are literals or constexprs, 0 to 2047, one per region. A marker is one instruction of every thread; ``payload``, a
32-bit scalar, costs three more. Importing this module imports nothing of Triton: before or after it, both work.
"""

from __future__ import annotations

from typing import Any

from gwatch.cuda.xtrace.markers import checked_id, marker_ptx, payload_ptx
from gwatch.errors import SiteError

__all__ = ["scope_end", "scope_start"]


def scope_start(scope_id: Any, payload: Any = None, _semantic: Any = None) -> None:
    """The region ``scope_id`` begins here. Raises SiteError ``[scope-id]``, ``[scope-payload]``."""
    _mark(scope_id, False, payload, _semantic)


def scope_end(scope_id: Any, payload: Any = None, _semantic: Any = None) -> None:
    """The region ``scope_id`` ends here. Raises SiteError ``[scope-id]``, ``[scope-payload]``."""
    _mark(scope_id, True, payload, _semantic)


# How Triton's compiler tells functions that it calls from those that it compiles.
scope_start.__triton_builtin__ = True  # type: ignore[attr-defined]
scope_end.__triton_builtin__ = True  # type: ignore[attr-defined]


def _mark(scope_id: Any, end: bool, payload: Any, semantic: Any) -> None:
    if semantic is None:
        raise SiteError(
            "scope-outside",
            "a Triton scope marker was called from Python",
            "call it inside a @triton.jit function",
        )
    from triton.language import core

    number = checked_id(getattr(scope_id, "value", scope_id))
    arguments, constraints = [], "=r"
    # An inline assembly of Triton has to have a result; this one is never used, and costs nothing.
    text = f"{marker_ptx(number, end=end)} mov.b32 $0, 0;"
    value = getattr(payload, "value", payload)
    if payload is not None:
        tensor = core.to_tensor(value, _semantic=semantic) if isinstance(value, (int, float)) else payload
        if (
            not isinstance(tensor, core.tensor)
            or tensor.type.is_block()
            or tensor.dtype.primitive_bitwidth != 32
        ):
            raise SiteError(
                "scope-payload",
                f"the payload of scope {number} is no 32-bit scalar",
                "give one int32, uint32 or float32 value, for example tl.sum(x, 0)",
            )
        arguments, constraints = [tensor], "=r,r"
        text = f"{payload_ptx(number, '$1', end=end)} mov.b32 $0, 0;"
    core.inline_asm_elementwise(
        text, constraints, arguments, core.int32, is_pure=False, pack=1, _semantic=semantic
    )
