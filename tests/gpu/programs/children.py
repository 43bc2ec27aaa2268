"""Two child processes that each run a softmax on the GPU; argument: spawn or fork (before CUDA is used)."""

import multiprocessing
import os
import sys

import torch


def work(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    x = torch.full((64, 256), float(rank), device="cuda")
    for _ in range(4):
        y = torch.softmax(x, dim=1)
    torch.cuda.synchronize()
    sys.stdout.write(
        " ".join(
            map(
                str,
                (
                    "digest",
                    rank,
                    float(y.sum()),
                ),
            )
        )
        + "\n"
    )


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(child.exitcode or 0 for child in children))
