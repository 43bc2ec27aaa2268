#!/usr/bin/env python3
"""Learn the ISA table of a family of architectures from nvdisasm probes and compiler words.

    python tools/learn_isa.py sm_90a [--targets sm_90 ...] [--corpus DIR ...] [--exclude LIBRARY ...] [-o FILE]

The named architecture is learned in full; the others of its table (``--targets``, default all that nvdisasm knows) are
held against it, and only what differs is learned again. Needs nvdisasm ($GWATCH_NVDISASM, else the installed wheel's)
and ptxas (the first in PATH), no GPU. Deterministic: the same tools, corpus and options give the same file, with the
answers kept by earlier runs and without (--no-cache). The table names both tools' versions. See isa/README.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning.cache import words_once  # noqa: E402
from isa_learning.control_facts import control_facts  # noqa: E402
from isa_learning.corpus import WORDS, corpus_words, cubins, listed_words  # noqa: E402
from isa_learning.family import Family, Options, Source, meanings  # noqa: E402
from isa_learning.probe import Prober, probing_word  # noqa: E402
from isa_learning.sources import OWN, groups, own_inputs, own_words, ptxas_version  # noqa: E402

from gwatch.errors import ToolError  # noqa: E402
from gwatch.sass.arch import ARCHES, Arch, arch_by_name  # noqa: E402
from gwatch.sass.isa import table  # noqa: E402
from gwatch.sass.nvdisasm import version  # noqa: E402

APART = {107}
"""SM numbers that spell and admit things which no other member of their family does: in no table."""


def family_of(arch: Arch, names: list[str] | None, use_cache: bool) -> list[Prober]:
    """Probers of ``arch`` and of the other architectures of its table that nvdisasm knows."""
    others = [arch_by_name(n) for n in names] if names is not None else [
        a for a in ARCHES.values() if a.table == arch.table and a.number not in APART]
    found = [Prober(arch.name, use_cache)]
    for other in sorted(others, key=lambda a: (a.number != arch.number, a.suffix != "a", a.number, a.suffix)):
        if other.name != arch.name:
            prober = Prober(other.name, use_cache)
            try:
                prober.texts([(1 << 105) - 1])
            except ToolError:
                continue
            found.append(prober)
    return found


def first_of(probers: Sequence[Prober], number: int) -> str:
    """The first target of SM ``number``: it reads what compilers wrote for any suffix."""
    return next(p.arch for p in probers if arch_by_name(p.arch).number == number)


def probing_words(words: Iterable[int]) -> set[int]:
    """The words as they are asked, control bits and guard apart."""
    return {probing_word(word) for word in words}


def count(sources: Iterable[Source]) -> int:
    """Distinct words."""
    return len({w for source in sources for w in source.words})


def spelled_apart(arch: Arch, probers: Sequence[Prober]) -> list[str]:
    """One target per other SM number of the family for which compilers spell something else than for ``arch``."""
    first: dict[int, Arch] = {}
    for prober in probers:
        other = arch_by_name(prober.arch)
        first.setdefault(other.number, other)
    return [other.name for other in first.values() if other.minimum != arch.minimum]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", help="architecture to learn in full, e.g. sm_90a")
    parser.add_argument("--targets", nargs="*", help="the other architectures of the table (default: all)")
    parser.add_argument("--corpus", type=Path, action="append", help="folder of cubins (default: .corpus)")
    parser.add_argument("--words", type=Path, help="words of other libraries (default: isa_learning/words/<table>.txt)")
    parser.add_argument("--exclude", action="append", default=[], help="leave out libraries whose name contains this")
    parser.add_argument("--rounds", type=int, default=4, help="guess-and-check rounds (default 4)")
    parser.add_argument("--per-key", type=int, default=80, help="guesses per key and round (default 80)")
    parser.add_argument("--real-keys-only", action="store_true", help="learn only opcodes that compilers use")
    parser.add_argument("--no-own-sources", action="store_true", help="leave out our own PTX")
    parser.add_argument("--own", action="append", metavar="ARCH", help="compile our own PTX for this target, too "
                        "(default: for one of each SM number whose compilers spell minima differently)")
    parser.add_argument("--no-effects", action="store_true", help="leave out reads and writes")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="ask and compile everything anew")
    parser.add_argument("-o", "--output", type=Path, help="table file (default: isa/<table>.jsonl)")
    parser.add_argument("--report", type=Path, help="write counts per key here (JSON)")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    started = time.monotonic()
    gc.disable()  # millions of samples, hardly a cycle among them: looking for some takes a tenth of the time

    def log(message: str) -> None:
        used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(f"{time.monotonic() - started:6.1f} s, {used:6.1f} s of CPU  {message}", flush=True)

    corpora = options.corpus or [ROOT / ".corpus"]
    probers = family_of(arch, options.targets, options.cache)
    numbers = sorted({arch_by_name(p.arch).number for p in probers})
    listed_in = options.words or WORDS / f"{arch.table}.txt"
    listed = {n: listed_words(listed_in, n, options.exclude) if listed_in.is_file() else {} for n in numbers}
    sources = [Source(first_of(probers, n), project, probing_words(found)) for n in numbers
               for project, found in chain(corpus_words(corpora, n, options.exclude).items(), listed[n].items())]
    if not sources:
        print(f"no {arch.name} cubin in {', '.join(map(str, corpora))}; run tools/fetch_corpus.py", file=sys.stderr)
        return 2
    log(f"{' '.join(p.arch for p in probers)}: {count(sources)} distinct compiler words")
    own: set[int] = set()
    if not options.no_own_sources:
        others = spelled_apart(arch, probers) if options.own is None else options.own
        featured = [p.arch for p in probers if p.arch[-1] == "a" and arch_by_name(p.arch).number != arch.number]
        for name, (kernels, how) in chain(product([arch.name, *others], groups()),
                                          product(sorted({*featured} - {*others}), groups(every=False))):
            made = words_once(own_inputs(name, kernels, how), partial(own_words, name, kernels, how)) \
                if options.cache else own_words(name, kernels, how)
            own |= made
            sources.append(Source(name, OWN, probing_words(made)))
        log(f"{len(own)} words of own sources, {count(sources)} distinct words in all")
    found_in = [p for n in numbers for p in cubins(corpora, n, options.exclude)]
    facts = partial(control_facts, found_in, own.union(*(w for of in listed.values() for w in of.values())))
    zero = {"R": arch.register_zero, "U": arch.uniform_zero, "P": arch.predicate_true, "Q": arch.predicate_true}
    family = Family(zero, log, Options(options.rounds, options.per_key, not options.real_keys_only,
                                       not options.no_effects))
    output = options.output or ROOT / "isa" / f"{arch.table}.jsonl"
    made_by = {"nvdisasm": version()}
    if not options.no_own_sources or not options.no_effects:
        made_by["ptxas"] = ptxas_version()
    meant = meanings(probers, sources)
    for prober in probers:
        family.learn(prober, meant[prober.arch], facts)
        models = family.models()
        text = table.dump({"arch": arch.table, **made_by, "targets": family.targets}, models)
        table.write(output.with_suffix(".part"), text)
    output.with_suffix(".part").replace(output)
    log(f"{output}: {len(text)} bytes, {len(models)} opcodes; {sum(p.count for p in probers)} words asked in "
        f"{sum(p.runs for p in probers)} runs")
    if options.report:
        options.report.write_text(json.dumps(family.reports, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
