"""An ahead-of-time compiled model: "make FILE" compiles it, "run FILE" loads the package and runs it."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/aoti"))
from package_loaders import share_cpp_library

torch.manual_seed(1)
x = torch.randn(512, 256, device="cuda")


class Model(torch.nn.Module):
    def forward(self, x):
        return (torch.softmax(x * 2.0, dim=-1) + x.tanh()).sum(dim=0)


if sys.argv[1] == "make":
    share_cpp_library(Path(sys.argv[2]).with_name("lib"))
    exported = torch.export.export(Model().cuda(), (x,))
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[2])
else:
    run = torch._inductor.aoti_load_package(sys.argv[2])
    for _ in range(4):
        y = run(x)
    torch.cuda.synchronize()
    sys.stdout.write(f"digest {y.view(torch.int32).sum().item()}\n")
