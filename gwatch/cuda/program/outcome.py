"""What one process of the program leaves behind: ``PID.json`` with its launch table and verdicts, and
``PID.gwatch`` with the traced launches."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.cuda.capture import hooks
from gwatch.cuda.launchview import Launch
from gwatch.cuda.program.hang import hang_lines, last_seen
from gwatch.cuda.program.hostclock import host_clock
from gwatch.cuda.program.launches import untimed
from gwatch.cuda.program.options import ProgramOptions
from gwatch.cuda.program.places import merge_exits
from gwatch.cuda.program.prepared import prepare
from gwatch.cuda.program.roles import roles_of
from gwatch.cuda.program.session import Kernel, ProgramSession, Traced
from gwatch.cuda.xtrace.passes import Seen
from gwatch.cuda.xtrace.report import build
from gwatch.cuda.xtrace.result import TraceResult
from gwatch.cuda.xtrace.scopes import merge
from gwatch.errors import GWatchError, LaunchError, TraceError, printable

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")


class _Facts:
    """One traced launch as ``report.build`` wants to hear of it."""

    def __init__(self, traced: Traced) -> None:
        self.launches = {0: traced.launch}
        self.captured = {0} if traced.slot.seen.captured else set()
        self.unclaimed: list[Launch] = []  # the summary counts them


def rank() -> int | None:
    """This process's rank in a distributed program, from what its launcher put into the environment."""
    for name in _RANKS:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def collect(session: ProgramSession) -> dict[str, Any]:
    """End a session: read its rings, write the process's archive, free everything; returns its results.

    Nothing here raises for what the program did: reasons are in ``problems``, ``[code] text`` each.
    """
    options = session.options
    problems: list[str] = []
    broken = session.stop_watching()
    if broken is not None:
        problems.append(_said(broken))
    session.finish_times()
    told: list[dict[str, Any]] = []
    section = Section_IntraKernelTrace()
    several = [kernel for kernel in session.kernels.values() if kernel.wanted]
    ambiguous = bool(options.kernel) and len(several) > 1 and not options.all_kernels
    groups = [] if ambiguous or options.list_only else list(session.reported())
    for kernel, chosen in groups:
        for traced in chosen:
            try:
                result = _result(session, kernel, traced)
            except Exception as error:  # the other kernels' records are to be read all the same
                problems.append(_said(error, kernel.row.demangled))
                continue
            places = traced.prepared.places
            section.add_run(
                result, site_regions=places.regions or None, scope_roles=dict(places.roles) or None
            )
            told.append(_told(session, kernel, traced, result))
        if section.runs and not options.all_kernels:
            break
    for kernel in several:
        if kernel.refused is None and not kernel.traced and kernel.unfit:
            kernel.refused = next(iter(kernel.unfit.values()))
        if kernel.refused is not None:
            problems.append(_refusal(kernel))
    problems += _circumstances(session)
    _traceable(session)
    session.release()
    outcome = _facts(session, told, problems, ambiguous)
    if section.runs:
        path = Path(options.folder) / f"{os.getpid()}.gwatch"
        # A program may put anything into sys.argv, and its arguments need not be text.
        command = " ".join(map(str, getattr(sys, "argv", None) or ["a Python program"]))
        report = File(title=printable(f"Trace of {command}".encode(errors="backslashreplace").decode()))
        report.add_section(section)
        report.render(path)
        outcome["archive"] = path.name
    return outcome


def hang_report(session: ProgramSession, kernel: Kernel, traced: Traced | None) -> dict[str, Any]:
    """Results of a process whose launch did not end in time; nothing is waited for or freed.

    ``traced`` is None when the hanging launch ran without records.
    """
    lines = []
    if traced is None:
        why = (
            f": {kernel.refused}" if kernel.refused is not None else ", it was not one of the launches traced"
        )
        lines.append(f"nothing is known about its warps{why}")
    else:
        try:
            lines = _warps(session, traced)
        except GWatchError as error:
            lines.append(_said(error))
    outcome = _facts(session, [], [], False)
    outcome["state"] = "hanging"
    outcome["hang"] = {
        "kernel": kernel.row.demangled,
        "number": None if traced is None else traced.number,
        "seconds": session.options.timeout,
        "lines": lines,
    }
    return outcome


