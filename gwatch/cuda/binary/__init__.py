"""Containers: ELF, ``.nv.info`` attributes, cubins, kernels, line tables, and moving code inside an image."""

from __future__ import annotations

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.instruction import Instruction
from gwatch.cuda.binary.kernel import KernelDef

__all__ = ["Cubin", "Instruction", "KernelDef"]
