"""A case: one kernel, random insertions. All of it follows from (seed, file, kernel, number)."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from gwatch.cuda.binary import Cubin, KernelDef
from gwatch.cuda.binary.constants import add_constant3
from gwatch.errors import GWatchError
from gwatch.rewrite import Rewriter, Rewritten, Snippet
from gwatch.rewrite.ring import DESCRIPTOR_BYTES
from gwatch.rewrite.surroundings import Surroundings
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.sass.cfg import Cfg, Flow
from gwatch.sass.isa import isa_for

SNIPPETS = 0.25
"""Share of cases that insert random snippets instead of records."""
SCOPES = 0.35
"""Share of the others whose sites are as those of scopes: without values, of one level."""
COUNTS = (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64)
_STATELESS = (
    "LOP3.LUT {a}, {b}, 0xff, RZ, 0xc0, !PT",
    "SHF.L.U32 {a}, {b}, 0x3, RZ",
    "IMAD {a}, {b}, 0x5, {c}",
    "FADD {a}, {b}, {c}",
    "FFMA {a}, {b}, {c}, {b}",
    "IMAD.MOV.U32 {a}, RZ, RZ, {b}",
    "POPC {a}, {b}",
    "MUFU.RCP {a}, {b}",
    "SEL {a}, {b}, {c}, %p0",
)
_SOURCES = (
    "CS2R.32 {a}, SR_CLOCKLO",
    "S2R {a}, SR_TID.X",
    "IMAD.MOV.U32 {a}, RZ, RZ, 0x7",
    "LDC {a}, c[0x0][0x0]",
)


@dataclass(frozen=True, slots=True)
class Case:
    """Random insertions into ``kernel`` of ``cubin``; ``name`` is what ``--case`` takes to make it again."""

    cubin: Cubin
    kernel: str
    name: str
    sites: tuple[SassTraceSite, ...] = ()
    clock: str = "gpu"
    keep: str = "newest"
    depth: int = 32
    snippets: tuple[tuple[int, Snippet], ...] = ()

    def __len__(self) -> int:
        return len(self.sites) or len(self.snippets)

    def part(self, chosen: Sequence[int]) -> Case:
        """The same case with only some of its insertions."""
        return Case(
            self.cubin,
            self.kernel,
            self.name,
            tuple(self.sites[i] for i in chosen) if self.sites else (),
            self.clock,
            self.keep,
            self.depth,
            tuple(self.snippets[i] for i in chosen) if self.snippets else (),
        )

    def build(self) -> tuple[bytes, Rewritten, bytes]:
        """(image before, rewrite, image after); raises what the rewriter refuses with."""
        if self.snippets:
            rewriter = Rewriter(self.cubin, self.kernel)
            for index, snippet in self.snippets:
                rewriter.insert(index, snippet)
            rewritten = rewriter.apply()
            return self.cubin.data, rewritten, rewritten.data
        plan = plan_trace(
            self.cubin, self.kernel, self.sites, clock=self.clock, keep=self.keep, depth=self.depth
        )
        site_map = plan.site_map
        before, _ = add_constant3(self.cubin.data, site_map.descriptor_symbol, DESCRIPTOR_BYTES, b"")
        return before, plan.rewritten, plan.data


def rng_of(seed: int, file: str, kernel: str, number: int) -> random.Random:
    """The random numbers of one case."""
    text = f"{seed}|{file}|{kernel}|{number}"
    return random.Random(hashlib.sha256(text.encode()).digest())


def make_case(
    cubin: Cubin, kernel: KernelDef, seed: int, file: str, number: int, snippets: bool = True
) -> Case:
    """Case ``number`` of a kernel. Raises GWatchError when its control flow can't be read."""
    rng = rng_of(seed, file, kernel.name, number)
    around = Rewriter(cubin, kernel).surroundings
    weights = place_weights(around.cfg, around.padding)
    count = min(rng.choice(COUNTS), around.padding)
    places = sorted(rng.choices(range(around.padding), weights, k=count))
    # The first and the last instruction are where things go wrong.
    places[0] = rng.choice([0, places[0], places[0]])
    places[-1] = rng.choice([around.padding - 1, places[-1], places[-1]])
    name = f"{seed}:{number}"
    if snippets and rng.random() < SNIPPETS:
        chosen = tuple((place, random_snippet(rng, n)) for n, place in enumerate(places))
        return Case(cubin, kernel.name, name, snippets=chosen)
    known = written_before(around, places)
    sites = tuple(random_site(rng, kernel, place, known[place]) for place in places)
    if rng.random() < SCOPES:
        by_warp = rng.random() < 0.6
        sites = tuple(SassTraceSite(place, warp_level=by_warp, unconditional=True) for place in places)
    return Case(
        cubin,
        kernel.name,
        name,
        sites,
        rng.choice(["gpu", "sm", "anchor"]),
        rng.choice(["newest", "first"]),
        1 << rng.randrange(1, 8),
    )


