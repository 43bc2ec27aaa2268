"""Patched code in a context: load it, give it a ring, arm and disarm it, read the ring back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gwatch.cuda.driver import Driver
from gwatch.errors import LaunchError, TraceError
from gwatch.rewrite.ring import RingLayout, RingPlace
from gwatch.rewrite.sitemap import SiteMap


class Ring:
    """Device memory for the records of one launch, in the current context."""

    def __init__(self, driver: Driver, layout: RingLayout, ctas: npt.NDArray[Any] | None = None) -> None:
        """``ctas``: linear ids of the CTAs recorded, for a layout that samples; default evenly spread.

        Raises LaunchError ``[cuda-error]`` when the device has not that much memory left.
        """
        self._driver = driver
        self.layout = layout
        self._table = layout.table(ctas).tobytes() if layout.sampled else b""
        self._address, self.place = self._allocate()

    def _allocate(self) -> tuple[int, RingPlace]:
        # Almost every allocation of the bare size lies inside one 4 GiB window; the double size always has
        # room for one that does.
        small = self.layout.total_bytes + self.layout.format.alignment
        for size in (small, self.layout.allocation_bytes):
            address = self._driver.allocate(size)
            try:
                return address, self.layout.place(address, size)
            except TraceError:
                self._driver.free(address)
        raise TraceError("ring-window", f"no placement for {self.layout.total_bytes} bytes of ring")

    def clear(self, stream: int | None = None) -> None:
        """Zero records and headers and write the CTA table; the decoder relies on it before every launch.

        ``stream``: do it there and wait for that stream alone.
        """
        self._driver.zero(self.place.ring, self.layout.data_bytes, stream)
        if self._table:
            self._driver.write(self.place.table, self._table, stream)

    def read(self, stream: int | None = None) -> npt.NDArray[np.uint8]:
        """Records and headers, (data_bytes,) uint8. The launch must have finished, unless it is being looked
        at through a ``stream`` of its own while it runs."""
        return np.frombuffer(self._driver.read(self.place.ring, self.layout.data_bytes, stream), np.uint8)

    def free(self) -> None:
        """Give the memory back; no armed kernel may still run."""
        if self._address:
            address, self._address = self._address, 0
            self._driver.free(address)


class PatchedKernel:
    """A patched cubin loaded once; its descriptor decides whether and where it records.

    The library stays loaded for the life of the process: a graph captured while it was in place names its
    kernel, and runs the untouched copy of the code once it is disarmed.
    """

    def __init__(self, driver: Driver, image: bytes, site_map: SiteMap) -> None:
        """Loads ``image`` and looks the descriptor up in the current context.

        Raises LaunchError ``[cuda-error]`` or ``[descriptor-missing]``.
        """
        self._driver = driver
        self.site_map = site_map
        self.library = driver.load_library(image)
        self.kernel = driver.library_kernel(self.library, site_map.kernel)
        # Asking for the function makes the driver load the code now instead of inside the first launch.
        self.function = driver.kernel_function(self.kernel)
        found = driver.library_global(self.library, site_map.descriptor_symbol)
        if found is None:
            raise LaunchError(
                "descriptor-missing",
                f"the driver does not find {site_map.descriptor_symbol} in the patched cubin",
                "rewrite the cubin again with this version of gwatch",
            )
        self.descriptor = found[0]

    @property
    def constant_bank(self) -> int:
        """Device address at which this module's user constants start."""
        return self.descriptor - self.site_map.descriptor_offset

    def arm(self, ring: Ring, stream: int | None = None) -> None:
        """Record into ``ring`` from the next launch on; ``stream`` as for :meth:`Ring.clear`."""
        self._driver.write(self.descriptor, ring.layout.descriptor(ring.place), stream)

    def disarm(self, stream: int | None = None) -> None:
        """Run the untouched code from the next launch on; needs no ring. ``stream`` as for :meth:`Ring.clear`."""
        self._driver.write(self.descriptor, bytes(8), stream)
