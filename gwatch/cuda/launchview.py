"""What a launch call holds: the argument structures of the driver's launch and graph-node calls, read in
place.

Offsets are those of ``generated_cuda_meta.h`` and ``cuda.h`` (CUDA 12 and 13 agree on them). A
:class:`LaunchView` is valid only inside the callback that made it; :meth:`LaunchView.record` gives the
lasting copy.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

Dim3 = tuple[int, int, int]

_ATTRIBUTE_BYTES = 72  # CUlaunchAttribute: id, padding, 64-byte value
_ATTRIBUTE_CLUSTER = 4
_EXTRA_END, _EXTRA_POINTER, _EXTRA_SIZE = 0, 1, 2
_NODE_TYPE_KERNEL = 0
_STREAM_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one API call keeps its launch description.

    ``form``: "direct" (arguments in the structure itself), "config" (CUlaunchConfig pointer), "node" (pointer
    to CUDA_KERNEL_NODE_PARAMS at ``pointer``, ``size`` bytes) or "generic" (pointer to CUgraphNodeParams).
    """

    form: str
    pointer: int = 0
    size: int = 0
    extra: bool = True
    per_thread: bool = False  # stream 0 means the calling thread's own default stream


_NODE_V1, _NODE_V2, _NODE_GENERIC = 56, 72, 256
LAYOUTS = {
    "cuLaunchKernel": Layout("direct"),
    "cuLaunchKernel_ptsz": Layout("direct", per_thread=True),
    "cuLaunchCooperativeKernel": Layout("direct", extra=False),
    "cuLaunchCooperativeKernel_ptsz": Layout("direct", extra=False, per_thread=True),
    "cuLaunchKernelEx": Layout("config"),
    "cuLaunchKernelEx_ptsz": Layout("config", per_thread=True),
    "cuGraphAddKernelNode": Layout("node", 32, _NODE_V1),
    "cuGraphAddKernelNode_v2": Layout("node", 32, _NODE_V2),
    "cuGraphKernelNodeSetParams": Layout("node", 8, _NODE_V1),
    "cuGraphKernelNodeSetParams_v2": Layout("node", 8, _NODE_V2),
    "cuGraphExecKernelNodeSetParams": Layout("node", 16, _NODE_V1),
    "cuGraphExecKernelNodeSetParams_v2": Layout("node", 16, _NODE_V2),
    "cuGraphAddNode": Layout("generic", 32, _NODE_GENERIC),
    "cuGraphAddNode_v2": Layout("generic", 40, _NODE_GENERIC),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One recorded launch; dimensions in CTAs and threads, ``shared_bytes`` dynamic shared memory of a
    CTA.
    """

    symbol: str
    api: str
    grid: Dim3
    block: Dim3
    cluster: Dim3 | None
    shared_bytes: int
    stream: int
    handle: int  # as the program passed it: CUfunction or CUkernel
    context: int
    thread: int
    attributes: tuple[int, ...]  # ids of the launch attributes
    ordinal: int  # among the matching launches of one pass
    parameters: bytes | None = None  # packed as in the kernel's parameter space, when its layout was known

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def ctas(self) -> int:
        """CTAs of the launch."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def graph_node(self) -> bool:
        """Whether this call adds or edits a graph node instead of launching."""
        return self.api.startswith("cuGraph")


@dataclass(frozen=True, slots=True)
class Replacement:
    """The code that a launch is to run instead."""

    kernel: int  # CUkernel, valid in every context
    function: int  # its CUfunction in the launch's context, which is what graph nodes take


def _u64(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


class LaunchView:
    """A launch call in flight. Reading it never calls the driver."""

    __slots__ = (
        "_arguments",
        "_copy",
        "_description",
        "_dims",
        "_layout",
        "_saved",
        "_thread",
        "api",
        "context",
        "symbol",
    )

    def __init__(self, api: str, arguments: int, context: int, symbol: str) -> None:
        self.api, self.context, self.symbol = api, context, symbol
        self._layout = LAYOUTS[api]
        self._arguments = arguments
        self._saved: tuple[int, int] | None = None  # (address, original 8 bytes) while redirected
        self._copy: ctypes.Array[ctypes.c_char] | None = None
        self._thread = threading.get_ident()
        form = self._layout.form
        if form == "direct":
            self._description = arguments
            self._dims = arguments + 8
        elif form == "config":
            self._description = self._dims = _u64(arguments)
        else:
            node = _u64(arguments + self._layout.pointer)
            self._description = node + 16 if form == "generic" else node
            self._dims = self._description + 8

    @staticmethod
    def is_kernel(api: str, arguments: int) -> bool:
        """Whether the call is about a kernel at all (``cuGraphAddNode`` adds nodes of every kind)."""
        layout = LAYOUTS[api]
        if layout.form != "generic":
            return True
        node = _u64(arguments + layout.pointer)
        return node != 0 and ctypes.c_int.from_address(node).value == _NODE_TYPE_KERNEL

    @property
    def handle(self) -> int:
        """The CUfunction or CUkernel that the program launches."""
        if self._layout.form == "config":
            return _u64(self._arguments + 8)
        function = _u64(self._description)
        if not function and self._layout.size > _NODE_V1:
            return _u64(self._description + 56)  # the CUkernel field, used when func is NULL
        return function

    def dimensions(self) -> tuple[Dim3, Dim3, int]:
        """(grid, block, dynamic shared bytes)."""
        gx, gy, gz, bx, by, bz, shared = struct.unpack("<7I", ctypes.string_at(self._dims, 28))
        return (gx, gy, gz), (bx, by, bz), shared

    @property
    def stream(self) -> int:
        """Stream handle with the calling thread's default stream made explicit; 0 for graph nodes."""
        form = self._layout.form
        if form in ("node", "generic"):
            return 0
        stream = _u64(self._description + (32 if form == "config" else 40))
        return _STREAM_PER_THREAD if self._layout.per_thread and stream == 0 else stream

    def attributes(self) -> list[tuple[int, bytes]]:
        """(id, 64-byte value) of each launch attribute."""
        if self._layout.form != "config":
            return []
        first, count = (
            _u64(self._description + 40),
            ctypes.c_uint32.from_address(self._description + 48).value,
        )
        raw = ctypes.string_at(first, count * _ATTRIBUTE_BYTES) if first and count else b""
        return [
            (struct.unpack_from("<I", raw, at)[0], raw[at + 8 : at + _ATTRIBUTE_BYTES])
            for at in range(0, len(raw), _ATTRIBUTE_BYTES)
        ]

    def parameters(self, layout: Sequence[tuple[int, int]]) -> bytes | None:
        """Parameter bytes packed by ``layout``, (offset, size) per parameter; None when the call passes
        none.
        """
        total = max((offset + size for offset, size in layout), default=0)
        arrays = {"direct": self._arguments + 48, "config": self._arguments + 16}.get(
            self._layout.form, self._description + 40
        )
        pointers = _u64(arrays)
        if pointers:
            packed = bytearray(total)
            for index, (offset, size) in enumerate(layout):
                packed[offset : offset + size] = ctypes.string_at(_u64(pointers + 8 * index), size)
            return bytes(packed)
        extra = _u64(arrays + 8) if self._layout.extra else 0
        if not extra:
            return None if layout else b""
        buffer = size_at = at = 0
        while (key := _u64(extra + at)) != _EXTRA_END:
            buffer = _u64(extra + at + 8) if key == _EXTRA_POINTER else buffer
            size_at = _u64(extra + at + 8) if key == _EXTRA_SIZE else size_at
            at += 16
        if not buffer or not size_at:
            return None
        return ctypes.string_at(buffer, min(_u64(size_at), total)).ljust(total, b"\0")

    def record(self, ordinal: int, layout: Sequence[tuple[int, int]] | None = None) -> Launch:
        """The lasting copy of this launch; ``layout`` as for :meth:`parameters`."""
        grid, block, shared = self.dimensions()
        attributes = self.attributes()
        cluster = next(
            (struct.unpack_from("<3I", value) for key, value in attributes if key == _ATTRIBUTE_CLUSTER), None
        )
        return Launch(
            self.symbol,
            self.api,
            grid,
            block,
            cluster,
            shared,
            self.stream,
            self.handle,
            self.context,
            self._thread,
            tuple(key for key, _ in attributes),
            ordinal,
            None if layout is None else self.parameters(layout),
        )

    def redirect(self, to: Replacement) -> None:
        """Make the call run other code; the program's own structures are not written to."""
        form = self._layout.form
        if form in ("direct", "config"):
            place = self._arguments + (8 if form == "config" else 0)
            value = to.kernel
        else:
            place = self._arguments + self._layout.pointer
            node = _u64(place)
            self._copy = ctypes.create_string_buffer(
                ctypes.string_at(node, self._layout.size), self._layout.size
            )
            at = 16 if form == "generic" else 0
            struct.pack_into("<Q", self._copy, at, to.function)
            value = ctypes.addressof(self._copy)
        self._saved = (place, _u64(place))
        ctypes.c_uint64.from_address(place).value = value

    def again(self, function: int) -> tuple[int, ...] | None:
        """Arguments, in the driver's order and each as an integer, that make this same launch with other code
        (a CUkernel); None for calls that launch nothing."""
        at = self._arguments
        if self._layout.form == "config":
            return _u64(at), function, _u64(at + 16), _u64(at + 24)
        if self._layout.form != "direct":
            return None
        grid, block, shared = self.dimensions()
        tail = (_u64(at + 48), _u64(at + 56)) if self._layout.extra else (_u64(at + 48),)
        return function, *grid, *block, shared, _u64(at + 40), *tail

    def restore(self) -> None:
        """Undo :meth:`redirect`; called on the way out of the call."""
        if self._saved is not None:
            place, value = self._saved
            ctypes.c_uint64.from_address(place).value = value
            self._saved = self._copy = None
