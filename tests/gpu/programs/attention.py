"""Attention as one Triton kernel (softmax over the keys kept in running form), autotuned."""

import sys

import torch
import triton
import triton.language as tl

# One of them is slower by far, also on a GPU that others use: they differ in their last bits.
CONFIGS = [triton.Config({"KEYS": k}, num_warps=w, num_stages=2) for k, w in ((64, 4), (16, 1))]


@triton.autotune(configs=CONFIGS, key=["length"])
@triton.jit
def attention(q, k, v, out, length, scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr):
    head, first = tl.program_id(1) * length * WIDTH, tl.program_id(0) * ROWS
    rows, columns, keys = first + tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    mine = tl.load(q + head + rows[:, None] * WIDTH + columns[None, :])
    top = tl.full((ROWS,), -1e30, tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, length, KEYS):
        place = head + (start + keys)[:, None] * WIDTH + columns[None, :]
        score = tl.dot(mine, tl.trans(tl.load(k + place))) * scale
        highest = tl.maximum(top, tl.max(score, 1))
        share = tl.exp(score - highest[:, None])
        fade = tl.exp(top - highest)
        weight = weight * fade + tl.sum(share, 1)
        total = total * fade[:, None] + tl.dot(share.to(tl.float16), tl.load(v + place))
        top = highest
    tl.store(out + head + rows[:, None] * WIDTH + columns[None, :], (total / weight[:, None]).to(tl.float16))


torch.manual_seed(1)
heads, length, width = 8, 1024, 64
q, k, v = (torch.randn(heads, length, width, device="cuda", dtype=torch.float16) for _ in range(3))
out = torch.empty_like(q)
for _ in range(4):
    attention[(length // 64, heads)](q, k, v, out, length, width**-0.5, ROWS=64, WIDTH=width)
torch.cuda.synchronize()
close = bool(torch.allclose(out, torch.nn.functional.scaled_dot_product_attention(q, k, v), atol=2e-2))
sys.stdout.write(f"digest {close} {out.view(torch.int16).sum().item()}\n")
