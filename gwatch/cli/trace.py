"""``gwatch trace -- python script.py``: trace a program's kernels without touching the program."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch.errors import TraceError, UsageError

if TYPE_CHECKING:
    from gwatch.cuda.program.collected import Program
    from gwatch.cuda.program.options import ProgramOptions

_REFUSED, _NOTHING = 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "gwatch trace [options] -- python script.py [arguments]"
    add = parser.add_argument
    add("--list", action="store_true", help="say what the program launches; nothing is traced")
    add("--kernel", metavar="REGEX", default="", help="kernel whose mangled or demangled name matches")
    add("--all-kernels", action="store_true", help="report every kernel that matches, not the longest alone")
    add("--launch", type=int, metavar="N", help="the kernel's launch N, from 0, autotuning not counted")
    add("--launch-skip", type=int, metavar="N", help="leave the first N launches alone")
    add("--launch-count", type=int, metavar="N", help="trace N launches (at most 64 of a kernel)")
    add(
        "--cta",
        type=_dim3,
        action="append",
        default=[],
        metavar="X,Y,Z",
        help="record this CTA only (repeatable)",
    )
    add("--ctas", type=int, metavar="N", help="record N CTAs, evenly spread over the grid")
    add(
        "--site",
        action="append",
        default=[],
        metavar="SITE",
        help="as in `gwatch rewrite`: PLACE[@first|@last|@all][,OPTION...]; recorded BEFORE the instruction, at a "
        "barrier on arrival (option `after`: before the next one instead), by lanes whose guard holds (`always`: by "
        "all); per warp (`thread`: per thread)",
    )
    add("--region", action="append", default=[], metavar="NAME=SITE..SITE", help="a span between two sites")
    add(
        "--scope",
        type=_scope,
        action="append",
        default=[],
        metavar="ID=NAME",
        help="name of a scope marker (recorded where a kernel has any)",
    )
    add("--auto", action="store_true", help="barriers, TMA, MMA and loops, with the roles of the warps")
    add("--clock", choices=("anchor", "gpu", "sm"), default="anchor")
    add("--depth", type=int, help="records kept per lane")
    add("--keep", choices=("newest", "first"), default="newest")
    add("--ring-bytes", type=int, metavar="N", help="device memory for a launch's records (default 64 MiB)")
    add(
        "--verify",
        action="store_true",
        help="replay the launch plain and traced on the same memory, which nothing else may write meanwhile, and "
        "compare",
    )
    add(
        "--passes",
        type=int,
        metavar="N",
        help="plain and traced replays of --verify, which it implies (default 15, or fewer in 3 s)",
    )
    add(
        "--timeout",
        type=float,
        metavar="S",
        help="end the program (exit code 1) when a launch of the kernel runs for longer than S seconds, and say where "
        "its warps wait; launches in CUDA graphs are not watched",
    )
    add("--untested-arch", action="store_true", help="trace architectures that gwatch was never run on")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="report: FILE.html, .json, .pftrace, .chrome.json or .gwatch",
    )
    add("--force", action="store_true", help="replace files that are there")
    add("--json", action="store_true", help="the summary or list as JSON")
    add("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help=argparse.SUPPRESS)


def _scope(text: str) -> tuple[int, str]:
    number, equals, name = text.partition("=")
    if not (number.strip().isdecimal() and equals and name.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=NAME")
    return int(number), name.strip()


def _dim3(text: str) -> tuple[int, int, int]:
    try:
        parts = [int(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not X,Y,Z")
    x, y, z = (*parts, 0, 0)[:3]
    return x, y, z


def run(args: argparse.Namespace) -> int:
    """Run the command.

    The program's exit code when it is not 0; else 0, 1 for outputs that differ or a kernel that hangs, 2 for several
    matching kernels or where driver, CUPTI or a package is missing, 3 when nothing was recorded.
    """
    from gwatch.cuda.program.collected import (
        outputs_of,
        process_names,
        refuse_existing,
        run_program,
        several_there,
    )
    from gwatch.cuda.program.places import check_syntax

    options = _options(args)
    check_syntax(options)
    if options.timeout is not None and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        raise TraceError(
            "launch-blocking",
            "CUDA_LAUNCH_BLOCKING makes a launch call wait for its kernel with the driver's lock held, so that "
            "--timeout can't read the records of one that hangs",
            "unset it",
        )
    if args.list and args.output is not None:
        raise UsageError(
            "usage", "--list traces nothing, so there is no report to write", "leave -o or --list out"
        )
    if args.output is not None:
        from gwatch.common.format.file import form_of

        form_of(args.output)  # refuses a form that cannot be written before the program runs
    target = args.program[1:] if args.program[:1] == ["--"] else args.program
    report = args.output if args.output is not None and args.output.suffix.lower() != ".gwatch" else None
    if not args.list:
        (archive,) = outputs_of(args.output, 1, ())
        refuse_existing([archive, *([report] if report else []), *several_there(archive)], args.force)
    with run_program(target, options, os.environ) as (program, folder):
        if args.list:
            return _list(program, options, args.json)
        if any(item.get("ambiguous") for item in program.watched):
            return _ambiguous(program, options, args.json)
        traced = [item for item in program.watched if item["archive"]]
        names = process_names(traced)
        archives = outputs_of(args.output, len(traced), names)
        if len(traced) > 1:
            refuse_existing(archives, args.force)
        written = _write([folder / item["archive"] for item in traced], archives, names, report)
    return _summary(program, options, traced, written, args.json)


def _options(args: argparse.Namespace) -> ProgramOptions:
    from gwatch.cuda.program.options import DEFAULT_RING_BYTES, ProgramOptions

    return ProgramOptions(
        folder="",
        list_only=args.list,
        kernel=args.kernel,
        all_kernels=args.all_kernels,
        launch=args.launch,
        skip=args.launch_skip,
        count=args.launch_count,
        cta=tuple(args.cta),
        ctas=args.ctas,
        sites=tuple(args.site),
        regions=tuple(args.region),
        scopes=tuple(args.scope),
        auto=args.auto,
        clock=args.clock,
        depth=args.depth,
        keep=args.keep,
        verify=args.verify or args.passes is not None,
        passes=args.passes,
        timeout=args.timeout,
        ring_bytes=DEFAULT_RING_BYTES if args.ring_bytes is None else args.ring_bytes,
        untested_arch=args.untested_arch,
    )


def _say(line: str) -> None:
    sys.stderr.write(f"gwatch: {line}\n")


def _write(sources: list[Path], archives: list[Path], names: list[str], report: Path | None) -> list[Path]:
    """Put the processes' archives in place; the report holds the launches of all of them."""
    from gwatch._files import write_atomically
    from gwatch.common.format import File

    if not sources:
        return []
    for source, target in zip(sources, archives, strict=True):
        write_atomically(target, source.read_bytes())
    if report is None:
        return list(archives)
    if sys.stderr.isatty():
        _say(f"writing {report} …")
    loaded = [File.load(archive) for archive in archives]
    (File.merge(loaded, names) if len(loaded) > 1 else loaded[0]).render(report)
    return [report, *archives]


