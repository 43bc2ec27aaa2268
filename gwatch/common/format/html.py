"""The report as one self-contained page: verdict, timeline, tables; no network, no script but its own.

All text from outside (kernel names, labels, instructions) is escaped where it enters the markup; the script
gets its data as JSON in which no tag can begin, and writes text only through text nodes and the canvas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gwatch.common.format.boxes import box_strips
from gwatch.common.format.findings import findings
from gwatch.common.format.histograms import histograms
from gwatch.common.format.listing import lines_of, steps_of, taken_at
from gwatch.common.format.looks import looks
from gwatch.common.format.payload import payload
from gwatch.common.format.run import Run, plain
from gwatch.common.format.text import code_order, duration, locator, since, source_line
from gwatch.common.format.views import between, cost_notes, instruction_of
from gwatch.common.format.views_more import MAX_FINDINGS, MAX_WAITS
from gwatch.common.format.waits import ran_by, wait_scopes, wait_table, who_waits

if TYPE_CHECKING:
    from gwatch.common.format.file import File, Section

TEMPLATES = Path(__file__).resolve().parent / "templates"
SCRIPTS = ("core.js", "timeline.js", "folded.js", "panel.js", "start.js")
POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
          "base-uri 'none'; form-action 'none'")
ICONS = {"yes": "✓", "no": "✗", "unknown": "?"}


def embed(value: Any) -> str:
    """JSON that is safe inside a script element: no tag, comment or entity can begin in it."""
    text = json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def html_chunks(report: File) -> Iterator[str]:
    """The page in pieces."""
    from gwatch.common.format.file import Section_IntraKernelTrace
    title, when = escape(report.title), escape(report.stamp())
    yield ('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
           f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
           '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
           f"<title>{title}</title>\n<style>\n{_template('page.css')}</style>\n</head>\n<body>\n")
    yield (f'<header class="top"><h1>{title}</h1><span class="when">{when}</span>'
           '<button id="theme" type="button" title="Switch between light and dark">◐</button></header>\n'
           "<main>\n")
    number = 0
    for section in report.sections:
        several = len(report.sections) > 1
        yield f'<section class="part"><h2 class="part-title"{"" if several else " hidden"}>' \
              f"{escape(section.title)}</h2>\n"
        if isinstance(section, Section_IntraKernelTrace):
            if not section.runs:
                yield '<p class="note">This section holds no run.</p>\n'
            yield from _pills(section.runs, number)
            for i, run in enumerate(section.runs):
                yield from _run(run, number, hidden=i > 0)
                number += 1
        else:
            yield _other(section)
        yield "</section>\n"
    script = "\n".join(_template(name) for name in SCRIPTS)
    yield f'</main>\n<script>\n"use strict";\n(() => {{\n{script}}})();\n</script>\n</body>\n</html>\n'


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _other(section: Section) -> str:
    text = json.dumps(json.loads("".join(section.json_chunks())), indent=2, ensure_ascii=False)
    return f'<pre class="raw">{escape(text)}</pre>\n'


def _pills(runs: Sequence[Run], number: int) -> Iterator[str]:
    if len(runs) > 1:
        buttons = "".join(
            f'<button type="button" role="tab" data-run="{number + i}" aria-selected="{str(i == 0).lower()}">'
            f"Run {i}{escape(' · ' + run.source) if run.source else ''}</button>" for i, run in enumerate(runs))
        yield f'<div class="pills" role="tablist">{buttons}</div>\n'


def _run(run: Run, number: int, hidden: bool) -> Iterator[str]:
    a = run.analysis
    meta, blob = payload(run)
    for scope, look in zip(meta["scopes"], looks(run), strict=True):
        scope.update(ink=look.ink, hatch=look.hatch)
    yield f'<article class="run" id="run-{number}"{" hidden" if hidden else ""}>\n'
    yield _verdict(a["verdict"])
    yield _facts(run, a)
    yield _findings(run)
    yield _panel(run)
    yield '<div class="columns">\n'
    yield _sites(run, a)
    yield _code(run)
    boxes = box_strips(a["scope_stats"], run.roles, run.labels, looks(run), run.unit)
    yield _card("How long one run of each region takes", boxes, "wide")
    yield _card("How often it takes how long", histograms(run, a["scope_stats"]), "wide")
    yield _scopes(run, a)
    yield _regions(run, a)
    yield _pipeline(run, a)
    yield _waits(run)
    yield _wait_scopes(run)
    yield "</div>\n"
    yield f'<script type="application/json" class="meta">{embed(meta)}</script>\n'
    yield f'<script type="text/plain" class="blob">{blob}</script>\n</article>\n'


class _Markup(str):
    """Text that is HTML already."""


def _verdict(verdict: Mapping[str, Any]) -> str:
    word = str(verdict["trustworthy"])
    head, *rest = str(verdict["line"]).split(" · ")
    reasons = "".join(f"<li>{escape(str(r))}</li>" for r in verdict["reasons"])
    chips = "".join(f"<span>{escape(part)}</span>" for part in rest)
    state = word if word in ICONS else "unknown"
    lead = f"<b>{ICONS[state]} {escape(head)}</b>"
    return (f'<div class="verdict {state}" role="status"><div class="line">{lead}{chips}</div>'
            + (f"<ul>{reasons}</ul>" if reasons else "") + "</div>\n")


def _findings(run: Run) -> str:
    found = findings(run)
    items = "".join(f"<li><code>{escape(f.code)}</code> {_PLACE.sub(_button, escape(f.text))}</li>"
                    for f in found[:MAX_FINDINGS])
    return f'<ul class="findings">{items}</ul>\n' if items else ""


_PLACE = re.compile(r"\bb\d+ w\d+(?: t\d+)?(?: \+[\d.]+(?:ns|µs|ms|s|[kM]?cyc))?")


def _button(place: re.Match[str]) -> str:
    """A place that a click brings into view."""
    return _place(place[0])


def _place(text: str, to: str = "") -> _Markup:
    """``text`` as a button that brings the place ``to`` (else the one that the text names) into view."""
    text, to = escape(text), escape(to or text)
    return _Markup(f'<button type="button" data-to="{to}" title="Show it">{text}</button>')


def _facts(run: Run, a: Mapping[str, Any]) -> str:
    grid, block = (" × ".join(map(str, dims)) for dims in (run.geometry.grid, run.geometry.block))
    noun = "warps" if run.granularity == "warp" else "threads" if (run.trace.rows.lane >= 0).all() else "rows"
    counts = f"{a['n_records']:,} records · {a['n_rows']:,} {noun}"
    clock = f"{run.clock} ({run.unit})" + ", each SM from 0" * (a["time_origin"] == "per SM")
    entries = [("Launch", f"grid {grid} · block {block}"), ("Recorded", counts), ("Clock", clock),
               ("Span", duration(a["span"], run.unit))]
    if a["unmatched_starts"] or a["unmatched_ends"]:
        entries.append(("Unmatched", f"{a['unmatched_starts']:,} starts, {a['unmatched_ends']:,} ends"))
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in entries)
    notes = "".join(f'<p class="why">{escape(f"{name}: {text}")}</p>' for name, text in cost_notes(run))
    notes += "".join(f'<p class="note">{escape(w)}</p>' for w in run.warnings)
    return (f'<h2 class="kernel" title="{escape(run.kernel)}">{escape(run.kernel)}</h2>'
            f'<dl class="facts">{items}</dl>{notes}\n')


def _panel(run: Run) -> str:
    if len(run.trace) == 0:
        return '<p class="note">No records: nothing to draw.</p>\n'
    return ('<div class="panel"><div class="bar">'
            '<label>Rows <input class="filter" type="text" spellcheck="false" '
            'placeholder="all; or block 0-3 warp 0 sm 7" '
            'title="Any of: block, warp, warpgroup, cluster, sm, role, tid, '
            f'with numbers such as 0-3,5{f" (cluster: {run.no_clusters})" if run.no_clusters else ""}"></label>'
            '<button type="button" class="typical"></button>'
            '<button type="button" class="all">All rows</button>'
            '<label>Order <select class="order"><option value="role">role, id</option>'
            '<option value="id">id</option><option value="sm">SM</option>'
            f'{"" if run.no_clusters else _CLUSTERS}'
            '<option value="block">block</option>'
            '<option value="warpgroup">warpgroup</option>'
            '<option value="start">first start</option>'
            '<option value="active">active time</option></select></label>'
            '<label>Jump <input class="jump" type="text" spellcheck="false" placeholder="b4 w2 +1.3 µs, or a scope" '
            'title="Enter: a place as gwatch prints it, or the next longest run of a scope"></label>'
            '<span class="spring"></span>'
            '<button type="button" class="zoom-out" title="Zoom out (-)">−</button>'
            '<button type="button" class="zoom-in" title="Zoom in (+)">+</button>'
            '<button type="button" class="reset" title="Whole trace (0, double click)">Reset</button></div>'
            '<div class="legend"></div>'
            '<div class="readout"><span class="state"></span><span class="spring"></span>'
            '<button type="button" class="fit" hidden>Zoom to selection</button>'
            '<button type="button" class="copy" hidden>Copy selection</button>'
            '<button type="button" class="command" hidden>Copy as gwatch command</button></div>'
            '<div class="stage"><canvas class="overview" height="34"></canvas>'
            '<canvas class="time" tabindex="0" aria-label="Timeline: rows over time"></canvas>'
            '<div class="tip" hidden></div></div>'
            '<p class="hint">Drag selects · wheel scrolls · Ctrl+wheel zooms time · Alt+wheel zooms rows · '
            'arrows pan · + − zoom · 0 resets</p></div>\n')


_CLUSTERS = '<option value="cluster">cluster</option>'


def _card(title: str, body: str, kind: str = "") -> str:
    return f'<section class="card {kind}"><h3>{escape(title)}</h3>{body}</section>\n' if body else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: Iterable[int] = (0,),
           marks: Sequence[str] = (), code: Iterable[int] = ()) -> str:
    """A table; ``marks`` are row attributes (already markup), ``code`` the columns in monospace."""
    keep, mono = set(left), set(code)

    def cell(tag: str, i: int, text: Any) -> str:
        names = " ".join(n for n, on in (("l", i in keep), ("code", i in mono and tag == "td")) if on)
        inside = text if isinstance(text, _Markup) else escape(str(text))
        return f'<{tag}{f" class={chr(34)}{names}{chr(34)}" if names else ""}>{inside}</{tag}>'

    top = "".join(cell("th", i, h) for i, h in enumerate(head))
    lines = ("".join(cell("td", i, c) for i, c in enumerate(row)) for row in rows)
    body = "".join(f"<tr{marks[n] if marks else ''}>{line}</tr>" for n, line in enumerate(lines))
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _scopes(run: Run, a: Mapping[str, Any]) -> str:
    stats = a["scope_stats"]
    if not stats:
        return ""
    keys = ("min", "p50", "mean", "p95", "max", "total")
    rows = [(s["scope_label"], ", ".join(name or "no role" for name in ran_by(run, s["scope_label"]))
             if run.roles else "", f"{s['count']:,}",
             *(duration(s[k], run.unit) for k in keys)) for s in stats]
    table = _table(["scope", "role", "count", *keys], rows, (0, 1))
    return _card("Per-scope stats (by total time)", table, "wide")


def _sites(run: Run, a: Mapping[str, Any]) -> str:
    """Sites in code order: source line, SASS, the time that regions beginning there take, and the time to the next
    record."""
    known = {int(site.get("site_id", i)): site for i, site in enumerate(run.sites)}
    length = run.intervals.end - run.intervals.start
    taken = {r: int(length[run.intervals.region == i].sum()) for i, r in enumerate(run.regions)}
    most = max(taken.values(), default=0)
    stats = sorted(a["site_stats"], key=lambda s: (code_order(known.get(s["site_id"], {}), s["site_id"]), s["site_id"]))
    rows, marks, steps = [], [], steps_of(run)
    for s in stats:
        number = int(s["site_id"])
        step = steps.get(number)
        site = known.get(number, {})
        begins = [r for r in run.regions if r.enter == number]
        ends = [r.label for r in run.regions if r.leave == number]
        total = sum(taken[r] for r in begins)
        what = ", ".join([*(f"begins {label}" for label in dict.fromkeys(r.label for r in begins)),
                          *(f"ends {label}" for label in dict.fromkeys(ends))])
        rows.append((number, source_line(site), instruction_of(site), what,
                     duration(total, run.unit) if begins else "",
                     *((duration(step["mean"], run.unit), f"{step['share']:.1%}") if step else ("", "")),
                     f"{s['count']:,}", f"{s['records_per_row']:.1f}",
                     duration(s["repeat_min"], run.unit), duration(s["repeat_mean"], run.unit),
                     duration(s["repeat_max"], run.unit)))
        share = f"{100 * total / most:.1f}" if begins and most else "0"
        marks.append(f' data-site="{number}" tabindex="0" style="--share:{share}%"')
    if not rows:
        return ""
    head = ["site", "source", "instruction", "region", "time from here", "to next", "share", "records", "per row",
            "repeat min", "mean", "max"]
    return _card("Per-site records, in code order",
                 _table(head, rows, (0, 1, 2, 3), marks, (1, 2)) + '<p class="hint">A click holds a site: its '
                 "intervals stand out above. Pointing at an interval marks its two sites here. To next: mean time to "
                 "the row’s next record, whatever its site, and the share of all such time.</p>", "wide sites")


def _code(run: Run) -> str:
    """The kernel's instructions with their source lines and the time that begins at each site."""
    lines = lines_of(run)
    if not lines:
        return ""
    taken = taken_at(run)
    most = max(taken.values(), default=0)
    numbers: dict[str, int] = {}
    rows, shown = [], ""
    for line in lines:
        if not line.follows:
            rows.append('<tr class="gap"><td colspan="4">⋮</td></tr>')
        place, total = line.place, taken.get(line.site, 0) if line.site is not None else 0
        source = f"{line.line}  {line.source}" if line.source else place
        mark = "" if line.site is None else f' data-site="{line.site}" tabindex="0"'
        share = f"{100 * total / most:.1f}" if total and most else "0"
        number = numbers.setdefault(place, len(numbers)) if place else -1
        rows.append(
            f'<tr{mark} data-line="{number}" style="--share:{share}%"><td>{line.index}</td>'
            f'<td class="l code">{escape(line.text)}</td><td>{duration(total, run.unit) if total else ""}</td>'
            f'<td class="l code line" title="{escape(place)}">{escape(source) if place != shown else ""}</td></tr>')
        shown = place
    head = '<tr><th>at</th><th class="l">instruction</th><th>time from here</th><th class="l">source</th></tr>'
    body = f'<table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'
    hint = ('<p class="hint">Sites stand out with the time that begins at them, and point at the picture as above. '
            'A click on a source line marks all instructions that stem from it.</p>')
    return _card("Code", f'<div class="scroll listing">{body}</div>{hint}', "wide code-card")


