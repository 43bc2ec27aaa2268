"""What points at what on the page: sites and intervals, waits and their releasers, folded blocks."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from format_pages import counted, needs_browser, page
from format_synth import REGIONS, ROLES, result_of, specialised
from test_format_findings import pipeline

from gwatch.common.format.payload import typical_block
from gwatch.common.format.run import run_of


@needs_browser
def test_a_site_in_the_table_picks_out_its_intervals(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=8)))
    before = counted(browser)
    event = "document.querySelector('tr[data-site=\"2\"]').dispatchEvent(new PointerEvent('%s'))"
    browser.ask(event % "pointerenter")
    browser.frame()
    during = counted(browser)
    assert during["1"] == before["1"] > 10000
    assert during["0"] < before["0"] / 10 and during["2"] < before["2"] / 10
    browser.ask(event % "pointerleave")
    browser.frame()
    assert counted(browser) == before
    assert browser.problems == []


@needs_browser
def test_a_click_holds_a_site_until_the_next(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=8)))
    before = counted(browser)
    row = "document.querySelector('tr[data-site=\"2\"]')"
    browser.ask(f"{row}.dispatchEvent(new PointerEvent('pointerenter')), {row}.click(), "
                f"{row}.dispatchEvent(new PointerEvent('pointerleave'))")
    browser.frame()
    held = counted(browser)
    assert held["1"] == before["1"] and held["0"] < before["0"] / 10
    assert browser.ask("[...document.querySelectorAll('tr.held')].map((r) => r.dataset.site)") == ["2"]
    browser.ask(f"{row}.focus()")
    browser.key("Enter")
    assert counted(browser) == before and browser.ask("document.querySelectorAll('tr.held').length") == 0
    # Time per site: a bar as long as its share of the most time that begins anywhere.
    shares = browser.ask("[...document.querySelectorAll('tr[data-site]')].map((r) => "
                         "[r.dataset.site, parseFloat(r.style.getPropertyValue('--share'))])")
    run = run_of(specialised(blocks=8), REGIONS, ROLES)
    total = {s["scope_label"]: s["total"] for s in run.analysis["scope_stats"]}
    expected = {str(enter): round(100 * total[label] / max(total.values()), 1) for enter, _, label in REGIONS}
    assert shares == [[str(k), expected.get(str(k), 0)] for k in range(6)]
    assert browser.problems == []


@needs_browser
def test_other_blocks_are_folded_and_open_by_a_click(browser, tmp_path):
    result = specialised(blocks=8)
    browser.open(page(tmp_path, result))
    run = run_of(result, REGIONS, ROLES)
    block = typical_block(run)
    others = [b for b in range(8) if b != block]
    box = browser.box(".time")
    # Axis, two heads, eight open rows of 26 pixels, the head of the folded ones, then 13 pixels each.
    strip = box["top"] + 24 + 2 * 20 + 8 * 26 + 20 + 2 * 13 + 6
    browser.mouse("mouseMoved", box["left"] + 400, strip)
    tip = browser.text(".tip")
    rows = np.flatnonzero(run.trace.rows.block == others[2])
    inside = np.isin(run.trace.row, rows)
    ends = [f"{int(f(run.trace.time[inside])) - run.time_range[0]}" for f in (np.min, np.max)]
    assert tip.startswith(f"block {others[2]} · SM {others[2]}8 rows, {ends[0]} ns to ")
    # Above, the strip shows the copy warp; below, the others, as high as the share of them that work.
    iv, open_rows = run.intervals, np.isin(run.intervals.row, np.flatnonzero(run.trace.rows.block == block))
    start, end = iv.start - run.time_range[0], iv.end - run.time_range[0]
    margin = 0.02 * (end[open_rows].max() - start[open_rows].min())
    t0, t1 = max(0, start[open_rows].min() - margin), end[open_rows].max() + margin
    per_pixel = (t1 - t0) / (box["width"] - 148)

    copying, working = browser.ask("""(() => { const c = document.querySelector('.time'), w = c.width - 148;
      const d = c.getContext('2d').getImageData(148, %d, w, 10).data;
      const style = getComputedStyle(document.documentElement);
      return [[0, 0, 3], [1, 3, 10]].map(([number, top, bottom]) => {
        const ink = style.getPropertyValue("--ink" + number).trim().slice(1).match(/../g).map((p) => parseInt(p, 16));
        let n = 0;
        for (let i = 4 * w * top; i < 4 * w * bottom; i += 4) n += ink.every((part, k) => part === d[i + k]);
        return n / (w * (bottom - top));
      }); })()""".replace("%d", str(round(strip - box["top"]) - 5)))
    for scope, got, warps in ((0, copying, 1), (1, working, 7)):
        mine = np.isin(iv.row, rows) & (run.scope == scope) & (end > t0) & (start < t1)
        busy = np.minimum(end, t1)[mine] - np.maximum(start, t0)[mine] + per_pixel / 2
        assert got == pytest.approx(busy.sum() / (t1 - t0) / warps, abs=0.04)
    browser.mouse("mousePressed", box["left"] + 400, strip)
    browser.mouse("mouseReleased", box["left"] + 400, strip)
    assert browser.ask("document.querySelector('.filter').value") == f"block {block},{others[2]}"
    assert browser.text(".state").startswith("16 of 64 rows")
    browser.ask("document.querySelector('.typical').click()")
    browser.frame()
    assert browser.text(".state").startswith("8 of 64 rows")
    assert browser.problems == []


@needs_browser
@pytest.mark.parametrize("roles", [ROLES, None], ids=["roles", "none"])
def test_a_wide_wait_says_what_it_was_for(browser, tmp_path, roles):
    rows = {(0, 0): [(0, 0), (1, 100), (0, 101), (1, 220)], (0, 1): [(2, 105), (3, 150), (2, 230), (3, 300)]}
    browser.open(page(tmp_path, result_of(rows, (1, 1, 1), (64, 1, 1)), roles=roles))
    box = browser.box(".time")
    scale = (box["width"] - 148) / 300
    top = 24 + (20 + 26 + 20 if roles else 26)
    # Between 150 and 230 the row is empty, apart from the wait's line and, with roles, the words on it.
    dark = browser.ask(f"""(() => {{ const c = document.querySelector('.time'), x = c.getContext('2d');
      const d = x.getImageData(Math.round(148 + 155 * {scale}), {top + 4}, Math.round(70 * {scale}), 18).data;
      let n = 0;
      for (let i = 0; i < d.length; i += 4) n += d[i] + d[i + 1] + d[i + 2] < 450;
      return n; }})()""")
    assert (dark > 30) if roles else dark == 0
    assert browser.problems == []


@needs_browser
def test_a_wait_is_named_with_what_ended_before_it(browser, tmp_path):
    # One block, 1 ns per time unit: math stops at 150 and goes on at 230; the copy warp's load ended at 220.
    rows = {(0, 0): [(0, 0), (1, 100), (0, 101), (1, 220)], (0, 1): [(2, 105), (3, 150), (2, 230), (3, 300)]}
    browser.open(page(tmp_path, result_of(rows, (1, 1, 1), (64, 1, 1))))
    box = browser.box(".time")
    x = box["left"] + 148 + 190 / 300 * (box["width"] - 148)
    before = counted(browser)
    browser.mouse("mouseMoved", x, box["top"] + 24 + 20 + 26 + 20 + 13)
    tip = browser.text(".tip")
    assert tip.startswith("waiting  80 ns") and "between math and math" in tip
    assert "Copy Warp b0 w0 ended load 10 ns before it went on" in tip
    assert browser.ask("[...document.querySelectorAll('tr.lit')].map((r) => r.dataset.site)") == ["2", "3"]
    # The arrow from load's end to math's start covers some of their pixels.
    after = counted(browser)
    assert after["0"] < before["0"]
    words = browser.text(".run")
    assert "Who waits for whom" in words
    assert browser.problems == []


def jump(browser, text):
    """Type into the jump field; returns the state line, or None where the text is refused."""
    browser.ask(f"(() => {{ const j = document.querySelector('.jump'); j.value = {json.dumps(text)};"
                " j.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); })()")
    browser.frame()
    bad = browser.ask("document.querySelector('.jump').classList.contains('bad')")
    return None if bad else browser.text(".state")


@needs_browser
def test_narrow_waits_have_the_colour_of_what_ended_them_and_findings_lead_to_them(browser, tmp_path):
    browser.open(page(tmp_path, pipeline(blocks=2, load=260, iterations=20), regions=REGIONS[:2],
                      roles={"load": "Copy", "math": "Math"}))
    # The rows of the open block: intervals are orange, waits a pale blue bar of eight lines, the ground is white.
    counts = browser.ask("""(() => { const c = document.querySelector('.time'), x = c.getContext('2d');
      const d = x.getImageData(150, 90, c.width - 160, 78).data, n = [0, 0];
      for (let i = 0; i < d.length; i += 4) {
        n[0] += d[i] > 200 && d[i + 2] < 80; n[1] += d[i] > 140 && d[i] < 190 && d[i + 2] > 215; }
      return n; })()""")
    assert counts[0] > 1000 and 1000 < counts[1] < counts[0]
    place = browser.text(".findings [data-to]")
    assert re.fullmatch(r"b\d w\d \+[\d.]+(ns|µs)", place) and "pale bar" in browser.text(".legend")
    before = browser.text(".state")
    browser.ask("document.querySelector('.findings [data-to]').click()")
    browser.frame()
    assert browser.text(".state") != before
    assert jump(browser, place.split(" ")[2]) is not None
    assert browser.problems == []


@needs_browser
def test_jumping_to_places_and_to_the_longest_runs(browser, tmp_path):
    result = specialised(blocks=8)
    browser.open(page(tmp_path, result))
    run = run_of(result, REGIONS, ROLES)
    iv, base = run.intervals, run.time_range[0]
    length = np.where(run.scope == run.labels.index("math"), iv.end - iv.start, -1)
    longest = sorted(length.tolist(), reverse=True)
    for n in range(3):
        state = jump(browser, "math")
        assert state.startswith(f"math: number {n + 1} by length, {longest[n]} ns at b")
    best = int(np.argmax(length))
    block = int(run.trace.rows.block[iv.row[best]])
    jump(browser, "store")
    assert jump(browser, "math").startswith(f"math: number 1 by length, {longest[0]} ns at b{block} w")
    # A place as the text views print it: its block opens, the time is in the middle of the view.
    assert jump(browser, "b5 w3 +1.50 µs").startswith("8 of 64 rows · 1.")
    assert browser.ask("document.querySelector('.filter').value") == "block 5"
    assert jump(browser, "+300 ns").startswith("8 of 64 rows · ")
    low, high = browser.text(".state").split(" · ")[1].split(" to ")
    assert float(low.split()[0]) < 300 < float(high.split()[0]) and low.endswith("ns") and high.endswith("ns")
    for bad in ("b99 w0", "b5 w9", "nothing", "+99 s", "+5 cyc", ""):
        assert jump(browser, bad) is None
    assert base > 0 and browser.problems == []


@needs_browser
def test_rows_by_block_and_warpgroup(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=4)))
    browser.ask("document.querySelector('.all').click()")
    for order in ("block", "warpgroup"):
        browser.ask(f"(() => {{ const o = document.querySelector('.order'); o.value = '{order}';"
                    " o.dispatchEvent(new Event('change')); })()")
        browser.frame()
        assert browser.text(".state").startswith("32 rows")
    browser.ask("(() => { const f = document.querySelector('.filter'); f.value = 'block 1 warpgroup 1';"
                " f.dispatchEvent(new Event('input')); })()")
    browser.frame()
    assert browser.text(".state").startswith("4 of 32 rows")
    assert browser.problems == []


@needs_browser
@pytest.mark.parametrize(("value", "reads"), [
    (0x3FC00000, "value 1069547520 = 0x3fc00000 · float 1.5"), (0xFFFFFFFE, "value 4294967294 = 0xfffffffe · -2"),
    (0x7F0012345600, "value 139638282147328 = 0x7f0012345600"), (7, "value 7 = 0x7"),
    (0xBFF8000000000000, "value 13832806255468478464 = 0xbff8000000000000 · -4613937818241073152 · double -1.5")])
def test_values_read_as_numbers_floats_and_addresses(browser, tmp_path, value, reads):
    result = result_of({(0, 0): [(0, 0), (1, 100)]}, (1, 1, 1), (32, 1, 1))
    result["records"]["value"] = value
    browser.open(page(tmp_path, result, regions=REGIONS[:1], roles=None))
    box = browser.box(".time")
    browser.mouse("mouseMoved", box["left"] + 148 + (box["width"] - 148) / 2, box["top"] + 24 + 13)
    tip = browser.text(".tip")
    assert tip.count(reads) == 2 and (tip.endswith(reads))
    assert browser.problems == []


@needs_browser
def test_clusters_are_rows_of_blocks_that_share_one(browser, tmp_path):
    rows = {(b, 0): [(0, 10 * b), (1, 10 * b + 5)] for b in range(24)}
    result = result_of(rows, (4, 6, 1), (32, 1, 1), launch={"cluster": [2, 3, 1]})
    browser.open(page(tmp_path, result, regions=REGIONS[:1], roles=None))
    hidden = "!document.querySelector('.order [value=cluster]')"
    assert browser.ask(hidden) is False

    def shown(text):
        browser.ask(f"(() => {{ const f = document.querySelector('.filter'); f.value = {json.dumps(text)};"
                    " f.dispatchEvent(new Event('input')); })()")
        browser.frame()
        return browser.text(".state").split(" rows")[0]

    # Cluster 1 has blocks x 2-3, y 0-2; clusters 0 to 3 have six blocks each.
    assert [shown(f"cluster {c}") for c in range(4)] == ["6 of 24"] * 4
    assert shown("cluster 1 block 2-3,6-7,10-11") == "6 of 24"
    assert shown("cluster 3 block 14-15,18-19,22-23") == "6 of 24"
    browser.open(page(tmp_path, specialised(), regions=REGIONS, roles=None))
    assert browser.ask(hidden) is True
    # Blocks are not passed off as clusters where nobody knows of any.
    before = browser.text(".state").split(" rows")[0]
    assert shown("cluster 0") == before and browser.ask("document.querySelector('.filter').classList.contains('bad')")
    assert "is not known" in browser.ask("document.querySelector('.filter').title")
    assert browser.problems == []
