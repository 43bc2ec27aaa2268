"""A Triton matrix product whose autotuner has one good configuration and bad ones; prints which one it took."""

import sys

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"M": 16, "N": 16, "K": 16}, num_warps=1, num_stages=1),
    triton.Config({"M": 128, "N": 128, "K": 64}, num_warps=8, num_stages=3),
    triton.Config({"M": 16, "N": 32, "K": 16}, num_warps=4, num_stages=1),
]


@triton.autotune(configs=CONFIGS, key=["size"])
@triton.jit
def product(a, b, c, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1)
    rows, columns, inner = row * M + tl.arange(0, M), column * N + tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, size, K):
        left = tl.load(a + rows[:, None] * size + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * size + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * size + columns[None, :], total)


torch.manual_seed(1)
size = 2048
a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty(size, size, device="cuda")
for _ in range(4):
    product[lambda meta: (size // meta["M"], size // meta["N"])](a, b, c, size)
torch.cuda.synchronize()
sys.stdout.write(f"digest {product.best_config} {c.view(torch.int32).sum().item()}\n")
