"""``python -m gwatch.rewrite`` and ``gwatch rewrite``: look at a kernel, choose sites, write a patched
cubin."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch._kinds import CUBIN, expect
from gwatch.errors import GWatchError, SiteError, TraceError, UsageError, naming, printable

if TYPE_CHECKING:
    from gwatch.cuda.binary.cubin import Cubin
    from gwatch.cuda.binary.kernel import KernelDef
    from gwatch.rewrite.result import PlacedSite, Rewritten
    from gwatch.rewrite.trace import TracePlan

_SITE_HELP = (
    "PLACE[@first|@last|@all][,OPTION...]; PLACE: index, 0xPC, line:FILE:N, op:OPCODE; OPTION: reg=R8[:64], "
    "reg=UR4[:64], smid, activemask, ns, ns:64 (the value to record); warp (one record per warp); "
    "always (also lanes for which the instruction's guard, @P0, is false); after; label=TEXT. The record is made "
    "BEFORE the instruction: at a barrier, on arrival. `after`: before the next instruction instead, by all lanes that "
    "come by; an instruction issued is not yet done: memory and matrix operations end at their wait"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("cubin", type=Path, help="cubin to read; it is never changed")
    parser.add_argument(
        "--kernel",
        metavar="REGEX",
        default="",
        help="kernel whose mangled name matches (default: the only one)",
    )
    parser.add_argument("--site", action="append", default=[], metavar="SITE", help=_SITE_HELP)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="patched cubin; its site map goes to FILE's .map.json",
    )
    parser.add_argument("--force", action="store_true", help="replace the outputs where they are there")
    parser.add_argument(
        "--clock",
        choices=("gpu", "sm", "anchor"),
        default="gpu",
        help="gpu: the timer (ns, default); sm: cycles of each SM; anchor: cycles that `gwatch decode` maps to ns",
    )
    parser.add_argument(
        "--depth", type=int, default=32, help="records kept per thread, rounded up to a power of two"
    )
    parser.add_argument(
        "--keep", choices=("newest", "first"), default="newest", help="which records stay when more are made"
    )
    parser.add_argument(
        "--no-hold",
        action="store_true",
        help="a record for every site, none that says earlier sites' times too: for rings read while the kernel runs",
    )
    parser.add_argument(
        "--duration-ns", type=float, help="how long the launch takes untraced, where over a millisecond"
    )
    parser.add_argument("--exclude", metavar="R252,UR4", help="registers that inserted code must not use")
    parser.add_argument(
        "--snippet", type=Path, metavar="FILE", help="insert this SASS text at the sites instead of records"
    )
    parser.add_argument("--list", action="store_true", help="list the kernel's instructions instead")
    parser.add_argument(
        "--only", metavar="REGEX", help="with --list: only instructions (or lines FILE:N) that match"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 done."""
    expect(args.cubin, CUBIN)
    with naming(args.cubin):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from gwatch.cuda.binary.cubin import Cubin

    cubin = Cubin.from_file(args.cubin)
    kernel = cubin.get_kerneldef_by_regex(args.kernel)
    if args.list:
        if args.site or args.output is not None or args.snippet is not None:
            raise UsageError(
                "usage", "--list writes nothing", "leave --site, --snippet and -o out, or --list"
            )
        return _list(cubin, kernel, args)
    if args.only:
        raise UsageError(
            "usage", "--only narrows what --list shows", "give --list too, or name places with --site"
        )
    if not args.site:
        raise SiteError("no-site", "no --site given", _where_sites_are(cubin, kernel))
    if args.output is None:
        raise SiteError("no-output", "no output named", "give -o FILE")
    _refuse_existing(args)
    if args.snippet is not None:
        return _insert_snippet(cubin, kernel, args)
    return _trace(cubin, kernel, args)


def _refuse_existing(args: argparse.Namespace) -> None:
    """Files that would be replaced unasked; what is no file is named when it cannot be written."""
    mapped = args.snippet is None and args.output.name
    for path in (args.output, *([args.output.with_suffix(".map.json")] if mapped else [])):
        if path.is_file() and path.samefile(args.cubin):
            raise SiteError("output-is-input", f"{path} is the input", "name another output")
        if path.is_file() and not args.force:
            raise TraceError(
                "output-exists", f"{path} is there already", "--force replaces it, -o names another file"
            )


