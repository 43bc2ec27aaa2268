"""A rank of a distributed program, on a GPU of its own: softmax and an all-reduce. Started by torchrun."""

import os
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.full((256, 512), float(rank + 1), device="cuda")
for _ in range(4):
    y = torch.softmax(x, dim=1) * (rank + 1)
    dist.all_reduce(y)
torch.cuda.synchronize()
sys.stdout.write(f"digest {float(y.sum()):.6f}\n")
sys.stdout.flush()
dist.destroy_process_group()
