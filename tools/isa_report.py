#!/usr/bin/env python3
"""Measure an ISA table against nvdisasm over distinct instruction words.

    python tools/isa_report.py ARCH [FOLDER_OR_FILE ...] [--include LIB] [--exclude LIB] [--random N] [--json]

Sources: folders with cubins named ``sm_90a-….cubin`` and raw files ``sm_90a.bin`` (16-byte little-endian words), or
such files themselves; default: .corpus. Every distinct word (control bits included) is decoded and its text compared
with nvdisasm's letter by letter. Then two texts are encoded and the word compared bit by bit: the canonical one, which
also shows what nvdisasm hides, and nvdisasm's own.

exact      the same word                            refused    by name
another's  nvdisasm's text of an access with a cache policy (sm_80-89) is the canonical one of the plain access, whose
           descriptor it hides: it prints ``desc[..]`` where the policy stands, so one of the two has to differ
ambiguous  several words have this text: refused    wrong      another word (the build fails on one)
by rule    exact, with bits that no text shows taken from compiler words of another shape, which all agree

``--random N`` adds N random mutations of the words; for those only the text is compared (a text may have many words).
Exit status 1 when anything is wrong or any text is unequal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning.corpus import cubins, text_array  # noqa: E402

from gwatch.errors import GWatchError  # noqa: E402
from gwatch.sass.arch import Arch, arch_by_name  # noqa: E402
from gwatch.sass.control import CONTROL_MASK, Control  # noqa: E402
from gwatch.sass.isa import Isa, isa_for  # noqa: E402
from gwatch.sass.isa.isa import Isa as IsaClass  # noqa: E402
from gwatch.sass.isa.lex import DESCRIPTOR, POLICY  # noqa: E402
from gwatch.sass.isa.table import Table  # noqa: E402
from gwatch.sass.nvdisasm import disassemble_words  # noqa: E402

PC = 0x10000000
CHUNK = 1 << 17
Words = npt.NDArray[np.uint64]


def source_words(sources: list[Path], arch: Arch, include: list[str], exclude: list[str]) -> tuple[int, Words]:
    """(count of words, distinct words (n, 2), sorted) of all sources."""
    parts: list[Words] = []
    total = 0
    for source in sources:
        paths = [source]
        if source.is_dir():
            paths = [*cubins([source], arch.number, exclude, include), *sorted(source.glob(f"{arch.name}.bin"))]
        for path in paths:
            if path.suffix == ".bin":
                data = path.read_bytes()
                found = np.frombuffer(data[:len(data) // 16 * 16], dtype="<u8").reshape(-1, 2)
            else:
                found = text_array(path)
            total += len(found)
            parts.append(distinct(found))
    return total, distinct(np.concatenate(parts)) if parts else np.zeros((0, 2), dtype=np.uint64)


def distinct(words: Words) -> Words:
    """The rows of ``words``, each once, sorted."""
    ordered = words[np.lexsort((words[:, 0], words[:, 1]))]
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[new]


class Comparison:
    """Counts, and the first example of every kind of failure."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.counts: Counter[str] = Counter()
        self.examples: dict[tuple[str, str], dict[str, str]] = {}

    def note(self, kind: str, text: str, word: int, detail: str) -> None:
        """Count a failure."""
        self.counts[kind] += 1
        self.examples.setdefault((kind, text.split(" ")[0].split(".")[0] + detail.split("]")[0]),
                                 {"kind": kind, "text": text, "word": f"{word:032x}", "detail": detail})

    def add(self, words: list[int], encode: bool) -> None:
        """Compare words."""
        arch = self.isa.arch.name
        for word, text in zip(words, disassemble_words(arch, words, pc=PC, mostly_valid=encode), strict=True):
            if text is None or "INVALID" in text or "???" in text:
                self.counts["undecodable"] += 1
                continue
            text = text.rstrip(" ;")
            try:
                ours = self.isa.decode(word, PC)
            except GWatchError as error:
                self.note("text refused", text, word, str(error))
                if encode:
                    self.counts["refused"] += 1
                    self.counts["nvdisasm text refused"] += 1
                continue
            if ours.text == text:
                self.counts["text equal"] += 1
            else:
                self.note("text unequal", text, word, ours.text)
            if encode:
                same = ours.canonical == text
                kind = self._encoded(ours.canonical, word, "")
                if same:
                    self.counts[f"nvdisasm text {kind}"] += 1
                else:
                    policy = POLICY in ours.canonical and ours.canonical.replace(POLICY, DESCRIPTOR) == text
                    self._encoded(text, word, "nvdisasm text ", policy)

    def _encoded(self, text: str, word: int, prefix: str, policy: bool = False) -> str:
        try:
            made = self.isa.encode(text, Control.from_word(word), PC)
        except GWatchError as error:
            kind = "ambiguous" if error.code in ("encode-ambiguous", "operand-hidden") else "refused"
            self.note(prefix + kind, text, word, str(error))
            return kind
        if made == word:
            self.counts[f"{prefix}exact"] += 1
            self.counts[f"{prefix}by rule"] += not self.isa.seen_in_compiler_code(word)
            return "exact"
        kind = "another's" if policy and self.isa.decode(made, PC).canonical == text else "wrong"
        self.note(f"{prefix}{kind}", text, word, f"{made:032x}")
        return kind