def _regions(run: Run, a: Mapping[str, Any]) -> str:
    if not a["region_stats"] or run.record_shape != "site":
        return ""
    rows = [(s["label"], f"{s['enter_site']} → {s['leave_site']}", f"{s['intervals']:,}", f"{s['rows']:,}",
             f"{s['dropped']:,}", f"{s['pair_rate']:.1%}") for s in a["region_stats"]]
    head = ["region", "sites", "intervals", "rows", "unpaired", "pair rate"]
    return _card("Paired regions", _table(head, rows, (0, 1)))


def _waits(run: Run) -> str:
    found = wait_table(run)
    if not found or not run.roles:
        return ""
    rows = [(w["role"], f"{w['before']} → {w['after']}", between(run, w["before"], w["after"]).replace("->", "→"),
             f"{w['count']:,}", duration(w["total"], run.unit),
             f"{w['share']:.1%}", duration(w["p50"], run.unit),
             "–" if w["released_by"] is None else f"{w['released_by_role'] or ''} {w['released_by']}",
             duration(w["slack_p50"], run.unit), _longest(run, w)) for w in found[:MAX_WAITS]]
    head = ["role", "waits between", "source", "count", "total", "of its life", "p50", "ended just before", "slack p50",
            "longest"]
    return _card("Who waits for whom", _table(head, rows, (0, 1, 2, 7, 9)), "wide")


