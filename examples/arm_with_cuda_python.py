#!/usr/bin/env python3
"""Arm a patched cubin from a loader of your own, with cuda-python alone, and save its ring for ``gwatch decode``.

gwatch rewrite examples/cuda/trace/matmul_sm90.cubin --kernel matmul --site op:BAR.SYNC@first --clock sm -o out.cubin
python3 examples/arm_with_cuda_python.py out.cubin ring.bin
gwatch decode ring.bin --cubin out.cubin
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

try:
    from cuda.bindings import driver as cuda
except ImportError:
    raise SystemExit("this example needs cuda-python: pip install 'gwatch-sass[gpu]'") from None

from gwatch.cuda.binary import Cubin
from gwatch.cuda.binary.constants import read_note
from gwatch.rewrite.ring import RingLayout
from gwatch.rewrite.ringfile import ring_file_prefix
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap


def ok(result):  # type: ignore[no-untyped-def]
    """The results of a driver call that succeeded."""
    status, *values = result
    if int(status):
        raise SystemExit(f"the driver says {status.name}")
    return values[0] if len(values) == 1 else values


def main(patched: str, ring_path: str, n: int = 256) -> None:
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(ok(cuda.cuDeviceGet(0))))))
    image, grid, block = Path(patched).read_bytes(), (n // 16, n // 16, 1), (16, 16, 1)
    site_map = SiteMap.from_bytes(read_note(Cubin.from_bytes(image).data, NOTE_NAME))
    module = ok(cuda.cuModuleLoadData(image))
    kernel = ok(cuda.cuModuleGetFunction(module, site_map.kernel.encode()))
    a, b, c = (int(ok(cuda.cuMemAlloc(n * n * 4))) for _ in range(3))

    # Arming: zeroed memory for the ring, and its description copied into the cubin's descriptor symbol.
    layout = RingLayout.for_launch(site_map.format, grid, block)
    memory = int(ok(cuda.cuMemAlloc(layout.allocation_bytes)))
    place = layout.place(memory, layout.allocation_bytes)
    ok(cuda.cuMemsetD8(place.ring, 0, layout.data_bytes))
    symbol, _ = ok(cuda.cuModuleGetGlobal(module, site_map.descriptor_symbol.encode()))
    ok(cuda.cuMemcpyHtoD(symbol, layout.descriptor(place), len(layout.descriptor(place))))

    types = (None, None, None, np.int32)
    values = [np.array([v], t or np.uint64) for v, t in zip((a, b, c, n), types, strict=True)]
    pointers = np.array([v.ctypes.data for v in values], np.uint64)
    ok(cuda.cuLaunchKernel(kernel, *grid, *block, 0, 0, pointers.ctypes.data, 0))
    ok(cuda.cuCtxSynchronize())
    data = np.empty(layout.data_bytes, np.uint8)
    ok(cuda.cuMemcpyDtoH(data.ctypes.data, place.ring, layout.data_bytes))
    Path(ring_path).write_bytes(ring_file_prefix(layout, site_map=site_map) + data.tobytes())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
