"""What a kernel of the program needs before its first traced launch: its code, where to record, the patch."""

from __future__ import annotations

from dataclasses import dataclass

from gwatch.cuda.images import ImageStore
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.places import LIFETIME_DEPTH, Places, lifetimes, places_of
from gwatch.cuda.xtrace.options import DEFAULT_DEPTH, depth
from gwatch.cuda.xtrace.passes import Seen
from gwatch.cuda.xtrace.prepare import Request, Target, plan, target_of
from gwatch.errors import SiteError, UnsupportedError
from gwatch.rewrite.ring import LANES
from gwatch.rewrite.trace import TracePlan

TESTED = ("sm_90", "sm_90a")
MOST_DEPTH = 1024
_RECORD_BYTES = 16


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
    if options.timeout is not None and not options.own_sites:
        try:
            return _planned(target, places, seen, options, duration_ns)
        except SiteError:
            places = lifetimes(target.kernel)  # one of the places found is none where code can be inserted
    return _planned(target, places, seen, options, duration_ns)


def _planned(
    target: Target, places: Places, seen: Seen, options: ProgramOptions, duration_ns: float | None
) -> Prepared:
    request = Request(
        places.sites,
        options.clock,
        _depth(places, seen, options),
        options.keep,
        {},
        options.ring_bytes,
        options.cta or None,
        "first_feasible",
        True,
        options.ctas,
        options.timeout is None,
    )
    return Prepared(target, places, plan(target, request, duration_ns or 0.0), request)


def _depth(places: Places, seen: Seen, options: ProgramOptions) -> int:
    """Records kept per lane, where the user did not say: as many as the memory holds for every CTA."""
    if options.depth is not None:
        return depth(options.depth)
    if places.lifetime:
        return LIFETIME_DEPTH
    launch = seen.launch
    warps = -(-launch.threads // LANES) * min(launch.ctas, options.ctas or launch.ctas)
    fitting = options.ring_bytes // (2 * warps * LANES * _RECORD_BYTES)
    return max(DEFAULT_DEPTH, min(MOST_DEPTH, 1 << max(fitting.bit_length() - 1, 0)))