def _warps(session: ProgramSession, traced: Traced) -> list[str]:
    slot, planned = traced.slot, traced.prepared.planned
    assert slot.ring is not None
    with session.driver.inside(slot.context):
        data = slot.ring.read(session.side_stream(slot.context))
    layout, kernel = slot.ring.layout, traced.prepared.target.kernel
    return hang_lines(last_seen(data, layout), layout, planned.site_map, roles_of(kernel), kernel)


def _facts(
    session: ProgramSession, told: list[dict[str, Any]], problems: list[str], ambiguous: bool
) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "rank": rank(),
        "argv": list(sys.orig_argv),
        "state": "done",
        "kernels": [kernel.row.to_json() for kernel in session.kernels.values()],
        "wanted": [kernel.row.symbol for kernel in session.kernels.values() if kernel.wanted],
        "tuning": sum(session.selector.left_alone.values()),
        "over_limit": sorted(session.selector.over_limit),
        "cut_off": sum(session.selector.cut_off.values()),
        "ambiguous": ambiguous,
        "runs": told,
        "problems": list(dict.fromkeys(problems)),
        "archive": None,
    }


def save(folder: str, outcome: dict[str, Any]) -> None:
    """Write a process's results; the parent reads them when the program has ended."""
    path = Path(folder) / f"{outcome['pid']}.json"
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(outcome))
    os.replace(temporary, path)


def _said(error: BaseException, kernel: str = "") -> str:
    if isinstance(error, GWatchError):
        return str(error)
    return f"[internal] {kernel + ': ' if kernel else ''}{type(error).__name__}: {error}"


def _refusal(kernel: Kernel) -> str:
    """Why a kernel ran as it was, with its name; what to do about a hidden image is another thing here than in
    a program that calls do_trace."""
    error, name = kernel.refused, kernel.row.demangled
    assert error is not None
    message = error.message if kernel.row.symbol in error.message else f"{name}: {error.message}"
    hint = "" if error.code == "image-not-found" else error.hint
    return str(GWatchError(error.code, message, hint))


def _circumstances(session: ProgramSession) -> list[str]:
    """What else went on in the program that bears upon its launches."""
    found = []
    if session.unseen_autotuners:
        found.append(
            f"[autotuner-unseen] {' and '.join(session.unseen_autotuners)} was on: it tries configurations in C++, "
            "where gwatch cannot tell a trial launch from another; --launch N names a later one"
        )
    if session.profiled:
        found.append(
            "[profiler-active] the program ran torch.profiler, and CUPTI serves one subscriber: the profiler's GPU "
            "times may be missing; profile and trace in separate runs"
        )
    return found


