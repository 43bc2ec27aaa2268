"""The NVIDIA disassembler as a batch service: whole cubins, and lists of loose instruction words.

gwatch does without it: it is the oracle that the ISA tables are learned from and checked against, a second opinion
(``--engine nvdisasm``), and the reader of architectures and words that have no table. It is looked for only when it is
first needed. A process costs about 0.4 s before it reads a word and about 30 µs a word afterwards, so words are run in
files of tens of thousands.

Facts about nvdisasm (observed with 13.5) that the prober is built on:

* one undecodable word empties stdout for the whole file and makes the exit status 1, but errors are reported
  to the last word, in order; only some messages carry an address;
* a word of all ones decodes on no architecture and its message does carry its address. Placed between the
  words, it tells which messages belong to which word (the *marker run*);
* a "fatal" message with an address stops the run there; the run is taken up again behind it;
* some words give neither a line nor an error (*silent* words), so lines are matched by their printed address.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gwatch.errors import ToolError

if TYPE_CHECKING:
    from subprocess import CompletedProcess

WORD_BYTES = 16
MARKER = (1 << 128) - 1
BATCH = 40_000
"""Instructions per process: start-up is then a few per cent of the time, memory about 30 MB."""

RELATIVE = ("BRA", "BSSY", "CALL.REL", "LEPC", "RET.REL", "ULEPC", "WARPSYNC.COLLECTIVE")
"""Opcodes whose last number nvdisasm prints as an absolute address although the word holds a distance."""

Words = Sequence[int] | npt.NDArray[np.uint64]

DEFAULT_FOLDER = Path("/usr/local/cuda/bin")
"""Looked at last."""

_ENV = "GWATCH_NVDISASM"
_LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(.*?)\s*;?\s*$", re.M)
_AT = re.compile(r"at address 0x([0-9a-fA-F]+)")
_VERSION = re.compile(r"\bV([0-9]+(?:\.[0-9]+)+)")
_ARCH = re.compile(r"(?:sm_?)?([0-9]{2,3}[af]?)", re.I)
_RELATIVE_LINE = re.compile(r"^((?:@!?U?P[0-9T]+\s+)?(?:" + "|".join(map(re.escape, RELATIVE))
                            + r")\b.*?)(-?0x[0-9a-f]+)$")


def find() -> Path:
    """Path of the nvdisasm program: $GWATCH_NVDISASM, PyPI wheel, $CUDA_HOME, $CUDA_PATH, PATH, default
    place.

    Raises ToolError ``[nvdisasm-missing]``, naming every place looked at.
    """
    override = os.environ.get(_ENV)
    if override is not None:
        if _runs(Path(override)):
            return Path(override)
        raise ToolError("nvdisasm-missing", f"{_ENV}={override} is not an executable file",
                        f"unset {_ENV} or let it name the nvdisasm program")
    program = "nvdisasm.exe" if os.name == "nt" else "nvdisasm"
    looked = [f"{_ENV} (unset)"]
    for entry in sys.path:
        for path in sorted(Path(entry or ".").glob(f"nvidia/*/bin/{program}"), reverse=True):
            if _runs(path):
                return path
    looked.append("wheel nvidia-cuda-nvdisasm (not installed)")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(name)
        if root and _runs(Path(root) / "bin" / program):
            return Path(root) / "bin" / program
        looked.append(f"{name} ({Path(root) / 'bin' if root else 'unset'})")
    import shutil

    on_path = shutil.which(program)
    if on_path:
        return Path(on_path)
    if _runs(DEFAULT_FOLDER / program):
        return DEFAULT_FOLDER / program
    looked += ["PATH", str(DEFAULT_FOLDER)]
    raise ToolError("nvdisasm-missing", "nvdisasm not found; looked at " + ", ".join(looked),
                    f"pip install nvidia-cuda-nvdisasm, or set {_ENV} to the program")


def present() -> bool:
    """Whether :func:`find` finds it."""
    try:
        find()
    except ToolError:
        return False
    return True


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def version() -> str:
    """Version of the program found, e.g. "13.5.37". Raises ToolError when it cannot be had."""
    return _version(find())


@lru_cache(maxsize=8)
def _version(program: Path) -> str:
    done = _run(program, ["--version"])
    match = _VERSION.search(done.stdout)
    if done.returncode != 0 or match is None:
        raise ToolError("nvdisasm-failed", f"{program} --version gave no version", "is it NVIDIA's nvdisasm?")
    return match.group(1)


def _run(program: Path, arguments: Sequence[str], timeout: float = 1800) -> CompletedProcess[str]:
    import subprocess

    try:
        return subprocess.run([str(program), *arguments], capture_output=True, text=True, encoding="utf-8",
                              errors="surrogateescape", timeout=timeout, check=False)
    except OSError as error:
        raise ToolError("nvdisasm-failed", f"cannot start {program}: {error.strerror or error}",
                        "is it built for this machine?") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError("nvdisasm-failed", f"{program} did not finish within {timeout:.0f} s") from error


def arch_option(arch: str) -> str:
    """nvdisasm's name of an architecture: "sm_90a", "90a" and "SM90a" all give "SM90a"."""
    match = _ARCH.fullmatch(arch.strip())
    if match is None:
        raise ToolError("arch-unknown", f"{arch!r} is not an architecture name", "write it like sm_90a")
    return "SM" + match.group(1).lower()


