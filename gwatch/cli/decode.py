"""``gwatch decode``: the records of a ring that the user's own loader armed, launched and copied back.

The ring file is the ``RingLayout.data_bytes`` bytes from the ring's address on (records, then headers).
Either it starts with what :func:`gwatch.rewrite.ringfile.ring_file_prefix` returns, or ``--grid`` and
``--block`` say how the kernel was launched (``--ctas`` how many CTAs had a slot, where not all had).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch._kinds import CUBIN, RING, SITE_MAP, expect
from gwatch.errors import CubinError, SiteError, TraceError, UsageError, naming

if TYPE_CHECKING:
    from gwatch.cuda.xtrace.decode import Decoded
    from gwatch.rewrite.ring import RingLayout
    from gwatch.rewrite.sitemap import SiteMap

_SHOWN = 20
_REPORTS = (".json", ".html", ".htm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("ring", type=Path, help="ring file: records and headers as copied from the device")
    parser.add_argument("--cubin", type=Path, required=True, help="the patched cubin (or its .map.json)")
    parser.add_argument("--grid", type=_dim3, metavar="X,Y,Z", help="the launch's grid, for a bare dump")
    parser.add_argument("--block", type=_dim3, metavar="X,Y,Z", help="the launch's block, for a bare dump")
    parser.add_argument("--ctas", type=int, help="CTA slots of the ring, where fewer than the grid's CTAs")
    parser.add_argument("--duration-ns", type=float, help="upper bound of the launch's duration")
    parser.add_argument("--json", action="store_true", help="all records as JSON on standard output")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="FILE.npz: records, visits, dropped, headers; FILE.json, FILE.html: a report (`gwatch show` reads it)",
    )
    parser.add_argument(
        "--region",
        action="append",
        default=[],
        type=_region,
        metavar="A:B[:LABEL]",
        help="pair sites in a report",
    )


def _dim3(text: str) -> tuple[int, int, int]:
    try:
        parts = [int(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not X,Y,Z")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def _region(text: str) -> tuple[int, int, str]:
    try:
        enter, leave, *label = text.split(":", 2)
        return int(enter), int(leave), label[0] if label else f"site {enter}-{leave}"
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B or A:B:LABEL (two site ids)") from None


def run(args: argparse.Namespace) -> int:
    """Run the command; 0 done, 3 when the ring holds no record."""
    if args.output is not None and args.output.suffix.lower() not in (*_REPORTS, ".npz"):
        raise UsageError("unknown-format", f"cannot write {args.output}", "name the file .npz, .json or .html")
    expect(args.ring, RING)
    expect(args.cubin, CUBIN, SITE_MAP)
    with naming(args.cubin, CubinError, TraceError):
        site_map = _site_map(args.cubin)
    _check_regions(args, len(site_map.sites))
    with naming(args.ring, TraceError):
        decoded, layout = _decoded(args, site_map)
    if args.output is not None:
        if args.output.suffix.lower() in _REPORTS:
            _report(args.output, decoded, site_map, layout, args.region)
        else:
            _save(args.output, decoded)
    if args.json:
        _write_json(decoded, site_map)
    else:
        _write_text(decoded, site_map)
    if len(decoded.records) == 0:
        sys.stderr.write("gwatch: [no-records] the kernel ran, but no lane passed a site\n")
        return 3
    return 0


def _check_regions(args: argparse.Namespace, count: int) -> None:
    if args.region and (args.output is None or args.output.suffix.lower() not in _REPORTS):
        raise UsageError("region-without-report", "--region pairs sites of a report", "add -o FILE.json or FILE.html")
    for enter, leave, label in args.region:
        for number in (enter, leave):
            if not 0 <= number < count:
                raise SiteError(
                    "site-range", f"--region {label!r} names site {number}", f"{args.cubin} has sites 0 to {count - 1}"
                )


def _decoded(args: argparse.Namespace, site_map: SiteMap) -> tuple[Decoded, RingLayout]:
    from gwatch.cuda.xtrace.decode import decode_ring
    from gwatch.rewrite.ring import RingLayout
    from gwatch.rewrite.ringfile import split_ring_file

    layout, duration, data = split_ring_file(_read(args.ring), site_map)
    if args.grid is not None and args.block is not None:
        ctas = args.grid[0] * args.grid[1] * args.grid[2] if args.ctas is None else args.ctas
        layout = RingLayout(site_map.format, args.grid, args.block, ctas)
    if layout is None:
        raise TraceError(
            "ring-geometry",
            f"{args.ring} is a bare dump",
            "say how it was launched: --grid X,Y,Z --block X,Y,Z",
        )
    bound = duration if args.duration_ns is None else args.duration_ns
    return decode_ring(data, layout, site_map, bound), layout


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError("no-file", f"cannot read {path}: {error.strerror}", "check the path") from None


def _site_map(path: Path) -> SiteMap:
    from gwatch.cuda.binary.constants import read_note
    from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap

    data = _read(path)
    if data[:1] not in (b"{", b"\x7f"):
        raise TraceError("site-map", f"{path} is neither a cubin nor a site map",
                         "give the cubin that `gwatch rewrite` wrote, or its .map.json")
    if data[:1] == b"{":
        return SiteMap.from_bytes(data)
    note = read_note(data, NOTE_NAME)
    if note is None:
        raise TraceError(
            "site-map", f"{path} carries no site map", "give the cubin that `gwatch rewrite` wrote"
        )
    return SiteMap.from_bytes(note)


def _save(path: Path, decoded: Decoded) -> None:
    import io

    import numpy as np

    from gwatch._files import write_atomically

    buffer = io.BytesIO()
    np.savez(
        buffer,
        records=decoded.records,
        visits=decoded.visits,
        dropped=decoded.dropped,
        headers=decoded.headers,
    )
    write_atomically(path, buffer.getvalue())


def _report(
    path: Path, decoded: Decoded, site_map: SiteMap, layout: RingLayout, regions: list[tuple[int, int, str]]
) -> None:
    from gwatch.common.format import File
    from gwatch.cuda.xtrace.format import Section_IntraKernelTrace, decoded_result

    section = Section_IntraKernelTrace()
    section.add_run(decoded_result(decoded, site_map, layout), site_regions=regions or None)
    report = File(title=f"SASS trace of {site_map.kernel}")
    report.add_section(section)
    report.render(path)


def _summary(decoded: Decoded, site_map: SiteMap) -> dict[str, Any]:
    import numpy as np

    counts = np.bincount(decoded.records["site"], minlength=len(site_map.sites))
    return {
        "kernel": site_map.kernel,
        "clock": site_map.clock,
        "unit": decoded.unit,
        "records": len(decoded.records),
        "dropped": decoded.dropped_total,
        "anchor": decoded.clock.to_json() if decoded.clock else None,
        "warnings": list(decoded.warnings),
        "sites": [
            {"site": s.site_id, "index": s.index, "instruction": s.instruction, "records": int(n)}
            for s, n in zip(site_map.sites, counts.tolist(), strict=True)
        ],
    }


def _write_json(decoded: Decoded, site_map: SiteMap) -> None:
    import json

    names = decoded.records.dtype.names or ()
    rows = [dict(zip(names, _plain(row), strict=True)) for row in decoded.records.tolist()]
    json.dump({**_summary(decoded, site_map), "trace": rows}, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


def _plain(row: tuple[Any, ...]) -> list[Any]:
    return [value.tolist() if hasattr(value, "tolist") else value for value in row]


def _write_text(decoded: Decoded, site_map: SiteMap) -> None:
    summary = _summary(decoded, site_map)
    out = [
        f"{summary['kernel']}: {summary['records']} records, {summary['dropped']} dropped, "
        f"clock {summary['clock']}"
    ]
    out += [f"warning: {text}" for text in decoded.warnings]
    if decoded.clock is not None:
        fit = decoded.clock
        out.append(
            f"anchor: {fit.pairs} clock pairs on {fit.sms} SMs, 99.9 % within {fit.residual_p999_ns:.0f} ns, "
            f"at most {fit.residual_max_ns:.0f} ns, timer step {fit.timer_step_ns} ns"
        )
    out += [
        f"site {s['site']:3}  {s['records']:9} records  {s['index']:5}  {s['instruction']}"
        for s in summary["sites"]
    ]
    start = int(decoded.records["time"].min()) if len(decoded.records) else 0
    out.append(
        f"{'block':>14} {'warp':>4} {'lane':>4} {'site':>4} {'seq':>6} "
        f"{decoded.unit:>14} {'value':>18} {'sm':>4}"
    )
    for r in decoded.records[:_SHOWN]:
        block = ",".join(map(str, r["block"].tolist()))
        out.append(
            f"{block:>14} {r['warp']:4} {r['lane']:4} {r['site']:4} {r['sequence']:6} "
            f"{int(r['time']) - start:14} {int(r['value']):#18x} {r['smid']:4}"
        )
    if len(decoded.records) > _SHOWN:
        out.append(f"... and {len(decoded.records) - _SHOWN} more (--json or -o FILE.npz for all)")
    sys.stdout.write("\n".join(out) + "\n")
