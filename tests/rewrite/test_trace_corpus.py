"""Trace plans for kernels of the open corpus: proved through nvdisasm, or refused by a name that is known."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from gwatch.cuda.binary.constants import read_note
from gwatch.cuda.binary.cubin import Cubin
from gwatch.cuda.binary.kernel import KernelDef
from gwatch.errors import GWatchError
from gwatch.rewrite.rewriter import Rewriter
from gwatch.rewrite.ring import DESCRIPTOR_BYTES, unarmed_descriptor
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.rewrite.verify import verify

# What a kernel may be refused for; anything else is a defect.
REFUSALS = {
    "callee-unknown",
    "jump-table",
    "launch-bounds",
    "predicates",
    "registers",
    "relocatable-object",
    "setmaxnreg",
    "site-collective",
    "site-register",
    "uniform-guard",
    "uniform-registers",
    "value-not-ready",
    "word-unknown",
}
LARGEST = 6000


def kernels(paths: list[Path], each: int, rng: random.Random) -> list[tuple[Cubin, KernelDef]]:
    chosen = []
    for path in paths:
        cubin = Cubin.from_file(path)
        found = [k for k in cubin.get_map_kernel_def().values() if len(k.words) <= LARGEST]
        chosen += [(cubin, k) for k in rng.sample(found, min(each, len(found)))]
    return chosen


def random_sites(rng: random.Random, kernel: KernelDef, last: int) -> list[SassTraceSite]:
    def place() -> int:
        return rng.choice([0, last, rng.randrange(last + 1), rng.randrange(last + 1)])

    highest = kernel.register_count - 3
    sites = [
        SassTraceSite(place()),
        SassTraceSite(place(), unconditional=True),
        SassTraceSite(place(), warp_level=True),
        SassTraceSite(place(), special="activemask"),
        SassTraceSite(place(), value_is_smid=True),
        SassTraceSite(place(), 0),
        SassTraceSite(place(), (highest - 1) // 2 * 2, 64),
    ]
    return rng.sample(sites, rng.randint(1, 4))


def test_plans_are_proved_or_refused_by_name(corpus_sm90: list[Path]) -> None:
    rng = random.Random(20)
    outcomes: Counter[str] = Counter()
    for cubin, kernel in kernels(corpus_sm90, 9, rng):
        try:
            last = Rewriter(cubin, kernel).surroundings.padding - 1
            sites = random_sites(rng, kernel, last)
            clock, keep = rng.choice(["gpu", "sm", "anchor"]), rng.choice(["newest", "first"])
            plan = plan_trace(cubin, kernel, sites, clock=clock, keep=keep, depth=1 << rng.randrange(8))
        except GWatchError as error:
            outcomes[error.code] += 1
            assert error.code in REFUSALS, f"{cubin.name} {kernel.name}: {error}"
            continue
        outcomes["planned"] += 1
        site_map = plan.site_map
        note = read_note(plan.data, NOTE_NAME)
        assert note is not None and SiteMap.from_bytes(note) == site_map
        verify(cubin.data, plan.rewritten)
        patched = Cubin.from_bytes(plan.data)
        code = patched.get_kerneldef_by_name(kernel.name)
        assert code.register_count == site_map.registers_after >= site_map.registers_before
        for number, site in enumerate(site_map.sites):
            placed = plan.rewritten.sites[1 + number]
            assert site.new_pc == 16 * placed.first and site.index == sites[number].insert_index
            if site.value.startswith("R"):
                assert any(text.endswith(f", {site.value.split(':')[0]}") for text in placed.texts)
        bank = patched.elf.content(patched.elf.find(".nv.constant3"))
        start = site_map.descriptor_offset
        assert bank[start : start + DESCRIPTOR_BYTES] == unarmed_descriptor(site_map.format)
        for name, other in patched.get_map_kernel_def().items():
            if name != kernel.name:
                assert (other.words == cubin.get_kerneldef_by_name(name).words).all()
    planned = outcomes["planned"]
    assert planned >= 20, outcomes
    # setmaxnreg kernels, jump tables and outside callees aside, plans succeed.
    lost = sum(outcomes[code] for code in ("predicates", "registers", "uniform-registers", "word-unknown"))
    assert lost <= planned * 0.05, outcomes