def _excluded(args: argparse.Namespace) -> dict[str, list[int]] | None:
    from gwatch.rewrite.sites import parse_excluded

    return parse_excluded(args.exclude) if args.exclude else None


def _trace(cubin: Cubin, kernel: KernelDef, args: argparse.Namespace) -> int:
    from gwatch._files import write_together
    from gwatch.rewrite.sites import resolve_with_notes
    from gwatch.rewrite.trace import plan_trace

    noted = [found for text in args.site for found in resolve_with_notes(kernel, text)]
    sites = [site for site, _ in noted]
    plan = plan_trace(
        cubin,
        kernel,
        sites,
        clock=args.clock,
        depth=args.depth,
        keep=args.keep,
        duration_ns=args.duration_ns,
        excluded_registers=_excluded(args),
        hold=not args.no_hold,
    )
    if args.output.is_dir():
        raise TraceError("write-failed", f"cannot write {args.output}: it is a directory", "name a file")
    sidecar = args.output.with_suffix(".map.json")
    write_together([(sidecar, plan.site_map.to_bytes() + b"\n"), (args.output, plan.data)])
    report = _report(cubin, plan.rewritten, len(plan.data), args.output)
    report["map"] = str(sidecar)
    report["sites"] = [{**row, "note": note} for row, (_, note) in zip(_site_rows(plan), noted, strict=True)]
    report["clock"] = args.clock
    report["descriptor"] = plan.site_map.descriptor_symbol
    fmt = plan.site_map.format
    report["record"] = {
        "bytes": fmt.record_bytes,
        "depth": fmt.depth,
        "keep": fmt.keep.value,
        "bytes_per_warp": fmt.chunk_bytes,
        "version": fmt.version,
    }
    _print(report, args.json)
    return 0


def _where_sites_are(cubin: Cubin, kernel: KernelDef) -> str:
    from gwatch.sass.isa import isa_for
    from gwatch.sass.uses import CodeView

    count = CodeView(isa_for(cubin.arch.name), kernel.words).kinds()[0].count("PMTRIG")
    marked = f", or record its {count} scope markers with --site op:PMTRIG@all,warp" if count else ""
    return f"list the instructions with --list{marked}"


def _insert_snippet(cubin: Cubin, kernel: KernelDef, args: argparse.Namespace) -> int:
    from gwatch._files import write_atomically
    from gwatch.rewrite.rewriter import Rewriter
    from gwatch.rewrite.sites import resolve_site
    from gwatch.rewrite.snippet import Snippet

    try:
        text = args.snippet.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError("snippet-file", f"cannot read {args.snippet}: {error}") from None
    snippet = Snippet(text, name=args.snippet.name)
    rewriter = Rewriter(cubin, kernel, _excluded(args))
    sites = [site for given in args.site for site in resolve_site(kernel, given)]
    for site in sites:
        rewriter.insert(site.insert_index, snippet, label=site.label)
    rewritten = rewriter.apply()
    write_atomically(args.output, rewritten.data)
    report = _report(cubin, rewritten, len(rewritten.data), args.output)
    report["sites"] = [
        {
            "site": number,
            "index": placed.index,
            "pc": placed.index * 16,
            "new_pc": placed.first * 16,
            "value": "snippet",
            "instruction": placed.instruction,
            "registers": placed.registers,
            **_cost(placed),
        }
        for number, placed in enumerate(rewritten.sites)
    ]
    _print(report, args.json)
    return 0


def _cost(placed: PlacedSite) -> dict[str, Any]:
    """How a site's registers were had and what its code costs."""
    return {
        "lines": placed.count,
        "issue_cycles": placed.cycles,
        "waiting_lines": placed.waits,
        "register_ways": placed.ways,
        "saved": list(placed.saved),
    }


def _site_rows(plan: TracePlan) -> list[dict[str, Any]]:
    rows = []
    for site in plan.site_map.sites:
        placed = plan.placed(site.site_id)
        rows.append(
            {
                "site": site.site_id,
                "index": site.index,
                "pc": site.pc,
                "new_pc": site.new_pc,
                "value": site.value,
                "warp_level": site.warp_level,
                "unconditional": site.unconditional,
                "line": f"{site.file}:{site.line}" if site.file else None,
                "instruction": site.instruction,
                "label": site.label,
                "shared_with": site.shared_with,
                "time_in": site.time_in,
                **_cost(placed),
            }
        )
    return rows