def _result(session: ProgramSession, kernel: Kernel, traced: Traced) -> TraceResult:
    """Raises TraceError and LaunchError ``[kernel-crashed]``, ``[launch-failed]``, ``[context-gone]``."""
    slot, launch, driver = traced.slot, traced.launch, session.driver
    if traced.failed:
        raise LaunchError(
            "launch-failed",
            f"the driver refused launch {traced.number} of {launch.symbol}, which was to be traced",
            "see whether it works untraced; if it does, trace fewer sites or without values",
        )
    try:
        with driver.inside(slot.context):
            driver.synchronize()
    except LaunchError as error:
        if "CONTEXT" in error.message.upper():
            raise TraceError(
                "context-gone",
                f"the program destroyed its context before it ended, and the records of {launch.symbol} with it",
                "let the context live until the program ends",
            ) from None
        raise LaunchError(
            "kernel-crashed",
            f"the GPU stopped with an error, so the records of {launch.symbol} cannot be read ({error.message})",
            "if the program runs without gwatch this is gwatch's fault; compute-sanitizer names the access",
        ) from None
    result = build(
        driver,
        traced.prepared.target,
        traced.prepared.planned,
        traced.prepared.request,
        traced.verdict,
        _Facts(traced),
        slot,
        0,
        traced.own_ns,
    )
    places = traced.prepared.places
    if places.lifetime:
        merge_exits(result)
    if places.scopes is not None:
        merge(result, places.scopes, refuse=False)
    result["warnings"] = [text.replace("sass_per_thread_records", "--depth") for text in result["warnings"]]
    result["warnings"] += places.notes
    if slot.context not in session.host_clocks:
        with driver.inside(slot.context):
            session.host_clocks[slot.context] = host_clock(driver)
    result["launch"].update(
        host_clock=session.host_clocks[slot.context],
        index=traced.number,
        launches=kernel.row.count - kernel.row.tuning,
        rank=rank(),
        process=os.getpid(),
        origin=kernel.row.origin,
        kernel=kernel.row.demangled,
    )
    return result


def _told(session: ProgramSession, kernel: Kernel, traced: Traced, result: TraceResult) -> dict[str, Any]:
    """The facts of a traced launch that the command prints."""
    launch = traced.launch
    shape = (launch.grid, launch.block, launch.cluster, launch.shared_bytes)
    plain = kernel.times.get(shape, [])
    best = session.selector.best(launch.symbol)
    return {
        "kernel": launch.symbol,
        "demangled": kernel.row.demangled,
        "number": traced.number,
        "steady": bool(best and best[0] and best[1] == (traced.number,)),
        "why": session.selector.why(launch.symbol, traced.ordinal),
        "explicit": session.selector.explicit,
        "launches": kernel.row.count - kernel.row.tuning,
        "tuning": kernel.row.tuning,
        "grid": launch.grid,
        "block": launch.block,
        "device": traced.slot.seen.device,
        "rank": rank(),
        "records": len(result["records"]),
        "dropped": result["dropped"],
        "outputs": result["outputs"],
        "registers": result["registers"],
        "captured": traced.slot.seen.captured,
        "traced_ns": traced.own_ns,
        "slowdown": result["slowdown"],
        "plain_ns": median(plain) if plain else None,
        "sites": len(traced.prepared.places.sites),
        "warnings": list(result["warnings"]),
    }


def _traceable(session: ProgramSession) -> None:
    """Fill in the table's last column. For a list each kernel is planned once, which loads nothing."""
    for kernel in session.kernels.values():
        row = kernel.row
        if kernel.traced:
            row.traceable = "traced"
        elif kernel.refused is not None:
            row.traceable = _why_not(kernel.refused)
        elif kernel.seen is not None:
            row.traceable = _plannable(kernel.seen, session.options)


def _plannable(seen: Seen, options: ProgramOptions) -> str:
    try:
        prepare(seen, hooks.images, options, None)
    except GWatchError as error:
        return _why_not(error)
    except Exception as error:  # a list of hundreds of kernels is not lost for one
        return f"[internal] {type(error).__name__}"
    return "yes"


def _why_not(error: GWatchError) -> str:
    return "not traceable: closed library" if error.code == "closed-library" else f"[{error.code}]"


def table_notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the times of a launch table do not hold."""
    notes = []
    tuning = sum(row["autotuning"] for row in rows)
    captured = sum(row["captured"] for row in rows)
    if tuning:
        notes.append(f"{tuning} launches made by autotuners are not in the times")
    if captured:
        notes.append(f"{captured} launches were captured into graphs, whose replays make no launch calls")
    if any(untimed(row) for row in rows):
        notes.append("≈: a part of the launches was timed and stands for all")
    return notes
