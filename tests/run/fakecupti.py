"""A CUPTI made of Python: delivers callbacks only for what was switched on, as the real one does."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gwatch.cuda import cupti
from gwatch.cuda.catcher import Caught
from gwatch.cuda.launchview import LAYOUTS

NAMES = [
    *LAYOUTS,
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuLibraryLoadData",
    "cuModuleLoad",
    "cuLibraryLoadFromFile",
    "cuModuleUnload",
    "cuLibraryUnload",
    "cuMemAlloc_v2",
]
IDS = {name: number for number, name in enumerate(NAMES, 100)}
Arguments = ctypes.Array[ctypes.c_char]


class FakeCupti:
    """One subscription; ``call`` makes a driver call."""

    path, version = "/fake/libcupti.so.13", 130001

    def __init__(self) -> None:
        self.on: set[tuple[int, int]] = set()
        self.subscribed = False
        self.callback: Any = None
        self.context = 0x77
        self.images: list[Caught] = []
        self._correlation = 0

    def callback_ids(self) -> dict[str, int]:
        return IDS

    def subscribe(self, callback: Any, name: str = "gwatch") -> None:
        self.subscribed, self.callback = True, callback

    def caught(self) -> list[Caught]:
        """Images that machine code caught; ``module_loaded`` calls Python, as on other machines."""
        taken, self.images = self.images, []
        return taken

    def unsubscribe(self) -> None:
        assert not self.on, "callbacks must be off before the subscription goes"
        self.subscribed = False

    def enable(self, domain: int, callback_id: int, on: bool) -> None:
        assert self.subscribed
        (self.on.add if on else self.on.discard)((domain, callback_id))

    def launch_callbacks(self) -> int:
        """How many launch calls are being watched."""
        return sum(
            domain == cupti.DOMAIN_DRIVER and NAMES[number - 100] in LAYOUTS for domain, number in self.on
        )

    def call(
        self,
        name: str,
        arguments: Arguments,
        symbol: bytes | None = None,
        inside: Callable[[], object] | None = None,
        status: int = 0,
    ) -> None:
        """One driver call: enter, what the driver does, exit."""
        self._correlation += 1
        correlation, result = self._correlation, ctypes.c_int(status)
        for site in (cupti.SITE_ENTER, cupti.SITE_EXIT):
            data = cupti.CallbackData(
                site=site,
                params=ctypes.addressof(arguments),
                symbol_name=symbol,
                context=self.context,
                correlation_id=correlation,
                return_value=ctypes.addressof(result),
            )
            if (cupti.DOMAIN_DRIVER, IDS[name]) in self.on:
                self.callback(None, cupti.DOMAIN_DRIVER, IDS[name], ctypes.addressof(data))
            if site == cupti.SITE_ENTER and inside is not None:
                inside()

    def module_loaded(self, image: bytes) -> None:
        """The driver loaded an image somewhere."""
        held = ctypes.create_string_buffer(image, len(image))
        module = cupti.ModuleResourceData(1, len(image), ctypes.addressof(held))
        data = cupti.ResourceData(self.context, 0, ctypes.addressof(module))
        if (cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED) in self.on:
            self.callback(None, cupti.DOMAIN_RESOURCE, cupti.RESOURCE_MODULE_LOADED, ctypes.addressof(data))


def launch_arguments(
    handle: int = 0x1234,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    stream: int = 0,
    parameters: int = 0,
) -> Arguments:
    """The argument structure of cuLaunchKernel."""
    raw = struct.pack("<Q7I4xQQQ", handle, *grid, *block, 0, stream, parameters, 0)
    return ctypes.create_string_buffer(raw, len(raw))


def load_arguments(place: ctypes.c_uint64, image: int) -> Arguments:
    """The argument structure of cuModuleLoadData, and the first two fields of cuLibraryLoadData."""
    raw = struct.pack("<QQ", ctypes.addressof(place), image)
    return ctypes.create_string_buffer(raw, len(raw))
