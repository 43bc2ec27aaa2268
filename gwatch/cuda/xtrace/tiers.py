"""The two tiers of a trace: what is recorded where, and how the patched image is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gwatch.cuda.binary.constants import CONSTANT3
from gwatch.cuda.images import ImageStore
from gwatch.cuda.trace.ptxfind import find_ptx
from gwatch.cuda.trace.ptxplan import PtxPlan, PtxScopes, plan_ptx, ptx_scopes
from gwatch.cuda.xtrace.prepare import Planned, Request, Target, plan
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.cuda.xtrace.scopes import Scopes, merge, scope_sites
from gwatch.errors import SiteError, TraceError, UnsupportedError
from gwatch.rewrite.trace import SassTraceSite


class Work(Protocol):
    """What is to be done with one kernel."""

    @property
    def request(self) -> Request:
        """What is recorded."""

    def plan(self, duration_ns: float) -> Planned:
        """The patched image for a launch that takes this long untraced, at most."""

    def finish(self, result: TraceResult) -> None:
        """Make the tier's result of what was built."""


@dataclass(frozen=True, slots=True)
class SassWork:
    """Records in the machine code: at sites, or at markers (``scopes``)."""

    target: Target
    request: Request
    scopes: Scopes | None = None

    def plan(self, duration_ns: float) -> Planned:
        """Raises what :func:`gwatch.rewrite.trace.plan_trace` raises."""
        return plan(self.target, self.request, duration_ns)

    def finish(self, result: TraceResult) -> None:
        """Raises TraceError ``[scope-diverged]``."""
        if self.scopes is not None:
            merge(result, self.scopes)


@dataclass(slots=True)
class PtxWork:
    """Records in the PTX, compiled anew."""

    target: Target
    request: Request
    found: PtxScopes
    planned: PtxPlan | None = None

    def plan(self, duration_ns: float) -> Planned:
        """Raises what :func:`gwatch.cuda.trace.ptxplan.plan_ptx` raises."""
        target = self.target
        self.planned = plan_ptx(
            self.found,
            target.cubin,
            target.kernel,
            constants=any(item.section == CONSTANT3 for item in target.reached),
            clock=self.request.clock,
            depth=self.request.depth,
            keep=self.request.keep,
            duration_ns=duration_ns,
        )
        return self.planned

    def finish(self, result: TraceResult) -> None:
        """Raises TraceError ``[scope-diverged]``."""
        assert self.planned is not None
        compiled = result["compile_results"]
        compiled["instrumentation_level"] = "ptx"
        for when in ("origin", "trace"):
            compiled[f"{when}_reg_used [overall]"] = compiled[f"{when}_reg_used [avg]"]
        compiled["compiler"] = self.planned.compiler
        for machine_code in ("splice_results", "listing"):
            result.pop(machine_code, None)
        merge(result, self.found.scopes)


def sass_work(
    target: Target,
    request: Request,
    sites: Sequence[SassTraceSite] | None,
    names: Mapping[int, str],
    depth: int | None,
    *,
    warp_level: bool,
) -> SassWork:
    """Sites where they are given, else the kernel's markers; ``depth`` records per lane, None: a default.

    Raises SiteError as :func:`~gwatch.cuda.xtrace.scopes.scope_sites`, and ``[scope-names]``; TraceError
    ``[sites-missing]``.
    """
    if sites:
        if names or warp_level:
            raise SiteError(
                "scope-names",
                "scope_name_map and warp_level belong to scope markers, and sass_trace_sites are given",
                "leave sass_trace_sites out to trace the markers, or say label= and warp_level= per site",
            )
        kept = request.depth if depth is None else depth
        return SassWork(target, replace(request, sites=tuple(sites), depth=kept))
    if sites is not None:
        raise TraceError(
            "sites-missing",
            "sass_trace_sites is empty",
            "give at least one SassTraceSite(instruction_index), or leave it out to trace the kernel's scope markers",
        )
    found, scopes = scope_sites(target.kernel, names, warp_level)
    return SassWork(
        target,
        replace(request, sites=found, depth=depth if depth is not None else scopes.default_depth()),
        scopes,
    )


def ptx_work(
    target: Target,
    request: Request,
    store: ImageStore,
    dsl: str,
    given: object,
    names: Mapping[int, str],
    depth: int | None,
    *,
    warp_level: bool,
) -> PtxWork:
    """The markers in a kernel's PTX.

    Raises what :func:`~gwatch.cuda.trace.ptxfind.find_ptx` and :func:`~gwatch.cuda.trace.ptxplan.ptx_scopes` raise.
    """
    facts = target.seen[0].facts
    module = find_ptx(target.cubin, target.kernel, facts.owner, facts.handle, dsl, store, given)
    found = ptx_scopes(module, target.symbol, names, warp_level)
    wanted = depth if depth is not None else found.scopes.default_depth()
    return PtxWork(target, replace(request, depth=wanted), found)


def check_ptx_arguments(sites: object, excluded: object) -> None:
    """Raises UnsupportedError ``[ptx-sites]`` for what needs machine code."""
    for name, given in (("sass_trace_sites", sites), ("sass_excluded_registers", excluded)):
        if given:
            raise UnsupportedError(
                "ptx-sites",
                f"{name} belongs to the SASS tier",
                "say instrumentation_tier='sass', or trace scope markers on the PTX tier",
            )
