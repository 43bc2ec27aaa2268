"""The HTML page: what it says without a script, what it must never let through, and how it behaves in a browser."""

from __future__ import annotations

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from format_browser import Browser
from format_pages import counted, needs_browser, page
from format_synth import REGIONS, ROLES, many, result_of, specialised

from gwatch.common.format import File, Section, Section_IntraKernelTrace
from gwatch.common.format.html import embed
from gwatch.common.format.looks import STRIPES, looks
from gwatch.common.format.payload import pack, payload, typical_block
from gwatch.common.format.run import run_of
from gwatch.common.format.select import apply_selection, kernel_tag, parse_token

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)>&"\'\u2028'


class Tags(HTMLParser):
    """All tags, attributes and text of a page, scripts apart."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.words, self.inside = [], [], 0, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attributes]
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path):
    text = page(tmp_path, specialised()).read_text()
    tags = Tags(text)
    assert "link" not in tags.tags and "img" not in tags.tags and "iframe" not in tags.tags
    assert not [a for a in tags.attributes if a[1] in ("src", "href", "action") or a[1].startswith("on")]
    assert not re.search(r"https?://|url\(|@import|\bfetch\(|XMLHttpRequest|WebSocket|\beval\(", text)
    policy = next(a[2] for a in tags.attributes if a[:2] == ("meta", "content"))
    assert policy.startswith("default-src 'none'; ")


def test_the_tables_are_readable_without_the_script(tmp_path):
    words = Tags(page(tmp_path, specialised()).read_text()).text
    assert "trustworthy: yes" in words
    for part in ("outputs identical", "dropped 0", "slowdown 1.004 (noise 0.003)", "12 cycles/record",
                 "registers 168→168", "2→2 CTAs/SM", "grid 4 × 1 × 1 · block 256 × 1 × 1", "824 records · 32 warps",
                 "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24", "gemm.cu:31", "0 → 1", "100.0%", "Math Warp"):
        assert part in words, part
    stats = run_of(specialised(), REGIONS).analysis["scope_stats"]
    assert stats[0]["scope_label"] == "math" and f"{stats[0]['p50']} ns" in words


def test_nothing_from_outside_becomes_markup(tmp_path):
    sites = [{"site_id": i, "index": i, "pc": 16 * i, "instruction": HOSTILE, "line": HOSTILE, "warp_level": True}
             for i in range(6)]
    result = specialised(kernel_prototype=HOSTILE, sites=sites, warnings=[HOSTILE], outputs="differ " + HOSTILE)
    clean = Tags(page(tmp_path, specialised()).read_text())
    path = page(tmp_path, result, regions=[(0, 1, HOSTILE), (2, 3, "b")], roles={HOSTILE: HOSTILE}, title=HOSTILE)
    text = path.read_text()
    assert "<script>alert" not in text and "<img" not in text
    tags = Tags(text)
    assert tags.tags.count("script") == clean.tags.count("script")
    assert set(tags.tags) <= set(clean.tags) | {"ul", "li"}
    assert "\u2028" not in text.split('class="meta">')[1].split("</script>")[0]
    assert json.loads(text.split('class="meta">')[1].split("</script>")[0])["kernel"] == HOSTILE


def test_embedded_json_keeps_its_value_and_holds_no_tag():
    value = {"a": "</script><!--", "b": [1, 2.5, None, True], "c": "\u2028&"}
    text = embed(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028")


def test_other_sections_and_empty_ones_are_shown(tmp_path):
    file = File("mixed")
    file.add_section(Section_IntraKernelTrace("none"))
    file.add_section(Section("raw", {"x": "<b>"}, "Section_Other"))
    file.render(tmp_path / "m.html")
    words = Tags((tmp_path / "m.html").read_text()).text
    assert "This section holds no run." in words and '{ "x": "<b>" }' in words


def unpack(meta, blob):
    import base64
    import zlib
    raw = zlib.decompress(base64.b64decode(blob))
    out = {}
    for column in meta["columns"]:
        kind = np.dtype("<" + column["type"])
        size = column["length"] * kind.itemsize
        planes = np.frombuffer(raw, np.uint8, size, column["offset"]).reshape(kind.itemsize, column["length"])
        out[column["name"]] = planes.T.copy().view(kind).reshape(-1)
    return out


def test_the_payload_holds_every_interval_and_every_lonely_record():
    result = specialised(blocks=2, warps=3, iterations=4)
    result["records"]["value"] = np.arange(len(result["records"])) + (1 << 40)
    run = run_of(result, REGIONS[:2], {"load": "Copy Warp"})
    base = run.time_range[0]
    meta, blob = payload(run)
    data = unpack(meta, blob)
    start = np.concatenate([np.cumsum(part) for part in np.split(data["step"].astype(np.int64),
                                                                 np.cumsum(data["count"])[:-1])])
    row = np.repeat(np.arange(len(data["count"])), data["count"])
    regions = data["scope"] < 2
    iv = run.intervals
    assert sorted(zip(row[regions], start[regions] + base, data["length"][regions], strict=True)) == sorted(
        zip(iv.row, iv.start, iv.end - iv.start, strict=True))
    lonely = np.isin(run.trace.site, [4, 5])
    assert sorted(start[~regions] + base) == sorted(run.trace.time[lonely])
    assert [s["label"] for s in meta["scopes"]] == ["load", "math", "site 4", "site 5"]
    value = data["in_low"].astype(np.uint64) | data["in_high"].astype(np.uint64) << np.uint64(32)
    by_time = dict(zip(zip(run.trace.row, run.trace.time, strict=True), run.trace.value, strict=True))
    assert [by_time[r, t] for r, t in zip(row, start + base, strict=True)] == value.tolist()


def test_long_traces_keep_their_times_exactly():
    run = run_of(result_of({(0, 0): [(0, 0), (1, 5_000_000_001), (0, 9_000_000_000_003), (1, 9_000_000_000_009)]},
                           (1, 1, 1), (32, 1, 1)), [(0, 1, "a")])
    data = unpack(*payload(run))
    assert np.cumsum(data["step"]).tolist() == [0, 9_000_000_000_003]
    assert data["length"].tolist() == [5_000_000_001, 6]


def test_pack_shuffles_bytes_and_keeps_types():
    columns = {"a": np.array([1, 2, 70000], "<u4"), "b": np.array([], "<u2"), "c": np.array([1.5], "<f8")}
    directory, blob = pack(columns)
    back = unpack({"columns": directory}, blob)
    assert {k: (v.dtype, v.tolist()) for k, v in back.items()} == {
        k: (v.dtype, v.tolist()) for k, v in columns.items()}


def test_the_typical_block_is_complete_and_of_median_length():
    rows = {(b, 0): [(0, 100), (1, 100 + length)] for b, length in enumerate((10, 80, 30, 500, 50))}
    result = result_of(rows, (5, 1, 1), (32, 1, 1))
    assert typical_block(run_of(result)) == 4
    result["records"]["sequence"][result["records"]["block"][:, 0] == 4] += 1
    assert typical_block(run_of(result)) in (1, 2)


def test_a_million_marks_fit_twelve_bytes_a_record(tmp_path):
    path = page(tmp_path, many(n_rows=4096, per_row=62), regions=[(0, 1, "a"), (1, 2, "b"), (2, 0, "c")], roles=None)
    assert path.stat().st_size < 6 * 4096 * 62


# ---- in a browser ------------------------------------------------------------------------------------------------



@needs_browser
def test_the_page_draws_what_was_recorded_and_answers_the_pointer(browser, tmp_path):
    result = specialised(blocks=8)
    path = page(tmp_path, result)
    assert browser.open(path) < 10
    run = run_of(result, REGIONS, ROLES)
    block = typical_block(run)
    assert browser.ask("document.querySelector('.filter').value") == f"block {block}"
    assert browser.text(".state").startswith("8 of 64 rows")
    inks = counted(browser)
    assert inks["0"] > 2000 and inks["1"] > 10000 and inks["2"] > 5000 and inks["3"] == 0

    # The first interval of the copy warp: its row is below the axis and the role's head.
    rows = run.trace.rows
    row = int(np.flatnonzero((rows.block == block) & (rows.warp == 0))[0])
    first = int(np.flatnonzero(run.intervals.row == row)[0])
    start, end = int(run.intervals.start[first]), int(run.intervals.end[first])
    box = browser.box(".time")
    inside = np.flatnonzero(rows.block[run.trace.row] == block)
    low, high = run.trace.time[inside].min() - run.time_range[0], run.trace.time[inside].max() - run.time_range[0]
    margin = (high - low) * 0.02
    a, b = max(0, low - margin), min(run.analysis["span"], high + margin)
    middle = ((start + end) / 2 - run.time_range[0] - a) / (b - a)
    x, y = box["left"] + 148 + middle * (box["width"] - 148), box["top"] + 24 + 20 + 13
    browser.mouse("mouseMoved", x, y)
    tip = browser.text(".tip")
    assert tip.startswith(f"load  {end - start} ns") and f"b{block} w0" in tip and "Copy Warp" in tip
    assert "gemm.cu:21" in tip and "LDG.E.128 R4" in tip
    assert browser.ask("[...document.querySelectorAll('tr.lit')].map((r) => r.dataset.site)") == ["0", "1"]
    assert browser.problems == []
    assert browser.requests[-1] == path.resolve().as_uri()


@needs_browser
def test_zoom_pan_filter_order_and_legend(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=8)))
    browser.ask("document.querySelector('.all').click()")
    browser.frame()
    assert browser.text(".state").startswith("64 rows · 0 ns to ")
    whole = counted(browser)
    browser.ask("document.querySelector('.time').focus()")
    browser.key("+")
    assert counted(browser)["1"] != whole["1"]
    zoomed = browser.text(".state")
    browser.key("ArrowRight")
    assert browser.text(".state") != zoomed
    browser.key("0")
    assert counted(browser) == whole
    box = browser.box(".time")
    browser.mouse("mouseWheel", box["left"] + 700, box["top"] + 200, deltaX=0, deltaY=-400, modifiers=2)
    assert browser.text(".state") != zoomed and "0 ns to" not in browser.text(".state")
    browser.ask("document.querySelector('.reset').click()")
    browser.frame()

    def filtered(text):
        browser.ask(f"(() => {{ const f = document.querySelector('.filter'); f.value = {json.dumps(text)};"
                    " f.dispatchEvent(new Event('input')); })()")
        browser.frame()
        return browser.text(".state").split(" · ")[0]

    assert filtered("block 0-2,5 warp 0") == "4 of 64 rows"
    assert filtered("role copy") == "8 of 64 rows"
    assert filtered("blocks 3") == "8 of 64 rows"
    assert filtered("block 3 warp nonsense") == "8 of 64 rows"
    assert browser.ask("document.querySelector('.filter').classList.contains('bad')")
    assert filtered("") == "64 rows"
    browser.ask("(() => { const o = document.querySelector('.order'); o.value = 'sm';"
                " o.dispatchEvent(new Event('change')); })()")
    browser.frame()
    browser.ask("document.querySelectorAll('.legend input')[1].click()")
    browser.frame()
    assert counted(browser)["1"] == 0
    assert browser.problems == []


@needs_browser
def test_a_selection_is_measured_and_copied_as_a_token_that_show_reads(browser, tmp_path):
    result = specialised(blocks=8)
    browser.open(page(tmp_path, result))
    box = browser.box(".time")
    browser.drag(box["left"] + 400, box["top"] + 92, box["left"] + 700, box["top"] + 170)
    state = browser.text(".state")
    assert re.search(r"selected \d.* × 4 rows", state)
    browser.ask("document.querySelector('.copy').click()")
    browser.ask("new Promise((done) => setTimeout(done, 200))")
    token = browser.text(".state").removeprefix("Copied: ")
    selection = parse_token(token)
    run = run_of(result, REGIONS, ROLES)
    assert selection.kernel == kernel_tag(run.kernel)
    assert (selection.level, selection.unit, len(selection.ids)) == ("warp", "ns", 1)
    block = typical_block(run)
    first, last = selection.ids[0]
    assert last - first == 3 and block * 8 < first and last < block * 8 + 8
    assert 0 < selection.t0 < selection.t1 < run.analysis["span"]
    browser.key("Escape")
    assert browser.problems == []


def copied(browser, button):
    browser.ask(f"document.querySelector('.run:not([hidden]) .{button}').click()")
    browser.ask("new Promise((done) => setTimeout(done, 200))")
    return browser.text(".run:not([hidden]) .state").removeprefix("Copied: ")


@needs_browser
def test_rows_without_a_time_are_chosen_at_any_time(browser, tmp_path):
    result = specialised(blocks=8)
    browser.open(page(tmp_path, result))
    run, box = run_of(result, REGIONS, ROLES), browser.box(".time")
    low = typical_block(run) * 8
    # Along the names of rows, and straight down in the chart: both choose rows and no span of time.
    for x in (box["left"] + 60, box["left"] + 500):
        browser.drag(x, box["top"] + 92, x + 2, box["top"] + 170)
        assert re.search(r"selected any time × 4 rows", browser.text(".state"))
        assert browser.ask("document.querySelector('.fit').hidden") is True
        selection = parse_token(copied(browser, "copy"))
        (ids,) = selection.ids
        assert ids[1] - ids[0] == 3 and low < ids[0] and (selection.t0, selection.t1) == (0, run.analysis["span"])
        chosen = apply_selection(run, selection)
        assert chosen.window is None and len(chosen.trace.rows) == 4
        rows = np.flatnonzero((run.trace.rows.block * 8 + run.trace.rows.warp >= ids[0])
                              & (run.trace.rows.block * 8 + run.trace.rows.warp <= ids[1]))
        assert len(chosen.intervals) == int(np.isin(run.intervals.row, rows).sum())
        browser.key("Escape")
    # A short way down chooses one row.
    browser.drag(box["left"] + 60, box["top"] + 92, box["left"] + 60, box["top"] + 98)
    assert "any time × 1 row" in browser.text(".state")
    browser.drag(box["left"] + 500, box["top"] + 92, box["left"] + 500, box["top"] + 98)
    assert "any time × 1 row" in browser.text(".state")
    assert browser.problems == []


@needs_browser
def test_the_copied_command_is_one_that_a_shell_runs(browser, tmp_path):
    regions = [(0, 1, "it's load; $(x)"), *REGIONS[1:]]
    browser.open(page(tmp_path, specialised(), specialised(seed=2), regions=regions, roles=None))
    browser.ask("document.querySelectorAll('.pills button')[1].click()")
    browser.ask("new Promise((done) => setTimeout(done, 300))")
    browser.ask("document.querySelectorAll('.run:not([hidden]) .legend input')[2].click()")
    box = browser.box(".run:not([hidden]) .time")
    browser.drag(box["left"] + 400, box["top"] + 60, box["left"] + 700, box["top"] + 60)
    words = shlex.split(copied(browser, "command"))
    assert words[:5] == ["gwatch", "show", "trace.json", "--run", "1"] and words[5] == "--select" and len(words) == 7
    assert parse_token(words[6]).scopes == ("it's load; $(x)", "math")
    browser.ask("document.querySelectorAll('.pills button')[0].click()")
    browser.ask("new Promise((done) => setTimeout(done, 300))")
    box = browser.box(".run:not([hidden]) .time")
    browser.drag(box["left"] + 400, box["top"] + 60, box["left"] + 700, box["top"] + 60)
    words = shlex.split(copied(browser, "command"))
    assert "--run" not in words and parse_token(words[-1]).scopes is None
    assert browser.problems == []


@needs_browser
def test_times_that_lie_ages_apart_do_not_hang_the_page(browser, tmp_path):
    result = result_of({(b, 0): [(0, 1000 + b), (1, 1500 + b)] for b in range(20)}, (20, 1, 1), (32, 1, 1))
    result["records"]["time"][0] = -(1 << 62) + 1
    browser.open(page(tmp_path, result, regions=REGIONS[:1], roles=None))
    for _ in range(60):
        browser.ask("document.querySelector('.zoom-in').click()")
    browser.frame()
    browser.ask("document.querySelector('.all').click()")
    browser.frame()
    assert browser.text(".state").startswith("20 rows")
    assert browser.problems == []


@needs_browser
def test_what_one_looks_for_is_in_view_at_1280(tmp_path):
    hopper = Path(__file__).resolve().parents[2] / "examples/cuda/trace/hopper_product_h200.gwatch"
    report = File.load(hopper)
    report.render(tmp_path / "t.html")
    with Browser(1280, 900) as browser:
        browser.open(tmp_path / "t.html")
        box = browser.box(".time")
        browser.drag(box["left"] + 400, box["top"] + 60, box["left"] + 700, box["top"] + 60)
        for name in (".state", ".copy", ".command"):
            place = browser.box(name)
            assert 0 < place["top"] < 880 and place["width"] > 0
        assert "selected" in browser.text(".state")
        wide = browser.ask("[...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth)"
                           ".length")
        assert wide == 0 and browser.ask("document.documentElement.scrollWidth") == 1280
        browser.ask("(() => { const f = document.querySelector('.filter'); f.value = 'block 99';"
                    " f.dispatchEvent(new Event('input')); })()")
        browser.frame()
        assert "none of 96 rows is what the filter asks for" in browser.text(".state")
        assert "pixel" not in browser.text(".state")
        assert browser.problems == []


@needs_browser
def test_waits_do_not_look_alike(tmp_path):
    hopper = Path(__file__).resolve().parents[2] / "examples/cuda/trace/hopper_product_h200.gwatch"
    run = File.load(hopper).runs[0]
    look = looks(run)[:len(run.labels)]
    assert len(set(look)) == len(look) == 10
    for label, mine in zip(run.labels, look, strict=True):
        assert (mine.hatch >= STRIPES) == ("wait" in label)
    File.load(hopper).render(tmp_path / "t.html")
    # Each drawn alone in a picture of its own, the fills differ in what a screen shows.
    with Browser(1280, 900) as browser:
        browser.open(tmp_path / "t.html")
        drawn = []
        for k in range(len(look)):
            browser.ask("(() => { const all = [...document.querySelectorAll('.legend label')];"
                        " for (const l of all) if (l.querySelector('input').checked) l.querySelector('input').click();"
                        f" all.find((l) => l.innerText.trim() === {json.dumps(run.labels[k])}).querySelector('input')"
                        ".click(); })()")
            browser.frame()
            browser.frame()
            drawn.append(browser.ask("""(() => {
              const canvas = document.querySelector(".time"), copy = document.createElement("canvas"), seen = {};
              copy.width = canvas.width;
              copy.height = canvas.height;
              const context = copy.getContext("2d", { willReadFrequently: true });
              context.drawImage(canvas, 0, 0);
              const data = context.getImageData(160, 40, canvas.width - 170, canvas.height - 60).data;
              for (let p = 0; p < data.length; p += 4) {
                const key = [data[p], data[p + 1], data[p + 2]].map((v) => v >> 4).join();
                seen[key] = (seen[key] || 0) + 1;
              }
              return Object.entries(seen).sort((a, b) => b[1] - a[1]).slice(0, 12).map((e) => e[0]).join(" ");
            })()"""))
        assert len(set(drawn)) == len(look)
        assert browser.problems == []


def test_looks_are_told_apart_for_many_scopes():
    rows = {(0, 0): [(k, 10 * k) for k in range(80)]}
    regions = [(2 * k, 2 * k + 1, f"{'wait' if k % 2 else 'work'} {k:02}") for k in range(28)]
    run = run_of(result_of(rows, (1, 1, 1), (32, 1, 1)), regions)
    found = looks(run)
    assert len(found) == 28 + 80 - 56 and len(set(found[:28])) == 28
    assert all(look.hatch == 0 for look in found[28:]) and len(set(found[28:])) == 7


@needs_browser
def test_hostile_names_stay_text(browser, tmp_path):
    result = specialised(kernel_prototype=HOSTILE, warnings=[HOSTILE])
    browser.open(page(tmp_path, result, regions=[(0, 1, HOSTILE), (2, 3, "b")], roles={HOSTILE: HOSTILE},
                      title=HOSTILE))
    assert browser.ask("document.querySelectorAll('img, .legend script').length") == 0
    assert HOSTILE.split("\u2028")[0] in browser.text(".legend")
    box = browser.box(".time")
    browser.mouse("mouseMoved", box["left"] + 420, box["top"] + 60)
    assert browser.ask("document.querySelectorAll('.tip img, .tip script').length") == 0
    assert browser.problems == []


@needs_browser
def test_dark_mode_follows_the_system_and_the_button(tmp_path):
    path = page(tmp_path, specialised(), specialised(seed=3))
    with Browser(dark=True) as browser:
        browser.open(path)
        background = "getComputedStyle(document.body).backgroundColor"
        dark = browser.ask(background)
        browser.ask("document.getElementById('theme').click()")
        browser.frame()
        light = browser.ask(background)
        assert sum(map(int, re.findall(r"\d+", dark))) < 120 < 600 < sum(map(int, re.findall(r"\d+", light)))
        assert counted(browser)["1"] > 1000
        # The second run opens when its pill is pressed.
        assert browser.ask("document.querySelectorAll('.run[data-ready]').length") == 1
        browser.ask("document.querySelectorAll('.pills button')[1].click()")
        browser.ask("new Promise((done) => setTimeout(done, 400))")
        browser.frame()
        assert browser.ask("document.querySelectorAll('.run[data-ready]').length") == 2
        assert counted(browser)["1"] > 1000
        assert browser.problems == []


@needs_browser
def test_records_without_regions_are_drawn_as_marks(browser, tmp_path):
    browser.open(page(tmp_path, specialised(blocks=1), regions=None, roles=None))
    assert "site 0" in browser.text(".legend")
    assert counted(browser)["2"] > 300
    assert browser.problems == []


@needs_browser
def test_a_million_records_open_quickly_and_stay_usable(browser, tmp_path):
    path = page(tmp_path, many(), regions=[(0, 1, "a"), (1, 2, "b"), (2, 0, "c")], roles=None)
    assert path.stat().st_size < 12 * 1_015_808
    browser.open(path)  # gives up after a minute
    browser.ask("document.querySelector('.all').click()")
    browser.frame()
    assert browser.text(".state").startswith("16,384 rows, 33 to a pixel (mean colours)")
    before = browser.text(".state")
    browser.ask("""(async () => {
      for (let i = 0; i < 4; i++) {
        document.querySelector(".zoom-in").click();
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      }
    })()""")
    assert browser.text(".state") != before
    assert browser.problems == []


@needs_browser
@pytest.mark.parametrize("events", [[], [(0, 100)], [(0, 100), (1, 100)], [(0, 7), (1, 7), (0, 7), (1, 9)],
                                    [(1, 5), (0, 6)]], ids=["none", "one", "instant", "equal", "unpaired"])
def test_tiny_traces_make_pages_without_errors(browser, tmp_path, events):
    result = result_of({(0, 0): events}, (1, 1, 1), (32, 1, 1))
    browser.open(page(tmp_path, result, regions=[(0, 1, "r")], roles=None))
    assert browser.problems == []
    if events:
        browser.ask("document.querySelector('.time').focus()")
        for key in ("+", "-", "ArrowLeft", "0", "z"):
            browser.key(key)
        box = browser.box(".time")
        browser.drag(box["left"] + 200, box["top"] + 30, box["left"] + 500, box["top"] + 60)
        assert browser.text(".state").startswith("1 row ")
    assert browser.problems == []


def test_a_site_whose_place_is_null_is_in_the_page(tmp_path):
    """Reports of other tools may not know where a site stands."""
    section = Section_IntraKernelTrace()
    section.add_run(specialised(), site_regions=REGIONS, scope_roles=ROLES)
    report = File(title="t")
    report.add_section(section)
    report.render(tmp_path / "r.json")
    data = json.loads((tmp_path / "r.json").read_text())
    for part in data["sections"]:
        for run in part.get("data", {}).get("runs", []):
            run["analysis"]["sites"][0]["index"] = None
    (tmp_path / "r.json").write_text(json.dumps(data))
    File.load(tmp_path / "r.json").render(tmp_path / "r.html")
    assert "Per-scope stats" in (tmp_path / "r.html").read_text()
