"""Scope markers for TileLang kernels.

    import gwatch.cuda.trace.tilelang as gw_trace

    @T.prim_func
    def kernel(...):
        with T.Kernel(...):
            gw_trace.scope_start(1)
            ...
            gw_trace.scope_end(1)

Ids are integers, 0 to 2047, one per region; :func:`get_scope_id` makes one of a name. A marker is one instruction.
Importing this module imports nothing of TileLang: before or after it, both work.
"""

from __future__ import annotations

from typing import Any

from gwatch.cuda.xtrace.markers import MAX_ID, checked_id, marker_ptx
from gwatch.errors import ToolError

__all__ = ["get_scope_id", "scope_end", "scope_start"]

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def scope_start(scope_id: Any) -> Any:
    """The region ``scope_id`` begins here. Raises SiteError ``[scope-id]``, ToolError ``[dsl-missing]``."""
    return _mark(scope_id, False)


def scope_end(scope_id: Any) -> Any:
    """The region ``scope_id`` ends here. Raises SiteError ``[scope-id]``, ToolError ``[dsl-missing]``."""
    return _mark(scope_id, True)


def get_scope_id(tag: str) -> int:
    """An id from a name: its 32-bit FNV-1a hash, folded into the range of ids. Two names may meet; a trace then says
    ``[scope-id-twice]`` where line information shows it."""
    value = _FNV_OFFSET
    for byte in tag.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return (value ^ value >> 11 ^ value >> 22) & MAX_ID


def _mark(scope_id: Any, end: bool) -> Any:
    text = marker_ptx(checked_id(getattr(scope_id, "value", scope_id)), end=end)
    try:
        import tilelang.language
    except ImportError as error:
        raise ToolError(
            "dsl-missing", f"TileLang is not installed here ({error})", "pip install tilelang"
        ) from None
    # An external call is printed as NAME(0) on a line of its own: this name makes it an inline assembly that no
    # memory access may pass, and needs no header.
    return tilelang.language.call_extern("handle", f'asm volatile("{text}" ::: "memory"); (void)', 0)
