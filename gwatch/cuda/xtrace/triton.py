"""Scope markers for Triton kernels under the newer import path; see :mod:`gwatch.cuda.trace.triton`."""

from gwatch.cuda.trace.triton import scope_end, scope_start

__all__ = ["scope_end", "scope_start"]
