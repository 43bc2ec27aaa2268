"""What a kernel of the program needs before its first traced launch: its code, where to record, the patch."""

from __future__ import annotations

from dataclasses import dataclass

from gwatch.cuda.images import ImageStore
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.places import LIFETIME_DEPTH, Places, places_of
from gwatch.cuda.xtrace.options import depth
from gwatch.cuda.xtrace.passes import Seen
from gwatch.cuda.xtrace.prepare import Request, Target, plan, target_of
from gwatch.errors import UnsupportedError
from gwatch.rewrite.trace import TracePlan

TESTED = ("sm_90", "sm_90a")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel ready to be traced."""

    target: Target
    places: Places
    planned: TracePlan
    request: Request


def prepare(seen: Seen, store: ImageStore, options: ProgramOptions, duration_ns: float | None) -> Prepared:
    """Find and patch the kernel of a launch; ``duration_ns`` is how long its launches take, if known.

    Raises TraceError ``[image-not-found]``, UnsupportedError ``[arch-untested]`` and what the rewrite
    refuses, all before anything is loaded.
    """
    target = target_of(seen, store)
    arch = target.kernel.arch.name
    if arch not in TESTED and not options.untested_arch:
        raise UnsupportedError(
            "arch-untested",
            f"{target.symbol} is {arch} code; traces were checked on {' and '.join(TESTED)} only",
            "--untested-arch tries it all the same",
        )
    places = places_of(target.kernel, options)
    request = Request(
        places.sites,
        options.clock,
        LIFETIME_DEPTH if places.lifetime and options.depth is None else depth(options.depth),
        options.keep,
        {},
        options.ring_bytes,
        options.cta or None,
        "first_feasible",
        True,
        options.ctas,
    )
    return Prepared(target, places, plan(target, request, duration_ns or 0.0), request)
