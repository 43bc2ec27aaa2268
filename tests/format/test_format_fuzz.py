"""Reports damaged at random: every view either works or refuses in one line."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from format_synth import REGIONS, ROLES, specialised
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gwatch.cli.main import main
from gwatch.common.format import File, Section_IntraKernelTrace
from gwatch.errors import GWatchError

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.just(1 << 63), st.just(1 << 70), st.floats(), st.text(max_size=4),
    st.just([]), st.just({}), st.just([[1]]))


def report_text(row_form):
    file, section = File(), Section_IntraKernelTrace(row_form=row_form)
    section.add_run(specialised(blocks=2, warps=3, iterations=2, keep=5), REGIONS, ROLES)
    file.add_section(section)
    return "".join(file.json_chunks())


TEXTS = {form: json.loads(report_text(form)) for form in (True, False)}


def places(node, path=()):
    """Paths of all nodes below the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


PLACES = {form: [p for p in places(data) if len(p) < 9] for form, data in TEXTS.items()}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=st.booleans(), rows_only=st.booleans(), which=st.integers(0, 10 ** 9), value=VALUES, drop=st.booleans())
def test_damage_is_refused_or_harmless(form, rows_only, which, value, drop, tmp_path, capsys):
    data = copy.deepcopy(TEXTS[form])
    if form and rows_only:
        del data["sections"][1]["data"]["runs"][0]["records"]
    path = PLACES[form][which % len(PLACES[form])]
    node = data
    for key in path[:-1]:
        node = node[key] if not (isinstance(node, dict) and key not in node) else {}
    if not isinstance(node, (dict, list)) or (isinstance(node, dict) and path[-1] not in node):
        return
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    target = tmp_path / "damaged.json"
    target.write_text(json.dumps(data))
    for flags in ([], ["--json"], ["--roles", "--source", "--concurrency", "--outliers", "--stats", "--bubbles"]):
        code = main(["show", str(target), *flags])
        out, err = capsys.readouterr()
        assert code in (0, 2, 3)
        assert err.count("\n") == (1 if code == 2 else 0)
        if code == 2:
            assert json.loads(out)["code"] in err if flags == ["--json"] else out == ""
    with contextlib.suppress(GWatchError):
        File.load(target).render(tmp_path / "again.html")


@pytest.mark.parametrize(("entry", "value"), [
    ("grid_dim", [float("inf"), 1, 1]), ("site_regions", [[float("inf"), 1, "a"]]),
    ("site_regions", [[float("nan"), 1]]), ("sites", [{"site_id": []}]), ("sites", [{"site_id": None}]),
    ("sites", [{"site_id": ""}]), ("sites", [{"index": []}])])
def test_statements_that_are_no_numbers_are_refused(entry, value, tmp_path, capsys):
    data = copy.deepcopy(TEXTS[False])
    data["sections"][1]["data"]["runs"][0]["analysis"][entry] = value
    (tmp_path / "t.json").write_text(json.dumps(data))
    assert main(["show", str(tmp_path / "t.json")]) == 2
    assert capsys.readouterr().err.startswith("gwatch: [bad-")


def test_a_file_of_noise_is_refused(tmp_path, capsys):
    (tmp_path / "noise.json").write_bytes(bytes(range(256)) * 4)
    assert main(["show", str(tmp_path / "noise.json")]) == 2
    assert "[bad-json]" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"title":"t","sections":[{"type":"Section_IntraKernelTrace","title":1,"data":'
                                  '{"runs":[{"trace_results":[]}]}}]}'])
def test_a_run_of_nothing_shows_that_it_is_empty(text, tmp_path, capsys):
    (tmp_path / "empty.json").write_text(text)
    assert main(["show", str(tmp_path / "empty.json")]) == 3
    assert "no records" in capsys.readouterr().out
