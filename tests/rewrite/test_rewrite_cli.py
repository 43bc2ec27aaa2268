"""``gwatch rewrite``, ``python -m gwatch.rewrite`` and ``gwatch decode`` as a user meets them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_ring_snippets import MATMUL, Launch, play

from gwatch.cli.main import main
from gwatch.cuda.binary.constants import read_note
from gwatch.cuda.binary.cubin import Cubin
from gwatch.errors import SiteError
from gwatch.rewrite.ring import RingLayout
from gwatch.rewrite.ringfile import ring_file_prefix
from gwatch.rewrite.sitemap import NOTE_NAME, SiteMap
from gwatch.rewrite.sites import resolve_site
from gwatch.rewrite.trace import SassTraceSite, plan_trace
from gwatch.sass.isa import isa as isa_module

SITES = ["12", "0x110,reg=R4:64", "line:matmul.cu:29@first", "op:BAR.SYNC@first,warp", "40,smid"]


def arguments(output: Path, *extra: str) -> list[str]:
    sites = [word for site in SITES for word in ("--site", site)]
    return ["rewrite", str(MATMUL), "--kernel", "mat.*", *sites, "--clock", "sm", "-o", str(output), *extra]


def test_the_report_says_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = MATMUL.read_bytes()
    out = tmp_path / "out.cubin"
    assert main(arguments(out)) == 0
    text = capsys.readouterr().out
    assert "BAR.SYNC.DEFER_BLOCKING 0x0" in text and "matmul.cu:29" in text and "none warp" in text
    for word in (
        "registers  32 -> ",
        "record     16 bytes",
        "bytes      ",
        "moved      ",
        "check      ",
        "arm  ",
    ):
        assert word in text
    assert MATMUL.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.cubin", "out.map.json"]
    note = read_note(out.read_bytes(), NOTE_NAME)
    assert note is not None
    site_map = SiteMap.from_bytes(note)
    assert site_map == SiteMap.from_json(json.loads((tmp_path / "out.map.json").read_text()))
    assert [site.index for site in site_map.sites] == [12, 17, 43, 42, 40]
    assert [site.value for site in site_map.sites] == ["none", "R4:64", "none", "none", "smid"]
    code = Cubin.from_bytes(out.read_bytes()).get_kerneldef_by_name("matmul")
    original = Cubin.from_file(MATMUL).get_kerneldef_by_name("matmul")
    for site in site_map.sites:
        assert code.text(site.new_pc // 16).startswith(("CS2R.32", "ELECT"))
        assert site.instruction == original.text(site.index).rstrip(" ;").replace(".reuse", "")


def test_json_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path / "o.cubin", "--json", "--depth", "100", "--keep", "first")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kernel"] == "matmul" and report["registers"]["before"] == 32
    assert report["record"] == {
        "bytes": 16,
        "depth": 128,
        "keep": "first",
        "bytes_per_warp": 129 * 512,
        "version": 1,
    }
    assert [site["site"] for site in report["sites"]] == [0, 1, 2, 3, 4]
    assert report["bytes"]["after"] == (tmp_path / "o.cubin").stat().st_size


def test_records_behind_an_instruction_and_of_guarded_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = ["op:BAR.SYNC@all,warp,after", "80,warp", "80,always", "12"]
    words = [word for site in sites for word in ("--site", site)]
    assert main(["rewrite", str(MATMUL), *words, "-o", str(tmp_path / "o.cubin"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sites"]
    assert [(row["index"], row["unconditional"], row["label"]) for row in rows] == [
        (43, True, "after 42 BAR.SYNC.DEFER_BLOCKING"),
        (80, True, "after 79 BAR.SYNC.DEFER_BLOCKING"),
        (80, False, None),
        (80, True, None),
        (12, False, None),
    ]
    assert [row["note"] for row in rows] == [
        "is made before 43, the next instruction after 42",
        "is made before 80, the next instruction after 79",
        "records only lanes for which @!P0 holds; `always` records all",
        "",
        "",
    ]
    assert main(["rewrite", str(MATMUL), *words, "-o", str(tmp_path / "o.cubin"), "--force"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert len(notes) == 3 and notes[2].endswith(
        "site 2 records only lanes for which @!P0 holds; `always` records all"
    )


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("80,after", "(@!P0 BRA 0x200) transfers control"),
        ("31,after", "instruction 32 behind it is also reached from 80"),
        ("82,after", "(EXIT) transfers control"),
    ],
)
def test_what_is_not_one_place_is_named(site: str, said: str) -> None:
    with pytest.raises(SiteError, match=r"^\[site-after\]") as caught:
        resolve_site(Cubin.from_file(MATMUL).get_kerneldef_by_name("matmul"), site)
    assert said in str(caught.value)


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", str(MATMUL), "--list", "--only", "BAR|matmul.cu:33"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "matmul (sm_90), 32 registers, 84 instructions and 12 NOPs of padding"
        and "R30-R252" in lines[1]
    )
    assert lines[2].split() == ["index", "pc", "line", "instruction", "free", "before", "it,", "too"]
    # R7, R14 and R15 are what the last store takes; others may still be read by an earlier one.
    assert lines[-1].endswith("  R0, R2-R6, R8-R13, R17, R19, R22-R28")
    assert [line.split()[0] for line in lines[3:]] == ["7", "12", "13", "42", "79", "81"]
    assert main(["rewrite", str(MATMUL), "--list", "--only", "WGMMA", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(
        "gwatch: [site-none] no instruction and no line of matmul matches 'WGMMA'; nearest: "
    )
    assert "HFMA2.MMA" in json.loads(shown.out)["candidates"]
    for wrong in (["--list", "--site", "3"], ["--list", "-o", "x.cubin"], ["--only", "BAR", "--site", "3"]):
        assert main(["rewrite", str(MATMUL), *wrong]) == 2
        assert capsys.readouterr().err.startswith("gwatch: [usage] ")


def test_listing_needs_no_instruction_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = isa_module._isa
    monkeypatch.setattr(isa_module, "_isa", lambda arch: None if arch.name == "sm_120" else found(arch))
    data = Path(__file__).parents[1] / "binary" / "data"
    command = ["rewrite", str(data / "holders_sm120.cubin"), "--kernel", "choose", "--list", "--only", "EXIT"]
    with_table = ["rewrite", str(data / "holders_sm90.cubin"), *command[2:]]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "(sm_120)" in lines[0] and lines[1].startswith("free registers not known: [")
    assert all(line.split()[-1] == "EXIT" for line in lines[3:]) and len(lines) > 3
    assert main([*command, "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert (
        listing["free"] is None
        and listing["free_unknown"].startswith("[")
        and len(listing["instructions"]) > 0
    )
    assert main([*with_table, "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert set(listing["free"]) == {"R", "UR", "P"} and "free_unknown" not in listing
    assert all(row["free"].startswith("R") for row in listing["instructions"])


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (["--site", "op:BAR.SYNC"], "site-ambiguous"),
        (["--site", "96"], "site-range"),
        (["--site", "85"], "site-padding"),
        (["--site", "0x18"], "site-unaligned"),
        (["--site", "3,reg=R30"], "site-register"),
        (["--site", "3,reg=R29:64"], "site-register"),
        (["--site", "3,reg=UR40"], "site-register"),
        (["--site", "0,reg=R5"], "site-register"),
        (["--site", "42,reg=R1:64"], "site-register"),
        (["--site", "80,after"], "site-after"),
        (["--site", "op:EXIT,after"], "site-after"),
        (["--site", "31,after"], "site-after"),
        (["--site", "op:BAR.SYNC@all,after,after"], "site-syntax"),
        (["--site", "3", "--depth", "0"], "trace-depth"),
        (["--site", "3,reg=R4:64", "--duration-ns", "5e9"], "trace-too-long"),
        (["--site", "3", "--duration-ns", "nan"], "trace-duration"),
        (["--site", "3", "--duration-ns=-5"], "trace-duration"),
        (["--site", "3", "--duration-ns", "inf"], "trace-duration"),
        (["--site", "3", "--exclude", "Q3"], "site-syntax"),
        (["--site", "3", "--kernel", "softmax"], "kernel-not-found"),
        ([], "no-site"),
    ],
)
def test_refusals_are_one_line_exit_2_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], code: str
) -> None:
    assert main(["rewrite", str(MATMUL), "-o", str(tmp_path / "x.cubin"), *extra]) == 2
    captured = capsys.readouterr()
    assert (
        captured.out == "" and captured.err.startswith(f"gwatch: [{code}]") and captured.err.count("\n") == 1
    )
    assert list(tmp_path.iterdir()) == []


def test_a_marked_kernel_s_markers_are_named_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked = str(Path(__file__).parents[1] / "scopes/data/markers_sm90a.cubin")
    target = tmp_path / "x.cubin"
    assert main(["rewrite", marked, "-o", str(target)]) == 2
    assert "14 scope markers with --site op:PMTRIG@all,warp" in capsys.readouterr().err and not target.exists()
    assert main(["rewrite", marked, "--site", "op:PMTRIG@all,warp", "-o", str(target)]) == 0
    note = read_note(target.read_bytes(), NOTE_NAME)
    assert note is not None and len(SiteMap.from_bytes(note).sites) == 14


def test_the_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "k.cubin"
    copy.write_bytes(MATMUL.read_bytes())
    assert main(["rewrite", str(copy), "--site", "3", "-o", str(copy)]) == 2
    assert "[output-is-input]" in capsys.readouterr().err
    assert main(["rewrite", str(copy), "--site", "3"]) == 2
    assert "[no-output]" in capsys.readouterr().err
    assert copy.read_bytes() == MATMUL.read_bytes() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("there", ["out.cubin", "out.map.json"])
def test_a_file_that_is_there_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    out, snippet = tmp_path / "out.cubin", tmp_path / "count.sass"
    snippet.write_text("MOV %r0, 0x7b\n")
    (tmp_path / there).write_bytes(b"mine")
    command = ["rewrite", str(MATMUL), "--site", "3", "-o", str(out)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said == (
        f"gwatch: [output-exists] {tmp_path / there} is there already; "
        "--force replaces it, -o names another file\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count.sass", there]
    assert (tmp_path / there).read_bytes() == b"mine"
    # A snippet has no site map: a file of that name is not in its way, and stays what it is.
    own = [*command, "--snippet", str(snippet)]
    assert main(own) == (2 if there == "out.cubin" else 0)
    assert (tmp_path / there).read_bytes() == b"mine"
    assert main([*own, "--force"]) == 0 and out.read_bytes()[:4] == b"\x7fELF"
    assert main([*command, "--force"]) == 0 and json.loads((tmp_path / "out.map.json").read_text())


@pytest.mark.parametrize("occupied", ["out.cubin", "out.map.json"])
def test_both_files_are_written_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], occupied: str
) -> None:
    (tmp_path / occupied).mkdir()
    assert main(["rewrite", str(MATMUL), "--site", "3", "-o", str(tmp_path / "out.cubin")]) == 2
    assert capsys.readouterr().err.startswith("gwatch: [write-failed]")
    assert [path.name for path in tmp_path.iterdir()] == [occupied]
    long = "x" * 235 + ".cubin"
    assert main(["rewrite", str(MATMUL), "--site", "3", "-o", str(tmp_path / long)]) == 2
    assert capsys.readouterr().err.startswith("gwatch: [write-failed]")
    assert [path.name for path in tmp_path.iterdir()] == [occupied]


def test_a_patched_cubin_is_not_patched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path / "out.cubin")) == 0
    capsys.readouterr()
    again = ["rewrite", str(tmp_path / "out.cubin"), "--site", "3", "-o", str(tmp_path / "again.cubin")]
    assert main(again) == 2
    assert capsys.readouterr().err.startswith("gwatch: [already-patched]")


def test_a_users_own_snippet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snippet = tmp_path / "count.sass"
    snippet.write_text("MOV %r0, 0x7b\nIADD3 %r1, %r0, 0x1, RZ\n")
    out = tmp_path / "s.cubin"
    command = ["rewrite", str(MATMUL), "--site", "op:BAR.SYNC@all", "--snippet", str(snippet), "-o", str(out)]
    assert main(command) == 0
    assert "snippet" in capsys.readouterr().out
    texts = Cubin.from_file(out).get_kerneldef_by_name("matmul").texts
    assert sum("0x7b" in text for text in texts) == 2


def test_the_module_is_the_command(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gwatch.rewrite", str(MATMUL), "--site", "op:BAR", "-o", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2 and result.stderr.startswith("gwatch: [site-ambiguous]")


def test_sites_that_share_a_record_are_told_and_can_be_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hopper = Path(__file__).parents[1] / "scopes" / "data" / "hgmma_matmul.cubin"
    out = tmp_path / "out.cubin"
    sites = [option for place in (81, 89, 145) for option in ("--site", f"{place},warp")]
    command = ["rewrite", str(hopper), "--kernel", "hgmma", *sites, "--clock", "sm", "-o", str(out), "--force"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "the record of site 2 tells site 0's time, read at the site and held for its word x" in told
    assert "site 1's time, read at the site and held for its word y" in told
    assert main([*command, "--no-hold", "--json"]) == 0
    assert [site["shared_with"] for site in json.loads(capsys.readouterr().out)["sites"]] == [None] * 3


@pytest.fixture
def ring(tmp_path: Path) -> tuple[Path, Path, Launch]:
    """A patched cubin, and a bare ring dump that its (interpreted) inserted code wrote."""
    sites = [SassTraceSite(42), SassTraceSite(79, 5, warp_level=True, label="sync")]
    plan = plan_trace(Cubin.from_file(MATMUL), "matmul", sites, clock="sm", depth=4)
    launch = Launch(plan, RingLayout.for_launch(plan.site_map.format, (2, 1, 1), (16, 3, 1)))
    play(launch, seed=8)
    dump = tmp_path / "ring.bin"
    dump.write_bytes(launch.machine.memory[launch.start : launch.start + launch.layout.data_bytes])
    patched = tmp_path / "patched.cubin"
    patched.write_bytes(plan.data)
    return dump, patched, launch


def test_decode_a_bare_dump(ring: tuple[Path, Path, Launch], capsys: pytest.CaptureFixture[str]) -> None:
    dump, patched, launch = ring
    command = ["decode", str(dump), "--cubin", str(patched), "--grid", "2", "--block", "16,3"]
    assert main([*command, "--duration-ns", "1e6", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    expected = launch.check()
    assert got["records"] == len(expected.records) == len(got["trace"]) and got["unit"] == "cycles"
    assert got["dropped"] == expected.dropped_total > 0 and got["warnings"] == []
    assert [row["time"] for row in got["trace"]] == expected.records["time"].tolist()
    assert got["trace"][0]["block"] == [0, 0, 0]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"{len(expected.records)} records, {expected.dropped_total} dropped" in text
    assert "warning: [duration-unknown]" in text


@pytest.fixture
def described(ring: tuple[Path, Path, Launch], tmp_path: Path) -> Path:
    """The dump with its description before it."""
    dump, _, launch = ring
    file = tmp_path / "described.ring"
    file.write_bytes(ring_file_prefix(launch.layout, 5e5) + dump.read_bytes())
    return file


def test_decode_a_self_describing_file(
    ring: tuple[Path, Path, Launch], described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, patched, launch = ring
    note = read_note(patched.read_bytes(), NOTE_NAME)
    assert note is not None
    (tmp_path / "patched.map.json").write_bytes(note)
    for site_map in (patched, tmp_path / "patched.map.json"):
        assert main(["decode", str(described), "--cubin", str(site_map), "-o", str(tmp_path / "t.npz")]) == 0
        assert "warning" not in capsys.readouterr().out
        with np.load(tmp_path / "t.npz") as saved:
            assert (saved["records"] == launch.check().records).all()
            assert saved["dropped"].sum() == launch.check().dropped_total


def test_decode_refuses_regions_that_pair_nothing(
    ring: tuple[Path, Path, Launch], described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, patched, _ = ring
    command = ["decode", str(described), "--cubin", str(patched), "--region"]
    output = tmp_path / "r.json"
    assert main([*command, "0:9:zz", "-o", str(output)]) == 2 and not output.exists()
    assert "[site-range] --region 'zz' names site 9" in capsys.readouterr().err
    assert main([*command, "0:1"]) == 2
    assert "[region-without-report]" in capsys.readouterr().err


def test_decode_writes_a_report(
    ring: tuple[Path, Path, Launch], described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, patched, launch = ring
    for name in ("t.json", "t.html"):
        command = ["decode", str(described), "--cubin", str(patched), "-o", str(tmp_path / name)]
        assert main([*command, "--region", "0:1:body"]) == 0
    capsys.readouterr()
    section = json.loads((tmp_path / "t.json").read_text())["sections"][1]
    (run,) = section["data"]["runs"]
    assert run["kernel_prototype"] == "matmul" and run["analysis"]["region_stats"][0]["label"] == "body"
    assert len(run["trace_results"]) == len(launch.check().records)
    assert "matmul" in (tmp_path / "t.html").read_text()
    assert main(["show", str(tmp_path / "t.json")]) == 0


def test_decode_refusals(
    ring: tuple[Path, Path, Launch], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, patched, launch = ring
    empty = tmp_path / "empty.bin"
    empty.write_bytes(bytes(launch.layout.data_bytes))
    geometry = ["--grid", "2,1,1", "--block", "16,3,1"]
    for command, code in (
        ([str(dump), "--cubin", str(patched)], "ring-geometry"),
        ([str(dump), "--cubin", str(MATMUL), *geometry], "site-map"),
        ([str(dump), "--cubin", str(patched), "--grid", "3", "--block", "48"], "ring-size"),
        ([str(empty), "--cubin", str(patched), *geometry], "not-run"),
        ([str(tmp_path / "none"), "--cubin", str(patched), *geometry], "no-file"),
        ([str(dump), "--cubin", str(tmp_path / "none"), *geometry], "no-file"),
    ):
        assert main(["decode", *command]) == 2
        assert capsys.readouterr().err.startswith(f"gwatch: [{code}]")
    quiet = Launch(launch.plan, launch.layout)
    for cta in range(2):
        for warp in range(2):
            quiet.enter(cta, warp)
    dump.write_bytes(quiet.machine.memory[quiet.start : quiet.start + quiet.layout.data_bytes])
    assert main(["decode", str(dump), "--cubin", str(patched), *geometry, "--json"]) == 3
    assert "[no-records]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (0x1C4D, b"\x88", "control-illegal"),
        (0x1B7E, b"\x0f", "control-illegal"),
        (0x1614, b"\xff\xff\xff\x7f", "regcount-range"),
        (0x1614, b"\xff\xff\xff\xff", "regcount-range"),
        (0x1614, b"\x00\x01\x00\x00", "regcount-range"),
        (0x1614, b"\x00\x00\x00\x00", "register-count"),
        (0x1614, b"\x08\x00\x00\x00", "register-count"),
    ],
)
def test_scoreboards_and_register_counts_that_do_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int, value: bytes, code: str
) -> None:
    data = bytearray(MATMUL.read_bytes())
    data[at : at + len(value)] = value
    damaged = tmp_path / "damaged.cubin"
    damaged.write_bytes(data)
    assert main(["rewrite", str(damaged), "--site", "0", "-o", str(tmp_path / "out.cubin")]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"gwatch: [{code}] ") and shown.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.cubin"]


@pytest.mark.parametrize("count", [30, 31, 32])
def test_a_count_without_spare_registers_gives_none_away_that_the_code_names(tmp_path: Path, count: int) -> None:
    # Compilers state two registers more than the code names (R29 is the last here).
    data = bytearray(MATMUL.read_bytes())
    data[0x1614:0x1618] = count.to_bytes(4, "little")
    damaged = tmp_path / "damaged.cubin"
    damaged.write_bytes(data)
    sites = [word for index in range(0, 48, 2) for word in ("--site", str(index))]
    assert main(["rewrite", str(damaged), *sites, "-o", str(tmp_path / "out.cubin")]) == 0


def test_outputs_that_are_no_files_stay_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, target, link = tmp_path / "pipe.cubin", tmp_path / "target.cubin", tmp_path / "link.cubin"
    os.mkfifo(pipe)
    target.write_bytes(b"old")
    link.symlink_to(target)
    for output in (".", "", "/", str(pipe)):
        assert main(["rewrite", str(MATMUL), "--site", "3", "-o", output]) == 2
        assert capsys.readouterr().err.startswith("gwatch: [write-failed] cannot write ")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.cubin", "pipe.cubin", "target.cubin"]
    assert main(["rewrite", str(MATMUL), "--site", "3", "-o", str(link)]) == 2
    assert "[output-exists]" in capsys.readouterr().err and target.read_bytes() == b"old"
    assert main(["rewrite", str(MATMUL), "--site", "3", "-o", str(link), "--force"]) == 0
    assert link.is_symlink() and target.read_bytes()[:4] == b"\x7fELF"


def test_a_disk_that_fills_up_leaves_neither_file(tmp_path: Path) -> None:
    output = tmp_path / "out.cubin"
    script = (
        "import resource, signal, sys\n"
        "from gwatch.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        f"sys.exit(main(['rewrite', {str(MATMUL)!r}, '--site', '0', '-o', {str(output)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("gwatch: [write-failed] "), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gwatch.cli.main", "rewrite", str(MATMUL), "--list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("gwatch: [os-error] ") and done.stderr.count("\n") == 1, done.stderr