def _list(program: Program, options: ProgramOptions, as_json: bool) -> int:
    from gwatch.cuda.program.collected import causes, hindered, lost, process_names, troubles
    from gwatch.cuda.program.launches import table_lines
    from gwatch.cuda.program.outcome import table_notes

    watched = program.watched
    listed = [[row for row in item["kernels"] if row["kernel"] in item["wanted"]] for item in watched]
    reasons = [] if any(listed) else causes(program, options)
    if as_json:
        _print_json(program, causes=reasons)
    else:
        for name, rows in zip(process_names(watched), listed, strict=True):
            if len(watched) > 1:
                print(f"{name}:")
            for line in table_lines(rows):
                print(line)
            print(f"{sum(row['launches'] for row in rows)} launches of {len(rows)} kernels")
            for note in table_notes(rows):
                print(note)
        for item in program.processes:
            if item["state"] == "hanging":
                print("\n".join(_hang_lines(item)))
        for text in reasons or [*troubles(program), *lost(program)]:
            _say(text)
    if program.code:
        return _passed_on(program)
    return (_REFUSED if hindered(reasons) else _NOTHING) if reasons else 0


def _passed_on(program: Program) -> int:
    _say(f"the program ended with exit code {program.code}, which is passed on")
    return program.code


def _print_json(program: Program, **more: Any) -> None:
    import json

    print(json.dumps({"exit_code": program.code, **more, "processes": list(program.processes)}))


