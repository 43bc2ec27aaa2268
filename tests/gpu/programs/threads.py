"""Four threads that launch softmax side by side, each on a stream and a tensor of its own."""

import sys
import threading

import torch

torch.manual_seed(1)
inputs = [torch.randn(512, 1024, device="cuda") for _ in range(4)]
torch.cuda.synchronize()
meeting, results = threading.Barrier(4), [0] * 4


def work(number: int) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        meeting.wait(60)
        outputs = [torch.softmax(inputs[number], dim=1) for _ in range(5)]
        torch.cuda.current_stream().synchronize()
    results[number] = sum(y.view(torch.int32).sum().item() for y in outputs)


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.write(f"digest {results}\n")
