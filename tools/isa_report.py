#!/usr/bin/env python3
"""Measure an ISA table against nvdisasm over distinct instruction words.

    python tools/isa_report.py sm_90a [FOLDER_OR_FILE ...] [--include LIB] [--exclude LIB] [--random N] [--json]

Sources: folders of cubins named ``sm_90a-….cubin``, single cubins, or raw files of 16-byte little-endian words
(``*.bin``); default: .corpus. Every distinct word (control bits included) is decoded and compared with nvdisasm's text
letter by letter, and its nvdisasm text is encoded and compared with the word bit by bit:

exact      the same word          ambiguous  several known words have this text: refused
refused    refused by name        wrong      another word (the build fails on one)

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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning.corpus import cubins, text_words  # noqa: E402

from gwatch.errors import GWatchError  # noqa: E402
from gwatch.sass.arch import arch_by_name  # noqa: E402
from gwatch.sass.control import CONTROL_MASK, Control  # noqa: E402
from gwatch.sass.isa import Isa, isa_for  # noqa: E402
from gwatch.sass.isa.isa import Isa as IsaClass  # noqa: E402
from gwatch.sass.isa.table import Table  # noqa: E402
from gwatch.sass.nvdisasm import disassemble_words  # noqa: E402

PC = 0x10000000


def source_words(sources: list[Path], number: int, include: list[str], exclude: list[str]) -> tuple[int, list[int]]:
    """(count of words, sorted distinct words) of all sources."""
    words: set[int] = set()
    total = 0
    for source in sources:
        paths = cubins([source], number, exclude, include) if source.is_dir() else [source]
        for path in paths:
            if path.suffix == ".bin":
                data = path.read_bytes()
                found = [int.from_bytes(data[i:i + 16], "little") for i in range(0, len(data) - 15, 16)]
            else:
                found = list(text_words(path))
            total += len(found)
            words.update(found)
    return total, sorted(words)


def compare(isa: Isa, arch: str, words: list[int], encode: bool) -> tuple[Counter[str], list[dict[str, str]]]:
    """Counts and the first examples of every kind of failure."""
    counts: Counter[str] = Counter()
    examples: dict[tuple[str, str], dict[str, str]] = {}

    def note(kind: str, text: str, word: int, detail: str) -> None:
        counts[kind] += 1
        examples.setdefault((kind, text.split(" ")[0] + detail.split("]")[0]),
                            {"kind": kind, "text": text, "word": f"{word:032x}", "detail": detail})

    for word, text in zip(words, disassemble_words(arch, words, pc=PC, mostly_valid=encode), strict=True):
        if text is None or "INVALID" in text or "???" in text:
            counts["undecodable"] += 1
            continue
        text = text.rstrip(" ;")
        try:
            ours = isa.decode(word, PC).text
        except GWatchError as error:
            note("text refused", text, word, str(error))
        else:
            if ours == text:
                counts["text equal"] += 1
            else:
                note("text unequal", text, word, ours)
        if not encode:
            continue
        try:
            made = isa.encode(text, Control.from_word(word), PC)
        except GWatchError as error:
            note("ambiguous" if error.code == "encode-ambiguous" else "refused", text, word, str(error))
            continue
        if made == word:
            counts["exact"] += 1
        else:
            note("wrong", text, word, f"{made:032x}")
    return counts, list(examples.values())


def mutate(words: list[int], count: int, seed: int) -> list[int]:
    """Random mutations: operand fields and one or two other bits changed, control word that suits every opcode."""
    rng = random.Random(seed)
    out = []
    plain = Control().to_bits()
    for _ in range(count):
        word = rng.choice(words) & ~CONTROL_MASK | plain
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
    parser.add_argument("--table", type=Path, help="another table file than the packaged one")
    parser.add_argument("--examples", type=int, default=12, help="failures to print (default 12)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    isa = IsaClass(arch, Table(options.table.read_text(encoding="utf-8"), options.table.stem)) if options.table \
        else isa_for(arch)
    total, words = source_words(options.sources or [ROOT / ".corpus"], arch.number, options.include, options.exclude)
    if not words:
        print(f"no {arch.name} words found; run tools/fetch_corpus.py", file=sys.stderr)
        return 2
    counts, examples = compare(isa, arch.name, words, True)
    result: dict[str, object] = {"arch": arch.name, "words": total, "distinct": len(words), **counts}
    bad = counts["wrong"] + counts["text unequal"]
    if options.random:
        guesses, more = compare(isa, arch.name, mutate(words, options.random, 1), False)
        result |= {f"random {k}": v for k, v in guesses.items()}
        examples += more
        bad += guesses["text unequal"]
    if options.json:
        print(json.dumps({**result, "examples": examples}, indent=1))
    else:
        tried = max(1, len(words) - counts["undecodable"])
        for name, value in result.items():
            share = f"{100 * value / tried:9.4f} %" if isinstance(value, int) and name in (
                "exact", "ambiguous", "refused", "wrong", "text equal", "text unequal", "text refused") else ""
            print(f"{name:20} {value!s:>12} {share}")
        for example in examples[:options.examples]:
            print(f"  {example['kind']:12} {example['word']}  {example['text']}  |  {example['detail']}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
