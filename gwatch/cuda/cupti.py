"""CUPTI's callback interface through ctypes: find the library, ask it for callback ids, hold one
subscription.

Structure layouts are those of ``cupti_callbacks.h`` and ``generated_cuda_meta.h`` of CUDA 12 and 13 (the
fields used here did not change between them). Callback ids are asked from the library by name, so no table of
numbers can go stale.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gwatch.cuda.catcher import Catcher, Caught
from gwatch.errors import ToolError

DOMAIN_DRIVER, DOMAIN_RESOURCE = 1, 3
RESOURCE_MODULE_LOADED = 6
SITE_ENTER, SITE_EXIT = 0, 1
_SUCCESS, _HELD_ELSEWHERE = 0, 39
_UNNAMED = "<not provided>"  # how CUPTI names a subscriber of its older, nameless call
_NAME_BYTES = 64  # smallest buffer that takes the name of whoever holds the subscription
_SONAMES = ("libcupti.so.13", "libcupti.so.12")

CallbackType = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
Callback = Callable[[int | None, int, int, int], None]


class CallbackData(ctypes.Structure):
    """``CUpti_CallbackData``: what an API-enter or API-exit callback is handed."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("function_name", ctypes.c_char_p),
        ("params", ctypes.c_void_p),
        ("return_value", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_uid", ctypes.c_uint32),
        ("correlation_data", ctypes.POINTER(ctypes.c_uint64)),
        ("correlation_id", ctypes.c_uint32),
    )


class ResourceData(ctypes.Structure):
    """``CUpti_ResourceData``: what a resource callback is handed."""

    _fields_ = (("context", ctypes.c_void_p), ("handle", ctypes.c_void_p), ("descriptor", ctypes.c_void_p))


class ModuleResourceData(ctypes.Structure):
    """``CUpti_ModuleResourceData``: the image of a module that was just loaded."""

    _fields_ = (("module_id", ctypes.c_uint32), ("size", ctypes.c_size_t), ("image", ctypes.c_void_p))


class _SubscriberParams(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("holder", ctypes.c_char_p),
        ("holder_size", ctypes.c_size_t),
    )


@dataclass(frozen=True, slots=True)
class CuptiCandidate:
    """One place where a CUPTI library was looked for."""

    path: str
    found: bool
    origin: str  # "already loaded", "GWATCH_CUPTI", "NVIDIA wheel", "CUDA toolkit", "loader path"


def candidates() -> list[CuptiCandidate]:
    """Every place CUPTI is looked for, best first.

    A copy that the process has already mapped (PyTorch brings one) comes first: two copies of CUPTI in one
    process would fight for the driver's single subscription.
    """
    found: list[CuptiCandidate] = []

    def add(path: str | Path, origin: str) -> None:
        if all(str(path) != other.path for other in found):
            found.append(CuptiCandidate(str(path), Path(path).is_file(), origin))

    for line in mapped_files():
        if Path(line).name.startswith("libcupti.so"):
            add(line, "already loaded")
    override = os.environ.get("GWATCH_CUPTI")
    if override:
        add(override, "GWATCH_CUPTI")
    for folder in _wheel_folders():
        for name in _SONAMES:
            for relative in ("cu13/lib", "cu12/lib", "cuda_cupti/lib"):
                if (folder / relative).is_dir():
                    add(folder / relative / name, "NVIDIA wheel")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root:
            _add_toolkit(Path(root), add)
    _add_toolkit(Path("/usr/local/cuda"), add)
    return found


def _add_toolkit(root: Path, add: Callable[[str | Path, str], None]) -> None:
    for name in _SONAMES:
        for relative in ("extras/CUPTI/lib64", "lib64", "lib"):
            add(root / relative / name, "CUDA toolkit")


def mapped_files() -> list[str]:
    """Paths of the files mapped into this process, repeats included; empty where /proc is not there."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [
        part[5]
        for part in (line.split(maxsplit=5) for line in text.splitlines())
        if len(part) == 6 and part[5].startswith("/")
    ]


def file_at(address: int) -> str:
    """Path of the file that is mapped at a host address; "" where there is none."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for part in (line.split(maxsplit=5) for line in text.splitlines()):
        first, _, last = part[0].partition("-")
        if int(first, 16) <= address < int(last, 16):
            return part[5] if len(part) == 6 and part[5].startswith("/") else ""
    return ""


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations]