def disassemble_cubin(source: str | os.PathLike[str] | bytes, *options: str, timeout: float = 1800) -> str:
    """nvdisasm's listing of a cubin file or image, with any of its options (e.g. "-c", "-g", "-hex").

    Warnings (an ABI 7 file makes it warn) are ignored as long as the exit status is 0. Raises ToolError
    ``[nvdisasm-failed]`` for anything else, also for an undecodable word, and ``[nvdisasm-missing]``.
    """
    program = find()
    if isinstance(source, bytes):
        import tempfile

        with tempfile.TemporaryDirectory(prefix="gwatch-") as folder:
            path = Path(folder) / "image.cubin"
            path.write_bytes(source)
            return _listing(program, path, f"image of {len(source)} bytes", options, timeout)
    path = Path(source)
    if not path.is_file():
        raise ToolError("nvdisasm-failed", f"{path} is not a file")
    return _listing(program, path, str(path), options, timeout)


def _listing(program: Path, path: Path, name: str, options: Sequence[str], timeout: float) -> str:
    done = _run(program, [*options, str(path)], timeout)
    if done.returncode != 0:
        raise ToolError("nvdisasm-failed", f"nvdisasm cannot disassemble {name}: {_reason(done, path)}",
                        "a cubin of a newer toolkit needs a newer nvdisasm")
    return done.stdout


def _reason(done: CompletedProcess[str], path: Path) -> str:
    messages = [line for line in done.stderr.splitlines() if "warning" not in line and line.strip()]
    if not messages:
        return f"exit status {done.returncode}"
    first = messages[0].split(":", 1)[-1].strip().replace(str(path), "the file")
    return first if len(messages) == 1 else f"{first} ({len(messages)} messages)"


@dataclass(slots=True)
class Probe:
    """What nvdisasm made of a list of words.

    ``texts[i]`` is the text of word i without the closing semicolon, or None. The sets say why it is None:
    ``bad``
    (undecodable), ``fatal`` (stopped the program), ``silent`` (accepted, but nothing printed), ``skipped``
    (not tried, because its opcode had stopped the program ``fatal_limit`` times). ``runs`` counts processes.
    """

    texts: list[str | None]
    bad: set[int] = field(default_factory=set)
    fatal: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    runs: int = 0


def disassemble_words(arch: str, words: Words, *, base: int = 0, pc: int | None = None,
                      mostly_valid: bool = True) -> list[str | None]:
    """Text of each 128-bit word (``-raw -ndf``), None where nvdisasm has none. See :func:`probe_words`."""
    return probe_words(arch, words, base=base, pc=pc, mostly_valid=mostly_valid).texts


