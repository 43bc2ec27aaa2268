"""A transformer block under torch.compile, forward and backward."""

import sys

import torch

torch.manual_seed(1)
block = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True).cuda()
run = torch.compile(block)
x = torch.randn(4, 64, 128, device="cuda", requires_grad=True)
for _ in range(4):
    run(x).square().mean().backward()
torch.cuda.synchronize()
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                float(x.grad.double().abs().sum()),
            ),
        )
    )
    + "\n"
)
