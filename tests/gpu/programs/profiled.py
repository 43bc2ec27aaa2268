"""Softmax under torch.profiler; prints how many kernels the profiler saw on the GPU."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(1)
x = torch.randn(512, 1024, device="cuda")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
    for _ in range(5):
        y = torch.softmax(x, dim=1)
    torch.cuda.synchronize()
seen = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events())
sys.stdout.write(f"digest {y.view(torch.int32).sum().item()}\nseen {seen}\n")