def probe_words(arch: str, words: Words, *, base: int = 0, pc: int | None = None, mostly_valid: bool = True,
                fatal_limit: int | None = None) -> Probe:
    """Disassemble loose 128-bit words (ints, or an (n, 2) uint64 array of low and high halves).

    Branch targets are printed absolute, word i standing at ``base + 16*i``; with ``pc`` given they are moved
    as if every word stood at address ``pc`` (``pc=0`` makes a text depend on its word alone).
    ``mostly_valid=False`` saves the first, optimistic run. ``fatal_limit`` bounds the processes spent on one
    opcode (low 12 bits) whose words stop the program. Raises ToolError ``[nvdisasm-missing]``,
    ``[nvdisasm-failed]`` or ``[arch-unknown]``.
    """
    prober = _Prober(find(), arch_option(arch), fatal_limit)
    packed = _pack(words)
    count = len(packed) // WORD_BYTES
    result = Probe([None] * count)
    for start in range(0, count, BATCH):
        batch = range(start, min(start + BATCH, count))
        if not (mostly_valid and prober.print_words(packed, list(batch), base, result)):
            for part in _halves(batch):
                prober.print_checked(packed, part, base, result)
    if pc is not None:
        result.texts = [text and _rebase(text, base + WORD_BYTES * i, pc)
                        for i, text in enumerate(result.texts)]
    return result


def _halves(batch: range) -> list[range]:
    # Markers double the size of a file; a batch beyond half the limit is run in two parts.
    half = len(batch) // 2
    return [batch] if len(batch) <= BATCH // 2 else [batch[:half], batch[half:]]


def _pack(words: Words) -> bytes:
    if isinstance(words, np.ndarray):
        if words.ndim != 2 or words.shape[1] != 2:
            raise ValueError(f"instruction words must be an (n, 2) uint64 array, got shape {words.shape}")
        return np.ascontiguousarray(words, dtype="<u8").tobytes()
    return b"".join(word.to_bytes(WORD_BYTES, "little") for word in words)


def _rebase(text: str, address: int, pc: int) -> str:
    match = _RELATIVE_LINE.match(text)
    if match is None:
        return text
    target = int(match.group(2), 16) - address + pc
    return f"{match.group(1)}{'-' if target < 0 else ''}{abs(target):#x}"


