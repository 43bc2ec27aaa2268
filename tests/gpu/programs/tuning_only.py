"""A Triton autotuner whose winner is never launched: a hook ends the program after the trials."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def product(x, y, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(y + at, tl.load(x + at) * 2)


x, y = torch.ones(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")


class Done(Exception):
    pass


def stop(arguments, exception=None):
    stop.trials += 1
    if stop.trials > 3:
        raise Done


stop.trials = 0
tuned = triton.autotune(
    configs=[triton.Config({"size": size}, num_warps=1) for size in (64, 128)], key=[], post_hook=stop
)(product)
try:
    tuned[lambda meta: ((1 << 16) // meta["size"],)](x, y)
except Done:
    torch.cuda.synchronize()
    sys.stdout.write(f"digest {float(y.sum())}\n")