def _longest(run: Run, wait: Mapping[str, Any]) -> _Markup:
    """How long the longest of some waits took, and where it is."""
    place = f"{locator(run.trace.rows, wait['longest_row'])} {since(wait['longest_start'] - run.zero, run.unit)}"
    return _Markup(f"{escape(duration(wait['longest'], run.unit))} at {_place(place)}")


def _wait_scopes(run: Run) -> str:
    found = wait_scopes(run)
    if not found:
        return ""
    rows = [(w["scope"], who_waits(w), w["line"], f"{w['count']:,}", duration(w["total"], run.unit),
             f"{w['share']:.1%}", duration(w["p50"], run.unit), duration(w["p95"], run.unit), _longest(run, w))
            for w in found[:MAX_WAITS]]
    head = ["wait", "role", "source", "count", "total", "of its life", "p50", "p95", "longest"]
    return _card("Waits that were recorded", _table(head, rows, (0, 1, 2, 8)), "wide")


def _pipeline(run: Run, a: Mapping[str, Any]) -> str:
    p = a["pipeline_summary"]
    if not p:
        return ""
    rows = [(name, *(duration(p[f"{name}_{k}"], run.unit) for k in ("mean", "min", "max")))
            for name in ("active", "bubble", "lifetime")]
    body = _table(["per row", "mean", "min", "max"], rows)
    body += f'<p>Outside all regions: <b>{p["bubble_ratio"]:.1%}</b> of the rows’ lifetime.</p>'
    found = []
    for b in a["longest_bubbles"]:
        row, at = locator(run.trace.rows, b["row"]), since(b["start"] - run.zero, run.unit)
        found.append((_place(row, f"{row} {at}"), duration(b["gap"], run.unit), at, f"{b['before']} → {b['after']}"))
    if found:
        body += "<h4>Longest bubbles</h4>" + _table(["row", "bubble", "at", "between"], found, (0, 3))
    return _card("Pipeline", body)
