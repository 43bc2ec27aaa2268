"""``gwatch check``: is this machine code safe? Hazards, and everything that points into the code."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch._kinds import ARTIFACTS, CUBIN, expect
from gwatch.cli.output import say
from gwatch.errors import GWatchError, ParseError, naming, printable

if TYPE_CHECKING:
    from gwatch.check import KernelCheck
    from gwatch.cuda.binary import Cubin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "paths", nargs="+", metavar="FILE", help="cubin, whoever made or patched it; also .so, .whl, folder"
    )
    parser.add_argument(
        "--kernel", default="", metavar="REGEX", help="only kernels whose mangled name matches"
    )
    parser.add_argument(
        "--original",
        type=Path,
        metavar="FILE",
        help="the cubin FILE was made from: inserted code may also not disturb what was there",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 nothing found, 1 findings, 2 some code could not be checked."""
    from gwatch.cuda.binary import Cubin

    try:
        pattern = re.compile(args.kernel)
    except re.error as error:
        raise ParseError("kernel-pattern", f"{args.kernel!r} is not a regular expression: {error}") from None
    files: list[dict[str, Any]] = []
    totals = {
        "kernels": 0,
        "instructions": 0,
        "pairs": 0,
        "holders": 0,
        "findings": 0,
        "refused": 0,
        "unread": 0,
        "unread_members": 0,
    }
    before = _original(args.original)
    left: list[str] = []
    unconfirmed: set[str] = set()
    for path in args.paths:
        expect(path, *ARTIFACTS)
        for member, data in _images(path):
            if isinstance(data, str):
                totals["unread_members"] += 1
                left.append(f"{member}: {data}")
                continue
            try:
                with naming(member):
                    cubin = Cubin.from_bytes(data, member)
                    checks = list(_checked(cubin, pattern.pattern, before))
            except GWatchError as error:
                if member == path:
                    raise
                totals["unread_members"] += 1
                left.append(str(error))
                continue
            for check in checks:
                _count(totals, check)
                left += [f"{member}: {check.kernel}: {check.refused}"] if check.refused else []
                if not args.json:
                    _print(member, check, len(args.paths) > 1 or member != path)
            if checks and cubin.arch.unconfirmed:
                unconfirmed.add(cubin.arch.unconfirmed)
            files.append(
                {"path": member, "arch": cubin.arch.name, "kernels": [check.to_json() for check in checks]}
            )
    if not totals["kernels"] and not left:
        what = f"no kernel matches {args.kernel!r}" if args.kernel else "there is no kernel"
        raise ParseError("kernel-none", f"{what} in {', '.join(args.paths)}", "`gwatch inspect` lists the kernels")
    if args.json:
        print(json.dumps({"files": files, "totals": totals}, indent=1))
    else:
        print(
            f"{totals['kernels']} kernels, {totals['instructions']} instructions: {totals['findings']} findings "
            f"({totals['pairs']} dependent pairs, {totals['holders']} code offsets compared"
            + (f"; {totals['unread']} unknown words looked through" if totals["unread"] else "")
            + (f"; {totals['refused']} kernels not checked" if totals["refused"] else "")
            + (f"; {totals['unread_members']} members not read" if totals["unread_members"] else "")
            + ")"
        )
        for note in sorted(unconfirmed):
            print(note)
    if left:
        # Not raised: under --json the checks stay alone on standard output.
        more = f" ({len(left) - 1} more like it)" if len(left) > 1 else ""
        say(f"[not-checked] {left[0]}{more}")
    return 1 if totals["findings"] else 2 if left else 0


def _original(path: Path | None) -> Cubin | None:
    from gwatch.cuda.binary import Cubin

    if path is None:
        return None
    expect(path, CUBIN)
    with naming(path):
        return Cubin.from_file(path)


def _images(path: str) -> Iterator[tuple[str, bytes | str]]:
    """Each cubin in ``path``, or why one could not be had. Raises CubinError ``[no-cubin]`` where there is nothing."""
    from gwatch.inspect.artifacts import Image, Skipped, open_artifact
    from gwatch.inspect.report import no_cubin

    anything, skipped = False, []
    for item in open_artifact(path):
        if isinstance(item, Image):
            anything = True
            yield item.path, item.data
        elif isinstance(item, Skipped):
            skipped.append(item)
            if item.unread and item.path != str(Path(path)):
                anything = True
                yield item.path, item.reason
    if not anything:
        raise no_cubin(path, skipped)


def _checked(cubin: Cubin, pattern: str, before: Cubin | None) -> Iterator[KernelCheck]:
    from gwatch.check import check_cubin
    from gwatch.check.against import check_against

    for check in check_cubin(cubin, pattern):
        if before is not None:
            check_against(before, cubin, check)
        yield check


def _count(totals: dict[str, int], check: KernelCheck) -> None:
    totals["kernels"] += 1
    totals["refused"] += bool(check.refused)
    totals["findings"] += len(check.findings)
    for name in ("instructions", "pairs", "holders", "unread"):
        totals[name] += getattr(check, name)


def _print(path: str, check: KernelCheck, several: bool) -> None:
    where = printable(f"{path}: {check.kernel}" if several else check.kernel)
    for item in check.findings:
        pc = f" {item.pc:#x}" if item.pc is not None else ""
        text = f" {item.instruction}" if item.instruction else ""
        sys.stdout.write(f"{where}{pc}{text}\n  {item.kind}: {item.cause}\n")
    if check.refused:
        sys.stdout.write(f"{where}: not checked: {check.refused}\n")
