#!/usr/bin/env python3
"""Find the instruction words in open wheels that the open corpus does not show, and keep a few of each kind.

    python tools/harvest_words.py WHEELS [--only LIB] [--skip LIB] [--state FILE]   # read wheels, add to the state
    python tools/harvest_words.py --write [--state FILE]                            # state -> isa_learning/words/*.txt
    python tools/harvest_words.py WHEELS --sample DIR                               # words for tools/isa_report.py
    python tools/harvest_words.py --own PTXAS [--target sm_90a ...]                # older compilers, our own statements

WHEELS is a folder with the wheels that ``isa_learning/words/wheels.json`` pins by sha256 (``pip download --no-deps``);
others are refused. Every instruction of every cubin in their libraries is read with our own decoder. Words with the
same opcode, modifiers and operand marks and the same bits in all places that no operand owns are of one kind; the same
holds for words that the table does not know and that agree in all bits it asks for. The first word of each kind is
kept, and one for every use of the scoreboards that the opcode is seen with.

``--sample`` writes ``LIBRARY/sm_XX.bin``: the distinct words of a library, 300,000 of them chosen by a hash.

``--own`` adds to the word files, as library ``own RELEASE``, the kinds that another release of ptxas writes for the
statements of ``isa_learning/sources.py`` and that neither those files nor the open corpus nor the ptxas in PATH show.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import re
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning import sources  # noqa: E402
from isa_learning.cache import words_once  # noqa: E402
from isa_learning.corpus import WORDS, listed_words, text_names, text_sections  # noqa: E402

from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.cuda.binary.fatbin import iter_fatbin_images  # noqa: E402
from gwatch.cuda.closed import closed_symbol  # noqa: E402
from gwatch.errors import GWatchError  # noqa: E402
from gwatch.sass.arch import arch_by_name  # noqa: E402
from gwatch.sass.control import CONTROL_MASK  # noqa: E402
from gwatch.sass.isa import isa_for, tree  # noqa: E402
from gwatch.sass.isa.model import GUARD_SHIFT, key_of  # noqa: E402
from gwatch.sass.isa.template import Template  # noqa: E402
from gwatch.sass.isa.vector import keys_of  # noqa: E402

PINS = WORDS / "wheels.json"
OWN_TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
SAMPLE = 300_000
UNKNOWN_PER_KEY = 150
_CLOSED = re.compile(rb"cublas|cudnn|cufft|cusparse|cusolver|cutensor|nvjpeg|nvshmem|libnpp")
_CLOSED_KERNELS = re.compile(rb"(?:maxwell|volta|turing|ampere|hopper)_[a-z0-9_]{0,12}(?:gemm|cudnn)|sm\d+_xmma|"
                             rb"_Z\d+(?:cusolver|cublas)|_ZN\d+(?:cudnn|cusparse|cublas|cusolver)")
"""Names of members, and of kernels in libraries that link closed ones statically: those are not read at all."""
_CLOSED_NAMES = re.compile(r"cublas|cudnn|cufft|cusparse|cusolver|cutensor|nvjpeg|nvjet|(?<![a-z])cask(?![ad])|xmma"
                           r"|(?:regular|vector|bluestein)_fft|(?<![a-z])[sdhb]p(?:Radix|Vector|RealComplex)\d")
"""What kernels of closed libraries are named. Where one kernel of a cubin is, none of the cubin is read: its other
kernels (``gemv2T_kernel_val``, ``splitKreduce_kernel``) bear no library's name."""
_M64 = (1 << 64) - 1
_OPERANDS = (1 << 105) - 1 & ~(15 << GUARD_SHIFT)
Halves = npt.NDArray[np.uint64]


def mix(*columns: Halves) -> Halves:
    """A 64-bit hash of rows."""
    out = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        out = (out ^ column) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
        out = out * np.uint64(0xBF58476D1CE4E5B9)
        out ^= out >> np.uint64(32)
    return out