def written_before(around: Surroundings, places: Sequence[int]) -> dict[int, int]:
    """Per place the general registers (a mask) that something may have written by then.

    Who asks for another is refused, and the good sites are then built several times to find the bad one.
    """
    blocks, writes = around.cfg.blocks, list(around.view.masks("R").writes)
    everything = (1 << 255) - 1
    for index in around.leaves:
        writes[index] = everything
    number_of = {block.start: number for number, block in enumerate(blocks)}
    before = [0] * len(blocks)
    for entry in around.cfg.entries:
        before[number_of[entry]] = everything if entry else 0
    within = [reduce(or_, writes[block.start : block.end], 0) for block in blocks]
    work = list(range(len(blocks)))
    while work:
        number = work.pop()
        found = before[number] | within[number]
        for item in around.cfg.successors(blocks[number].end - 1):
            if found & ~before[number_of[item]]:
                before[number_of[item]] |= found
                work.append(number_of[item])
    starts = [block.start for block in blocks]
    out = {}
    for place in places:
        number = bisect_right(starts, place) - 1
        out[place] = reduce(or_, writes[starts[number] : place], before[number])
    return out


def random_site(rng: random.Random, kernel: KernelDef, place: int, known: int) -> SassTraceSite:
    """A site before instruction ``place``: any kind of value that is among the ``known`` registers (a mask), warp or
    thread level, guarded or not.
    """
    fields: dict[str, object] = {}
    kind = rng.choice(
        ["none", "none", "none", "smid", "activemask", "ns", "written", "written", "any", "wide"]
    )
    if kind == "smid":
        fields["value_is_smid"] = True
    elif kind in ("activemask", "ns"):
        fields["special"] = kind
    elif kind in ("written", "any", "wide"):
        register = rng.randrange(max(1, kernel.register_count - 2))
        if kind == "written" and place:
            before = rng.randrange(max(0, place - 6), place)
            word = int(kernel.words[before, 0]) | int(kernel.words[before, 1]) << 64
            try:
                writes = [
                    use for use in isa_for(kernel.arch.name).decode(word).effects.writes if use.file == "R"
                ]
            except GWatchError:
                writes = []
            if writes:
                register = writes[0].first
        width = 2 if kind == "wide" else 1
        starts = [
            start
            for start in range(0, kernel.register_count - 1 - width, width)
            if (known >> start & (1 << width) - 1) == (1 << width) - 1
        ]
        if starts:
            fields["value_reg"] = min(starts, key=lambda start: abs(start - register))
            fields["value_width_bits"] = 32 * width
    return SassTraceSite(
        place,
        warp_level=rng.random() < 0.4,
        unconditional=rng.random() < 0.25,
        **fields,  # type: ignore[arg-type]
    )


def random_snippet(rng: random.Random, number: int) -> Snippet:
    """Scratch registers only; each read is of something written before."""
    names = ["%a", "%b", "%c", "%d"][: rng.randint(2, 4)]
    lines = [rng.choice(_SOURCES).format(a=name) for name in names]
    lines.append(f"ISETP.NE.AND %p0, PT, {rng.choice(names)}, RZ, PT")
    for _ in range(rng.randrange(1, 9)):
        line = rng.choice(_STATELESS).format(a=rng.choice(names), b=rng.choice(names), c=rng.choice(names))
        lines.append(("@%p0 " if rng.random() < 0.3 else "@%guard " if rng.random() < 0.2 else "") + line)
    return Snippet(
        "\n".join(lines), registers={name[1:]: 1 for name in names}, name=f"random snippet {number}"
    )


def place_weights(cfg: Cfg, count: int) -> list[float]:
    """Weights of the places: 4 times as much per loop around them, so that sites fall where the time goes."""
    depth = np.zeros(count + 1)
    back = np.flatnonzero((cfg.flow.kind == Flow.BRANCH) & (cfg.flow.target >= 0))
    for index in back.tolist():
        target = int(cfg.flow.target[index])
        if target < index < count:
            depth[target] += 1
            depth[index + 1] -= 1
    weights: list[float] = (4.0 ** np.minimum(np.cumsum(depth)[:count], 3)).tolist()
    return weights
