"""Launch a cubin's kernel from Python, patched or not, and collect what it recorded."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, SupportsIndex

import numpy as np

from gwatch.cuda.arguments import Arguments
from gwatch.cuda.arming import PatchedKernel, Ring
from gwatch.cuda.binary.constants import read_note
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.cuda.capture import hooks
from gwatch.cuda.driver import MAX_DYNAMIC_SHARED, driver
from gwatch.cuda.xtrace.decode import Decoded, decode_ring
from gwatch.errors import KernelError, LaunchError, TraceError
from gwatch.rewrite.ring import Dim3, RingLayout
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap

DEFAULT_RING_BYTES = 1 << 30


class Launcher:
    """One kernel of one cubin, loaded into a device's primary context.

    ``cubin`` is a path, bytes or a :class:`Cubin`; of a patched one the site map inside it says what to
    trace, a plain one just runs. Use it as a context manager, or call :meth:`close`.

    Raises ToolError (``[no-driver]``, ``[no-gpu]``, ``[cuda-python-missing]``), CubinError for a bad file,
    KernelError ``[kernel-ambiguous]`` when ``kernel`` is needed, LaunchError when the driver refuses it.
    """

    def __init__(
        self,
        cubin: str | os.PathLike[str] | bytes | Cubin,
        kernel: str | None = None,
        *,
        device: int = 0,
        ring_bytes: int = DEFAULT_RING_BYTES,
    ) -> None:
        if isinstance(cubin, Cubin):
            parsed = cubin
        else:
            parsed = Cubin.from_bytes(cubin) if isinstance(cubin, bytes) else Cubin.from_file(cubin)
        note = read_note(parsed.data, NOTE_NAME)
        self.site_map = None if note is None else SiteMap.from_bytes(note)
        self.kernel_def = self._choose(parsed, kernel)
        self.device, self._budget = device, ring_bytes
        self._driver = driver()
        self._context = self._driver.use_device(device)
        self._patched: PatchedKernel | None = None
        if self.site_map is not None and self.site_map.kernel == self.kernel_def.name:
            self._patched = PatchedKernel(self._driver, parsed.data, self.site_map)
            self.handle = self._patched.kernel
        else:
            library = self._driver.load_library(parsed.data)
            # do_trace may be pointed at this launcher: it must find the code, hooks or no hooks.
            hooks.images.loaded(library, parsed.data)
            self.handle = self._driver.library_kernel(library, self.kernel_def.name)
        self._ring: Ring | None = None
        self._events: tuple[int, int] | None = None

    def _choose(self, cubin: Cubin, kernel: str | None) -> KernelDef:
        if kernel is not None:
            return cubin.get_kerneldef_by_name(kernel)
        if self.site_map is not None:
            return cubin.get_kerneldef_by_name(self.site_map.kernel)
        names = list(cubin.get_map_kernel_def())
        if len(names) != 1:
            raise KernelError(
                "kernel-ambiguous",
                f"{cubin.name} holds {len(names)} kernels: {', '.join(names[:8])}",
                "name one",
            )
        return cubin.get_kerneldef_by_name(names[0])

    def launch(
        self,
        grid: SupportsIndex | Sequence[SupportsIndex],
        block: SupportsIndex | Sequence[SupportsIndex],
        args: Sequence[Any] = (),
        *,
        shared: int = 0,
        stream: int = 0,
        cluster: Sequence[SupportsIndex] | None = None,
        cooperative: bool = False,
        trace: bool = True,
        cta: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Launch; ``grid`` and ``cluster`` in CTAs, ``block`` in threads, ``shared`` dynamic bytes per CTA.

        ``args`` are numbers, bytes, or arrays of numpy (copied to the device and back, which waits for the
        kernel), CuPy or torch. A patched kernel is armed with a fresh ring unless ``trace`` is false; ``cta``
        names the CTAs (x, y, z) to record, default all, or as many as the ring budget holds, evenly spread.
        """
        grid3, block3 = dim3(grid), dim3(block)
        self._driver.use_device(self.device)
        if shared > self._dynamic_shared():
            self._driver.set_kernel_attribute(self.handle, MAX_DYNAMIC_SHARED, shared, self.device)
        sizes = [parameter.size for parameter in self.kernel_def.params]
        packed = Arguments(self._driver, self.kernel_def.name, args, sizes)
        try:
            if self._patched is not None:
                self._drop_ring()
                if trace:
                    self._arm(self._patched, grid3, block3, cta)
            start, end = self._record_events()
            self._driver.record_event(start, stream)
            self._driver.launch(
                self.handle,
                grid3,
                block3,
                packed.address,
                shared=shared,
                stream=stream,
                cluster=None if cluster is None else dim3(cluster),
                cooperative=cooperative,
            )
            self._driver.record_event(end, stream)
            if packed.copies:
                self._driver.synchronize(stream)
        except BaseException:
            packed.discard()
            raise
        packed.finish()

    def _dynamic_shared(self) -> int:
        limit = self._driver.kernel_attribute(self.handle, MAX_DYNAMIC_SHARED, self.device)
        return 0 if limit is None else limit

    def _arm(
        self, patched: PatchedKernel, grid: Dim3, block: Dim3, cta: Sequence[Sequence[int]] | None
    ) -> None:
        layout, chosen = ring_layout(patched.site_map, grid, block, self._budget, cta)
        self._ring = Ring(self._driver, layout, chosen)
        self._ring.clear()
        patched.arm(self._ring)

    def _record_events(self) -> tuple[int, int]:
        if self._events is None:
            self._events = (self._driver.create_event(), self._driver.create_event())
        return self._events

    def collect(self) -> Decoded:
        """Wait for the last launch and decode its ring.

        Raises TraceError ``[not-armed]`` when nothing was launched with a ring, and what ``decode_ring``
        raises for a ring that cannot be trusted.
        """
        if self._ring is None or self.site_map is None:
            raise TraceError(
                "not-armed",
                f"no traced launch of {self.kernel_def.name} to collect",
                "launch a patched cubin with trace=True first",
            )
        self._driver.use_device(self.device)
        self._driver.synchronize()
        duration = self.duration_ms()
        return decode_ring(
            self._ring.read(),
            self._ring.layout,
            self.site_map,
            duration_ns=None if duration is None else duration * 1e6,
        )

    def duration_ms(self) -> float | None:
        """Milliseconds between events around the last launch (launch overhead included), None before one."""
        if self._events is None:
            return None
        self._driver.synchronize()
        return self._driver.elapsed_ms(*self._events)

    def _drop_ring(self) -> None:
        if self._ring is not None and self._patched is not None:
            self._driver.synchronize()
            self._patched.disarm()
            ring, self._ring = self._ring, None
            ring.free()

    def close(self) -> None:
        """Disarm and free the ring and events; the code stays loaded."""
        self._driver.use_device(self.device)
        self._drop_ring()
        if self._events is not None:
            events, self._events = self._events, None
            for event in events:
                self._driver.destroy_event(event)

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LaunchError:
            if error is None:
                raise  # otherwise the failed launch itself is the better message


