#!/usr/bin/env python3
"""Write the golden file of an architecture: one line per shape that compilers use.

    python tools/isa_golden.py sm_90a [-o tests/golden/isa_sm90.txt] [--limit 2600]

A line is ``word ; text ; reads ; writes``. The text is nvdisasm's, reads and writes are nvdisasm's life ranges
(``-plr``, which need ptxas for a cubin to put the words in) wherever it prints them; where gwatch and nvdisasm disagree
nothing is written and the differences are listed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from isa_learning.ranges import Holder, Marks  # noqa: E402

from gwatch.sass.arch import arch_by_name  # noqa: E402
from gwatch.sass.control import Control  # noqa: E402
from gwatch.sass.isa import Decoded, RegUse, isa_for  # noqa: E402
from gwatch.sass.isa.effects import BRANCHES  # noqa: E402
from gwatch.sass.nvdisasm import disassemble_words  # noqa: E402


def registers(uses: tuple[RegUse, ...]) -> set[tuple[str, int]]:
    """The single registers of ``uses``, as far as life ranges show them."""
    return {(u.file, u.first + i) for u in uses for i in range(u.count) if u.file != "B"}


def disagreement(decoded: Decoded, marks: Marks | None) -> str:
    """How nvdisasm's marks differ from the decoded effects ("" = they agree).

    nvdisasm never marks UR0-UR3 nor UR63 and above, whatever uses them; these are left out. Accumulators of
    warpgroup products overlap in its ranges where a probe's input is not its output: their effects follow the shape.
    """
    if marks is None or decoded.mnemonic in BRANCHES or decoded.effects.kind == "async":
        return ""
    reads = {k for k, v in marks.items() if v in "vx"}
    writes = {k for k, v in marks.items() if v in "^x"}
    if not decoded.effects.complete:
        return ""
    out = []
    unmarked = {("UR", n) for n in (*range(4), *range(63, 256))}
    if odd := (reads ^ registers(decoded.effects.reads)) - unmarked:
        out.append(f"reads {sorted(odd)}")
    if decoded.mnemonic in ("LD", "LDG", "LDGSTS"):  # their last predicate is marked as written, but only read
        unmarked |= {k for k in writes if k[0] == "P"}
    if odd := (writes ^ registers(decoded.effects.writes)) - unmarked:
        out.append(f"writes {sorted(odd)}")
    return ", ".join(out)


def misaligned(decoded: Decoded) -> bool:
    """A probe's register group that no assembler would accept: odd start, or beyond the last register."""
    uses = (*decoded.effects.reads, *decoded.effects.writes)
    return any(u.count > 1 and (u.first % 2 or u.first + u.count > 255) for u in uses)


def line(word: int, decoded: Decoded) -> str:
    """One golden line."""
    effects = decoded.effects
    reads = " ".join(map(str, effects.reads)) if effects.complete else "?"
    writes = " ".join(map(str, effects.writes)) if effects.complete else "?"
    return f"{word:032x} ; {decoded.text} ; {reads} ; {writes}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=int, default=2600, help="lines at most, evenly spread (default 2600)")
    options = parser.parse_args()
    arch = arch_by_name(options.arch)
    isa = isa_for(arch)
    control = Control().to_bits()
    words: set[int] = set()
    for number in isa.table.numbers():
        key = isa.table.key(number)
        assert key is not None
        for form in key.forms:
            seen: set[str] = set()
            for word in form.shapes or form.probes:
                opcode = key.opcode_text(word) or ""
                if opcode not in seen and key.body(word, isa.zero) is not None:
                    seen.add(opcode)
                    words.add(word | control)
    ordered = sorted(words)
    if len(ordered) > options.limit:
        ordered = [ordered[n * len(ordered) // options.limit] for n in range(options.limit)]
    texts = disassemble_words(arch.name, ordered, pc=0)
    holder = Holder(arch.name, isa.encode("EXIT"), isa.encode("NOP"))
    plain = [w for w in ordered if isa.decode(w).mnemonic not in BRANCHES]
    marks = dict(zip(plain, holder.marks(plain), strict=True))
    lines, problems = [], []
    for word, text in zip(ordered, texts, strict=True):
        decoded = isa.decode(word)
        wanted = (text or "").rstrip(" ;")
        if decoded.text != wanted:
            problems.append(f"{word:032x} {wanted} <> {decoded.text}")
        elif misaligned(decoded):
            continue
        elif problem := disagreement(decoded, marks.get(word)):
            problems.append(f"{word:032x} {decoded.text}: {problem}")
        else:
            lines.append(line(word, decoded))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{len(problems)} of {len(ordered)} shapes disagree with nvdisasm; nothing written", file=sys.stderr)
        return 1
    output = options.output or ROOT / "tests" / "golden" / f"isa_{arch.table.replace('_', '')}.txt"
    header = f"# {arch.table}: word ; text ; reads ; writes. Written by tools/isa_golden.py.\n"
    output.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{output}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
