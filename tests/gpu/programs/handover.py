"""Softmax, and then the process is handed over to this program once more."""

import os
import sys

import torch

x = torch.ones(512, 1024, device="cuda")
for _ in range(4):
    y = torch.softmax(x, dim=1)
torch.cuda.synchronize()
sys.stdout.write(f"digest {float(y.sum())} {len(sys.argv)}\n")
sys.stdout.flush()
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