def dim3(value: SupportsIndex | Sequence[SupportsIndex]) -> Dim3:
    """One to three positive ints as (x, y, z). Raises LaunchError ``[launch-geometry]``."""
    try:
        parts = [operator.index(part) for part in (value if isinstance(value, Sequence) else (value,))]
    except TypeError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise LaunchError("launch-geometry", f"{value!r} is no size", "give one to three positive ints")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def ring_layout(
    site_map: SiteMap, grid: Dim3, block: Dim3, budget: int, cta: Sequence[Sequence[int]] | None = None
) -> tuple[RingLayout, np.ndarray[Any, np.dtype[np.int64]] | None]:
    """The ring of a launch: every CTA that fits ``budget`` bytes, or the CTAs (x, y, z) of ``cta``.

    Returns the layout and, for ``cta``, their linear ids. Raises TraceError ``[cta-outside]``,
    ``[ring-too-large]``.
    """
    if cta is None:
        return RingLayout.for_launch(site_map.format, grid, block, budget), None
    wanted: set[int] = set()
    for coordinates in cta:
        x, y, z = (*coordinates, 0, 0)[:3]
        if not (0 <= x < grid[0] and 0 <= y < grid[1] and 0 <= z < grid[2]):
            raise TraceError("cta-outside", f"CTA {tuple(coordinates)} is not in the grid {grid}")
        wanted.add(x + grid[0] * (y + grid[1] * z))
    if not wanted:
        raise TraceError("cta-outside", "cta names no CTA", "name at least one, or leave it out")
    layout = RingLayout(site_map.format, grid, block, len(wanted))
    if layout.total_bytes > budget:
        raise TraceError(
            "ring-too-large",
            f"{len(wanted)} CTAs need {layout.total_bytes} bytes, the budget is {budget}",
            "name fewer CTAs, lower the depth or raise ring_bytes",
        )
    return layout, np.array(sorted(wanted), np.int64)
