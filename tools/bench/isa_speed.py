#!/usr/bin/env python3
"""How fast instructions are decoded, printed and encoded, beside nvdisasm, on the same words in one run.

    python tools/bench/isa_speed.py [--arch sm_90a] [CUBIN | WORDS.bin ...] [--repeat 3] [--cuassembler DIR] [--json]

Default: the cubins of that SM number in .corpus. Everything runs on one core and is measured in CPU seconds (user +
system, best of the repeats), so that other work on the machine counts little:

* decode   words to a structured array (opcode, form, guard, control fields, target) and register uses
* text     words to lines, letter by letter nvdisasm's (checked first)
* encode   lines with control words back to words (checked to be the same words)
* load     the ISA table from its file
* nvdisasm the same words with ``-b``, start-up included, and whole cubins with ``-c``

With ``--cuassembler DIR`` (a checkout; it needs sympy, its tables end at sm_86) CuAssembler encodes lines of the same
words: how many a second, and how many it refuses or gets wrong.

"cold" starts from a table just loaded, "warm" knows the shapes. Memory is the peak of a process of its own above what
it holds before, for decoding and printing everything at once. Exit codes: 0 all bars met, 1 not, 2 no words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

from gwatch.cuda.binary import Cubin  # noqa: E402
from gwatch.errors import GWatchError  # noqa: E402
from gwatch.sass import nvdisasm  # noqa: E402
from gwatch.sass.arch import Arch, arch_by_name  # noqa: E402
from gwatch.sass.control import Control  # noqa: E402
from gwatch.sass.isa import Isa, isa_for  # noqa: E402
from gwatch.sass.isa.table import load  # noqa: E402

Words = npt.NDArray[np.uint64]
DECODE_BAR, TEXT_BAR, ENCODE_BAR, MEMORY_BAR, LOAD_BAR = 2e6, 300e3, 60e3, 300.0, 0.05
STEP = 16


def sections(path: Path) -> list[Words]:
    """The code of a cubin, one array a section, or of a file of bare words."""
    if path.suffix == ".bin":
        return [np.frombuffer(path.read_bytes(), "<u8").reshape(-1, 2)]
    cubin = Cubin.from_file(path)
    kernels = {**cubin.get_map_function_def(), **cubin.get_map_kernel_def()}.values()
    return list({kernel.section_index: kernel.words for kernel in kernels}.values())


def cpu(work: Callable[[], object], repeat: int = 1) -> float:
    """CPU seconds of a call, the best of ``repeat``."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def decode(isa: Isa, words: Words) -> object:
    """Everything but text."""
    section = isa.section(words)
    return section.rows(), section.uses


def texts(isa: Isa, words: Words) -> list[str | None]:
    """Lines, each word at its address in the array."""
    return isa.section(words).texts(np.arange(len(words), dtype=np.int64) * STEP)


def nvdisasm_words(arch: Arch, words: Words) -> float:
    """CPU seconds of nvdisasm over bare words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.bin"
        path.write_bytes(words.tobytes())
        return child([str(nvdisasm.find()), "-b", arch.nvdisasm, "-raw", "-ndf", str(path)])[0]


def child(command: list[str]) -> tuple[float, int]:
    """CPU seconds and peak memory in bytes of a process whose output goes nowhere."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while True:
        # What wait4 reports as the peak starts with this process's own size; the kernel's mark does not.
        peak = max(peak, high_water(f"/proc/{process.pid}/status"))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.002)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{command[0]} failed")
    return usage.ru_utime + usage.ru_stime, peak


def high_water(path: str) -> int:
    """The peak resident memory that a process status file shows, 0 when the process is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def memory(arch: Arch, path: Path, what: str) -> int:
    """Peak bytes above the start of a process that decodes or prints the words of ``path``."""
    script = (
        "import sys, numpy as np\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from isa_speed import high_water\n"
        "from gwatch.sass.isa import isa_for\n"
        "words = np.load(sys.argv[2]); isa = isa_for(sys.argv[1]); section = isa.section(words[:1]); section.uses\n"
        "section.texts(np.zeros(1, np.int64)); before = high_water('/proc/self/status')\n"
        "section = isa.section(words)\n"
        + ("rows = section.rows(); uses = section.uses\n" if what == "decode" else
           "lines = section.texts(np.arange(len(words), dtype=np.int64) * 16)\n")
        + "print(high_water('/proc/self/status') - before)\n")
    command = [sys.executable, "-c", script, arch.name, str(path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    return int(done.stdout)


def encode(isa: Isa, lines: list[str], controls: list[Control], wanted: list[int]) -> int:
    """How many lines do not give their word."""
    wrong = 0
    for index, (line, control, word) in enumerate(zip(lines, controls, wanted, strict=True)):
        try:
            wrong += isa.encode(line, control, index * STEP) != word
        except GWatchError:
            wrong += 1
    return wrong


PEER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from CuAsm.CuInsAssemblerRepos import CuInsAssemblerRepos
rows = json.load(open(sys.argv[3]))
repos = CuInsAssemblerRepos.getDefaultRepos(sys.argv[2])
mask = (1 << 105) - 1
counts = {"exact": 0, "wrong": 0, "refused": 0}
seconds = 0.0
for address, text, word in rows:
    start = time.process_time()
    try:
        made = repos.assemble(address, text, showCandidates=False)
    except Exception:
        counts["refused"] += 1
        continue
    seconds += time.process_time() - start
    counts["exact" if made & mask == int(word, 16) & mask else "wrong"] += 1
counts["rate"] = (counts["exact"] + counts["wrong"]) / max(seconds, 1e-9)
print(json.dumps(counts))
"""


