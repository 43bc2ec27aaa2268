"""``gwatch show trace.json``: the text views of a trace. Needs neither a GPU nor a driver."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

MOST = (120, 20_000)
"""Lines and bytes of the view that nobody asked for by name."""
LEAST_ROWS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("report", nargs="+", help="reports (.json, .gwatch, or IKET's JSON); several are merged")
    parser.add_argument("--run", default="0", metavar="N", help="which of the report's runs (default 0)")
    narrow = parser.add_argument_group("narrowing (ranges: 0-3,5 or [0,31],[64,95])")
    narrow.add_argument("--select", metavar="TOKEN", help="a selection copied from the HTML page")
    narrow.add_argument("--tid", metavar="RANGES", help="global thread ids")
    narrow.add_argument("--block", metavar="RANGES", help="linear block ids")
    narrow.add_argument("--cluster", metavar="RANGES", help="clusters of blocks, numbered like blocks")
    narrow.add_argument("--warp", metavar="RANGES", help="warps within their block")
    narrow.add_argument("--stime", metavar="T", help="keep what ends at or after this time: +17.6us or 17600ns count "
                        "from the run's first record, as all views do (also +9000, in ns or, with the sm clock, "
                        "cycles: +17.6kcyc); a plain integer is an absolute time as recorded")
    narrow.add_argument("--etime", metavar="T", help="keep what starts at or before this time")
    views = parser.add_argument_group("views (default: header, tables, pipeline, timeline)")
    views.add_argument("--stats", action="store_true", help="the three tables in full")
    views.add_argument("--timeline", action="store_true", help="rows over time")
    views.add_argument("--bubbles", action="store_true", help="pipeline summary and longest bubbles")
    views.add_argument("--concurrency", action="store_true", help="rows inside a region, over time")
    views.add_argument("--outliers", action="store_true", help="rows with unusual active time")
    views.add_argument("--findings", action="store_true", help="what stands out, by stated rules")
    views.add_argument("--iterations", action="store_true", help="loops: period, pipelining, slack between roles")
    views.add_argument("--roles", action="store_true", help="who waits for whom, on what, where")
    views.add_argument("--source", action="store_true", help="sites in code order, with times")
    views.add_argument("--diff", metavar="REPORT", help="compare with another report: it is before, this is after; "
                       "exit code 1 when they are of different kernels or no scope ran in both")
    views.add_argument("--longest-bubble", action="store_true", help="the ten longest bubbles")
    views.add_argument("--longest", metavar="SCOPE", help="the ten longest intervals of a scope")
    parser.add_argument("--sample", metavar="N", help="rows in the timeline (default 32, beside a list of runs 16; "
                        "0 = all)")
    parser.add_argument("--sort-by", metavar="KEY",
                        help="timeline order, of which the first rows are shown: tid, cluster, active, bubble, "
                        "lifetime, or a scope (times: longest first)")
    parser.add_argument("--human", action="store_true",
                        help="block glyphs and colours even when not a terminal")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="also write the report: .html, .json, .gwatch, .pftrace or .chrome.json")
    parser.add_argument("--force", action="store_true", help="replace the output if it is there")
    parser.add_argument("--json", action="store_true", help="the tables as JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Print the views asked for; 0, 1 where ``--diff`` compares different kernels or nothing, or 3 when the trace holds
    no record. Bad input raises GWatchError."""
    from gwatch._kinds import TRACE, expect
    from gwatch.common.format.jsonout import dump
    from gwatch.common.format.timeline import row_order

    for path in (*args.report, *([args.diff] if args.diff is not None else [])):
        expect(path, TRACE)
    if args.output is not None:
        _check_output(args.output, args.force)
    report = _load(args.report)
    full, number = _choose(report, args.run)
    sample = _integer(args.sample, "--sample", 0) if args.sample is not None else None
    narrowed = _narrow(full, args)
    _check_scope(narrowed, args.longest)
    if args.sort_by is not None:
        # Whatever is shown, an order that there is not is refused.
        row_order(narrowed, args.sort_by)
    compared = _compare(full, narrowed, args) if args.diff is not None else None
    # An output that cannot be written is all that is told.
    if args.output is not None:
        report.render(args.output)
    if args.json:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        summary = _summary(narrowed, full, compared, report.runs) | _asked(narrowed, args)
        text = dump(summary, ascii_only=not utf8)
        print(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    else:
        print("\n".join(_fitting(narrowed, full, compared, number, report.runs, sample, args)))
    if not len(full.trace):
        return 3
    return 1 if compared is not None and not (compared["kernels"]["same"] and compared["scopes"]) else 0


def _compare(full: Any, narrowed: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The run beside that of ``--diff``, narrowed alike; the verdicts are those of the whole runs."""
    from gwatch.common.format.compare import compare_runs
    before = _choose(_read(args.diff), args.run)[0]
    return {"verdicts": {"before": before.analysis["verdict"], "after": full.analysis["verdict"]},
            **compare_runs(_narrow(before, args), narrowed)}


def _check_scope(run: Any, scope: str | None) -> None:
    from gwatch.errors import TraceError
    if scope is not None and scope not in run.labels:
        raise TraceError("no-scope", f"there is no scope {scope!r}",
                         "the scopes are " + (", ".join(run.labels) or "none: the trace has no regions"), run.labels)


def _load(paths: list[str]) -> Any:
    from gwatch.common.format import File
    if len(paths) == 1:
        return _read(paths[0])
    names = [path.replace("\\", "/").rsplit("/", 1)[-1] for path in paths]
    # Equal file names (a folder per rank) are told apart by their paths.
    return File.merge([_read(path) for path in paths], names if len(set(names)) == len(names) else paths)


def _read(path: str) -> Any:
    from gwatch.common.format import File
    from gwatch.errors import GWatchError, naming
    with naming(path, GWatchError):
        return File.load(path)


def _check_output(path: str, force: bool) -> None:
    from gwatch.common.format.file import form_of
    from gwatch.errors import TraceError
    form_of(path)
    if os.path.lexists(path) and not force:
        raise TraceError("output-exists", f"{path} is there already", "choose another name or give --force")


def _integer(text: str | None, flag: str, least: int | None = None) -> int:
    from gwatch.errors import TraceError
    try:
        value = int(str(text))
    except ValueError:
        value = None
    if value is None or (least is not None and value < least):
        raise TraceError("bad-number", f"{flag} {text!r}", "give a whole number" + (
            f" of at least {least}" if least is not None else ""))
    return value


def _choose(report: Any, text: str) -> tuple[Any, int]:
    from gwatch.errors import TraceError
    runs = report.runs
    if not report.traces:
        raise TraceError("no-section", "the report has no Section_IntraKernelTrace",
                         "it has " + (", ".join(s.type for s in report.sections) or "no sections"))
    if not runs:
        raise TraceError("no-run", "the report's trace section holds no run")
    number = _integer(text, "--run")
    if not 0 <= number < len(runs):
        raise TraceError("bad-run", f"--run {number}: the report has {len(runs)} run{'s' * (len(runs) > 1)}",
                         f"give 0 to {len(runs) - 1}", map(str, range(min(len(runs), 64))))
    return runs[number], number


def _narrow(run: Any, args: argparse.Namespace) -> Any:
    from gwatch.common.format import select
    if args.select is not None:
        run = select.apply_selection(run, select.parse_token(args.select))
    if any(text is not None for text in (args.tid, args.block, args.warp, args.cluster)):
        run = select.select_rows(run, args.tid, args.block, args.warp, args.cluster)
    if args.stime is not None or args.etime is not None:
        start = select.parse_time(args.stime, "--stime", run) if args.stime is not None else None
        end = select.parse_time(args.etime, "--etime", run, up=True) if args.etime is not None else None
        run = select.keep_time(run, start, end)
    return run


def _summary(run: Any, full: Any, compared: dict[str, Any] | None, runs: list[Any]) -> dict[str, Any]:
    from gwatch.common.format.findings import findings
    from gwatch.common.format.iterations import iteration_table, slack_table
    from gwatch.common.format.listing import steps_of
    from gwatch.common.format.waits import role_table, wait_scopes, wait_table
    a = run.analysis
    first = ("scope_labels", "n_threads", "n_records", "t_min", "t_max")
    skip = {"verdict", "grid_dim", "block_dim", "block_size"}
    return {"kernel_prototype": run.kernel, "verdict": full.analysis["verdict"],
            "compile_results": dict(run.compile_results),
            "launch": {"grid_dim": a["grid_dim"], "block_dim": a["block_dim"], "block_size": a["block_size"],
                       "warp_size": 32}, **{k: a[k] for k in first},
            **{k: v for k, v in a.items() if k not in skip and k not in first and k != "launch"},
            "launch_details": a.get("launch") or {}, "filtered": run is not full,
            "findings": [f.as_dict() for f in findings(run)], "roles": role_table(run), "waits": wait_table(run),
            "wait_scopes": wait_scopes(run),
            "iterations": iteration_table(run), "slack": slack_table(run), "site_steps": list(steps_of(run).values()),
            **({"runs": [{"source": r.source, "kernel_prototype": r.kernel} for r in runs]} if len(runs) > 1 else {}),
            **({"diff": compared} if compared is not None else {})}


def _asked(run: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The tables that are made only where their view is asked for."""
    from gwatch.common.format import analysis, views
    found: dict[str, Any] = {}
    if args.longest_bubble:
        found["longest_bubbles"] = analysis.longest_bubbles(run.cover, run.scope, run.labels, run.trace, views.LONGEST)
    if args.longest is not None:
        found["longest"] = views.longest_table(run, args.longest)
    if args.outliers:
        found["outliers"] = views.outlier_table(run)
    return found


def _fitting(run: Any, full: Any, compared: dict[str, Any] | None, number: int, runs: list[Any], sample: int | None,
             args: argparse.Namespace) -> list[str]:
    """The views; unless rows or views were asked for, with as many rows in the timeline as ``MOST`` allows."""
    rows = sample
    while True:
        lines = _views(run, full, compared, number, runs, rows, args)
        size = sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
        over = max(len(lines) / MOST[0], size / MOST[1])
        rows = (_rows_shown(runs) if rows is None else rows) * 3 // 4
        if sample is not None or any(_chosen(args)) or over <= 1 or rows < LEAST_ROWS:
            return lines


def _rows_shown(runs: list[Any]) -> int:
    """Rows of the timeline where the default view does not need fewer."""
    return 16 if len(runs) > 1 else 32


def _chosen(args: argparse.Namespace) -> tuple[bool, ...]:
    """The views asked for by name."""
    return (args.stats, args.timeline, args.bubbles, args.concurrency, args.outliers, args.longest_bubble,
            args.longest is not None, args.findings, args.roles, args.iterations, args.source, args.diff is not None)


def _views(run: Any, full: Any, compared: dict[str, Any] | None, number: int, runs: list[Any], sample: int | None,
           args: argparse.Namespace) -> list[str]:
    from gwatch.common.format import timeline, views, views_more
    from gwatch.common.format.text import Style
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    style = Style((args.human or terminal) and (sys.stdout.encoding or "").lower().startswith("utf"),
                  args.human or (terminal and not os.environ.get("NO_COLOR")))
    default = not any(_chosen(args))
    verdict = (views.verdict_lines(full.analysis["verdict"], style) if compared is None
               else views_more.both_verdicts(compared, style))
    blocks = [verdict, views.header(run, number, len(runs), style)]
    if default:
        blocks.append(views_more.runs_view(runs, style))
    if default or args.findings:
        blocks.append(views_more.findings_view(run, style, None if args.findings else views_more.MAX_FINDINGS))
    if default or args.stats:
        limits = (12, 8, 8) if default else (None, None, None)
        if run.window is None:
            blocks += [views.site_table(run, style, limits[0]), views.region_table(run, style, limits[1])]
        blocks.append(views.scope_table(run, style, limits[2]))
    if default or args.bubbles:
        blocks.append(views.pipeline_view(run, style))
    if args.bubbles or args.longest_bubble:
        blocks.append(views.bubbles_view(run, style, views.LONGEST if args.longest_bubble else 5))
    if compared is not None:
        blocks.append(views_more.diff_view(compared, style))
    if args.roles:
        blocks.append(views_more.roles_view(run, style))
    if args.iterations:
        blocks.append(views_more.iterations_view(run, style))
    if args.source:
        blocks.append(views_more.source_view(run, style))
    if args.concurrency:
        blocks.append(views.concurrency_view(run, style))
    if args.outliers:
        blocks.append(views.outliers_view(run, style))
    if args.longest is not None:
        blocks.append(views.longest_view(run, args.longest, style))
    if sample is None:
        sample = _rows_shown(runs) if default else timeline.SAMPLE
    if default or args.timeline:
        blocks.append(timeline.timeline_view(run, style, sample, args.sort_by))
    blocks.append(_next(run, args, number, style))
    return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def _next(run: Any, args: argparse.Namespace, number: int, style: Any) -> list[str]:
    """Commands worth running next, ready to paste; none that shows no more than this one."""
    # Names that begin with a hyphen would be read as options.
    names = [f"./{path}" if path.startswith("-") else path for path in args.report]
    kept = ("select", "tid", "block", "cluster", "warp", "stime", "etime")
    narrowing = {f"--{name}": getattr(args, name) for name in kept if getattr(args, name) is not None}
    a = run.analysis
    more: list[list[str]] = []
    if len(run.roles) > 1 and a["longest_bubbles"]:
        more.append(["--roles"])
    if a["longest_bubbles"]:
        block = int(run.trace.rows.block[a["longest_bubbles"][0]["row"]])
        more += [["--longest-bubble"], ["--block", str(block), "--timeline", "--bubbles"]]
    if a["scope_stats"]:
        label = a["scope_stats"][0]["scope_label"]
        more.append([f"--longest={label}"] if label.startswith("-") else ["--longest", label])
    if a["region_stats"]:
        more.append(["--source"])
    more.append(["--json"])
    shown = _settings(args)
    commands = []
    for words in more:
        if not _settings_of(words) <= shown:
            chosen = [word for flag, value in narrowing.items() if flag not in words for word in (flag, value)]
            parts = ["gwatch", "show", *names, *(["--run", str(number)] if number else []), *chosen, *words]
            commands.append(" ".join(_quoted(word, style.unicode) for word in parts))
    return [style.bold("Next"), *(f"  {command}" for command in commands)]


def _quoted(word: str, unicode: bool) -> str:
    """``word`` as a shell reads it; what the reader cannot be shown, byte by byte as ``$'...'`` spells it."""
    if word.isprintable() and (unicode or word.isascii()):
        return shlex.quote(word)
    text = "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in "\\'" else f"\\x{byte:02x}"
                   for byte in os.fsencode(word))
    return f"$'{text}'"


def _settings(args: argparse.Namespace) -> set[tuple[str, Any]]:
    """What a command line asks for beyond the defaults."""
    defaults = vars(_parsed([]))
    return {(name, value) for name, value in vars(args).items()
            if name in defaults and name != "report" and value != defaults[name]}


def _settings_of(words: list[str]) -> set[tuple[str, Any]]:
    return _settings(_parsed(words))


def _parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["report", *words])
