"""Layer norm captured into a CUDA graph and replayed."""

import sys

import torch

torch.manual_seed(1)
x = torch.randn(256, 512, device="cuda")
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = torch.nn.functional.layer_norm(x, (512,))
    for _ in range(3):
        graph.replay()
torch.cuda.synchronize()
sys.stdout.write(
    " ".join(
        map(
            str,
            (
                "digest",
                y.view(torch.int32).sum().item(),
            ),
        )
    )
    + "\n"
)