def cuassembler(folder: Path, arch: Arch, words: Words) -> dict[str, float]:
    """Lines a second that a CuAssembler checkout encodes (those it refuses are not timed), and what came of them."""
    rows = [(index * STEP, f"{text} ;", f"{low | high << 64:#x}") for index, (text, (low, high)) in
            enumerate(zip(texts(isa_for(arch), words), words.tolist(), strict=True)) if text is not None]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "rows.json"
        path.write_text(json.dumps(rows))
        command = [sys.executable, "-c", PEER, str(folder), f"sm_{arch.number}", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"CuAssembler failed: {done.stderr.strip().splitlines()[-1:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {"CuAssembler, encode": found.pop("rate"), **{f"CuAssembler, lines {name}": n for name, n in found.items()}}


def measure(arch: Arch, words: Words, cubins: list[Path], repeat: int) -> dict[str, float]:
    """All figures, in instructions a second unless the name says otherwise."""
    count = len(words)
    found: dict[str, float] = {"instructions": count}
    found["table load, s"] = cpu(lambda: load(arch.table, arch.name), 5)
    fresh = Isa(arch, load(arch.table, arch.name))
    found["decode, cold"] = count / cpu(lambda: decode(fresh, words))
    found["decode, warm"] = count / cpu(lambda: decode(fresh, words), repeat)
    found["text, cold"] = count / cpu(lambda: texts(fresh, words))
    found["text, warm"] = count / cpu(lambda: texts(fresh, words), repeat)
    part = words[:60_000]
    lines = [line or "" for line in
             fresh.section(part).texts(np.arange(len(part), dtype=np.int64) * STEP, canonical=True)]
    wanted = [low | high << 64 for low, high in part.tolist()]
    controls = [Control.from_word(word) for word in wanted]
    found["encode, cold"] = len(part) / cpu(lambda: encode(fresh, lines, controls, wanted))
    found["encode, warm"] = len(part) / cpu(lambda: encode(fresh, lines, controls, wanted), repeat)
    found["encode, lines refused"] = encode(fresh, lines, controls, wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.npy"
        np.save(path, words)
        for what in ("decode", "text"):
            found[f"{what}, bytes an instruction"] = memory(arch, path, what) / count
    if nvdisasm.present():
        theirs = nvdisasm.disassemble_words(arch.name, part)
        ours = texts(isa_for(arch), part)
        found["text, lines unequal"] = sum(a is not None and a != b for a, b in zip(theirs, ours, strict=True))
        found["nvdisasm -b"] = count / nvdisasm_words(arch, words)
        if cubins:
            largest = max(cubins, key=lambda path: path.stat().st_size)
            seconds, peak = child([str(nvdisasm.find()), "-c", str(largest)])
            size = sum(map(len, sections(largest)))
            found["nvdisasm -c"] = size / seconds
            found["nvdisasm -c, bytes an instruction"] = peak / size
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cuassembler", type=Path, metavar="DIR", help="a CuAssembler checkout to measure as well")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    files = options.files or [path for path in sorted((ROOT / ".corpus").glob("sm_*.cubin"))
                              if arch_by_name(path.name.split("-")[0]).number == arch.number]
    words = [section for path in files for section in sections(path)]
    if not words:
        print(f"no {arch.name} code found; run tools/fetch_corpus.py", file=sys.stderr)
        return 2
    found = measure(arch, np.concatenate(words), [p for p in files if p.suffix != ".bin"], options.repeat)
    if options.cuassembler is not None:
        found |= cuassembler(options.cuassembler, arch, np.concatenate(words)[:20_000])
    bars = {"decode, warm": DECODE_BAR, "text, warm": TEXT_BAR, "encode, warm": ENCODE_BAR}
    limits = {"decode, bytes an instruction": MEMORY_BAR, "text, bytes an instruction": MEMORY_BAR,
              "table load, s": LOAD_BAR, "text, lines unequal": 0}
    met = all(found[name] >= bar for name, bar in bars.items()) and all(
        found.get(name, 0) <= limit for name, limit in limits.items())
    if options.json:
        print(json.dumps({"arch": arch.name, **found, "met": met}, indent=1))
        return 0 if met else 1
    base = found.get("nvdisasm -b", 0.0)
    for name, value in found.items():
        bar = f"bar {bars[name]:,.0f}" if name in bars else f"at most {limits[name]:,}" if name in limits else ""
        ratio = f"{value / base:8.1f} x nvdisasm" if base and name.startswith(("decode, ", "text, ", "encode, ")) and (
            name.endswith(("cold", "warm"))) else ""
        shown = f"{value:,.3f}" if value < 10 and value != int(value) else f"{value:,.0f}"
        print(f"{name:34} {shown:>14} {ratio:20} {bar}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
