"""Finding the PTX that a launched kernel was compiled from.

In order: what the caller names; the fat binary or PTX text that the module was loaded from; the DSL's own (Triton's
compiled object or cache, CuTe's dump folder, TileLang's exports); fat binaries of the mapped libraries. Files outlive
the kernels they were written for, so what is found there is held against the launched code.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.fatbin import iter_fatbin_entries
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.binary.ptx import PtxModule, defines
from gwatch.cuda.images import ImageStore
from gwatch.cuda.reachable import reachable
from gwatch.cuda.trace.ptxas import compile_ptx
from gwatch.cuda.trace.ptxmarkers import find_ptx_markers
from gwatch.cuda.xtrace.markers import find_markers
from gwatch.errors import GWatchError, TraceError

DSLS = ("cute", "triton", "tilelang", "")
_CUTE_LINES = (
    'put these lines before `import cutlass`: os.environ["CUTE_DSL_KEEP_PTX"] = "1"; '
    'os.environ["CUTE_DSL_DUMP_DIR"] = "/tmp/gw_cute_ptx"; os.environ["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"'
)
_CURES = {
    "cute": _CUTE_LINES,
    "triton": "keep the compiled kernel (kernel = fn[grid](...)), or set TRITON_CACHE_DIR to the cache it is in",
    "tilelang": 'export it: kernel.export_ptx("/tmp/kernel.ptx"), and pass ptx="/tmp/kernel.ptx"',
    "": 'compile with -gencode arch=compute_90a,code=[sm_90a,compute_90a], or pass ptx="kernel.ptx" '
    "(nvcc -ptx -arch=sm_90a)",
}
_SAME_CLOCK_S = 2.0
_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class FoundPtx:
    """PTX text, where it is from, and since when it is there (None: from this process's memory)."""

    text: str
    origin: str
    written: float | None = None


def find_ptx(
    cubin: Cubin,
    kernel: KernelDef,
    owner: int,
    handle: int,
    dsl: str,
    store: ImageStore,
    given: object = None,
) -> PtxModule:
    """The PTX of a launched kernel: ``cubin`` its image, ``owner`` its module, ``handle`` what was launched, ``given``
    the caller's (a path, or PTX text).

    Raises TraceError ``[dsl-unknown]``, ``[ptx-missing]`` (with the lines that make it appear), ``[ptx-stale]``,
    ``[ptx-ambiguous]``, ParseError ``[ptx-syntax]``.
    """
    if dsl not in DSLS:
        raise TraceError("dsl-unknown", f"dsl {dsl!r}", "one of " + ", ".join(map(repr, DSLS)))
    if given is not None:
        found = _given(given)
        if not defines(found.text, kernel.name):
            raise TraceError(
                "ptx-missing", f"{found.origin} does not define {kernel.name}", "name the PTX of that kernel"
            )
        module = PtxModule(found.text, found.origin)
        if not _fits(module, kernel):
            raise _other_version(found, kernel, "name the PTX of the code that ran, or leave ptx= out")
        return module
    sources: list[Callable[[], Iterator[FoundPtx]]] = [
        lambda: _container(store, owner),
        lambda: _of_dsl(dsl, kernel.name, handle),
        lambda: _libraries(kernel.name),
    ]
    for source in sources:
        texts = {item.text: item for item in source() if defines(item.text, kernel.name)}
        if texts:
            return _chosen(list(texts.values()), cubin, kernel, dsl)
    raise TraceError(
        "ptx-missing",
        f"the PTX of {kernel.name} is in no fat binary, cache or dump folder that dsl={dsl!r} names",
        _cure(dsl),
    )


def _cure(dsl: str) -> str:
    if dsl == "cute" and "cutlass" in sys.modules and not os.environ.get("CUTE_DSL_KEEP_PTX"):
        return f"cutlass was imported without CUTE_DSL_KEEP_PTX, so nothing was dumped: {_CUTE_LINES}"
    if dsl == "cute":
        return f"a kernel that comes from CuTe's disk cache is not dumped again: {_CUTE_LINES}"
    return _CURES[dsl]


def _given(given: object) -> FoundPtx:
    if isinstance(given, (str, os.PathLike)) and "\n" not in os.fspath(given):
        path = Path(os.fspath(given))
        text = _read(path)
        if text is None:
            raise TraceError("ptx-missing", f"{path} cannot be read", "name a PTX file, or pass its text")
        return FoundPtx(text, path.name)
    return FoundPtx(_text(given) if isinstance(given, bytes) else str(given), "the given PTX")


def _read(path: Path) -> str | None:
    try:
        return path.read_text() if path.stat().st_size <= _LARGEST else None
    except (OSError, UnicodeDecodeError):
        return None


def _container(store: ImageStore, owner: int) -> Iterator[FoundPtx]:
    data = store.container(owner)
    if data is None:
        return
    if data[:4] == b"\x50\xed\x55\xba":
        for entry in iter_fatbin_entries(data):
            if entry.kind == "ptx":
                yield FoundPtx(_text(entry.image()), "PTX of the loaded fat binary")
    else:
        yield FoundPtx(_text(data), "the PTX that was loaded")


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _of_dsl(dsl: str, kernel: str, handle: int) -> Iterator[FoundPtx]:
    if dsl == "triton":
        yield from _triton(kernel, handle)
    elif dsl == "cute":
        yield from _files((os.environ.get("CUTE_DSL_DUMP_DIR"), os.getcwd()))
    elif dsl == "tilelang":
        yield from _files(
            (os.environ.get("TILELANG_CACHE_PATH"), os.environ.get("TILELANG_CACHE_DIR"), os.getcwd())
        )


def _triton(kernel: str, handle: int) -> Iterator[FoundPtx]:
    if "triton" in sys.modules:
        # Searched by name: the handle says which of several kernels of one name was launched.
        for candidate in reachable({"CompiledKernel", "StaticallyLaunchedCudaKernel"}):
            if getattr(candidate, "function", None) != handle:
                continue
            text = (getattr(candidate, "asm", None) or {}).get("ptx")
            beside = getattr(candidate, "cubin_path", None)  # Inductor's: the cache's file
            if not isinstance(text, str) and beside is not None:
                text = _read(Path(beside).with_suffix(".ptx"))
            if isinstance(text, str):
                yield FoundPtx(text, "Triton's compiled kernel")
                return
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    for path in sorted(cache.glob(f"*/{kernel}.ptx")):
        text = _read(path)
        if text is not None:
            yield FoundPtx(text, path.name, path.stat().st_mtime)


def _files(folders: tuple[str | None, ...]) -> Iterator[FoundPtx]:
    for folder in dict.fromkeys(folders):
        if not folder or not Path(folder).is_dir():
            continue
        for path in sorted(Path(folder).glob("**/*.ptx" if folder != os.getcwd() else "*.ptx")):
            text = _read(path)
            if text is not None:
                yield FoundPtx(text, path.name, path.stat().st_mtime)


def _libraries(kernel: str) -> Iterator[FoundPtx]:
    from gwatch.cuda.latefind import fatbin_blobs

    for blob in fatbin_blobs(kernel):
        for entry in iter_fatbin_entries(blob):
            if entry.kind == "ptx":
                yield FoundPtx(_text(entry.image()), "PTX in a mapped library")


def _chosen(found: list[FoundPtx], cubin: Cubin, kernel: KernelDef, dsl: str) -> PtxModule:
    """The one that fits the launched code; where several do, or a file is older than this process, the one that
    compiles to exactly that code."""
    modules = [(item, PtxModule(item.text, item.origin)) for item in found]
    fitting = [(item, module) for item, module in modules if _fits(module, kernel)]
    if not fitting:
        cure = (
            f"it was written by an earlier version of the kernel: delete it and compile anew; {_CURES[dsl]}"
        )
        raise _other_version(found[0], kernel, cure)
    own = [(item, module) for item, module in fitting if module.target == cubin.arch.name]
    fitting = own or fitting  # a library may hold PTX for several architectures
    began = process_start()
    if len(fitting) == 1 and (
        fitting[0][0].written is None or fitting[0][0].written >= began - _SAME_CLOCK_S
    ):
        return fitting[0][1]
    exact = [module for _, module in fitting if _compiles_to(module, cubin, kernel)]
    if exact:
        return exact[0]
    if len(fitting) > 1:
        raise TraceError(
            "ptx-ambiguous",
            f"{len(fitting)} dumps define {kernel.name}: {', '.join(item.origin for item, _ in fitting)}",
            "empty the folder and compile anew, or name one: ptx=PATH",
        )
    raise TraceError(
        "ptx-stale",
        f"{fitting[0][0].origin} was written before this process began, and does not compile to the code that ran",
        "the kernel came from a disk cache or the dump is of an earlier version: delete the folder, switch the "
        f"disk cache off and compile anew, or name it: ptx=PATH; {_CURES[dsl]}",
    )


def _other_version(found: FoundPtx, kernel: KernelDef, cure: str) -> TraceError:
    return TraceError(
        "ptx-stale",
        f"{found.origin} defines {kernel.name} with other parameters or scope markers than the code that ran",
        cure,
    )


def _fits(module: PtxModule, kernel: KernelDef) -> bool:
    function = module.kernel(kernel.name)
    if function.parameter_bytes != [parameter.size for parameter in kernel.params]:
        return False
    try:
        written = {
            (marker.scope, marker.end) for marker in find_ptx_markers(module, function) if not marker.sentinel
        }
        kept = {(marker.scope, marker.end) for marker in find_markers(kernel)}
    except GWatchError:
        return False
    return kept <= written  # ptxas may drop code that nothing reaches, and its markers


def _compiles_to(module: PtxModule, cubin: Cubin, kernel: KernelDef) -> bool:
    try:
        data, _ = compile_ptx(module.text, cubin.arch.name, module.name)
        compiled = Cubin.from_bytes(data, module.name).get_kerneldef_by_name(kernel.name)
    except GWatchError:
        return False
    return compiled.words.tobytes() == kernel.words.tobytes()


def process_start() -> float:
    """When this process began, in seconds of the files' clock."""
    try:
        return os.stat(f"/proc/{os.getpid()}").st_ctime
    except OSError:
        return time.time() - time.process_time()
