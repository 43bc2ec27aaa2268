"""Scope markers for CuTeDSL kernels under the newer import path; see :mod:`gwatch.cuda.trace.cute`."""

from gwatch.cuda.trace.cute import scope, scope_end, scope_start

__all__ = ["scope", "scope_end", "scope_start"]
