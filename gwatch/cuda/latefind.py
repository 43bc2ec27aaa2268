"""Finding the code of a launched kernel, whether its load was seen or not.

In order: the image of the module that the handle belongs to, when its load was seen; a Triton object that
owns exactly this handle; the fat binary that the module was loaded from; images seen loading that hold the kernel; fat
binaries of the mapped libraries that name it. Kernels of closed libraries are refused before their code is looked at.
What is found is held against what the driver says about the handle; several different candidates that survive are
refused, never guessed between.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gwatch.cuda import cupti
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.fatbin import iter_fatbin_entries
from gwatch.cuda.closed import closed_file, closed_symbol, refusal
from gwatch.cuda.driver import BINARY_VERSION, NUM_REGS, Driver
from gwatch.cuda.images import ImageStore, has_kernel
from gwatch.cuda.reachable import reachable
from gwatch.errors import GWatchError, TraceError

# Only files this large can hold CUDA code worth searching; also skips thousands of tiny maps.
_SMALLEST_LIBRARY = 4096
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


@dataclass(frozen=True, slots=True)
class FoundImage:
    """The cubin of a launched kernel and where it came from."""

    data: bytes
    origin: str


@dataclass(frozen=True, slots=True)
class HandleFacts:
    """What the driver says about a launched handle; read while the launch call is in flight."""

    handle: int
    is_kernel: bool  # CUkernel (context-free) or CUfunction
    owner: int  # CUlibrary or CUmodule
    registers: int | None
    binary_version: int | None  # 90 for sm_90
    attributes: tuple[tuple[int, int], ...]  # (CUfunction_attribute, value) to copy to patched code

    @classmethod
    def read(cls, driver: Driver, handle: int, device: int, copied: tuple[int, ...]) -> HandleFacts:
        """Ask the driver; cheap queries only, so it may be called inside a callback.

        Raises TraceError ``[handle-unknown]``.
        """
        library = driver.handle_library(handle)
        module = None if library is not None else driver.handle_module(handle)
        if library is None and module is None:
            raise TraceError(
                "handle-unknown", f"the driver knows no module of the launched handle {handle:#x}"
            )

        def ask(attribute: int) -> int | None:
            if library is not None:
                return driver.kernel_attribute(handle, attribute, device)
            return driver.function_attribute(handle, attribute)

        values = tuple((key, value) for key in copied if (value := ask(key)) is not None)
        owner = library if library is not None else module
        return cls(
            handle,
            library is not None,
            owner or 0,
            ask(NUM_REGS),
            ask(BINARY_VERSION),
            values,
        )


def find_image(symbol: str, facts: HandleFacts, store: ImageStore) -> FoundImage:
    """The cubin that holds the code of a launched kernel.

    Raises TraceError ``[image-not-found]`` (saying which two lines make the load visible) or
    ``[image-ambiguous]``, UnsupportedError ``[closed-library]``.
    """
    address = store.address(facts.owner)
    library = closed_file(cupti.file_at(address)) if address else ""
    if library or closed_symbol(symbol):
        raise refusal(symbol, library)
    loaded = store.by_handle(facts.owner)
    if loaded is not None and has_kernel(loaded, symbol):
        return FoundImage(loaded, "seen at load")
    before = store.remembered(facts.owner, symbol)
    if before is not None:
        return FoundImage(*before)
    owned = _triton_image(facts.handle)
    if owned is not None and has_kernel(owned, symbol):
        store.remember(facts.owner, symbol, owned, "Triton's compiled kernel")
        return FoundImage(owned, "Triton's compiled kernel")
    sources: list[tuple[str, Callable[[], Iterable[bytes]]]] = [
        ("fat binary seen at load", lambda: store.images(facts.owner)),
        ("seen at load", lambda: store.with_kernel(symbol)),
        ("CuPy's module file or kernel cache", lambda: cupy_images(symbol)),
        ("fat binary of a mapped library", lambda: fatbin_images(symbol, facts.binary_version)),
    ]
    for origin, candidates in sources:
        fitting = [image for image in candidates() if _fits(image, symbol, facts)]
        if fitting:
            image = _only(fitting, symbol)
            store.remember(facts.owner, symbol, image, origin)
            return FoundImage(image, origin)
    closed = next(map(closed_file, closed_libraries(symbol)), None)
    if closed is not None:
        raise refusal(symbol, closed)
    problem = store.problem(facts.owner)
    if problem:
        what = f"the fat binary that {symbol} was loaded from can't be read: {problem}"
        raise TraceError("image-not-found", what, "where a package is missing, install it; else give the whole file")
    raise TraceError(
        "image-not-found",
        f"{symbol} was loaded before gwatch could see it, and no mapped library's fat binary, Triton object or "
        "CuPy cache holds it",
        "put these two lines before the import or call that loads it: `import gwatch.libpygwatch` and "
        "`gwatch.libpygwatch.init_cupti_hooks()`",
    )


def _only(images: list[bytes], symbol: str) -> bytes:
    """The image, when all candidates hold the same code for the kernel."""
    code = {Cubin.from_bytes(image).get_kerneldef_by_name(symbol).words.tobytes() for image in images}
    if len(code) > 1:
        raise TraceError(
            "image-ambiguous",
            f"{len(code)} different kernels named {symbol} were loaded and the launched one is unknown",
            "call gwatch.libpygwatch.init_cupti_hooks() before they load, so that each load is seen",
        )
    return images[0]


def _fits(image: bytes, symbol: str, facts: HandleFacts) -> bool:
    """Whether the kernel in ``image`` has the register count and architecture that the driver reports."""
    try:
        cubin = Cubin.from_bytes(image)
        kernel = cubin.get_kerneldef_by_name(symbol)
        registers = kernel.register_count
    except GWatchError:
        return False
    digits = "".join(filter(str.isdigit, cubin.arch.name))
    return facts.registers in (None, registers) and facts.binary_version in (None, int(digits))


def _triton_image(handle: int) -> bytes | None:
    """The cubin of the Triton (or Inductor) object whose function handle this is, if Triton is in use."""
    if "triton" not in sys.modules:
        return None
    # Searched by name: gwatch does not import Triton.
    for candidate in reachable({"CompiledKernel", "StaticallyLaunchedCudaKernel"}):
        if getattr(candidate, "function", None) != handle:
            continue
        assembly = getattr(candidate, "asm", None)
        image = assembly.get("cubin") if assembly is not None else getattr(candidate, "cubin_raw", None)
        if isinstance(image, bytes):
            return image
        path = getattr(candidate, "cubin_path", None)
        if path is not None:
            return _read(Path(path))
    return None


def cupy_images(symbol: str) -> Iterator[bytes]:
    """ELF images with the kernel among the files of CuPy's modules and in its kernel cache, if it is in use."""
    if "cupy" not in sys.modules:
        return
    paths = [
        Path(path)
        for candidate in reachable({"RawModule"})
        if (path := getattr(candidate, "file_path", None))
    ]
    cache = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    if cache.is_dir():
        paths += sorted(path for path in cache.iterdir() if path.suffix == ".cubin")
    for path in dict.fromkeys(paths):
        data = _read(path) or b""
        start = data.find(b"\x7fELF")  # cached files start with a checksum
        if start >= 0 and has_kernel(data, symbol):
            yield data[start:]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def fatbin_images(symbol: str, binary_version: int | None) -> Iterator[bytes]:
    """ELF members with the kernel, of the fat binaries in the libraries this process has mapped."""
    for blob in fatbin_blobs(symbol):
        for entry in iter_fatbin_entries(blob):
            if entry.kind == "elf" and binary_version in (None, entry.sm):
                image = entry.image()
                if has_kernel(image, symbol):
                    yield image


