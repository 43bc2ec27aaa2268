"""``gwatch check``: is this machine code safe? Hazards, and everything that points into the code."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch.errors import ParseError

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
    }
    matched = False
    for path, cubin in _cubins(args.paths):
        checks = []
        for check in _checked(cubin, pattern.pattern, args.original):
            matched = True
            _count(totals, check)
            checks.append(check.to_json())
            if not args.json:
                _print(path, check, len(args.paths) > 1)
        files.append({"path": path, "arch": cubin.arch.name, "kernels": checks})
    if not matched:
        raise ParseError(
            "kernel-none", f"no kernel matches {args.kernel!r}" if args.kernel else "no kernel found"
        )
    if args.json:
        print(json.dumps({"files": files, "totals": totals}, indent=1))
    else:
        print(
            f"{totals['kernels']} kernels, {totals['instructions']} instructions: {totals['findings']} findings "
            f"({totals['pairs']} dependent pairs, {totals['holders']} code offsets compared"
            + (f"; {totals['unread']} unknown words looked through" if totals["unread"] else "")
            + (f"; {totals['refused']} kernels not checked" if totals["refused"] else "")
            + ")"
        )
    return 1 if totals["findings"] else 2 if totals["refused"] else 0


def _cubins(paths: list[str]) -> Iterator[tuple[str, Cubin]]:
    from gwatch.cuda.binary import Cubin
    from gwatch.inspect.artifacts import Image, Skipped, open_artifact

    for path in paths:
        if path.endswith(".cubin"):
            yield path, Cubin.from_file(path)
            continue
        found, why = False, ""
        for item in open_artifact(path):
            if isinstance(item, Image):
                found = True
                yield item.path, Cubin.from_bytes(item.data, item.path)
            elif isinstance(item, Skipped):
                why = why or item.reason
        if not found:
            raise ParseError("no-cubin", f"{path} holds no cubin" + (f": {why}" if why else ""))


def _checked(cubin: Cubin, pattern: str, original: Path | None) -> Iterator[KernelCheck]:
    from gwatch.check import check_cubin
    from gwatch.cuda.binary import Cubin as CubinType

    if original is None:
        yield from check_cubin(cubin, pattern)
        return
    from gwatch.check.against import check_against

    before = CubinType.from_file(original)
    for check in check_cubin(cubin, pattern):
        check_against(before, cubin, check)
        yield check


def _count(totals: dict[str, int], check: KernelCheck) -> None:
    totals["kernels"] += 1
    totals["refused"] += bool(check.refused)
    totals["findings"] += len(check.findings)
    for name in ("instructions", "pairs", "holders", "unread"):
        totals[name] += getattr(check, name)


def _print(path: str, check: KernelCheck, several: bool) -> None:
    where = f"{path}: {check.kernel}" if several else check.kernel
    for item in check.findings:
        pc = f" {item.pc:#x}" if item.pc is not None else ""
        text = f" {item.instruction}" if item.instruction else ""
        sys.stdout.write(f"{where}{pc}{text}\n  {item.kind}: {item.cause}\n")
    if check.refused:
        sys.stdout.write(f"{where}: not checked: {check.refused}\n")
