"""Threads that train, load and unload modules, capture and replay graphs, and fail, for a number of seconds.

Prints what was done, and the least host and device memory used in a part before half of the time and in one at its end
(other programs on the device come and go); results that are wrong end it.
"""

import faulthandler
import sys
import threading
import time

import torch
from cuda.bindings import driver, nvrtc
from cudadriver import call, launch

SECONDS = float(sys.argv[1])
SOURCE = b'extern "C" __global__ void fill(int* x, int v) { x[blockIdx.x * blockDim.x + threadIdx.x] = v; }'
SAMPLES = 60
stop, failures = threading.Event(), []
counts = dict.fromkeys(("steps", "loads", "replays", "errors"), 0)


def image():
    program = call("nvrtcCreateProgram", SOURCE, b"fill.cu", 0, [], [], module=nvrtc)
    arch = "-arch=sm_{}{}".format(*torch.cuda.get_device_capability()).encode()
    call("nvrtcCompileProgram", program, 1, [arch], module=nvrtc)
    data = b"\0" * call("nvrtcGetCUBINSize", program, module=nvrtc)
    call("nvrtcGetCUBIN", program, data, module=nvrtc)
    return data


def train():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
    for _ in range(20):
        net(torch.ones(32, 64, device="cuda")).square().mean().backward()
        counts["steps"] += 1
    torch.cuda.current_stream().synchronize()


def load():
    x = torch.zeros(256, device="cuda", dtype=torch.int32)
    module = call("cuModuleLoadData", IMAGE)
    launch(call("cuModuleGetFunction", module, b"fill"), (2, 1, 1), (128, 1, 1), x, 7)
    torch.cuda.current_stream().synchronize()
    assert int(x.sum()) == 7 * 256
    call("cuModuleUnload", module)
    counts["loads"] += 1


def replay():
    x, stream = torch.ones(64, 128, device="cuda"), torch.cuda.current_stream()
    torch.softmax(x, dim=1)
    stream.synchronize()
    with LOCK:  # PyTorch captures one graph at a time
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            y = torch.softmax(x, dim=1)
    for _ in range(5):
        graph.replay()
        counts["replays"] += 1
    torch.cuda.synchronize()
    assert abs(float(y.sum()) - 64) < 1e-3


def fail():
    try:
        torch.ones(4, device="cuda") @ torch.ones(5, device="cuda")
    except RuntimeError:
        counts["errors"] += 1
    module = call("cuModuleLoadData", IMAGE)
    function = call("cuModuleGetFunction", module, b"fill")
    stream = torch.cuda.current_stream().cuda_stream
    status = driver.cuLaunchKernel(function, 1, 1, 1, 4096, 1, 1, 0, stream, 0, 0)[0]  # too many threads
    assert int(status) != 0
    call("cuModuleUnload", module)
    counts["errors"] += 1
    time.sleep(0.01)


def forever(body):
    def loop():
        try:
            torch.cuda.set_device(0)
            # One for good: PyTorch hands out 32 streams in turn, so that a new one each time would soon be one
            # on which another thread captures.
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    body()
        except BaseException as error:
            failures.append(f"{body.__name__}: {error!r}")
            stop.set()

    return threading.Thread(target=loop, daemon=True)


def memory():
    with open("/proc/self/statm") as file:
        host = int(file.read().split()[1]) * 4096
    free, total = torch.cuda.mem_get_info()
    return host >> 20, (total - free) >> 20


LOCK = threading.Lock()
torch.zeros(1, device="cuda")
IMAGE = image()
faulthandler.enable()  # a crash shows every thread
faulthandler.dump_traceback_later(SECONDS + 60, exit=True)  # a deadlock shows every thread
threads = [forever(body) for body in (train, train, load, replay, fail)]
for thread in threads:
    thread.start()
samples = []
while len(samples) < SAMPLES and not stop.wait(SECONDS / SAMPLES):
    samples.append(memory())
stop.set()
for thread in threads:
    thread.join(45)
    assert not thread.is_alive(), "a thread never came back"
faulthandler.cancel_dump_traceback_later()
torch.cuda.synchronize()
assert not failures, failures
early, late = (tuple(map(min, *samples[end - SAMPLES // 5 : end])) for end in (SAMPLES // 2, SAMPLES))
sys.stdout.write(f"did {counts}\nmemory MiB {early[0]} {late[0]} {early[1]} {late[1]}\n")
