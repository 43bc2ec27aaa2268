"""The text views of a run: verdict, header, tables, pipeline, bubbles, concurrency, outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gwatch.common.format import analysis as tables
from gwatch.common.format.run import Run, plain
from gwatch.common.format.text import Style, clip, duration, locator, since, source_line, table
from gwatch.common.format.waits import ran_by, scope_places

MAX_REASONS = 4
MAX_WARNINGS = 2
FIELD = 15
REGISTER_KEYS = ("origin_reg_used [avg]", "trace_reg_used [avg]")
WIDTH = 110
OUTLIER_Z = 2.0
MAX_OUTLIERS = 20
LONGEST = 10


def verdict_lines(verdict: Mapping[str, Any], style: Style) -> list[str]:
    """The verdict, and why it is not "yes"."""
    lines = [style.bold(style.clean(str(verdict["line"])))]
    reasons = [str(r) for r in verdict["reasons"]]
    lines += [style.clean(clip(f"  - {r}", WIDTH)) for r in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        lines.append(f"  - and {len(reasons) - MAX_REASONS} more (--json)")
    return lines


def header(run: Run, number: int, total: int, style: Style) -> list[str]:
    """Who, what, where: kernel, run, how it was recorded, launch, counts, scopes, time range."""
    a = run.analysis
    unit = run.unit
    compiled = run.compile_results
    bits = [str(compiled.get("instrumentation_level", "sass")), f"{run.record_shape} records",
            f"per {run.granularity}", f"clock={run.clock}"]
    bits += [f"{key}={compiled[key]}" for key in REGISTER_KEYS if key in compiled]
    grid, block = ("x".join(map(str, dims)) for dims in (run.geometry.grid, run.geometry.block))
    labels = a["scope_labels"]
    noun = "Warps" if run.granularity == "warp" else "Threads"
    sampled = _sampled(run)
    source = f"  ({run.source})" if run.source else ""
    clusters = run.cluster_dim
    entries = [
        ("Kernel", run.kernel), ("Run", f"{number} of {total}{source}"), ("Compile", "  ".join(bits)),
        ("Launch", f"grid={grid}  block={block}  ({run.geometry.block_size} threads/block, warp=32)"
         + (f"  clusters of {'x'.join(map(str, clusters))} blocks" if clusters else "")),
        ("Records", f"{a['n_records']}" + (f"  (dropped {a['dropped']})" if a.get("dropped") else "")),
        (noun, f"{a.get('n_rows', a['n_threads'])}" + sampled),
        ("Scopes", f"{len(labels)}" + (f"  ({', '.join(labels)})" if labels else "  (no regions given)")),
        ("Time range", f"[{a['t_min']}, {a['t_max']}]  = {duration(a['span'], unit)}"
         + ("  (each SM starts at 0)" if a.get("time_origin") == "per SM" else "")),
    ]
    if a["n_records"]:
        ends = [since(a[key] - run.zero, unit) for key in ("t_min", "t_max")]
        part = "" if a["t_min"] == run.zero else f"these {' to '.join(ends)}; "
        entries.append(("Times", f"{part}+T counts from {run.zero}, the run's first record"))
    if run.window is not None:
        n = len(run.intervals)
        text = "it holds no interval" if run.regions else "there are no regions that could lie in it"
        entries.append(("Window", f"{n} intervals overlap it, tables show them whole; pipeline and shares count what "
                        "lies inside" if n else text))
    entries += cost_notes(run)
    unmatched = a["unmatched_starts"] + a["unmatched_ends"]
    if unmatched:
        entries.append(("Warning", f"unmatched: {a['unmatched_starts']} starts, {a['unmatched_ends']} ends"))
    fit = run.evidence.get("clock")
    if fit:
        fit = plain(fit)
        entries.append(("Clock fit", f"{fit['pairs']} clock pairs on {fit['sms']} SMs, 99.9 % within "
                        f"{fit['residual_p999_ns']:.0f} ns, timer step {fit['timer_step_ns']} ns"))
    entries += [("Warning", w) for w in run.warnings[:MAX_WARNINGS]]
    if len(run.warnings) > MAX_WARNINGS:
        entries.append(("Warning", f"and {len(run.warnings) - MAX_WARNINGS} more (--json)"))
    return [f"{name:{FIELD}}{style.clean(clip(text, WIDTH - FIELD))}" for name, text in entries]


def cost_notes(run: Run) -> list[tuple[str, str]]:
    """Why there is no cost per record, and whether lost occupancy matters."""
    notes = []
    unknown = run.analysis["cost_unknown"]
    if unknown and run.evidence.get("slowdown"):
        notes.append(("Record cost", f"not known: {unknown}"))
    occupancy = run.evidence.get("occupancy") or {}
    before, after, needed = (occupancy.get(key) for key in ("before", "after", "needed"))
    if before and after and after < before and needed and needed <= after:
        notes.append(("Occupancy", f"{before}→{after} CTAs fit an SM, the grid has {needed} for each: "
                      "as many run at once as before"))
    return notes


def _sampled(run: Run) -> str:
    blocks = len(np.unique(run.trace.rows.block))
    total = run.geometry.grid[0] * run.geometry.grid[1] * run.geometry.grid[2]
    return f"  (in {blocks} of {total} blocks)" if blocks < total else ""


def _titled(title: str, lines: list[str], style: Style) -> list[str]:
    return [style.bold(title), *(style.clean(line) for line in lines)]


def _cut(entries: Sequence[Any], limit: int | None) -> tuple[Sequence[Any], list[str]]:
    if limit is None or len(entries) <= limit:
        return entries, []
    return entries[:limit], [f"… {len(entries) - limit} more (--stats)"]


def site_table(run: Run, style: Style, limit: int | None = None) -> list[str]:
    """Per site: records, rows, time between firings, source line and instruction."""
    stats, more = _cut(run.analysis["site_stats"], limit)
    if not stats:
        return []
    known = {int(site.get("site_id", i)): site for i, site in enumerate(run.sites)}
    unit = run.unit
    body: list[tuple[Any, ...]] = []
    for s in stats:
        site = known.get(s["site_id"], {})
        body.append((s["site_id"], s["count"], s["rows"], f"{s['records_per_row']:.1f}",
                     duration(s["repeat_min"], unit), duration(s["repeat_mean"], unit),
                     duration(s["repeat_max"], unit), clip(source_line(site), 24), clip(instruction_of(site), 44)))
    head = ["site", "records", "warps" if run.granularity == "warp" else "rows", "per row", "repeat min",
            "mean", "max", "line", "instruction"]
    if not any(row[7] or row[8] for row in body):
        head, body = head[:7], [row[:7] for row in body]
    return _titled("Per-site records", table(style, head, body, (0, 7, 8)) + more, style)


def instruction_of(site: Mapping[str, Any]) -> str:
    """A site's instruction, behind the site's own name where it has one."""
    text, label = str(site.get("instruction") or "").strip(), str(site.get("label") or "")
    return f"[{label}] {text}" if label else text


def region_table(run: Run, style: Style, limit: int | None = None) -> list[str]:
    """Per region: sites, intervals, and what did not pair."""
    if run.record_shape != "site":
        return []
    stats, more = _cut(run.analysis["region_stats"], limit)
    if not stats:
        return []
    body = [(clip(s["label"], 32), f"{s['enter_site']} -> {s['leave_site']}", s["intervals"], s["rows"],
             s["dropped"], f"{s['pair_rate']:.1%}") for s in stats]
    head = ["region", "sites", "intervals", "warps" if run.granularity == "warp" else "rows", "dropped",
            "pair rate"]
    worst = min(run.analysis["region_stats"], key=lambda s: s["pair_rate"])
    if worst["pair_rate"] < 1:
        more = [*more, f"worst pair rate: {worst['label']} {worst['pair_rate']:.1%} ({worst['dropped']} "
                       f"records without a partner: {worst['at_edges']} first or last of a row,"
                       f" {worst['broken_by_drops']} beside drops)"]
    return _titled("Paired regions", table(style, head, body, (0, 1)) + more, style)


def scope_table(run: Run, style: Style, limit: int | None = None) -> list[str]:
    """Per scope: how long one run of it takes."""
    stats, more = _cut(run.analysis["scope_stats"], limit)
    if not stats:
        return []
    body = [(clip(s["scope_label"], 32), s["count"], *(duration(s[k], run.unit) for k in
             ("min", "p50", "mean", "p95", "max", "total")), _role_of(run, s["scope_label"]))
            for s in stats]
    head = ["scope_label", "count", "min", "p50", "mean", "p95", "max", "total", "role"]
    if not run.row_roles[0]:
        head, body = head[:-1], [row[:-1] for row in body]
    return _titled("Per-scope stats (by total time)", table(style, head, body, (0, 8)) + more, style)


def _role_of(run: Run, label: str) -> str:
    names = ran_by(run, label) if run.row_roles[0] else []
    return clip(names[0], 20) if len(names) == 1 else f"{len(names)} (--roles)" if names else ""


def pipeline_view(run: Run, style: Style) -> list[str]:
    """How much of their lifetime the rows were inside regions."""
    p = run.analysis["pipeline_summary"]
    if not p:
        return []
    unit, what = run.unit, "warp" if run.granularity == "warp" else "thread"

    def three(name: str) -> str:
        return ", ".join(f"{k}={duration(p[f'{name}_{key}'], unit)}" for k, key in
                         (("avg", "mean"), ("min", "min"), ("max", "max")))

    entries = [("active time", three("active")), ("bubble time", three("bubble")),
               (f"{what} lifetime", f"{three('lifetime')} (first to last record)"),
               ("bubble ratio", f"{p['bubble_ratio']:.1%}")]
    lines = [*(f"{name:{FIELD}} {text}" for name, text in entries), f"bubbliest {what}s:"]
    for top in p["top_bubbliest"]:
        share = top["bubble"] / top["lifetime"] if top["lifetime"] else 0.0
        lines.append(f"  {locator(run.trace.rows, top['row'])}  bubble={duration(top['bubble'], unit)} / lifetime="
                     f"{duration(top['lifetime'], unit)}  ({share:.1%})")
    return _titled("Pipeline", lines, style)


def bubbles_view(run: Run, style: Style, limit: int = tables.LONGEST_BUBBLES) -> list[str]:
    """The longest times between two regions of one row."""
    found = tables.longest_bubbles(run.cover, run.scope, run.labels, run.trace, limit)
    if not found:
        return _titled("Longest bubbles", ["none"], style)
    body = [(locator(run.trace.rows, b["row"]), duration(b["gap"], run.unit), since(b["start"] - run.zero, run.unit),
             f"{b['before']} -> {b['after']}", between(run, b["before"], b["after"])) for b in found]
    return _titled("Longest bubbles", table(style, ["row", "bubble", "at", "between", "line"], body, (0, 3, 4)), style)


def between(run: Run, before: str, after: str) -> str:
    """``file.cu:33 -> file.cu:31``: where one scope ends and the next begins; "" when neither is known."""
    ends = scope_places(run, before, True), scope_places(run, after)
    return " -> ".join(clip(end or "?", 28) for end in ends) if any(ends) else ""


def concurrency_view(run: Run, style: Style) -> list[str]:
    """How many rows are inside a region, over time."""
    c = run.analysis["concurrency"]
    glyphs = "▁▂▃▄▅▆▇█" if style.unicode else "_.:-=+*#"
    peak = c["peak"]
    bar = "".join(" " if n == 0 else glyphs[min(7, n * 8 // (peak + 1))] for n in c["bins"])
    noun = "warps" if run.granularity == "warp" else "threads"
    about = f"peak {peak} {noun}, span {duration(c['span'], run.unit)}"
    return [style.bold("Concurrency"), style.clean(about), f"|{bar}|"]


def outlier_table(run: Run) -> dict[str, Any]:
    """Rows whose active time lies two or more standard deviations from the mean, farthest first: {mean, deviation,
    rows, count, outliers: [{row, tid, active, z}]}; None for the first two without intervals."""
    per_row = run.per_row
    if len(per_row) == 0:
        return {"mean": None, "deviation": None, "rows": 0, "count": 0, "outliers": []}
    active = per_row[:, 1].astype(float)
    mean, spread = float(active.mean()), float(active.std())
    z = (active - mean) / spread if spread else np.zeros(len(active))
    order = [int(i) for i in np.argsort(-np.abs(z), kind="stable") if abs(z[i]) >= OUTLIER_Z]
    return {"mean": mean, "deviation": spread, "rows": len(active), "count": len(order), "outliers": [
        {"row": int(per_row[i, 0]), "tid": int(run.trace.rows.tid[per_row[i, 0]]), "active": int(per_row[i, 1]),
         "z": float(z[i])} for i in order[:MAX_OUTLIERS]]}


def outliers_view(run: Run, style: Style) -> list[str]:
    """Rows whose active time lies two or more standard deviations from the mean."""
    t = outlier_table(run)
    lines = ["none: no intervals"]
    if t["rows"]:
        lines = [f"active time: mean {duration(t['mean'], run.unit)}, standard deviation "
                 f"{duration(t['deviation'], run.unit)}; {t['count']} of {t['rows']} rows at |z| ≥ {OUTLIER_Z:g}"]
        if t["outliers"]:
            body = [(locator(run.trace.rows, o["row"]), duration(o["active"], run.unit), f"{o['z']:+.1f}")
                    for o in t["outliers"]]
            lines += table(style, ["row", "active", "z"], body)
    return _titled("Outliers", lines, style)


def longest_table(run: Run, scope: str, limit: int = LONGEST) -> list[dict[str, Any]]:
    """The longest intervals of one scope, with the number and the value of the record that begins them."""
    index = run.labels.index(scope)
    mine = np.flatnonzero(run.scope == index)
    length = (run.intervals.end - run.intervals.start)[mine]
    order = mine[np.argsort(-length, kind="stable")[:limit]]
    iv, trace = run.intervals, run.trace
    return [{"row": int(iv.row[i]), "tid": int(trace.rows.tid[iv.row[i]]), "duration": int(iv.end[i] - iv.start[i]),
             "start": int(iv.start[i]), "record": int(trace.sequence[iv.opened[i]]),
             "value": int(trace.value[iv.opened[i]]), "smid": int(trace.rows.smid[iv.row[i]])} for i in order]


def longest_view(run: Run, scope: str, style: Style) -> list[str]:
    """The longest intervals of one scope, with the value recorded where they began."""
    unit = run.unit
    body = [(locator(run.trace.rows, e["row"]), duration(e["duration"], unit), since(e["start"] - run.zero, unit),
             e["record"], e["value"], e["smid"]) for e in longest_table(run, scope)]
    head = ["row", "duration", "at", "record", "value", "sm"]
    return _titled(f"Longest {scope}", table(style, head, body), style)
