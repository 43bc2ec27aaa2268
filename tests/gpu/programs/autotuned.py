"""A Triton matrix product with autotuning, launched once; prints the configuration chosen and a digest."""

import sys

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"M": m, "N": 64, "K": 32}, num_warps=w, num_stages=3)
    for m in (32, 64, 128)
    for w in (4, 8)
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
size = 512
a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty(size, size, device="cuda")
product[lambda meta: (size // meta["M"], size // meta["N"])](a, b, c, size)
torch.cuda.synchronize()
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                c.view(torch.int32).sum().item(),
                bool(torch.allclose(c, (a @ b).float(), atol=0.5)),
            ),
        )
    )
    + "\n"
)
