"""Softmax, then an end that runs no atexit; argument: exit, TERM, HUP or KILL."""

import os
import signal
import sys

import torch

x = torch.ones(512, 1024, device="cuda")
for _ in range(4):
    y = torch.softmax(x, dim=1)
torch.cuda.synchronize()
sys.stdout.write(f"digest {float(y.sum())}\n")
sys.stdout.flush()
if sys.argv[1] == "exit":
    os._exit(0)
os.kill(os.getpid(), getattr(signal, f"SIG{sys.argv[1]}"))
signal.pause()
