"""Who is launching: is it an autotuner trying out configurations, and which framework is it?

Read off the Python frames below the launch call, which costs some microseconds and changes nothing. An
autotuner written in C++ (cuDNN's and cuBLASLt's own search) has no frames and is not recognised; that one is
switched on can be seen, and is said.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass

# Modules whose name says that they tune; those that do it under another name are listed.
_TUNING_MODULE = re.compile(
    r"auto_?tun|(?:^|[._])tuner|torch\._inductor\.(?:runtime\.(?:triton_heuristics|coordinate_descent)"
    r"|select_algorithm|codegen\.multi_kernel|fx_passes\.pad_mm)"
)
# Functions that say it themselves, wherever they are (CuTeDSL's autotuner lives among its test helpers).
_TUNING_FUNCTION = re.compile(r"bench\w*autotun|autotun\w*bench")
# Functions of these modules that try configurations; others of the same modules launch the winner.
_TRYING = re.compile(
    r"bench|profil|measure|tun(?:e|ing)(?:_|$)|^tune|_trial|should_pad|pick_algo|check_correct"
)
_WINNER = re.compile(r"^(?:run|__call__|launch|forward|wrapper|call|precompile|choose_one)$")

_ORIGINS = (
    ("torch._inductor", "torch.compile"),
    ("triton", "Triton"),
    ("cutlass", "CuTeDSL"),
    ("tilelang", "TileLang"),
    ("cupyx", "CuPy"),
    ("cupy", "CuPy"),
    ("numba", "numba"),
    ("pycuda", "PyCUDA"),
    ("jax", "JAX"),
    ("cuda", "cuda-python"),
    ("torch", "torch"),
)
# Compiled packages leave no frame: what is imported tells, most specific first.
_LOADED = (("torch", "torch"), ("cupy", "CuPy"), ("cuda.bindings", "cuda-python"))
_SYMBOLS = (
    ("cupy_", "CuPy"),
    ("at6native", "torch"),
    ("at_cuda_detail", "torch"),
    ("kernel_cutlass_", "CuTeDSL"),
)

_MOST_CODES = 1 << 16


@dataclass(frozen=True, slots=True)
class Caller:
    """``tuning``: the launch tries out a configuration. ``modules``: those of the Python frames, innermost first,
    gwatch's own left out."""

    tuning: bool
    modules: tuple[str, ...]


def is_trial(module: str, function: str) -> bool:
    """Whether a frame of this module and function is an autotuner trying out a configuration."""
    if module == "__main__":
        return False
    if _TUNING_FUNCTION.search(function) is not None:
        return True
    if _TUNING_MODULE.search(module) is None:
        return False
    return _TRYING.search(function) is not None and _WINNER.match(function) is None


def origin_of(modules: Iterable[str], symbol: str) -> str:
    """Framework that launches kernel ``symbol``, from the modules of the frames, innermost first."""
    for mark, name in _SYMBOLS:
        if mark in symbol:
            return name
    for module in modules:
        for prefix, name in _ORIGINS:
            if module == prefix or module.startswith(prefix + "."):
                return name
    for package, name in _LOADED:
        if package in sys.modules:
            return name
    return "native"


def unseen_autotuners() -> list[str]:
    """Autotuners in C++ that this process has switched on: their trial launches look like any other."""
    found = []
    asked = getattr(getattr(sys.modules.get("torch"), "_C", None), "_get_cudnn_benchmark", None)
    if callable(asked) and asked():
        found.append("torch.backends.cudnn.benchmark")
    if os.environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        found.append("PyTorch's TunableOp")
    return found


def profiling() -> bool:
    """Whether torch.profiler is recording in this process right now."""
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", False))


class Callers:
    """Answers :class:`Caller` for the calling thread; remembers code objects, so that a deep stack costs little."""

    def __init__(self) -> None:
        self._known: dict[types.CodeType, tuple[bool, str]] = {}

    def ask(self, symbol: str) -> Caller:
        """Who launches ``symbol`` on this thread right now."""
        modules, tuning = [], False
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = self._known.get(code)
            if known is None:
                name = frame.f_globals.get("__name__")
                module = name if isinstance(name, str) else ""
                if len(self._known) > _MOST_CODES:
                    self._known.clear()
                known = self._known[code] = is_trial(module, code.co_name), module
            tuning = tuning or known[0]
            if known[1] and not known[1].startswith("gwatch."):
                modules.append(known[1])
            frame = frame.f_back
        return Caller(tuning, tuple(modules))
