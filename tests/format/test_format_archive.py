"""The archive: the same report, smaller; damage anywhere is refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from format_synth import REGIONS, ROLES, many, result_of, specialised
from hypothesis import given, settings
from hypothesis import strategies as st

from gwatch.cli.main import main
from gwatch.common.format import File, Section, Section_IntraKernelTrace
from gwatch.common.format.archive import MAGIC, _column, _Writer, read_archive
from gwatch.errors import GWatchError, TraceError


def report(*results, regions=REGIONS, roles=ROLES):
    file, section = File("t", generated_at="2026-01-02 03:04:05"), Section_IntraKernelTrace(row_form=False)
    for result in results:
        section.add_run(result, regions, roles)
    file.add_section(section)
    file.add_section(Section("raw", {"x": [1, "µ"]}, "Section_Other"))
    return file


def test_it_says_what_the_json_report_says(tmp_path):
    file = report(specialised(), specialised(keep=9), specialised(clock_type="sm", seed=4))
    file.render(tmp_path / "t.gwatch")
    file.render(tmp_path / "t.json")
    loaded = File.load(tmp_path / "t.gwatch")
    loaded.traces[0].row_form = False
    loaded.render(tmp_path / "back.json")
    assert (tmp_path / "back.json").read_bytes() == (tmp_path / "t.json").read_bytes()


def test_show_reads_it(tmp_path, capsys):
    report(specialised()).render(tmp_path / "t.gwatch")
    report(specialised()).render(tmp_path / "t.json")
    for flags in ([], ["--json"], ["--roles"]):
        outs = []
        for name in ("t.gwatch", "t.json"):
            assert main(["show", str(tmp_path / name), *flags]) == 0
            outs.append(capsys.readouterr().out.replace(name, ""))
        assert outs[0] == outs[1]


def test_it_is_small(tmp_path):
    result = many(n_rows=2048, per_row=60)
    report(result, regions=[(0, 1, "a")], roles=None).render(tmp_path / "t.gwatch")
    assert (tmp_path / "t.gwatch").stat().st_size < 3 * 2048 * 60


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=40), st.sampled_from([0, 8, 16, 40, 62]))
def test_columns_come_back(values, shift):
    column = np.array([v >> shift for v in values], np.int64)
    writer = _Writer()
    reference = writer.reference(column)["~"]
    back = _column(reference, memoryview(b"".join(writer.parts)), "x")
    assert back.astype(np.int64).tolist() == column.tolist()


def test_the_largest_values_come_back():
    writer = _Writer()
    column = np.array([0, (1 << 64) - 1], np.uint64)
    assert _column(writer.reference(column)["~"], memoryview(writer.parts[0]), "x").tolist() == [0, (1 << 64) - 1]


@pytest.mark.parametrize("reference", [
    ["u1", 3, 0, 999], ["u9", 3, 0, 4], ["u1", -1, 0, 4], ["u1", 3], None, "u1", ["u1", 3, 0, 4.0], ["u1", True, 0, 4],
    ["u8", 1 << 40, 0, 11], ["u1", 2, 0, 11], ["u1", 4, 0, 11], ["u1", 3, 1, 10], ["u1", 3, 0, 10]])
def test_bad_references_are_refused(reference):
    writer = _Writer()
    assert writer.reference(np.array([1, 2, 3]))["~"] == ["u1", 3, 0, 11]
    with pytest.raises(TraceError, match=r"\[bad-archive\]"):
        _column(reference, memoryview(writer.parts[0]), "x")


def test_damage_anywhere_is_refused_or_harmless(tmp_path, capsys):
    report(specialised(blocks=2, warps=2, iterations=3)).render(tmp_path / "t.gwatch")
    good = (tmp_path / "t.gwatch").read_bytes()
    assert good.startswith(MAGIC)
    rng = random.Random(4)
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)):]
        (tmp_path / "bad.gwatch").write_bytes(bytes(data))
        code = main(["show", str(tmp_path / "bad.gwatch")])
        out, err = capsys.readouterr()
        assert code in (0, 2, 3)
        assert code != 2 or (out == "" and err.count("\n") == 1)
        refused += code == 2
    assert refused > 200


def test_bytes_behind_the_end_are_refused(tmp_path, capsys):
    report(specialised(blocks=1, warps=2, iterations=2)).render(tmp_path / "t.gwatch")
    good = (tmp_path / "t.gwatch").read_bytes()
    for more in (b"\0", good, b"\n" * 1000):
        (tmp_path / "t.gwatch").write_bytes(good + more)
        assert main(["show", str(tmp_path / "t.gwatch"), "--json"]) == 2
        out, err = capsys.readouterr()
        assert json.loads(out)["code"] == "bad-archive" and f"{len(more)} bytes behind its end" in err


def test_a_short_file_is_refused():
    for raw in (MAGIC, MAGIC + b"\xff" * 8, MAGIC + (5).to_bytes(8, "little") + b"\xc1" * 5):
        with pytest.raises(GWatchError, match=r"\[bad-archive\]"):
            read_archive(raw, "x")


def test_odd_text_survives(tmp_path, capsys):
    file = report(result_of({(0, 0): [(0, 5)]}, (1, 1, 1), (32, 1, 1), kernel_prototype="k\udc80µ"), regions=None,
                  roles=None)
    file.render(tmp_path / "t.json")
    run = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["sections"][1]["data"]["runs"][0]
    assert run["kernel_prototype"] == "k\udc80µ"
    for name in ("t.html", "t.gwatch"):
        file.render(tmp_path / name)
    assert File.load(tmp_path / "t.gwatch").traces[0].runs[0].kernel == "k\udc80µ"
    for flags in ([], ["--human"], ["--json"]):
        assert main(["show", str(tmp_path / "t.gwatch"), *flags]) == 0
        out = capsys.readouterr().out
        assert "udc80" in out
    assert json.loads(out)["kernel_prototype"] == "k\udc80µ"