def mutate(words: Words, count: int, seed: int) -> list[int]:
    """Random mutations: operand fields and one or two other bits changed, control word that suits every opcode."""
    rng = random.Random(seed)
    out = []
    plain = Control().to_bits()
    for _ in range(count):
        low_half, high_half = words[rng.randrange(len(words))].tolist()
        word = (low_half | high_half << 64) & ~CONTROL_MASK | plain
        for low, width in ((16, 8), (24, 8), (32, 8), (64, 8), (81, 3), (87, 3)):
            if rng.random() < 0.3:
                mask = (1 << width) - 1
                word = word & ~(mask << low) | rng.choice((0, mask, rng.getrandbits(width))) << low
        for _ in range(rng.randrange(3)):
            word ^= 1 << rng.choice([b for b in range(16, 105) if b != 91])
        out.append(word)
    return out


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch")
    parser.add_argument("sources", type=Path, nargs="*")
    parser.add_argument("--include", action="append", default=[], help="only cubins whose name contains this")
    parser.add_argument("--exclude", action="append", default=[], help="leave these out")
    parser.add_argument("--random", type=int, default=0, help="also compare the text of N random mutations")
    parser.add_argument("--limit", type=int, help="at most this many distinct words, evenly spread")
    parser.add_argument("--table", type=Path, help="another table file than the packaged one")
    parser.add_argument("--examples", type=int, default=12, help="failures to print (default 12)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    isa = IsaClass(arch, Table(options.table.read_text(encoding="utf-8"), options.table.stem, arch.name)) \
        if options.table else isa_for(arch)
    total, words = source_words(options.sources or [ROOT / ".corpus"], arch, options.include, options.exclude)
    if not len(words):
        print(f"no {arch.name} words found; run tools/fetch_corpus.py", file=sys.stderr)
        return 2
    if options.limit and len(words) > options.limit:
        words = words[np.linspace(0, len(words) - 1, options.limit).astype(np.int64)]
    real = Comparison(isa)
    for start in range(0, len(words), CHUNK):
        real.add([low | high << 64 for low, high in words[start:start + CHUNK].tolist()], True)
        if sys.stderr.isatty():
            print(f"\r{min(start + CHUNK, len(words))} of {len(words)} words", end="", file=sys.stderr)
    counts = real.counts
    result: dict[str, object] = {"arch": arch.name, "words": total, "distinct": len(words)}
    result |= dict(sorted(counts.items()))
    bad = counts["wrong"] + counts["text unequal"] + counts["nvdisasm text wrong"]
    examples = list(real.examples.values())
    if options.random:
        guessed = Comparison(isa)
        guessed.add(mutate(words, options.random, 1), False)
        result |= {f"random {k}": v for k, v in sorted(guessed.counts.items())}
        examples += guessed.examples.values()
        bad += guessed.counts["text unequal"]
    if options.json:
        print(json.dumps({**result, "examples": examples}, indent=1))
    else:
        tried = max(1, len(words) - counts["undecodable"])
        for name, value in result.items():
            share = f"{100 * value / tried:9.4f} %" if isinstance(value, int) and name in counts else ""
            print(f"{name:24} {value!s:>12} {share}")
        for example in examples[:options.examples]:
            print(f"  {example['kind']:12} {example['word']}  {example['text']}  |  {example['detail']}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