def fatbin_blobs(symbol: str) -> Iterator[bytes]:
    """Fat binaries in the mapped libraries that name the kernel, closed libraries aside.

    The host side of a library registers each kernel by its mangled name in plain text, so files without that
    text are skipped before anything is decompressed.
    """
    needle = symbol.encode() + b"\0"
    for name in dict.fromkeys(cupti.mapped_files()):
        if not closed_file(name):
            yield from _blobs(Path(name), needle)


def _blobs(path: Path, needle: bytes) -> list[bytes]:
    """The fat binaries of a library that contains ``needle``."""
    try:
        if path.stat().st_size < _SMALLEST_LIBRARY:
            return []
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            if view[:4] != b"\x7fELF" or view.find(needle) < 0:
                return []
            return [view[at : at + size] for at, size in _sections(view, _FATBIN_SECTIONS)]
    except (OSError, ValueError):
        return []  # deleted, unreadable or empty since it was mapped


def closed_libraries(symbol: str) -> Iterator[str]:
    """Closed libraries among the mapped ones that name the kernel; their code is not looked at."""
    needle = symbol.encode() + b"\0"
    for name in dict.fromkeys(cupti.mapped_files()):
        if closed_file(name):
            try:
                with open(name, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                    if view.find(needle) >= 0:
                        yield name
            except (OSError, ValueError):
                continue


def _sections(view: mmap.mmap, names: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(offset, size) of the named sections of an ELF64 file."""
    number = int.from_bytes
    table, entry = number(view[40:48], "little"), number(view[58:60], "little")
    count, strings = number(view[60:62], "little"), number(view[62:64], "little")
    if view[4] != 2 or entry < 64 or table + entry * count > len(view):
        return

    def field(index: int, at: int, size: int) -> int:
        start = table + entry * index + at
        return number(view[start : start + size], "little")

    base = field(strings, 24, 8)
    for index in range(count):
        start = base + field(index, 0, 4)
        end = view.find(b"\0", start)
        if view[start:end].decode(errors="replace") in names:
            yield field(index, 24, 8), field(index, 32, 8)
