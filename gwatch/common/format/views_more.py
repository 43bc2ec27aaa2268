"""Text views beyond the tables: roles and waits, sites in code order, and two runs compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gwatch.common.format.align import begins
from gwatch.common.format.compare import SIGNIFICANCE
from gwatch.common.format.findings import findings
from gwatch.common.format.iterations import iteration_table, slack_table
from gwatch.common.format.listing import Line, lines_of, steps_of, taken_at
from gwatch.common.format.run import Run
from gwatch.common.format.text import Style, clip, code_order, duration, locator, since, source_line, table
from gwatch.common.format.views import WIDTH, between, instruction_of, verdict_lines
from gwatch.common.format.waits import role_table, wait_scopes, wait_table, who_waits

MAX_WAITS = 15
MAX_FINDINGS = 5
MAX_RUNS = 12
NEAR = 3
"""Instructions shown before and after each site."""
MAX_SITES = 40
MAX_SOURCE = 150
"""Lines of sites and code together; where code would take more, fewer instructions around each site are shown."""


def _block(title: str, lines: list[str], style: Style) -> list[str]:
    return [style.bold(style.clean(title)), *(style.clean(line) for line in lines)]


def findings_view(run: Run, style: Style, limit: int | None = MAX_FINDINGS) -> list[str]:
    """What stands out, weightiest first; says so when nothing does."""
    found = findings(run)
    if not found:
        why = " (no regions)" if not run.labels else "" if len(run.intervals) else " (nothing ran in what was chosen)"
        return [style.bold("Findings") + f": none{why}"]
    shown = found if limit is None else found[:limit]
    more = [f"- … {len(found) - len(shown)} more (--findings)"] if len(found) > len(shown) else []
    return _block("Findings", [*(f"- [{f.code}] {clip(f.text, WIDTH * 2)}" for f in shown), *more], style)


def runs_view(runs: Sequence[Run], style: Style) -> list[str]:
    """The runs of a report side by side; empty for a single one."""
    if len(runs) < 2:
        return []
    body: list[tuple[Any, ...]] = []
    aligned = begins(runs)
    for i, run in enumerate(runs[:MAX_RUNS]):
        top = run.analysis["scope_stats"][:1]
        scope = [clip(top[0]["scope_label"], 24), duration(top[0]["p50"], run.unit)] if top else ["-", "-"]
        begin = "+" + duration(aligned[0][i], "ns") if aligned else "-"
        body.append((i, clip(run.source or "-", 28), begin, clip(run.kernel, 32), run.verdict.trustworthy,
                     len(run.trace), duration(run.time_range[1] - run.time_range[0], run.unit), *scope))
    more = [f"… {len(runs) - MAX_RUNS} more (--run N)"] if len(runs) > MAX_RUNS else []
    head = ["run", "from", "begins", "kernel", "trustworthy", "records", "span", "longest scope", "p50"]
    axis = "each on a time axis of its own"
    if aligned:
        axis = f"begins by the host's clock, within {duration(aligned[1], 'ns')}"
    return _block(f"Runs ({axis})", table(style, head, body, (1, 3, 4, 7)) + more, style)


def roles_view(run: Run, style: Style) -> list[str]:
    """Per role how its time splits; then who waits, between what, and what had just ended elsewhere."""
    unit = run.unit
    lines = [] if run.row_roles[0] else ["no scope_roles were given; waits are listed without releasers"]
    body = [(clip(who_waits(r) or "no role", 24), r["rows"], duration(r["lifetime"], unit),
             *(text for key in ("active", "waiting", "bubble")
               for text in (duration(r[key], unit), _percent(r[key] / r["lifetime"] if r["lifetime"] else None))))
            for r in role_table(run)]
    if body:
        head = ["role", "rows", "life", "active", "of life", "waiting", "of life", "outside scopes", "of life"]
        lines += table(style, head, body)
    title = ("Roles (life: from a row's first record to its last; active: in scopes that are no "
             "waits; waiting: in scopes that are)")
    return _block(title, lines, style) + _waits(run, style)


def _waits(run: Run, style: Style) -> list[str]:
    return [*_recorded_waits(run, style), *_holes(run, style)]


def _recorded_waits(run: Run, style: Style) -> list[str]:
    found, unit = wait_scopes(run), run.unit
    if not found:
        return []
    body = [(clip(w["scope"], 26), clip(who_waits(w), 16), clip(w["line"], 26), w["count"], duration(w["total"], unit),
             f"{w['share']:.1%}", duration(w["p50"], unit), duration(w["p95"], unit),
             f"{duration(w['longest'], unit)} {locator(run.trace.rows, w['longest_row'])} "
             f"{since(w['longest_start'] - run.zero, unit)}") for w in found[:MAX_WAITS]]
    head = ["wait", "role", "line", "count", "total", "of life", "p50", "p95", "longest"]
    more = [f"… {len(found) - MAX_WAITS} more (--json)"] if len(found) > MAX_WAITS else []
    return ["", *_block("Waits that were recorded", table(style, head, body, (0, 1, 2, 8)) + more, style)]


def _holes(run: Run, style: Style) -> list[str]:
    found, unit = wait_table(run), run.unit
    if not found:
        return ["", style.bold("Waits"), "none"]
    body = [(clip(w["role"], 16), f"{clip(w['before'], 18)} -> {clip(w['after'], 18)}",
             between(run, w["before"], w["after"]), w["count"],
             duration(w["total"], unit), f"{w['share']:.1%}", duration(w["p50"], unit),
             "-" if w["released_by"] is None else clip(f"{w['released_by_role'] or ''} {w['released_by']}", 26),
             duration(w["slack_p50"], unit),
             f"{locator(run.trace.rows, w['longest_row'])} {since(w['longest_start'] - run.zero, unit)}")
            for w in found[:MAX_WAITS]]
    head = ["role", "waits between", "line", "count", "total", "of life", "p50", "ended just before", "slack p50",
            "longest at"]
    more = [f"… {len(found) - MAX_WAITS} more kinds (--json)"] if len(found) > MAX_WAITS else []
    return ["", *_block("Waits", table(style, head, body, (0, 1, 2, 7, 9)) + more, style)]


def iterations_view(run: Run, style: Style) -> list[str]:
    """Loops: how regular their iterations are, and the slack between a producer's and a consumer's."""
    loops, unit = iteration_table(run), run.unit
    if not loops:
        return _block("Iterations", ["no scope runs three times in its rows"], style)
    body = [(clip(e["scope_label"], 30), e["rows"], e["iterations"],
             *(duration(e[k], unit) for k in ("period_p50", "period_p95", "first_p50", "steady_p50", "last_p50")),
             e["in_flight"]) for e in loops]
    head = ["scope_label", "rows", "iterations", "period p50", "p95", "first p50", "steady", "last", "in flight"]
    lines = _block("Iterations (period: from start to start; first, steady, last: durations)",
                   table(style, head, body), style)
    pairs = slack_table(run)
    if not pairs:
        return lines
    rows = [(f"{clip(e['producer'], 22)} -> {clip(e['consumer'], 22)}", e["blocks"], e["count"],
             *(duration(e[k], unit) for k in ("slack_p5", "slack_p50", "slack_p95", "period_p50")), e["pace"] or "-")
            for e in pairs[:MAX_WAITS]]
    head = ["end of -> start of, by iteration", "blocks", "count", "slack p5", "p50", "p95", "period", "pace set by"]
    first = max(e["prologue"] for e in pairs[:MAX_WAITS])
    note = f"; while the pipeline fills, up to {first} left out" if first else ""
    return [*lines, "", *_block(f"Slack between roles (iterations matched by number{note})",
                                table(style, head, rows, (0, 7)), style)]


def source_view(run: Run, style: Style) -> list[str]:
    """Sites in code order with their source line, instruction, firings, the time to the row's next record, and what
    begins and ends there; then, where the report has it, the code around them."""
    known = {int(site.get("site_id", i)): site for i, site in enumerate(run.sites)}
    stats = {s["site_id"]: s for s in run.analysis["site_stats"]}
    steps = steps_of(run)
    mean: dict[str, str] = {s["scope_label"]: duration(s["mean"], run.unit) for s in run.analysis["scope_stats"]}

    def position(number: int) -> tuple[int, int]:
        return code_order(known.get(number, {}), number), number

    body: list[tuple[Any, ...]] = []
    for number in sorted(set(known) | set(stats), key=position):
        site, s = known.get(number, {}), stats.get(number)
        marks = [f"ends {r.label}" for r in run.regions if r.leave == number]
        marks += [f"begins {r.label} ({mean.get(r.label, '-')})" for r in run.regions if r.enter == number]
        pc = site.get("pc")
        body.append((number, "" if pc is None else f"{int(pc):#06x}", clip(source_line(site), 26),
                     clip(instruction_of(site), 46), s["count"] if s else 0, *_step(steps.get(number), run.unit),
                     duration(s["repeat_mean"] if s else None, run.unit), clip(", ".join(marks), 44)))
    head = ["site", "pc", "line", "instruction", "records", "to next", "share", "repeat mean", "regions (mean)"]
    more = [f"… {len(body) - MAX_SITES} more (--json)"] if len(body) > MAX_SITES else []
    title = "Sites in code order"
    if steps:
        whole = duration(sum(step["total"] for step in steps.values()), run.unit)
        title += f" (to next: mean time to the row's next record, whatever its site; share: of all of it, {whole})"
    lines = _block(title, table(style, head, body[:MAX_SITES], (0, 1, 2, 3, 8)) + more, style)
    code = _code(run, style, MAX_SOURCE - len(lines))
    title = "Code around the sites (time: of what begins there; to next: share of the time to the row's next record)"
    return [*lines, "", *_block(title, code, style)] if code else lines


def _step(step: Mapping[str, Any] | None, unit: str) -> tuple[str, str]:
    return (duration(step["mean"], unit), f"{step['share']:.1%}") if step else ("-", "-")


def _code(run: Run, style: Style, room: int) -> list[str]:
    lines = lines_of(run)
    if not lines:
        return []
    bodies = [_around(run, lines, near) for near in range(NEAR, -1, -1)]
    body = next((body for body in bodies if len(body) <= room), bodies[-1])
    more = [f"… {len(body) - room} more lines"] if len(body) > room else []
    more += ["the page shows all code (-o FILE.html)"] if len(body) > room or body is not bodies[0] else []
    return table(style, ["     at", "instruction", "time", "to next", "source"], body[:room], (0, 1, 4)) + more


def _around(run: Run, lines: Sequence[Line], near: int) -> list[tuple[Any, ...]]:
    """The sites with ``near`` instructions on both sides of each."""
    taken, share = taken_at(run), _shares(run)
    places = [i for i, line in enumerate(lines) if line.site is not None]
    chosen = sorted({i for place in places for i in range(max(place - near, 0), min(place + near + 1, len(lines)))})
    body: list[tuple[Any, ...]] = []
    before, shown = None, ""
    for i in chosen:
        line = lines[i]
        if near and before is not None and (i != before + 1 or not line.follows):
            body.append(("", "...", "", "", ""))
        source = f"{line.place}  {line.source}".rstrip()
        here = line.site is not None
        total = taken.get(line.site, 0) if line.site is not None else 0
        body.append((("> " if here else "  ") + f"{line.index:5}", clip(line.text, 58),
                     duration(total, run.unit) if total else "", f"{share[line.index]:.1%}" if here and share else "",
                     clip(source, 56) if here or source != shown else ""))
        before, shown = i, source
    return body


def _shares(run: Run) -> dict[int, float]:
    """Per instruction with sites, their share of the time to the next record; {} where that is not told."""
    shares: dict[int, float] = {}
    steps = steps_of(run)
    for number, site in enumerate(run.sites if steps else ()):
        if site.get("index") is not None:
            index, step = int(site["index"]), steps.get(int(site.get("site_id", number)))
            shares[index] = shares.get(index, 0.0) + (step["share"] if step else 0.0)
    return shares


def both_verdicts(d: Mapping[str, Any], style: Style) -> list[str]:
    """Whether each of two compared runs is to be believed; before any number, that their kernels differ."""
    lines = []
    if not d["kernels"]["same"]:
        after, before = (clip(d["kernels"][side], 60) for side in ("after", "before"))
        lines = [f"kernels differ: after is {after}, before is {before}",
                 "what follows compares different code (exit code 1)"]
    lines = [style.bold(style.clean(line)) for line in lines]
    for side in ("after", "before"):
        first, *reasons = verdict_lines(d["verdicts"][side], style)
        lines += [f"{side + ':':7} {first}", *reasons]
    return lines


def diff_view(d: Mapping[str, Any], style: Style) -> list[str]:
    """What :func:`compare_runs` found: scope by scope, role by role and finding by finding."""
    unit = d["unit"]
    body = [(clip(s["scope_label"], 30), s["count_before"], s["count_after"], duration(s["p50_before"], unit),
             duration(s["p50_after"], unit), f"{s['change']:+.1%}", duration(s["total_before"], unit),
             duration(s["total_after"], unit), f"{s['p_value']:.2g}", s["verdict"]) for s in d["scopes"]]
    head = ["scope_label", "count", "after", "p50", "after", "change", "total", "after", "p", "verdict"]
    span = d["span_after"] / d["span_before"] - 1 if d["span_before"] else 0.0
    lines = [f"span {duration(d['span_before'], unit)} -> {duration(d['span_after'], unit)} ({span:+.1%})"]
    lines += table(style, head, body, (0, 9)) if body else ["no scope ran in both"]
    for key, text in (("only_before", "only before"), ("only_after", "only after")):
        if d[key]:
            lines.append(f"{text}: {', '.join(d[key])}")
    lines.append(f"blocks are the units; faster or slower: rank test at p < {SIGNIFICANCE:g} and medians 1 % "
                 "apart; one launch of each")
    parts = _block("Before and after", lines, style)
    for title, name, what in (("Time outside scopes", "roles", "mean row"), ("Waits", "waits", "p50")):
        rows = [(clip(e["role"] or "no role", 20), *([clip(e["waits_for"] or "-", 30)] if name == "waits" else []),
                 *(_percent(e[f"share_{side}"]) for side in ("before", "after")),
                 *(duration(e[f"time_{side}"], unit) for side in ("before", "after"))) for e in d[name][:MAX_WAITS]]
        first = ["role", "ended by"] if name == "waits" else ["role"]
        if rows:
            head = [*first, "of life", "after", what, "after"]
            parts += ["", *_block(title, table(style, head, rows, range(len(first))), style)]
    changed = [f"- {word} [{f['code']}] {clip(f['text'], WIDTH * 2)}" for word in ("gone", "new", "still")
               for f in d["findings"][word]]
    return [*parts, "", *_block("Findings, before and after", changed or ["none in either"], style)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
