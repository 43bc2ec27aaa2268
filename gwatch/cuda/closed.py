"""Kernels of NVIDIA's closed libraries, whose licences forbid to disassemble them: gwatch leaves them alone.

Whose a kernel is tells, in this order, the file that the address handed to the load call lies in (a library hands over
its own fat binary), the library that holds the only fat binary which names the kernel, and, for libraries linked into
another file, the kernel's name. Libraries whose source is open (NCCL, CUTLASS, CUB) are not among them.
"""

from __future__ import annotations

import re
from pathlib import Path

from gwatch.errors import UnsupportedError

_LIBRARY = re.compile(
    r"lib(?:cublas|cublasLt|cudnn\w*|cufft\w*|curand|cusolver\w*|cusparse\w*|cutensor\w*|custatevec|cudensitymat"
    r"|cudss\w*|nvinfer\w*|nvjpeg\w*|nvtiff|nvcomp\w*|npp\w+)\.so(?:\.[\d.]+)?"
)
_SPACES = ("cublas", "cublasLt", "cudnn", "cufft", "curand", "cusolver", "cusparse", "cutensor", "nvinfer1")
# Namespaces and types of the libraries as the mangling writes them (its length in front), and names that their
# generators make: nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT, sm80_xmma_gemm_…, ampere_sgemm_128x64_nn.
_SYMBOL = re.compile(
    "|".join(rf"(?<!\d){len(name)}{name}(?=[\dEI])" for name in _SPACES)
    + r"|\d\d(?:cublas|cudnn|cusparse|cusolver)[A-Z]\w*"
    r"|^(?:cublas|cudnn|cusparse|cusolver)\w|^nvjet_|^(?:sm\d+_)?xmma_"
    r"|^(?:maxwell|volta|turing|ampere|ada|hopper|blackwell)_\w*(?:gemm|scudnn|conv)\w*_"
)


def closed_file(path: str) -> str:
    """The file's name, if it is one of the libraries; else ""."""
    name = Path(path).name
    return name if _LIBRARY.fullmatch(name) else ""


def closed_symbol(symbol: str) -> bool:
    """Whether a kernel's mangled name is one that only the libraries' kernels have."""
    return _SYMBOL.search(symbol) is not None


def refusal(symbol: str, library: str = "") -> UnsupportedError:
    """UnsupportedError ``[closed-library]`` for a kernel; ``library``: the file it is from, where that is known."""
    where = f"belongs to {library}, a closed NVIDIA library" if library else "is named like a closed NVIDIA library's"
    return UnsupportedError(
        "closed-library",
        f"{symbol} {where}, whose licence forbids to disassemble it",
        "trace kernels that are yours or open",
    )
