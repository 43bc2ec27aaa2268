"""Check any cubin, patched by whomever: hazards of its code, and everything that points into it. No GPU."""

from gwatch.check.findings import Finding, KernelCheck
from gwatch.check.kernel import check_cubin, check_kernel

__all__ = ["Finding", "KernelCheck", "check_cubin", "check_kernel"]
