"""The kernel's code beside its times: kept in every form, shown as text and on the page, linked both ways."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path

import jsonschema
import pytest
from format_pages import needs_browser, page
from format_synth import REGIONS, ROLES, SITES, specialised

import gwatch
from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.listing import lines_of, steps_of, taken_at
from gwatch.common.format.run import run_of
from gwatch.common.format.select import keep_time
from gwatch.errors import TraceError

MATMUL = Path(__file__).resolve().parents[2] / "examples/cuda/trace/matmul_h200.gwatch"
SCHEMA = Path(gwatch.__file__).parent / "common/format/trace.schema.json"


def listing(count=140):
    """140 instructions, those of the sites among them; every fourth stems from a line of its own."""
    text = [f"IMAD R{i}, R1, R2, R3" for i in range(count)]
    for site in SITES:
        text[site["index"]] = site["instruction"]
    places = [["/src/gemm.cu", 20 + i, "", 0] for i in range(count // 4)]
    places[2] = ["/src/helper.h", 7, "/src/gemm.cu", 99]
    lines = {str(20 + i): f"    sum += a[{i}] * b[{i}];" for i in range(0, count // 4, 2)}
    return {"index": list(range(count)), "text": text, "place": [i // 4 for i in range(count)], "places": places,
            "source": {"/src/gemm.cu": {**lines, "99": "  helper(<x>);"}}}


def report(tmp_path, **changes):
    file, section = File("t"), Section_IntraKernelTrace()
    section.add_run(specialised(listing=listing(), **changes), REGIONS, ROLES)
    file.add_section(section)
    return file


@pytest.mark.parametrize("name", ["t.json", "t.gwatch"])
def test_a_listing_is_kept_and_fits_the_schema(tmp_path, name):
    report(tmp_path).render(tmp_path / name)
    (run,) = File.load(tmp_path / name).runs
    assert run.listing == listing()
    if name.endswith("json"):
        jsonschema.validate(json.loads((tmp_path / name).read_text()), json.loads(SCHEMA.read_text()))


def test_lines_lead_to_the_call_that_inlined_them():
    run = run_of(specialised(listing=listing()), REGIONS, ROLES)
    lines = lines_of(run)
    assert [line.site for line in lines if line.site is not None] == [0, 1, 2, 3, 4, 5]
    assert (lines[8].place, lines[8].source) == ("gemm.cu:99", "helper(<x>);")
    assert (lines[12].place, lines[12].source) == ("gemm.cu:23", "") and all(line.follows for line in lines)
    total = {s["scope_label"]: s["total"] for s in run.analysis["scope_stats"]}
    assert taken_at(run) == {enter: total[label] for enter, _, label in REGIONS}
    assert lines_of(run_of(specialised(), REGIONS, ROLES)) == []


@pytest.mark.parametrize("harm", [
    lambda x: x.update(index=x["index"][::-1]), lambda x: x["text"].pop(), lambda x: x["place"].append(999),
    lambda x: x.update(place=[10**6] * len(x["index"])), lambda x: x["places"].insert(0, ["a", "b", "", 0]),
    lambda x: x.update(source={"f": ["text"]}), lambda x: x.pop("index")])
def test_a_damaged_listing_is_refused_by_name(tmp_path, harm):
    report(tmp_path).render(tmp_path / "t.json")
    data = json.loads((tmp_path / "t.json").read_text())
    bad = copy.deepcopy(data)
    harm(bad["sections"][1]["data"]["runs"][0]["listing"])
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    with pytest.raises(TraceError, match=r"\[bad-report\].*listing"):
        File.load(tmp_path / "bad.json")


def test_show_prints_the_code_around_the_sites(tmp_path, capsys):
    report(tmp_path).render(tmp_path / "t.gwatch")
    assert main(["show", str(tmp_path / "t.gwatch"), "--source"]) == 0
    out = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(out) if line.startswith("Code around the sites"))
    code = out[start:]
    run = File.load(tmp_path / "t.gwatch").runs[0]
    marked = [line for line in code if line.startswith(">")]
    assert len(marked) == 6 and "SYNCS.ARRIVE" in marked[1] and "HGMMA" in marked[2]
    assert "us" in marked[2] and "gemm.cu:" in marked[2] and any(line.strip() == "..." for line in code)
    assert len(run.listing["index"]) == 140 and len(code) < 70
    assert main(["show", str(tmp_path / "t.gwatch"), "--json"]) == 0
    assert "listing" not in json.loads(capsys.readouterr().out)


def slow_steps(run):
    """{site: [times to the row's next record]}, record by record; none over lost records."""
    steps = {}
    records = list(zip(run.trace.row.tolist(), run.trace.site.tolist(), run.trace.time.tolist(), run.trace.gap.tolist(),
                       strict=True))
    for (row, site, time, _), (next_row, _, next_time, lost) in itertools.pairwise(records):
        if row == next_row and not lost:
            steps.setdefault(site, []).append(next_time - time)
    return steps


@pytest.mark.parametrize("keep", [None, 7])
def test_the_time_to_the_next_record_adds_up_to_what_the_rows_recorded(keep, tmp_path):
    result = specialised(blocks=3, warps=4, iterations=6, keep=keep)
    # A hole inside a row, too: what lies over it is nobody's.
    result["records"] = result["records"][result["records"]["sequence"] != 10]
    run = run_of(result, REGIONS)
    wanted, told = slow_steps(run), steps_of(run)
    assert run.trace.gap.any() and set(told) == set(wanted) and 5 not in told
    whole = sum(map(sum, wanted.values()))
    for site, times in wanted.items():
        assert (told[site]["count"], told[site]["total"]) == (len(times), sum(times))
        assert told[site]["mean"] == pytest.approx(sum(times) / len(times))
        assert told[site]["share"] == pytest.approx(sum(times) / whole)
    assert sum(step["share"] for step in told.values()) == pytest.approx(1)
    full = run_of(specialised(blocks=3, warps=4, iterations=6), REGIONS)
    spans = [times.max() - times.min() for times in (full.trace.time[full.trace.row == r] for r in range(12))]
    assert sum(step["total"] for step in steps_of(full).values()) == sum(spans)
    assert steps_of(keep_time(full, full.zero + 100, full.zero + 900)) == {}
    assert steps_of(run_of({**result, "records": result["records"][:0]})) == {}


def test_the_line_that_a_trip_of_a_loop_spends_most_time_at_stands_out(tmp_path, capsys):
    assert main(["show", str(MATMUL), "--source"]) == 0
    out = capsys.readouterr().out
    steps = slow_steps(File.load(MATMUL).runs[0])
    whole = sum(map(sum, steps.values()))
    assert {site: (round(sum(t) / len(t)), round(100 * sum(t) / whole)) for site, t in steps.items()} == {
        0: (171, 37), 1: (34, 7), 2: (206, 45), 3: (30, 7), 4: (24, 5)}
    line = next(line for line in out.splitlines() if "[tile] UIADD3" in line)
    assert "  205.82 ns  44.6%  " in line and re.search(r"^>    36 .* 44\.6%  matmul\.cu:19", out, re.MULTILINE)
    File.load(MATMUL).render(tmp_path / "t.html")
    text = (tmp_path / "t.html").read_text(encoding="utf-8")
    (row,) = re.findall(r'<tr data-site="2"[^>]*>(.+?)</tr>', text.split("in code order</h3>")[1].split("</table>")[0])
    assert re.findall(r"<td>([^<]*)</td>", row)[:4] == ["", "205.82 ns", "44.6%", "4,096"]
    assert main(["show", str(MATMUL), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["site_steps"]
    assert {s["site_id"]: (s["count"], s["total"]) for s in data} == {k: (len(t), sum(t)) for k, t in steps.items()}
    assert main(["show", str(MATMUL), "--source", "--stime", "+1us"]) == 0
    assert "to next: mean" in out and "to next: mean" not in capsys.readouterr().out


def test_the_page_lists_the_code_escaped(tmp_path):
    text = page(tmp_path, specialised(listing=listing())).read_text()
    assert text.count("<tr data-site=") == 2 * 6 and "helper(&lt;x&gt;);" in text and "helper(<x>)" not in text
    assert "Code</h3>" in text and "Code</h3>" not in page(tmp_path, specialised()).read_text()


@needs_browser
def test_code_and_picture_point_at_each_other(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=8, listing=listing())))
    row = "document.querySelector('.listing tr[data-site=\"4\"]')"
    browser.ask(f"{row}.click()")
    browser.frame()
    assert browser.ask("[...document.querySelectorAll('tr.held')].map((r) => r.dataset.site)") == ["4", "4"]
    browser.ask(f"{row}.click()")
    # An interval under the pointer lights its sites in the code, which scrolls there.
    pane = "document.querySelector('.listing')"
    browser.ask(f"{pane}.scrollTop = 0")
    box = browser.box(".time")
    for x in range(200, int(box["width"]), 40):
        browser.mouse("mouseMoved", box["left"] + x, box["top"] + 24 + 20 + 26 + 20 + 13)
        if browser.text(".tip").startswith("math"):
            break
    assert browser.ask("[...document.querySelectorAll('.listing tr.lit')].map((r) => r.dataset.site)") == ["2", "3"]
    top, height = browser.ask(f"[{pane}.scrollTop, {pane}.clientHeight]")
    at = browser.ask("document.querySelector('.listing tr.lit').offsetTop")
    assert top > 0 and top < at < top + height
    # A source line marks all its instructions.
    line = "document.querySelector('.listing tr[data-line=\"3\"] td.line')"
    browser.ask(f"{line}.click()")
    assert browser.ask("document.querySelectorAll('.listing tr.same').length") == 4
    browser.ask(f"{line}.click()")
    assert browser.ask("document.querySelectorAll('.listing tr.same').length") == 0
    assert browser.problems == []
