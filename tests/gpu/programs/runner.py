"""An ahead-of-time compiled model: "make FILE" compiles it, "run FILE" loads the package and runs it."""

import sys

import torch

torch.manual_seed(1)
x = torch.randn(512, 256, device="cuda")


class Model(torch.nn.Module):
    def forward(self, x):
        return (torch.softmax(x * 2.0, dim=-1) + x.tanh()).sum(dim=0)


if sys.argv[1] == "make":
    exported = torch.export.export(Model().cuda(), (x,))
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[2])
else:
    run = torch._inductor.aoti_load_package(sys.argv[2])
    for _ in range(4):
        y = run(x)
    torch.cuda.synchronize()
    sys.stdout.write(f"digest {y.view(torch.int32).sum().item()}\n")