def _report(cubin: Cubin, rewritten: Rewritten, size: int, output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        "kernel": rewritten.kernel,
        "arch": cubin.arch.name,
        "registers": {"before": rewritten.registers_before, "after": rewritten.registers_after},
        "occupancy": {
            "threads_per_cta": rewritten.threads_per_cta,
            "before": rewritten.occupancy_before,
            "after": rewritten.occupancy_after,
        },
        "bytes": {"before": len(cubin.data), "after": size},
        "instructions_inserted": int(rewritten.inserted.sum()),
        "state": rewritten.state,
        "state_moves": list(rewritten.moves),
        "local_bytes": rewritten.local_bytes,
        "moved": rewritten.moved,
        "reuse_cleared": [edit.index for edit in rewritten.edits],
        "check": rewritten.check,
        "unconfirmed": cubin.arch.unconfirmed,
    }


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        _write(json.dumps(report, indent=1))
        return
    rows: list[tuple[str, ...]] = [("site", "index", "pc", "new pc", "value", "line", "instruction")]
    for site in report["sites"]:
        value = (
            site["value"]
            + (" warp" if site.get("warp_level") else "")
            + (" always" if site.get("unconditional") else "")
        )
        rows.append(
            (
                str(site["site"]),
                str(site["index"]),
                f"{site['pc']:#x}",
                f"{site['new_pc']:#x}",
                value,
                (site.get("line") or "").rsplit("/", 1)[-1],
                site["instruction"],
            )
        )
    _write(printable(f"{report['kernel']} ({report['arch']})"))
    _write(_table(rows))
    if report["unconfirmed"]:
        _write(f"warning    {report['unconfirmed']}")
    registers, occupancy, size = report["registers"], report["occupancy"], report["bytes"]
    _write(
        f"registers  {registers['before']} -> {registers['after']}; "
        f"CTAs of {occupancy['threads_per_cta']} threads per SM {occupancy['before']} -> {occupancy['after']}"
        + (" (FEWER: no dead register would do)" if occupancy["after"] < occupancy["before"] else "")
    )
    for row in _register_rows(report):
        _write(row)
    for site in report["sites"]:
        if site.get("note"):
            _write(f"note       site {site['site']} {site['note']}")
    if "record" in report:
        for row in report["sites"]:
            if row["shared_with"] is not None:
                held = "" if row["time_in"] == "time" else f", read at the site and held for its word {row['time_in']}"
                _write(f"shared     the record of site {row['shared_with']} tells site {row['site']}'s time{held}")
        record = report["record"]
        _write(
            f"record     {record['bytes']} bytes, {record['depth']} per thread ({record['keep']} kept), "
            f"{record['bytes_per_warp']} bytes per warp, format {record['version']}; clock {report['clock']}"
        )
        _write(f"arm        symbol {report['descriptor']}")
    _write(
        f"bytes      {size['before']} -> {size['after']}, "
        f"{report['instructions_inserted']} instructions inserted"
    )
    moved = ", ".join(f"{count} {kind}" for kind, count in report["moved"].items())
    _write(f"moved      {moved or 'nothing'}")
    if report["reuse_cleared"]:
        _write("edited     operand reuse cleared on " + " ".join(map(str, report["reuse_cleared"])))
    _write(f"check      {report['check']}")
    _write(f"written    {report['output']}" + (f", {report['map']}" if "map" in report else ""))


def _register_rows(report: dict[str, Any]) -> list[str]:
    """How registers were had, sites alike in one line."""
    kinds: dict[str, list[str]] = {}
    for site in report["sites"]:
        ways = sorted(set(site["register_ways"].values()))
        text = f"{site['lines']} lines, {site['issue_cycles']} issue cycles"
        text += f" and {site['waiting_lines']} wait" if site["waiting_lines"] else ""
        text += f"; registers: {', '.join(ways)}" if ways else ""
        text += f"; saved {' '.join(site['saved'])}" if site["saved"] else ""
        kinds.setdefault(text, []).append(str(site["site"]))
    rows = [f"cost       {text} (site {' '.join(sites)})" for text, sites in kinds.items()]
    if report["state_moves"]:
        rows.append(f"moves      {'; '.join(report['state_moves'])}")
    if report["local_bytes"]:
        rows.append(f"local      {report['local_bytes']} bytes a thread for saved registers")
    return rows


