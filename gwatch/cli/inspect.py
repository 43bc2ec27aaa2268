"""``gwatch inspect``: what is in a cubin, library, package, wheel, cache or directory; rules for CI."""

from __future__ import annotations

import argparse
import atexit
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING

from gwatch._files import need_folder
from gwatch.cli.output import at_least, named_path, say
from gwatch.errors import CubinError, ParseError, UsageError

if TYPE_CHECKING:
    from gwatch.inspect.report import ImageReport, Report
    from gwatch.inspect.rules import Rule
    from gwatch.inspect.run import Request

_MOST_JOBS = 1024
"""More worker processes than any machine has use for; far more than this is more than the system can start."""
_COLLECTED_AFTER = 200_000
"""New objects after which unused ones that hold each other are looked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help=".cubin, .fatbin, .so, .pt2, .whl, .zip, cache or folder"
    )
    what = parser.add_argument_group("what to show")
    what.add_argument("--kernel", default="", metavar="REGEX", help="only kernels whose name matches")
    what.add_argument(
        "--vectorization", action="store_true", help="every global load and store: width, argument, cause"
    )
    what.add_argument("--sass", action="store_true", help="print listings")
    what.add_argument(
        "--sass-style", choices=("cuobjdump", "nvdisasm", "nvdisasm-inline", "nvdisasm-sections"),
        help="implies --sass; shaped like `cuobjdump -sass` (default), `nvdisasm -g -c` (labels, source lines), or "
        "`nvdisasm -gi -c` (inlined calls too); nvdisasm-sections is `nvdisasm -g`, data sections too, printed by "
        "nvdisasm itself",
    )  # fmt: skip
    what.add_argument(
        "--resources", action="store_true", help="registers, memory, launch bounds only: quick, no code is read"
    )
    what.add_argument("--lines", action="store_true", help="source lines of each kernel and its loops")
    what.add_argument("--json", action="store_true", help="everything as JSON (same as --format json)")
    what.add_argument("--extract", type=named_path, metavar="DIR", help="write each distinct cubin to DIR")
    what.add_argument("-o", "--output", type=named_path, metavar="FILE", help="write there, not to standard output")
    rules = parser.add_argument_group("rules; exit code 1 when one is broken")
    rules.add_argument("--require", action="append", default=[], metavar="RULE", help="has LDG.E.128 >= 2")
    rules.add_argument(
        "--forbid", action="append", default=[], metavar="OPCODE", help="STL, or kernel:REGEX STL"
    )
    rules.add_argument("--max-registers", type=int, metavar="N", help="registers a thread, at most")
    rules.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="WHAT",
        help="spill, local (memory), narrow (global access)",
    )
    rules.add_argument("--rules", type=named_path, metavar="FILE.toml", help="rules from a file ([[rule]] tables)")
    rules.add_argument("--format", choices=("text", "json", "github"), default="text", help="of the report")
    scale = parser.add_argument_group("scale")
    scale.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="worker processes (default 1: none)")
    scale.add_argument("--executor", default="", metavar="dask:ADDRESS", help="run on a Dask cluster")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 done, 1 a rule is broken, 2 a given path could not be read."""
    with _rarely_collected():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from gwatch._kinds import ARTIFACTS, expect
    from gwatch.inspect.executors import open_executor
    from gwatch.inspect.run import inspect

    escape_unencodable()
    request = _request(args)
    for path in args.paths:
        expect(path, *ARTIFACTS)
    if args.extract is not None:
        need_folder(args.extract)
    streamed = not request.facts and args.output is None
    with open_executor(args.jobs, args.executor) as (executor, workers), _progress(args.paths) as progress:
        report = inspect(
            args.paths,
            request,
            executor=executor,
            workers=workers,
            extract=args.extract,
            progress=progress,
            finished=_print_listing if streamed else None,
        )
    pieces = _rendered(report, args)
    if args.output is not None:
        from gwatch._files import write_atomically

        write_atomically(args.output, (piece.encode("utf-8", "surrogateescape") for piece in pieces))
    else:
        sys.stdout.writelines(pieces)
    # Not raised: under --json the report stays alone on standard output.
    refusals = report.refusals
    for said in refusals:
        say(said)
    if report.violations:
        return 1
    if refusals:
        return 2
    if request.rules and report.unread:
        path, reason = report.unread[0]
        error = CubinError(
            "not-checked",
            f"the rules hold where they were checked; {len(report.unread)} more could not be, first {path}: {reason}",
        )
        say(error)
        return 2
    return 0


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Facts are plain values that hold each other in no circle: looking for circles among them after every few hundred
    new ones takes a tenth of the time, and once more as the process ends."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)