@dataclass
class Kinds:
    """Kinds of words of one target: hash of the kind -> (word, library); per library the instructions read."""

    words: dict[int, tuple[int, str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


class Reader:
    """Sorts words of one target into kinds."""

    def __init__(self, target: str, kinds: Kinds) -> None:
        self.isa = isa_for(target)
        self.kinds = kinds
        self.rows: list[tuple[int, int, int]] = []
        self.met: Halves = np.zeros(1 << 20, np.uint64)

    def _describe(self, template: Template | None) -> tuple[int, int, int]:
        """(hash of what the text shows, mask of the bits no operand owns) of a template; 0 for unknown words."""
        if template is None:
            return 0, 0, 0
        form, word_mask = template.form, _OPERANDS
        named = 0
        for value in form.values:
            if value.name is not None:
                named |= tree.tested_bits(value.name.node)
        for place in template.fields:
            word_mask &= ~place.mask
        word_mask &= ~named
        name = (template.key.key, template.number, template.opcode, template.attached)
        number = hashlib.blake2b(repr(name).encode(), digest_size=8).digest()
        return int.from_bytes(number, "little") | 1, word_mask & _M64, word_mask >> 64

    def read(self, words: Halves, library: str) -> None:
        """Add the words (n, 2) of a section."""
        self.kinds.counts[library] = self.kinds.counts.get(library, 0) + len(words)
        decoder = self.isa.decoder
        ids = decoder.ids(words)
        for number in range(len(self.rows), len(decoder.templates)):
            self.rows.append(self._describe(decoder.templates[number]))
        table = np.array(self.rows, np.uint64)
        group = table[ids, 0]
        low, high = words[:, 0] & table[ids, 1], words[:, 1] & table[ids, 2]
        unknown = np.flatnonzero(group == 0)
        if len(unknown):
            some = words[unknown]
            keys = keys_of(some)
            for key in np.unique(keys).tolist():
                at = unknown[keys == key]
                pattern = self.isa.templates.pattern(key)
                if pattern is None:
                    low[at], high[at] = key, words[at, 1] & np.uint64(0x1FF_FFFF_FF00) >> np.uint64(4)
                else:
                    low[at], high[at] = 0, 0
                    a, b = np.empty(len(at), np.uint64), np.empty(len(at), np.uint64)
                    pattern.columns(words[at, 0].copy(), words[at, 1].copy(), a, b)
                    low[at], high[at] = a, b
        code = mix(group, low, high)
        slots = code >> np.uint64(44)
        fresh = np.flatnonzero(self.met[slots] != code)
        self.met[slots[fresh]] = code[fresh]
        _, first = np.unique(code[fresh], return_index=True)
        self._keep(code, fresh[first], words, library)
        write, read = (words[:, 1] >> np.uint64(shift) & np.uint64(7) != np.uint64(7) for shift in (46, 49))
        uses = keys_of(words).astype(np.uint64) << np.uint64(2) | write.astype(np.uint64) << np.uint64(1) | read
        place = np.full(1 << 15, -1, np.int64)
        place[uses[::-1]] = np.arange(len(words))[::-1]
        self._keep(uses, place[place >= 0], words, library)

    def _keep(self, code: Halves, first: npt.NDArray[np.int64], words: Halves, library: str) -> None:
        for c, (low, high) in zip(code[first].tolist(), words[first].tolist(), strict=True):
            self.kinds.words.setdefault(c, (low | high << 64, library))


class Sample:
    """The ``SAMPLE`` distinct words with the smallest hashes."""

    def __init__(self) -> None:
        self.words: Halves = np.zeros((0, 2), np.uint64)
        self.hashes: Halves = np.zeros(0, np.uint64)
        self.total = 0

    def add(self, words: Halves) -> None:
        """Add words."""
        self.total += len(words)
        hashes = mix(words[:, 1], words[:, 0])
        if len(self.hashes) >= SAMPLE:
            near = hashes < self.hashes[-1]
            words, hashes = words[near], hashes[near]
        both = np.concatenate((self.hashes, hashes))
        self.hashes, first = np.unique(both, return_index=True)
        self.hashes = self.hashes[:SAMPLE]
        self.words = np.concatenate((self.words, words))[first[:SAMPLE]]


def library_of(wheel: Path) -> str:
    """``torch 2.11.0`` of a wheel's file name."""
    name, version = wheel.name.split("-")[:2]
    return f"{name} {version}"


def closed_cubin(image: bytes) -> bool:
    """Whether a cubin has a kernel or function that is named like a closed library's."""
    return _CLOSED.search(image) is not None or any(
        closed_symbol(name) or _CLOSED_NAMES.search(name) for name in text_names(image))


def sections(wheel: Path) -> Iterator[tuple[str, Halves]]:
    """(target, words of all text sections) of every cubin in a wheel, each image once."""
    seen: set[bytes] = set()
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            closed = _CLOSED.search(member.encode())
            if closed or not (".so" in Path(member).name or member.endswith(".cubin")):
                continue
            data = archive.read(member)
            if _CLOSED_KERNELS.search(data):
                print(f"{wheel.name}: {member} has kernels of a closed library, not read", file=sys.stderr)
                continue
            for _, image in iter_fatbin_images(data):
                digest = hashlib.sha256(image).digest()
                if digest in seen:
                    continue
                seen.add(digest)
                try:
                    target = Cubin.from_bytes(image).arch.name
                    isa_for(target)
                except GWatchError:
                    continue
                words = text_sections(image)
                if len(words) and not closed_cubin(image):
                    yield target, words


def pinned(folder: Path, only: list[str], skip: list[str]) -> list[Path]:
    """The pinned wheels in ``folder`` (and below)."""
    pins = {pin["sha256"]: pin["file"] for pin in json.loads(PINS.read_text(encoding="utf-8"))["wheels"]}
    found = {}
    for path in sorted(folder.rglob("*.whl")):
        if path.name in pins.values() and path.name not in found and not any(s in library_of(path) for s in skip) \
                and (not only or any(o in library_of(path) for o in only)):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if pins.get(digest) == path.name:
                found[path.name] = path
            else:
                print(f"{path}: not the pinned file", file=sys.stderr)
    return list(found.values())


def corpus_kinds(folder: Path) -> dict[int, set[int]]:
    """SM number -> hashes of the kinds that the cubins of ``folder`` show."""
    found: dict[str, Reader] = {}
    for path in sorted(folder.glob("*.cubin")):
        target = Cubin.from_file(path).arch.name
        if target not in found:
            found[target] = Reader(target, Kinds())
        found[target].read(text_sections(path.read_bytes()), path.name)
    known: dict[int, set[int]] = defaultdict(set)
    for target, reader in found.items():
        known[arch_by_name(target).number].update(reader.kinds.words)
    return known


def write_words(state: dict[str, Kinds], corpus: Path) -> None:
    """One file per table: for every target the words of kinds that the open corpus lacks, under their library."""
    lines: dict[str, list[str]] = defaultdict(list)
    known = corpus_kinds(corpus)
    for target, kinds in sorted(state.items()):
        isa = isa_for(target)
        of_key: dict[int, list[tuple[int, str]]] = defaultdict(list)
        chosen: dict[int, str] = {}
        met = known[isa.arch.number]
        for code, (word, library) in sorted(kinds.words.items()):
            if code in met:
                continue
            met.add(code)
            if isa.templates.of(word & ~CONTROL_MASK) is None:
                of_key[key_of(word)].append((word, library))
            else:
                chosen[word] = library
        for rows in of_key.values():
            chosen.update(rows[:UNKNOWN_PER_KEY])
        by_library: dict[str, list[int]] = defaultdict(list)
        for word, library in chosen.items():
            by_library[library].append(word)
        for library, words in sorted(by_library.items()):
            lines[isa.arch.table].append(f"{target} {library}")
            lines[isa.arch.table] += [f"{word:032x}" for word in sorted(words, key=lambda w: (key_of(w), w))]
    for table, text in sorted(lines.items()):
        path = WORDS / f"{table}.txt"
        path.write_text("# Words of open libraries. Written by tools/harvest_words.py.\n" + "\n".join(text) + "\n",
                        encoding="utf-8")
        print(f"{path}: {sum(' ' not in line for line in text)} words")


def rows(words: Iterable[int]) -> Halves:
    """Words as halves (n, 2), sorted."""
    return np.array([(word & _M64, word >> 64) for word in sorted(words)], np.uint64).reshape(-1, 2)


def add_own(ptxas: str, targets: Sequence[str], corpus: Path) -> None:
    """Append what ``ptxas`` shows to the word files."""
    known = corpus_kinds(corpus)
    every = sources.debug_kernels()
    for name in targets:
        release, ptx = sources.release_of(ptxas, name)
        library = f"{sources.OWN} {release}"
        arch = arch_by_name(name)
        path = WORDS / f"{arch.table}.txt"
        if not ptx or f"\n{name} {library}\n" in path.read_text(encoding="utf-8"):
            continue
        reader = Reader(name, Kinds())
        ours = [words_once(sources.own_inputs(name, kernels, how), partial(sources.own_words, name, kernels, how))
                for kernels, how in sources.groups()]
        reader.read(rows(set().union(*ours, *listed_words(path, arch.number).values())), "")
        known[arch.number].update(reader.kinds.words)
        fresh = Reader(name, Kinds())
        fresh.read(rows(sources.own_words(name, every, sources.OPTIMIZED, ptxas, ptx)), library)
        words = [word for code, (word, _) in fresh.kinds.words.items() if code not in known[arch.number]]
        if words:
            lines = [f"{name} {library}", *(f"{w:032x}" for w in sorted(words, key=lambda w: (key_of(w), w)))]
            with path.open("a", encoding="utf-8") as stream:
                stream.write("\n".join(lines) + "\n")
        print(f"{path}: {len(words)} words of {library} for {name}", flush=True)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=Path, nargs="*", help="folders with pinned wheels")
    parser.add_argument("--only", action="append", default=[], help="only libraries whose name contains this")
    parser.add_argument("--skip", action="append", default=[], help="leave these out")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "harvest.pickle", help="what was found so far")
    parser.add_argument("--sample", type=Path, help="write samples of words here instead")
    parser.add_argument("--corpus", type=Path, default=ROOT / ".corpus", help="the open corpus")
    parser.add_argument("--write", action="store_true", help="write the word files from the state")
    parser.add_argument("--own", action="append", default=[], help="another release of ptxas")
    parser.add_argument("--target", action="append", default=[], help="only for this target (--own)")
    options = parser.parse_args()
    for ptxas in options.own:
        add_own(ptxas, options.target or OWN_TARGETS, options.corpus)
    state: dict[str, Kinds] = {}
    if options.state.is_file():
        state = {target: Kinds(*found) for target, found in pickle.loads(options.state.read_bytes()).items()}
    readers: dict[str, Reader] = {}
    for wheel in (w for folder in options.wheels for w in pinned(folder, options.only, options.skip)):
        library = library_of(wheel)
        if not options.sample and any(library in kinds.counts for kinds in state.values()):
            continue
        samples: dict[str, Sample] = defaultdict(Sample)
        for target, words in sections(wheel):
            if options.sample:
                samples[target].add(words)
                continue
            if target not in readers:
                readers[target] = Reader(target, state.setdefault(target, Kinds()))
            readers[target].read(words, library)
        if options.sample:
            folder = options.sample / library.replace(" ", "-")
            folder.mkdir(parents=True, exist_ok=True)
            for target, sample in samples.items():
                (folder / f"{target}.bin").write_bytes(sample.words.astype("<u8").tobytes())
                print(f"{library} {target}: {sample.total} instructions, {len(sample.words)} kept", flush=True)
            continue
        print(f"{library}: " + ", ".join(f"{t} {k.counts[library]} ({len(k.words)} kinds so far)"
                                         for t, k in sorted(state.items()) if library in k.counts), flush=True)
        options.state.parent.mkdir(parents=True, exist_ok=True)
        options.state.write_bytes(pickle.dumps({t: (k.words, k.counts) for t, k in state.items()}))
    if options.write:
        write_words(state, options.corpus)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
