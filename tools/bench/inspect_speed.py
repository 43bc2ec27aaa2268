#!/usr/bin/env python3
"""How fast `gwatch inspect` is beside cuobjdump, on the same files in one run.

    python tools/bench/inspect_speed.py [CUBIN …] [--repeat 3]       # default: the open corpus's sm_90 cubins

Two questions, each answered in CPU seconds (user + system, best of the repeats, so that other work on the machine
counts little) for whole processes, start-up included, and for gwatch also without it (as a library):

* listings: `gwatch inspect --sass` against `cuobjdump -sass`; the bar is 5 times faster, with all files in one gwatch
  process (cuobjdump takes one file a process and starts in no time; gwatch pays Python's and numpy's start-up);
* facts (registers, memory, mix, loops, occupancy): `gwatch inspect --json` against the listing one would otherwise
  count in; the bar is 20 times faster than that listing, with all files in one gwatch process (which pays Python's and
  numpy's start-up and reads the tables' patterns for the first time) and as a library. `gwatch inspect --resources`
  says what `cuobjdump -res-usage` does, a program that reads no code and ends within milliseconds, which starting
  Python alone does not.

Every listing compared is first checked to be the same text. Exit codes: 0 both bars met, 1 not, 2 cuobjdump missing.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

LISTING_BAR, FACTS_BAR = 5.0, 20.0
IMPORTS = "import gwatch.cli.main, gwatch.cli.inspect, gwatch.inspect.run, gwatch.inspect.listing, gwatch.inspect.facts"


def find_cuobjdump() -> Path | None:
    """NVIDIA's program from the PyPI wheel or PATH."""
    import shutil

    for entry in sys.path:
        for path in Path(entry or ".").glob("nvidia/*/bin/cuobjdump"):
            return path
    found = shutil.which("cuobjdump")
    return Path(found) if found else None


def process_seconds(command: list[str], output: Path) -> float:
    """CPU seconds of a process whose standard output goes to a file."""
    # As installed: compiled modules are kept, which an environment made for editing them may forbid.
    kept = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(output.parent / "compiled")}
    around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(output, "wb") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.DEVNULL, check=True, env=around | kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def own_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def best(repeat: int, measure: Callable[[], float]) -> float:
    """The smallest of several measurements."""
    return min(measure() for _ in range(repeat))


def library_listing(path: Path) -> str:
    """A listing through the library."""
    from gwatch.inspect.listing import Style, listing
    from gwatch.inspect.view import CubinView

    return listing(CubinView.of(path.read_bytes()), Style.CUOBJDUMP)


def library_facts(path: Path) -> int:
    """All facts through the library; returns the number of kernels."""
    from gwatch.inspect.facts import kernel_facts
    from gwatch.inspect.view import CubinView

    view = CubinView.of(path.read_bytes())
    return len([kernel_facts(view, kernel) for kernel in view.kernels])


def library_resources(path: Path) -> int:
    """What -res-usage prints, through the library; returns the number of kernels."""
    from gwatch.inspect.facts import kernel_facts
    from gwatch.inspect.view import CubinView

    view = CubinView.of(path.read_bytes())
    return len([kernel_facts(view, kernel, read_code=False) for kernel in view.kernels])