def _list(cubin: Cubin, kernel: KernelDef, args: argparse.Namespace) -> int:
    try:
        wanted = re.compile(args.only) if args.only else None
    except re.error as error:
        raise SiteError(
            "site-syntax",
            f"{args.only!r} is not a regular expression: {error}",
            "put a backslash before characters that are meant literally",
        ) from None
    size = cubin.arch.instruction_size
    lines = kernel.map_address_to_line
    rows: list[dict[str, int | str]] = []
    for index, text in enumerate(kernel.texts):
        file, line = lines.get(index * size, ("", 0))
        place = f"{file.rsplit('/', 1)[-1]}:{line}" if file else ""
        if wanted is None or wanted.search(text) or (place and wanted.search(place)):
            rows.append({"index": index, "pc": index * size, "line": place, "instruction": text.rstrip(" ;")})
    if not rows:
        raise _nothing_like(kernel, args.only)
    free: dict[str, str] | None = None
    unknown = None
    try:
        free = _free_registers(cubin, kernel, rows if wanted else [])
    except GWatchError as error:
        # A listing needs no instruction table: say why nothing can be inserted, and list.
        unknown = str(error)
    if args.json:
        import json

        listing = {"kernel": kernel.name, "arch": cubin.arch.name, "free": free, "instructions": rows}
        if unknown:
            listing["free_unknown"] = unknown
        _write(json.dumps(listing, indent=1))
    else:
        padding = len(kernel.code) - kernel.code.unpadded
        _write(
            f"{printable(kernel.name)} ({cubin.arch.name}), {kernel.register_count} registers, "
            f"{kernel.code.unpadded} instructions"
            + (f" and {padding} NOPs of padding" if padding else "")
        )
        if free is not None:
            _write("free at every instruction: " + "; ".join(free.values()))
        else:
            _write(f"free registers not known: {unknown}")
        shown: list[tuple[str, ...]] = [
            ("index", "pc", "line", "instruction", "free before it, too" if "free" in rows[0] else "")
        ]
        shown += [
            (str(r["index"]), f"{r['pc']:#x}", str(r["line"]), str(r["instruction"]), str(r.get("free", "")))
            for r in rows
        ]
        _write(_table(shown))
    return 0


def _nothing_like(kernel: KernelDef, pattern: str) -> SiteError:
    import difflib

    opcodes = sorted(set(kernel.code.opcode_names))
    near = (
        difflib.get_close_matches(re.sub(r"\W+", "", pattern).upper(), opcodes, n=5, cutoff=0.3)
        or opcodes[:5]
    )
    what = f"no instruction and no line of {kernel.name} matches {pattern!r}"
    return SiteError("site-none", what, f"nearest: {', '.join(near)}", near)


def _free_registers(cubin: Cubin, kernel: KernelDef, rows: list[dict[str, int | str]]) -> dict[str, str]:
    """Registers that nothing in the kernel or its callees names, by file, as ranges; ``rows`` of a listing get
    ``free``: those of the kernel's own that hold nothing right before the instruction."""
    from gwatch.rewrite.homes import Points
    from gwatch.rewrite.rewriter import Rewriter
    from gwatch.sass.arch import free_ceiling

    around = Rewriter(cubin, kernel).surroundings
    arch = cubin.arch
    first = around.first_free
    points = Points(around, {}, around.collective, 0, 0) if rows else None
    for row in rows:
        mask = points.scratch(int(row["index"])) if points else 0
        row["free"] = _ranges("R", [register for register in range(first) if mask >> register & 1])
    step = free_ceiling(arch, kernel.register_count) - 3
    cost = (
        f"up to R{step} at no occupancy cost" if step >= first else "each costs occupancy or a register step"
    )
    out = {"R": f"R{first}-R{arch.max_registers - 3} ({cost})"}
    for file, limit in (("UR", arch.uniform_zero), ("P", arch.predicate_true)):
        out[file] = _ranges(file, sorted(set(range(limit)) - around.named(file)))
    return out


def _ranges(file: str, numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ", ".join(f"{file}{a}" if a == b else f"{file}{a}-{file}{b}" for a, b in parts)
    return text or "none"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
