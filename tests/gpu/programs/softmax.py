"""Softmax in a loop, plain PyTorch; prints a digest of the result."""

import sys

import torch

torch.manual_seed(1)
x = torch.randn(512, 1024, device="cuda")
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
    y = torch.softmax(x, dim=1)
torch.cuda.synchronize()
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                float(y.double().sum()),
                y.view(torch.int32).sum().item(),
            ),
        )
    )
    + "\n"
)