def default_files() -> list[Path]:
    """The sm_90 and sm_90a cubins of the open corpus."""
    return sorted((ROOT / ".corpus").glob("sm_90*.cubin"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cubins", nargs="*", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    cuobjdump = find_cuobjdump()
    files = args.cubins or default_files()
    if cuobjdump is None or not files:
        print("cuobjdump (pip install nvidia-cuda-cuobjdump) or cubins are missing", file=sys.stderr)
        return 2
    gwatch = [sys.executable, "-m", "gwatch", "inspect"]
    library_facts(files[0])  # tables are read once a process
    totals: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder) / "theirs", Path(folder) / "ours"
        process_seconds([*gwatch, "--json", str(files[0])], ours)  # compiles the modules
        for path in files:
            name = str(path)
            commands = {
                "cuobjdump -sass": ([str(cuobjdump), "-sass", name], theirs),
                "gwatch --sass": ([*gwatch, "--sass", name], ours),
                "cuobjdump -res-usage": ([str(cuobjdump), "-res-usage", name], Path(folder) / "usage"),
                "gwatch --json": ([*gwatch, "--json", name], Path(folder) / "json"),
            }
            row = {
                what: best(args.repeat, lambda c=command, o=output: process_seconds(c, o))
                for what, (command, output) in commands.items()
            }
            row["library listing"] = best(args.repeat, lambda p=path: own_seconds(lambda: library_listing(p)))
            row["library facts"] = best(args.repeat, lambda p=path: own_seconds(lambda: library_facts(p)))
            row["library resources"] = best(
                args.repeat, lambda p=path: own_seconds(lambda: library_resources(p))
            )
            if theirs.read_bytes() != ours.read_bytes():
                print(f"{path}: the listings differ", file=sys.stderr)
                return 1
            print(
                f"{path.name} ({path.stat().st_size / 1e6:.1f} MB): "
                + ", ".join(f"{what} {seconds:.3f} s" for what, seconds in row.items())
            )
            for what, seconds in row.items():
                totals[what] = totals.get(what, 0.0) + seconds
        # cuobjdump takes one file a process; gwatch takes them all, and pays its start-up once.
        every = [str(path) for path in files]
        at_once = best(args.repeat, lambda: process_seconds([*gwatch, "--sass", *every], ours))
        facts_at_once = best(args.repeat, lambda: process_seconds([*gwatch, "--json", *every], ours))
        start = best(args.repeat, lambda: process_seconds([sys.executable, "-c", IMPORTS], ours))
        numpy_start = best(args.repeat, lambda: process_seconds([sys.executable, "-c", "import numpy"], ours))
        resources_at_once = best(args.repeat, lambda: process_seconds([*gwatch, "--resources", *every], ours))
    listing, count = totals["cuobjdump -sass"], len(files)
    print(
        f"{count} files, CPU seconds: cuobjdump -sass {listing:.2f}, gwatch --sass {totals['gwatch --sass']:.2f} "
        f"(a process a file) or {at_once:.2f} (one process), gwatch --json {totals['gwatch --json']:.2f} or "
        f"{facts_at_once:.2f}; a "
        f"process starts in {start:.2f} (importing numpy alone: {numpy_start:.2f})"
    )
    readings = {
        f"listing against cuobjdump's (bar {LISTING_BAR:g})": (
            ("one process for all files", listing / at_once, LISTING_BAR),
            ("one process a file", listing / totals["gwatch --sass"], None),
            (
                "one process a file, start-up taken off",
                listing / (totals["gwatch --sass"] - count * start),
                None,
            ),
            ("as a library", listing / totals["library listing"], LISTING_BAR),
        ),
        f"facts against that listing (bar {FACTS_BAR:g})": (
            ("one process for all files", listing / facts_at_once, FACTS_BAR),
            ("one process for all files, start-up taken off", listing / (facts_at_once - start), None),
            ("one process a file", listing / totals["gwatch --json"], None),
            ("as a library", listing / totals["library facts"], FACTS_BAR),
        ),
        "resources against that listing": (
            ("one process for all files", listing / resources_at_once, None),
            ("as a library", listing / totals["library resources"], None),
        ),
        "resources against -res-usage": (
            ("as a library", totals["cuobjdump -res-usage"] / totals["library resources"], None),
        ),
    }
    met = True
    for what, lines in readings.items():
        print(what)
        for how, ratio, bar in lines:
            verdict = "" if bar is None else "  met" if ratio >= bar else "  NOT met"
            met = met and (bar is None or ratio >= bar)
            print(f"  {how:46} {ratio:7.1f} times{verdict}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
