#!/usr/bin/env python3
"""Which part of a record costs what: the warp-specialised Hopper product, recorded with parts of the record left out.

    python tools/bench/ablation.py [--rounds 60] [--json] [--dry]

Launches of the marked kernel without records and of each variant by turns in random order; extra time against the
kernel without records, with its 95 % interval. ``--dry`` plans the variants and runs nothing: no GPU needed. Records
that lack a part are no records; this is for deciding what to make cheaper.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), str(ROOT / "examples/cuda/trace")]

import trace_cuda_hgmma_matmul as example  # noqa: E402

from gwatch.cuda.binary.cubin import Cubin  # noqa: E402
from gwatch.cuda.xtrace.scopes import scope_sites  # noqa: E402
from gwatch.rewrite import builtin  # noqa: E402
from gwatch.rewrite.snippet import Snippet  # noqa: E402
from gwatch.rewrite.trace import plan_trace  # noqa: E402

Change = Callable[[list[str]], list[str]]


def _without(pattern: str) -> Change:
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def _only(pattern: str) -> Change:
    return lambda lines: [line for line in lines if re.search(pattern, line)]


def _instead(pattern: str, text: str) -> Change:
    return lambda lines: [re.sub(pattern, text, line) for line in lines]


RECORDS: dict[str, Change] = {
    "whole": lambda lines: lines,
    "no store": _without("STG"),
    "store kept in L2 as usual": _instead(r"STG\.E\.EF", "STG.E"),
    "store by all lanes": lambda lines: _instead("@%elected ", "")(_without("ELECT")(lines)),
    "clock, tag and counter": lambda lines: _instead("@%elected ", "")(_only(r"CS2R|IADD3|\{site\}")(lines)),
    "NOPs instead": lambda lines: [line if "{site}" in line else "NOP" for line in lines],
}
SCOPES: dict[str, tuple[int, ...]] = {
    "one scope per role": (2, 4),
    "producer alone": (1, 2),
    "consumers alone": (3, 4),
}


def variants(cubin: Cubin, depth: int = 64) -> dict[str, bytes]:
    """The patched images by name."""
    kernel = cubin.get_kerneldef_by_name(example.KERNEL)
    sites, _ = scope_sites(kernel, example.NAMES, True)
    whole = builtin.record
    images = {}
    for name, change in RECORDS.items():

        def changed(*given: Any, change: Change = change) -> Snippet:
            made = whole(*given)
            return replace(made, text="\n".join(change(made.text.splitlines())))

        builtin.record = changed
        try:
            images[name] = plan_trace(cubin, kernel, sites, clock="sm", depth=depth).data
        finally:
            builtin.record = whole
    for name, scopes in SCOPES.items():
        labels = {f"{example.NAMES[scope]} {end}" for scope in scopes for end in ("start", "end")}
        chosen = [site for site in sites if site.label in labels]
        assert len(chosen) == 2 * len(scopes), (name, [site.label for site in sites])
        images[name] = plan_trace(cubin, kernel, chosen, clock="sm", depth=depth).data
    return images


def measure(marked: Path, images: dict[str, bytes], rounds: int) -> list[dict[str, str]]:
    """Rows of variant and extra time."""
    from gpu_checks.pairs import against, interleave
    from gpu_checks.scopes import GEMM

    from gwatch.cuda.launcher import Launcher

    product = example.Product(*GEMM)
    launchers: dict[str, Launcher] = {
        name: Launcher(image, example.KERNEL)
        for name, image in {"no records": marked, "no records again": marked, **images}.items()
    }

    def run(name: str) -> float:
        product.launch(launchers[name])
        return launchers[name].duration_ms() or 0.0

    times = interleave({name: (lambda name=name: run(name)) for name in launchers}, rounds)
    for launcher in launchers.values():
        launcher.close()
    return [
        {"variant": name, "extra": str(against(times, "no records", name))}
        for name in launchers
        if name != "no records"
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which part of a record costs what.")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dry", action="store_true", help="plan only")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        marked = example.build(Path(folder))
        images = variants(Cubin.from_file(marked))
        rows = (
            [{"variant": name, "extra": f"{len(image)} bytes"} for name, image in images.items()]
            if args.dry
            else measure(marked, images, args.rounds)
        )
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['variant']:28} {row['extra']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