class Cupti:
    """A loaded CUPTI library and at most one subscription held through it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._subscriber = ctypes.c_void_p()
        self._thunk: Any = None
        self._catcher: Catcher | None = None
        self._ids: dict[str, int] | None = None

    @property
    def version(self) -> int:
        """CUPTI's API version number (13.0 reports 130001)."""
        value = ctypes.c_uint32()
        self._check("cuptiGetVersion", self._library.cuptiGetVersion(ctypes.byref(value)))
        return value.value

    def callback_ids(self) -> dict[str, int]:
        """Driver-API callback ids by function name, as this library numbers them."""
        if self._ids is None:
            ids: dict[str, int] = {}
            name = ctypes.c_char_p()
            callback_id = 1
            while (
                self._library.cuptiGetCallbackName(DOMAIN_DRIVER, callback_id, ctypes.byref(name)) == _SUCCESS
            ):
                if name.value:
                    ids[name.value.decode()] = callback_id
                callback_id += 1
            self._ids = ids
        return self._ids

    @property
    def subscribed(self) -> bool:
        """Whether this process holds the subscription through this object."""
        return bool(self._subscriber.value)

    def subscribe(self, callback: Callback, name: str = "gwatch") -> None:
        """Take the driver's one CUPTI subscription; nothing is enabled yet.

        Raises ToolError ``[cupti-held]`` naming the holder, ``[cupti-failed]`` for any other refusal.
        """
        # One C callback per library, never freed: a thread may be inside it while another one unsubscribes.
        thunk = self._thunk = self._thunk or CallbackType(callback)
        if self._catcher is None:
            self._catcher = Catcher.make(ctypes.cast(thunk, ctypes.c_void_p).value or 0)
        entry = thunk if self._catcher is None else ctypes.c_void_p(self._catcher.address)
        holder = ctypes.create_string_buffer(_NAME_BYTES)
        if hasattr(self._library, "cuptiSubscribe_v2"):
            params = _SubscriberParams(
                ctypes.sizeof(_SubscriberParams),
                name.encode(),
                ctypes.cast(holder, ctypes.c_char_p),
                _NAME_BYTES,
            )
            status = self._library.cuptiSubscribe_v2(
                ctypes.byref(self._subscriber), entry, None, ctypes.byref(params)
            )
        else:
            status = self._library.cuptiSubscribe(ctypes.byref(self._subscriber), entry, None)
        if status == _HELD_ELSEWHERE:
            self._subscriber = ctypes.c_void_p()
            who = holder.value.decode(errors="replace") or "another tool (a profiler, debugger or sanitizer)"
            if who.endswith(_UNNAMED):
                who = "a CUPTI client that gave no name (PyTorch's profiler keeps CUPTI after it ended)"
            raise ToolError(
                "cupti-held",
                f"CUPTI's one subscription is held by {who}",
                "end that profiler, trace before it starts, or run the program without it",
            )
        self._check("cuptiSubscribe", status)

    def caught(self) -> list[Caught]:
        """Images loaded since the last call, where machine code takes them; else they come to the callback."""
        return [] if self._catcher is None else self._catcher.take()

    def enable(self, domain: int, callback_id: int, on: bool) -> None:
        """Switch one callback on or off."""
        self._check(
            "cuptiEnableCallback",
            self._library.cuptiEnableCallback(
                ctypes.c_uint32(on), self._subscriber, ctypes.c_int(domain), ctypes.c_uint32(callback_id)
            ),
        )

    def unsubscribe(self) -> None:
        """Give the subscription back; later calls do nothing."""
        if self._subscriber.value:
            subscriber, self._subscriber = self._subscriber, ctypes.c_void_p()
            self._check("cuptiUnsubscribe", self._library.cuptiUnsubscribe(subscriber))

    def _check(self, call: str, status: int) -> None:
        if status == _SUCCESS:
            return
        text = ctypes.c_char_p()
        self._library.cuptiGetResultString(status, ctypes.byref(text))
        meaning = text.value.decode(errors="replace") if text.value else "no description"
        raise ToolError(
            "cupti-failed",
            f"{call} of {self.path} failed with {status} ({meaning})",
            "gwatch doctor lists the CUPTI libraries found; its major version must suit the driver's",
        )


def need_driver() -> None:
    """Raises ToolError ``[no-driver]`` where there is no driver library to load; nothing is initialised."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ToolError(
            "no-driver",
            f"the CUDA driver library does not load ({error}), so no kernel can run here",
            "install the NVIDIA driver, or run where a GPU is; `gwatch rewrite` and `gwatch inspect` need none",
        ) from None


def load() -> Cupti:
    """Load the best CUPTI library of :func:`candidates`, else what the dynamic loader finds.

    Raises ToolError ``[cupti-missing]`` naming the places looked at.
    """
    failures: list[str] = []
    tried = candidates()
    for path in [candidate.path for candidate in tried if candidate.found] + list(_SONAMES):
        try:
            return Cupti(path)
        except OSError as error:
            failures.append(f"{path}: {error}")
    looked = ", ".join(dict.fromkeys(str(Path(candidate.path).parent) for candidate in tried))
    raise ToolError(
        "cupti-missing",
        f"no libcupti.so.13 or libcupti.so.12 loads; looked in {looked or 'no folder'} and the loader path",
        "pip install nvidia-cuda-cupti, or set CUDA_HOME or GWATCH_CUPTI",
    )
