"""The warp-specialised matrix product of the examples, without its scope markers, launched through the driver.

The example's kernel copies its tensor maps from its parameters; so they must lie on 64 bytes, which the driver sees to.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/cuda/trace"))

import torch
from cuda.bindings import driver
from cudadriver import call, launch
from trace_cuda_hgmma_matmul import KERNEL, SHARED_BYTES, THREADS, Product, build, tensor_map

torch.zeros(1, device="cuda")
product = Product(1024, 1024, 1024)
with tempfile.TemporaryDirectory() as folder:
    image = build(Path(folder), marked=False).read_bytes()
kernel = call("cuModuleGetFunction", call("cuModuleLoadData", image), KERNEL.encode())
most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
call("cuFuncSetAttribute", kernel, most, SHARED_BYTES)
maps = tensor_map(product.a), tensor_map(product.b)
for _ in range(4):
    launch(
        kernel, (product.grid, 1, 1), (THREADS, 1, 1), *maps, product.c, *product.shape, shared=SHARED_BYTES
    )
torch.cuda.synchronize()
close = bool(torch.allclose(product.c, product.a @ product.b.T, rtol=1e-2, atol=0.5))
sys.stdout.write(f"digest {close} {product.c.view(torch.int16).sum().item()}\n")
