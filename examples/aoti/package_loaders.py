"""Ways to run an AOTInductor package, each tried in a process of its own first: a loader that crashes is named, and the
next one is taken.

    python examples/aoti/package_loaders.py LOADER model.pt2 ROWS COLUMNS [--shifted]     # one attempt: 0 if it ran

PyTorch has three ways to load a package, and which of them work depends on its version and its build. The last way
needs none of them: gwatch's own Launcher runs the package's cubin with what the wrapper's source says of the launch.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gwatch.inspect.artifacts import Image, Text, open_artifact
from gwatch.inspect.triton_source import TritonKernel, TritonKernels

Runner = Callable[[Any], Any]
SECONDS = 300


def inductor(path: Path, shifted: bool) -> Runner:
    """The way that PyTorch documents."""
    import torch._inductor

    loaded: Runner = torch._inductor.aoti_load_package(str(path))
    return loaded


def single_threaded(path: Path, shifted: bool) -> Runner:
    """The loader below it, with one runner and no thread pool."""
    import torch

    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    return lambda x: loader.run([x])[0]


def container(path: Path, shifted: bool) -> Runner:
    """The wrapper library itself, unpacked; its folder stays for as long as the process does."""
    import torch

    folder = Path(tempfile.mkdtemp(prefix="aoti-"))
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    library = next(folder.rglob("*.so"))
    runner = torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1, "cuda", str(library.parent))
    return lambda x: runner.run([x])[0]


def launcher(path: Path, shifted: bool) -> Runner:
    """The package's cubin without PyTorch's loader: gwatch launches it as the wrapper would."""
    import torch

    from gwatch.cuda.launcher import Launcher

    image, kernel = launch_data(path)
    block = next(int(value) for _, value in kernel.constants if value.isdecimal())
    run = Launcher(image, kernel.name)
    scratch = [0] * (len(run.kernel_def.params) - len(kernel.arguments))  # pointers that newer compilers append

    def call(x: Any) -> Any:
        source = x.reshape(-1)[1:-15] if shifted else x
        out = torch.empty_like(source, memory_format=torch.contiguous_format)
        count = source.numel()
        threads = 32 * (kernel.num_warps or 4)
        run.launch(-(-count // block), threads, [source, out, count, *scratch], shared=kernel.shared or 0)
        torch.cuda.synchronize()
        return out

    return call


LOADERS: dict[str, Callable[[Path, bool], Runner]] = {
    "torch._inductor.aoti_load_package": inductor,
    "AOTIModelPackageLoader(run_single_threaded=True)": single_threaded,
    "AOTIModelContainerRunnerCuda": container,
    "gwatch Launcher": launcher,
}


def launch_data(path: Path) -> tuple[bytes, TritonKernel]:
    """The first cubin of a package that its wrapper describes, and the description. Raises LookupError."""
    described = TritonKernels()
    for item in open_artifact(path):
        if isinstance(item, Text):
            described.add(item)
        elif isinstance(item, Image):
            known = described.near(item.path, item.symbol)
            for kernel in known.kernels:
                if b".text." + kernel.name.encode() + b"\0" in item.data:
                    found = known.find(kernel.name, item.path, item.symbol)
                    if found is not None:
                        return item.data, found
    raise LookupError(f"the wrapper in {path} describes none of its cubins")


@dataclass(frozen=True)
class Attempt:
    """What became of one loader in a process of its own; ``problem`` is "" if it ran."""

    loader: str
    problem: str


def attempt(loader: str, command: list[str]) -> Attempt:
    """Run one loader's process to its end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Attempt(loader, f"did not end within {SECONDS} s")
    if done.returncode < 0:
        return Attempt(loader, f"crashed ({signal.Signals(-done.returncode).name})")
    last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return Attempt(loader, last if done.returncode else "")


def working_loader(
    path: Path, shape: tuple[int, int], shifted: bool, loaders: Iterable[str] = tuple(LOADERS)
) -> tuple[str, list[Attempt]]:
    """The first loader that runs the package, and those that did not. Raises RuntimeError if none does."""
    failed = []
    for loader in loaders:
        command = [sys.executable, __file__, loader, str(path), *map(str, shape), *(["--shifted"] if shifted else [])]
        tried = attempt(loader, command)
        if not tried.problem:
            return loader, failed
        failed.append(tried)
    raise RuntimeError("; ".join(f"{tried.loader}: {tried.problem}" for tried in failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("package", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("columns", type=int)
    parser.add_argument("--shifted", action="store_true", help="the model reads from its second element on")
    args = parser.parse_args()
    import torch

    x = torch.randn((args.rows, args.columns), device="cuda")
    y = LOADERS[args.loader](args.package, args.shifted)(x)
    torch.cuda.synchronize()
    expected = x.reshape(-1)[1:-15] if args.shifted else x
    if not torch.equal(expected.contiguous().view(torch.int32), y.view(torch.int32)):
        print("input and output differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
