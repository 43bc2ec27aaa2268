"""Damaged input is named, never a crash, and never an endless loop."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inspect_support import COPY_CUBIN, FIXTURES, TRITON, WRAPPER, fatbin, host_elf

from gwatch.cli.main import main
from gwatch.errors import CubinError
from gwatch.inspect.artifacts import Image, Skipped, Text, open_artifact
from gwatch.inspect.demangle import printable
from gwatch.inspect.embedded import embedded_symbols
from gwatch.inspect.listing import Style
from gwatch.inspect.reader import Reader
from gwatch.inspect.rules import fail_on, parse_forbid, parse_require
from gwatch.inspect.run import Request, examine, inspect
from gwatch.inspect.triton_source import TritonKernels

ALL = Request(
    rules=(parse_require("LDG.E.128 >= 2"), parse_forbid("STL"), fail_on("narrow")),
    vectorization=True,
    lines=True,
    sass=Style.CUOBJDUMP,
)
edits = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=12)


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for place, value in changes:
        out[place % len(out)] = value
    return bytes(out)


@given(edits)
@settings(max_examples=60, deadline=None)
def test_a_damaged_cubin_is_read_or_named(changes: list[tuple[int, int]]) -> None:
    image = damaged(COPY_CUBIN, changes)
    report = examine(Image("x", "file", image), ALL, TritonKernels())
    assert report.problem == "" or report.problem.startswith("[")


@given(edits, st.integers(0, 27000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_library_is_read_or_named(changes: list[tuple[int, int]], cut: int) -> None:
    data = damaged((FIXTURES / "libtwo.so").read_bytes(), changes)[: max(cut, 64)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.so"
        path.write_bytes(data)
        report = inspect([path])
    assert report.images or report.skipped
    for image in report.images:
        assert image.problem == "" or image.problem.startswith("[")


@given(edits, st.integers(64, 27000))
@settings(max_examples=60, deadline=None)
def test_a_damaged_symbol_table_names_what_it_can(changes: list[tuple[int, int]], cut: int) -> None:
    data = damaged((FIXTURES / "embedded.so").read_bytes(), changes)[:cut]
    found = embedded_symbols(Reader(io.BytesIO(data), "x.so"))
    assert len(found) <= 3


@given(edits)
@settings(max_examples=60, deadline=None)
def test_damaged_texts_describe_something_or_nothing(changes: list[tuple[int, int]]) -> None:
    kernels = TritonKernels()
    for name, text in (
        ("w.cpp", WRAPPER),
        ("k.ttir", (TRITON / "mask.ttir").read_text()),
        ("k.json", '{"name": "k", "num_warps": 4}'),
    ):
        kernels.add(Text(name, damaged(text.encode(), changes).decode("utf-8", "replace")))
    found = kernels.find("copy_kernel", "x/k.cubin")
    assert found is None or found.name == "copy_kernel"


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("nested", [False, True])
def test_an_archive_made_to_fill_disks_is_refused(
    tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gwatch.inspect.reader._LEAST", 1 << 20)
    inner = zipped({f"{n}.bin": bytes(3 << 20) for n in range(4)})
    path = tmp_path / "x.whl"
    path.write_bytes(zipped({f"{n}.zip": inner for n in range(8)}) if nested else inner)
    with pytest.raises(CubinError, match=r"\[archive-bomb\]"):
        list(open_artifact(path))
    assert main(["inspect", str(path), "--require", "LDG >= 0"]) == 2
    assert "[archive-bomb]" in capsys.readouterr().err
    # In a folder it is named, and the rest is read.
    (tmp_path / "k.cubin").write_bytes(COPY_CUBIN)
    found = list(open_artifact(tmp_path))
    assert [item.path for item in found if isinstance(item, Image)] == [str(tmp_path / "k.cubin")]
    assert any(isinstance(item, Skipped) and "[archive-bomb]" in item.reason for item in found)


def test_an_archive_that_says_it_fills_disks_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gwatch.inspect.reader._LEAST", 1 << 20)
    data = bytearray(zipped({"k.cubin": COPY_CUBIN}))
    struct.pack_into("<I", data, data.find(b"PK\1\2") + 24, 1 << 30)
    path = tmp_path / "x.whl"
    path.write_bytes(data)
    with pytest.raises(CubinError, match=r"\[archive-bomb\] .* says that it unpacks to more than"):
        list(open_artifact(path))


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    data = bytearray(zipped({"k.cubin": COPY_CUBIN, "l.cubin": COPY_CUBIN}))
    data[data.find(b"PK\1\2") + 8] |= 1
    path = tmp_path / "x.whl"
    path.write_bytes(data)
    assert list(open_artifact(path)) == [
        Skipped(f"{path}!k.cubin", "it is encrypted", True), Image(f"{path}!l.cubin", "member", COPY_CUBIN)
    ]  # fmt: skip


@pytest.mark.parametrize("front", [b"#!/usr/bin/env python3\n", b"MZ" + bytes(998), host_elf(COPY_CUBIN)])
def test_an_archive_behind_other_bytes_is_opened(tmp_path: Path, front: bytes) -> None:
    path = tmp_path / "x.pyz"
    path.write_bytes(front + zipped({"k.cubin": COPY_CUBIN}))
    found = [item.path for item in open_artifact(path) if isinstance(item, Image)]
    assert found[-1] == f"{path}!k.cubin" and len(found) == 1 + (COPY_CUBIN in front)


def test_the_magic_of_an_archive_in_a_library_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    for tail in (b"PK\5\6" + bytes(40), b"PK\5\6" + b"\1" * 40, b"PK\5\6"):
        path.write_bytes(host_elf(b"") + tail)
        assert list(open_artifact(path)) == [Skipped(str(path), "no cubin and no fat binary inside")]


def claiming(packing: str, stated: int) -> bytes:
    """A fat binary whose one member states this size unpacked."""
    data = bytearray(fatbin([(90, COPY_CUBIN, packing)]))
    struct.pack_into("<Q", data, 16 + 56, stated)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        claiming("lz4", 1 << 30),
        claiming("lz4", 1 << 28),
        claiming("zstd", 1 << 28),
        claiming("zstd", len(COPY_CUBIN) - 1),
        fatbin([(90, COPY_CUBIN, "zstd")]).replace(
            zstandard.ZstdCompressor().compress(COPY_CUBIN)[:5],
            # A frame header with eight bytes of content size: 2 to the 40.
            struct.pack("<IB", 0xFD2FB528, 0xE0),
        ),
    ],
)
def test_members_that_claim_to_be_large_set_no_memory_aside(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.fatbin"
    path.write_bytes(data)
    tracemalloc.start()
    (found,) = open_artifact(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Skipped)
    assert "[fatbin-corrupt]" in found.reason
    assert peak < 16 << 20


def test_a_truncated_container_is_named_and_what_is_whole_is_read(tmp_path: Path) -> None:
    data, first = fatbin([(90, COPY_CUBIN, "lz4"), (80, COPY_CUBIN, "zstd")]), len(fatbin([(90, COPY_CUBIN, "lz4")]))
    path = tmp_path / "x.fatbin"
    for cut in range(0, len(data), 97):
        path.write_bytes(data[:cut])
        found = list(open_artifact(path))
        whole = [item.data for item in found if isinstance(item, Image)]
        assert whole == [COPY_CUBIN] * (cut >= first), cut
        assert cut < 4 or [item.unread for item in found if isinstance(item, Skipped)] == [True], cut
    # Followed by other data, the container looks whole, but its second member is not.
    path.write_bytes(host_elf(data[:-40]))
    assert [type(item) for item in open_artifact(path)] == [Image, Skipped]


def test_names_of_members_lead_nowhere(tmp_path: Path) -> None:
    names = ["../../up.cubin", "/abs/x.cubin", "C:\\\\win.cubin", "ü" * 300 + ".cubin", "a" * 400, "..", ".", "\x1b[2J"]
    images = [COPY_CUBIN + bytes(number) for number in range(len(names))]
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, image in zip(names, images, strict=True):
            archive.writestr(name, image)
    target = tmp_path / "out"
    report = inspect([path], extract=target)
    assert len(report.extracted) == len(names)
    assert sorted(tmp_path.rglob("*")) == sorted([path, target, *target.iterdir()])
    assert {entry.read_bytes() for entry in target.iterdir()} == set(images)
    assert all(entry.name.isascii() and entry.name.isprintable() for entry in target.iterdir())


def test_an_existing_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "k.cubin").write_bytes(COPY_CUBIN)
    target = tmp_path / "out"
    (written,) = inspect([tmp_path / "k.cubin"], extract=target).extracted
    victim = tmp_path / "victim"
    victim.write_text("mine")
    Path(written).unlink()
    Path(written).symlink_to(victim)
    assert inspect([tmp_path / "k.cubin"], extract=target).extracted == [written]
    assert victim.read_text() == "mine"
    assert Path(written).read_bytes() == COPY_CUBIN


def test_pipes_and_links_are_named_and_not_followed_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe.cubin")
    (folder / "loop").symlink_to(folder)
    (folder / "ring.so").symlink_to(folder / "ring.so")
    (folder / "zero.so").symlink_to("/dev/zero")
    (folder / "real.cubin").write_bytes(COPY_CUBIN)
    (folder / "link.cubin").symlink_to(folder / "real.cubin")
    report = inspect([folder])
    assert [(image.path, image.also_at) for image in report.images] == [
        (str(folder / "link.cubin"), [str(folder / "real.cubin")])
    ]
    assert {(Path(item.path).name, item.reason.rsplit("/", 1)[-1]) for item in report.skipped} == {
        ("pipe.cubin", "pipe.cubin is not a regular file; name the file itself"),
        ("zero.so", "zero.so is not a regular file; name the file itself"),
        ("ring.so", "symbolic link that leads nowhere"),
        ("loop", "symbolic link to a folder, not followed"),
    }
    with pytest.raises(CubinError, match=r"\[artifact-unreadable\]"):
        inspect([folder / "pipe.cubin"])


def test_names_cannot_speak_to_the_terminal_or_the_ci_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = b"co\x1b[2J\n::e:"
    path = tmp_path / "k.cubin"
    path.write_bytes(COPY_CUBIN.replace(b"copy_kernel", name))
    outputs = []
    for more in ([], ["--vectorization"], ["--forbid", "LDG"], ["--forbid", "LDG", "--format", "github"]):
        main(["inspect", str(path), *more])
        outputs.append(capsys.readouterr().out)
    main(["diff", str(path), str(FIXTURES / "vector_copy.cubin")])
    outputs.append(capsys.readouterr().out)
    main(["inspect", str(path), "--sass"])
    outputs.append(capsys.readouterr().out)
    for out in outputs:
        assert "\x1b" not in out
        assert not any(line.startswith("::e:") for line in out.splitlines())
        assert "co\\x1b[2J\\x0a::e:" in out or "co\\x1b[2J%0A::e:" in out
    assert printable("a\u202eb\tc\x85") == "a\\u202eb c\\x85"


def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"k\xff.cubin")
    path.write_bytes(COPY_CUBIN)
    assert main(["inspect", str(path), "-o", str(tmp_path / "out")]) == 0
    assert main(["inspect", str(tmp_path), "--json", "-o", str(tmp_path / "json")]) == 0
    for encoding in ("ascii", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-m", "gwatch", "inspect", path],
            env={**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"},
            capture_output=True,
            check=True,
        )
        assert b"k\\udcff.cubin" in done.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("w.cpp", "async_compile.triton('a', '''" * 100_000),
        ("w.cpp", "async_compile.triton('k', '''x'''" + "a" * 1_000_000 + " = loadKernel(" + " " * 1_000_000),
        ("w.cpp", "async_compile.triton('k', '''x''' launchKernel(" + " " * 1_000_000),
        ("w.cpp", "async_compile.triton('k', '''" + "(" * 100_000 + "'''"),
        ("w.cpp", "async_compile.triton('k', '''def k(): pass\0'''"),
        ("w.py", "async_compile.triton('k', '''@f(triton_meta=" + "-" * 20_000 + "1)\ndef k(): pass''')"),
        ("k.ttir", "tt.func public @k(" * 100_000),
        ("k.ttir", "tt.func public @k(" + "%a:" * 300_000 + " " * 1_000_000 + ") attributes"),
        ("k.json", "[" * 1_000_000),
    ],
)
def test_texts_made_to_be_slow_are_not(name: str, text: str) -> None:
    kernels = TritonKernels()
    kernels.add(Text(name, text))
    assert [kernel.num_warps for kernel in kernels.kernels] in ([], [None])


@pytest.mark.parametrize(
    "meta",
    [
        "7", "{}", "{'signature': 3}", "{'signature': {'x': '*fp32'}, 'constants': [1]}",
        "{'signature': {7: 8}, 'configs': [{(0,): [['tt.divisibility', 'x']]}]}",
        "{'signature': {'x': 0}, 'configs': [{(-9,): [['tt.divisibility', 16]], 'divisible_by_16': (-9, 'y')}]}",
    ],
)  # fmt: skip
def test_metadata_of_other_shapes_promises_nothing(meta: str) -> None:
    kernels = TritonKernels()
    kernels.add(Text("w.py", f"async_compile.triton('k', '''@f(triton_meta={meta})\ndef k(): pass''')"))
    assert all(a.divisibility is None for kernel in kernels.kernels for a in kernel.arguments)


@pytest.mark.parametrize("name", ["embedded.so", "vector_copy.cubin"])
@pytest.mark.parametrize("field", [32, 40])  # offsets of the program and of the section headers
def test_offsets_beyond_any_file(tmp_path: Path, name: str, field: int) -> None:
    for value in (2**64 - 1, 2**63, 2**62):
        data = bytearray((FIXTURES / name).read_bytes())
        struct.pack_into("<Q", data, field, value)
        path = tmp_path / name
        path.write_bytes(data)
        assert list(open_artifact(path))
