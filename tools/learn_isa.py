#!/usr/bin/env python3
"""Learn the ISA table of one architecture from nvdisasm probes and compiler words.

    python tools/learn_isa.py sm_90a [--corpus DIR ...] [--exclude LIBRARY ...] [-o isa/sm_90.jsonl]

Needs nvdisasm, no GPU. Deterministic: the same nvdisasm, corpus and options give the same file. See isa/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning.cache import words_once  # noqa: E402
from isa_learning.control_facts import control_facts, note_kinds  # noqa: E402
from isa_learning.corpus import corpus_words, cubins  # noqa: E402
from isa_learning.effects import learn_effects  # noqa: E402
from isa_learning.enumerate_keys import seed_words  # noqa: E402
from isa_learning.learn import Learner  # noqa: E402
from isa_learning.probe import Prober  # noqa: E402
from isa_learning.ranges import Holder  # noqa: E402
from isa_learning.sources import own_inputs, own_words, plain  # noqa: E402

from gwatch.sass.arch import arch_by_name  # noqa: E402
from gwatch.sass.isa import table  # noqa: E402
from gwatch.sass.isa.table import Table  # noqa: E402
from gwatch.sass.nvdisasm import version  # noqa: E402


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", help="architecture, e.g. sm_90a")
    parser.add_argument("--corpus", type=Path, action="append", help="folder of cubins (default: .corpus)")
    parser.add_argument("--exclude", action="append", default=[], help="leave out cubins whose name contains this")
    parser.add_argument("--rounds", type=int, default=6, help="guess-and-check rounds (default 6)")
    parser.add_argument("--per-key", type=int, default=100, help="guesses per key and round (default 100)")
    parser.add_argument("--real-keys-only", action="store_true", help="learn only opcodes that compilers use")
    parser.add_argument("--keep", type=Path, help="take over the opcodes of this table that read all compiler words")
    parser.add_argument("--no-own-sources", action="store_true", help="leave out our own PTX (it needs ptxas)")
    parser.add_argument("--no-effects", action="store_true", help="leave out reads and writes (they need ptxas)")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="ask and compile everything anew")
    parser.add_argument("-o", "--output", type=Path, help="table file (default: isa/<table>.jsonl)")
    parser.add_argument("--report", type=Path, help="write counts per key here (JSON)")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    started = time.monotonic()

    def log(message: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {message}", flush=True)

    corpora = options.corpus or [ROOT / ".corpus"]
    words = corpus_words(corpora, arch.number, options.exclude)
    if not words:
        print(f"no {arch.name} cubin in {', '.join(map(str, corpora))}; run tools/fetch_corpus.py", file=sys.stderr)
        return 2
    log(f"{len(words)} distinct compiler words")
    own: set[int] = set()
    if not options.no_own_sources:
        own = words_once(own_inputs(arch.name), lambda: own_words(arch.name)) if options.cache else own_words(arch.name)
        words = sorted({*words, *plain(own)})
        log(f"{len(own)} words of own sources, {len(words)} distinct words in all")
    zero = {"R": arch.register_zero, "U": arch.uniform_zero, "P": arch.predicate_true, "Q": arch.predicate_true}
    prober = Prober(arch.name, options.cache)
    learner = Learner(prober, zero, log)
    if options.keep:
        kept = Table(options.keep.read_text(encoding="utf-8"), options.keep.stem)
        models = [m for number in kept.numbers() if (m := kept.key(number)) is not None]
        log(f"keeping {len(models)} opcodes, {learner.keep(models, words)} to be learned again")
    learner.feed_real(words)
    if not options.real_keys_only:
        found = learner.feed(seed_words(words, learner.random))
        log(f"enumeration: {found} words of {len(learner.states)} keys, {prober.count} asked")
    learner.explore(options.rounds, options.per_key)
    learner.finish(words)
    facts = control_facts(cubins(corpora, arch.number, options.exclude), own)
    note_kinds(learner.models(), facts)
    log("control words read")
    if not options.no_effects:
        holder = Holder(arch.name, learner.word_of("EXIT"), learner.word_of("NOP"))
        log(f"effects: {learn_effects(learner, holder)}")
    text = table.dump({"arch": arch.table, "nvdisasm": version()}, learner.models())
    output = options.output or ROOT / "isa" / f"{arch.table}.jsonl"
    table.write(output, text)
    log(f"{output}: {len(text)} bytes, {len(learner.models())} keys; {prober.count} words asked in {prober.runs} runs")
    if options.report:
        options.report.write_text(json.dumps(learner.report(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