def _hang_lines(item: dict[str, Any]) -> list[str]:
    hang = item["hang"]
    number = "a launch" if hang["number"] is None else f"launch {hang['number']}"
    where = f" on rank {item['rank']}" if item["rank"] is not None else ""
    return [
        f"[hang] {number} of {hang['kernel']} had not ended after {hang['seconds']:g} s{where}",
        *hang["lines"],
    ]


def _ambiguous(program: Program, options: ProgramOptions, as_json: bool) -> int:
    from gwatch.cuda.program.launches import table_lines

    item = next(item for item in program.watched if item.get("ambiguous"))
    rows = [row for row in item["kernels"] if row["kernel"] in item["wanted"]]
    reason = (
        f"[kernel-ambiguous] --kernel {options.kernel!r} matches {len(rows)} kernels; give a narrower one, or "
        "--all-kernels"
    )
    if as_json:
        _print_json(program, written=[], causes=[reason])
    else:
        print("\n".join(table_lines(rows)))
    _say(reason)
    return _passed_on(program) if program.code else _REFUSED


def _summary(
    program: Program,
    options: ProgramOptions,
    traced: list[dict[str, Any]],
    written: list[Path],
    as_json: bool,
) -> int:
    from gwatch.cuda.program.collected import causes, hindered, lost, troubles

    hanging = [item for item in program.processes if item["state"] == "hanging"]
    reasons = causes(program, options) if not traced and not hanging else []
    if as_json:
        _print_json(program, written=[str(path) for path in written], causes=reasons)
    else:
        for item in hanging:
            print("\n".join(_hang_lines(item)))
        for item in traced:
            for line in run_lines(item):
                print(line)
        if written:
            print(f"written     {', '.join(map(str, written))}")
    for text in () if reasons else (*troubles(program), *lost(program)):
        _say(text)
    for reason in reasons:
        _say(f"nothing was recorded: {reason}")
    if hanging:
        return 1
    if program.code:
        return _passed_on(program)
    if not traced:
        return _REFUSED if hindered(reasons) else _NOTHING
    return 1 if any(one["outputs"] == "differ" for item in traced for one in item["runs"]) else 0


def _slowdown(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "not measured: replays are made with --verify"
    return (
        f"{measured['median']:.3f} ({measured['low']:.3f} to {measured['high']:.3f}, noise {measured['noise']:.3f}) in "
        f"{measured['passes']} replays"
    )


def run_lines(item: dict[str, Any]) -> list[str]:
    """What is printed about one process: its traced launches, and what was left alone."""
    from gwatch.cuda.program.launches import time_text
    from gwatch.cuda.program.selection import MOST_KERNELS, MOST_LAUNCHES

    lines = []
    where = "" if item["rank"] is None else f", rank {item['rank']}"
    for one in item["runs"]:
        grid, block = "x".join(map(str, one["grid"])), "x".join(map(str, one["block"]))
        times = []
        if one["traced_ns"] is not None:
            times.append(f"{time_text(one['traced_ns'])} traced")
        if one["plain_ns"] is not None:
            times.append(f"{time_text(one['plain_ns'])} at the median of the untraced ones")
        registers = one["registers"]
        lines += [
            f"kernel      {one['demangled']}",
            f"launch      {one['number']} of {one['launches']} ({one['why']}), grid {grid}, block {block}, "
            f"device {one['device']}{where}" + (", captured into a graph" if one["captured"] else ""),
            f"records     {one['records']}, {one['dropped']} dropped, {one['sites']} sites; registers "
            f"{registers['before']} -> {registers['after']}",
            f"time        {', '.join(times) or 'not known'} (host's launch included)",
            f"slowdown    {_slowdown(one['slowdown'])}",
            f"outputs     {one['outputs']}",
        ]
        lines += [f"note        {text}" for text in one["warnings"]]
    others = len(item["kernels"]) - len({one["kernel"] for one in item["runs"]})
    if item["tuning"]:
        lines.append(f"left alone  {item['tuning']} launches made by autotuners")
    if others > 0:
        lines.append(
            f"left alone  {others} other kernels (gwatch trace --list shows them; --kernel picks one)"
        )
    if item["cut_off"]:
        lines.append(
            f"left alone  {item['cut_off']} launches that were asked for: at most {MOST_LAUNCHES} of a kernel are "
            "recorded (--launch-skip goes on from there)"
        )
    if item["over_limit"]:
        lines.append(
            f"left alone  {len(item['over_limit'])} kernels beyond the first {MOST_KERNELS}: name one with --kernel"
        )
    return lines