class _Prober:
    """Runs of one nvdisasm over words of one architecture; remembers opcodes that stop it."""

    def __init__(self, program: Path, option: str, fatal_limit: int | None) -> None:
        self.program = program
        self.option = option
        self.fatal_limit = fatal_limit
        self.fatals: dict[int, int] = {}

    def _run_raw(self, image: bytes, base: int, result: Probe) -> CompletedProcess[str]:
        result.runs += 1
        import tempfile

        with tempfile.TemporaryDirectory(prefix="gwatch-") as folder:
            path = Path(folder) / "words.bin"
            path.write_bytes(image)
            return _run(self.program, ["-b", self.option, "-raw", "-ndf", "-base", hex(base), str(path)])

    def print_words(self, packed: bytes, indices: list[int], base: int, result: Probe) -> bool:
        """Run these words as they are. True and texts filled in if all decode; False and nothing done if
        not."""
        if not indices:
            return True
        first, last = indices[0], indices[-1]
        if last - first + 1 == len(indices):
            image = packed[first * WORD_BYTES:(last + 1) * WORD_BYTES]
            start = base + first * WORD_BYTES
            places = None
        else:
            # Words out of order run at other addresses than their own; targets are moved back afterwards.
            image = b"".join(packed[i * WORD_BYTES:(i + 1) * WORD_BYTES] for i in indices)
            start = base
            places = indices
        done = self._run_raw(image, start, result)
        if done.returncode != 0:
            self._check_usable(done)
            return False
        seen = set()
        for match in _LINE.finditer(done.stdout):
            slot, rest = divmod(int(match.group(1), 16) - start, WORD_BYTES)
            if rest or not 0 <= slot < len(indices):
                raise ToolError("nvdisasm-failed", f"nvdisasm printed a line for address 0x{match.group(1)}")
            index = indices[slot]
            text = match.group(2)
            if places is not None:
                text = _rebase(text, start + slot * WORD_BYTES, base + index * WORD_BYTES)
            result.texts[index] = text
            seen.add(index)
        result.silent.update(i for i in indices if i not in seen)
        return True

    def _check_usable(self, done: CompletedProcess[str]) -> None:
        if "is not defined for option" in done.stderr:
            raise ToolError("arch-unknown", f"this nvdisasm does not know {self.option}",
                            "use a newer or older nvidia-cuda-nvdisasm")

    def print_checked(self, packed: bytes, batch: range, base: int, result: Probe) -> None:
        """Find the undecodable words of the batch by marker runs, then print the others."""
        good: list[int] = []
        todo = list(batch)
        for opcode in self.fatals:
            todo = self._drop(packed, todo, opcode, result)
        while todo:
            todo = self._mark(packed, todo, good, result)
        if not self.print_words(packed, good, base, result):
            raise ToolError("nvdisasm-failed", f"nvdisasm refuses some of {len(good)} words that it took "
                            "between markers", "report the nvdisasm version")

    def _mark(self, packed: bytes, indices: list[int], good: list[int], result: Probe) -> list[int]:
        """One marker run; sorts words into good and bad ones, returns those behind a fatal one."""
        marker = MARKER.to_bytes(WORD_BYTES, "little")
        # marker, marker, word, marker, word, marker ...: the first two tell how many lines a marker takes
        # itself.
        image = [marker, marker]
        for i in indices:
            image += (packed[i * WORD_BYTES:(i + 1) * WORD_BYTES], marker)
        done = self._run_raw(b"".join(image), 0, result)
        self._check_usable(done)
        lines_of = [0] * (len(indices) + 2)  # messages from marker k up to the next marker
        segment, stopped_at = -1, -1
        for line in done.stderr.splitlines():
            if not line.startswith("nvdisasm ") or line.startswith("nvdisasm warning"):
                continue
            at = _AT.search(line)
            slot = int(at.group(1), 16) // WORD_BYTES if at else -1
            if line.startswith("nvdisasm fatal"):
                stopped_at = slot
                break
            if slot == 0 or (slot & 1 and slot > 0):
                segment = (slot + 1) // 2
            lines_of[segment] += 1
        if segment < 1:
            raise ToolError("nvdisasm-failed", f"nvdisasm -b {self.option} does not report its own errors: "
                            f"{_reason(done, Path())}", "report the nvdisasm version")
        own = lines_of[0]
        finished = segment == len(indices) + 1
        # Word k stands between markers k+1 and k+2. All before the last marker seen are decided.
        decided = len(indices) if finished else segment - 1
        for k in range(decided):
            if lines_of[k + 1] > own:
                result.bad.add(indices[k])
            else:
                good.append(indices[k])
        if finished:
            return []
        culprit = (stopped_at - 2) // 2 if stopped_at >= 2 and not stopped_at & 1 else decided
        if culprit != decided:
            raise ToolError("nvdisasm-failed",
                            f"nvdisasm stopped at word {culprit}, but reported up to word {decided}")
        result.fatal.add(indices[culprit])
        opcode = _opcode(packed, indices[culprit])
        self.fatals[opcode] = self.fatals.get(opcode, 0) + 1
        return self._drop(packed, indices[culprit + 1:], opcode, result)

    def _drop(self, packed: bytes, indices: list[int], opcode: int, result: Probe) -> list[int]:
        """The words without those of an opcode that has stopped the program too often."""
        if self.fatal_limit is None or self.fatals.get(opcode, 0) < self.fatal_limit:
            return indices
        result.skipped.update(i for i in indices if _opcode(packed, i) == opcode)
        return [i for i in indices if _opcode(packed, i) != opcode]


def _opcode(packed: bytes, index: int) -> int:
    return int.from_bytes(packed[index * WORD_BYTES:index * WORD_BYTES + 2], "little") & 0xFFF
