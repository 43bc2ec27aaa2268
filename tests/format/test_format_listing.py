"""The kernel's code beside its times: kept in every form, shown as text and on the page, linked both ways."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from format_pages import needs_browser, page
from format_synth import REGIONS, ROLES, SITES, specialised

import gwatch
from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.common.format.listing import lines_of, taken_at
from gwatch.common.format.run import run_of
from gwatch.errors import TraceError

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