def _print_listing(image: ImageReport) -> None:
    """Print a listing as soon as it is there, and let go of it."""
    sys.stdout.write(image.sass or _unlisted(image))
    image.sass, image.printed = "", True


def escape_unencodable() -> None:
    """Let standard output and error escape characters that they can't encode: names in the input may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _unlisted(image: ImageReport) -> str:
    from gwatch.errors import printable

    return printable(f"{image.path}: {image.problem}") + "\n"


def _request(args: argparse.Namespace) -> Request:
    from gwatch.inspect.listing import Style
    from gwatch.inspect.run import Request

    try:
        re.compile(args.kernel)
    except re.error as error:
        raise ParseError("kernel-pattern", f"{args.kernel!r} is not a regular expression: {error}") from None
    style = Style(args.sass_style or "cuobjdump") if args.sass or args.sass_style else None
    listings_only = style is not None and args.format == "text" and not (args.json or args.vectorization or args.lines)
    found = tuple(_rules(args))
    _refuse_what_is_left_out(args, style is not None)
    if args.resources and (
        args.vectorization or args.lines or style is not None or any(rule.about_code for rule in found)
    ):
        raise UsageError(
            "usage",
            "--resources reads no code, which --vectorization, --lines, --sass and all rules but --max-registers need",
            "leave one of them out",
        )
    return Request(
        args.kernel,
        found,
        args.vectorization,
        args.lines,
        style,
        facts=not listings_only,
        code=not args.resources,
    )


def _refuse_what_is_left_out(args: argparse.Namespace, listings: bool) -> None:
    """Refuse options one of which would be dropped without a word."""
    asked = {"--vectorization": args.vectorization, "--lines": args.lines, "--sass": listings, "--json": args.json}
    more = [option for option, given in asked.items() if given]
    if args.format == "github" and more:
        raise UsageError(
            "usage", f"--format github prints broken rules only, without {', '.join(more)}", "leave one of them out"
        )
    if args.jobs > _MOST_JOBS:
        raise UsageError("usage", f"--jobs {args.jobs} is more than {_MOST_JOBS} processes", "one a core is enough")
    if args.executor and args.jobs != 1:
        raise UsageError("usage", "--jobs starts processes here, --executor works elsewhere", "leave one of them out")


def _rules(args: argparse.Namespace) -> Iterator[Rule]:
    if not (args.require or args.forbid or args.fail_on or args.rules or args.max_registers is not None):
        return
    from gwatch.inspect import rules

    yield from map(rules.parse_require, args.require)
    yield from map(rules.parse_forbid, args.forbid)
    yield from map(rules.fail_on, args.fail_on)
    if args.max_registers is not None:
        yield rules.max_registers(args.max_registers)
    if args.rules is not None:
        yield from rules.read_rules(args.rules)


def _rendered(report: Report, args: argparse.Namespace) -> Iterable[str]:
    """The report's text in pieces."""
    if args.json or args.format == "json":
        from gwatch.inspect.report import json_text

        return json_text(report)
    from gwatch.inspect import text

    if args.format == "github":
        return [text.github(report)]
    if args.sass or args.sass_style:
        left = [image for image in report.images if not image.printed]
        listings = [image.sass or _unlisted(image) for image in left]
        if args.vectorization or args.lines:
            return [*listings, text.render(report)]
        return listings + [f"{line}\n" for line in text.violations(report)]
    return [text.render(report)]


@contextmanager
def _progress(paths: list[str]) -> Iterator[Callable[[int, str], None] | None]:
    """A line on a terminal's standard error that counts cubins; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    count, where = TextColumn("{task.completed} cubins"), TextColumn("{task.description}")
    with Progress(
        count, BarColumn(), TimeElapsedColumn(), where, console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(paths[0], total=None)

        def progress(count: int, path: str) -> None:
            bar.update(task, completed=count, description=path[-50:])

        yield progress
