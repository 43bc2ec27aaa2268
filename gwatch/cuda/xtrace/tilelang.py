"""Scope markers for TileLang kernels under the newer import path; see :mod:`gwatch.cuda.trace.tilelang`."""

from gwatch.cuda.trace.tilelang import get_scope_id, scope_end, scope_start

__all__ = ["get_scope_id", "scope_end", "scope_start"]
