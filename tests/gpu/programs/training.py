"""A small network trained for some steps: backward launches come from autograd's own threads."""

import sys

import torch

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for _ in range(6):
    optimizer.zero_grad()
    net(torch.ones(32, 64, device="cuda")).square().sum().backward()
    optimizer.step()
torch.cuda.synchronize()
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                sum(p.detach().double().sum().item() for p in net.parameters()),
            ),
        )
    )
    + "\n"
)
